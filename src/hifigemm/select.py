"""scheme="auto": candidates, what they promise, and the cheapest that keeps the target."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hifigemm.accuracy import Target
from hifigemm.engine import Costs, Engine
from hifigemm.exceptions import AccuracyError, PlanError
from hifigemm.formats import BF16, FP16, FP32, FP64
from hifigemm.plan import Plan, Problem
from hifigemm.schemes import SCHEMES, Corrected, Multiword, Native, Ozaki1, Ozaki2, Scheme
from hifigemm.schemes.word_scheme import WordScheme

__all__ = ["as_scheme", "check_forced", "choose", "choose_words", "settle", "stand_in", "words_plan"]

_ONE_WORD = {
    "fp16": Multiword("fp16", 1, 1, accumulate="blocked", block=32),
    "bf16": Multiword("bf16", 1, 1, accumulate="blocked", block=32),
    "tf32": Multiword("tf32", 1, 1, accumulate="blocked", block=16),
}
"""Operands of one word: products are exact, sums leave the tensor core after two instructions. For positive entries and
k = 1024 to 4096 the mean error on an H200 is 0.9e-7 to 1.4e-7 |A||B|, after four instructions 1.8e-7 to 1.9e-7, and the
time differs by a twentieth."""
_WORDS: dict[object, tuple[Scheme, ...]] = {
    None: (Corrected("fp16"), Corrected("tf32"), Native()),
    FP16: (_ONE_WORD["fp16"], _ONE_WORD["tf32"]),
    BF16: (_ONE_WORD["bf16"], Native()),
}
"""Choices by `Problem.narrow`: quicker words first, then those that hold more exponents. TF32 holds all of FP16's."""
_WORDS_MARGIN = 1.5
"""Words are to be quicker by a third: whether the first choice is taken is seen on the device only."""


def as_scheme(scheme: str | Scheme) -> Scheme | None:
    """The scheme of a name or dataclass; None for "auto"."""
    if isinstance(scheme, Scheme):
        return scheme
    if isinstance(scheme, str) and scheme == "auto":
        return None
    if isinstance(scheme, type) and issubclass(scheme, Scheme):
        raise PlanError(f"scheme={scheme!r} is a class; expected an instance, such as hifigemm.{scheme.__name__}()")
    if not isinstance(scheme, str) or scheme not in SCHEMES:
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


def choose_words(problem: Problem, target: Target, engine: Engine, workspace: int) -> Plan | None:
    """The plan of words that the device chooses, where float32 results at their own level are sooner there by a third.

    The exponents of the operands decide on the device, so no product waits for them, and a worst case no larger than
    that of a native product is kept. Launches that turn out idle are counted, but a margin is left for them.
    """
    costs = engine.costs
    if costs is None or target.level is not FP32 or problem.fmt is not FP32 or problem.is_complex:
        return None
    own, others = costs.word_seconds(problem), costs.native_seconds(problem)
    if _WORDS_MARGIN * own > others:
        return None
    return words_plan(problem, target, engine, workspace)


@lru_cache(maxsize=256)
def words_plan(problem: Problem, target: Target, engine: Engine, workspace: int) -> Plan | None:
    """The plan of words that the device chooses; None where the engine has no kernels for it or no room."""
    choices, p = _WORDS[problem.narrow], problem
    words = [scheme for scheme in choices if isinstance(scheme, WordScheme)]
    held = max((4 if scheme.product == "tf32" else 2) * scheme.splitting.num_words for scheme in words)
    nbytes = held * p.batch * (p.m + p.n) * (p.k + 15)
    if p.k == 0 or nbytes > workspace or words[0].product not in engine.products:
        return None
    names = [*(scheme.product.upper() for scheme in words), *(["FP32 sums"] if len(words) < len(choices) else [])]
    worst = Native().bound(p)
    reason = f"{', else '.join(names)} by the exponents of the operands, at worst {worst:.3g} |A||B|"
    spec, unit = engine.products[words[0].product], words[0].unit_on(engine, p)
    counts = len(words[0].pair_errors(unit, p.k)), words[0].block_length(unit, p.k)
    reason += target.accepts(worst)
    plan = Plan(p, choices[0], target, engine.name, spec, *counts, reason, fused=engine.fused, worst_case=worst)
    plan = replace(plan, choices=choices, block_shape=(p.batch, p.m, p.n), workspace=nbytes)
    return plan if engine.whole_product(plan) is not None else None


