"""What do float32-accurate products of a network cost, compared with PyTorch: a head,
square matrices of 16 bits, a few rows against prepared weights, and Muon's Newton-Schulz
iterations?

    python -m benchmarks.heads --device cuda [--parts P,P,...] [--output FILE.csv]
    python -m benchmarks.heads --device cpu --small

head    tokens by a vocabulary: logits = X W^T with weights W as in `nn.Linear`
square  n x n matrices of bfloat16, next to a kernel with a fixed order of additions
skinny  1, 16 and 64 rows against weights that `hg.prepare` has taken, and GB/s of the
        weights' bytes as PyTorch holds them; as calls, and from CUDA graphs
muon    five iterations of fifth order (Jordan and others, Muon, 2024), all products in
        one scope

A way is timed in bursts of calls, all ways in turns; a burst ends when the device is
done. `least` and `median` are seconds of a call, over all turns; `beside` is the least
of `torch, ieee` over the least of the way. `error` is max |C - AB| / (|A||B|) on sampled
rows and columns, against float64, and for "muon" the distance from the same iterations
in float64, relative in the Frobenius norm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

import hifigemm as hg
from hifigemm.engines.float32_precision import float32_precision
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.arrays import cuda_is_usable
from hifigemm.workshop.measuring.timing import capture

PARTS = ("head", "square", "skinny", "muon")
SEED = 62
TURNS = 7
BURST_SECONDS = 0.02
"""A burst has as many calls as fit, at least one and at most `MOST_CALLS`."""
MOST_CALLS = 200
SAMPLED_ROWS, SAMPLED_COLUMNS = 16, 1024
F32, BF16 = torch.float32, torch.bfloat16
OPERANDS = ((F32, F32), (BF16, BF16), (F32, BF16))
"""Dtypes of the activations and of the weights."""
REQUESTS: dict[str, dict[str, Any]] = {
    "default": {},
    "1e-6": {"accuracy": 1e-6},
    "invariant fp32": {"accuracy": hg.Invariant("fp32")},
    "three slices": {"scheme": hg.Ozaki1(num_slices=3)},
    "correct": {"accuracy": "correct"},
}
MUON = 3.4445, -4.7750, 2.0315
"""Coefficients of X, of (X X^T) X and of (X X^T)^2 X."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Shapes of all parts.

    Attributes
    ----------
    tokens, width, vocabulary : int
        Of the head.
    hidden : int
        Of the second weights that few rows meet.
    squares : sequence of int
        n of "square".
    few : sequence of int
        Numbers of rows in "skinny".
    matrices : sequence of (int, int)
        Shapes of the matrices that are orthogonalised.
    """

    tokens: int
    width: int
    vocabulary: int
    hidden: int
    squares: Sequence[int]
    few: Sequence[int]
    matrices: Sequence[tuple[int, int]]


FULL = Sizes(
    4096, 4096, 129280, 14336, (4096, 8192), (1, 16, 64), ((1024, 1024), (4096, 1024))
)
SMALL = Sizes(24, 32, 80, 48, (64,), (1, 3), ((16, 16), (24, 16)))


@dataclass(frozen=True)
class Way:
    """A call that is timed, with what holds around it."""

    name: str
    call: Callable[[], Tensor]
    precision: str = "ieee"  # of PyTorch's own float32 products
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext


def product_ways(x: Tensor, w: Tensor) -> Iterator[Way]:
    """PyTorch's products of float32, as they round operands or do not, and its product
    of the operands' dtype.
    """
    if w.dtype == F32:
        yield Way("torch, ieee", lambda: linear(x, w))
        yield Way("torch, tf32", lambda: linear(x, w), "tf32")
        return
    wide, wide_weights = x.float(), w.float()
    yield Way("torch, ieee", lambda: linear(wide, wide_weights))
    yield Way("torch, tf32", lambda: linear(wide, wide_weights), "tf32")
    if x.dtype == BF16:
        yield Way("torch, bf16", lambda: linear(x, w))
    else:
        yield Way("torch, ieee of a copy", lambda: linear(x, w.float()))


def our_ways(x: Tensor, w: Tensor, is_prepared: bool) -> Iterator[Way]:
    """Ours with float32 results, for each request."""
    for name, request in REQUESTS.items():
        if not is_prepared:
            yield Way(
                f"hg, {name}",
                lambda request=request: hg.matmul(x, w.T, out_dtype=F32, **request),
            )
            continue
        weights = hg.prepare(w.T, "right", **request)
        yield Way(
            f"hg, {name}, prepared",
            lambda weights=weights: hg.matmul(x, weights, out_dtype=F32),
        )


def rows_of_head(device: str, sizes: Sizes) -> Iterator[Row]:
    """All tokens of a batch against the weights of a vocabulary."""
    for dtypes in OPERANDS:
        x, w = operands(sizes.tokens, sizes.vocabulary, sizes.width, dtypes, device)
        ways = [*product_ways(x, w), *our_ways(x, w, is_prepared=False)]
        ways += our_ways(x, w, is_prepared=True)
        yield from rows_of_products("head", x, w, ways)


def rows_of_square(device: str, sizes: Sizes) -> Iterator[Row]:
    """Matrices of bfloat16."""
    for n in sizes.squares:
        x, w = operands(n, n, n, (BF16, BF16), device)
        ways = [*product_ways(x, w), *our_ways(x, w, is_prepared=False)]
        ways += our_ways(x, w, is_prepared=True)
        if device == "cuda":
            from benchmarks.fixed_order import linear_in_fixed_order

            call = partial(linear_in_fixed_order, x, w)
            ways.append(Way("Triton, bf16, fixed order", call))
        yield from rows_of_products("square", x, w, ways)


def rows_of_few(device: str, sizes: Sizes) -> Iterator[Row]:
    """A few rows against prepared weights."""
    for n in (sizes.hidden, sizes.vocabulary):
        for dtypes in OPERANDS:
            for m in sizes.few:
                x, w = operands(m, n, sizes.width, dtypes, device)
                ways = [*product_ways(x, w), *our_ways(x, w, is_prepared=True)]
                yield from rows_of_products("skinny", x, w, ways)
                if device == "cuda":
                    yield from rows_of_products("skinny", x, w, ways, "graph")


def rows_of_muon(device: str, sizes: Sizes) -> Iterator[Row]:
    """The orthogonalised update of a weight."""
    for m, n in sizes.matrices:
        gradient = normal((m, n), device)
        exact = newton_schulz(gradient.double())

        def call(gradient: Tensor = gradient) -> Tensor:
            return newton_schulz(gradient)

        ways = [
            Way("torch, ieee", call),
            Way("torch, tf32", call, "tf32"),
            Way("torch, bf16", lambda g=gradient: newton_schulz(g.bfloat16())),
        ]
        for name, request in REQUESTS.items():
            ways.append(
                Way(
                    f"hg, {name}",
                    call,
                    scope=lambda request=request: hg.emulate(**request),
                )
            )
        shape = {"part": "muon", "m": m, "k": "", "n": n, "operands": "float32"}
        # Five times X X^T, its square, and the product of their sum with X.
        least, most = sorted((m, n))
        flops = 5 * (4 * least**2 * most + 2 * least**3)

        def error(result: Tensor, exact: Tensor = exact) -> float:
            distance = torch.linalg.norm(result.double() - exact)
            return (distance / torch.linalg.norm(exact)).item()

        yield from timed_rows(ways, shape, error, flops, device)


def newton_schulz(gradient: Tensor) -> Tensor:
    """Five iterations, as Muon runs them."""
    first, second, third = MUON
    x = gradient if gradient.shape[0] <= gradient.shape[1] else gradient.T
    x = x / torch.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        factor = torch.addmm(gram, gram, gram, beta=second, alpha=third)
        x = torch.addmm(x, factor, x, beta=first)
    return x if gradient.shape[0] <= gradient.shape[1] else x.T


def rows_of_products(
    part: str, x: Tensor, w: Tensor, ways: Sequence[Way], mode: str = "eager"
) -> Iterator[Row]:
    """Rows of the products X W^T, whose sampled entries are held against float64."""
    n, k = w.shape
    columns = torch.arange(0, n, max(1, n // SAMPLED_COLUMNS), device=w.device)
    left = x[:SAMPLED_ROWS].double()
    right = w[columns].double().T
    exact = left @ right
    magnitudes = left.abs() @ right.abs()

    def error(result: Tensor) -> float:
        entries = result[:SAMPLED_ROWS, columns].double()
        return ((entries - exact).abs() / magnitudes).max().item()

    names = " by ".join(str(dtype)[6:] for dtype in (x.dtype, w.dtype))
    shape = {"part": part, "m": len(x), "k": k, "n": n, "operands": names, "mode": mode}
    for row in timed_rows(ways, shape, error, 2 * len(x) * n * k, x.device.type):
        if row.get("least"):
            row["GB/s of weights"] = w.nbytes / row["least"] / 1e9
        yield row


def timed_rows(
    ways: Sequence[Way],
    shape: Row,
    error: Callable[[Tensor], float],
    flops: float,
    device: str,
) -> Iterator[Row]:
    """A row for each way: its error, then its times in turns with all others."""
    rows: list[Row] = []
    launches: list[Callable[[], Any] | None] = []
    for way in ways:
        row = {**shape, "way": way.name}
        rows.append(row)
        with float32_precision(backend(device), way.precision), way.scope():
            try:
                row["error"] = error(way.call())
                is_replayed = shape.get("mode") == "graph"
                launches.append(capture(way.call) if is_replayed else way.call)
            except (RuntimeError, hg.HifigemmError) as failure:
                row["failed"] = str(failure).splitlines()[0]
                launches.append(None)

    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(TURNS):
        for way, launch, times in zip(ways, launches, seconds, strict=True):
            if launch is not None:
                with float32_precision(backend(device), way.precision), way.scope():
                    times.append(burst(launch, device))

    # The first turn is warm-up.
    plain = min(seconds[0][1:], default=float("nan"))
    for row, times in zip(rows, seconds, strict=True):
        if times:
            row["least"] = min(times[1:])
            row["median"] = float(np.median(times[1:]))
            row["beside"] = plain / row["least"]
            row["TFLOP/s"] = flops / row["least"] / 1e12
        yield row


def burst(launch: Callable[[], Any], device: str) -> float:
    """Seconds of a call, as the mean of a burst."""
    once = seconds_of(launch, 1, device)
    calls = int(min(MOST_CALLS, max(1.0, BURST_SECONDS / once)))
    return seconds_of(launch, calls, device) / calls


def seconds_of(launch: Callable[[], Any], calls: int, device: str) -> float:
    """Seconds of so many calls, until the device is done."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        launch()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def backend(device: str) -> str:
    """The library of PyTorch whose precision of float32 is set."""
    return "cuda" if device == "cuda" else "mkldnn"


