"""How many moduli do the operands ask for? Two estimates of |A||B| from below, against
what is needed in fact.

    python -m experiments.estimates [--n 256] [--device cuda] [--output results/estimates.csv]

Fast scaling with moduli of product P errs by at most (||A_i|| sum|B_j| + ||B_j||
sum|A_i|) / sqrt(P / 2) in entry (i, j), so it takes a lower bound of (|A||B|)_ij to say
how many moduli keep r |A||B|:

- magnitudes: an INT8 product of magnitudes rounded down to 7 bits
  (hifigemm.numerics.error_ratio), which the library takes: 2 m n k operations of the
  INT8 unit;
- ESC: the exponent span capacity of [SAB26], 2**max_q max(max A_iq + min B_qj, min
  A_iq + max B_qj) with the largest and smallest exponents of blocks q of k: a product
  in the (max, +) algebra, 4 m n k / b operations outside the matrix unit for blocks of
  b. With b = 1 it is the largest term but for its significands. A zero has the exponent
  -inf;
- BF16 magnitudes: a product of magnitudes truncated to BF16, of the range of FP32, with
  the rounding of its sums taken off: 2 m n k operations at half the rate of INT8. Its
  sums depend on the order, so that two engines may disagree.

"needed" is the smallest count with which all of a sample of entries keeps r, by an
exact judge. "W bits" is the rule of [SAB26]: as many moduli as hold all products of
W = 53 + span + 1 bits. Families: experiments/grading.py.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hifigemm as hg
from experiments.grading import FAMILIES, make_pair
from hifigemm.base.formats import FP64
from hifigemm.engines import engine_for
from hifigemm.model.accuracy import level
from hifigemm.numerics.bits import scale_by_power
from hifigemm.numerics.error_ratio import error_ratio
from hifigemm.numerics.residues import MAX_MODULI, count_for_range
from hifigemm.schemes.scheme import int8_product
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.environment import write_csv

SEED = 9
SAMPLE = 64
BLOCKS = (1, 16, 128)
_LOWEST = -5000
"""The exponent of a zero: sums of two are below all that there are."""


def exponents(x: Any) -> Any:
    """e with 2**e <= |x| < 2**(e + 1); `_LOWEST` for zeros."""
    return np.where(x == 0, _LOWEST, np.frexp(x)[1].astype(np.int64) - 1)


def in_blocks(e: Any, axis: int, block: int, largest: bool) -> Any:
    """Largest or smallest exponents of blocks along an axis; k a multiple of the
    block.
    """
    shape = (e.shape[0], -1, block) if axis == 1 else (-1, block, e.shape[1])
    e = e.reshape(shape)
    along = 2 if axis == 1 else 1
    return e.max(axis=along) if largest else e.min(axis=along)


def largest_terms(a: Any, b: Any, block: int) -> Any:
    """Exponents z with 2**z <= the largest |A_ih||B_hj|, from the exponents of
    blocks.
    """
    e, f = exponents(a), exponents(b)
    high_a, low_a = (in_blocks(e, 1, block, x) for x in (True, False))
    high_b, low_b = (in_blocks(f, 0, block, x) for x in (True, False))
    found = None
    for q in range(high_a.shape[1]):
        terms = [high_a[:, q : q + 1] + low_b[q : q + 1]]
        if block > 1:
            terms.append(low_a[:, q : q + 1] + high_b[q : q + 1])
        for term in terms:
            found = term if found is None else np.maximum(found, term)
    return found


def scaled(a: Any, b: Any) -> tuple[Any, Any]:
    """Magnitudes of rows and columns below 2, by powers of two."""
    e, f = (exponents(x).max(axis=axis, keepdims=True) for x, axis in ((a, 1), (b, 0)))
    return tuple(
        scale_by_power(np.abs(x), -np.maximum(v, -1100)) for x, v in ((a, e), (b, f))
    )


def errors_above(x: Any, y: Any) -> Any:
    """||A_i|| sum|B_j| + ||B_j|| sum|A_i| of scaled magnitudes."""
    norms = [
        np.sqrt(np.square(v).sum(axis=axis, keepdims=True))
        for v, axis in ((x, 1), (y, 0))
    ]
    sums = [v.sum(axis=axis, keepdims=True) for v, axis in ((x, 1), (y, 0))]
    return norms[0] * sums[1] + norms[1] * sums[0]


def esc_ratio(a: Any, b: Any, block: int) -> float:
    """As `error_ratio`, with |A||B| from the exponents of blocks; inf where a block of
    zeros hides all terms.
    """
    e, f = (exponents(x).max(axis=axis, keepdims=True) for x, axis in ((a, 1), (b, 0)))
    span = e + f - largest_terms(a, b, block)
    if float(span.max()) > 1000:
        return math.inf
    return float(scale_by_power(errors_above(*scaled(a, b)), span).max())


def bf16_ratio(engine: Any, a: Any, b: Any) -> float:
    """As `error_ratio`, with |A||B| from a product of BF16 magnitudes; inf where it is
    not shown to be positive.
    """
    x, y = scaled(a, b)
    words = [
        np.ascontiguousarray(v, np.float32, like=v).view(np.int32) >> 16 << 16
        for v in (x, y)
    ]
    left, right = (v.view(np.float32)[None] for v in words)
    below = engine.native_product(left, right)[0].astype(np.float64) * (
        1 - a.shape[1] * 2.0**-23
    )
    with np.errstate(divide="ignore"):
        return float(
            (errors_above(x, y) / np.maximum(below - a.shape[1] * 2.0**-126, 0.0)).max()
        )


def span_of(a: Any, b: Any, block: int) -> int:
    """The exponent span capacity: how far the largest term may lie below the product of
    the largest entries.
    """
    e, f = (exponents(x).max(axis=axis, keepdims=True) for x, axis in ((a, 1), (b, 0)))
    return int((e + f - largest_terms(a, b, block)).max())


def moduli_for(ratio: float, r: float) -> int | None:
    """Fewest moduli with sqrt(P / 2) >= ratio / r; None beyond the largest set."""
    wanted = ratio * (1 + 2.0**-19) / r
    return (
        count_for_range(math.ceil(wanted) ** 2, False)
        if math.isfinite(wanted)
        else None
    )


def needed(
    a: np.ndarray, b: np.ndarray, r: float, exact: ExactProduct, at: np.ndarray
) -> int | None:
    """Fewest moduli that keep r for a sample of entries, by bisection."""

    def keeps(count: int) -> bool:
        c = hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=count, scaling="fast"))
        return bool(exact.meets(c[np.ix_(at, at)], r).all())

    if not keeps(MAX_MODULI):
        return None
    low, high = 1, MAX_MODULI
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The value, and the shortest of five times; all calls end with a number on the
    host.
    """
    value, times = call(), []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return value, min(times)


