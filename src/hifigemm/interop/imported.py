"""What is done once a program imports a library, which may be long after this one and before any of its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def once_imported(name: str, then: Callable[[], object]) -> None:
    """Call `then` now where a module is imported already, else at the end of its import, unless that was asked for."""
    if name in sys.modules:
        then()
    elif not any(isinstance(finder, _Waiting) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(name, then))


class _Waiting(MetaPathFinder):
    """In front of the other finders, it leaves when the module is looked for and lets them find it."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name, self._then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._then()

        loader.exec_module = exec_module
        return spec
