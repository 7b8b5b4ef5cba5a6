"""Hash a corpus of results, so that two checkouts can be compared bit for bit, and one
with what was before.

Usage: python tools/corpus.py OUT.csv [--device cuda] [--against OTHER.csv] [--every 7]
       python tools/corpus.py --check [--every 7]
       python tools/corpus.py --accept

Each row of OUT.csv holds the name of a product, a hash of the bits of its result, and
the scheme that was taken; a refusal counts as a result. Run it in both checkouts on one
machine: native products have the bits of the library and its threads. The operands come
from NumPy alone, and from no module of the checkout, so that they are the same for
both.

--check compares with tests/data/corpus.csv, which holds one hash for all products of a
group whose bits are the same on every machine: those of exact schemes and those that
are rounded correctly. --accept writes that file anew, after a change of bits that is
meant and stands in CHANGELOG.md. What differs is found by a comparison with another
checkout.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg

ACCEPTED = Path(__file__).parents[1] / "tests" / "data" / "corpus.csv"
DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = ((1, 1, 1), (5, 1, 4), (3, 40, 2), (33, 70, 17), (64, 129, 65))
LARGE = ((300, 500, 260), (1024, 1024, 1024))
SCHEMES: tuple[tuple[Any, Any], ...] = (
    *(
        ("auto", accuracy)
        for accuracy in (None, 1e-6, 1e-12, 1e-18, "fp32", "fp64", "correct")
    ),
    *(
        (name, accuracy)
        for name in ("ozaki1", "ozaki2")
        for accuracy in (None, 1e-12, "correct")
    ),
    *(
        (hg.Ozaki1(product=p), "correct")
        for p in ("fp16", "bf16", "tf32", "fp32", "fp64")
    ),
    *(
        (hg.Ozaki1(product=p, mode=mode), None)
        for p in ("int8", "fp64")
        for mode in ("dp", "sp", "correct")
    ),
    *((hg.Ozaki1(product=p, num_slices=5), None) for p in ("int8", "fp16", "fp64")),
    *(
        (hg.Ozaki2(num_moduli=n, scaling=s), None)
        for n in (2, 7, 14, 15, 20, 49)
        for s in ("fast", "accurate")
    ),
    *((hg.Ozaki2(num_moduli=n, scaling="fast"), "fp64") for n in (14, 18)),
    (hg.Ozaki2(scaling="fast"), "fp64"),
    (hg.Ozaki2(scaling="fast"), "correct"),
    *(
        (hg.Multiword(p, 2, c), None)
        for p in ("fp16", "bf16", "tf32", "fp32")
        for c in (3, 4)
    ),
    *(
        (hg.Multiword("tf32", 2, 3, accumulate=how), None)
        for how in ("separate", "blocked")
    ),
    *(
        (hg.Corrected(p, accumulate=how), None)
        for p in ("fp16", "tf32")
        for how in ("outside", "chained")
    ),
    (hg.Native(), None),
    (hg.Native(product="fp64"), None),
)
"""Pairs of scheme and accuracy."""


_exp = np.vectorize(math.exp, otypes=[float])
"""The exponential of the C library: NumPy's has other last bits where there is AVX-512."""


def _phi(phi: float) -> Callable[..., Any]:
    return lambda rng, shape: (
        (rng.random(shape) - 0.5) * _exp(phi * rng.standard_normal(shape))
    )


def _wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-140, 120, shape))


