"""scheme="auto": candidates, what they promise, and the cheapest that keeps the target.

The choice rests on the problem and on the cost model of the engine, never on a timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from hifigemm.accuracy import CORRECT, Target
from hifigemm.engine import Costs, Engine
from hifigemm.exceptions import PlanError
from hifigemm.formats import BF16, FP16, FP32, FP64
from hifigemm.plan import Blocking, Evidence, Outliers, Plan, Verification
from hifigemm.problem import Problem
from hifigemm.schemes.corrected import Corrected
from hifigemm.schemes.double_double import DoubleDouble
from hifigemm.schemes.multiword import Multiword
from hifigemm.schemes.native import Native
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.ozaki2 import Ozaki2
from hifigemm.schemes.scheme import Scheme
from hifigemm.schemes.word_scheme import WordScheme

Look = Callable[[Scheme, Target], Evidence | None]
"""What a scheme wants to know of the operands for a target."""

_ALL: tuple[type[Scheme], ...] = (
    Native,
    Multiword,
    Corrected,
    Ozaki1,
    Ozaki2,
    DoubleDouble,
)
SCHEMES: dict[str, type[Scheme]] = {cls.name: cls for cls in _ALL}

_ONE_WORD = {
    "fp16": Multiword("fp16", 1, 1, accumulate="blocked", block=32),
    "bf16": Multiword("bf16", 1, 1, accumulate="blocked", block=32),
    "tf32": Multiword("tf32", 1, 1, accumulate="blocked", block=16),
}
"""Operands of one word: products are exact, sums leave the tensor core after two
instructions. For positive entries and k = 1024 to 4096 the mean error on an H200 is
0.9e-7 to 1.4e-7 |A||B|, after four instructions 1.8e-7 to 1.9e-7, and the time differs
by a twentieth.
"""
_WORDS: dict[object, tuple[Scheme, ...]] = {
    None: (Corrected("fp16"), Corrected("tf32"), Native()),
    FP16: (_ONE_WORD["fp16"], _ONE_WORD["tf32"]),
    BF16: (_ONE_WORD["bf16"], Native()),
}
"""Choices by `Problem.narrow`: quicker words first, then those that hold more
exponents. TF32 holds all of FP16's.
"""
_SHORT = 1e-4
"""Seconds of a native product in whose place words of one format are tried alone: a
choice that is not taken costs two launches, a sixth of the time at n = 1024.
"""
_WORDS_MARGIN = 1.5
"""Words are to be quicker by a third: whether the first choice is taken is seen on the
device only.
"""
_MORE_MODULI = 2
"""Larger counts that the device may go on to; data with phi = 1 need one or two moduli
more than data of one size.
"""


def as_scheme(scheme: str | Scheme) -> Scheme | None:
    """The scheme of a name or dataclass; None for "auto"."""
    if isinstance(scheme, Scheme):
        return scheme
    if isinstance(scheme, str) and scheme == "auto":
        return None
    if isinstance(scheme, type) and issubclass(scheme, Scheme):
        raise PlanError(
            f"scheme={scheme!r} is a class; expected an instance, such as hifigemm.{scheme.__name__}()"
        )
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise PlanError(
            f'scheme={scheme!r}: expected "auto", {", ".join(SCHEMES)} or one of the scheme dataclasses'
        )
    return SCHEMES[scheme]()


def scheme_for(problem: Problem, target: Target, engine: Engine) -> Scheme:
    """The cheapest scheme that keeps the target, as far as that is known without a look
    at the operands.

    The native product wherever its worst case is good enough, or the level of its own
    format was asked for, unless residues are quicker on this engine by its cost model;
    otherwise residues where programs make them. Elsewhere the native product in float64
    for float32 operands, which is one product too; else double-double sums, which take
    five or six products for correct rounding where slices take as many for the weakest
    target that comes here. On a GPU without Triton it is slices.
    """
    residues = Ozaki2(scaling="fast")
    if Native().keeps(problem, target):
        return residues if _residues_pay(problem, target, engine) else Native()
    if engine.costs is not None:
        return residues
    in_float64 = Native(product="fp64")
    if in_float64.keeps(problem, target):
        return in_float64
    return DoubleDouble() if DoubleDouble.is_for(engine) else Ozaki1(product="fp64")


def on_device(
    scheme: Scheme,
    problem: Problem,
    target: Target,
    engine: Engine,
    asked: Scheme | None,
) -> Plan | None:
    """The plan in which the device chooses the number of moduli, or the native product,
    by the error ratio.

    For residues without a forced count where the worst case of a native product is good
    enough, so that the host never has to know what was taken. None for all else.
    """
    native = Native()
    if (
        engine.costs is None
        or not isinstance(scheme, Ozaki2)
        or scheme.explicit
        or scheme.scaling != "fast"
    ):
        return None
    if problem.fmt is not FP64 or not native.keeps(problem, target):
        return None
    first = scheme.plan(problem, target, engine, None, asked)
    counts = _ladder(first, engine.costs, engine.costs.native_seconds(problem))
    words = " or ".join(map(str, counts))
    worst = native.bound(problem)
    reason = (
        f"the device decides by the operands between {words} moduli and an FP64 product"
    )
    reason += f", at worst {worst:.3g} |A||B|{target.accepts(worst)}, which over- and underflows as a library's"
    return replace(
        first,
        verification=Verification.ON_DEVICE,
        bound=max(target.r, worst),
        reason=reason,
        alternatives=(
            *(replace(scheme, num_moduli=count) for count in counts[1:]),
            native,
        ),
    )


def _ladder(first: Plan, costs: Costs, others: float) -> list[int]:
    """The moduli of a plan, and larger counts that are expected to be quicker than what
    comes behind them.
    """
    counts = [first.scheme.count]
    for more in range(1, _MORE_MODULI + 1):
        products = first.scheme.expected_products(first.problem, first.target, more)
        if costs.residue_seconds(first.problem, products, True) < others:
            counts.append(counts[0] + more)
    return counts


def by_operands(
    problem: Problem,
    target: Target,
    engine: Engine,
    costs: Costs,
    look: Look | None,
    ratio: float | None = None,
) -> Plan:
    """The cheapest plan of residues for a target beyond the native product, by one look
    at the operands.

    Moduli that hold the exact product keep every target, at the price of correct
    rounding. Fewer keep a number where the error ratio is small: the device finds it
    out beside the product, and goes on to the exact product where it is not. Where no
    moduli hold the exact product, a number is tried by its ratio alone, and what is
    left takes the steps of correct rounding with entries that are certified for the
    target. So no target costs more than a stronger one.

    Nobody looks for `look` None. `ratio` is the error ratio, once a program has found
    it.
    """
    residues = Ozaki2(scaling="fast")
    if look is None and ratio is None:
        return residues.plan(problem, target, engine, None, None)

    # The way of correct rounding, which a relative error takes too.
    evidence = None if look is None else look(residues, CORRECT)
    has_exact = evidence is not None and evidence.required_bits is not None
    exact = (
        residues.plan(problem, target, engine, evidence, None) if has_exact else None
    )
    if target.by_entry:
        return exact or _in_steps(problem, target, engine)

    # As many moduli as a known ratio asks for, or those of the exact product where they
    # are fewer.
    if ratio is not None:
        plans = [] if exact is None else [exact]
        if residues.count_for(problem, target, ratio) is not None:
            plans.append(
                residues.plan(
                    problem, target, engine, Evidence(error_ratio=ratio), None
                )
            )
        return (
            min(plans, key=_num_products)
            if plans
            else _in_steps(problem, target, engine)
        )

    # As many as tame operands take; the exact product where that is expected to be
    # quicker, or behind them.
    first = residues.plan(problem, target, engine, None, None)
    if exact is None:
        return first
    # A product that is its own mirror image is decided upon as a whole, so that it has
    # the bits of the whole one.
    whole = replace(problem, mirror="")
    exact_seconds = costs.residue_seconds(whole, math.ceil(_num_products(exact)), False)
    if costs.residue_seconds(whole, first.num_products, True) >= exact_seconds:
        return exact
    # the look at the ratio is little of such a product
    if problem.fmt is not FP64 or _outliers(exact) is not None:
        return first
    counts = _ladder(replace(first, problem=whole), costs, exact_seconds)
    return replace(
        first,
        verification=Verification.ON_DEVICE,
        reason=f"the device decides by the operands between {' or '.join(map(str, counts))} moduli for {target} "
        f"in every entry and those of correct rounding: {exact.reason}",
        alternatives=(
            *(replace(residues, num_moduli=count) for count in counts[1:]),
            exact.scheme,
        ),
        evidence=exact.evidence,
    )


def _in_steps(problem: Problem, target: Target, engine: Engine) -> Plan:
    """The steps of correct rounding, with entries that are certified for the target."""
    plan = Ozaki2(scaling="fast").plan(problem, CORRECT, engine, Evidence(), None)
    if target.correct:
        return plan
    reason = f"no number of moduli is known to keep {target}; {plan.reason} to begin with, and entries are certified"
    return replace(plan, target=target, bound=target.r, reason=reason)


def _outliers(plan: Plan) -> Outliers | None:
    """The vectors that a plan sets apart."""
    return None if plan.evidence is None else plan.evidence.outliers


def _num_products(plan: Plan) -> float:
    """Products that a plan makes, those of outliers by their share."""
    outliers = _outliers(plan)
    return (
        plan.num_products
        if outliers is None
        else outliers.num_products(plan.problem, plan.num_products)
    )


def words_by_exponents(
    problem: Problem,
    target: Target,
    engine: Engine,
    workspace: int,
    given: Plan | None = None,
) -> Plan | None:
    """The plan of words that the device chooses, where float32 results at their own
    level are sooner there by a third.

    The exponents of the operands decide on the device, so no product waits for them,
    and a worst case no larger than that of a native product is kept. Launches that turn
    out idle are counted, but a margin is left for them. A plan that is given, for
    another problem, leaves the times out and says the choices of operands like its own.
    """
    costs = engine.costs
    if costs is None or target.level is not FP32 or problem.fmt is not FP32:
        return None
    choices = _WORDS[problem.narrow]
    if given is None:
        others = costs.native_seconds(problem)
        if _WORDS_MARGIN * costs.word_seconds(problem) > others:
            return None
        if others < _SHORT:
            choices = choices[0], choices[-1]
    elif given.problem.narrow is problem.narrow:
        choices = given.scheme, *given.alternatives
    return _words_plan(problem, target, engine, workspace, choices)


@lru_cache(maxsize=256)
def _words_plan(
    problem: Problem,
    target: Target,
    engine: Engine,
    workspace: int,
    choices: tuple[Scheme, ...],
) -> Plan | None:
    """The plan of words that the device chooses; None where the engine has no kernels
    for it or no room.
    """
    p = problem
    words = [scheme for scheme in choices if isinstance(scheme, WordScheme)]
    if p.k == 0 or words[0].product not in engine.products:
        return None
    names = [
        *(scheme.product.upper() for scheme in words),
        *(["FP32 sums"] if len(words) < len(choices) else []),
    ]
    worst = Native().bound(p)
    reason = f"{', else '.join(names)} by the exponents of the operands, at worst {worst:.3g} |A||B|"
    reason += target.accepts(worst)
    spec, unit = engine.products[words[0].product], words[0].unit_on(engine, p)
    counts = words[0].count_products(unit, p), words[0].block_length(unit, p.terms)
    bound, blocking = max(target.r, worst), Blocking((p.batch, p.m, p.n))
    plan = Plan(
        *(
            p,
            None,
            choices[0],
            target,
            engine.name,
            spec,
            *counts,
            Verification.ON_DEVICE,
            bound,
            reason,
        ),
        alternatives=choices[1:],
        blocking=blocking,
    )
    program = engine.compile(plan)
    if program is None:
        return None
    nbytes = program.nbytes(p.batch, p.m, p.n) if p.multiplications else 0
    return (
        None
        if nbytes > workspace
        else replace(plan, blocking=replace(blocking, workspace=nbytes))
    )


@lru_cache(maxsize=256)
def chosen_native(
    native: Native, problem: Problem, target: Target, engine: Engine
) -> Plan:
    """The plan of a native product that was chosen, with what spoke against other
    schemes.
    """
    why = f"no scheme is known to be quicker on engine {engine.name!r}"
    if problem.fmt is not FP64:
        why = f"residues are not considered for {problem.dtype}"
        if engine.costs is not None and target.level is FP32:
            own, others = (
                engine.costs.word_seconds(problem),
                engine.costs.native_seconds(problem),
            )
            why = f"words of {1e3 * own:.3g} ms, against {1e3 * others:.3g} ms, are not quicker by a third"
            if _WORDS_MARGIN * own <= others:
                why = "words would exceed this bound or the workspace"
    elif engine.costs is not None:
        expected, own = _expected_cost(problem, target, engine.costs)
        others = engine.costs.native_seconds(problem)
        why = f"{expected} residue products of {1e3 * own:.3g} ms in all, against {1e3 * others:.3g} ms, are not "
        why += "quicker by a tenth"
    plan = native.plan(problem, target, engine, None, None)
    return replace(plan, reason=f"{plan.reason}; {why}")


def _residues_pay(problem: Problem, target: Target, engine: Engine) -> bool:
    """Whether residues are expected to be quicker by a tenth than the native product;
    operands are not seen yet.
    """
    if engine.costs is None or problem.fmt is not FP64:
        return False
    return _expected_cost(problem, target, engine.costs)[
        1
    ] < 0.9 * engine.costs.native_seconds(problem)


def _expected_cost(problem: Problem, target: Target, costs: Costs) -> tuple[int, float]:
    """Residue products of operands without wide exponents, and their seconds."""
    expected = Ozaki2(scaling="fast").expected_products(problem, target)
    return expected, costs.residue_seconds(problem, expected, True)
