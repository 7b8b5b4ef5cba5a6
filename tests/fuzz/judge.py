"""The judge: what alpha A B + beta C must be, in integers. It shares no code with the
library.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hifigemm.testing.exact import (
    ExactMatrix,
    excesses,
    integers_and_exponents,
    round_integers,
)
from hifigemm.testing.reference import exact_product
from tests.special_operands import embedded, pattern

__all__ = ["Exact", "level"]


def level(accuracy: Any, dtype: np.dtype, k: int) -> float:
    """r of None, "fp32" and "fp64" for results of this dtype."""
    t = {"fp32": 24, "fp64": 53}.get(accuracy, np.finfo(dtype).nmant + 1)
    return max(4.0, math.sqrt(k) / 4.0) * 2.0**-t


class Dyadic(NamedTuple):
    """integers * 2**exponent, entry by entry: Python integers and int64."""

    integers: np.ndarray
    exponent: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Dyadic:
        integers, exponent = integers_and_exponents(x)
        return cls(integers.astype(object), exponent)

    def times(self, s: float) -> Dyadic:
        p, q = float(s).as_integer_ratio()
        return Dyadic(self.integers * p, self.exponent - (q.bit_length() - 1))

    def size(self) -> Dyadic:
        return Dyadic(abs(self.integers), self.exponent)

    def __add__(self, other: Dyadic) -> Dyadic:
        x, y, low = self.aligned(other)
        return Dyadic(x + y, low)

    def aligned(self, other: Dyadic) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The integers of both with a common exponent, and that."""
        low = np.minimum(self.exponent, other.exponent)
        x, y = (z.integers << (z.exponent - low).astype(object) for z in (self, other))
        return x, y, low

    def reaches(self, exponent: int) -> np.ndarray:
        """Where the magnitude is 2**exponent or more."""
        bits = np.frompyfunc(int.bit_length, 1, 1)(self.integers).astype(np.int64)
        return (bits > 0) & (bits + self.exponent > exponent)


def _times(s: complex, parts: list[Dyadic], sizes: bool = False) -> list[Dyadic]:
    """s times a number given by its real components; of `sizes`, bounds of the
    components' magnitudes.
    """
    re, im = (abs(s.real), abs(s.imag)) if sizes else (s.real, s.imag)
    if im == 0:
        return [x.times(re) for x in parts]
    return [
        parts[0].times(re) + parts[1].times(im if sizes else -im),
        parts[1].times(re) + parts[0].times(im),
    ]


def _what_is_left(alpha: complex) -> float:
    """The largest component of alpha 2**-e, below 2; of alpha where components have no
    such exponent in common.
    """
    largest = max(abs(alpha.real), abs(alpha.imag))
    if largest == 0:
        return 0.0
    e = math.frexp(largest)[1] - 1
    is_common = all(
        math.ldexp(math.ldexp(x, -e), e) == x for x in (alpha.real, alpha.imag)
    )
    return math.ldexp(largest, -e) if is_common else largest


def _stack(matrices: list[ExactMatrix], imag: bool = False) -> Dyadic:
    integers = [x.imag if imag else x.real for x in matrices]
    return Dyadic(np.stack(integers), np.stack([x.exponent for x in matrices]))


def _sizes(a: np.ndarray, b: np.ndarray) -> Dyadic:
    """|A||B| of real stacks."""
    return _stack([exact_product(abs(x), abs(y)) for x, y in zip(a, b)])


