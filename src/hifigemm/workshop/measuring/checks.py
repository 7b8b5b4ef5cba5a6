"""Is a product right? Asked of every result before it is timed.

For float64 and complex128 some rows and columns are held against the exact product,
correct to twice the precision, over all of k, and the whole result against the
library's own product, whose a-priori error k u |A||B| allows for. For float32 and
complex64 the whole result is held against the product in float64.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import hifigemm as hg

from .arrays import Workload, to_host, widened

SAMPLE = 64
"""Rows and columns that are compared with the exact product."""

_AT_ONCE = 1 << 25
"""Entries of a result that are compared at a time."""


@dataclass(frozen=True)
class Verdict:
    """What was seen of a result."""

    error: float  # the largest |C - AB| / (|A||B|) of a real component
    wrong: str = ""  # what is wrong with it, if anything
    # ||C - AB||_F / ||AB||_F over the entries that were compared with an accurate
    # product
    normwise: float = math.nan


def native_bound(load: Workload) -> float:
    """gamma_k = k u / (1 - k u): the worst case of a product whose sums are rounded in
    the format of the result.
    """
    return load.terms * load.u / (1 - load.terms * load.u)


class Reference:
    """What the product of two operands should be.

    So many rows and columns of a matrix as `sample` says are compared with the exact
    product, the first and the last among them; of a stack the first matrix, the last
    and some others. Complex operands are judged in their real embedding: columns of re
    and im stand in turn in the result and in B.
    """

    def __init__(self, load: Workload, a: Any, b: Any, sample: int = SAMPLE) -> None:
        self._load = load
        self._is_wide = load.real == "float64"
        a = a.reshape(load.batch, *a.shape[-2:])
        b = b.reshape(load.batch, *b.shape[-2:])
        # Real factors whose products add up to the result.
        self._factors = [(a, b)]
        if load.is_complex:
            self._factors = [(a.real, _as_real(b)), (a.imag, _as_real(1j * b))]
        self._values: Any = sum(widened(x) @ widened(y) for x, y in self._factors)
        self._samples = self._exact_samples(sample) if self._is_wide else []

    def judge(self, c: Any, bound: float) -> Verdict:
        """Hold a result against the promise |C - AB| <= bound |A||B| + u |AB|.

        A bound that is not finite promises nothing: then the worst case of a native
        product is asked for.
        """
        load = self._load
        bound = bound if math.isfinite(bound) else native_bound(load)
        slack = 1 + 4 * load.terms * 2.0**-53
        limit = (bound + load.u) * slack
        # The second operand of the comparison errs too: the native product, or the
        # product in float64.
        if self._is_wide:
            error_of_values = native_bound(load)
        else:
            error_of_values = 2 * load.terms * 2.0**-53
        wide_limit = limit + slack * error_of_values
        c = _as_real(c.reshape(load.batch, load.m, load.n))
        error, normwise, broken, missing = self._compare_all(c, wide_limit)
        if missing:
            entries = load.batch * load.m * load.n
            wrong = f"{missing} of {entries} entries are not finite or not written"
            return Verdict(math.inf, wrong)
        if self._is_wide:
            error, normwise = self._compare_samples(c)
        wrong = ""
        if error > (limit if self._is_wide else wide_limit):
            wrong = f"an error of {error:.3g} |A||B| breaks the bound of {bound:.3g}"
        elif broken:
            wrong = f"{broken} entries differ from the native product by more than both may err"
        return Verdict(error, wrong, normwise)

    def _compare_all(self, c: Any, tolerance: float) -> tuple[float, float, int, int]:
        """Largest and normwise error against the product at hand, entries beyond the
        tolerance, and not finite ones.
        """
        error = 0.0
        broken = 0
        missing = 0
        norm_of_difference = 0.0
        norm_of_values = 0.0
        tiny = float(np.finfo(self._load.real).smallest_subnormal)
        step = max(_AT_ONCE // c.shape[-1], 1)
        starts = range(0, c.shape[1], step)
        for z, start in itertools.product(range(c.shape[0]), starts):
            rows = slice(start, start + step)
            size: Any = 0
            for x, y in self._factors:
                left = abs(widened(x[z, rows]))
                size = size + left @ abs(widened(y[z]))
            expected = self._values[z, rows]
            difference = abs(widened(c[z, rows]) - expected)
            finite = difference < math.inf
            missing += int((~finite).sum())

            # Half the smallest subnormal is what the last rounding may cost in any
            # case.
            broken += int((difference > tolerance * size + tiny).sum())
            has_error = finite & (difference > tiny) & (size > 0)
            ratio = difference[has_error] / size[has_error]
            if len(ratio):
                error = max(error, float(ratio.max()))
            norm_of_difference = math.hypot(norm_of_difference, _norm(difference))
            norm_of_values = math.hypot(norm_of_values, _norm(expected))
        return error, _quotient(norm_of_difference, norm_of_values), broken, missing

    def _exact_samples(self, sample: int) -> list[tuple[Any, ...]]:
        """Indices of some matrices, rows and columns; their product in two words;
        |A||B|.
        """
        load = self._load
        rng = np.random.default_rng([self._load.seed, 64])
        width = len(self._factors)
        samples = []
        for z in _choose(rng, load.batch, 4):
            rows = _choose(rng, load.m, sample)
            entries = _choose(rng, load.n, sample)
            columns = [width * j + part for j in entries for part in range(width)]
            a = np.hstack([to_host(x[z][rows]) for x, _ in self._factors])
            b = np.vstack([to_host(y[z][:, columns]) for _, y in self._factors])
            high = hg.matmul(a, b, accuracy="correct", engine="numpy")

            # A B - high as one product, [A high] [B; -I].
            minus = -np.eye(len(columns), dtype=b.dtype)
            left = np.hstack([a, high])
            right = np.vstack([b, minus])
            low = hg.matmul(left, right, accuracy="correct", engine="numpy")
            samples.append((z, rows, columns, high, low, abs(a) @ abs(b)))
        return samples

    def _compare_samples(self, c: Any) -> tuple[float, float]:
        """Largest and normwise error of the sampled entries: (C - high) - low, high and
        low the words of AB.
        """
        error = 0.0
        norm_of_difference = 0.0
        norm_of_values = 0.0
        for z, rows, columns, high, low, size in self._samples:
            difference = abs((to_host(c[z][rows][:, columns]) - high) - low)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(difference == 0, 0, difference / size)
            error = max(error, float(ratio.max()))
            norm_of_difference = math.hypot(norm_of_difference, _norm(difference))
            norm_of_values = math.hypot(norm_of_values, _norm(high))
        return error, _quotient(norm_of_difference, norm_of_values)


def _as_real(x: Any) -> Any:
    """A complex array or tensor with re and im in columns of their own; a real one
    itself.
    """
    return x.view(x.real.dtype)


def _norm(x: Any) -> float:
    """Frobenius norm of a real array, scaled by its largest entry."""
    largest = float(abs(x).max())
    if not 0.0 < largest < math.inf:
        return largest
    squares = (x / largest) ** 2
    return largest * math.sqrt(float(squares.sum()))


def _quotient(error: float, size: float) -> float:
    return error / size if error else 0.0


def _choose(rng: np.random.Generator, size: int, count: int) -> list[int]:
    """At most so many indices below size, the first and the last among them."""
    if size <= count:
        return list(range(size))
    inner = rng.choice(np.arange(1, size - 1), max(count - 2, 0), replace=False)
    return sorted({0, size - 1, *(int(i) for i in inner)})
