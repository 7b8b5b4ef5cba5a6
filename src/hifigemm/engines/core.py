"""The compiled core of the CPU, hifigemm._core, as an override of plain functions.

The core is optional: it is built where there is a C compiler, from the sources in core/,
and without it the functions of NumPy serve. `HIFIGEMM_CORE=0` leaves it alone. Values
that are rounded once are unique, so both give the same bits of them; where a weaker
request keeps entries that are not, the core rounds them once as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.base.settings import wants_core
from hifigemm.engines import threads
from hifigemm.engines.arrays import is_on_host
from hifigemm.model.engine import F
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array, real_components
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.epilogue import combine_stacks
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.three_words import CertifiedValues, RoundedSums

if TYPE_CHECKING:
    from hifigemm.numerics.equilibration import Equilibrated
    from hifigemm.numerics.float64_products import Vectors
    from hifigemm.numerics.prime_fields import Eliminated

Sums = tuple[Array, Array | None]
KINDS = {
    "nearest": 0,
    "pair": 1,
    "enclosure": 2,
    "close": 3,
    "close pair": 4,
    "close in three": 5,
    "close pair in three": 6,
}
_TWO_VALUES = "pair", "enclosure", "close pair", "close pair in three"

# Times by which plans choose: nanoseconds a term, one thread, an AMD EPYC at about 3 GHz
# and, for AVX-512, an Intel Xeon of 2023. That of NEON is counted from its lanes.
RATES = {"avx512": 0.1, "avx2": 0.14, "neon": 0.3, "portable": 3.0}
"""Sums of the core, in tiles."""
_DOT_RATE = 0.4
"""Sums of single entries, by dot products."""
SHARE = 5e5
"""Nanoseconds of work for each thread, at least: starting one takes some 50,000."""
_UNSHARED = 2**17
"""Terms of a product that no thread would share, at the slowest rate."""
SHARED_BYTES = 2**27
"""Packed rows and columns of all threads, at most."""

_TILE_ROWS = 3
_TILE_COLUMNS = 16
_CHUNK = 256
_BLOCK_NUMBERS = 2**18
"""Rows and most columns of a tile, terms of a chunk of its sums, and numbers of packed
rows, in core/product.c.
"""
_ROWS_OF_INVERSE = 32
"""Of a band: as many as four of the widest registers hold, which core/banded.h makes side
by side.
"""


@lru_cache(maxsize=1)
def loaded() -> tuple[Any, str]:
    """The module, or None, and a line that says which it is."""
    if not wants_core():
        return None, "left alone, as HIFIGEMM_CORE=0 asks"
    try:
        core: Any = import_module("hifigemm._core")
    except ModuleNotFoundError:
        return None, "not built (no C compiler found); NumPy is used, slower"
    except ImportError as error:
        return None, f"not loaded ({error}); NumPy is used, slower"
    return core, f"compiled, {core.instructions[0]}"


def override(function: F) -> F:
    """The core's version of a plain function; the function itself where it has none."""
    if loaded()[0] is None:
        return function
    return cast(F, _OVERRIDES.get(function.__name__, function))


def certified_sums(
    a: Array, b: Array, c: Array | None, shift: int, fmt: Format, kind: str
) -> RoundedSums:
    """`numerics.three_words.certified_sums` by the core, which settles every entry."""
    _, values, second_values = _rounded(a, b, c, shift, result_dtype(fmt), kind)
    certified = np.ones(values.shape, bool)
    return RoundedSums(values, second_values, certified, _reason(), 1)


def _rounded(
    a: Array, b: Array, c: Array | None, shift: int, dtype: Any, kind: str
) -> tuple[bool, Array, Array | None]:
    """2**shift (A B + C) of stacks in new arrays; False where A or B is not finite."""
    values = np.empty(product_shape(a, b), dtype)
    second_values = np.empty_like(values) if kind in _TWO_VALUES else None
    addend = None if c is None else readable(c)
    operands = readable(a), readable(b), addend
    is_finite = multiply(*operands, values, second_values, shift, KINDS[kind])
    return is_finite, values, second_values


