"""The compiled core of the CPU, hifigemm._core, as an override of plain functions.

The core is optional: it is built where there is a C compiler, from the sources in core/,
and without it the functions of NumPy serve. `HIFIGEMM_CORE=0` leaves it alone. Values
that are rounded once are unique, so both give the same bits of them; where a weaker
request keeps entries that are not, the core rounds them once as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from hifigemm.base.formats import Format
from hifigemm.base.settings import wants_core
from hifigemm.engines import threads
from hifigemm.engines.host_calls import is_as_passed, replayed_on_host
from hifigemm.model.engine import Call, F, Outcome, Repeated, Splits
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem
from hifigemm.numerics import three_words
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import product_shape
from hifigemm.numerics.embedding import embed_left, embed_right, unembed
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.rounded_sums import rounded_sums
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.special import clean, fill_nonfinite, nonfinite_vectors
from hifigemm.numerics.symmetric import mirror
from hifigemm.numerics.three_words import RoundedSums

if TYPE_CHECKING:
    from hifigemm.numerics.equilibration import Equilibrated

Sums = tuple[Array, Array | None]
_KINDS = {"nearest": 0, "pair": 1, "enclosure": 2}

# Times by which plans choose: nanoseconds a term, one thread, an AMD EPYC at about 3 GHz
# and, for AVX-512, an Intel Xeon of 2023. That of NEON is counted from its lanes.
RATES = {"avx512": 0.1, "avx2": 0.14, "neon": 0.3, "portable": 3.0}
"""Sums of the core, in tiles."""
PRODUCTS_RATE = 0.3
"""Five or six products of the BLAS and their passes, of large matrices."""
PRODUCTS_STEPS = 200_000.0
"""Nanoseconds that they take for the smallest ones."""
SHARE = 5e5
"""Nanoseconds of work for each thread, at least: starting one takes some 50,000."""
_UNSHARED = 2**17
"""Terms of a product that no thread would share, at the slowest rate."""
SHARED_BYTES = 2**27
"""Packed rows and columns of all threads, at most."""
TWO_PARTS = 2.7
"""Times as long take pairs and enclosures: 295 ms for 110 at n = 1000."""
NATIVE_RATE = 0.03
"""Nanoseconds a term of one product of the BLAS, at n = 1000."""
THIN = 3
"""Columns or rows up to which products of the BLAS read memory for every term."""
THIN_RATE = 25.0
"""Nanoseconds a term of products so thin."""

_TILE_ROWS = 3
_TILE_COLUMNS = 16
_BLOCK_NUMBERS = 2**18
"""Rows and most columns of a tile, and numbers of packed rows, in core/product.c."""


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
    return _overrides().get(function, function) if loaded()[0] else function


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
    second_values = None if kind == "nearest" else np.empty_like(values)
    addend = None if c is None else _readable(c)
    operands = _readable(a), _readable(b), addend
    is_finite = multiply(*operands, values, second_values, shift, _KINDS[kind])
    return is_finite, values, second_values


def multiply(
    a: Array,
    b: Array,
    c: Array | None,
    values: Array,
    second_values: Array | None,
    shift: int,
    kind: int,
) -> bool:
    """Write the core's product of two stacks, or matrices, large ones shared among
    threads; False where A or B is not finite.

    An entry is rounded once whoever makes it, so bits do not depend on the threads.
    """
    # Small products have one share, without a question for the limit of threads.
    core: Any = loaded()[0]
    num_shares = 1
    if values.size * a.shape[-1] > _UNSHARED:
        batch, m, n = values.shape
        num_shares = min(most_threads(batch, m, n, a.shape[-1]), threads.limit())
    if num_shares == 1:
        is_finite: bool = core.multiply(a, b, c, values, second_values, shift, kind)
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
        second_share = None if second_values is None else second_values[share]
        is_finite: bool = core.multiply(
            left, right, addend, values[share], second_share, shift, kind, check
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
    by_memory = SHARED_BYTES // _packed_bytes(m, k)
    return max(min(by_work, by_memory, max(batch, m, n)), 1)


def _packed_bytes(rows: int, k: int) -> int:
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
    for "pair" that of what it leaves. None where A or B is not finite, and without the
    core.
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
    operands = _readable(a), _readable(b), _readable(inverse)
    if not core.enclose(*operands, row_bounds, x, radius, norm, inverse_norm):
        return None
    return x, radius


def _magnitude_product(a: Array, v: Array) -> Array:
    """`numerics.magnitudes.magnitude_product`, in one reading of A."""
    product = np.empty((a.shape[0], v.shape[1]))
    loaded()[0].magnitude_product(_readable(a), _readable(v), product)
    return product


def _equilibrated(a: Array, b: Array) -> Equilibrated | None:
    """`numerics.equilibration.equilibrated`, in two readings of A."""
    from hifigemm.numerics.equilibration import Equilibrated

    scaled_a = np.empty(a.shape)
    scaled_b = np.empty(b.shape)
    exponents = np.empty(b.shape, np.int64)
    determinant_exponent = loaded()[0].equilibrate(
        _readable(a), _readable(b), scaled_a, scaled_b, exponents.view(np.float64)
    )
    if determinant_exponent is None:
        return None
    return Equilibrated(scaled_a, scaled_b, exponents, determinant_exponent)


@lru_cache(maxsize=1)
def _overrides() -> dict[Callable[..., Any], Any]:
    """The core's versions by their plain functions."""
    from hifigemm.numerics.equilibration import equilibrated
    from hifigemm.numerics.magnitudes import magnitude_product

    return {
        three_words.certified_sums: certified_sums,
        magnitude_product: _magnitude_product,
        equilibrated: _equilibrated,
    }


