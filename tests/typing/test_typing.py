"""Type checkers on pages of user code: nothing is said of what is right, and each
mistake is reported where it is.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm.numpy as hnp

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": "src"},
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_mypy(page, tmp_path):
    out = run(
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--config-file=pyproject.toml",
        f"--cache-dir={tmp_path}",
        page,
    )
    return {
        int(line): text
        for line, text in re.findall(rf"{page.name}:(\d+): error: (.*)", out)
    }


def by_pyright(page, tmp_path):
    config = tmp_path / "pyrightconfig.json"
    shutil.copy(page, tmp_path)  # pyright looks below the file of its configuration
    config.write_text(
        json.dumps({"include": [page.name], "extraPaths": [str(ROOT / "src")]})
    )
    out = run(
        "pyright",
        "--outputjson",
        f"--pythonpath={sys.executable}",
        f"--project={config}",
    )
    found = json.loads(out)["generalDiagnostics"]
    return {
        x["range"]["start"]["line"] + 1: x["message"]
        for x in found
        if x["severity"] == "error"
    }


@pytest.fixture(
    params=["user_code.py", pytest.param("torch_code.py", marks=pytest.mark.torch)]
)
def right(request):
    return request.param


def test_what_is_right_runs(right):
    pytest.importorskip("typing_extensions")
    runpy.run_path(str(HERE / right))


@pytest.fixture(params=[by_mypy, by_pyright], ids=["mypy", "pyright"])
def check(request, tmp_path):
    pytest.importorskip(request.param.__name__.removeprefix("by_"))
    return lambda name: request.param(HERE / name, tmp_path)


@pytest.mark.slow
def test_what_is_right_passes_with_the_types_that_are_stated(check, right):
    assert check(right) == {}


@pytest.mark.slow
def test_every_mistake_is_reported_and_nothing_else(check):
    lines = (HERE / "wrong_code.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found = check("wrong_code.py")
    assert (wrong - found.keys(), found.keys() - wrong) == (set(), set()), found


def names_in(arguments):
    """The names of the parameters in a stub, in their order."""
    groups = arguments.posonlyargs, arguments.args, [arguments.vararg]
    named = [x for group in (*groups, arguments.kwonlyargs) for x in group if x]
    return [x.arg for x in named]


def test_types_of_functions_have_their_parameters():
    package = ROOT / "src" / "hifigemm"
    policy = ast.parse((package / "model" / "signatures.pyi").read_text("utf-8"))
    (named,) = [x for x in policy.body if getattr(x, "name", "") == "Named"]
    options = {x.target.id for x in named.body if isinstance(x, ast.AnnAssign)}
    stub = ast.parse((package / "numpy.pyi").read_text("utf-8"))
    functions = [x for x in stub.body if isinstance(x, ast.FunctionDef)]
    classes = {"BlocksReport", "ChainReport", "ThreeFactorsReport"}
    assert {x.name for x in functions} == {*hnp.__all__} - classes
    for function in functions:
        runtime = [*inspect.signature(getattr(hnp, function.name)).parameters]
        names = names_in(function.args)
        if function.name == "einsum":
            names = names[names.index("operands") :]
        assert {*names} | options == {*runtime}
        assert names == [x for x in runtime if x in names]
