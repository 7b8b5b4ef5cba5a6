"""How often does the low FP16 word of an FP32 number underflow, and what does the scaling by 2**11 change?

    python experiments/underflow.py [--samples 200000] [--output results/underflow.csv]

For each exponent e, numbers of random sign and significand in [2**e, 2**(e+1)) are split; the share of low words that
are subnormal or zero, and zero, stands beside the formula of [OY22] and an exact count (hifigemm.study.underflow).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from hifigemm.formats import FP16
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.study.environment import write_csv
from hifigemm.study.floats import random_floats
from hifigemm.study.underflow import LOWEST_EXPONENT, counted, formula

SEED = 6
EVENTS = {"subnormal or zero": 0, "zero": 1}


def sample(exponent: int, rounding: str, shift: int, samples: int) -> tuple[float, float]:
    """Shares of residuals below the normal numbers of FP16, and of low words that are zero."""
    rng = np.random.default_rng([SEED, exponent - LOWEST_EXPONENT, shift])
    v = random_floats(rng, (samples,), exponent, np.float32).astype(np.float64)
    rest = (v - round_to_format(v, FP16, rounding)) * 2.0**shift
    return float(np.mean(abs(rest) < 2.0**FP16.emin)), float(np.mean(round_to_format(rest, FP16) == 0))


def measure(exponent: int, rounding: str, shift: int, samples: int) -> list[dict[str, Any]]:
    """One line for each event."""
    sampled, exact, real = (f(exponent, rounding, shift) for f in (lambda *x: sample(*x, samples), counted, formula))
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
