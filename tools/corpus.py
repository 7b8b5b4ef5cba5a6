"""Hash a corpus of results, so that two checkouts can be compared bit for bit.

Usage: python tools/corpus.py OUT.csv [--device cuda] [--against OTHER.csv] [--every 7]

Each row holds the name of a product, a hash of the bits of its result, and the scheme that was taken; a refusal counts
as a result. Run it in both checkouts on one machine: native products have the bits of the library and its threads. The
operands come from NumPy alone, and from no module of the checkout, so that they are the same for both.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

import hifigemm as hg

DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = ((1, 1, 1), (5, 1, 4), (3, 40, 2), (33, 70, 17), (64, 129, 65))
LARGE = ((300, 500, 260), (1024, 1024, 1024))
SCHEMES: tuple[tuple[Any, Any], ...] = (
    *(("auto", accuracy) for accuracy in (None, 1e-6, 1e-12, 1e-18, "fp32", "fp64", "correct")),
    *((name, accuracy) for name in ("ozaki1", "ozaki2") for accuracy in (None, 1e-12, "correct")),
    *((hg.Ozaki1(product=p), "correct") for p in ("fp16", "bf16", "tf32", "fp32", "fp64")),
    *((hg.Ozaki1(product=p, mode=mode), None) for p in ("int8", "fp64") for mode in ("dp", "sp", "correct")),
    *((hg.Ozaki1(product=p, num_slices=5), None) for p in ("int8", "fp16", "fp64")),
    *((hg.Ozaki2(num_moduli=n, scaling=s), None) for n in (2, 7, 14, 15, 20, 49) for s in ("fast", "accurate")),
    *((hg.Ozaki2(num_moduli=n, scaling="fast"), "fp64") for n in (14, 18)),
    (hg.Ozaki2(scaling="fast"), "fp64"),
    (hg.Ozaki2(scaling="fast"), "correct"),
    *((hg.Multiword(p, 2, c), None) for p in ("fp16", "bf16", "tf32", "fp32") for c in (3, 4)),
    *((hg.Multiword("tf32", 2, 3, accumulate=how), None) for how in ("separate", "blocked")),
    *((hg.Corrected(p, accumulate=how), None) for p in ("fp16", "tf32") for how in ("outside", "chained")),
    (hg.Native(), None),
    (hg.Native(product="fp64"), None),
)
"""Pairs of scheme and accuracy."""


def _phi(phi: float) -> Callable[..., Any]:
    return lambda rng, shape: (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))


def _wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-140, 120, shape))


def _special(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    x = rng.standard_normal(shape)
    x.ravel()[:: max(x.size // 3, 1)] = rng.choice([np.inf, -np.inf, np.nan, -0.0])
    return x


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

    def matrix(size: tuple[int, int]) -> Any:
        x = FAMILIES[family](rng, size)
        if np.dtype(dtype).kind != "c":
            return x.astype(dtype)
        y = np.empty(size, dtype)
        y.real, y.imag = x, FAMILIES[family](rng, size)
        return y

    with np.errstate(over="ignore", under="ignore"):
        return matrix((m, k)), matrix((k, n))


def calls(device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of products and what makes them, with a report."""
    place = _placed(device)
    sizes = [(shape, FAMILIES) for shape in SHAPES] + [(shape, ("uniform", "phi_2", "wide")) for shape in LARGE]
    for shape, families in sizes:
        for family in families:
            for dtype in DTYPES:
                a, b = operands(family, shape, dtype)
                x, y = place(a), place(b)
                for scheme, accuracy in SCHEMES:
                    if max(shape) > 512 and (device == "cpu" or dtype[-2:] != "64"):
                        continue
                    yield (
                        f"{shape} {family} {dtype} {scheme} {accuracy}",
                        lambda s=scheme, r=accuracy, x=x, y=y: hg.matmul(
                            x, y, scheme=s, accuracy=r, return_report=True
                        ),
                    )
    yield from _others(place)


def _others(place: Callable[[Any], Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Stacks, layouts, prepared operands, blocks, and alpha A B + beta C."""
    for dtype in DTYPES:
        a, b = operands("phi_2", (40, 90, 30), dtype)
        x, y, c = place(a), place(b), place(operands("uniform", (40, 30, 30), dtype)[0])
        stack = place(np.stack([a, a[::-1], -a]))
        for scheme, accuracy in SCHEMES:
            options = {"scheme": scheme, "accuracy": accuracy, "return_report": True}
            name = f"{dtype} {scheme} {accuracy}"
            yield f"stack {name}", lambda o=options, s=stack, y=y: hg.matmul(s, y, **o)
            yield f"strided {name}", lambda o=options, x=x, y=y: hg.matmul(x[:, ::2], y[::2, ::3], **o)
            yield f"vector {name}", lambda o=options, x=x, y=y: hg.matmul(x[0], y, **o)
            yield f"blocks {name}", lambda o=options, x=x, y=y: hg.matmul(x, y, workspace=2**18, **o)
            yield f"prepared {name}", lambda o=options, x=x, y=y: _prepared(x, y, o)
            for alpha, beta in ((1.0, 1.0), (-0.75, 3.0), (2.0**-30, 2.0**20)):
                yield (
                    f"gemm {alpha} {beta} {name}",
                    lambda o=options, x=x, y=y, c=c, s=(alpha, beta): hg.gemm(x, y, c, alpha=s[0], beta=s[1], **o),
                )


def _prepared(x: Any, y: Any, options: dict[str, Any]) -> Any:
    plan = hg.make_plan(x, y, scheme=options["scheme"], accuracy=options["accuracy"])
    return hg.matmul(hg.prepare(x, "left", plan=plan), hg.prepare(y, "right", plan=plan), return_report=True)


def _placed(device: str) -> Callable[[Any], Any]:
    if device == "cpu":
        return lambda x: x
    import torch

    return lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device)


def row_of(name: str, make: Callable[[], Any]) -> tuple[str, str, str]:
    """Name, hash of the result and the scheme, or of the kind of a refusal."""
    try:
        result, report = make()
    except (hg.HifigemmError, TypeError, ValueError) as error:
        return name, type(error).__name__, "refused"
    array = result if isinstance(result, np.ndarray) else np.asarray(result.cpu() if hasattr(result, "cpu") else result)
    array = np.where(np.isnan(array), np.nan, array)  # payloads of NaN are no part of a result
    digest = hashlib.sha256(repr((array.shape, str(array.dtype))).encode() + np.ascontiguousarray(array).tobytes())
    return name, digest.hexdigest()[:16], f"{report.scheme} {report.bound:.6g} {report.num_products}"


def main() -> int:
    """Write the corpus; 1 where a row differs from another checkout's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--against", help="rows of another checkout")
    parser.add_argument("--every", type=int, default=1, help="make only every so many of the products")
    options = parser.parse_args()
    rows = [row_of(name, make) for name, make in islice(calls(options.device), 0, None, options.every)]
    with open(options.out, "w", newline="") as file:
        csv.writer(file).writerows([("product", "hash", "scheme"), *rows])
    if options.against is None:
        return 0
    with open(options.against, newline="") as file:
        before = {name: rest for name, *rest in csv.reader(file)}
    changed = [(name, before.get(name), [*rest]) for name, *rest in rows if before.get(name) != [*rest]]
    for name, old, new in changed:
        print(f"{name}: {old} -> {new}")
    bits = sum(old is None or old[0] != new[0] for _, old, new in changed)
    print(
        f"{len(rows)} products, {bits} with other bits, {len(changed) - bits} with another scheme, bound or count alone"
    )
    return int(bits > 0)


if __name__ == "__main__":
    sys.exit(main())