def multiply(
    a: Array,
    b: Array,
    c: Array | None,
    values: Array,
    second_values: Array | None,
    shift: int,
    kind: int,
    factor: float = 0.0,
    c_low: Array | None = None,
) -> bool:
    """Write the core's product of two stacks, or matrices, large ones shared among
    threads; False where A or B is not finite.

    Without a shift a `factor` may multiply A B, and C may have a second word `c_low`, in
    the same memory and order.
    An entry is rounded once by any thread, so bits do not depend on the threads.
    """
    # Small products have one share, without a question for the limit of threads.
    core: Any = loaded()[0]
    num_shares = 1
    if values.size * a.shape[-1] > _UNSHARED:
        batch, m, n = values.shape
        num_shares = min(most_threads(batch, m, n, a.shape[-1]), threads.limit())
    if num_shares == 1:
        is_finite: bool = core.multiply(
            a, b, c, values, second_values, shift, kind, None, factor, c_low
        )
        return is_finite

    # The others are cut along an axis of the result, whose blocks fill it side by side.
    left_stack = a if a.ndim == 3 else a[None]
    right_stack = b if b.ndim == 3 else b[None]

    def multiply_share(
        share: tuple[slice, slice, slice], check: threads.Check | None
    ) -> bool:
        matrices, rows, cols = share
        left = left_stack[matrices if len(left_stack) > 1 else slice(None), rows]
        right = right_stack[matrices if len(right_stack) > 1 else slice(None), :, cols]
        addend = None if c is None else c[share]
        low_of_addend = None if c_low is None else c_low[share]
        second_share = None if second_values is None else second_values[share]
        is_finite: bool = core.multiply(
            left,
            right,
            addend,
            values[share],
            second_share,
            shift,
            kind,
            check,
            factor,
            low_of_addend,
        )
        return is_finite

    shares = _shares(values.shape, num_shares)
    return all(threads.side_by_side(multiply_share, shares))


def most_threads(batch: int, m: int, n: int, k: int) -> int:
    """Threads that a product may be shared among, by its work and their memory."""
    nanoseconds = RATES[loaded()[0].instructions[0]] * batch * m * n * k
    by_work = int(nanoseconds / SHARE)
    if by_work <= 1:
        return 1
    by_memory = SHARED_BYTES // packed_bytes(m, k)
    return max(min(by_work, by_memory, max(batch, m, n)), 1)


def _num_threads(nanoseconds: float) -> int:
    """Threads that share so much work; little work asks for no limit."""
    by_work = int(nanoseconds / SHARE)
    return min(by_work, threads.limit()) if by_work > 1 else 1


