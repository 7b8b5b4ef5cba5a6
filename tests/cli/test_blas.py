"""`hifigemm blas`, and `hifigemm run --blas correct`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm as hg
from hifigemm.cli import blas, main

FOLDER = Path(hg.__file__).parent
needs_library = pytest.mark.skipif(
    not (FOLDER / "libhifigemm_blas.so").exists(), reason="the BLAS is not built"
)


def run(*argv, **variables):
    """A command line in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run(
        [sys.executable, "-m", "hifigemm", *argv],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


@needs_library
def test_blas_prints_the_path_of_the_library(capsys):
    assert main(["blas"]) == 0
    assert capsys.readouterr().out == f"{FOLDER / 'libhifigemm_blas.so'}\n"


@needs_library
def test_any_program_gets_the_library_and_its_arguments():
    command = ["sh", "-c", 'echo "$LD_PRELOAD|$1"; exit 3', "sh", "--accuracy"]
    process = run("run", "--blas", "correct", *command, LD_PRELOAD="")
    assert process.returncode == 3
    assert process.stdout == f"{FOLDER / 'libhifigemm_blas.so'}|--accuracy\n"


@needs_library
@pytest.mark.parametrize("is_for_torch", [False, True])
def test_programs_of_python_keep_the_blas_of_pytorch_unless_told_otherwise(
    tmp_path, is_for_torch
):
    (tmp_path / "program.py").write_text(
        "import os, sys\nprint(os.environ['LD_PRELOAD'], sys.argv[1:], __name__)\n"
    )
    name = "libhifigemm_blas.so" if is_for_torch else "libhifigemm_blas_wheels.so"
    options = ["--torch"] if is_for_torch else []
    path = str(tmp_path / "program.py")
    for command in ([path], [sys.executable, path]):
        process = run("run", "--blas", "correct", *options, *command, "x")
        assert process.stdout == f"{FOLDER / name} ['x'] __main__\n", process.stderr


@needs_library
def test_modules_are_run_as_python_runs_them():
    process = run("run", "--blas", "correct", "-m", "platform")
    assert process.returncode == 0, process.stderr
    assert "Linux" in process.stdout


@needs_library
def test_libraries_that_are_preloaded_already_stay(monkeypatch, tmp_path):
    library = tmp_path / "libempty.so"
    environments = []
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setattr(os, "execve", lambda *arguments: environments.append(arguments))
    blas.prepare_program(
        "sh", [], is_module=False, has_plain_names=False, wants_summary=False
    )()
    [(_, command, environment)] = environments
    assert command[1:] == []
    expected = f"{FOLDER / 'libhifigemm_blas.so'}:{library}"
    assert environment["LD_PRELOAD"] == expected


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--accuracy", "fp64"], "leave out --accuracy"),
        (["--scheme", "ozaki2"], "leave out --scheme"),
        (["--min-size", "8"], "leave out --min-size"),
    ],
)
def test_options_of_pytorch_are_refused(fails, options, text):
    fails(["run", "--blas", "correct", *options, "sh"], 2, text)


def test_torch_alone_is_refused(fails):
    fails(["run", "--torch", __file__], 2, "--torch needs --blas")


@needs_library
@pytest.mark.parametrize("program", ["no-such-program", "no-such-program.py"])
def test_a_program_that_is_not_there_is_named(fails, program):
    fails(["run", "--blas", "correct", program], 2, program)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_refused(fails, monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    for command in (["blas"], ["run", "--blas", "correct", "sh"]):
        fails(command, 2, f"a library for Linux, and this is {platform}")


def test_an_installation_without_a_compiler_says_so(fails, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(hg, "__file__", str(tmp_path / "__init__.py"))
    fails(["blas"], 2, "without a C compiler")


@pytest.mark.parametrize("folder", ["a b", "a:b"])
def test_a_path_that_ld_preload_cannot_take_is_refused(
    fails, monkeypatch, tmp_path, folder
):
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "libhifigemm_blas.so").touch()
    monkeypatch.setattr(hg, "__file__", str(tmp_path / folder / "__init__.py"))
    fails(["run", "--blas", "correct", "sh"], 2, "a space or a colon")
