"""Products of three factors at random, all of which are to be rounded once, against
exact integers:

    python -m tests.fuzz.three_factors --products 20000 --seed 1

Factors are of the families of products of two, whose sums cancel, tie, over- or
underflow or have exponents over the whole range, and of families where A B C cancels
though A B does not. What is wrong is printed with its seed and index.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

import hifigemm as hg
import hifigemm.numpy as hnp
from tests.conftest import PAIRS, SINGLES, real_pair
from tests.exact_values import rounded_once, same_bits

DTYPES = ("float64", "float64", "float32", "complex128", "complex64")
FAMILIES = (*SINGLES, *PAIRS)
CANCELLING = ("zero", "nearly zero", "residual", "tie", "near tie")
"""Families of C that cancel what A B leaves, see `_cancelling`."""

Factors = tuple[np.ndarray, np.ndarray, np.ndarray]
CALLS: dict[str, Callable[..., Any]] = {
    "multi_dot": lambda a, b, c, **options: hnp.multi_dot([a, b, c], **options),
    "einsum": lambda *factors, **options: _einsum(
        "ij,jk,kl->il", 0, *factors, **options
    ),
    "einsum, B C first": lambda *factors, **options: _einsum(
        "ij,jk,kl->il", 1, *factors, **options
    ),
    "einsum, moved axes": lambda a, b, c, **options: _einsum(
        "ji,kj,kl->li", 0, a.T, b.T, c, **options
    ),
    "einsum of a trace": lambda a, b, c, **options: _einsum(
        "ij,jk,ik->", 0, a, b, _summed(a, c), **options
    ),
    "matrix_power": lambda a, b, c, **options: hnp.matrix_power(a, 3, **options),
    "congruence": lambda a, b, c, **options: hnp.congruence(c, b, **options),
}


def _einsum(subscripts: str, first: int, *factors: np.ndarray, **options: Any) -> Any:
    """einsum that multiplies the factors first and first + 1 at first."""
    path = ["einsum_path", (first, first + 1), (0, 1)]
    return hnp.einsum(subscripts, *factors, optimize=path, **options)


def _summed(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A factor of the shape of A B."""
    return np.resize(c, (a.shape[0], c.shape[0]))


@dataclass(frozen=True)
class Case:
    """Three factors, and what is asked of their product."""

    at: tuple[int, int]
    call: str
    family: str
    factors: Factors
    accuracy: Any

    def __str__(self) -> str:
        shapes = [f"{x.dtype}{x.shape}" for x in self.factors]
        return f"{self.at[0]} {self.at[1]}: {self.call}({', '.join(shapes)}, accuracy={self.accuracy}) of {self.family}"

    def result(self) -> tuple[Any, Any]:
        """What the library gives, with its report."""
        value, report = CALLS[self.call](
            *self.factors, accuracy=self.accuracy, return_report=True
        )
        return np.asarray(value), report

    def expected(self) -> np.ndarray:
        """Every real component rounded once."""
        a, b, c = self.factors
        if self.call == "matrix_power":
            return rounded_product(a, a, a)
        if self.call == "congruence":
            return rounded_product(c.conj().T, b, c)
        if self.call == "einsum, B C first":
            return rounded_product(c.T, b.T, a.T).T
        if self.call == "einsum, moved axes":
            return rounded_product(a, b, c).T
        if self.call == "einsum of a trace":
            return rounded_trace(a, b, _summed(a, c))
        return rounded_product(a, b, c)


def embedded(x: np.ndarray) -> np.ndarray:
    """The real matrix [[re, -im], [im, re]] of a complex one, in float64."""
    if x.dtype.kind != "c":
        return x.astype(np.float64)
    return np.block([[x.real, -x.imag], [x.imag, x.real]]).astype(np.float64)


