"""Products of tensors of a device against those of NumPy arrays, bit for bit, over
hostile operands and every way whose bits are the same everywhere:

    python -m tests.fuzz.devices --entries 50000000 --jobs 14 \\
        --output results/device_bits.csv

Processes draw operands and multiply them on the host, this one multiplies them on the
device and compares. What differs, be it the sign of a zero, is printed with its seed
and index.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.workshop.environment import write_csv
from tests.exact_values import same_bits
from tests.fuzz.core import DTYPES, FAMILIES, pair_of

WAYS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
    "enclosure": {"result": "enclosure"},
    "gemm": {"accuracy": "correct"},
    "scalars": {"accuracy": "correct"},
    "14 moduli": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
    "20 moduli": {"scheme": hg.Ozaki2(num_moduli=20)},
    "invariant": {"accuracy": hg.Invariant(1e-7)},
    "3 slices": {"scheme": hg.Ozaki1(num_slices=3)},
    "8 slices": {"scheme": hg.Ozaki1(num_slices=8)},
    **{
        f"slices, correct, {product}": {
            "scheme": hg.Ozaki1(product=product, mode="correct")
        }
        for product in ("int8", "fp16", "fp64")
    },
}
"""What is asked of a product. Gemm is alpha A B + beta C, rounded once, for powers of
two, and for any "scalars".
"""


@dataclass(frozen=True)
class Case:
    """Operands, what is asked of them, and what the host gives."""

    at: tuple[int, int]
    way: str
    operands: tuple[np.ndarray, ...]  # a and b, and c of gemm
    options: dict[str, Any]
    result: tuple[np.ndarray, ...] | str  # or the name of the exception


def product(operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The arrays of a result as a tuple, or the name of the exception."""
    multiply = hg.gemm if len(operands) == 3 else hg.matmul
    try:
        result = multiply(*operands, **options)
    except hg.HifigemmError as refusal:
        return type(refusal).__name__
    return tuple(result) if isinstance(result, tuple) else (result,)


@np.errstate(all="ignore")
def draw(seed: int, largest: int, index: int) -> Case:
    """The case of an index, with the result of the host."""
    rng = np.random.default_rng([seed, index])
    way = list(WAYS)[index % len(WAYS)]
    dtype = np.dtype(str(rng.choice(DTYPES)))
    m, n = (int(x) for x in rng.integers(largest // 4 + 1, largest + 1, 2))
    k = int(largest ** rng.uniform(0.1, 1.0))
    family = str(rng.choice(FAMILIES))
    a, b = pair_of(rng, family, m, k, n, dtype)
    options = dict(WAYS[way])
    operands = a, b
    if way in ("gemm", "scalars"):
        exponent = int(rng.integers(-9, 10))
        alpha, beta = (float(x) for x in rng.choice([-1.0, 1.0], 2))
        if way == "scalars":
            alpha, beta = (float(x) for x in rng.standard_normal(2))
        options |= {"alpha": alpha * 2.0**exponent, "beta": beta}
        # C and the product nearly cancel, or C is anything else.
        c = np.nan_to_num(hg.matmul(a, b, accuracy="correct")) * (-alpha / beta)
        others = rng.standard_normal(c.shape)
        c = np.where(rng.random(c.shape) < 0.5, c * 2.0**exponent, others)
        operands = *operands, c.astype(dtype)
    return Case((seed, index), way, operands, options, product(operands, options))


def differences(case: Case, device: str) -> tuple[int, int, bool]:
    """Entries of a case, how many have other bits on a device, and whether the host has
    refused it.

    Refusals of one side alone are counted as so many entries with other bits.
    """
    import torch

    tensors = tuple(torch.from_numpy(x).to(device) for x in case.operands)
    found = product(tensors, case.options)
    m, n = case.operands[0].shape[0], case.operands[1].shape[1]
    if isinstance(found, str) or isinstance(case.result, str):
        is_same = str(found) == str(case.result)
        return m * n, 0 if is_same else m * n, isinstance(case.result, str)
    is_other = np.zeros((m, n), bool)
    for x, y in zip(found, case.result, strict=True):
        values = x.cpu().numpy()
        if same_bits(values, y):
            continue
        bits = values.view(np.uint8).reshape(m, n, -1)
        is_different = (bits != y.view(np.uint8).reshape(m, n, -1)).any(axis=2)
        # A NaN is a NaN, whatever its bits.
        is_other |= is_different & ~(np.isnan(values) & np.isnan(y))
    return m * n, int(np.count_nonzero(is_other)), False


def _cases(pool: Any, work: Callable[[int], Case], count: int) -> Iterator[Case]:
    """The cases of all indices, `count` of them at a time."""
    for start in itertools.count(0, count):
        yield from pool.imap_unordered(work, range(start, start + count))


def main() -> int:
    """Draw, multiply, compare; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--largest", type=int, default=700, help="of m, n and k")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output")
    options = parser.parse_args()
    started = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    # Processes are there before this one uses the device.
    with get_context("fork").Pool(options.jobs) as pool:
        work = partial(draw, options.seed, options.largest)
        for case in _cases(pool, work, 4 * options.jobs):
            entries, others, is_refused = differences(case, options.device)
            counts[case.way, "entries"] += entries
            counts[case.way, "other_bits"] += others
            counts[case.way, "refused"] += entries * is_refused
            counts[case.way, "products"] += 1
            if others:
                print(
                    f"{case.at} {case.way}: {others} of {entries} entries", flush=True
                )
            total = sum(n for (_, name), n in counts.items() if name == "entries")
            is_late = time.monotonic() - started > options.seconds
            if total >= options.entries or is_late:
                break
        pool.terminate()

    names = "products", "entries", "other_bits", "refused"
    rows = [{"way": way} | {name: counts[way, name] for name in names} for way in WAYS]
    for row in rows:
        print(row)
    seconds = round(time.monotonic() - started, 1)
    others = sum(row["other_bits"] for row in rows)
    print(f"{total} entries in {seconds} s, {others} with other bits")
    if options.output:
        import torch

        name = options.device
        if torch.cuda.is_available():
            name = torch.cuda.get_device_name()
        write_csv(options.output, rows, seed=options.seed, device=name, seconds=seconds)
    return 1 if others else 0


if __name__ == "__main__":
    raise SystemExit(main())
