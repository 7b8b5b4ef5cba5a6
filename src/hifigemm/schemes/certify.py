"""The certificate of the exact schemes: which entries keep the promise of their plan.

The promise is |C - AB| <= r |A||B| + u |AB|, or r |AB| + u |AB| for a relative error.
A scheme bounds what it left out by E = 2**err, in units of 2**(e_i + f_j), the largest
possible |A_ih||B_hj|. The promise holds where E <= r |A||B|, or E <= r |AB|. There are
two lower bounds: |A||B| >= |AB| >= |V| - E, where V is the exact sum that was rounded,
and an INT8 product of magnitudes rounded down, which says nothing of |AB|. All of this
is integer arithmetic: the same entries are certified on every engine.
"""

from __future__ import annotations

import math

import numpy as np

from hifigemm.model.engine import Engine
from hifigemm.model.plan import Plan, Split
from hifigemm.numerics.bits import LEAST, Array, power_of_two, scale_by_power
from hifigemm.numerics.estimates import MAGNITUDE_BITS_DOWN, magnitudes_down, nonzeros
from hifigemm.numerics.rounding import Rounded
from hifigemm.schemes.scheme import exact_int8


def bits_of_inverse(r: float) -> int:
    """Smallest x with 2**x >= 1/r, for r > 0; 0 for inf."""
    return 1 - math.frexp(r)[1] if math.isfinite(r) else 0


def facts(plan: Plan, x: Array, exponent: Array) -> dict[str, Array]:
    """Facts of an operand that `certified_entries` needs, one to nine bytes an entry.

    x is float64 with |x| < 2**exponent. "nonzero" is 1 where x is not 0, "magnitude"
    the scaled |x|, "low" its first bits, rounded down.
    """
    if math.isinf(plan.target.r) and not plan.target.states_bound:
        return {}
    facts_of_x = {"nonzero": nonzeros(x)}
    if math.isinf(plan.target.r):
        facts_of_x["magnitude"] = scale_by_power(np.abs(x), -exponent)
    elif not plan.target.by_entry:
        facts_of_x["low"] = magnitudes_down(x, exponent)
    return facts_of_x


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
    """True for entries that keep the promise of the plan; the bound on error / |A||B|.

    Nothing was left out of `exact` entries, and at most 2**err 2**(e_i + f_j) of the
    others. The integers behind `rounded` are in units of 2**-lowest 2**(e_i + f_j).
    """
    certified = np.broadcast_to(exact, rounded.values.shape).copy()
    if certified.all():
        return certified, 0.0

    # Nothing is promised: all entries pass, and the bound is worked out if it is to be
    # stated.
    if math.isinf(plan.target.r):
        bound = math.inf
        if plan.target.states_bound:
            error = power_of_two(np.maximum(err, -1022))
            bounds = ratios(error, left, right, engine)
            bound = float(np.max(bounds, where=~certified, initial=0.0))
        return np.ones_like(certified), bound

    # A correctly rounded entry keeps any promise. So no target escalates more entries
    # than correct rounding does.
    certified |= rounded.certain
    if not plan.target.correct:
        # |V| - E is large enough.
        inverse = bits_of_inverse(plan.target.r)
        needed = err + max(inverse, 0) + 1
        certified |= (rounded.magnitude >= 0) & (rounded.magnitude - lowest >= needed)

        # |A||B| is large enough, by the INT8 product.
        if plan.target.relative is None and not certified.all():
            largest = 2**MAGNITUDE_BITS_DOWN - 1
            low_a, low_b = left.facts["low"], right.facts["low"]
            low = exact_int8(engine, low_a, low_b, largest, largest)
            needed = np.clip(err + inverse + 2 * MAGNITUDE_BITS_DOWN, 0, 62)
            certified |= low >= np.left_shift(np.int64(1), needed)

        # An infinite entry keeps the promise only if the exact value rounds to infinity
        # too.
        certified &= exact | rounded.certain | np.isfinite(rounded.values)

    # A sum of zeros is zero.
    if (~certified & (rounded.magnitude < 0)).any():
        certified |= term_counts(left, right, engine) == 0
    return certified, plan.target.r


def term_counts(left: Split, right: Split, engine: Engine) -> Array:
    """Number of terms of each sum that are not zero."""
    return exact_int8(engine, left.facts["nonzero"], right.facts["nonzero"], 1, 1)


def magnitude_sums(left: Split, right: Split, engine: Engine) -> Array:
    """Lower bounds of |A||B|: a float64 product less its rounding errors and underflow.

    There are k roundings of the sum, one of the factor and one of the difference, and
    (1 + u)**(k + 2) (1 - (k + 2) u) <= 1. Where a magnitude or a product was rounded to
    a multiple of 2**-1074, the product is too large by 2**-1074 at most.
    """
    a, b = left.facts["magnitude"], right.facts["magnitude"]
    k = a.shape[2]
    return engine.native_product(a, b) * (1.0 - (k + 2) * 2.0**-53) - k * LEAST


def magnitude_sums_up(left: Split, right: Split, engine: Engine) -> Array:
    """Upper bounds of |A||B|, with room for the roundings of the factor and of one use."""
    a, b = left.facts["magnitude"], right.facts["magnitude"]
    k = a.shape[2]
    return engine.native_product(a, b) * (1.0 + (2 * k + 8) * 2.0**-53) + k * LEAST


def ratios(error: Array, left: Split, right: Split, engine: Engine) -> Array:
    """Upper bounds of error / |A||B|, entry by entry.

    They are 0 where all terms of a sum are zero, inf where |A||B| may be zero.
    """
    sums = magnitude_sums(left, right, engine)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        bounds = np.where((sums > 0) & np.isfinite(sums), error / sums, np.inf)
    if np.isinf(bounds).any():
        bounds[term_counts(left, right, engine) == 0] = 0.0
    return bounds
