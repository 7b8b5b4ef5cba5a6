"""The workshop uses the library as users do: by its public names alone."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import hifigemm
from hifigemm import workshop
from tests.test_public_interface import NEEDS

ROOT = Path(workshop.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def public_names(module):
    """Names that users may take from a public module."""
    names = set(importlib.import_module(module).__all__)
    return names | {"__version__"} if module == "hifigemm" else names


def violations(tree):
    """What a module takes of the library that is not public, as texts."""
    found = []
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in NEEDS:
                    aliases[alias.asname or alias.name] = alias.name
                elif alias.name.split(".")[0] == "hifigemm":
                    found.append(f"import {alias.name}")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module
            is_own = module.startswith("hifigemm.workshop")
            if is_own or module.split(".")[0] != "hifigemm":
                continue
            names = {alias.name for alias in node.names}
            public = public_names(module) if module in NEEDS else set()
            found += [f"{module}.{name}" for name in sorted(names - public)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id)
            if module is not None and node.attr not in public_names(module):
                found.append(f"{module}.{node.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_workshop_takes_public_names_alone(path):
    assert violations(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import hifigemm.running.executor",
        "from hifigemm import running",
        "from hifigemm.running.executor import execute",
        "from hifigemm.testing.reference import judge",
        "import hifigemm as hg\nhg.executor",
        "import hifigemm as hg\nhg._kernels",
        "def f():\n    from hifigemm.model.plan import Plan",
    ],
)
def test_private_names_are_found(line):
    assert len(violations(ast.parse(line))) == 1


def test_public_names_are_let_through():
    text = "import hifigemm as hg\nfrom hifigemm.testing import judge\nhg.matmul, hg.__version__"
    assert violations(ast.parse(text)) == []
    assert hifigemm.__version__