def _reason() -> str:
    name = loaded()[0].instructions[0]
    return f"compiled sums in two words or more, each rounded once, {name}"


def _readable(x: Array) -> Array:
    """x where the core can read it: aligned, in this machine's order of bytes."""
    if x.flags.aligned and x.dtype.isnative:
        return x
    return np.array(x, x.dtype.newbyteorder("="), order="C")


def pays(problem: Problem, instructions: str) -> bool:
    """True if the core is expected to be quicker than products of the BLAS."""
    terms = problem.multiplications
    rate = PRODUCTS_RATE
    if min(problem.m, problem.n) <= THIN:
        rate = THIN_RATE
    return RATES[instructions] * terms <= PRODUCTS_STEPS + rate * terms


def expected_seconds(plan: Plan) -> float:
    """Seconds that the plan may take on a CPU, within a factor of three of what ordinary
    operands take on a machine that is not busy.
    """
    problem = plan.problem
    terms = problem.multiplications * (4 if problem.is_complex else 1)
    num_threads = threads.limit()
    instructions = loaded()[0].instructions[0] if loaded()[0] else ""
    is_double_double = plan.scheme.core is rounded_sums
    if is_double_double and instructions and pays(problem, instructions):
        rate = RATES[instructions]
        cols = 2 * problem.n if problem.is_complex else problem.n
        shares = most_threads(problem.batch, problem.m, cols, problem.terms)
        num_threads = min(num_threads, shares)
    elif plan.scheme.is_native:
        rate = NATIVE_RATE
    else:
        rate = PRODUCTS_RATE / 5 * plan.num_products
    if plan.rounding.has_two_parts:
        rate *= TWO_PARTS
    return 1e-9 * rate * terms / num_threads


def compile(plan: Plan) -> CoreProgram | None:
    """The program of double-double sums; None for other plans and without the core."""
    if plan.scheme.core is not rounded_sums:
        return None
    core, _ = loaded()
    problem = plan.problem
    if core is None or not pays(problem, core.instructions[0]):
        return None
    cols = 2 * problem.n if problem.is_complex else problem.n
    is_shared = most_threads(problem.batch, problem.m, cols, problem.terms) > 1
    return CoreProgram(plan, multiply if is_shared else core.multiply)


