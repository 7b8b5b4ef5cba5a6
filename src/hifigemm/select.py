"""scheme="auto": candidates, what they promise, and the cheapest that keeps the target."""

from __future__ import annotations

from hifigemm.accuracy import Target
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.plan import Problem
from hifigemm.schemes import SCHEMES, Native, Ozaki1, Scheme

__all__ = ["as_scheme", "check_forced", "choose"]


def as_scheme(scheme: str | Scheme) -> Scheme | None:
    """The scheme of a name or dataclass; None for "auto"."""
    if isinstance(scheme, Scheme):
        return scheme
    if scheme == "auto":
        return None
    if scheme not in SCHEMES:
        raise PlanError(f'scheme={scheme!r}: expected "auto", {", ".join(SCHEMES)} or one of the scheme dataclasses')
    return SCHEMES[scheme]()


def choose(problem: Problem, target: Target) -> Scheme:
    """The cheapest scheme of the CPU that keeps the target.

    The native product wherever its worst case is good enough, or the level of its own format was asked for; for float32
    operands the native product in float64 next, which is one product too; otherwise slices with FP64 products, the
    widest that BLAS multiplies exactly.
    """
    for native in (Native(), Native(product="fp64")):
        if native.keeps(problem, target):
            return native
    return Ozaki1(product="fp64")


def check_forced(scheme: Scheme, problem: Problem, target: Target) -> None:
    """Raise AccuracyError where a forced native product cannot promise the target."""
    if isinstance(scheme, Native) and not scheme.keeps(problem, target):
        raise AccuracyError(
            f"the native product of {problem} errs by up to {scheme.bound(problem):.3g} |A||B|; asked: {target}"
        )