def _exact(x: np.ndarray) -> np.ndarray:
    """Fractions of finite entries, other entries themselves."""
    entries = [Fraction(y) if np.isfinite(y) else y for y in x.ravel().tolist()]
    return np.array([*entries, None], object)[:-1].reshape(x.shape)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B of fractions, and of what IEEE arithmetic makes of Inf and NaN."""
    product = np.empty((a.shape[0], b.shape[1]), object)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            pairs = list(zip(a[i], b[:, j], strict=True))
            if all(isinstance(x, Fraction) for pair in pairs for x in pair):
                product[i, j] = sum((x * y for x, y in pairs), Fraction(0))
                continue
            total = 0.0
            for x, y in pairs:
                total += _sign(x) * _sign(y)
            product[i, j] = total
    return product


def _sign(x: Any) -> float:
    """The sign of a fraction, another number itself."""
    return float((x > 0) - (x < 0)) if isinstance(x, Fraction) else x


def rounded_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """(A B) C, every real component rounded once."""
    dtype = np.result_type(a, b, c)
    exact = _times(_times(*[_exact(embedded(x)) for x in (a, b)]), _exact(embedded(c)))
    return _rounded(exact, (a.shape[0], c.shape[1]), dtype)


def rounded_trace(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The sum over (A B) times C, entry by entry."""
    dtype = np.result_type(a, b, c)
    product = _times(*[_exact(embedded(x)) for x in (a, b)])
    factor = _exact(embedded(c.T))
    m, n = c.shape
    width = 2 if dtype.kind == "c" else 1
    # A row of all entries of A B, embedded, and a column of those of C.
    blocks = product.reshape(width, m, width, n).transpose(0, 2, 1, 3)
    left = np.block(
        [[blocks[i, j].reshape(1, -1) for j in range(width)] for i in range(width)]
    )
    columns = factor.reshape(width, n, width, m).transpose(0, 2, 3, 1)
    right = np.block(
        [[columns[i, j].reshape(-1, 1) for j in range(width)] for i in range(width)]
    )
    return _rounded(_times(left, right), (1, 1), dtype).reshape(())


