"""What programs of users hold on to: public names and signatures, errors, the log, the
command, the environment.

Signatures lie in tests/data/public_signatures.txt, one a line. Where a change of them
is meant,

    python -m tests.test_public_interface

writes the file again. It keeps the lines of modules that cannot be imported where it
runs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import hifigemm as hg

ROOT = Path(__file__).parents[1]
SIGNATURES = Path(__file__).parent / "data" / "public_signatures.txt"

NEEDS = {
    "hifigemm": None,
    "hifigemm.cupy": "cupy",
    "hifigemm.distributed": "torch",
    "hifigemm.jax": "jax",
    "hifigemm.linalg": None,
    "hifigemm.numpy": None,
    "hifigemm.testing": None,
    "hifigemm.testing.primitives": None,
}
"""Public modules, and the library that each of them is for."""

MADE_BY_THE_LIBRARY = {
    "BlocksReport",
    "ChainReport",
    "ComplexDeterminant",
    "Condition",
    "Determinant",
    "DefinitenessReport",
    "ExactMatrix",
    "Finding",
    "Judgement",
    "Layout",
    "LogDeterminant",
    "MeshPlan",
    "Plan",
    "Prepared",
    "Report",
    "SolutionReport",
    "ThreeFactorsReport",
    "VerifiedSolution",
    "VerifiedValues",
}
"""Classes whose constructors are private: users have their objects from functions."""

ATTRIBUTES = {
    "Plan": [
        "problem",
        "asked",
        "scheme",
        "alternatives",
        "num_products",
        "bound",
        "invariant",
        "bits_depend_on",
        "verification",
        "k_block",
        "k_span",
        "workspace",
        "engine",
        "reason",
    ],
    "Report": [
        "scheme",
        "num_products",
        "engine",
        "device",
        "bound",
        "relative",
        "normwise",
        "invariant",
        "bits_depend_on",
        "correct",
        "native",
        "reason",
        "k_block",
        "workspace",
        "decision_seconds",
    ],
    "Prepared": ["shape", "dtype", "side", "plan"],
}
"""Attributes that objects of the public classes have."""


COMMANDS = ["run", "info", "matmul", "plan", "demo", "report", "bench"]


def modules():
    """Parameters of tests: a public module each, with the marker of PyTorch where it is
    for that.
    """
    return [
        pytest.param(name, marks=[pytest.mark.torch] if library == "torch" else [])
        for name, library in NEEDS.items()
    ]


def imported(name):
    """A public module; the test is skipped where its library is missing."""
    if NEEDS[name] is not None:
        pytest.importorskip(NEEDS[name])
    return importlib.import_module(name)


def line_of(module, name):
    """A public name of a module and how it is called, without annotations: those are
    tested in tests/typing.
    """
    public = getattr(module, name)
    path = f"{module.__name__}.{name}"
    is_error = isinstance(public, type) and issubclass(public, BaseException)
    if is_error or name in MADE_BY_THE_LIBRARY or not callable(public):
        return path
    signature = inspect.signature(public)
    plain = [
        x.replace(annotation=inspect.Parameter.empty)
        for x in signature.parameters.values()
    ]
    return f"{path}{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}"


def lines_of(module):
    """The lines of all public names of a module."""
    return sorted(line_of(module, name) for name in module.__all__)


def stored_lines(name):
    """The lines of a module that the file holds."""
    pattern = re.compile(rf"{re.escape(name)}\.\w+(\(.*)?")
    return [
        line
        for line in SIGNATURES.read_text("utf-8").splitlines()
        if pattern.fullmatch(line)
    ]


def write_signatures():
    """Write the file of signatures, with the stored lines of modules that cannot be
    imported.
    """
    lines = []
    for name in NEEDS:
        try:
            lines += lines_of(importlib.import_module(name))
        except ModuleNotFoundError as error:
            print(f"{name}: lines kept as they are: {error}")
            lines += stored_lines(name)
    SIGNATURES.write_text("\n".join(sorted(lines)) + "\n", "utf-8")


def run(*arguments, **variables):
    """A Python in a fresh process, with no variables of the library but these."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HIFIGEMM")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=kept | variables,
    )