def _special(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    x = rng.standard_normal(shape)
    x.ravel()[:: max(x.size // 3, 1)] = rng.choice([np.inf, -np.inf, np.nan, -0.0])
    return x


def _units(rng: np.random.Generator, shape: tuple[int, int, int], real: Any) -> Any:
    """Zeros of both signs and a few units each: products of 1/16 of the smallest
    subnormal number, of which many sums are 0, a tie or beside one.
    """
    m, k, n = shape
    least = real.minexp - real.nmant
    units = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0]
    a = np.ldexp(rng.choice(units, (m, k)), least // 2)
    b = np.ldexp(rng.choice(units, (k, n)), least - least // 2 - 4)
    return a, b


def _vanishing(rng: np.random.Generator, shape: tuple[int, int, int], real: Any) -> Any:
    """Subnormal numbers [X, X'] and [[Y], [-Y]]: nothing or little is left of their
    products, and that underflows.
    """
    m, k, n = shape
    half = k // 2
    bound = 2**real.nmant
    a = rng.integers(-bound, bound, (m, k))
    b = rng.integers(-bound, bound, (k, n))
    a[:, half : 2 * half] = a[:, :half] + rng.integers(-1, 2, (m, half))
    a[::2, half : 2 * half] = a[::2, :half]
    b[half : 2 * half] = -b[:half]
    a[:, 2 * half :] = 0
    least = real.minexp - real.nmant
    return np.ldexp(a.astype(float), least), np.ldexp(b.astype(float), least)


TINY: dict[str, Callable[..., Any]] = {"units": _units, "vanishing": _vanishing}
"""Pairs whose products underflow, for shapes m, k, n and `numpy.finfo` of the real
components.
"""
FAMILIES: dict[str, Callable[..., Any]] = {
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "positive": lambda rng, shape: rng.random(shape),
    "phi_0.5": _phi(0.5),
    "phi_2": _phi(2.0),
    "phi_8": _phi(8.0),
    "integers": lambda rng, shape: rng.integers(-9, 10, shape).astype(float),
    "wide": _wide,
    "special": _special,
    "zeros": lambda rng, shape: np.zeros(shape),
}


def operands(family: str, shape: tuple[int, int, int], dtype: str) -> tuple[Any, Any]:
    """Matrices m x k and k x n of a family."""
    m, k, n = shape
    rng = np.random.default_rng([m, k, n, *family.encode()])
    if family in TINY:
        real = np.finfo(dtype)
        pairs = [TINY[family](rng, shape, real) for _ in range(2)]
        return tuple(_of_components(*parts, dtype) for parts in zip(*pairs))

    def matrix(size: tuple[int, int]) -> Any:
        x = FAMILIES[family](rng, size)
        if np.dtype(dtype).kind != "c":
            return x.astype(dtype)
        return _of_components(x, FAMILIES[family](rng, size), dtype)

    with np.errstate(over="ignore", under="ignore"):
        return matrix((m, k)), matrix((k, n))


def _of_components(re: Any, im: Any, dtype: str) -> Any:
    """A matrix of a dtype; the imaginary parts count for complex ones alone."""
    if np.dtype(dtype).kind != "c":
        return re.astype(dtype)
    x = np.empty(re.shape, dtype)
    x.real, x.imag = re, im
    return x


@dataclass(frozen=True)
class Case:
    """A product of the corpus."""

    group: str  # operands and kind of call
    scheme: Any
    accuracy: Any
    multiply: Callable[..., Any]  # takes options of `hifigemm.matmul`

    @property
    def name(self) -> str:
        return f"{self.group} {self.scheme} {self.accuracy}"

    @property
    def is_portable(self) -> bool:
        """True if the bits are the same on every machine."""
        is_exact = self.scheme in ("ozaki1", "ozaki2") or isinstance(
            self.scheme, hg.Ozaki1 | hg.Ozaki2
        )
        return is_exact or self.accuracy == "correct"

    def run(self) -> tuple[str, str, str]:
        """Name, hash of the result and the scheme, or of the kind of a refusal."""
        try:
            result, report = self.multiply(
                scheme=self.scheme, accuracy=self.accuracy, return_report=True
            )
        except (hg.HifigemmError, TypeError, ValueError) as error:
            return self.name, type(error).__name__, "refused"
        array = np.asarray(result.cpu() if hasattr(result, "cpu") else result)
        # payloads of NaN are no part of a result
        array = np.where(np.isnan(array), np.nan, array)
        digest = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
        return (
            self.name,
            digest.hexdigest()[:16],
            f"{report.scheme} {report.bound:.6g} {report.num_products}",
        )


def cases(device: str) -> Iterator[Case]:
    """All products, those of a group one after the other."""
    for group, multiply in _groups(device):
        for scheme, accuracy in SCHEMES:
            yield Case(group, scheme, accuracy, multiply)


def _groups(device: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Names of groups, and functions that multiply with the options of
    `hifigemm.matmul`.
    """
    place = _placed(device)
    sizes = [(shape, (*FAMILIES, *TINY)) for shape in SHAPES]
    sizes += [(shape, ("uniform", "phi_2", "wide")) for shape in LARGE]
    for shape, families in sizes:
        for family, dtype in product(families, DTYPES):
            if max(shape) > 512 and (
                device == "cpu" or dtype not in ("float64", "complex64")
            ):
                continue
            a, b = map(place, operands(family, shape, dtype))
            yield f"{shape} {family} {dtype}", partial(hg.matmul, a, b)

    for dtype in DTYPES:
        left, right = operands("phi_2", (40, 90, 30), dtype)
        a, b = place(left), place(right)
        c = place(operands("uniform", (40, 30, 30), dtype)[0])
        stack = place(np.stack([left, left[::-1], -left]))
        yield f"stack {dtype}", partial(hg.matmul, stack, b)
        yield f"strided {dtype}", partial(hg.matmul, a[:, ::2], b[::2, ::3])
        yield f"vector {dtype}", partial(hg.matmul, a[0], b)
        yield f"blocks {dtype}", partial(hg.matmul, a, b, workspace=2**18)
        yield f"prepared {dtype}", partial(_prepared, a, b)
        for alpha, beta in ((1.0, 1.0), (-0.75, 3.0), (2.0**-30, 2.0**20)):
            yield (
                f"gemm {alpha} {beta} {dtype}",
                partial(hg.gemm, a, b, c, alpha=alpha, beta=beta),
            )


def _prepared(
    a: Any, b: Any, *, scheme: Any, accuracy: Any, return_report: bool
) -> Any:
    """The product of two operands that were prepared for its plan."""
    plan = hg.make_plan(a, b, scheme=scheme, accuracy=accuracy)
    left = hg.prepare(a, "left", plan=plan)
    right = hg.prepare(b, "right", plan=plan)
    return hg.matmul(left, right, return_report=return_report)


def _placed(device: str) -> Callable[[Any], Any]:
    """A function that brings an array to the device."""
    if device == "cpu":
        return lambda x: x
    import torch

    return lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device)


def hashes_of_groups(every: int) -> Iterator[tuple[str, str]]:
    """Names of groups, or of every so many of them, and one hash for their products of
    the same bits everywhere.
    """
    portable = (case for case in cases("cpu") if case.is_portable)
    for i, (group, members) in enumerate(
        groupby(portable, key=lambda case: case.group)
    ):
        if i % every == 0:
            yield group, hash_of(members)


def hash_of(members: Iterable[Case]) -> str:
    """One hash of the results of products."""
    digest = hashlib.sha256()
    for case in members:
        name, result, _ = case.run()
        digest.update(f"{name} {result}\n".encode())
    return digest.hexdigest()[:16]


def check(every: int) -> int:
    """1 where a group has other bits than the accepted ones, else 0."""
    with ACCEPTED.open(newline="") as file:
        accepted = dict(list(csv.reader(file))[1:])
    count = 0
    changed = []
    for group, result in hashes_of_groups(every):
        count += 1
        if accepted.get(group) != result:
            changed.append(group)
            print(f"other bits than in {ACCEPTED.name}: {group}", flush=True)
    print(
        f"{count} of {len(accepted)} groups of products, {len(changed)} with other bits"
    )
    return int(bool(changed))


def accept() -> int:
    """Write the bits of all groups as those to compare with; 0."""
    rows = list(hashes_of_groups(1))
    with ACCEPTED.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("group", "hash"), *rows])
    return 0


def compare(out: Path, device: str, every: int, against: Path | None) -> int:
    """Write the hash of each product; 1 where one differs from that of another
    checkout, else 0.
    """
    rows = [case.run() for i, case in enumerate(cases(device)) if i % every == 0]
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([("product", "hash", "scheme"), *rows])
    if against is None:
        return 0

    with against.open(newline="") as file:
        before = {name: (result, scheme) for name, result, scheme in csv.reader(file)}
    num_bits = num_changed = 0
    for name, result, scheme in rows:
        old = before.get(name)
        if old == (result, scheme):
            continue
        num_changed += 1
        num_bits += old is None or old[0] != result
        print(f"{name}: {old} -> {(result, scheme)}")
    others = num_changed - num_bits
    print(
        f"{len(rows)} products, {num_bits} with other bits, {others} with another scheme, bound or count alone"
    )
    return int(num_bits > 0)


def main() -> int:
    """Write, check or accept the corpus."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "out", nargs="?", type=Path, help="file for the hash of each product"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", type=Path, help="file of another checkout")
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="make only every so many of the products, or of the groups",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the accepted bits"
    )
    parser.add_argument(
        "--accept", action="store_true", help="write the accepted bits anew"
    )
    options = parser.parse_args()
    if options.check:
        return check(options.every)
    if options.accept:
        return accept()
    if options.out is None:
        parser.error("a file for the hashes is missing")
    return compare(options.out, options.device, options.every, options.against)


if __name__ == "__main__":
    sys.exit(main())