@dataclass(frozen=True)
class CoreProgram:
    """Double-double sums of a plan by the core, with what they do not settle."""

    plan: Plan
    multiply: Callable[..., bool]

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """Bytes that all threads pack, and of complex operands as real ones."""
        problem = self.plan.problem
        k = problem.terms
        real_cols = cols
        embedded = 0
        if problem.is_complex:
            real_cols = 2 * cols
            embedded = 8 * batch * (rows * k + k * real_cols + rows * real_cols)
        num_threads = most_threads(batch, rows, real_cols, k)
        return num_threads * _packed_bytes(rows, k) + embedded

    def in_halves(self, batch: int, rows: int, cols: int) -> bool:
        """False: sums are no products of halves."""
        return False

    def __call__(
        self,
        a: Array,
        b: Array,
        shift: int,
        epilogue: Epilogue,
        splits: Splits,
        out: Array | None,
    ) -> Outcome:
        """alpha (2**shift A B) + beta C, the product rounded once; see `Program`."""
        problem = self.plan.problem
        values = out
        if values is None or not epilogue.idle or not values.flags.aligned:
            values = np.empty((problem.batch, problem.m, problem.n), problem.dtype)
        notes = []
        if not self._write(a, b, shift, values):
            # Inf and NaN count as zeros first.
            rows = nonfinite_vectors(a, 2)
            cols = nonfinite_vectors(b, 1)
            self._write(clean(a), clean(b), shift, values)
            fill_nonfinite(values, a, b, rows, cols)
            notes.append("Inf and NaN as IEEE arithmetic in any order puts them")
        if problem.mirror:
            mirror(values, problem.mirror == "C")
        values = epilogue.apply(values)
        if out is not None and values is not out:
            out[...] = values
            values = out
        return Outcome(values, 0.0, self.plan.num_products, notes)

    def _write(self, a: Array, b: Array, shift: int, values: Array) -> bool:
        """Write 2**shift A B, block by block; False where A or B holds Inf or NaN."""
        for block in self.plan.blocks():
            left = _readable(a[block.batch if len(a) > 1 else slice(None), block.rows])
            right = b[block.batch if len(b) > 1 else slice(None), :, block.cols]
            right = _readable(right)
            target = values[block]
            is_complex = self.plan.problem.is_complex
            if is_complex:
                left = embed_left(left)
                right = embed_right(right)
                rows, cols = target.shape[1:]
                target = np.empty((len(target), rows, 2 * cols), values.real.dtype)
            if not self.multiply(left, right, None, target, None, shift, 0):
                return False
            if is_complex:
                values[block] = unembed(target)
        return True

    def replayed(self, call: Call) -> Repeated | None:
        """A function for arrays of NumPy or tensors of the CPU with these shapes; it
        returns None for Inf and NaN. See `Program` and `replayed_on_host`.
        """
        plan = self.plan
        problem = plan.problem
        is_plain = plan.is_whole and not problem.mirror and is_as_passed(call, plan)
        is_nearest = plan.rounding == NEAREST
        if not is_plain or (problem.is_complex and not is_nearest):
            return None
        if plan.rounding.c_exponent:
            return None  # of another C, 2**c_exponent C may lose bits
        multiply = self.multiply
        dtype = problem.dtype
        shape = plan.block_shape
        shift = call.shift
        rounding = plan.rounding
        kind = _KINDS[rounding.kind]
        num_products = float(plan.num_products)

        def of_stacks(a: Array, b: Array, c: Array | None) -> Outcome | None:
            values = np.empty(shape, dtype)
            second = None
            if problem.is_complex:
                is_written = self._write(a, b, shift, values)
            else:
                if kind:
                    second = np.empty(shape, dtype)
                if c is not None:
                    # Inf and NaN of C take the whole road. For the smallest matrices
                    # a count takes half the time of all().
                    if np.count_nonzero(np.isfinite(c)) < c.size:
                        return None
                    a = a if rounding.sign > 0 else -a
                    c = _readable(c if rounding.c_sign > 0 else -c)
                left = _readable(a)
                right = _readable(b)
                is_written = multiply(left, right, c, values, second, shift, kind)
            if not is_written:
                return None
            return Outcome(values, 0.0, num_products, second=second)

        of_any = replayed_on_host(of_stacks, call, plan)
        is_real_product = is_nearest and not problem.is_complex
        has_matrices = all(x.ndim == 2 for x in call.operands)
        is_simple = call.deliver is None and call.epilogue.idle
        if not (is_real_product and has_matrices and is_simple):
            return of_any

        # The quickest way for the smallest matrices.
        def of_matrices(a: Any, b: Any, out: Any) -> Any:
            if type(a) is not np.ndarray or not (a.flags.aligned and b.flags.aligned):
                return of_any(a, b, out)
            values = np.empty(shape, dtype)
            if not multiply(a, b, None, values, None, shift, 0):
                return None
            if out is None:
                return values[0]
            out[...] = values[0]
            return out

        return of_matrices