def operands(
    m: int, n: int, k: int, dtypes: tuple[torch.dtype, torch.dtype], device: str
) -> tuple[Tensor, Tensor]:
    """Activations of m tokens and weights of n outputs, normal numbers."""
    x = normal((m, k), device).to(dtypes[0])
    w = (normal((n, k), device) / k**0.5).to(dtypes[1])
    return x, w


def normal(shape: tuple[int, int], device: str) -> Tensor:
    """The same numbers in every call."""
    generator = torch.Generator(device).manual_seed(SEED)
    return torch.randn(shape, generator=generator, device=device)


ROWS = {
    "head": rows_of_head,
    "square": rows_of_square,
    "skinny": rows_of_few,
    "muon": rows_of_muon,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Time, print and write; rows are written as they come."""
    options = parse(sys.argv[1:] if argv is None else argv)
    sizes = SMALL if options.small else FULL
    name = torch.cuda.get_device_name() if options.device == "cuda" else ""
    rows: list[Row] = []
    for part in options.parts.split(","):
        for row in ROWS[part](options.device, sizes):
            rows.append(row)
            values = (f"{x:.4g}" if isinstance(x, float) else x for x in row.values())
            print(*values, sep=", ", flush=True)
            write_csv(options.output, rows, seed=SEED, gpu=name)
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = "cuda" if cuda_is_usable() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=here)
    parser.add_argument("--small", action="store_true", help="shapes of a test")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="P,P,...")
    parser.add_argument("--output", type=Path, default=Path("results/heads.csv"))
    options = parser.parse_args(argv)
    unknown = set(options.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
