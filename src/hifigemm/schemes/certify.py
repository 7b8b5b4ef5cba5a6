"""Is |C - AB| <= r |A||B| + u |AB|, or r |AB| + u |AB|, kept, entry by entry? The
certificate of the exact schemes.

A scheme bounds what it left out by E = 2**err (relative to 2**(e_i + f_j), the largest
|A_ih||B_hj| possible). The promise holds where E <= r (|A||B|), and |A||B| is bounded
below by |AB| >= |V| - E, V the exact sum that was rounded, and by an INT8 product of
magnitudes rounded down, which a relative promise has no use for. All of this is integer
arithmetic: the same entries are certified on every engine.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.engine import Engine
from hifigemm.numerics.bits import LEAST, Array, power_of_two, scale_by_power
from hifigemm.numerics.estimates import MAGNITUDE_BITS_DOWN, magnitudes_down, nonzeros
from hifigemm.numerics.rounding import Rounded
from hifigemm.plan import Plan, Split
from hifigemm.schemes.scheme import exact_int8


def bits_of_inverse(r: float) -> int:
    """Smallest x with 2**x >= 1/r, for r > 0; 0 for inf."""
    return 1 - math.frexp(r)[1] if math.isfinite(r) else 0


def facts(plan: Plan, x: Array, exponent: Array) -> dict[str, Array]:
    """What `certified_entries` needs of an operand (float64, |x| < 2**exponent): one to
    nine bytes an entry.
    """
    if math.isinf(plan.target.r) and not plan.target.states_bound:
        return {}
    found = {"nonzero": nonzeros(x)}
    if math.isinf(plan.target.r):
        found["magnitude"] = scale_by_power(np.abs(x), -exponent)
    elif not plan.target.by_entry:
        found["low"] = magnitudes_down(x, exponent)
    return found


def certified_entries(
    plan: Plan,
    left: Split,
    right: Split,
    engine: Engine,
    rounded: Rounded,
    exact: Array,
    err: int | Array,
    lowest: int | Array,
) -> tuple[Array, float]:
    """Which entries keep the promise of the plan, and the bound on error / |A||B|.

    Nothing was left out of `exact` entries, and at most 2**err 2**(e_i + f_j) of the
    others. The integers behind `rounded` are in units of 2**-lowest 2**(e_i + f_j).
    """
    certified = np.broadcast_to(exact, rounded.values.shape).copy()
    if certified.all():
        return certified, 0.0
    if math.isinf(plan.target.r):
        bound = math.inf
        if plan.target.states_bound:
            found = ratios(power_of_two(np.maximum(err, -1022)), left, right, engine)
            bound = float(np.max(found, where=~certified, initial=0.0))
        return np.ones_like(certified), bound
    # What is known to be rounded correctly keeps any promise, so that no target
    # escalates more entries than that one.
    certified |= rounded.certain
    if not plan.target.correct:
        inverse = bits_of_inverse(plan.target.r)
        certified |= (rounded.magnitude >= 0) & (
            rounded.magnitude - lowest >= err + max(inverse, 0) + 1
        )
        if plan.target.relative is None and not certified.all():
            top = 2**MAGNITUDE_BITS_DOWN - 1
            low = exact_int8(engine, left.facts["low"], right.facts["low"], top, top)
            needed = np.clip(err + inverse + 2 * MAGNITUDE_BITS_DOWN, 0, 62)
            certified |= low >= np.left_shift(np.int64(1), needed)
        # What rounds to infinity is promised to lie there only where the exact value
        # rounds there too.
        certified &= exact | rounded.certain | np.isfinite(rounded.values)
    if (~certified & (rounded.magnitude < 0)).any():
        certified |= term_counts(left, right, engine) == 0
    return certified, plan.target.r


def term_counts(left: Split, right: Split, engine: Engine) -> Array:
    """Number of terms of each sum that are not zero."""
    return exact_int8(engine, left.facts["nonzero"], right.facts["nonzero"], 1, 1)


def magnitude_sums(left: Split, right: Split, engine: Engine) -> Array:
    """Lower bounds of the sums of magnitudes, from a float64 product with its rounding
    and underflow taken off.

    k roundings of the sum, one of the factor and one of the difference:
    (1 + u)**(k + 2) (1 - (k + 2) u) <= 1. Where a magnitude or a product was rounded to
    a multiple of 2**-1074, the product is too large by 2**-1074 at most.
    """
    a, b = left.facts["magnitude"], right.facts["magnitude"]
    k = a.shape[2]
    return engine.native_product(a, b) * (1.0 - (k + 2) * 2.0**-53) - k * LEAST


def magnitude_sums_up(left: Split, right: Split, engine: Engine) -> Array:
    """Upper bounds of the same sums, for the roundings of the factor and of what they
    are used for too.
    """
    a, b = left.facts["magnitude"], right.facts["magnitude"]
    k = a.shape[2]
    return engine.native_product(a, b) * (1.0 + (2 * k + 8) * 2.0**-53) + k * LEAST


def ratios(error: Array, left: Split, right: Split, engine: Engine) -> Array:
    """At least error / |A||B| for each entry: 0 where all terms of its sum are zero,
    inf where |A||B| may be zero.
    """
    sums = magnitude_sums(left, right, engine)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = np.where((sums > 0) & np.isfinite(sums), error / sums, np.inf)
    if np.isinf(found).any():
        found[term_counts(left, right, engine) == 0] = 0.0
    return found
