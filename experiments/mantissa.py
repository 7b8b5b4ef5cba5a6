"""How many of the 23 stored bits of an FP32 number do two short words keep? By enumeration and by sampling.

    python experiments/mantissa.py [--samples 1000000] [--output results/mantissa.csv]

Enumerated: all tails below the first word (2**13 for FP16 and TF32, 2**16 for BF16), exactly; hifigemm.study.mantissa
has the definition. Sampled: random numbers in [1, 2) split by hifigemm.numerics.words. The low word is scaled for FP16
(by 2**11), so that underflow does not enter.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from hifigemm.formats import FORMATS, Format
from hifigemm.numerics.rounding_formats import round_to_format
from hifigemm.study.environment import write_csv
from hifigemm.study.mantissa import ROUNDINGS, expected_length, kept_length, length_shares, tail_errors, tail_rms

SEED = 5
SHIFT = {"fp16": 11}
SIGMAS = 3


def sample_errors(fmt: Format, high: str, low: str, samples: int) -> np.ndarray:
    """v - hi - lo in units of the last bit of v."""
    rng = np.random.default_rng([SEED, fmt.t])
    v = np.ldexp(rng.integers(1 << 23, 1 << 24, samples).astype(np.float64), -23)
    rest = v - round_to_format(v, fmt, high)
    scale = 2.0 ** SHIFT.get(fmt.name, 0)
    rest -= round_to_format(rest * scale, fmt, low) / scale
    return np.rint(np.ldexp(rest, 23)).astype(np.int64)


def measure(fmt: Format, high: str, low: str, samples: int) -> dict[str, Any]:
    """One line: enumeration, sample, and the half width of the sample's interval of three standard deviations."""
    enumerated, kept = tail_errors(fmt.t, high, low), kept_length(sample_errors(fmt, high, low, samples))
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
    return row | {f"share_{length}": shares.get(length, 0.0) for length in range(23, 13, -1)}


def main() -> None:
    """Enumerate, sample and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
    write_csv(options.output, rows, samples=options.samples, seed=SEED, sampling_error=f"{SIGMAS} standard deviations")


if __name__ == "__main__":
    main()
