"""Imports go one way, and importing the package is cheap and loads nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm

ROOT = Path(hifigemm.__file__).parent
BASE = {"formats", "exceptions"}
NUMERICS = {*BASE, "numerics"}
PLAN = {*NUMERICS, "accuracy", "plan"}
SCHEMES = {*PLAN, "engine", "schemes"}
ENGINES = {*PLAN, "engine", "engines", "settings"}
FLOW = {*SCHEMES, *ENGINES, "libraries", "select", "driver", "operands", "planning", "information", "settings"}
MAY_IMPORT = {
    "formats": set(),
    "exceptions": set(),
    "settings": {"exceptions"},
    "transforms": set(),
    "startup": set(),
    "numerics": NUMERICS,
    "accuracy": BASE,
    "plan": {*NUMERICS, "accuracy"},
    "engine": PLAN,
    "engines": ENGINES,
    "schemes": SCHEMES,
    "select": {*SCHEMES, "select"},
    "array_like": set(),
    "libraries": {*NUMERICS, "array_like", "engines", "transforms"},
    "operands": {*PLAN, "array_like", "libraries"},
    "driver": {*SCHEMES, *ENGINES, "select"},
    "planning": FLOW,
    "shortcuts": {*PLAN, "engine", "settings", "transforms"},
    "information": {*BASE, "engine", "engines", "transforms", "<root>"},
    "primitives": {*SCHEMES, *ENGINES, "primitives"},
    "augmented": PLAN,
    "integers": FLOW,
    "api": {*FLOW, "shortcuts", "augmented", "integers", "transforms"},
    "study": {"study", "<root>"},
    "bench": {"bench", "study", "<root>"},
    "cli": {*FLOW, "primitives", "api", "study", "bench", "cli", "startup", "<root>"},
    "<root>": {*FLOW, "api", "startup"},
    "__main__": {"cli"},
}


def part_of(module: str) -> str:
    """The top-level part of a dotted name inside the package; the package itself is the root."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "<root>"


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path, name: str):
    """Absolute names of what a module imports from the package, imports for type checkers left out."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST):
        if isinstance(node, ast.stmt) and is_type_checking(node):
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                above = parents[: len(parents) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            if base == "hifigemm":
                for alias in node.names:
                    inner = ROOT / alias.name
                    exists = inner.is_dir() or inner.with_suffix(".py").is_file()
                    yield f"hifigemm.{alias.name}" if exists else "hifigemm"
            else:
                yield base
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [x for x in visit(tree) if x == "hifigemm" or x.startswith("hifigemm.")]


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        yield ".".join(("hifigemm", *parts)), path


@pytest.mark.parametrize(("name", "path"), [pytest.param(*m, id=m[0]) for m in modules()])
def test_no_import_points_upward(name, path):
    own = part_of(name)
    assert own in MAY_IMPORT, f"{own} has no place in the order of imports yet"
    for imported in imports(path, name):
        assert part_of(imported) in MAY_IMPORT[own], f"{name} imports {imported}"


def test_the_walk_finds_imports():
    found = imports(ROOT / "api.py", "hifigemm.api")
    assert "hifigemm.exceptions" in found
    assert any(x.startswith("hifigemm.schemes") for x in found)


def test_schemes_and_engines_never_meet():
    for name, path in modules():
        own = part_of(name)
        other = {"schemes": "engines", "engines": "schemes"}.get(own)
        assert other not in {part_of(x) for x in imports(path, name)} or other is None, name


FRESH = """
import json, sys, time
import numpy
before = set(sys.modules)
start = time.perf_counter()
import hifigemm
took = time.perf_counter() - start
after = set(sys.modules)
hifigemm.matmul(numpy.ones((2, 2)), numpy.ones((2, 2)), accuracy="correct")
print(json.dumps({"took": took, "import": sorted(after), "use": sorted(sys.modules)}))
"""
HEAVY = ("torch", "triton", "cupy", "jax", "scipy", "matplotlib", "rich", "flint", "pynvml", "hypothesis", "pytest")


def test_importing_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    for stage in ("import", "use"):
        loaded = {module.split(".")[0] for module in found[stage]}
        assert not loaded & set(HEAVY), stage
        assert not {"hifigemm.study", "hifigemm.bench", "hifigemm.cli"} & set(found[stage]), stage
    print(f"import hifigemm after numpy: {found['took']:.3f} s")


def test_every_public_name_is_there():
    for name in hifigemm.__all__:
        assert hasattr(hifigemm, name)
    assert (ROOT / "py.typed").is_file()


def test_no_module_starts_work_on_import():
    done = subprocess.run(
        [sys.executable, "-c", "import logging, hifigemm; print(len(logging.getLogger('hifigemm').handlers))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() in ("0", "1")
    assert done.stderr == ""


def test_no_unary_function_writes_to_a_part_of_an_array():
    """`negative`, `isfinite` and `signbit` of NumPy 2.4 return wrong entries for some strides of `out`."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if getattr(node.func.value, "id", None) != "np" or len(node.args) != 1:
                continue
            for word in node.keywords:
                assert word.arg != "out" or isinstance(word.value, ast.Name), f"{path.name}:{node.lineno}"
                assert word.arg != "out" or node.func.attr not in ("negative", "isfinite", "signbit"), node.lineno
