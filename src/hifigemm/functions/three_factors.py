"""D = (A B) C of three factors, rounded once.

Idea
    A B = H + L + E: H is A B rounded once, L is close to A B - H. Where L is rounded once,
    |E| <= u |L|, and E = 0 where L = 0; in step 1 L may be a sum that is only close.
    D = H C + L C + E C is then settled entry by entry, each step for the entries that
    those before it leave open:

    1. X, the leading bits of a native product H C, and R = H C - X, rounded once, by
       `gemm`. L C is a native product. D = X + (R + L C) + t. For results of float32 H
       alone and the native product H C are enough: D = H C + t.
    2. [H L] [C; C] as a pair: D = P + Q + t.
    3. The same with more words T_3, T_4 of A B, each what those before it leave, rounded
       once, by [A -T_2 ...] [B; I; ...] - T_1. Where the last word is 0, nothing is left
       out, and P is the result: ties are settled so.
    4. Integers of Python.

    In steps 1 to 3 an entry is settled where all numbers within |t| of the sum round to
    one result (Ziv's test).
Bounds
    u = 2**-53, k and h terms in the first and the second product, |z| = |re z| + |im z|.
    1. |t| <= ((w h + 32) u max_l |L_il| + max_l e_il) sum_l |C_lj| + u |R|, w = 1 for real
       numbers and 2 for complex ones: E C by 2 u and e, the native product L C by
       gamma_(w h), [Hig02, section 3.1], which is near w h u. For float32 the same with H
       instead of L, and R = 0. e is 0 for a pair. Of real factors on a CPU, with the
       compiled core, H + L, and X + R for H C, are sums in two words: e = 2^-102 (k + 4)^2
       |A_i| |B_l|, and the same of H and C is added to |t|; e is 0 where A B is a number of
       float64 for sure.
    2. |t| <= 2 u |T_p||C| + u |Q| for the last word T_p, which is L in step 2. The sums
       of nonnegative numbers are lifted by 1 + (4 h + 64) u above their roundings.
Exact when
    A, B and C take powers of two, which lose no bit, so that A B and D neither overflow
    nor have bits below 2**-900: a residual that is rounded once is then 0 only where the
    exact one is. Where exponents span too much for this, 2**-1074 is added for each
    rounding that may underflow, so that zeros and ties are left to step 4; where the
    powers themselves would lose bits, all entries are.
Inf and NaN
    They go where IEEE arithmetic of (A B) C puts them, with the exact A B where that is
    finite. Results beyond the largest number become Inf as in every rounding.
Cost
    A pair, one product with an addend and two native ones, or two products in two words
    and a native one; for float32 a product rounded once and a native one. A pair of 2 h
    terms and more for the rows and columns that step 1 leaves open.

References
----------
    [Hig02] Higham: Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    doi:10.1137/1.9780898718027. Ziv's test: see numerics/three_factors.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from hifigemm.base.transforms import opaque
from hifigemm.engines import core
from hifigemm.engines.arrays import as_array, memory_of, to_device_of, to_host
from hifigemm.functions.verbs import expand, shape_of
from hifigemm.libraries import AnyArray, library_of
from hifigemm.numerics.bits import (
    LEAST,
    Array,
    least_exponent,
    lowest_bit,
    real_components,
    scale_entries,
)
from hifigemm.numerics.special import clean, fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.subnormals import ieee_arithmetic, matmul
from hifigemm.numerics.three_factors import (
    ExactProducts,
    Grid,
    leading_bits,
    nearest,
    rounded_within,
)
from hifigemm.numerics.three_words import open_block
from hifigemm.operands.exact_operands import one_word
from hifigemm.operands.operands import as_operand, converted, result_dtype
from hifigemm.running.gemm import gemm_of_numbers
from hifigemm.running.products import product_of_numbers

_UNIT = 2.0**-53
"""u, the unit roundoff of float64."""
_SPARE = 1.0 + 2.0**-40
"""For the roundings of a few sums and products of bounds."""
_TOP = 300
"""Factors below 2**300, as they are or scaled: A B C is below 2**1000 for 2**100 terms."""
_LOWEST_BIT = -900
"""Bits of A B C from which on bounds, 2**-102 times as large, are normal numbers."""
_FEW_TERMS = 64
"""Of products for which bounds of close sums take longer than a pair."""
_MOST_WORDS = 4
"""Words of A B before integers: 212 bits, or more where there are gaps of zeros."""
_WEIGHTS = 3, 2
"""Times as long as a product rounded once takes the first product, and the second."""


@dataclass(frozen=True)
class ThreeFactorsReport:
    """How A B C was rounded. Every real component is the exact value rounded once.

    Attributes
    ----------
    entries : int
        Entries of the result.
    in_more_words : int
        Entries whose rounding the first test left open; they took more words of A B or
        of the result.
    by_integers : int
        Entries whose rounding more words left open too; they were computed in integers.
    """

    entries: int
    in_more_words: int
    by_integers: int

    bound = 0.0
    """The r of |D - ABC| <= r |A||B||C| + u |ABC|."""
    correct = True
    """Every real component is the correctly rounded exact value."""

    def __str__(self) -> str:
        return (
            f"ThreeFactorsReport: {self.entries} entries, correctly rounded; {self.in_more_words} took more words than "
            f"the first test, {self.by_integers} integers"
        )


class ThreeFactors(NamedTuple):
    """The factors of D = M(A B) C; M, `middle`, moves entries of A B."""

    a: AnyArray  # (..., m, k)
    b: AnyArray  # (..., k, l)
    c: AnyArray  # (..., h, n)
    middle: Callable[[Any], Any] | None = None  # (..., m, l) to (..., r, h)
    is_transposed: bool = False
    """The transpose of D is asked for."""


def chain_of_three(a: Any, b: Any, c: Any) -> ThreeFactors:
    """The factors of A B C, or of C^T B^T A^T where that takes less time."""
    m, k = shape_of(a)[-2:]
    h, n = shape_of(c)[-2:]
    first, second = _WEIGHTS
    from_left = first * m * k * h + second * m * h * n
    from_right = first * k * h * n + second * m * k * n
    if from_left <= from_right:
        return ThreeFactors(a, b, c)
    return ThreeFactors(c.mT, b.mT, a.mT, None, True)


@opaque
def product_of_three(
    factors: ThreeFactors, workspace: int | None = None
) -> tuple[AnyArray, ThreeFactorsReport]:
    """(A B) C with every real component rounded once, with a report.

    Parameters
    ----------
    factors : ThreeFactors
        Arrays of one library and device, with dtypes as for `hifigemm.matmul`; stacks
        broadcast.
    workspace : int, optional
        As for `hifigemm.matmul`, for each product.

    Returns
    -------
    array, ThreeFactorsReport
        Of the dtype to which all factors promote.

    Raises
    ------
    TypeError
        Arrays that JAX traces or PyTorch differentiates, dtypes that are not multiplied.
    ValueError
        Shapes that do not broadcast, integers that float64 does not hold.
    """
    named = {"a": factors.a, "b": factors.b, "c": factors.c}
    library = library_of(*named.items())
    with np.errstate(all="ignore"), ieee_arithmetic(), library.active():
        if not library.on_host:
            from hifigemm.engines.device_array import check_not_capturing

            check_not_capturing()
        arrays = []
        for name, x in named.items():
            array = cast(Array, as_operand(x, name, library))
            arrays.append(one_word(array, name))
        dtype = result_dtype(*[x.dtype for x in arrays])
        wide = np.dtype(complex if dtype.kind == "c" else float)
        layout = _Layout.of(factors, [shape_of(x) for x in arrays])
        stacks = [converted(x, wide) for x in arrays]
        a, b = (_stack(x, layout.stack_of_first) for x in stacks[:2])
        c = _stack(stacks[2], layout.shape[:-2])

        # Inf and NaN are zeros for the sums, and are put where they belong at the end.
        is_finite = all(bool(np.isfinite(x).all()) for x in (a, b, c))
        finite = (a, b, c) if is_finite else (clean(a), clean(b), clean(c))
        sums = _Sums(finite, layout, np.finfo(dtype).dtype, workspace)
        values = sums.rounded().view(dtype).reshape(layout.stack)
        if not is_finite:
            _fill_nonfinite(values, a, b, c, layout, factors.is_transposed)

        shape = layout.shape
        if factors.is_transposed:
            values = _transposed(values)
            shape = (*shape[:-2], shape[-1], shape[-2])
        report = ThreeFactorsReport(
            math.prod(shape), sums.in_more_words, sums.by_integers
        )
        return library.to_native(values.reshape(shape)), report


@dataclass(frozen=True)
class _Layout:
    """Where entries stand: stacks have one axis, of all their matrices."""

    middle: Callable[[Any], Any] | None
    first: tuple[int, ...]
    """The shape of A B."""
    shape: tuple[int, ...]
    """The shape of D."""
    inner: int
    """Terms of the second product."""

    @classmethod
    def of(cls, factors: ThreeFactors, shapes: Sequence[tuple[int, ...]]) -> _Layout:
        """The layout of factors of these shapes.

        Raises ValueError: stacks that do not broadcast.
        """
        a, b, c = shapes
        stack = np.broadcast_shapes(a[:-2], b[:-2])
        if factors.middle is None:
            # Rows of D are rows of A, matrix by matrix.
            stack = np.broadcast_shapes(stack, c[:-2])
            first = (*stack, a[-2], b[-1])
            return cls(None, first, (*stack, a[-2], c[-1]), c[-2])
        first = (*stack, a[-2], b[-1])
        moved = factors.middle(np.empty(first, np.int8)).shape
        stack = np.broadcast_shapes(moved[:-2], c[:-2])
        return cls(factors.middle, first, (*stack, moved[-2], c[-1]), c[-2])

    @property
    def stack_of_first(self) -> tuple[int, ...]:
        """The shape of the stack of A B."""
        return self.first[:-2]

    @property
    def stack(self) -> tuple[int, int, int]:
        """The shape of D as a stack."""
        return math.prod(self.shape[:-2]), self.shape[-2], self.shape[-1]

    def arranged(self, product: Array) -> Array:
        """The left factor of the second product (batch, r, h) from A B as a stack."""
        if self.middle is None:
            return product
        moved = self.middle(memory_of(product).reshape(self.first))
        return as_array(_stack_of_memory(moved, self.shape[:-2]))

    def places(self) -> Array:
        """The entry of A B, by its number, at each place of that factor."""
        numbers = np.arange(math.prod(self.first)).reshape(self.first)
        if self.middle is not None:
            numbers = self.middle(numbers)
        return np.asarray(_stack_of_memory(numbers, self.shape[:-2]))


def _stack(x: Array, stack: tuple[int, ...]) -> Array:
    """An array as a stack (batch, ., .) of all matrices of a broadcast stack."""
    return np.ascontiguousarray(as_array(_stack_of_memory(memory_of(x), stack)), like=x)


def _stack_of_memory(x: Any, stack: tuple[int, ...]) -> Any:
    """`_stack` of an array of NumPy or a tensor, a view where possible."""
    shape = shape_of(x)[-2:]
    return expand(x, (*stack, *shape)).reshape((math.prod(stack), *shape))


def _transposed(x: Array) -> Array:
    """The transposes of a stack, in new memory."""
    return np.ascontiguousarray(x.transpose((0, 2, 1)), like=x)


class _Sums:
    """The rounding of (A B) C of finite stacks in float64 or complex128, step by step.

    `in_more_words` and `by_integers` count the entries that went further than step 1.
    """

    def __init__(
        self,
        factors: tuple[Array, Array, Array],
        layout: _Layout,
        real: Any,
        workspace: int | None,
    ) -> None:
        self.factors = factors
        self.layout = layout
        self.real = real
        self.workspace = workspace
        self.width = 2 if factors[0].dtype.kind == "c" else 1
        self.in_more_words = 0
        self.by_integers = 0

    def rounded(self) -> Array:
        """Real components (batch, r, n, 1 or 2) of the result."""
        shape = (*self.layout.stack, self.width)
        a = self.factors[0]
        if 0 in (*shape, a.shape[2], self.layout.inner):
            return np.zeros(shape, self.real, like=a)

        scaled = _scaled(self.factors)
        if scaled is None:
            self.in_more_words = math.prod(shape[:3])
            values = np.zeros(shape, self.real, like=a)
            return self._by_integers(values, np.zeros(shape[:3], bool, like=a))
        words = _Words(self, scaled)
        is_single = self.real == np.float32
        values, certain = words.by_native() if is_single else words.by_residual()
        if certain.all():
            return values
        self.in_more_words = _num_false(certain)
        for num_words in range(2, _MOST_WORDS + 1):
            block, rows, cols = open_block(certain)
            more_values, are_certain = words.by_pairs(num_words, rows, cols)
            keep = certain[block].reshape((*are_certain.shape, 1))
            values[block] = np.where(keep, values[block], more_values)
            certain[block] = certain[block] | are_certain
            if certain.all():
                return values
        return self._by_integers(values, certain)

    def _by_integers(self, values: Array, certain: Array) -> Array:
        """The result with the entries that are not certain made from integers."""
        a, b, c = [to_host(x) for x in self.factors]
        exact = ExactProducts(a, b, c, self.layout.places())
        entries = np.argwhere(~to_host(certain))
        self.by_integers = len(entries)
        on_host = to_host(values)
        for matrix, row, col in entries.tolist():
            components = exact.components(matrix, row, col)
            for i, (integer, exponent) in enumerate(components):
                on_host[matrix, row, col, i] = nearest(integer, exponent, self.real)
        return to_device_of(values, on_host)


class _Scaled(NamedTuple):
    """Factors times powers of two."""

    factors: list[Array]
    exponent: int  # A B C is 2**exponent times their product
    may_underflow: bool


def _scaled(factors: Sequence[Array]) -> _Scaled | None:
    """The factors with exponents that fit together; None where bits would be lost."""
    tops = [_largest_exponent(x) for x in factors]
    lowest = [least_exponent(x) - 52 for x in factors]
    if max(tops) <= _TOP and not _may_underflow(lowest):
        return _Scaled(list(factors), 0, False)
    shifts = [_TOP - top for top in tops]
    scaled = []
    for x, shift, low in zip(factors, shifts, lowest, strict=True):
        y = scale_entries(x, shift)
        if low + shift < -1074 and not bool((scale_entries(y, -shift) == x).all()):
            return None
        scaled.append(y)
    lowest = [low + shift for low, shift in zip(lowest, shifts, strict=True)]
    return _Scaled(scaled, -sum(shifts), _may_underflow(lowest))


def _may_underflow(lowest: Sequence[int]) -> bool:
    """True if bounds of sums of products of factors with these bits may underflow."""
    return min(sum(lowest[:2]), sum(lowest)) < _LOWEST_BIT


def _largest_exponent(x: Array) -> int:
    """The least e with all components below 2**e; 0 for zeros."""
    largest = float(np.abs(real_components(x)).max(initial=0.0))
    return math.frexp(largest)[1]


class _Words:
    """Words of A B, and sums of their products with C: steps 1 to 3."""

    def __init__(self, sums: _Sums, scaled: _Scaled) -> None:
        self.a, self.b, self.c = scaled.factors
        self.may_underflow = scaled.may_underflow
        self.layout = sums.layout
        self.width = sums.width
        self.workspace = sums.workspace
        self.grid = Grid(scaled.exponent, sums.real)
        self.words: list[Array] = []

    def by_native(self) -> tuple[Array, Array]:
        """Step 1 for float32: real components of all entries, and True where an entry is
        settled.
        """
        product = product_of_numbers(
            memory_of(self.a), memory_of(self.b), "correct", workspace=self.workspace
        )
        self.words = [as_array(product)]
        high = self.layout.arranged(self.words[0])
        nearest_sums = self._components(_native(high, self.c))
        bounds = self._total(self._bound_of_native(high), 0.0 * nearest_sums)
        zero = np.zeros_like(nearest_sums)
        values, certain = rounded_within(nearest_sums, zero, bounds, self.grid)
        return values, cast(Array, certain.all(axis=3))

    def by_residual(self) -> tuple[Array, Array]:
        """Step 1 for float64: as `by_native`."""
        first_product = self._close_pair(self.a, self.b)
        if first_product is None:
            self.words = self._pair(self.a, self.b)
            high, low = self.words
            errors = np.zeros(low.shape, like=low)
        else:
            high, low, errors = first_product
            self.words = [high]
        high, low, errors = [self.layout.arranged(x) for x in (high, low, errors)]
        bound = self._bound_of_native(low) + self._bound_of_rest(errors)

        second_product = self._close_pair(high, self.c)
        if second_product is None:
            leading = leading_bits(real_components(_native(high, self.c)))
            leading = leading.view(high.dtype)
            residual = self._gemm(high, self.c, leading)
        else:
            leading, residual, errors = second_product
            bound = bound + errors
        correction = _native(low, self.c)
        first, second, third = [
            self._components(x) for x in (leading, residual, correction)
        ]
        # Those of R, of R + L C and of the ends of Ziv's test.
        roundings = 4 * _UNIT * (np.abs(second) + np.abs(third))
        bounds = self._total(bound, roundings)
        values, certain = rounded_within(first, second + third, bounds, self.grid)
        return values, cast(Array, certain.all(axis=3))

    def _close_pair(self, a: Array, b: Array) -> tuple[Array, Array, Array] | None:
        """(H, L, e) with |A B - H - L| <= e, where that is quicker than a pair; L and e are
        zeros where A B is a number of float64 for sure.
        """
        terms = a.shape[2]
        is_real = isinstance(a, np.ndarray) and self.width == 1
        if not is_real or self.may_underflow or terms <= _FEW_TERMS:
            return None
        pair = core.close_pair(a, b)
        if pair is None:
            return None
        high, low = pair
        rows, columns = _norms(a, 2), _norms(b, 1)
        share = core.error_of_close_sums(terms) * _lift(terms)
        errors = (share * rows) * columns
        if (low != 0.0).all():
            return high, low, errors

        # Sums of multiples of 2^e below 2^(53 + e) are exact
        units = lowest_bit(a, 2) + lowest_bit(b, 1)
        _, of_rows = np.frexp(rows)
        _, of_columns = np.frexp(columns)
        is_exact = of_rows + of_columns <= 53 + units
        return high, np.where(is_exact, 0.0, low), np.where(is_exact, 0.0, errors)

    def by_pairs(self, num_words: int, rows: Array, cols: Array) -> tuple[Array, Array]:
        """Steps 2 and 3, with so many words of A B, for these rows and columns."""
        words = self._arranged_words(num_words, rows)
        c = self.c[:, :, cols]
        left = np.concatenate(words, axis=2)
        right = np.concatenate([c] * num_words, axis=1)
        high, low = self._pair(left, right)

        # What the words leave out, and the roundings of Q and of the ends.
        left_out = self._left_out(words[-1], c)
        first, second = self._components(high), self._components(low)
        bounds = self._total(left_out, 4 * _UNIT * np.abs(second))
        values, certain = rounded_within(first, second, bounds, self.grid)
        if not self.may_underflow:
            # P is the exact value, rounded once, where the words leave nothing out.
            heads = self.grid.rounded(first)
            is_exact = (left_out == 0.0).reshape((*left_out.shape, 1))
            is_exact = is_exact & self.grid.has_all_bits(heads)
            values = np.where(is_exact, heads, values)
            certain = certain | is_exact
        return values, cast(Array, certain.all(axis=3))

    def _arranged_words(self, num_words: int, rows: Array) -> list[Array]:
        """The words of A B in some rows of the left factor of the second product.

        Where these are rows of A B, words beyond the pair are made for them alone.
        """
        if self.layout.middle is None:
            words = [x[:, rows] for x in self.words]
            return self._with_more(self.a[:, rows], words, num_words)
        self.words = self._with_more(self.a, self.words, num_words)
        return [self.layout.arranged(x)[:, rows] for x in self.words]

    def _with_more(self, a: Array, words: list[Array], num_words: int) -> list[Array]:
        """So many words of a product with B, of which the first ones are there."""
        words = list(words)
        identity = _identities(self.b)
        while len(words) < num_words:
            others = words[1:]
            left = np.concatenate([a, *[-x for x in others]], axis=2)
            right = np.concatenate([self.b, *[identity] * len(others)], axis=1)
            words.append(self._gemm(left, right, words[0]))
        return words

    def _bound_of_native(self, word: Array) -> Array:
        """An upper bound of E C and of the roundings of a native product W C, for the last
        word W of A B.
        """
        terms = self.layout.inner
        sizes = _sizes(self.c).sum(axis=1, keepdims=True)
        largest = _sizes(word).max(axis=2, keepdims=True)
        sums = self.width * terms
        roundings = (sums / (1.0 - sums * _UNIT) + 32) * _UNIT
        bound: Array = roundings * _lift(terms) * (largest * sizes)
        if self.may_underflow:
            bound = bound + self._underflows(sizes)
        return bound

    def _bound_of_rest(self, errors: Array) -> Array:
        """An upper bound of E' C for |E'| <= errors."""
        sizes = _sizes(self.c).sum(axis=1, keepdims=True)
        largest = errors.max(axis=2, keepdims=True)
        bound: Array = _lift(self.layout.inner) * (largest * sizes)
        return bound

    def _left_out(self, word: Array, c: Array) -> Array:
        """An upper bound of what words of A B that end with this one leave out of D."""
        terms = self.layout.inner
        sizes_of_columns = _sizes(c)
        sizes = _native(_sizes(word), sizes_of_columns)
        bound = 2 * _UNIT * _lift(terms) * sizes
        if self.may_underflow:
            bound = bound + self._underflows(
                sizes_of_columns.sum(axis=1, keepdims=True)
            )
        return bound

    def _underflows(self, sizes: Array) -> Array:
        """What a residual of A B, a bound and a sum lose where they underflow, for the
        sums of the magnitudes of columns of C.
        """
        return 2 * LEAST * sizes + (8 * self.layout.inner + 16) * LEAST

    def _total(self, bound: Array, roundings: Array) -> Array:
        """The bound of an entry for each real component, with the roundings of sums."""
        return (bound.reshape((*bound.shape, 1)) + roundings) * _SPARE

    def _components(self, x: Array) -> Array:
        """Real components (batch, r, n, 1 or 2) of a stack."""
        return real_components(x).reshape((*x.shape, self.width))

    def _pair(self, a: Array, b: Array) -> list[Array]:
        """A B as a pair."""
        pair = product_of_numbers(
            memory_of(a), memory_of(b), workspace=self.workspace, result="pair"
        )
        return [as_array(x) for x in pair]

    def _gemm(self, a: Array, b: Array, c: Array) -> Array:
        """A B - C, rounded once."""
        difference: Array = as_array(
            gemm_of_numbers(
                memory_of(a),
                memory_of(b),
                memory_of(c),
                accuracy="correct",
                workspace=self.workspace,
                beta=-1.0,
            )
        )
        return difference


def _lift(terms: int) -> float:
    """A factor that takes sums of so many nonnegative products above their roundings."""
    return 1.0 + (4 * terms + 64) * _UNIT


def _norms(x: Array, axis: int) -> Array:
    """At least the Euclidean norms of the real vectors along an axis, up to roundings that
    `_lift` makes up for; 0 for zeros alone.
    """
    largest = np.abs(x).max(axis=axis, keepdims=True)
    relative = x / np.where(largest > 0.0, largest, 1.0)
    squares = (relative * relative).sum(axis=axis, keepdims=True)
    norms: Array = largest * np.sqrt(squares)
    return norms


def _native(a: Array, b: Array) -> Array:
    """A B with an error of at most (gamma_(w k) + u) |A||B|, k terms of w real products."""
    if isinstance(a, np.ndarray):
        return matmul(a, b)
    width = 2 if a.dtype.kind == "c" else 1
    accuracy = width * a.shape[2] * _UNIT
    product: Array = as_array(product_of_numbers(memory_of(a), memory_of(b), accuracy))
    return product


def _sizes(x: Array) -> Array:
    """|re| + |im|, rounded; of real numbers |x| itself."""
    if x.dtype.kind != "c":
        return np.abs(x)
    return np.abs(x.real) + np.abs(x.imag)


def _identities(b: Array) -> Array:
    """An identity matrix for each matrix of a stack, as large as its rows are long."""
    batch, _, n = b.shape
    identity = np.zeros((batch, n * n), b.dtype, like=b)
    identity[:, :: n + 1] = 1.0
    return identity.reshape(batch, n, n)


def _num_false(x: Array) -> int:
    """How many are False."""
    return x.size - int(np.count_nonzero(x))


def _fill_nonfinite(
    values: Array, a: Array, b: Array, c: Array, layout: _Layout, is_transposed: bool
) -> None:
    """Write Inf and NaN to the result where those of the factors put them."""
    if is_transposed and layout.middle is None:
        # D^T = (C^T B^T) A^T was made, and (A B) C says where they go.
        of_transpose = _transposed(values)
        left, middle, right = [_transposed(x) for x in (c, b, a)]
        _fill_in_order(of_transpose, left, middle, right, layout)
        values[...] = _transposed(of_transpose)
    else:
        _fill_in_order(values, a, b, c, layout)


def _fill_in_order(
    values: Array, a: Array, b: Array, c: Array, layout: _Layout
) -> None:
    """`_fill_nonfinite` by the order (A B) C."""
    # Signs of the finite entries of A B, by the sides of 0 on which they lie.
    lower, upper = [
        real_components(as_array(x))
        for x in product_of_numbers(
            memory_of(clean(a)), memory_of(clean(b)), result="enclosure"
        )
    ]
    signs = np.sign(np.sign(lower) + np.sign(upper)).view(a.dtype)
    fill_nonfinite(signs, a, b, nonfinite_vectors(a, 2), nonfinite_vectors(b, 1))
    left = layout.arranged(signs)
    rows = nonfinite_vectors(left, 2)
    fill_nonfinite(values, left, c, rows, nonfinite_vectors(c, 1))
