from __future__ import annotations

import argparse
import dataclasses

import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.cli.options import (
    add_multiplication_options,
    multiplication_options,
    parse_bytes,
)
from hifigemm.schemes import SCHEMES
from hifigemm.workshop.errors import InputError


def options(*argv):
    parser = argparse.ArgumentParser()
    add_multiplication_options(parser)
    return multiplication_options(parser.parse_args(argv))


def test_nothing_given_is_what_matmul_does_by_itself():
    assert options() == {
        "accuracy": None,
        "scheme": "auto",
        "engine": None,
        "workspace": None,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("correct", "correct"), ("fp32", "fp32"), ("1e-12", 1e-12), ("0", 0.0)),
        *(
            (f"{package}Relative(1e-12)", hg.Relative(1e-12))
            for package in ("", "hg.", "hifigemm.")
        ),
        *(
            ("Relative( 1e-9 )", hg.Relative(1e-9)),
            (repr(hg.Relative(1e-9)), hg.Relative(1e-9)),
        ),
        *(
            (text, None)
            for text in (
                "0x",
                "-1",
                "np.Relative(1e-12)",
                "Relative",
                "Relative()",
                "Relative(1e-12",
            )
        ),
    ],
)
def test_accuracy_is_a_name_a_number_or_a_relative_error(text, value, capsys):
    if value is None:
        with pytest.raises(SystemExit):
            options(f"--accuracy={text}")
        assert "accuracy=" in capsys.readouterr().err
    else:
        assert options("--accuracy", text)["accuracy"] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "12",
            "accuracy=12: expected an error bound such as 1e-12, not a count of digits",
        ),
        (
            "hg.Relative(12)",
            "Relative(12.0): expected a number between 0 and 1, such as 1e-12",
        ),
        ("Relative(1e-17)", "rounding to fp64 alone"),
    ],
)
def test_an_accuracy_that_cannot_be_is_named(text, message, capsys):
    with pytest.raises(SystemExit):
        options("--accuracy", text)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["matmul", "plan", "run"])
def test_the_help_lists_relative_errors(command, capsys):
    main([command, "--help"])
    assert '"Relative(r)"' in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000000", 10**6),
        ("1000000B", 10**6),
        ("512M", 2**29),
        ("512 MiB", 2**29),
        ("512mib", 2**29),
        ("2GB", 2 * 10**9),
        ("1.5k", 1536),
        ("1T", 2**40),
    ],
)
def test_bytes_take_binary_and_decimal_suffixes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1", "0", "0.0001", "1X", "1e3", "nan", "1 G G", "9" * 400, "9" * 30],
)
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("argv", "scheme"),
    [
        (["--scheme", "ozaki1"], "ozaki1"),
        (
            ["--scheme", "ozaki1", "--product", "fp16", "--mode", "dp"],
            hg.Ozaki1(product="fp16", mode="dp"),
        ),
        (["--scheme", "ozaki1", "--num-slices", "7"], hg.Ozaki1(num_slices=7)),
        (
            ["--scheme", "ozaki2", "--num-moduli", "15", "--scaling", "fast"],
            hg.Ozaki2(num_moduli=15, scaling="fast"),
        ),
        (["--scheme", "native", "--product", "fp64"], hg.Native(product="fp64")),
    ],
)
def test_scheme_options_fill_the_dataclass(argv, scheme):
    assert options(*argv)["scheme"] == scheme


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_every_default_of_every_scheme_can_be_spelt_out(scheme):
    default, argv = scheme(), ["--scheme", scheme.name]
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if value is not None:
            text = (
                {True: "on", False: "off"}[value]
                if isinstance(value, bool)
                else str(value)
            )
            argv += ["--" + field.name.replace("_", "-"), text]
    assert options(*argv)["scheme"] in (default, scheme.name)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--num-slices", "7"], "--num-slices needs --scheme"),
        (
            ["--scheme", "ozaki2", "--num-slices", "7"],
            "--num-slices is not an option of scheme ozaki2",
        ),
        (
            ["--scheme", "ozaki1", "--num-slices", "many"],
            "--num-slices many: expected an integer",
        ),
        (["--scheme", "ozaki1", "--num-slices", "0"], "num_slices=0"),
        (["--scheme", "ozaki2", "--num-moduli", "50"], "num_moduli=50"),
        (["--scheme", "ozaki1", "--mode", "qp"], "mode='qp'"),
        (
            ["--scheme", "ozaki1", "--product", "fp17"],
            "--product fp17: expected one of bf16, fp16, ",
        ),
    ],
)
def test_scheme_options_that_do_not_fit_are_refused(argv, text):
    with pytest.raises(InputError, match=text):
        options(*argv)


def test_unknown_engine_and_scheme_are_refused(capsys):
    for argv in (["--engine", "abacus"], ["--scheme", "strassen"]):
        with pytest.raises(SystemExit):
            options(*argv)
        assert argv[1] in capsys.readouterr().err


@pytest.mark.parametrize("command", ["matmul", "plan"])
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_the_help_says_what_a_field_of_a_scheme_may_be(command, scheme, capsys):
    main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    # The options behind the list of what they are for, one text for each.
    options = text.partition("options of one scheme: ")[2].split(" --")
    texts = {option.split()[0]: option for option in options[1:]}
    for field in dataclasses.fields(scheme):
        parts = texts[field.name.replace("_", "-")].partition(" ")[2].split("; ")
        (part,) = (x for x in parts if scheme.name in x.partition(":")[0])
        values, _, default = part.partition(": ")[2].partition(" (default: ")
        default = default.partition(")")[0]
        if "a count" in values:
            least, most = scheme.limits
            assert f"from {least}" in values
            assert most is None or values.endswith(f" to {most}")
            assert default in ("chosen by the library", str(field.default))
            continue
        # Each value that is listed is taken; or the error names the field no more.
        for value in values.split(", "):
            flag = "--" + field.name.replace("_", "-")
            refusal = refusal_of("--scheme", scheme.name, flag, value)
            assert f"{field.name}={value!r}): expected" not in refusal
        is_on = {True: "on", False: "off", None: "none"}
        assert default == is_on.get(field.default, field.default)


def refusal_of(*argv):
    """The complaint about options that do not fit each other; empty without one."""
    try:
        options(*argv)
    except InputError as error:
        return str(error)
    return ""
