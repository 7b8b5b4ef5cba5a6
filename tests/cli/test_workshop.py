"""The options of the workshop's commands say what the workshop does."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hifigemm.cli import workshop
from hifigemm.workshop import bench, demo, report
from hifigemm.workshop.measuring.arrays import DTYPES, FAMILIES, phi_of
from hifigemm.workshop.measuring.timing import Method
from hifigemm.workshop.plots import SUFFIXES


def parsed(add, *line):
    """The values of the options of a command line, and the text of its help."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add(commands)
    (name, command) = next(iter(commands.choices.items()))
    return parser.parse_args([name, *line]), " ".join(command.format_help().split())


def test_bench_names_the_dtypes_families_and_runs_of_the_workshop():
    args, text = parsed(workshop.add_bench)
    assert workshop.DTYPES == DTYPES
    assert args.family in FAMILIES
    for family in FAMILIES:
        is_named = family in text or family in ("type2", "type3")
        assert is_named or phi_of(family) is not None
    assert f"sustained runs of each case (default: {Method().runs})" in text


def test_demo_names_the_kinds_of_pictures():
    args, text = parsed(workshop.add_demo)
    assert f"picture ({', '.join(SUFFIXES)})" in text
    assert args.output.suffix in SUFFIXES


def test_options_reach_the_workshop(monkeypatch):
    calls = []
    for module, name in ((demo, "demo"), (report, "report"), (bench, "bench")):
        monkeypatch.setattr(module, name, lambda *given: calls.append(given))
    for add, line in (
        (workshop.add_demo, "--size 7 --seed 3 -o x.svg"),
        (workshop.add_report, "--device cpu --seed 2 -o x.html"),
        (workshop.add_bench, "--sizes 4,8,4 --dtype float32 --schemes auto --runs 2"),
    ):
        args, _ = parsed(add, *line.split())
        args.run(args)
    (settings,) = calls.pop()
    assert calls == [(7, 3, Path("x.svg")), (Path("x.html"), "cpu", 2)]
    assert settings.shapes == [(4, 4, 4), (8, 8, 8)]
    assert (settings.dtype, settings.schemes, settings.runs) == ("float32", ["auto"], 2)


@pytest.mark.parametrize(
    "case", ["auto@best", "auto@12", "auto@Relative(2)", "auto@Relative()", "nothing"]
)
def test_cases_that_cannot_be_asked_for_are_mistakes_of_the_line(case, capsys):
    with pytest.raises(SystemExit):
        parsed(workshop.add_bench, "--schemes", case)
    assert "--schemes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case", ["auto@Relative(1e-12)", "auto@1e-400", "auto@correct", "native", "peers"]
)
def test_cases_of_the_notation_are_let_through(case):
    args, _ = parsed(workshop.add_bench, "--schemes", case)
    assert args.schemes == [case]
