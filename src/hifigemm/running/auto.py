"""scheme="auto": the cheapest scheme that keeps the target.

The choice depends on the problem and on the cost model of the engine, never on a
timing. Three functions give plans in which it depends on the operands as well:
`on_device` and `words_by_exponents`, where the device decides while it multiplies, and
`by_operands`, which needs evidence of the operands first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hifigemm.base.formats import FP16, FP32, FP64, Format
from hifigemm.engines import core
from hifigemm.model.accuracy import CORRECT, Target
from hifigemm.model.engine import Costs, Engine, has_kernels
from hifigemm.model.plan import Blocking, Evidence, Outliers, Plan, Verification
from hifigemm.model.problem import Problem
from hifigemm.schemes.native import Native
from hifigemm.schemes.scheme import Scheme


class Need(NamedTuple):
    """The evidence that a scheme needs of the operands for a target, before there can be
    a plan: what `Scheme.evidence` gives.
    """

    scheme: Scheme
    target: Target


EvidenceByNeed = Mapping[Need, Evidence | None]
"""The evidence that was asked for so far; None where the operands gave none."""

_SHORT = 1e-4
"""Shorter native products, in seconds, are replaced by words of one format only: a
choice that is not taken costs two launches, a sixth of the time at n = 1024.
"""
_WORDS_MARGIN = 1.5
"""Words are to be quicker by a third, because only the device sees if the first choice
is taken.
"""
_MORE_MODULI = 2
"""Larger counts that the device may go on to; data with phi = 1 need one or two moduli
more than data of one size.
"""
_FLOAT64_STEPS = 20_000.0
"""Nanoseconds that conversions and looks take beside a float64 product of float32
operands, less what the core takes beside its sums, at its rate for large products: on a
CPU with AVX2 both take as long at n = 60.
"""
_CERTIFICATE = 9e-6
"""Seconds of the launches behind a native product that a number asks for: three."""
_RESIDUES_MARGIN = 0.9
"""Residues are to take at most this share of the time of a native product."""


def scheme_for(problem: Problem, target: Target, engine: Engine) -> Scheme:
    """The cheapest scheme that keeps the target, chosen without reading the operands.

    0. A target by norms has one scheme, whatever the engine and the shape are.
    1. The native product, if its worst case is good enough or the level of its own
       format was asked for. Residues take its place where the cost model of the engine
       says that they are quicker; for a number, sums in words do so for small products.
    2. Residues, where the engine has kernels for them.
    3. The native product in float64 for float32 operands, which is one product too,
       unless the compiled core rounds a small product once in less time.
    4. Double-double sums on a CPU: five or six products for correct rounding, where
       slices take as many for the weakest target that comes here.
    5. Slices on a GPU without Triton.
    """
    if target.normwise is not None:
        from hifigemm.schemes.ozaki2 import Ozaki2

        return Ozaki2(scaling="largest")
    native = Native()
    keeps_native = native.keeps(problem, target)
    if keeps_native and _sums_pay(problem, target, engine):
        from hifigemm.schemes.double_double import DoubleDouble

        return DoubleDouble()
    if keeps_native and not _residues_pay(problem, target, engine):
        return native
    if keeps_native or has_kernels(engine):
        from hifigemm.schemes.ozaki2 import Ozaki2

        return Ozaki2(scaling="fast")
    from hifigemm.schemes.double_double import DoubleDouble

    has_sums = DoubleDouble.is_for(engine)
    in_float64 = Native(product="fp64")
    if in_float64.keeps(problem, target):
        nanoseconds = core.nanoseconds(problem) if has_sums else math.inf
        return DoubleDouble() if nanoseconds <= _FLOAT64_STEPS else in_float64
    if has_sums:
        return DoubleDouble()
    from hifigemm.schemes.ozaki1 import Ozaki1

    return Ozaki1(product="fp64")


def on_device(
    scheme: Scheme,
    problem: Problem,
    target: Target,
    engine: Engine,
    asked: Scheme | None,
) -> Plan | None:
    """The plan in which the device chooses by the error ratio of the operands.

    It chooses between numbers of moduli and the native product. So there is a plan only
    for residues without a forced count, and where the worst case of a native product is
    good enough, so that the host never has to know what was taken; None otherwise.
    """
    if engine.costs is None:
        return None
    from hifigemm.schemes.ozaki2 import Ozaki2

    if not isinstance(scheme, Ozaki2) or scheme.explicit or scheme.scaling != "fast":
        return None
    native = Native()
    if problem.fmt is not FP64 or not native.keeps(problem, target):
        return None

    first = scheme.plan(problem, target, engine, None, asked)
    counts = _counts_on_device(
        first, engine.costs, engine.costs.native_seconds(problem)
    )
    choices = f"{_listed(counts)} moduli"
    more_moduli = [replace(scheme, num_moduli=count) for count in counts[1:]]
    if not problem.mirror and problem.k > 1:
        # A product of a matrix and its transpose is balanced along k as it is.
        # Idle launches cost time, so that one count is tried with scaling along k.
        choices += f", {counts[0]} with powers of two along k,"
        inner = replace(scheme, num_moduli=counts[0], scaling="inner")
        more_moduli.append(inner)
    worst = native.bound(problem)
    reason = (
        f"the device decides by the operands between {choices} and an FP64 product"
        f", at worst {worst:.3g} |A||B|{target.accepts(worst)}, which over- and underflows as a library's"
    )
    return replace(
        first,
        verification=Verification.ON_DEVICE,
        bound=max(target.r, worst),
        reason=reason,
        alternatives=(*more_moduli, native),
    )


def _listed(counts: list[int]) -> str:
    """Counts as the reason of a plan lists them."""
    return " or ".join(map(str, counts))


def _counts_on_device(first: Plan, costs: Costs, last_seconds: float) -> list[int]:
    """Numbers of moduli between which the device chooses, from few to many.

    The first is that of the plan `first`. Each larger one is expected to take less time
    than `last_seconds`, that of the choice after all of them.
    """
    counts = [first.scheme.count]
    for more in range(1, _MORE_MODULI + 1):
        products = first.scheme.expected_products(first.problem, first.target, more)
        if costs.residue_seconds(first.problem, products, True) < last_seconds:
            counts.append(counts[0] + more)
    return counts


def by_operands(
    problem: Problem,
    target: Target,
    engine: Engine,
    costs: Costs,
    evidence_by_need: EvidenceByNeed | None,
    ratio: float | None = None,
) -> Plan | Need:
    """The cheapest plan of residues for a target that a native product may miss.

    Moduli that hold the exact product keep every target, at the price of correct
    rounding. Fewer moduli keep a number if the error ratio is small: the device works
    it out beside the product, and goes on to the exact product if it is too large. If
    no moduli hold the exact product, a number is tried by its ratio alone; other
    operands take the steps of correct rounding, and their entries are certified for the
    target. So no target costs more than a stronger one.

    Without `evidence_by_need` the operands are not read. `ratio` is the error ratio,
    once a device has worked it out.
    """
    from hifigemm.schemes.ozaki2 import Ozaki2

    residues = Ozaki2(scaling="fast")
    first = residues.plan(problem, target, engine, None, None)
    sums = _sums(problem, target, engine)
    sum_seconds = math.inf if sums is None else costs.sum_seconds(problem)
    first_products = residues.expected_products(problem, target)
    if sum_seconds <= costs.residue_seconds(problem, first_products, True):
        # Sums keep every target for any operands, without a look at them.
        return sums or first
    if evidence_by_need is None and ratio is None:
        return first

    # The plan of the exact product, if moduli hold it. Correct rounding and relative
    # errors have no cheaper one.
    evidence = None
    if evidence_by_need is not None:
        need = Need(residues, CORRECT)
        if need not in evidence_by_need:
            return need
        evidence = evidence_by_need[need]
    exact: Plan | None = None
    if evidence is not None and evidence.required_bits is not None:
        exact = residues.plan(problem, target, engine, evidence, None)
        exact_products = math.ceil(_num_products(exact))
        if sum_seconds < costs.residue_seconds(problem, exact_products, False):
            exact = None
    if target.by_entry:
        return exact or _by_sums(sums, evidence, problem, target, engine)

    # The number of moduli for a known ratio, or that of the exact product if it is
    # smaller.
    if ratio is not None:
        plans = [] if exact is None else [exact]
        if residues.count_for(problem, target, ratio) is not None:
            evidence = Evidence(error_ratio=ratio)
            plans.append(residues.plan(problem, target, engine, evidence, None))
        plans = [
            plan
            for plan in plans
            if costs.residue_seconds(problem, math.ceil(_num_products(plan)), False)
            < sum_seconds
        ]
        if not plans:
            return _by_sums(sums, evidence, problem, target, engine)
        return min(plans, key=_num_products)

    # The number of moduli for operands without wide exponents, unless the exact product
    # is expected to be quicker, or leaves vectors to sums. A product that is its own
    # mirror image is decided upon as a whole, so that it has the bits of the whole one.
    if exact is None:
        return first
    if exact.evidence is not None and exact.evidence.separate is not None:
        return exact
    whole = replace(problem, mirror="")
    exact_products = math.ceil(_num_products(exact))
    exact_seconds = costs.residue_seconds(whole, exact_products, False)
    if costs.residue_seconds(whole, first.num_products, True) >= exact_seconds:
        return exact

    # The device may go on to the exact product. A product with outliers is so large
    # that it costs little if the host waits for the error ratio instead.
    if _outliers(exact) is not None:
        return first
    first_of_whole = replace(first, problem=whole)
    counts = _counts_on_device(first_of_whole, costs, exact_seconds)
    choices = _listed(counts)
    scaling = exact.scheme.scaling
    schemes = [replace(residues, num_moduli=count, scaling=scaling) for count in counts]
    return replace(
        first,
        scheme=schemes[0],
        verification=Verification.ON_DEVICE,
        reason=f"the device decides by the operands between {choices} moduli for {target} "
        f"in every entry and those of correct rounding: {exact.reason}",
        alternatives=(*schemes[1:], exact.scheme),
        evidence=exact.evidence,
    )


def _sums(problem: Problem, target: Target, engine: Engine) -> Plan | None:
    """The plan of sums in words; None where no kernel adds them."""
    from hifigemm.schemes.double_double import DoubleDouble

    scheme = DoubleDouble()
    if not scheme.adds_terms(problem, engine):
        return None
    return scheme.plan(problem, target, engine, None, None)


def _by_sums(
    sums: Plan | None,
    evidence: Evidence | None,
    problem: Problem,
    target: Target,
    engine: Engine,
) -> Plan:
    """Sums in words, or the steps of correct rounding where there are none.

    The plan keeps the evidence, as other operands may take fewer residues.
    """
    if sums is None:
        return _in_steps(problem, target, engine)
    return replace(sums, evidence=evidence or Evidence())


def _in_steps(problem: Problem, target: Target, engine: Engine) -> Plan:
    """The steps of correct rounding, with entries that are certified for the target."""
    from hifigemm.schemes.ozaki2 import Ozaki2

    plan = Ozaki2(scaling="fast").plan(problem, CORRECT, engine, Evidence(), None)
    if target.correct:
        return plan
    reason = f"no number of moduli is known to keep {target}; {plan.reason} to begin with, and entries are certified"
    return replace(plan, target=target, bound=target.r, reason=reason)


def _outliers(plan: Plan) -> Outliers | None:
    """The rows and columns that a plan sets apart."""
    return None if plan.evidence is None else plan.evidence.outliers


def _num_products(plan: Plan) -> float:
    """Products that a plan makes; products of outliers count by their share."""
    outliers = _outliers(plan)
    if outliers is None:
        return plan.num_products
    return outliers.num_products(plan.problem, plan.num_products)


@lru_cache
def _choices_of_words(narrow: Format | None) -> tuple[Scheme, ...]:
    """Schemes of words by `Problem.narrow`: quicker words first, then those that hold
    more exponents. TF32 holds all of FP16's.
    """
    from hifigemm.schemes.corrected import Corrected
    from hifigemm.schemes.multiword import Multiword

    if narrow is None:
        return Corrected("fp16"), Corrected("tf32"), Native()

    # Operands of one word: products are exact, sums leave the tensor core after two
    # instructions. For positive entries and k = 1024 to 4096 the mean error on an H200
    # is 0.9e-7 to 1.4e-7 |A||B|, after four instructions 1.8e-7 to 1.9e-7, and the time
    # differs by a twentieth.
    if narrow is FP16:
        fp16 = Multiword("fp16", 1, 1, accumulate="blocked", block=32)
        return fp16, Multiword("tf32", 1, 1, accumulate="blocked", block=16)
    return Multiword("bf16", 1, 1, accumulate="blocked", block=32), Native()


def words_by_exponents(
    problem: Problem,
    target: Target,
    engine: Engine,
    workspace: int,
    passed_plan: Plan | None = None,
) -> Plan | None:
    """The plan in which the device chooses the format of words, for float32 results.

    The exponents of the operands decide on the device, so no product waits for them.
    The bound is that of a native product at most. None unless the level of float32 was
    asked for and words are expected to be quicker by a third; this margin covers
    launches that turn out idle. A `passed_plan`, which was made for another problem,
    takes the place of the expected times, and its choices those for its operands.
    """
    costs = engine.costs
    if costs is None or target.level is not FP32 or problem.fmt is not FP32:
        return None
    choices = _choices_of_words(problem.narrow)
    if passed_plan is None:
        native_seconds = costs.native_seconds(problem)
        if _WORDS_MARGIN * costs.word_seconds(problem) > native_seconds:
            return None
        if native_seconds < _SHORT:
            choices = choices[0], choices[-1]
    elif passed_plan.problem.narrow is problem.narrow:
        choices = passed_plan.scheme, *passed_plan.alternatives
    return _words_plan(problem, target, engine, workspace, choices)


@lru_cache(maxsize=256)
def _words_plan(
    problem: Problem,
    target: Target,
    engine: Engine,
    workspace: int,
    choices: tuple[Scheme, ...],
) -> Plan | None:
    """The plan of these choices in one block.

    None if the engine has no kernels for it, or if it exceeds the workspace.
    """
    from hifigemm.schemes.word_scheme import WordScheme

    p = problem
    word_schemes = [scheme for scheme in choices if isinstance(scheme, WordScheme)]
    first = word_schemes[0]
    if p.k == 0 or first.product not in engine.products:
        return None

    # A long k of few entries is cut into spans, the same for all words.
    unit = first.unit_on(engine, p)
    span = first.span_length(p, unit)
    choices = tuple(_with_spans(scheme, span > 0) for scheme in choices)

    # The choices, the last of which may be the native product.
    names = [scheme.product.upper() for scheme in word_schemes]
    if len(word_schemes) < len(choices):
        names.append("FP32 sums")
    worst = Native().bound(p)
    reason = f"{', else '.join(names)} by the exponents of the operands, at worst {worst:.3g} |A||B|"
    reason += target.accepts(worst)

    blocking = Blocking((p.batch, p.m, p.n))
    plan = Plan(
        problem=p,
        asked=None,
        scheme=choices[0],
        target=target,
        engine=engine.name,
        product=engine.products[first.product],
        num_products=first.count_products(unit, p),
        k_block=first.block_length(unit, p.terms),
        verification=Verification.ON_DEVICE,
        bound=max(target.r, worst),
        reason=reason,
        alternatives=choices[1:],
        blocking=blocking,
        k_span=span,
    )

    lowering = engine.lowering(plan)
    if lowering is None:
        return None
    nbytes = lowering.nbytes(p.batch, p.m, p.n) if p.multiplications else 0
    if nbytes > workspace:
        return None
    return replace(plan, blocking=replace(blocking, workspace=nbytes))


def _with_spans(scheme: Scheme, has_spans: bool) -> Scheme:
    """A scheme of words with or without spans of k; others as they are."""
    from hifigemm.schemes.word_scheme import WordScheme

    if not isinstance(scheme, WordScheme):
        return scheme
    return replace(scheme, **{"spans": has_spans})


@lru_cache(maxsize=256)
def chosen_native(
    native: Scheme, problem: Problem, target: Target, engine: Engine
) -> Plan:
    """The plan of a native product, with the reason why no other scheme was chosen."""
    costs = engine.costs
    why = f"no scheme is known to be quicker on engine {engine.name!r}"
    if problem.fmt is not FP64:
        why = f"residues are not considered for {problem.dtype}"
        if costs is not None and target.level is FP32:
            seconds = costs.word_seconds(problem)
            native_seconds = costs.native_seconds(problem)
            why = (
                f"words of {1e3 * seconds:.3g} ms, against {1e3 * native_seconds:.3g} ms, "
                "are not quicker by a third"
            )
            if _WORDS_MARGIN * seconds <= native_seconds:
                why = "words would exceed this bound or the workspace"
    elif costs is not None:
        num_products, seconds = _expected_cost(problem, target, costs)
        native_seconds = costs.native_seconds(problem)
        why = (
            f"{num_products} residue products of {1e3 * seconds:.3g} ms in all, "
            f"against {1e3 * native_seconds:.3g} ms, are not quicker by a tenth"
        )
    plan = native.plan(problem, target, engine, None, None)
    return replace(plan, reason=f"{plan.reason}; {why}")


def _sums_pay(problem: Problem, target: Target, engine: Engine) -> bool:
    """True if sums in words, which keep every target, are expected to be quicker than a
    native product whose entries are certified for a number, and than residues.
    """
    costs = engine.costs
    if costs is None or target.level is not None:
        return False
    from hifigemm.schemes.double_double import DoubleDouble

    if not DoubleDouble().adds_terms(problem, engine):
        return False
    seconds = costs.sum_seconds(problem)
    _, of_residues = _expected_cost(problem, target, costs)
    certified = costs.native_seconds(problem) + _CERTIFICATE
    return seconds < certified and seconds <= of_residues


def _residues_pay(problem: Problem, target: Target, engine: Engine) -> bool:
    """True if residues are expected to be quicker by a tenth than the native product.

    The operands are not seen yet.
    """
    if engine.costs is None or problem.fmt is not FP64:
        return False
    _, seconds = _expected_cost(problem, target, engine.costs)
    return seconds < _RESIDUES_MARGIN * engine.costs.native_seconds(problem)


def _expected_cost(problem: Problem, target: Target, costs: Costs) -> tuple[int, float]:
    """Residue products for operands without wide exponents, and their seconds."""
    from hifigemm.schemes.ozaki2 import Ozaki2

    num_products = Ozaki2(scaling="fast").expected_products(problem, target)
    return num_products, costs.residue_seconds(problem, num_products, True)
