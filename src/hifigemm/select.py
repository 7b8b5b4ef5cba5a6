"""scheme="auto": candidates, what they promise, and the cheapest that keeps the target."""

from __future__ import annotations

from dataclasses import replace

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import FP64
from hifigemm.plan import Plan, Problem
from hifigemm.schemes import SCHEMES, Native, Ozaki1, Ozaki2, Scheme

__all__ = ["as_scheme", "check_forced", "choose", "settle"]


def as_scheme(scheme: str | Scheme) -> Scheme | None:
    """The scheme of a name or dataclass; None for "auto"."""
    if isinstance(scheme, Scheme):
        return scheme
    if scheme == "auto":
        return None
    if scheme not in SCHEMES:
        raise PlanError(f'scheme={scheme!r}: expected "auto", {", ".join(SCHEMES)} or one of the scheme dataclasses')
    return SCHEMES[scheme]()


def choose(problem: Problem, target: Target, engine: Engine) -> Scheme:
    """The cheapest scheme that keeps the target, as far as that is known without a look at the operands.

    The native product wherever its worst case is good enough, or the level of its own format was asked for, unless
    residues are quicker on this engine by its cost model; for float32 operands the native product in float64 next,
    which is one product too; otherwise residues where they are fused, or slices with FP64 products, the widest that
    BLAS multiplies exactly.
    """
    for native in (Native(), Native(product="fp64")):
        if native.keeps(problem, target):
            return Ozaki2(scaling="fast") if native == Native() and _residues_pay(problem, target, engine) else native
    return Ozaki2(scaling="fast") if engine.fused else Ozaki1(product="fp64")


def settle(plan: Plan, engine: Engine) -> Plan:
    """A plan of "auto" once the operands were seen: back to the native product where residues cost more than that."""
    native, costs = Native(), engine.costs
    if costs is None or plan.hopeful or not isinstance(plan.scheme, Ozaki2):
        return plan
    if not native.keeps(plan.problem, plan.target):
        return plan
    own, others = costs.residue_seconds(plan.problem, plan.num_products, True), costs.native_seconds(plan.problem)
    known = plan.promised or plan.exact
    if known and own < others:
        return plan
    taken = native.planned(plan.problem, plan.target, engine)
    why = f"{plan.num_products} residue products" if known else "an unknown number of residue products"
    return replace(taken, free=True, reason=f"{taken.reason}; these operands would take {why}")


def _residues_pay(problem: Problem, target: Target, engine: Engine) -> bool:
    """Whether residues are expected to be quicker by a tenth than the native product; operands are not seen yet."""
    if engine.costs is None or problem.fmt is not FP64 or problem.is_complex:
        return False
    expected = Ozaki2(scaling="fast").expected_products(problem, target)
    return engine.costs.residue_seconds(problem, expected, True) < 0.9 * engine.costs.native_seconds(problem)


def check_forced(scheme: Scheme, problem: Problem, target: Target) -> None:
    """Raise AccuracyError where a forced native product cannot promise the target."""
    if isinstance(scheme, Native) and not scheme.keeps(problem, target):
        raise AccuracyError(
            f"the native product of {problem} errs by up to {scheme.bound(problem):.3g} |A||B|; asked: {target}"
        )