class Exact:
    """The exact value of a product, Inf and NaN apart; `gemm` holds the arguments that
    `matmul` does not have.

    Operands are as `numpy.matmul` takes them, op() already applied. re and im are
    judged one by one.
    """

    def __init__(
        self, a: np.ndarray, b: np.ndarray, dtype: np.dtype, gemm: dict[str, Any] | None
    ) -> None:
        self.is_complex = np.dtype(dtype).kind == "c"
        a, b = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
        stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (
            np.broadcast_to(x, stack + x.shape[-2:]).reshape(
                math.prod(stack), *x.shape[-2:]
            )
            for x in (a, b)
        )
        self.shape = len(a), a.shape[1], b.shape[2]
        self.alpha, self.beta = (
            (1.0, 0.0) if gemm is None else (gemm["alpha"], gemm["beta"])
        )
        has_product = a.shape[2] > 0 and self.alpha != 0
        c = np.zeros(self.shape, dtype)
        if self.beta != 0:
            c[...] = np.broadcast_to(gemm["c"], (*stack, *self.shape[1:])).reshape(
                self.shape
            )
        self._mark_special(a, b, c)
        # Zeros of beta C alone have the sign of both factors.
        signs = [np.signbit(y) ^ np.signbit(self.beta.real) for y in self._parts(c)]
        alone = not has_product and self.beta != 0
        self.zeros = [np.where(alone & sign, -0.0, 0.0) for sign in signs]
        self.judges_zeros = not (alone and isinstance(self.beta, complex))
        a, b = (np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (a, b))
        exact = [exact_product(x, y) for x, y in zip(a, b)]
        self.products = [_stack(exact)]
        if self.is_complex:
            self.products.append(_stack(exact, imag=True))
        self.sizes = [
            _sizes(*pair) for pair in (embedded(a, b) if self.is_complex else [(a, b)])
        ]
        self.addends = [
            Dyadic.of(np.where(np.isfinite(x), x, 0)) for x in self._parts(c)
        ]
        self.values = self.products
        if gemm is not None:
            terms = _times(self.alpha, self.products), _times(self.beta, self.addends)
            self.values = [x + y for x, y in zip(*terms)]
            # Inf - Inf
            self.open |= ~np.isfinite(c) & self._may_overflow(self.sizes, dtype)

    def _parts(self, x: np.ndarray) -> list[np.ndarray]:
        return [x.real, x.imag] if self.is_complex else [x]

    def _mark_special(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """Where components are to be Inf or NaN (`special`, 0 elsewhere), and where a
        result is not judged (`open`).
        """
        self.special, self.open = [np.zeros(self.shape)] * 2, np.zeros(self.shape, bool)
        is_finite = np.isfinite(a).all() and np.isfinite(b).all()
        if is_finite and np.isfinite(c).all():
            return
        product = np.zeros_like(c) if is_finite or self.alpha == 0 else pattern(a, b)
        if isinstance(self.alpha, complex) or isinstance(self.beta, complex):
            self.open = (product != 0) | ~np.isfinite(c)
            return
        with np.errstate(all="ignore"):
            # as scalars are
            parts = (
                self._parts(x.astype(np.result_type(x, np.float64)))
                for x in (product, c)
            )
            ends = [
                (self.alpha * x, np.where(np.isfinite(y), 0, self.beta * y))
                for x, y in zip(*parts)
            ]
            self.special = [np.where(x == 0, 0, x) + y for x, y in ends]

    def fault(self, values: np.ndarray, r: float, correct: bool) -> str:
        """What is wrong with a result of error at most r |A||B| before the last
        rounding, or "".

        correct: every real component is to be the exact value, rounded once.
        """
        for i, x in enumerate(self._parts(values.reshape(self.shape))):
            special, judged = self.special[i], (self.special[i] == 0) & ~self.open
            same = (x == special) | (np.isnan(x) & np.isnan(special))
            checks = {
                "Inf or NaN": (special != 0) & ~same & ~self.open,
                "NaN from finite operands": judged & np.isnan(x),
            }
            if correct:
                expected = round_integers(*self.values[i], x.dtype)
                is_zero = self.values[i].integers == 0
                expected = np.where(is_zero, self.zeros[i], expected)
                other_sign = np.signbit(x) != np.signbit(expected)
                other_sign &= self.judges_zeros | ~is_zero
                checks["not rounded once"] = judged & ((x != expected) | other_sign)
            elif math.isfinite(r):
                checks[f"error beyond {r:.3g} |A||B|"] = judged & ~self._kept(x, i, r)
            for text, wrong in checks.items():
                if wrong.any():
                    at = tuple(int(z) for z in np.argwhere(wrong)[0])
                    rounded = (
                        special[at] or round_integers(*self.values[i], x.dtype)[at]
                    )
                    return f"{text} in {wrong.sum()} of {wrong.size} components, {at} is {x[at]!r}, not {rounded!r}"
        return ""

    def _kept(self, x: np.ndarray, i: int, r: float) -> np.ndarray:
        """Which entries err by at most r |alpha||A||B| beyond what rounding costs."""
        is_power = (
            not isinstance(self.alpha, complex)
            and abs(math.frexp(self.alpha)[0]) == 0.5
        )
        if is_power and self.beta == 0:
            error = self.sizes[i].times(r).times(abs(self.alpha))
            free = np.zeros(self.shape, bool)
        else:
            error, free = self._error_of_sum(i, r, x.dtype)
        value, allowed, exponent = self.values[i].aligned(error)
        judged = excesses(x, value, allowed, exponent, rounding=True)
        return (
            np.array([lost <= size for lost, size in judged], bool).reshape(x.shape)
            | free
        )

    def _error_of_sum(self, i: int, r: float, dtype: Any) -> tuple[Dyadic, np.ndarray]:
        """Error of alpha A B + beta C before the last rounding, r times the magnitudes
        of the terms, and where T may have overflowed.

        T = 2**e A B may be rounded to half a subnormal, which alpha 2**-e multiplies,
        and each of four products that underflow errs by four subnormals.
        """
        products = _times(self.alpha, self.sizes, True)
        addends = _times(self.beta, [y.size() for y in self.addends], True)
        error = (products[i] + addends[i]).times(r)
        least = Dyadic.of(np.array([2 * float(np.finfo(dtype).smallest_subnormal)]))
        error += least.times(max(_what_is_left(self.alpha), 1.0))
        error += Dyadic.of(np.array([32 * 2.0**-1074]))
        wide = [size.times(r) + t.size() for size, t in zip(self.sizes, self.products)]
        return error, self._may_overflow(wide, dtype)

    def _may_overflow(self, sizes: list[Dyadic], dtype: Any) -> np.ndarray:
        """Where T, of at most these sizes before it is scaled, lies near the largest
        number or beyond.
        """
        largest = max(abs(self.alpha.real), abs(self.alpha.imag))
        return np.any(
            [x.times(largest).reaches(np.finfo(dtype).maxexp - 1) for x in sizes],
            axis=0,
        )
