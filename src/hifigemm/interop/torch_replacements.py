"""Kernels in front of those that PyTorch has for the devices, put there and taken away
together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch

from hifigemm.differentiable import torch_private as private

Kernel = Callable[..., Any]
"""A kernel of PyTorch, called with the dispatch keys and then the arguments of the
operator.
"""


class Replacements:
    """Kernels of operators, each of which can call the one that stood in its place
    before.

    Others may put theirs in front later, as PyTorch does with bmm where somebody
    switches its own Triton kernels on. Those may call the older kernels, which then
    stay where they are.
    """

    def __init__(
        self,
        kernels: Mapping[str, Callable[[Kernel], Kernel]],
        often_replaced: Iterable[str] = (),
    ) -> None:
        self._kernels = kernels
        self._often_replaced = tuple(often_replaced)
        self._libraries: list[torch.library.Library] = []
        self._lock = threading.Lock()

    def register(self, *, thoroughly: bool = False) -> None:
        """Put the kernels in their places; nothing happens where they stand in front
        already.

        That is looked for at the operators that are often replaced, or thoroughly at
        all of them.
        """
        with self._lock:
            names = self._kernels if thoroughly else self._often_replaced
            if not (self._libraries and self._are_in_front(names)):
                self._put_in_front()

    def unregister(self) -> bool:
        """Take the kernels away; False where others stand in front of some, which may
        call them.
        """
        with self._lock:
            while self._libraries and self._are_in_front(self._kernels):
                self._libraries.pop()._destroy()
            return not self._libraries

    def hand_on(
        self,
        previous: Kernel,
        name: str,
        keys: Any,
        arguments: Any,
        options: dict[str, Any],
    ) -> Any:
        """The result of the kernel that stood there before, or of the one that stands
        there now if that one is gone.
        """
        try:
            return previous(keys, *arguments, **options)
        except RuntimeError as error:
            is_of_others = private.is_gone(error) and __file__ not in str(error)
            if not is_of_others or not self.unregister():
                raise

        # Another library took its kernel away: these go in front of what is there now.
        self.register()
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        return operator.redispatch(keys, *arguments, **options)

    def _put_in_front(self) -> None:
        """Register the kernels, each with the one that is called first so far."""
        library = torch.library.Library("aten", "IMPL")
        for name, kernel_before in self._kernels.items():
            for key in _keys(name):
                previous = torch.library.get_kernel(f"aten::{name}", key).call_boxed
                kernel = private.untraced(kernel_before(previous))
                private.implement(library, name, kernel, key)
        self._libraries.append(library)

    def _are_in_front(self, names: Iterable[str]) -> bool:
        """True if the kernels of these operators are called first on each device."""
        return all(
            private.is_from(__file__, f"aten::{name}", key)
            for name in names
            for key in _keys(name)
        )


@cache
def _keys(name: str) -> list[str]:
    """The devices that an operator of PyTorch has a kernel for."""
    return [
        key for key in private.DEVICE_KEYS if private.has_kernel(f"aten::{name}", key)
    ]