class Estimate(NamedTuple):
    """A function (engine, a, b) with what it costs: operations outside and inside the
    matrix unit, bytes moved.

    Bytes are those of the operands, read once, and of words or exponents, written and
    read; the result is reduced on the way.
    """

    ratio: Callable[[Any, Any, Any], float]
    operations: int
    matrix_operations: int
    moved: int


def estimates(n: int) -> dict[str, Estimate]:
    """By name, for n x n operands."""

    def magnitudes(engine: Any, a: Any, b: Any) -> float:
        return engine.override(error_ratio)(
            a[None], b[None], int8_product(engine), engine.memory.block_entries, 2**22
        )

    read = 16 * n**2
    found = {"magnitudes": Estimate(magnitudes, 0, 2 * n**3, read + 4 * n**2)}
    for block in BLOCKS:

        def esc(engine: Any, a: Any, b: Any, block: int = block) -> float:
            return esc_ratio(a, b, block)

        kinds = 1 if block == 1 else 2
        found[f"ESC, blocks of {block}"] = Estimate(
            esc, 2 * kinds * n**3 // block, 0, read + 8 * kinds * n**2 // block
        )
    found["BF16 magnitudes"] = Estimate(bf16_ratio, 0, 2 * n**3, read + 8 * n**2)
    return found


def operands_on(device: str, a: np.ndarray, b: np.ndarray) -> tuple[Any, Any, Any]:
    """The engine of a device, and arrays with NumPy's interface there."""
    if device == "cpu":
        return engine_for(None, "numpy", "cpu"), a, b
    import torch

    from hifigemm.engines.device_array import wrap

    x, y = (torch.from_numpy(v).to(device) for v in (a, b))
    return engine_for(None, "torch", str(x.device)), wrap(x), wrap(y)


def measure(family: str, n: int, device: str) -> list[dict[str, Any]]:
    """One line for each target and each estimate."""
    a, b = make_pair(family, n, SEED)
    at = np.sort(np.random.default_rng(SEED).choice(n, min(n, SAMPLE), replace=False))
    exact = ExactProduct(a[at], b[:, at])
    engine, x, y = operands_on(device, a, b)
    found = [
        (name, *timed(lambda f=f: f.ratio(engine, x, y)), f)
        for name, f in estimates(n).items()
    ]
    rows = []
    for target, r in (("fp64", level(FP64, n)), ("1e-13", 1e-13)):
        least = needed(a, b, r, exact, at)
        common = {"family": family, "n": n, "target": target, "needed": least}
        for name, ratio, seconds, estimate in found:
            row = common | {
                "estimate": name,
                "num_moduli": moduli_for(ratio, r),
                "log2_ratio": math.log2(ratio),
            }
            costs = {
                "operations": estimate.operations,
                "matrix_operations": estimate.matrix_operations,
            }
            rows.append(row | {"seconds": seconds, **costs, "bytes": estimate.moved})
        if target == "fp64":
            bits = FP64.t + span_of(a, b, 1) + 1
            count = count_for_range(n << (2 * bits), False)
            rows.append(common | {"estimate": "ESC, W bits", "num_moduli": count})
    return rows


def main() -> None:
    """Estimate, judge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--n", type=int, default=256, help="a multiple of 128")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--output", default="results/estimates.csv")
    options = parser.parse_args()
    rows = []
    for family in FAMILIES:
        rows += measure(family, options.n, options.device)
        for row in rows[-2 * len(estimates(options.n)) - 1 :]:
            print(
                *(
                    row.get(key)
                    for key in (
                        "family",
                        "target",
                        "needed",
                        "estimate",
                        "num_moduli",
                        "seconds",
                    )
                )
            )
    write_csv(options.output, rows, seed=SEED, device=options.device, sample=SAMPLE)


if __name__ == "__main__":
    main()
