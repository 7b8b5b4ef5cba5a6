"""How the products of PyTorch are to be made, in a scope of a thread and those that work for it, or in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hifigemm.accuracy import Accuracy
from hifigemm.interop import torch_private as private
from hifigemm.interop.summary import Summary
from hifigemm.schemes import Scheme

_KEY = "policy of hifigemm"


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


@dataclass(frozen=True, eq=False)
class _Scope:
    policy: Policy
    outer: _Scope | None


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


def open_scope(policy: Policy) -> None:
    """From here on the policy holds in this thread."""
    private.give_thread(_KEY, _Scope(policy, private.of_thread(_KEY)))


def close_scope() -> None:
    """From here on what held before the last scope holds again."""
    private.give_thread(_KEY, private.of_thread(_KEY).outer)


@contextmanager
def aside() -> Iterator[None]:
    """A context in which PyTorch makes the products of this thread itself."""
    open_scope(_ASIDE)
    try:
        yield
    finally:
        close_scope()