def packed_bytes(rows: int, k: int) -> int:
    """Bytes of the rows and the columns that a thread packs."""
    packed_rows = min(rows + 2, max(_BLOCK_NUMBERS // max(k, 1), 24))
    return 8 * k * (packed_rows + _TILE_COLUMNS)


def _shares(shape: tuple[int, ...], parts: int) -> list[tuple[slice, slice, slice]]:
    """Up to so many blocks of a result (batch, m, n), cut along its longest axis, each
    with whole tiles.
    """
    axis = shape.index(max(shape))
    unit = (1, _TILE_ROWS, _TILE_COLUMNS)[axis]
    step = -(-shape[axis] // (parts * unit)) * unit
    shares = []
    for start in range(0, shape[axis], step):
        share = [slice(None)] * 3
        share[axis] = slice(start, start + step)
        shares.append((share[0], share[1], share[2]))
    return shares


def sums(a: Array, b: Array, c: Array | None, kind: str = "nearest") -> Sums | None:
    """A B + C for three real matrices of one dtype, entries rounded once: the array, and
    for pairs the array of remainders. None where A or B is not finite, and without the
    core.

    For "close" entries D of float64 are not rounded once, but within 2 u |D| and
    `error_of_close_sums` times the norms of a row of A and a column of B, in a quarter of
    the time where C cancels A B. Those "close in three" words take as long as nearest
    ones, and a tenth of the time where C cancels all but the last digits of two words. For
    a "close pair in three" the first part of the error is 2 u times the second number.
    """
    if loaded()[0] is None:
        return None
    addend = None if c is None else c[None]
    is_finite, values, second_values = _rounded(
        a[None], b[None], addend, 0, a.dtype, kind
    )
    if not is_finite:
        return None
    return values[0], None if second_values is None else second_values[0]


def close_pair(a: Array, b: Array) -> tuple[Array, Array] | None:
    """(H, L) for real stacks of float64, H + L within `error_of_close_sums` times the norms
    of rows and columns of A B; None where A or B is not finite, and without the core.

    It takes as long as a product that is rounded once, a pair three times as long.
    """
    if loaded()[0] is None:
        return None
    is_finite, high, low = _rounded(a, b, None, 0, np.dtype(float), "close pair")
    return (high, cast(Array, low)) if is_finite else None


def error_of_close_sums(terms: int, words: int = 2) -> float:
    """What sums in two or three words err by, in the product of two norms.

    More than 4 (1 + 2^-19) times `tile_error_in_two` of core/kernels.c and k 2^-105, see
    write_update of core/product.c, or than twice 4 (1 + 2^-19) `tile_error_in_three`, see
    write_close there: terms are added in chunks.
    """
    chunk = min(terms, _CHUNK)
    chunks = -(-terms // _CHUNK)
    if words == 3:
        joined = 4.0 * terms * (1.0 + 2.0**-10 * chunks)
        return 1.02 * 2.0**-145 * chunks * (0.5 * chunk * (chunk + 13) + joined)
    roundings = chunks * (0.5 * chunk * (chunk + 3) + terms) + terms
    return 1.02 * 2.0**-103 * roundings


def enclosed(
    a: Array,
    b: Array,
    inverse: Array,
    row_bounds: Array,
    norm: float,
    inverse_norm: float,
) -> tuple[Array, Array] | None:
    """x and its radius for A x = b with one right side, real and finite, after one step;
    None where another one may make the radius sharper, and without the core.

    `row_bounds` are at least the sums of rows of |I - R A|, `norm` is the largest of
    them, below 1, and `inverse_norm` at least that of |R|.
    """
    core = loaded()[0]
    if core is None:
        return None
    x = np.empty(b.shape)
    radius = np.empty(b.shape)
    operands = readable(a), readable(b), readable(inverse)
    if not core.enclose(*operands, row_bounds, x, radius, norm, inverse_norm):
        return None
    return x, radius


class BandedProducts(NamedTuple):
    """R Q, |R| S and |fl(R A - I)| V."""

    images: Array
    sizes: Array
    gaps: Array


@dataclass(frozen=True, eq=False)
class BandFactors:
    """A banded matrix A and its factors by elimination with partial pivoting, whose
    inverse is R.
    """

    lower: int
    """Diagonals below the main one."""
    upper: int
    """Diagonals above the main one."""
    columns: Array
    """Of A, n x (lower + upper + 2)."""
    factors: Array
    """U and L by columns, n x (2 lower + upper + 2)."""
    pivots: Array
    """1 x n."""

    @classmethod
    def of(cls, a: Array, lower: int, upper: int) -> BandFactors:
        """The factors of a matrix in float64; the core is there.

        Raises numpy.linalg.LinAlgError: a pivot of zero.
        """
        n = len(a)
        columns = np.empty((n, lower + upper + 2))
        # An upper triangle is its own factor
        factors = np.empty((n, 2 * lower + upper + 2)) if lower else columns
        pivots = np.empty((1, n), np.int64).view(np.float64)
        has_pivots = loaded()[0].factorise_band(
            readable(a), lower, upper, columns, factors, pivots
        )
        if not has_pivots:
            raise np.linalg.LinAlgError("a pivot is zero")
        return cls(lower, upper, columns, factors, pivots)

    def products(self, q: Array, s: Array, v: Array) -> BandedProducts:
        """R Q, |R| S and |fl(R A - I)| V, each of n roundings; an entry of R A passes as
        many as A has diagonals. Threads share the rows.
        """
        core: Any = loaded()[0]
        n = len(self.columns)
        band = self.columns, self.factors, self.pivots, self.lower, self.upper
        operands = tuple(readable(x) for x in (q, s, v))
        results = BandedProducts(*(np.empty(x.shape) for x in operands))

        def write_rows(rows: slice, check: threads.Check | None) -> None:
            of_rows = tuple(result[rows] for result in results)
            core.banded_products(*band, rows.start, *operands, *of_rows, check)

        terms = n * n * (2 * (self.lower + self.upper) + 1)
        rows = -(-n // _num_threads(RATES[core.instructions[0]] * terms))
        rows += -rows % _ROWS_OF_INVERSE
        parts = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        threads.side_by_side(write_rows, parts)
        return results


class SolvedStack(NamedTuple):
    """Solutions of a stack of systems, their radii, and by system, batch x 4: 0 where
    nothing is proven, 1 where x and its radius are there, 2 where x are the nearest
    numbers; the condition, the norm and the steps of a `SolutionReport`.
    """

    x: Array
    radius: Array
    proofs: Array


def solved_stack(a: Array, b: Array) -> SolvedStack | None:
    """A x = b for stacks of real matrices, (batch, m, n) and (batch, m, k), from the
    scaling to the enclosure of each, in the sense of least squares for m > n; None without
    the core.

    What needs another scale, more words or more steps is left unsolved. Large stacks are
    shared among threads.
    """
    core = loaded()[0]
    if core is None:
        return None
    a = readable(a)
    b = readable(b)
    batch, m, k = b.shape
    n = a.shape[2]
    x = np.empty((batch, n, k))
    radius = np.empty((batch, n, k))
    proofs = np.empty((batch, 1, 4))

    def solve_share(share: slice, check: threads.Check | None) -> None:
        parts = [array[share] for array in (a, b, x, radius, proofs)]
        core.solve_small(*parts, check)

    nanoseconds = _nanoseconds_of_system(n, k) if m == n else 4.0 * m * n * (n + k)
    share = -(-batch // _num_threads(batch * nanoseconds))
    shares = [slice(start, start + share) for start in range(0, batch, share)]
    threads.side_by_side(solve_share, shares)
    return SolvedStack(x, radius, proofs[:, 0])


def _nanoseconds_of_system(n: int, k: int) -> float:
    """About what the core takes for a system of n rows with k right sides, measured up to
    64 of both on an Intel Xeon of 2023 with AVX-512.
    """
    inverse_and_bounds = 0.25 * n**3 + 16.0 * n * n + 1000.0
    # The core refines more than three right sides together.
    nanoseconds_of_side = 5.0 * n * n + 500.0
    if k > 3:
        nanoseconds_of_side = 0.8 * n * n + 10.0 * n
    return inverse_and_bounds + k * nanoseconds_of_side


class Neighbours(NamedTuple):
    """Where determinants over 2^exponent lie, and where that is known; all are arrays by
    matrix.
    """

    is_known: Array
    lower: Array
    upper: Array
    exponent: Array


_MOST_OF_SMALL = 128
"""Rows of matrices whose determinant or definiteness the core can find."""


def neighbours_of_determinants(a: Array) -> Neighbours | None:
    """The neighbours among doubles of determinants of a stack of small real matrices, equal
    where a determinant is a double; None for others, and without the core.
    """
    facts = _facts_of_small("determinants", a, 4)
    if facts is None:
        return None
    return Neighbours(facts[..., 0] > 0.0, facts[..., 1], facts[..., 2], facts[..., 3])


class Definiteness(NamedTuple):
    """True where matrices are positive definite, and where that is known."""

    is_definite: Array
    is_known: Array


def definiteness(a: Array) -> Definiteness | None:
    """Which small real matrices of a stack are symmetric and positive definite, and of which
    that is known; None for others, and without the core.
    """
    answers = _facts_of_small("definite", a, 1)
    if answers is None:
        return None
    return Definiteness(answers[..., 0] == 1.0, answers[..., 0] < 2.0)


def _facts_of_small(function: str, a: Array, width: int) -> Array | None:
    """The results of a function of the core, so many numbers for each matrix."""
    core = loaded()[0]
    *stack, n, _ = a.shape
    is_small = is_on_host(a) and 0 < n <= _MOST_OF_SMALL
    if core is None or not is_small or a.dtype.kind != "f":
        return None
    facts = np.empty((math.prod(stack), 1, width))
    getattr(core, function)(readable(a.reshape(len(facts), n, n)), facts)
    return facts.reshape(*stack, width)


def _are_ordinary(x: Array, terms: int, smallest_normal: float) -> bool:
    """`numerics.bounds.are_ordinary`, in one reading of x."""
    are_ordinary: bool = loaded()[0].are_ordinary(x, terms * smallest_normal)
    return are_ordinary


def _combined(t: Array, alpha: complex, c: Array | None, beta: complex) -> Array:
    """`numerics.epilogue.combine_stacks` in new memory, in one reading of t and c where
    all sums are finite.
    """
    are_real = isinstance(alpha, float) and isinstance(beta, float)
    is_same = c is not None and c.shape == t.shape and c.dtype == t.dtype
    product = alpha * beta
    if not (are_real and is_same and product != 0.0 and math.isfinite(product.real)):
        return combine_stacks(t, alpha, c, beta)
    is_complex = t.dtype.kind == "c"
    addend = np.ascontiguousarray(c) if is_complex else readable(cast(Array, c))
    sums = np.empty_like(t)
    arrays = t, addend, sums
    if is_complex:
        arrays = real_components(t), real_components(addend), real_components(sums)
    x, y, z = arrays
    if loaded()[0].combine(x, alpha, y, beta, z):
        return sums
    return combine_stacks(t, alpha, c, beta)


def _rounded_sum_of_pair(
    high: Array,
    low: Array,
    alpha: complex,
    c: Array | None,
    beta: complex,
    fmt: Format,
    has_all_bits: bool,
) -> CertifiedValues:
    """`numerics.scalar_sums.rounded_sum_of_pair`, in one reading of all where the scalars
    are real and all sums are certain.
    """
    from hifigemm.numerics.scalar_sums import lost_bits, rounded_sum_of_pair

    if isinstance(alpha, float) and isinstance(beta, float):
        arrays = [high, low] if c is None else [high, low, c]
        x, y, *addends = map(real_components, arrays)
        sums = np.empty(x.shape, result_dtype(fmt))
        z = addends[0] if addends else None
        lost = 0.0 if has_all_bits else lost_bits(alpha)
        if loaded()[0].combine_pair(x, y, alpha, z, beta, lost, sums):
            return CertifiedValues(sums, np.ones(1, bool))
    return rounded_sum_of_pair(high, low, alpha, c, beta, fmt, has_all_bits)


def _magnitude_product(a: Array, v: Array) -> Array:
    """`numerics.magnitudes.magnitude_product`, in one reading of A."""
    product = np.empty((a.shape[0], v.shape[1]))
    loaded()[0].magnitude_product(readable(a), readable(v), product)
    return product


def _equilibrated(a: Array, b: Array) -> Equilibrated | None:
    """`numerics.equilibration.equilibrated`, in two readings of A."""
    from hifigemm.numerics.equilibration import Equilibrated

    scaled_a = np.empty(a.shape)
    scaled_b = np.empty(b.shape)
    exponents = np.empty(b.shape, np.int64)
    determinant_exponent = loaded()[0].equilibrate(
        readable(a), readable(b), scaled_a, scaled_b, exponents.view(np.float64)
    )
    if determinant_exponent is None:
        return None
    return Equilibrated(scaled_a, scaled_b, exponents, determinant_exponent)


def _eliminate(
    a: Array, rows: Array, columns: Array, primes: Array, roots: Array
) -> Eliminated:
    """`numerics.prime_fields.eliminate`, eight primes at a time."""
    from hifigemm.numerics.prime_fields import Eliminated

    n, width = a.shape
    determinants = np.empty((1, len(primes)))
    minors = np.empty((n, len(primes)))
    numerators = np.empty((n * (width - n), len(primes)))
    is_complex = a.dtype.kind == "c"
    real = readable(a.real)
    imag = readable(a.imag) if is_complex else None
    exponents = rows[None], columns[None]
    fields = primes[None], roots[None]
    results = determinants, minors, numerators
    loaded()[0].eliminate(real, imag, *exponents, *fields, *results)
    return Eliminated(determinants[0], minors, numerators)


def _factor_panel(panel: Array) -> Array:
    """`numerics.elimination.factor_panel`, of real panels with contiguous rows."""
    if panel.dtype.kind == "c" or panel.strides[1] != panel.itemsize:
        from hifigemm.numerics.elimination import factor_panel

        return factor_panel(panel)
    order = np.empty((1, len(panel)), np.int64)
    loaded()[0].factor_panel(panel, order.view(np.float64))
    rows: Array = order[0]
    return rows


def _in_doubles(x: Array, shift: int) -> Vectors | None:
    """`numerics.float64_products.in_doubles`, in one reading of x."""
    from hifigemm.numerics.float64_products import Vectors

    x = readable(x)
    if x.itemsize not in x.strides:
        x = np.ascontiguousarray(x)
    has_adjacent_terms = x.strides[1] == x.itemsize
    numbers = np.empty(x.shape, order="C" if has_adjacent_terms else "F")
    bounds = np.empty((2, len(x)))
    if not loaded()[0].to_doubles(x, shift, numbers, bounds):
        return None
    return Vectors(numbers, bounds)


def _round_product(
    product: Array, rows: Array, columns: Array, terms: int, values: Array
) -> int:
    """`numerics.float64_products.round_product`, in one reading of the product."""
    num_open: int = loaded()[0].round_product(product, rows, columns, terms, values)
    return num_open


def _finish_entries(a: Array, b: Array, values: Array, shift: int) -> None:
    """`numerics.float64_products.finish_entries`, many entries shared among threads."""
    a = readable(a)
    rows, cols = divmod(np.flatnonzero(np.isnan(values)), values.shape[1])
    by_columns = np.argsort(cols // _TILE_COLUMNS, kind="stable")
    entries = np.stack([rows[by_columns], cols[by_columns]]).astype(np.float64)

    def finish_share(entries: Array, check: threads.Check | None) -> None:
        loaded()[0].finish(a, b, entries, values, shift, check)

    num_threads = _num_threads(_DOT_RATE * len(rows) * a.shape[1])
    shares = np.array_split(entries, num_threads, axis=1)
    threads.side_by_side(finish_share, list(map(np.ascontiguousarray, shares)))


_OVERRIDES: dict[str, Callable[..., Any]] = {
    "are_ordinary": _are_ordinary,
    "certified_sums": certified_sums,
    "combine_stacks": _combined,
    "rounded_sum_of_pair": _rounded_sum_of_pair,
    "magnitude_product": _magnitude_product,
    "equilibrated": _equilibrated,
    "eliminate": _eliminate,
    "factor_panel": _factor_panel,
    "in_doubles": _in_doubles,
    "round_product": _round_product,
    "finish_entries": _finish_entries,
}
"""The core's versions of functions of `numerics`, by their names: nothing is imported
for them.
"""


def _reason() -> str:
    name = loaded()[0].instructions[0]
    return f"compiled sums in two words or more, each rounded once, {name}"


def readable(x: Array) -> Array:
    """x where the core can read it: aligned, in this machine's order of bytes."""
    if x.flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def nanoseconds(problem: Problem) -> float:
    """Time of the core's sums for a product, Inf without the core."""
    core, _ = loaded()
    if core is None:
        return math.inf
    terms = problem.multiplications * (4 if problem.is_complex else 1)
    return RATES[core.instructions[0]] * terms
