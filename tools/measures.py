"""How large is the middle? Counts what a reader has to follow, and holds it against the limits of the design.

Usage: python tools/measures.py [--check]
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.engine import Engine
from hifigemm.plan import Plan
from hifigemm.schemes import Scheme

SRC = Path(hg.__file__).parent


def calls_of(function: Callable[[], object]) -> tuple[int, int]:
    """Calls of functions of this package, and changes from one of its files to another."""
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SRC)):
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(files), sum(one != other for one, other in pairwise(files))


def members(kind: type) -> list[str]:
    """Public attributes and methods of a class, without those of object."""
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def imports() -> dict[str, set[str]]:
    """Modules of the package that each one imports, those for type checkers included."""
    found: dict[str, set[str]] = {}
    for path in SRC.rglob("*.py"):
        name = ".".join(("hifigemm", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        outside = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
        nodes = [x for node in outside for x in ast.walk(node) if isinstance(x, ast.ImportFrom)]
        targets = {x.module for x in nodes if x.module and x.module.startswith("hifigemm")}
        targets |= {f"{x.module}.{alias.name}" for x in nodes if x.module for alias in x.names}
        found[name] = {x for x in targets if x != name}
    return {name: {x for x in targets if x in found} for name, targets in found.items()}


def circles() -> list[list[str]]:
    """Circles among the imports of modules, packages left out."""
    graph, found = imports(), []
    packages = {name for name in graph if any(other.startswith(name + ".") for other in graph)}

    def follow(name: str, path: list[str], seen: set[str]) -> Iterator[list[str]]:
        for other in sorted(graph[name] - packages):
            if other == path[0]:
                yield path
            elif other not in seen and other > path[0]:
                seen.add(other)
                yield from follow(other, [*path, other], seen)

    for name in sorted(set(graph) - packages):
        found += list(follow(name, [name], {name}))
    return found


def measured() -> list[tuple[str, int, int]]:
    """What is counted, the count, and the limit."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
    scheme = hg.Ozaki2(num_moduli=15, scaling="fast")
    hg.matmul(a, b, scheme=scheme)
    calls, changes = calls_of(lambda: hg.matmul(a, b, scheme=scheme))
    kernels = SRC / "engines" / "kernels"
    compiled = [path for path in kernels.rglob("*.py") if re.search(r"^@(triton|gluon)\.jit", path.read_text(), re.M)]
    engines = [path for path in (SRC / "engines").rglob("*.py") if "scheme.name" in path.read_text(encoding="utf-8")]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SRC.rglob("*.py"))
    return [
        ("calls for an Ozaki II product of NumPy arrays (64 x 64)", calls, 150),
        ("changes of file for it", changes, 60),
        ("members of Engine", len(members(Engine)), 11),
        ("members of Scheme", len(members(Scheme)), 10),
        ("fields of Plan", len(dataclasses.fields(Plan)), 14),
        ("flags of Plan", sum(field.type in ("bool", bool) for field in dataclasses.fields(Plan)), 0),
        ("engines that ask for a scheme's name", len(engines), 0),
        ("circles of imports", len(circles()), 0),
        ("files with kernels", len(compiled), 26),
        ("lines of src", lines, 29_200),
    ]


def main() -> int:
    """Print the counts; with --check 1 where one is beyond its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where a count is beyond its limit")
    options = parser.parse_args()
    rows = measured()
    for name, count, limit in rows:
        print(f"{count:6d} of {limit:5d}  {name}{'' if count <= limit else '  <- too many'}")
    for circle in circles():
        print("  ->  ".join(circle))
    return int(options.check and any(count > limit for _, count, limit in rows))


if __name__ == "__main__":
    raise SystemExit(main())