def _rounded(exact: np.ndarray, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Embedded fractions as numbers of the dtype."""
    real = np.finfo(dtype).dtype
    m, n = shape
    values = np.empty(shape, dtype)
    for i in range(m):
        for j in range(n):
            values.real[i, j] = _number(exact[i, j], real)
            if dtype.kind == "c":
                values.imag[i, j] = _number(exact[i + m, j], real)
    return values


def _number(x: Any, real: Any) -> float:
    return rounded_once(x, real) if isinstance(x, Fraction) else x


@np.errstate(all="ignore")
def draw(seed: int, index: int) -> Case:
    """The case of an index."""
    rng = np.random.default_rng([seed, index])
    call = str(rng.choice(list(CALLS)))
    dtype = np.dtype(str(rng.choice(DTYPES)))
    m, k, h, n = (int(x) for x in rng.integers(1, 7, 4))
    if rng.random() < 0.1:
        k, h = (int(x) for x in rng.integers(1, 30, 2))
    family = str(rng.choice(FAMILIES))
    a, b = _pair(rng, family, m, k, h, dtype)
    if rng.random() < 0.5 and h > 1:
        kind = str(rng.choice(CANCELLING))
        b, c = _cancelling(rng, kind, a, b, n)
        family = f"{family}, {kind}"
    else:
        other = str(rng.choice(FAMILIES))
        c, _ = _pair(rng, other, h, n, n, dtype)
        family = f"{family}, {other}"
    if call == "matrix_power":
        a = np.resize(a, (m, m))
    if call == "congruence":
        b = _square(rng, h, b, dtype)
    if rng.random() < 0.05:
        for x in (a, b, c):
            _spoil(rng, x)
    accuracy = [
        "correct",
        0,
        hg.Relative(float(10.0 ** rng.uniform(-6, -3))),
        float(10.0 ** rng.uniform(-40, -18)),
    ][rng.integers(4)]
    return Case((seed, index), call, family, (a, b, c), accuracy)


def _pair(
    rng: np.random.Generator, family: str, m: int, k: int, n: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a family, real or complex."""
    real = np.finfo(dtype).dtype
    a, b = (x.astype(dtype) for x in real_pair(rng, family, m, k, n, real))
    if dtype.kind == "c":
        a.imag, b.imag = real_pair(rng, family, m, k, n, real)
    return a, b


def _cancelling(
    rng: np.random.Generator, kind: str, a: np.ndarray, b: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """B and C whose product with A is zero, close to it, or close to a tie."""
    half = b.shape[1] // 2
    scale = 2.0 ** rng.integers(-20, 20)
    c = np.zeros((b.shape[1], n), b.dtype)
    top = rng.standard_normal((half, n)).astype(b.dtype)
    b = b.copy()
    if kind in ("zero", "nearly zero"):
        # [B_1 B_1] [C_1; -C_1]
        b[:, half : 2 * half] = b[:, :half]
        c[:half], c[half : 2 * half] = top, -top
        if kind == "nearly zero":
            c[-1] += (c[-1] * np.finfo(b.dtype).eps).astype(b.dtype)
    elif kind == "residual":
        # A B C is what one rounding of the second of two terms leaves.
        first, second = np.asarray(a[0].astype(complex) @ b[:, :2].astype(complex))
        c[0] = rng.standard_normal(n)
        quotient = -c[0] * first / second
        c[1] = quotient if b.dtype.kind == "c" else quotient.real
        c = np.where(np.isfinite(c), c, c.dtype.type(1))
    else:
        # Powers of two move A B to half a unit in the last place beside it.
        c[0] = 1
        c[1] = np.finfo(b.dtype).eps / 2
        b[:, 1] = b[:, 0]
        if kind == "near tie" and len(c) > 2:
            c[2] = np.finfo(b.dtype).eps ** 3 * rng.choice([-1, 1])
    return b, (c * b.dtype.type(scale)).astype(b.dtype)


def _square(
    rng: np.random.Generator, n: int, b: np.ndarray, dtype: np.dtype
) -> np.ndarray:
    """A square matrix, often Hermitian, symmetric or skew, of entries of another one."""
    s = np.resize(rng.permutation(b.ravel()), (n, n)).astype(dtype)
    lower = np.tril(s, -1)
    kind = rng.integers(4)
    if kind == 0:
        return s
    if kind == 1:
        diagonal = np.diag(np.diag(s).real.astype(dtype))
        return lower + lower.conj().T + diagonal
    if kind == 2:
        return lower + lower.T + np.diag(np.diag(s))
    return lower - lower.T


def _spoil(rng: np.random.Generator, x: np.ndarray) -> None:
    """Put Inf and NaN in some places."""
    for _ in range(rng.integers(0, 3)):
        if x.size:
            at = tuple(int(rng.integers(n)) for n in x.shape)
            x[at] = rng.choice([np.inf, -np.inf, np.nan])


@np.errstate(all="ignore")
def faults(case: Case, counts: Counter[str]) -> Iterator[str]:
    """What is wrong with the result of a case; adds to the counts."""
    counts["products"] += 1
    value, report = case.result()
    counts["entries"] += report.entries
    counts["in more words"] += report.in_more_words
    counts["by integers"] += report.by_integers
    expected = np.ascontiguousarray(case.expected())
    value = np.ascontiguousarray(value)
    # NaN has many bits.
    is_nan = (
        np.isnan(value.view(value.real.dtype)),
        np.isnan(expected.view(expected.real.dtype)),
    )
    clean = [
        np.where(y, 0, x.view(x.real.dtype))
        for x, y in zip((value, expected), is_nan, strict=True)
    ]
    if not (
        np.array_equal(*is_nan) and same_bits(*clean) and value.dtype == expected.dtype
    ):
        counts["wrong"] += 1
        yield f"{case}\n{value}\nnot\n{expected}"


def main() -> int:
    """Draw, multiply, compare; the exit status is 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--products", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    counts: Counter[str] = Counter()
    for index in range(options.products):
        for fault in faults(draw(options.seed, index), counts):
            print(fault)
    print(dict(counts), f"{time.monotonic() - started:.1f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
