"""How the products of PyTorch are to be made, in a scope of a thread and those that
work for it, or in a process.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hifigemm.differentiable import torch_private as private
from hifigemm.engines.library_product import in_library_product
from hifigemm.interop.summary import Sightings, Summary
from hifigemm.model.accuracy import Accuracy, Invariant
from hifigemm.schemes import Scheme

_KEY = "policy of hifigemm"
LEVELS = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.complex64: "fp32",
    torch.complex128: "fp64",
}
"""The level of each dtype, at which native products are accepted."""
NARROW = frozenset((torch.float16, torch.bfloat16))
"""Dtypes without a level: where no accuracy is asked for, native products are usual."""
SERVED = NARROW | LEVELS.keys()
"""Dtypes whose products can be made here."""
_LEAST_SIZE = 128
"""Size below which products at the level of their dtype are handed on: they take longer
to launch than to multiply.
"""


@dataclass(frozen=True, eq=False)
class Policy:
    """The accuracy of products, which of them are handed on, and the summaries that
    count them.
    """

    accuracy: Accuracy = None
    scheme: str | Scheme = "auto"
    # Products with m n k below its third power are handed on; None for the default, see
    # `emulate`.
    min_size: int | None = None
    workspace: int | None = None
    summaries: tuple[Summary, ...] = ()
    hands_on: bool = False  # all products
    is_strict: bool = False  # raises AccuracyError at operations that are not reached
    # sightings of the scope, and of the process if it keeps a summary
    sightings: tuple[Sightings, ...] = ()

    @property
    def watches(self) -> bool:
        """True if operations that are not reached are counted or raise."""
        return self.is_strict or bool(self.summaries)

    @property
    def is_invariant(self) -> bool:
        """True if no product may be handed on whose bits depend on more than its row."""
        return isinstance(self.accuracy, Invariant)

    def has_seen_product(self) -> None:
        """Note that there was a product of PyTorch, made here or handed on."""
        for sightings in self.sightings:
            sightings.has_product = True

    def least_size(self, dtype: torch.dtype, *, on_cpu: bool) -> int | None:
        """Products with m n k below its third power are handed on; None for all: no
        scheme is faster on a CPU, or than products of 16 bits.
        """
        if self.min_size is not None:
            return self.min_size
        if self.accuracy not in (None, LEVELS.get(dtype)) or self.scheme != "auto":
            return 0
        return None if on_cpu or dtype in NARROW else _LEAST_SIZE


@dataclass(eq=False)
class Scope:
    """A policy that holds in the thread that opened it, until it is closed, by
    whichever thread.
    """

    policy: Policy
    outer: Scope | None
    is_open: bool = True

    @property
    def sightings(self) -> Sightings:
        """The products and operations that this scope came across."""
        return self.policy.sightings[0]


_process: Policy | None = None


def process_policy() -> Policy | None:
    """The policy that holds where no scope is open; None without one."""
    return _process


def set_process_policy(policy: Policy | None) -> None:
    """Set the policy that holds where no scope is open."""
    global _process
    _process = policy


def current_policy() -> Policy | None:
    """The policy that holds in this thread; None without one, and inside a product of
    the library, which PyTorch makes itself.
    """
    if in_library_product():
        return None
    scope: Scope | None = private.of_thread(_KEY)
    while scope is not None and not scope.is_open:
        scope = scope.outer
    return _process if scope is None else scope.policy


def open_scope(policy: Policy) -> Scope:
    """A scope of this thread in which the policy holds from here on."""
    scope = Scope(policy, _innermost())
    private.give_thread(_KEY, scope)
    return scope


def close_scope(scope: Scope) -> None:
    """End a scope, of this thread or of another one; those that were opened after it
    stay.

    A generator with a scope inside may end after scopes that were opened later, and in
    another thread.
    """
    scope.is_open = False
    if scope.policy.sightings and scope.sightings.has_product:
        outer = _open_from(scope.outer)
        policy = _process if outer is None else outer.policy
        if policy is not None:
            # The outer policy has left these products to the inner one, so it saw them.
            policy.has_seen_product()
    private.give_thread(_KEY, _innermost())


def is_of_thread(scope: Scope) -> bool:
    """True if the scope is open in this thread."""
    other = _innermost()
    while other is not None and other is not scope:
        other = _open_from(other.outer)
    return other is scope


def _innermost() -> Scope | None:
    """The scope of this thread that was opened last and is open."""
    return _open_from(private.of_thread(_KEY))


def _open_from(scope: Scope | None) -> Scope | None:
    """The scope, or the first one around it that is still open."""
    while scope is not None and not scope.is_open:
        scope = scope.outer
    return scope