def settle(plan: Plan, engine: Engine) -> Plan:
    """A plan of "auto" once the operands were seen: back to the native product where residues cost more than that.

    A hopeful plan may still come back to it.
    """
    native, costs = Native(), engine.costs
    if costs is None or not isinstance(plan.scheme, Ozaki2) or not native.keeps(plan.problem, plan.target):
        return plan
    if plan.hopeful:
        return replace(plan, worst_case=native.bound(plan.problem))
    own, others = costs.residue_seconds(plan.problem, plan.num_products, True), costs.native_seconds(plan.problem)
    known = plan.promised or plan.exact
    if known and own < others:
        return plan
    why = "these operands would take an unknown number of residue products"
    if known:
        why = f"these operands would take {_compared(plan.num_products, own, others)}"
    return replace(_chosen(native, plan.problem, plan.target, engine, why), free=True)


@lru_cache(maxsize=256)
def stand_in(native: Native, problem: Problem, target: Target, engine: Engine) -> Plan:
    """The plan of a native product that was chosen, with what spoke against other schemes."""
    why = f"no scheme is known to be quicker on engine {engine.name!r}"
    if problem.fmt is not FP64:
        why = f"residues are not considered for {problem.dtype}"
        if engine.costs is not None and target.level is FP32 and not problem.is_complex:
            own, others = engine.costs.word_seconds(problem), engine.costs.native_seconds(problem)
            why = f"words of {1e3 * own:.3g} ms, against {1e3 * others:.3g} ms, are not quicker by a third"
            if _WORDS_MARGIN * own <= others:
                why = "words would exceed this bound or the workspace"
    elif engine.costs is not None:
        expected, own = _expected_cost(problem, target, engine.costs)
        why = f"{_compared(expected, own, engine.costs.native_seconds(problem))} are not quicker by a tenth"
    return _chosen(native, problem, target, engine, why)


def _chosen(native: Native, problem: Problem, target: Target, engine: Engine, why: str) -> Plan:
    """The plan of a native product as the library's choice: no fall back where it is known to keep the target.

    An engine that makes it whole leaves over- and underflow on the way to the library.
    """
    plan = native.planned(problem, target, engine)
    keeps = plan.worst_case <= target.r and engine.whole_product(plan) is None
    return replace(plan, fallback=not keeps, reason=f"{plan.reason}; {why}")


def _residues_pay(problem: Problem, target: Target, engine: Engine) -> bool:
    """Whether residues are expected to be quicker by a tenth than the native product; operands are not seen yet."""
    if engine.costs is None or problem.fmt is not FP64:
        return False
    return _expected_cost(problem, target, engine.costs)[1] < 0.9 * engine.costs.native_seconds(problem)


def _expected_cost(problem: Problem, target: Target, costs: Costs) -> tuple[int, float]:
    """Residue products of operands without wide exponents, and their seconds."""
    expected = Ozaki2(scaling="fast").expected_products(problem, target)
    return expected, costs.residue_seconds(problem, expected, True)


def _compared(num_products: int, own: float, native: float) -> str:
    return f"{num_products} residue products of {1e3 * own:.3g} ms in all, against {1e3 * native:.3g} ms"


def check_forced(scheme: Scheme, problem: Problem, target: Target) -> None:
    """Raise AccuracyError where a forced native product cannot promise the target."""
    if isinstance(scheme, Native) and not scheme.keeps(problem, target):
        raise AccuracyError(
            f"the native product of {problem} errs by up to {scheme.bound(problem):.3g} |A||B|; asked: {target}"
        )
