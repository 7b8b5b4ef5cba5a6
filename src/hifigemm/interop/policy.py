"""How the products of PyTorch are to be made, in a scope of a thread and those that work for it, or in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hifigemm.accuracy import Accuracy
from hifigemm.interop import torch_private as private
from hifigemm.interop.summary import Summary
from hifigemm.schemes import Scheme

_KEY = "policy of hifigemm"
LEVELS = {torch.float32: "fp32", torch.float64: "fp64", torch.complex64: "fp32", torch.complex128: "fp64"}
"""The level of a dtype, which native products are accepted for."""
_LEAST_SIZE = 128
"""Of products at the level of their dtype: those of smaller matrices take longer to launch than to make."""


@dataclass(frozen=True, eq=False)
class Policy:
    """What is asked of products, and which of them are handed on."""

    accuracy: Accuracy = None
    scheme: str | Scheme = "auto"
    # Products with m n k below its third power are handed on; None for the default, see `emulate`.
    min_size: int | None = None
    workspace: int | None = None
    summaries: tuple[Summary, ...] = ()
    hands_on: bool = False  # all products

    def least_size(self, dtype: torch.dtype, *, on_cpu: bool) -> int | None:
        """Products with m n k below its third power are handed on; None for all: no scheme is faster on a CPU."""
        if self.min_size is not None:
            return self.min_size
        if self.accuracy not in (None, LEVELS[dtype]) or self.scheme != "auto":
            return 0
        return None if on_cpu else _LEAST_SIZE


@dataclass(frozen=True, eq=False)
class _Scope:
    policy: Policy
    outer: _Scope | None
    owner: object


_ASIDE = Policy(hands_on=True)
_process: Policy | None = None


def set_process_policy(policy: Policy | None) -> None:
    """Set what holds where no scope is open."""
    global _process
    _process = policy


def current_policy() -> Policy | None:
    """What holds in this thread; None where nothing was asked for."""
    scope: Any = private.of_thread(_KEY)
    return _process if scope is None else scope.policy


def open_scope(policy: Policy, owner: object = None) -> None:
    """From here on the policy holds in this thread."""
    private.give_thread(_KEY, _Scope(policy, private.of_thread(_KEY), owner))


def close_scope(owner: object = None) -> None:
    """The last scope of the owner ends; those that were opened after it stay, as in generators that end later."""
    scope, later = private.of_thread(_KEY), []
    while scope is not None and scope.owner is not owner:
        later.append(scope)
        scope = scope.outer
    if scope is not None:
        rest = scope.outer
        for other in reversed(later):
            rest = _Scope(other.policy, rest, other.owner)
        private.give_thread(_KEY, rest)


@contextmanager
def aside() -> Iterator[None]:
    """A context in which PyTorch makes the products of this thread itself."""
    open_scope(_ASIDE)
    try:
        yield
    finally:
        close_scope()
