"""Imports go one way, without a circle, and importing the package is cheap and loads
nothing heavy.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm
from tools import measures

ROOT = Path(hifigemm.__file__).parent
NAME = re.compile(r"hifigemm(\.\w+)+")
BASE = {"formats", "exceptions"}
NUMERICS = {*BASE, "numerics"}
PROBLEM = {*NUMERICS, "accuracy", "problem"}
PLAN = {*PROBLEM, "plan"}
SCHEMES = {*PLAN, "engine", "schemes"}
ENGINES = {
    *PLAN,
    "engine",
    "engines",
    "engines.cuda",
    "engines.kernels",
    "programs",
    "settings",
}
PLANNER = {*SCHEMES, "planner", "settings"}
EXECUTOR = {*PLANNER, "executor"}
OPERANDS = {*PLAN, "array_like", "libraries", "operands"}
FLOW = {*EXECUTOR, *OPERANDS, "engines"}
MAY_IMPORT = {
    "formats": set(),
    "exceptions": set(),
    "transforms": set(),
    "startup": set(),
    "freed_memory": set(),
    "tested_versions": set(),
    "array_like": set(),
    "settings": {"exceptions"},
    "numerics": NUMERICS,
    "accuracy": BASE,
    "problem": {"formats"},
    "plan": PROBLEM,
    "engine": PLAN,
    "schemes": SCHEMES,
    "planner": PLANNER,
    "executor": EXECUTOR,
    "programs": {"accuracy", "settings", "transforms"},
    "engines": ENGINES,
    "engines.cuda": ENGINES,
    "engines.kernels": {*NUMERICS, "engines", "engines.kernels"},
    "libraries": {*NUMERICS, "array_like", "engines", "transforms"},
    "operands": OPERANDS,
    "augmented": PLAN,
    "request": {*PLANNER, "exceptions"},
    "admission": {*FLOW, "exact_words", "integers", "request"},
    "exact_results": {*FLOW, "request", "road"},
    "exact_words": OPERANDS,
    "integers": {*FLOW, "request"},
    "interop": {*PLANNER, *OPERANDS, "engines", "interop", "request", "transforms"},
    "road": {*FLOW, "augmented", "programs", "request"},
    "gemm": {
        *FLOW,
        "augmented",
        "exact_words",
        "interop",
        "request",
        "road",
        "signatures",
        "transforms",
    },
    "api": {
        *FLOW,
        "admission",
        "request",
        "exact_results",
        "exact_words",
        "integers",
        "interop",
        "programs",
        "road",
        "signatures",
        "transforms",
    },
    "distributed": {
        *FLOW,
        "api",
        "distributed",
        "gemm",
        "interop",
        "request",
        "transforms",
    },
    "functions": {
        "accuracy",
        "api",
        "exceptions",
        "libraries",
        "operands",
        "plan",
        "schemes",
        "signatures",
        "functions",
        "interop",
        "transforms",
    },
    "numpy": {"accuracy", "api", "functions", "schemes", "signatures"},
    "cupy": {"functions", "gemm", "interop", "numpy"},
    "information": {"engines", "tested_versions", "transforms", "<root>"},
    "jax": {*SCHEMES, "functions", "gemm", "interop"},
    "linalg": {
        *OPERANDS,
        "api",
        "engines",
        "exceptions",
        "gemm",
        "interop",
        "linalg",
        "transforms",
    },
    "testing": {*SCHEMES, *ENGINES, "testing"},
    "workshop": {"testing", "workshop", "<root>"},
    "cli": {
        "accuracy",
        "cli",
        "engines",
        "exceptions",
        "formats",
        "interop",
        "operands",
        "schemes",
        "settings",
        "startup",
        "testing",
        "workshop",
        "<root>",
    },
    "<root>": {
        "accuracy",
        "api",
        "distributed",
        "exceptions",
        "freed_memory",
        "gemm",
        "information",
        "interop",
        "linalg",
        "operands",
        "plan",
        "schemes",
        "settings",
        "startup",
    },
    "__main__": {"cli"},
}
"""Parts of the package, and which others each of them may import. `engine` is the
interface that schemes and engines have in common.
"""


def part_of(module: str) -> str:
    """The part of the package that a dotted name belongs to; the package itself is the
    root.
    """
    pieces = module.split(".")[1:]
    within = ".".join(pieces[:2])
    return within if within in MAY_IMPORT else pieces[0] if pieces else "<root>"


def imports(path: Path, name: str):
    """Absolute names of what a module imports from the package: in functions, for type
    checkers and by name too.
    """
    text = path.read_text(encoding="utf-8")
    module = measures.Module(name, path, text, ast.parse(text))
    strings = {
        x.value
        for x in module.nodes
        if isinstance(x, ast.Constant) and isinstance(x.value, str)
    }
    by_name = {text for text in strings if NAME.fullmatch(text)} - {"hifigemm.peers"}
    return measures.imports_of(module, NAMES) | by_name


def modules():
    return [(module.name, module.path) for module in measures.modules_of(ROOT)]


NAMES = {name for name, _ in modules()} | {"hifigemm.signatures"}
"""Modules of the package, and the stub that holds types alone."""


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(*m, id=m[0]) for m in modules()]
)
def test_no_import_points_upward(name, path):
    own = part_of(name)
    assert own in MAY_IMPORT, f"{own} has no place in the order of imports yet"
    for imported in imports(path, name):
        assert part_of(imported) in MAY_IMPORT[own], f"{name} imports {imported}"


def test_parts_are_in_an_order():
    """Each part may import those before it and its own modules; only the version of the
    root is asked from below.
    """
    graph: dict[str, set[str]] = {}
    for own, others in MAY_IMPORT.items():
        graph.setdefault(own.split(".")[0], set()).update(
            other.split(".")[0] for other in others
        )
    assert not circle_of(
        {own: others - {own, "<root>"} for own, others in graph.items()}
    )


def test_no_module_is_imported_by_what_it_imports():
    graph = {name: imports(path, name) - {name, "hifigemm"} for name, path in modules()}
    assert not circle_of(graph)


def circle_of(graph: dict[str, set[str]]) -> list[str]:
    """A way along arrows that comes back to where it began; empty without one."""
    return next(iter(measures.circles_of(graph)), [])


def test_circles_are_found():
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle_of({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == [
        "b",
        "d",
        "b",
    ]


def test_the_walk_finds_imports_in_functions_for_type_checkers_and_by_name(tmp_path):
    found = imports(ROOT / "api.py", "hifigemm.api")
    assert {"hifigemm.exceptions", "hifigemm.schemes", "hifigemm.signatures"} <= found
    assert "hifigemm.engines.torch_engine" in imports(
        ROOT / "information.py", "hifigemm.information"
    )
    page = tmp_path / "page.py"
    page.write_text(
        "def f():\n    return import_module('hifigemm.engines.torch_engine'), 'hifigemm is no import'\n"
    )
    assert imports(page, "hifigemm.page") == {"hifigemm.engines.torch_engine"}


def test_schemes_and_engines_never_meet():
    for name, path in modules():
        own = name.split(".")[1] if "." in name else ""
        other = {"schemes": "engines", "engines": "schemes"}.get(own)
        assert (
            other not in {x.split(".")[1] for x in imports(path, name) if "." in x}
            or other is None
        ), name


def test_no_engine_asks_for_the_name_of_a_scheme():
    schemes = {
        "native",
        "multiword",
        "corrected",
        "ozaki1",
        "ozaki2",
        "Native",
        "Multiword",
        "Corrected",
    }
    schemes |= {"Ozaki1", "Ozaki2", "double-double", "DoubleDouble"}
    for path in (ROOT / "engines").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "scheme.name" not in text, path
        for node in ast.walk(ast.parse(text)):
            for value in (
                [*node.comparators, node.left] if isinstance(node, ast.Compare) else []
            ):
                assert getattr(value, "value", None) not in schemes, (
                    f"{path}:{node.lineno}"
                )


def test_overrides_are_keyed_by_functions_of_the_plain_maths():
    tree = ast.parse(
        (ROOT / "engines" / "cuda" / "overrides.py").read_text(encoding="utf-8")
    )
    (table,) = (
        x.value
        for x in tree.body
        if isinstance(x, ast.AnnAssign) and x.target.id == "OVERRIDES"
    )
    plain = {
        alias.asname or alias.name
        for x in tree.body
        if isinstance(x, ast.ImportFrom) and x.module.startswith("hifigemm.numerics")
        for alias in x.names
    }
    assert table.keys
    assert all(isinstance(key, ast.Name) and key.id in plain for key in table.keys)


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
HEAVY = (
    "torch",
    "triton",
    "cupy",
    "jax",
    "scipy",
    "matplotlib",
    "rich",
    "flint",
    "pynvml",
    "hypothesis",
    "pytest",
)


def test_importing_loads_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    for stage in ("import", "use"):
        loaded = {module.split(".")[0] for module in found[stage]}
        assert not loaded & set(HEAVY), stage
        assert not {
            "hifigemm.testing",
            "hifigemm.workshop",
            "hifigemm.cli",
            "hifigemm.functions",
            "hifigemm.linalg",
        } & set(found[stage]), stage
        assert not {"hifigemm.engines.rates", "hifigemm.engines.kernels"} & set(
            found[stage]
        ), "tables of GPUs"
    print(f"import hifigemm after numpy: {found['took']:.3f} s")


def test_every_public_name_is_there():
    for name in hifigemm.__all__:
        assert hasattr(hifigemm, name)
    assert (ROOT / "py.typed").is_file()


def test_no_module_starts_work_on_import():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging, hifigemm; print(len(logging.getLogger('hifigemm').handlers))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() in ("0", "1")
    assert done.stderr == ""


def test_no_unary_function_writes_to_a_part_of_an_array():
    """`negative`, `isfinite` and `signbit` of NumPy 2.4 return wrong entries for some
    strides of `out`.
    """
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            ):
                continue
            if getattr(node.func.value, "id", None) != "np" or len(node.args) != 1:
                continue
            for word in node.keywords:
                assert word.arg != "out" or isinstance(word.value, ast.Name), (
                    f"{path.name}:{node.lineno}"
                )
                assert word.arg != "out" or node.func.attr not in (
                    "negative",
                    "isfinite",
                    "signbit",
                ), node.lineno
