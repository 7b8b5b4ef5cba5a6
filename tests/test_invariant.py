"""The same bits for everyone: rows, columns, stacks, orders and cuts of k, engines.

`assert_invariant` holds for `Invariant` and for correct rounding. It fails for the
schemes whose dependence `Plan.bits_depend_on` names: so it can fail.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.numerics.residues import moduli_set
from tests import hard_matrices as gen

DTYPES = ("float32", "float64", "complex64", "complex128")
REQUESTS = (
    {"accuracy": "correct"},
    {"accuracy": hg.Invariant()},
    {"accuracy": hg.Invariant(1e-7)},
    {"accuracy": hg.Invariant(1e-12)},
    {"scheme": hg.Ozaki2(num_moduli=5, scaling="largest")},
    {"scheme": hg.Ozaki1(num_slices=2)},
    {"scheme": hg.Ozaki1("fp64", num_slices=2)},
)
COUNT = 8
"""Moduli of the schemes that depend on more than a row and a column."""


def hostile_row(count: int = COUNT) -> np.ndarray:
    """600 entries whose square norm lies within one unit of a power of four of the
    range of so many moduli: the norm of "fast" crosses it or not by the block of 256 in
    which 40 tiny entries lie.

    Four integers have squares of the sum N - 20, N the largest one for a scale. Tiny
    entries count 1 each in the block of these, and 1 together in a block of their own;
    they have bits that the scale decides on.
    """
    largest = moduli_set(count, False).half_range
    while largest >= 2**30:
        largest //= 4
    row = np.zeros(600)
    row[:4] = four_squares(largest - 20)
    row[300:340] = 2.0**-10 * (1 + np.random.default_rng(0).random(40))
    return row


def four_squares(n: int) -> tuple[int, int, int, int]:
    """Four integers, the largest between 2**14 and 2**15, whose squares add up to n."""
    for a in range(math.isqrt(n - 2**16), 2**14, -1):
        for b in range(math.isqrt(n - a * a), 0, -1):
            rest = n - a * a - b * b
            for c in range(math.isqrt(rest) + 1):
                d = math.isqrt(rest - c * c)
                if c * c + d * d == rest:
                    return a, b, c, d
                if c > 40:
                    break
    raise AssertionError(n)


def operands(dtype, seed=0, m=6, k=600, n=5):
    """A and B with rows and columns of all kinds, the first row a hostile one."""
    rng = np.random.default_rng(seed)
    a = gen.phi_matrix(rng, (m, k), 1.0, np.float64)
    b = gen.phi_matrix(rng, (k, n), 0.5, np.float64)
    a[0] = hostile_row()[np.arange(k) % 600]
    a[1, ::2] = 0
    a[2] *= 2.0 ** rng.integers(-40, 20, k)
    a[3] = 2.0 ** rng.integers(-2, 2, k)  # at powers of two themselves
    b[:, 1] *= 2.0 ** rng.integers(-30, 30, k)
    b[:, 2] = np.nextafter(2.0, 1.0)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * a[::-1]
        b = b - 1j * b[:, ::-1]
    return a.astype(dtype), b.astype(dtype)


def same(x, y):
    """True if all bits are equal."""
    return x.tobytes() == np.ascontiguousarray(y).tobytes()


def differing(a, b, options, rng) -> set[str]:
    """What changes a bit of an entry: the causes of `Plan.bits_depend_on` that were
    seen.
    """
    k = a.shape[1]
    c = hg.matmul(a, b, **options)
    seen = set()

    # Other values of the other rows and columns.
    for i in range(len(a)):
        others = a * a.dtype.type(0.75)
        others[i] = a[i]
        if not same(c[i], hg.matmul(others, b, **options)[i]):
            seen.add("other rows")
    for j in range(b.shape[1]):
        others = b[::-1] * b.dtype.type(2.0**20)
        others[4:] = 0
        others[:, j] = b[:, j]
        if not same(c[:, j].copy(), hg.matmul(a, others, **options)[:, j].copy()):
            seen.add("other columns")

    # Rows and columns by themselves, in other orders, beside others, and in stacks:
    # where values do not count, the shape does.
    rows = rng.permutation(len(a))
    columns = rng.permutation(b.shape[1])
    stack = np.stack([a[::-1], a, 0 * a])
    huge = np.concatenate([a, np.full((3, k), 2.0**60, a.dtype), 0 * a])
    products = [
        (c[rows][:, columns], hg.matmul(a[rows], b[:, columns], **options)),
        (c, hg.matmul(stack, b, **options)[1]),
        (c, hg.matmul(huge, b, **options)[: len(a)]),
        *((c[i], hg.matmul(a[i], b, **options)) for i in range(len(a))),
    ]
    are_same = all(same(x, y) for x, y in products)
    if not (are_same or seen & {"other rows", "other columns"}):
        seen.add("shape")

    # Other orders of the terms; the last one has the entries of the first row by size.
    reverse = np.arange(k)[::-1]
    by_size = np.argsort(-abs(a[0]), kind="stable")
    for order in (rng.permutation(k), reverse, np.roll(reverse, 300), by_size):
        if not same(c, hg.matmul(a[:, order], b[order], **options)):
            seen.add("order of k")
    return seen


@pytest.mark.parametrize("options", REQUESTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch_and_order(dtype, options):
    rng = np.random.default_rng(1)
    a, b = operands(dtype)
    assert hg.make_plan(a, b, **options).invariant
    assert differing(a, b, options, rng) == set()


@pytest.mark.parametrize(
    ("scheme", "cause"),
    [
        (hg.Ozaki2(num_moduli=COUNT, scaling="fast"), "order of k"),
        (hg.Ozaki2(num_moduli=COUNT), "other rows"),
        (hg.Ozaki2(num_moduli=COUNT), "other columns"),
        (hg.Multiword(), "order of k"),
        (hg.Corrected(), "order of k"),
    ],
    ids=str,
)
def test_other_schemes_depend_on_what_their_plans_name(scheme, cause):
    rng = np.random.default_rng(1)
    dtype = "float64" if isinstance(scheme, hg.Ozaki2) else "float32"
    a, b = operands(dtype)
    plan = hg.make_plan(a, b, scheme=scheme)
    seen = differing(a, b, {"scheme": scheme}, rng)
    assert cause in seen
    assert seen <= plan.bits_depend_on
    assert not plan.invariant


def test_the_hostile_row_moves_its_norm_by_the_order_of_its_terms():
    # So that the property above is not held by rows that lie far from a jump.
    fast = hg.Ozaki2(num_moduli=COUNT, scaling="fast")
    largest = hg.Ozaki2(num_moduli=COUNT, scaling="largest")
    rng = np.random.default_rng(0)
    a = hostile_row()[None]
    b = rng.standard_normal((600, 2000))
    order = np.argsort(-a[0], kind="stable")
    for scheme, changes in ((fast, True), (largest, False)):
        c = hg.matmul(a, b, scheme=scheme)
        d = hg.matmul(a[:, order], b[order], scheme=scheme)
        assert (np.count_nonzero(c != d) > 500) == changes


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(DTYPES),
    st.sampled_from((None, "fp32", 1e-4, 1e-7, 1e-12)),
    st.integers(1, 12),
    st.integers(1, 700),
    st.integers(1, 9),
)
def test_any_part_in_any_order_has_the_bits_of_the_whole(seed, dtype, r, m, k, n):
    rng = np.random.default_rng(seed)
    a, b = operands(dtype, seed, max(m, 4), k, max(n, 3))
    options = {"accuracy": hg.Invariant(r)}
    c = hg.matmul(a, b, **options)
    rows = rng.integers(0, len(a), m)
    columns = rng.integers(0, b.shape[1], n)
    order = rng.permutation(k)
    part = hg.matmul(a[rows][:, order], b[order][:, columns], **options)
    assert same(c[rows][:, columns], part)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("r", [None, 1e-7])
def test_partial_sums_of_any_parts_of_k_have_the_bits_of_the_whole(dtype, r):
    a, b = operands(dtype)
    options = {"accuracy": hg.Invariant(r)}
    plan = hg.make_plan(a, b, **options)
    want = hg.matmul(a, b, **options)
    rng = np.random.default_rng(0)
    for parts in (1, 2, 3, 7):
        cuts = [0, *sorted(rng.choice(np.arange(1, 600), parts - 1, False)), 600]
        assert same(want, sum_of_parts(plan, a[None], b[None], cuts)[0])


def sum_of_parts(plan, a, b, cuts):
    """The product by sums over parts of k, as ranks make them: the largest exponents of
    the parts, residues of each, their sums modulo each p, one rounding.
    """
    scheme = plan.scheme
    engine = engine_for("numpy", "numpy", "cpu")
    parts = [slice(*x) for x in pairwise(cuts)]
    exponents = []
    for axis, x in ((2, a), (1, b)):
        pieces = [x[:, :, part] if axis == 2 else x[:, part] for part in parts]
        of_pieces = [_exponents(piece, axis) for piece in pieces]
        exponents.append(np.max(of_pieces, axis=0))
    scales = scheme.scales_of_norms(plan, (None, exponents[0]), (None, exponents[1]))
    total = 0
    for part in parts:
        left = scheme.split(plan, a[:, :, part], "left", scales[0], engine)
        right = scheme.split(plan, b[:, part], "right", scales[1], engine)
        total = total + scheme.residues(left.planes, right.planes, plan, engine).astype(
            np.int64
        )
    moduli = moduli_set(scheme.count, plan.problem.is_complex)
    p = np.array(moduli.of_planes(total.shape[1]))[:, None, None]
    residues = ((total + p // 2) % p - p // 2).astype(np.int8)
    return scheme.rounded(residues, left.unit, right.unit, plan, engine, 0)


def _exponents(x, axis):
    """Exponents of the largest components; those of zeros are below all others."""
    size = np.maximum(abs(x.real), abs(x.imag)).max(axis=axis, keepdims=True)
    return np.where(size == 0, -2000, np.frexp(size)[1]).astype(np.int64)


@pytest.mark.parametrize("scheme", [hg.Ozaki2(num_moduli=9, scaling="fast")], ids=str)
def test_zeros_behind_change_nothing_where_k_is_no_cause(scheme):
    for k in (600, 601):
        a, b = operands("float64", k=k)
        want = hg.matmul(a, b, scheme=scheme)
        for more in (1, 40, 300):
            zeros = np.zeros((len(a), more)), np.zeros((more, b.shape[1]))
            longer = np.hstack([a, zeros[0]]), np.vstack([b, zeros[1]])
            plan = hg.make_plan(*longer, scheme=scheme)
            assert "k" not in plan.bits_depend_on
            assert same(want, hg.matmul(*longer, scheme=scheme))


@pytest.mark.parametrize("options", REQUESTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_engines_give_the_same_bits(request, dtype, options):
    a, b = operands(dtype)
    want = hg.matmul(a, b, **options)
    for engine in ("simulated-a100", "simulated-ideal-zero"):
        assert same(want, hg.matmul(a, b, engine=engine, **options))
    request.getfixturevalue("without_core")
    assert same(want, hg.matmul(a, b, **options))


@pytest.mark.parametrize("options", REQUESTS, ids=str)
def test_workspaces_and_prepared_operands_give_the_same_bits(workspaces, options):
    a, b = operands("float64")
    want, report = hg.matmul(a, b, return_report=True, **options)
    for workspace in workspaces(a, b, **options):
        assert same(want, hg.matmul(a, b, workspace=workspace, **options))
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)
    assert same(want, hg.matmul(left, right))
    assert same(want[2:4], hg.matmul(a[2:4], right))
    plan = hg.make_plan(a, b, **options)
    assert same(want[2:4], hg.matmul(a[2:4], b, plan=plan))
    assert report.invariant


def test_special_values_stay_in_their_rows_and_columns():
    a, b = operands("float64")
    want = hg.matmul(a, b, accuracy=hg.Invariant(1e-7))
    a[2, 7] = np.inf
    b[9, 1] = np.nan
    c = hg.matmul(a, b, accuracy=hg.Invariant(1e-7))
    rows = [0, 1, 3, 4, 5]
    columns = [0, 2, 3, 4]
    assert same(want[rows][:, columns], c[rows][:, columns])
    assert np.isnan(c[:, 1]).all()


def exact_squares(x, axis):
    """Exact sums of squares along an axis, as fractions."""
    x = np.moveaxis(x, axis, -1)
    return [sum(Fraction(float(y)) ** 2 for y in vector) for vector in x]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("r", [None, 1e-3, 1e-5, 1e-7, 1e-12])
def test_numbers_are_kept_by_norms_judged_exactly(dtype, r):
    u = Fraction(float(np.finfo(dtype).eps)) / 2
    worst = Fraction(0)
    for a, b in (operands(dtype, k=200), worst_case(dtype, 256)):
        c, report = hg.matmul(a, b, accuracy=hg.Invariant(r), return_report=True)
        assert report.bound == math.inf
        promised = Fraction(report.normwise)
        of_rows = exact_squares(a, 1)
        of_columns = exact_squares(b, 0)
        for i, row in enumerate(a):
            for j in range(b.shape[1]):
                terms = zip(row, b[:, j], strict=True)
                exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in terms)
                error = abs(Fraction(float(c[i, j])) - exact) - u * abs(exact)
                if error > 0:
                    squares = of_rows[i] * of_columns[j]
                    assert error**2 <= promised**2 * squares
                    worst = max(worst, error**2 / squares)
    # The promise is no empty one: the worst case comes within a factor of its scale,
    # which is a power of two, and of its count, a modulus.
    if r is not None and r >= 1e-5:
        assert worst > (promised / 2**7) ** 2


@pytest.mark.parametrize("r", [1e-2, 1e-3, 1e-5, 3e-7])
def test_numbers_are_kept_by_norms_in_a_narrower_dtype(r):
    u = Fraction(1, 2**11)
    a, b = np.random.default_rng(8).standard_normal((2, 12, 12)).astype(np.float32)
    a, b = np.vstack([a, worst_case("float32", 12)[0]]), b / 4
    options = {"accuracy": hg.Invariant(r), "out_dtype": np.float16}
    c, report = hg.matmul(a, b, **options, return_report=True)
    assert report.invariant
    of_rows = exact_squares(a, 1)
    of_columns = exact_squares(b, 0)
    for i, j in np.ndindex(c.shape):
        terms = zip(a[i], b[:, j], strict=True)
        exact = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in terms)
        error = abs(Fraction(float(c[i, j])) - exact) - u * abs(exact)
        # What is subnormal in float16 errs by half of the smallest number besides
        error -= Fraction(1, 2**25)
        assert error <= 0 or error**2 <= Fraction(r) ** 2 * of_rows[i] * of_columns[j]
    row = hg.matmul(a[3, ::-1], b[::-1], **options)
    assert (row == c[3]).all()


def worst_case(dtype, k):
    """A row of equal entries, and a column whose largest entry is a power of two, the
    least for its exponent, beside entries that round to zero.
    """
    a = np.ones((1, k), dtype)
    columns = []
    for bits in range(1, 40):
        column = np.full(k, 2.0**-bits * (1 - 2.0**-10))
        column[0] = 1.0
        columns.append(column)
    return a, np.stack(columns, axis=1).astype(dtype)


def test_a_sum_with_alpha_and_beta_is_rounded_once():
    a, b = operands("float64")
    c = np.ones((len(a), b.shape[1]))
    options = {"alpha": 0.75, "beta": -3.0}
    want = hg.gemm(a, b, c, accuracy="correct", **options)
    values, report = hg.gemm(
        a, b, c, accuracy=hg.Invariant(1e-7), return_report=True, **options
    )
    assert same(want, values)
    assert report.correct
    # Powers of two round nothing.
    doubled = hg.gemm(a, b, alpha=2.0, accuracy=hg.Invariant(1e-7))
    assert same(doubled, 2 * hg.matmul(a, b, accuracy=hg.Invariant(1e-7)))
