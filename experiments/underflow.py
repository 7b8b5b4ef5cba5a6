"""How often does the low FP16 word of an FP32 number underflow, and what does the
scaling by 2**11 change?

    python -m experiments.underflow [--samples 200000] [--output results/underflow.csv]

For each exponent e, numbers of random sign and significand in [2**e, 2**(e+1)) are
split; the share of low words that are subnormal or zero, and zero, stands beside the
formula of [OY22] and an exact count.

Idea
    v = hi + r with |v| in [2**e, 2**(e+1)) and random bits. The last bit of hi weighs
    2**q, q = max(e, -14) - 10, so r is uniform on [-2**(q-1), 2**(q-1)] for rounding to
    nearest, on [0, 2**q) for truncation. The low word is 2**s r rounded to nearest:
    subnormal or zero where |r| < 2**(-14-s), and zero where |r| <= 2**(-25-s). Hence

        P(subnormal or zero) = min(1, 2**(-13-s-q)),   P(zero) = min(1, 2**(-24-s-q))       to nearest,

    half of it for truncation: 2**-(e+3+s) and 2**-(e+14+s) for e >= -14 [OY22]. That
    takes r for a real number; it is a multiple of 2**(e-23), which `counted` heeds, and
    r = 0 happens with probability 2**-13 at least, where nothing is lost.
Exact when
    e >= -24, so that hi is not zero for all v.
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

from hifigemm.base.formats import FP16
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.testing.matrices import random_floats
from hifigemm.workshop.environment import write_csv

SEED = 6
EVENTS = {"subnormal or zero": 0, "zero": 1}
LOWEST_EXPONENT = -24
NORMAL, ZERO = -14, -25
"""Exponents: of the smallest normal number of FP16; of the largest number that rounds
to zero.
"""


def _spacing(exponent: int) -> int:
    if exponent < LOWEST_EXPONENT:
        raise ValueError(f"exponent = {exponent}: hi is zero below {LOWEST_EXPONENT}")
    return max(exponent, NORMAL) - 10


def formula(exponent: int, rounding: str, shift: int = 0) -> tuple[float, float]:
    """(P(low word subnormal or zero), P(low word zero)) for residuals that are real
    numbers.

    Parameters
    ----------
    exponent : int
        e, at least -24.
    rounding : "nearest" or "zero"
        Of the high word.
    shift : int
        s: the low word is stored times 2**s.
    """
    widest = _spacing(exponent) - (1 if rounding == "nearest" else 0)
    return min(1.0, 2.0 ** (NORMAL - shift - widest)), min(
        1.0, 2.0 ** (ZERO - shift - widest)
    )


def counted(exponent: int, rounding: str, shift: int = 0) -> tuple[Fraction, Fraction]:
    """The same probabilities for FP32 numbers, exactly: their tails are counted.

    r is j 2**(e-23), j uniform over 0 to W - 1 for truncation, over the W integers next
    to zero for rounding to nearest, W = 2**(q-e+23).
    """
    width = 1 << (_spacing(exponent) - exponent + 23)
    unit = Fraction(2) ** (exponent - 23 + shift)
    below = math.ceil(Fraction(2) ** NORMAL / unit)  # j = 0 to below - 1
    vanishing = math.floor(Fraction(2) ** ZERO / unit) + 1
    if rounding == "nearest":
        below, vanishing = 2 * below - 1, 2 * vanishing - 1
    return Fraction(min(below, width), width), Fraction(min(vanishing, width), width)


def sample(
    exponent: int, rounding: str, shift: int, samples: int
) -> tuple[float, float]:
    """Shares of residuals below the normal numbers of FP16, and of low words that are
    zero.
    """
    rng = np.random.default_rng([SEED, exponent - LOWEST_EXPONENT, shift])
    v = random_floats(rng, (samples,), exponent, np.float32).astype(np.float64)
    rest = (v - round_to_format(v, FP16, rounding)) * 2.0**shift
    return float(np.mean(abs(rest) < 2.0**FP16.emin)), float(
        np.mean(round_to_format(rest, FP16) == 0)
    )


def measure(
    exponent: int, rounding: str, shift: int, samples: int
) -> list[dict[str, Any]]:
    """One line for each event."""
    sampled, exact, real = (
        f(exponent, rounding, shift)
        for f in (lambda *x: sample(*x, samples), counted, formula)
    )
    return [
        {
            "exponent": exponent,
            "rounding": rounding,
            "shift": shift,
            "event": event,
            "formula": real[i],
            "counted": float(exact[i]),
            "sampled": sampled[i],
            "samples": samples,
        }
        for event, i in EVENTS.items()
    ]


def main() -> None:
    """Count, sample and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--output", default="results/underflow.csv")
    options = parser.parse_args()
    rows = []
    for rounding in ("nearest", "zero"):
        for shift in (0, 11):
            for exponent in range(LOWEST_EXPONENT, FP16.emax + 1):
                rows += measure(exponent, rounding, shift, options.samples)
    for row in rows:
        if row["exponent"] in (-14, -3, 0, 8):
            print(*row.values())
    write_csv(options.output, rows, seed=SEED)


if __name__ == "__main__":
    main()
