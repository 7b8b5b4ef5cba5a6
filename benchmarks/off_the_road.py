"""What do calls cost that leave the quick way, beside the plain call?

    python -m benchmarks.off_the_road --device cpu [--names PART] [--output FILE]
    python -m benchmarks.off_the_road --device cuda [--sizes N,N,...]

The quick way is a plain call of arrays, repeated. Prepared operands, backward passes,
vectors, stacks, small systems, reports, `gemm` with C and the like stand here beside
the plain call that has the same products, or beside the array library's own call.

A row has the least time of five fresh processes. On a CPU they take one thread, and
times are those of the processor; rows of tensors are there if PyTorch is installed.
Products on several GPUs are in `benchmarks.distributed` and `benchmarks.mesh_calls`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
import hifigemm.numpy as hnp
from benchmarks.common import sizes
from benchmarks.processes import METHODS, ONE_THREAD, clock_of, lines_of, print_line
from hifigemm.testing.matrices import phi_matrix
from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.measuring.runs import FAILURES
from hifigemm.workshop.measuring.timing import time_bursts

SIZES = {"cpu": (64,), "cuda": (512, 2048, 8192)}
"""Of the rows of tensors; NumPy's rows name their own."""
PROCESSES = 5
SEED = 1

CORRECT: dict[str, Any] = {"accuracy": "correct"}
MODULI: dict[str, Any] = {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")}
SLICES: dict[str, Any] = {"scheme": hg.Ozaki1(num_slices=8)}
WORDS: dict[str, Any] = {"scheme": hg.Corrected(product="fp16")}

Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A call, and the plain one that it is held against."""

    name: str
    beside: str
    plain: Call
    call: Call


def rows(device: str, sizes_of_tensors: Sequence[int]) -> Iterator[Row]:
    """All rows of a device."""
    if device == "cpu":
        yield from rows_of_vectors()
        yield from rows_of_small_matrices()
        yield from rows_of_prepared_arrays()
        yield from rows_of_wide_exponents()
        yield from rows_of_zeros()
        yield from rows_of_gemm()
        yield from rows_of_narrow_results()
        yield from rows_of_functions()
        yield from rows_of_systems()
        yield from rows_of_import()
    if device == "cuda" or find_spec("torch") is not None:
        for n in sizes_of_tensors:
            yield from rows_of_tensors(device, n)
            yield from rows_of_layouts(device, n)
            yield from rows_of_scopes(device, n)


def phi(*shape: int, phi: float = 0.5, dtype: str = "float64", seed: int = SEED) -> Any:
    """A phi matrix, the same in each process."""
    rng = np.random.default_rng([seed, *shape])
    return phi_matrix(rng, shape, phi).astype(dtype)


def rows_of_vectors() -> Iterator[Row]:
    """Matrices by vectors."""
    for n in (8, 64, 256):
        a, v = phi(n, n), phi(n)
        yield Row(
            f"matrix by vector, n = {n}, default",
            "numpy",
            lambda a=a, v=v: a @ v,
            lambda a=a, v=v: hg.matmul(a, v),
        )
        yield Row(
            f'matrix by vector, n = {n}, "correct"',
            "numpy",
            lambda a=a, v=v: a @ v,
            lambda a=a, v=v: hg.matmul(a, v, **CORRECT),
        )


def rows_of_small_matrices() -> Iterator[Row]:
    """Requests, reports and named schemes of small products."""
    for n in (8, 16):
        a, b = phi(n, n), phi(n, n, seed=2)
        yield Row(
            f"default, n = {n}",
            '"correct"',
            lambda a=a, b=b: hg.matmul(a, b, **CORRECT),
            lambda a=a, b=b: hg.matmul(a, b),
        )
    for n in (24, 32):
        a, b = phi(n, n, dtype="float32"), phi(n, n, dtype="float32", seed=2)
        for r in (1e-6, 1e-9):
            yield Row(
                f"float32 {r:g}, n = {n}",
                '"correct"',
                lambda a=a, b=b: hg.matmul(a, b, **CORRECT),
                lambda a=a, b=b, r=r: hg.matmul(a, b, accuracy=r),
            )
    for n, dtype in ((8, "float64"), (64, "float32")):
        a, b = phi(n, n, dtype=dtype), phi(n, n, dtype=dtype, seed=2)
        yield Row(
            f"{dtype} with a report, n = {n}",
            "no report",
            lambda a=a, b=b: hg.matmul(a, b),
            lambda a=a, b=b: hg.matmul(a, b, return_report=True),
        )
    for n in (4, 32):
        i, j = ((8 * phi(n, n, seed=seed)).astype(np.int64) for seed in (1, 2))
        yield Row(
            f"int64, n = {n}",
            "numpy",
            lambda i=i, j=j: i @ j,
            lambda i=i, j=j: hg.matmul(i, j),
        )
    for n in (8, 64):
        a, b = phi(n, n), phi(n, n, seed=2)
        x, y = a.astype(np.float32), b.astype(np.float32)
        yield Row(
            f"8 slices, n = {n}",
            "numpy",
            lambda a=a, b=b: a @ b,
            lambda a=a, b=b: hg.matmul(a, b, **SLICES),
        )
        yield Row(
            f"14 moduli, n = {n}",
            "numpy",
            lambda a=a, b=b: a @ b,
            lambda a=a, b=b: hg.matmul(a, b, **MODULI),
        )
        yield Row(
            f"float32 Corrected, n = {n}",
            "numpy",
            lambda x=x, y=y: x @ y,
            lambda x=x, y=y: hg.matmul(x, y, **WORDS),
        )
    x, y = phi(1024, 1024, dtype="float32"), phi(1024, 1024, dtype="float32", seed=2)
    yield Row(
        'float32 "correct", n = 1024',
        "numpy, float64",
        lambda: x.astype(np.float64) @ y.astype(np.float64),
        lambda: hg.matmul(x, y, **CORRECT),
    )


def rows_of_prepared_arrays() -> Iterator[Row]:
    """Prepared arrays of NumPy."""
    requests = {'"correct"': CORRECT, "default": {}, "1e-12": {"accuracy": 1e-12}}
    for n in (8, 64):
        a, b = phi(n, n), phi(n, n, seed=2)
        for name, options in requests.items():
            yield from rows_of_prepared(f"{name}, n = {n}", a, b, options)


def rows_of_prepared(
    name: str, a: Any, b: Any, options: dict[str, Any]
) -> Iterator[Row]:
    """A prepared, both prepared, and the preparation, of one request."""
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)

    def plain() -> Any:
        return hg.matmul(a, b, **options)

    yield Row(f"{name}, A prepared", "arrays", plain, lambda: hg.matmul(left, b))
    yield Row(f"{name}, both prepared", "arrays", plain, lambda: hg.matmul(left, right))
    yield Row(
        f"{name}, prepare(a)",
        "product of arrays",
        plain,
        lambda: hg.prepare(a, "left", **options),
    )


def rows_of_wide_exponents() -> Iterator[Row]:
    """Pairs of operands whose exponents are wide."""
    operands: dict[str, tuple[Any, Any]] = {}
    for n in (64, 256):
        grades = np.exp2(np.linspace(-30, 30, n).round())
        a, b = phi(n, n), phi(n, n, seed=2)
        wide = phi(n, n, phi=20.0), phi(n, n, phi=20.0, seed=2)
        operands[f"phi 20, n = {n}"] = wide
        operands[f"graded along k, n = {n}"] = a * grades, b / grades[:, None]
    k = 10_000
    v, w = phi(k), phi(k, seed=2)
    large = v.copy()
    large[k // 2] = 2.0**300
    operands["a dot of 10,000, phi 20"] = phi(k, phi=20.0), phi(k, phi=20.0, seed=2)
    operands["a dot of 10,000, integers"] = np.rint(1e3 * v), np.rint(1e3 * w)
    operands["a dot of 10,000, one entry 2^300"] = large, w
    for name, (a, b) in operands.items():
        yield Row(
            f"pair, {name}",
            '"correct"',
            lambda a=a, b=b: hg.matmul(a, b, **CORRECT),
            lambda a=a, b=b: hg.matmul(a, b, result="pair"),
        )


def rows_of_zeros() -> Iterator[Row]:
    """Correct products whose results have zeros; they are compared with dense ones."""
    n = 512
    for dtype in ("float64", "float32"):
        dense = phi(n, n, dtype=dtype)
        blocks = dense.copy()
        blocks[: n // 2, n // 2 :] = blocks[n // 2 :, : n // 2] = 0
        operands = {"two blocks": blocks, "lower triangles": np.tril(dense)}
        for name, x in operands.items():
            yield Row(
                f'{dtype} "correct", {name}, n = {n}',
                "dense",
                lambda a=dense: hg.matmul(a, a, **CORRECT),
                lambda a=x: hg.matmul(a, a, **CORRECT),
            )


def rows_of_gemm() -> Iterator[Row]:
    """`gemm` with C."""
    for n in (4, 16, 64):
        a, b, c = phi(n, n), phi(n, n, seed=2), phi(n, n, seed=3)
        yield Row(
            f"gemm(-1, 1), n = {n}, default",
            "numpy",
            lambda a=a, b=b: a @ b,
            lambda a=a, b=b, c=c: hg.gemm(a, b, c, alpha=-1.0, beta=1.0),
        )
        for alpha in (-1.0, 3.0):
            yield Row(
                f'gemm({alpha:g}, 1), n = {n}, "correct"',
                'matmul, "correct"',
                lambda a=a, b=b: hg.matmul(a, b, **CORRECT),
                lambda a=a, b=b, c=c, alpha=alpha: hg.gemm(
                    a, b, c, alpha=alpha, beta=1.0, **CORRECT
                ),
            )


def rows_of_narrow_results() -> Iterator[Row]:
    """Results that are rounded to float16, compared with those in float32."""
    for n in (64, 256):
        a = phi(n, n, dtype="float16")
        b = phi(n, n, dtype="float16", seed=2)
        for name, options in (("default", {}), ('"correct"', CORRECT)):
            yield Row(
                f"float16 to float16, {name}, n = {n}",
                "float32",
                lambda a=a, b=b, options=options: hg.matmul(a, b, **options),
                lambda a=a, b=b, options=options: hg.matmul(
                    a, b, out_dtype="float16", **options
                ),
            )
        yield Row(
            f'float16 to float16, gemm with C, "correct", n = {n}',
            "float32",
            lambda a=a, b=b: hg.gemm(a, b, a, beta=1.0, **CORRECT),
            lambda a=a, b=b: hg.gemm(a, b, a, beta=1.0, out_dtype="float16", **CORRECT),
        )


def rows_of_functions() -> Iterator[Row]:
    """Functions of `hifigemm.numpy`, and stacks."""
    for n in (4, 64):
        for name, options in (("default", {}), ('"correct"', CORRECT)):
            yield from rows_of_single_products(n, name, options)
    for n in (4, 64, 500):
        yield from rows_of_chains(n)
    stack, other = phi(1000, 4, 4), phi(1000, 4, 4, seed=2)
    for name, options in (("default", {}), ('"correct"', CORRECT)):
        yield Row(
            f"1000 of 4 x 4, {name}",
            "numpy",
            lambda: stack @ other,
            lambda options=options: hg.matmul(stack, other, **options),
        )


def rows_of_single_products(
    n: int, name: str, options: dict[str, Any]
) -> Iterator[Row]:
    """Functions that are one product, compared with `matmul` of the same operands."""
    a, b, v, w = phi(n, n), phi(n, n, seed=2), phi(n), phi(n, seed=2)
    stack, other = phi(5, n, n), phi(5, n, n, seed=2)

    def einsum(subscripts: str, *operands: Any) -> Call:
        return lambda: hnp.einsum(subscripts, *operands, **options)

    calls: dict[str, tuple[tuple[Any, Any], Call]] = {
        "dot": ((a, b), lambda: hnp.dot(a, b, **options)),
        "inner": ((a, b.T), lambda: hnp.inner(a, b, **options)),
        "tensordot": ((a, b), lambda: hnp.tensordot(a, b, 1, **options)),
        "tensordot, a pair of axes": (
            (a.T, b),
            lambda: hnp.tensordot(a, b, ([0], [0]), **options),
        ),
        "vdot": ((v[None], w[:, None]), lambda: hnp.vdot(v, w, **options)),
        "outer": ((v[:, None], w[None]), lambda: hnp.outer(v, w, **options)),
        "matvec": ((a, v[:, None]), lambda: hnp.matvec(a, v, **options)),
        "vecmat": ((v[None], a), lambda: hnp.vecmat(v, a, **options)),
        "syrk": ((a, a.T), lambda: hnp.syrk(a, **options)),
        "einsum ij,jk->ik": ((a, b), einsum("ij,jk->ik", a, b)),
        "einsum ij,kj->ik": ((a, b.T), einsum("ij,kj->ik", a, b)),
        "einsum bij,bjk->bik": ((stack, other), einsum("bij,bjk->bik", stack, other)),
        "einsum i,j->ij": ((v[:, None], w[None]), einsum("i,j->ij", v, w)),
        "einsum ij,ij->": (
            (a.reshape(1, -1), b.reshape(-1, 1)),
            einsum("ij,ij->", a, b),
        ),
        "einsum ii->": ((v[None], np.ones((n, 1))), einsum("ii->", a)),
    }
    for function, (operands, call) in calls.items():
        yield Row(
            f"{function}, n = {n}, {name}",
            "matmul",
            lambda operands=operands: hg.matmul(*operands, **options),
            call,
        )


def rows_of_chains(n: int) -> Iterator[Row]:
    """Functions that are two products, compared with two calls of `matmul`."""
    a, b, c = phi(n, n), phi(n, n, seed=2), phi(n, n, seed=3)
    calls: dict[str, Call] = {
        "einsum ij,jk,kl->il": lambda: hnp.einsum("ij,jk,kl->il", a, b, c),
        "multi_dot": lambda: hnp.multi_dot([a, b, c]),
        "matrix_power 3": lambda: hnp.matrix_power(a, 3),
    }
    for function, call in calls.items():
        yield Row(
            f"{function}, n = {n}, default",
            "two of matmul",
            lambda: hg.matmul(hg.matmul(a, b), c),
            call,
        )
    correct_calls: dict[str, Call] = {
        "multi_dot": lambda: hnp.multi_dot([a, b, c], **CORRECT),
        "congruence": lambda: hnp.congruence(c, b, **CORRECT),
    }
    for function, call in correct_calls.items():
        yield Row(
            f'{function}, n = {n}, "correct"',
            "two of matmul",
            lambda: hg.matmul(hg.matmul(a, b, **CORRECT), c, **CORRECT),
            call,
        )


def rows_of_systems() -> Iterator[Row]:
    """`hifigemm.linalg`, compared with NumPy's functions."""
    for n in (8, 32, 64, 1024):
        # Ordinary matrices, and positive definite ones.
        a, b = phi(n, n) + np.eye(n), phi(n)
        gram = a @ a.T + n * np.eye(n)
        yield Row(
            f"linalg.solve, n = {n}",
            "numpy",
            lambda a=a, b=b: np.linalg.solve(a, b),
            lambda a=a, b=b: hg.linalg.solve(a, b),
        )
        yield Row(
            f"linalg.solve, radii of the data, n = {n}",
            "plain call",
            lambda a=a, b=b: hg.linalg.solve(a, b),
            lambda a=a, b=b: hg.linalg.solve(a, b, a_radius=1e-12, b_radius=1e-12),
        )
        yield Row(
            f"linalg.inv, n = {n}",
            "numpy",
            lambda a=a: np.linalg.inv(a),
            lambda a=a: hg.linalg.inv(a),
        )
        yield Row(
            f"linalg.det, n = {n}",
            "numpy, slogdet",
            lambda a=a: np.linalg.slogdet(a),
            lambda a=a: hg.linalg.det(a),
        )
        yield Row(
            f"linalg.is_positive_definite, n = {n}",
            "numpy, cholesky",
            lambda gram=gram: np.linalg.cholesky(gram),
            lambda gram=gram: hg.linalg.is_positive_definite(gram),
        )
        yield Row(
            f"linalg.eigvalsh, n = {n}",
            "numpy, eigh",
            lambda gram=gram: np.linalg.eigh(gram),
            lambda gram=gram: hg.linalg.eigvalsh(gram),
        )
        yield Row(
            f"linalg.svdvals, n = {n}",
            "numpy, svd",
            lambda a=a: np.linalg.svd(a),
            lambda a=a: hg.linalg.svdvals(a),
        )
    for n in (10, 100, 1000):
        left, _ = np.linalg.qr(phi(n, n))
        right, _ = np.linalg.qr(phi(n, n, seed=2))
        inverted = {
            "ordinary": phi(n, n) + np.eye(n),
            "condition 1e10": (left * np.logspace(0.0, -10.0, n)) @ right,
            "triangular": np.triu(phi(n, n)) + 20.0 * np.eye(n),
        }
        for name, a in inverted.items():
            yield Row(
                f"linalg.inv, {name}, n = {n}",
                "numpy",
                lambda a=a: np.linalg.inv(a),
                lambda a=a: hg.linalg.inv(a),
            )
    square = phi(2000, 2000)
    structured = [
        ("3 diagonals", np.triu(np.tril(square, 1), -1) + 2.0 * np.eye(2000)),
        ("41 diagonals", np.triu(np.tril(square, 20), -20) + 8.0 * np.eye(2000)),
        ("201 diagonals", np.triu(np.tril(square, 100), -100) + 20.0 * np.eye(2000)),
        ("a triangle", np.triu(phi(500, 500)) + 20.0 * np.eye(500)),
        ("a triangle", np.triu(square) + 40.0 * np.eye(2000)),
    ]
    for name, a in structured:
        b = phi(len(a))
        yield Row(
            f"linalg.solve, {name}, n = {len(a)}",
            "numpy",
            lambda a=a, b=b: np.linalg.solve(a, b),
            lambda a=a, b=b: hg.linalg.solve(a, b),
        )
    for count, n in ((100, 8), (65_537, 3)):
        stack, sides = phi(count, n, n) + np.eye(n), phi(count, n, 1)
        yield Row(
            f"linalg.solve of {count} systems, n = {n}",
            "numpy",
            lambda a=stack, b=sides: np.linalg.solve(a, b),
            lambda a=stack, b=sides: hg.linalg.solve(a, b),
        )
    for n in (3, 8, 32):
        stack = phi(1000, n, n)
        grams = stack @ np.swapaxes(stack, 1, 2) + n * np.eye(n)
        yield Row(
            f"linalg.det of 1000 matrices, n = {n}",
            "numpy",
            lambda stack=stack: np.linalg.det(stack),
            lambda stack=stack: hg.linalg.det(stack),
        )
        yield Row(
            f"linalg.is_positive_definite of 1000 matrices, n = {n}",
            "numpy, cholesky",
            lambda grams=grams: np.linalg.cholesky(grams),
            lambda grams=grams: hg.linalg.is_positive_definite(grams),
        )
    tall, sides = phi(1000, 12, 3), phi(1000, 12, 1)
    yield Row(
        "linalg.lstsq of 1000 matrices, 12 x 3",
        "a loop of numpy",
        lambda: [np.linalg.lstsq(a, b, rcond=None) for a, b in zip(tall, sides)],
        lambda: hg.linalg.lstsq(tall, sides),
    )
    for m, n in ((100, 10), (1000, 100)):
        a, b = phi(m, n), phi(m)
        yield Row(
            f"linalg.lstsq, {m} x {n}",
            "numpy",
            lambda a=a, b=b: np.linalg.lstsq(a, b, rcond=None),
            lambda a=a, b=b: hg.linalg.lstsq(a, b),
        )


def rows_of_import() -> Iterator[Row]:
    """A process that imports the library."""

    def imports(name: str) -> Any:
        return subprocess.run([sys.executable, "-c", f"import {name}"], check=True)

    yield Row(
        "import hifigemm",
        "import numpy",
        lambda: imports("numpy"),
        lambda: imports("hifigemm"),
    )


def tensors(device: str, n: int, dtype: str = "float64") -> list[Any]:
    """A, B, C and a vector on the device."""
    import torch

    generator = torch.Generator(device).manual_seed(SEED)
    options = {"generator": generator, "device": device}
    kind = getattr(torch, dtype)
    shapes = (n, n), (n, n), (n, n), (n,)
    return [torch.randn(shape, dtype=kind, **options) for shape in shapes]


REQUESTS: dict[str, dict[str, dict[str, Any]]] = {
    "float64": {'"correct"': CORRECT, "14 moduli": MODULI, "default": {}},
    "float32": {'"correct"': CORRECT, "Corrected": WORDS},
}
"""Of prepared tensors, by dtype."""


def rows_of_tensors(device: str, n: int) -> Iterator[Row]:
    """Prepared tensors, gradients, reports, vectors and `gemm`."""
    import torch

    for dtype, requests in REQUESTS.items():
        a, b, c, v = tensors(device, n, dtype)
        x = a.clone().requires_grad_()
        for name, options in requests.items():
            yield from rows_of_prepared(
                f"tensors, {dtype} {name}, n = {n}", a, b, options
            )
            yield Row(
                f"tensors, {dtype} {name} with a report, n = {n}",
                "no report",
                lambda a=a, b=b, o=options: hg.matmul(a, b, **o),
                lambda a=a, b=b, o=options: hg.matmul(a, b, return_report=True, **o),
            )
        yield Row(
            f"tensors, {dtype} default, forward and backward, n = {n}",
            "two plain calls",
            lambda a=a, b=b, c=c: (hg.matmul(a, b), hg.matmul(c, b.mT)),
            lambda x=x, b=b, c=c: torch.autograd.grad(hg.matmul(x, b), x, c),
        )
        weight = torch.nn.Parameter(b.clone())

        def by_weight(a: Any = a, weight: Any = weight) -> Any:
            with torch.no_grad():
                return hg.matmul(a, weight)

        yield Row(
            f"tensors, {dtype} default, a weight without gradient, n = {n}",
            "plain call",
            lambda a=a, b=b: hg.matmul(a, b),
            by_weight,
        )
        yield Row(
            f"tensors, {dtype} default, matrix by vector, n = {n}",
            "torch",
            lambda a=a, v=v: a @ v,
            lambda a=a, v=v: hg.matmul(a, v),
        )
    a, b, c, v = tensors(device, n)
    accurate = {"scheme": hg.Ozaki2(num_moduli=14, scaling="accurate")}
    for name, options in (("", {}), (" with a report", {"return_report": True})):
        yield Row(
            f"tensors, 14 moduli, accurate scaling{name}, n = {n}",
            "fast scaling",
            lambda: hg.matmul(a, b, **MODULI),
            lambda o=options: hg.matmul(a, b, **accurate, **o),
        )
    yield from rows_of_numbers(a, b)
    yield Row(
        f"tensors, linalg.solve, n = {n}",
        "torch",
        lambda: torch.linalg.solve(a, v),
        lambda: hg.linalg.solve(a, v),
    )
    generator = torch.Generator(device).manual_seed(SEED)
    for count, rows in ((1024, 3), (65537, 3), (32768, 8)):
        shape = count, rows, rows
        matrices = torch.randn(shape, dtype=a.dtype, device=device, generator=generator)
        sides = matrices[:, :, :1]
        yield Row(
            f"tensors, linalg.solve of {count} systems, n = {rows}",
            "torch",
            lambda m=matrices, s=sides: torch.linalg.solve(m, s),
            lambda m=matrices, s=sides: hg.linalg.solve(m, s),
        )
        yield Row(
            f"tensors, linalg.inv of {count} systems, n = {rows}",
            "torch",
            lambda m=matrices: torch.linalg.inv(m),
            lambda m=matrices: hg.linalg.inv(m),
        )
        yield Row(
            f"tensors, linalg.det of {count} systems, n = {rows}",
            "torch, to the host",
            lambda m=matrices: torch.linalg.det(m).cpu(),
            lambda m=matrices: hg.linalg.det(m),
        )
        grams = matrices @ matrices.mT
        yield Row(
            f"tensors, linalg.is_positive_definite of {count} systems, n = {rows}",
            "torch, cholesky_ex, to the host",
            lambda g=grams: torch.linalg.cholesky_ex(g).info.cpu(),
            lambda g=grams: hg.linalg.is_positive_definite(g),
        )
    for name, options in (("14 moduli", MODULI), ('"correct"', CORRECT)):
        for alpha in (-1.0, 3.0):
            yield Row(
                f"tensors, gemm({alpha:g}, 1), {name}, n = {n}",
                "matmul",
                lambda o=options: hg.matmul(a, b, **o),
                lambda o=options, s=alpha: hg.gemm(a, b, c, alpha=s, beta=1.0, **o),
            )


def rows_of_numbers(a: Any, b: Any) -> Iterator[Row]:
    """A number that the native product keeps, for operands whose products make the
    library look further: with zeros in the result, and with terms that underflow.
    """
    n = len(a)
    quarter = n // 4
    zeros = a.clone()
    zeros[:quarter, quarter:] = 0.0
    zeros[quarter:, :quarter] = 0.0
    deep = zeros.clone()
    deep.diagonal()[:] = 1e-160
    for name, x in (
        ("", a),
        (", zeros in the result", zeros),
        (", terms underflow", deep),
    ):
        y = b if x is a else x
        yield Row(
            f"tensors, float64 1e-12{name}, n = {n}",
            "torch",
            lambda x=x, y=y: x @ y,
            lambda x=x, y=y: hg.matmul(x, y, accuracy=1e-12),
        )


def rows_of_layouts(device: str, n: int) -> Iterator[Row]:
    """Results and operands that are laid out otherwise."""
    import torch

    a, b, c, _ = tensors(device, n)
    columns = torch.empty((n, 2 * n), dtype=c.dtype, device=device)[:, ::2]
    wide = torch.randn((n, 2 * n), dtype=c.dtype, device=device)
    calls: dict[str, Call] = {
        "out=": lambda: hg.matmul(a, b, out=c, **MODULI),
        "out= of strided columns": lambda: hg.matmul(a, b, out=columns, **MODULI),
        "transposed operands": lambda: hg.matmul(a.mT, b.mT, **MODULI),
        "a strided view": lambda: hg.matmul(wide[:, ::2], b, **MODULI),
        "einsum ij,jk->ik": lambda: hnp.einsum("ij,jk->ik", a, b, **MODULI),
    }
    for name, call in calls.items():
        yield Row(
            f"tensors, 14 moduli, {name}, n = {n}",
            "plain call",
            lambda: hg.matmul(a, b, **MODULI),
            call,
        )


def rows_of_scopes(device: str, n: int) -> Iterator[Row]:
    """Products of PyTorch that the library serves."""
    import torch

    a, b, *_ = tensors(device, n)
    options = {"scheme": MODULI["scheme"], "min_size": 1}

    def product_in_scope() -> Any:
        with hg.emulate(**options):
            return a @ b

    def linear_in_scope() -> Any:
        with hg.emulate(**options):
            return torch.nn.functional.linear(a, b)

    calls: dict[str, Call] = {
        "a scope of emulate": product_in_scope,
        "F.linear in a scope": linear_in_scope,
    }
    if device == "cuda":
        compiled = torch.compile(lambda x, y: hg.matmul(x, y, **MODULI))
        calls["torch.compile"] = lambda: compiled(a, b)
    for name, call in calls.items():
        yield Row(
            f"tensors, 14 moduli, {name}, n = {n}",
            "plain call",
            lambda: hg.matmul(a, b, **MODULI),
            call,
        )


@np.errstate(all="ignore")
def run_process(device: str, sizes_of_tensors: Sequence[int], names: str) -> None:
    """Time the rows in this process; print a line for each."""
    clock = clock_of(device)
    for row in rows(device, sizes_of_tensors):
        if names not in row.name:
            continue
        line = {"name": row.name, "beside": row.beside}
        try:
            row.plain()
            row.call()
        except FAILURES as error:
            print_line(**line, failed=str(error).splitlines()[0])
            continue
        times = time_bursts(
            {"plain": row.plain, "call": row.call}, clock, METHODS[device]
        )
        print_line(
            **line, plain_us=1e6 * times["plain"].least, us=1e6 * times["call"].least
        )


def least_of(processes: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the file: the least of the processes, and the ratio of both."""
    found = []
    for lines in zip(*processes, strict=True):
        row = {key: lines[0][key] for key in ("name", "beside")}
        failures = [line["failed"] for line in lines if "failed" in line]
        if failures:
            found.append(row | {"failed": failures[0]})
            continue
        plain = min(line["plain_us"] for line in lines)
        us = min(line["us"] for line in lines)
        row |= {"plain_us": round(plain, 2), "us": round(us, 2)}
        found.append(row | {"ratio": round(us / plain, 2)})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a call failed."""
    options = parse(sys.argv[1:] if argv is None else argv)
    sizes_of_tensors = options.sizes or SIZES[options.device]
    if options.process:
        run_process(options.device, sizes_of_tensors, options.names)
        return 0

    arguments = ["--process", "--device", options.device, "--names", options.names]
    arguments += ["--sizes", ",".join(map(str, sizes_of_tensors))]
    variables = ONE_THREAD if options.device == "cpu" else {}
    processes = []
    for turn in range(options.processes):
        print(f"process {turn + 1} of {options.processes}", flush=True)
        processes.append(
            lines_of("benchmarks.off_the_road", arguments, variables=variables)
        )
    found = least_of(processes)
    for row in found:
        cells = row.get("failed") or (
            f"{row['plain_us']:>12.6g}{row['us']:>12.6g}{row['ratio']:>9.4g}"
        )
        print(f"{row['name']:<64} {row['beside']:<18} {cells}")
    if options.output is not None:
        write_csv(
            options.output,
            found,
            device=name_of(options.device),
            torch=version("torch") if find_spec("torch") else None,
            method=vars(METHODS[options.device]),
            processes=options.processes,
            note=options.note,
        )
    return int(any("failed" in row for row in found))


def name_of(device: str) -> str:
    """The name of the card, or "cpu"."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--names", default="", help="rows whose names hold this part")
    parser.add_argument(
        "--sizes", type=sizes, metavar="N,N,...", help="of the rows of tensors"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--note", default="", help="for the environment")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: at least one")
    return options


if __name__ == "__main__":
    sys.exit(main())