@pytest.mark.parametrize("name", modules())
def test_public_names_and_signatures_are_those_of_the_file(name):
    lines = lines_of(imported(name))
    stored = stored_lines(name)
    gone = sorted({*stored} - {*lines})
    new = sorted({*lines} - {*stored})
    assert lines == stored, (
        f"\nno longer public, or called in another way: {gone}\nnot in {SIGNATURES.name}: {new}\n"
        "If the change is meant: python -m tests.test_public_interface, and a line in CHANGELOG.md"
    )


def test_every_line_of_the_file_belongs_to_a_public_module():
    lines = SIGNATURES.read_text("utf-8").splitlines()
    assert lines == sorted(line for name in NEEDS for line in stored_lines(name))


@pytest.mark.parametrize("name", modules())
def test_public_names_can_be_imported_from_where_they_say_that_they_are(name):
    module = imported(name)
    for public in filter(callable, (getattr(module, x) for x in module.__all__)):
        home = importlib.import_module(public.__module__)
        assert getattr(home, public.__qualname__) is public


def test_dir_is_the_interface():
    optional = {"cupy": "cupy", "distributed": "torch", "jax": "jax"}
    installed = {name for name, needed in optional.items() if find_spec(needed)}
    extra = {"__version__", "linalg", "numpy", "testing"}
    assert {*dir(hg)} == {*hg.__all__} | extra | installed
    assert [name for name in dir(hg) if not hasattr(hg, name)] == []


def test_dir_of_the_package_loads_nothing():
    lines = ["import sys, hifigemm as hg", "dir(hg)"]
    lines.append("print([x for x in ('torch', 'jax', 'cupy') if x in sys.modules])")
    assert run("-c", "\n".join(lines)).stdout == "[]\n"


@pytest.mark.parametrize("name", [x for x in modules() if x.values[0] != "hifigemm"])
def test_dir_of_a_public_module_is_its_interface(name):
    module = imported(name)
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", modules())
def test_help_shows_signatures_without_quotes(name):
    module = imported(name)
    for public in [getattr(module, name) for name in module.__all__]:
        if inspect.isfunction(public):
            text = pydoc.plain(pydoc.render_doc(public))
            assert f"{public.__name__}{inspect.signature(public)}" in text
            assert not re.search(r"'(str|Any|bool)\b", text)


def test_help_of_the_package_begins_with_what_users_call():
    text = pydoc.plain(pydoc.render_doc(hg)).partition("PACKAGE CONTENTS")[0]
    words = {*re.findall(r"\w+", text)}
    classes = {"AccuracyError", "HifigemmError", "InexactProductError", "PlanError"}
    rarely = classes | {"Prepared", "VerificationError"}
    assert {*hg.__all__, *hg._MODULES} - words == rarely


def test_public_modules_are_loaded_on_first_use():
    public = sorted(name.partition(".")[2] for name in NEEDS if name.count(".") == 1)
    lines = [
        "import sys, numpy, hifigemm as hg",
        f"public = {public}",
        "assert not [name for name in public if 'hifigemm.' + name in sys.modules]",
        "assert hg.numpy.einsum('ij->ji', numpy.ones((2, 3))).shape == (3, 2)",
        "assert hg.linalg.solve and hg.testing.ExactProduct",
        "assert sorted(hg._MODULES) == public",
        "import hifigemm.numpy as hnp",
        "assert hnp is hg.numpy",
    ]
    done = run("-c", "\n".join(lines))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", hg._FUNCTIONS_OF)
def test_functions_of_public_modules_are_named_where_they_are_missed(module):
    home = importlib.import_module(f"hifigemm.{module}")
    functions = {
        name for name in home.__all__ if not isinstance(getattr(home, name), type)
    }
    assert {*hg._FUNCTIONS_OF[module]} == functions - {*hg.__all__}
    for name in hg._FUNCTIONS_OF[module]:
        with pytest.raises(AttributeError, match=rf"hifigemm\.{module}\.{name}\?"):
            getattr(hg, name)
    assert not hasattr(hg, "no_such_name")


