"""The version of the package is a literal that installations read without importing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hifigemm as hg
from hifigemm.base import version

ROOT = Path(__file__).parents[2]


def test_the_package_has_the_version_of_its_file():
    assert hg.__version__ == version.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version.__version__)


def test_the_version_is_the_only_statement_behind_the_docstring():
    text = Path(version.__file__).read_text("utf-8")
    docstring, assignment = ast.parse(text).body
    assert isinstance(docstring, ast.Expr)
    assert ast.literal_eval(assignment.value) == hg.__version__


def test_the_build_reads_the_version_from_that_file():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'version = {{ attr = "{version.__name__}.__version__" }}' in project
