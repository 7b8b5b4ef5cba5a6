"""Imports go one way, without a circle, and importing the package is cheap and loads
nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm
from hifigemm.schemes import SCHEMES
from tools import measures

ROOT = Path(hifigemm.__file__).parent
NAME = re.compile(r"hifigemm(\.\w+)+")


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


NAMES = {name for name, _ in modules()} | {"hifigemm.model.signatures"}
"""Modules of the package, and the stub that holds types alone."""


def test_no_import_points_to_a_room_above():
    """The rooms, from the top to the bottom, are those of tools/measures.py."""
    graph = measures.import_graph(measures.modules_of(ROOT))
    for name, path in modules():
        graph[name] |= imports(path, name) & graph.keys() - {name}
    exceptions = measures.read_exceptions(measures.EXCEPTIONS)[measures.UPWARD]
    assert measures.check_upward_imports(graph, exceptions) == []


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
    assert {
        "hifigemm.base.settings",
        "hifigemm.schemes",
        "hifigemm.model.signatures",
    } <= found
    assert "hifigemm.engines.torch_engine" in imports(
        ROOT / "engines" / "information.py", "hifigemm.engines.information"
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


def test_engines_ask_for_the_name_of_a_scheme_in_tables_alone():
    schemes = {*SCHEMES, *(scheme.__name__ for scheme in SCHEMES.values())}
    for path in sorted((ROOT / "engines").rglob("*.py")) + sorted(
        (ROOT / "kernels").rglob("*.py")
    ):
        text = path.read_text(encoding="utf-8")
        assert "scheme.name" not in text.replace(".get(plan.scheme.name", ""), path
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


LOADED = {
    "api",
    "base",
    "base.exceptions",
    "base.formats",
    "base.freed_memory",
    "base.public",
    "base.settings",
    "base.startup",
    "base.store",
    "base.transforms",
    "base.version",
    "engines",
    "engines.arrays",
    "engines.core",
    "engines.core_sums",
    "engines.host",
    "engines.memory",
    "engines.numpy_engine",
    "engines.registry",
    "engines.threads",
    "gemm",
    "libraries",
    "libraries.array_like",
    "libraries.library",
    "libraries.numpy_arrays",
    "libraries.torch_tensors",
    "model",
    "model.accuracy",
    "model.engine",
    "model.executable",
    "model.invariance",
    "model.plan",
    "model.problem",
    "model.shown",
    "numerics",
    "numerics.bits",
    "numerics.blocking",
    "numerics.bounds",
    "numerics.eft",
    "numerics.embedding",
    "numerics.epilogue",
    "numerics.float64_products",
    "numerics.integer_sums",
    "numerics.limbs",
    "numerics.rounded_sums",
    "numerics.rounding_formats",
    "numerics.special",
    "numerics.subnormals",
    "numerics.symmetric",
    "numerics.three_words",
    "operands",
    "operands.exact_operands",
    "operands.operands",
    "operands.out_dtype",
    "running",
    "running.admission",
    "running.auto",
    "running.calls",
    "running.executor",
    "running.gemm",
    "running.keys",
    "running.planner",
    "running.plans",
    "running.products",
    "running.reports",
    "running.request",
    "running.road",
    "schemes",
    "schemes.native",
    "schemes.scheme",
}
"""Modules of the package that `import hifigemm` loads; all others wait until a call needs
them.
"""
OF_CORRECT = {"numerics.double_double", "schemes.double_double"}
"""Modules that the first product with accuracy "correct" loads, and no other plain one."""
STANDARD = (
    "__future__, contextlib, contextvars, copy, ctypes, dataclasses, enum, functools, "
    "importlib.util, inspect, numbers, platform, reprlib, signal, struct, warnings"
)
"""Modules of the standard library that the package needs at import. NumPy loads most of
them.
"""
FRESH = f"""
import json, sys
import numpy, {STANDARD}
stages = [set(sys.modules)]
import hifigemm
stages.append(set(sys.modules))
a = numpy.ones((2, 2))
hifigemm.matmul(a, a)
stages.append(set(sys.modules))
hifigemm.matmul(a, a, accuracy="correct")
stages.append(set(sys.modules))
hifigemm.matmul(a, a)
hifigemm.matmul(a, a, accuracy="correct")
stages.append(set(sys.modules))
new = [sorted(later - earlier) for earlier, later in zip(stages, stages[1:])]
print(json.dumps(new))
"""


@pytest.fixture(scope="module")
def loaded():
    """Modules that a fresh process loads at `import hifigemm`, at the first plain
    product, at the first one with accuracy "correct", and when both are repeated.
    """
    kept = {name: x for name, x in os.environ.items() if name[:8] != "HIFIGEMM"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH],
        capture_output=True,
        text=True,
        check=True,
        env=kept,
    )
    return [set(names) for names in json.loads(done.stdout)]


def of_package(names):
    """Names of modules of the package, without its own."""
    return {x.partition(".")[2] for x in names if x.startswith("hifigemm.")}


def test_importing_loads_what_plain_products_need_and_no_more(loaded):
    assert of_package(loaded[0]) == LOADED


def test_the_standard_library_is_loaded_where_it_is_needed(loaded):
    """No logging, json, fractions, pathlib or statistics, and no other library."""
    others = {x for names in loaded for x in names if x.partition(".")[0] != "hifigemm"}
    assert others == set()


def test_plain_products_load_the_core_and_what_they_multiply_with(loaded):
    plain, correct, repeated = map(of_package, loaded[1:])
    assert plain <= {"_core"}
    assert repeated == set()
    if plain:
        assert correct == OF_CORRECT
    else:  # The core is not built: sums of NumPy, and what they leave to slices.
        assert correct >= OF_CORRECT


def test_names_that_are_loaded_on_use_are_those_of_their_modules():
    for name, home in hifigemm._LOADED_ON_USE.items():
        module = importlib.import_module(f"hifigemm.{home}")
        assert getattr(hifigemm, name) is getattr(module, name)
        assert name in hifigemm.__all__


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