@pytest.mark.parametrize("module", [hg, hg.numpy], ids=lambda x: x.__name__)
@pytest.mark.parametrize(("name", "x"), [("sum", [1e16, 1.0, -1e16]), ("trace", None)])
def test_a_sum_that_is_missed_is_written_as_the_error_says(module, name, x):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; did") as caught:
        getattr(module, name)
    x = [[1e16, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1e16]] if x is None else x
    (call,) = re.findall(r"hifigemm\.numpy\.einsum\(.*\)(?=\?)", str(caught.value))
    assert eval(call, {"hifigemm": hg, "x": x}) == 1.0
    with pytest.raises(AttributeError, match=r"no attribute 'no_such_name'$"):
        getattr(module, "no_such_name")  # noqa: B009


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_objects_have_their_public_attributes(kind):
    a = [[1.0, 2.0]]
    b = [[3.0], [4.0]]
    plan = hg.make_plan(a, b)
    objects = {
        "Plan": plan,
        "Report": hg.matmul(a, b, return_report=True)[1],
        "Prepared": hg.prepare(a, "left", plan=plan),
    }
    assert type(objects[kind]) is getattr(hg, kind)
    assert [name for name in ATTRIBUTES[kind] if not hasattr(objects[kind], name)] == []


@pytest.mark.parametrize("kind", ["Plan", "Report"])
def test_documented_attributes_are_the_public_ones(kind):
    text = inspect.getdoc(getattr(hg, kind))
    heads = re.findall(
        r"^(\w[\w, ]*) : ", text.partition("Attributes\n")[2], re.MULTILINE
    )
    names = [name for head in heads for name in head.split(", ")]
    assert sorted(names) == sorted(ATTRIBUTES[kind])


PRODUCT = "import numpy as np, hifigemm as hg; hg.matmul(np.ones((3, 4)), np.ones((4, 2)), accuracy='correct')"


def test_a_product_prints_nothing_and_leaves_logging_alone():
    look = (
        "import logging; "
        "x = logging.getLogger('hifigemm'); "
        "assert (x.handlers, x.level, x.propagate) == ([], 0, True)"
    )
    done = run("-c", f"{PRODUCT}\n{look}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_logger_hifigemm_has_each_decision_at_level_info():
    setup = "import logging; logging.basicConfig(level=logging.INFO, format='%(name)s|%(levelname)s|%(message)s')"
    done = run("-c", f"{setup}\n{PRODUCT}")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    logger, level, message = line.split("|", 2)
    assert (logger, level) == ("hifigemm", "INFO")
    assert message.startswith("(3 x 4) @ (4 x 2) float64: ")


def test_the_installed_command_is_main_of_the_command_line():
    try:
        metadata.distribution("hifigemm")
    except metadata.PackageNotFoundError:
        pytest.skip("hifigemm is not installed")
    (point,) = metadata.entry_points(group="console_scripts", name="hifigemm")
    assert point.value == "hifigemm.cli:main"
    assert point.load() is importlib.import_module("hifigemm.cli").main


def test_the_package_runs_as_the_command_and_names_what_it_can_do():
    done = run("-m", "hifigemm", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: hifigemm ")
    assert [
        name
        for name in COMMANDS
        if not re.search(rf"^ +{name}\b", done.stdout, re.MULTILINE)
    ] == []


def test_variables_of_the_environment_are_those_of_the_documentation():
    read = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(
                r"HIFIGEMM(_[A-Z]+)*", str(node.value)
            ):
                read.add(node.value)
    for path in (ROOT / "core").rglob("*.c"):
        read.update(re.findall(r'"(HIFIGEMM(?:_[A-Z]+)*)"', path.read_text("utf-8")))
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    documented = set(re.findall(r"^\| `(HIFIGEMM\w*)=", page, re.MULTILINE))
    assert read == documented


if __name__ == "__main__":
    write_signatures()
