"""How many of the 23 stored bits of an FP32 number do two short words keep? By
enumeration and by sampling.

    python -m experiments.mantissa [--samples 1000000] [--output results/mantissa.csv]

Enumerated: all tails below the first word (2**13 for FP16 and TF32, 2**16 for BF16),
exactly. Sampled: random numbers in [1, 2) split by hifigemm.numerics.words. The low
word is scaled for FP16 (by 2**11) to keep underflow out.

Idea
    Let v have 24 significant bits and hi be v rounded to t bits. What follows depends
    on the last 24 - t bits d of v alone: r = v - hi is d or d - 2**(24-t), in units of
    the last bit of v, and lo is r rounded to t bits. What two words lose is
    e = |r - lo|, and the mantissa length kept is 23 - bit_length(e), so a lost last bit
    counts one and only where it is not zero. The expectation over equally likely tails
    is exact.
Results
    For t = 11 (FP16 without underflow, TF32): 22.75 bits with both words to nearest,
    22.375 with the first truncated, 22.25 with both truncated. [OY22] gives 22.5 for
    truncation.
References
    [OY22] Recovering single precision accuracy from Tensor Cores,
    doi:10.1177/10943420221090256.
"""

from __future__ import annotations

import argparse
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hifigemm.base.formats import FORMATS, Format
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.workshop.environment import write_csv

SEED = 5
SHIFT = {"fp16": 11}
SIGMAS = 3
ROUNDINGS = ("nearest", "zero", "nearest-away")
"""To nearest with ties to even (RN), towards zero (RZ), to nearest with ties away from
zero (RNA).
"""

LENGTH = 23
"""Stored bits of an FP32 significand."""


def tail_errors(t: int, high: str, low: str) -> NDArray[np.int64]:
    """v - hi - lo in units of the last bit of v, for each of the 2**(24-t) tails of a v
    whose bit before is 0.

    A tie of hi after a 1 has the other sign of r and the same error.

    Parameters
    ----------
    t : int
        Significant bits of a word, with the hidden one: 11 for FP16 and TF32, 8 for
        BF16.
    high, low : one of `ROUNDINGS`
        How the first and the second word are rounded.
    """
    tails = np.arange(1 << (LENGTH + 1 - t), dtype=np.int64)
    rest = tails - _round_bits(tails, LENGTH + 1 - t, high)
    dropped = np.maximum(_bit_length(abs(rest)) - t, 0)
    return rest - _round_bits(rest, dropped, low)


def kept_length(error: NDArray[np.int64]) -> NDArray[np.int64]:
    """23 - bit_length(|error|), for errors in units of the last bit."""
    return LENGTH - _bit_length(abs(error))


def length_shares(error: NDArray[np.int64]) -> dict[int, float]:
    """Share of each kept length that occurs."""
    values, counts = np.unique(kept_length(error), return_counts=True)
    return {int(v): float(c / error.size) for v, c in zip(values, counts)}


def expected_length(t: int, high: str, low: str) -> Fraction:
    """Mean of `kept_length` over all tails, exactly."""
    kept = kept_length(tail_errors(t, high, low))
    return Fraction(int(kept.sum()), kept.size)


def tail_rms(t: int, high: str, low: str) -> float:
    """Root mean square of the error in units of the last bit of v."""
    return float(np.sqrt(np.mean(tail_errors(t, high, low).astype(np.float64) ** 2)))


def _bit_length(x: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def _round_bits(x: NDArray[np.int64], dropped: Any, rounding: str) -> NDArray[np.int64]:
    """x rounded to multiples of 2**dropped."""
    unit = np.int64(1) << np.asarray(dropped, np.int64)
    size = abs(x)
    whole, rest = size // unit, size % unit
    if rounding == "nearest":
        whole += (2 * rest > unit) | ((2 * rest == unit) & (whole % 2 == 1))
    elif rounding == "nearest-away":
        whole += (2 * rest >= unit) & (rest > 0)
    elif rounding != "zero":
        raise ValueError(f"rounding {rounding!r} is none of {', '.join(ROUNDINGS)}")
    return np.sign(x) * whole * unit


def sample_errors(fmt: Format, high: str, low: str, samples: int) -> np.ndarray:
    """v - hi - lo in units of the last bit of v."""
    rng = np.random.default_rng([SEED, fmt.t])
    v = np.ldexp(rng.integers(1 << 23, 1 << 24, samples).astype(np.float64), -23)
    rest = v - round_to_format(v, fmt, high)
    scale = 2.0 ** SHIFT.get(fmt.name, 0)
    rest -= round_to_format(rest * scale, fmt, low) / scale
    return np.rint(np.ldexp(rest, 23)).astype(np.int64)


def measure(fmt: Format, high: str, low: str, samples: int) -> dict[str, Any]:
    """One line: enumeration, sample, and the half width of the sample's interval of
    three standard deviations.
    """
    enumerated = tail_errors(fmt.t, high, low)
    kept = kept_length(sample_errors(fmt, high, low, samples))
    shares = length_shares(enumerated)
    row = {
        "format": fmt.name,
        "high": high,
        "low": low,
        "expected_length": float(expected_length(fmt.t, high, low)),
        "sampled_length": kept.mean(),
        "sampling_error": SIGMAS * kept_length(enumerated).std() / math.sqrt(samples),
        "rms_error": tail_rms(fmt.t, high, low),
    }
    return row | {
        f"share_{length}": shares.get(length, 0.0) for length in range(23, 13, -1)
    }


def main() -> None:
    """Enumerate, sample and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--output", default="results/mantissa.csv")
    options = parser.parse_args()
    rows = [
        measure(FORMATS[name], high, low, options.samples)
        for name in ("fp16", "tf32", "bf16")
        for high in ROUNDINGS
        for low in ROUNDINGS
    ]
    for r in rows:
        print(
            f"{r['format']} {r['high']:>12} {r['low']:>12} {r['expected_length']:.5f} {r['sampled_length']:.5f} "
            f"+- {r['sampling_error']:.5f}  rms {r['rms_error']:.3f}"
        )
    write_csv(
        options.output,
        rows,
        samples=options.samples,
        seed=SEED,
        sampling_error=f"{SIGMAS} standard deviations",
    )


if __name__ == "__main__":
    main()
