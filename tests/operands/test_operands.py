"""What products take and give: shapes, dtypes and outputs, as NumPy has them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import hifigemm as hg
from hifigemm.base.formats import BF16, FP16
from hifigemm.libraries import BFLOAT16, library_of
from hifigemm.operands import operands
from hifigemm.testing.reference import correctly_rounded
from tests.small_integers import DTYPES, SCHEMES, small_integers

SHAPES = (
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 1, 3, 4), (1, 6, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (1, 4, 5)),
    ((1, 1, 3, 4), (4, 5)),
    ((1, 4), (4, 1)),
    ((1, 1), (1, 1)),
    ((1,), (1,)),
    ((0, 4), (4, 5)),
    ((3, 4), (4, 0)),
    ((3, 0), (0, 5)),
    ((0,), (0,)),
    ((0, 0), (0, 0)),
    ((0, 3, 4), (4, 5)),
    ((0, 3, 4), (1, 4, 5)),
    ((2, 3, 0), (2, 0, 5)),
    ((3, 0), (0,)),
)


BAD_SHAPES = (
    ((3, 4), (5, 4)),
    ((3,), (4,)),
    ((2, 3, 4), (3, 4, 5)),
    ((3, 4), (3,)),
    ((3, 0), (1, 4)),
)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_shapes_and_types_are_those_of_numpy_matmul(shapes, scheme):
    for dtype in DTYPES:
        a, b = (small_integers(shape, dtype, seed) for seed, shape in enumerate(shapes))
        a, b = a.astype(dtype), b.astype(dtype)
        expected = np.matmul(a, b)
        found = hg.matmul(a, b, scheme=scheme)
        assert type(found) is type(expected)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)
        plan = hg.make_plan(a, b, scheme=scheme)
        np.testing.assert_array_equal(hg.matmul(a, b, plan=plan), expected)
        assert str(plan)


@pytest.mark.parametrize("shapes", BAD_SHAPES, ids=str)
def test_shapes_that_do_not_fit_are_refused_with_their_numbers(shapes):
    a, b = (np.ones(shape) for shape in shapes)
    for call in (hg.matmul, hg.gemm, hg.make_plan):
        with pytest.raises(
            ValueError, match=r"inner dimensions differ|do not broadcast"
        ) as error:
            call(a, b)
        for size in {*shapes[0][:-2], *shapes[1][:-2]} or {
            *shapes[0][-1:],
            *shapes[1][-2:],
        }:
            assert str(size) in str(error.value)


def long_stacks():
    """Shapes of stacks of up to 64 axes, as many as NumPy has, that broadcast."""
    rng = np.random.default_rng(64)
    for num_axes in (33, 34, 35, 36, 48, 63, 64):
        for _ in range(3):
            long = rng.choice((1, 1, 1, 1, 1, 1, 2), num_axes - 2)
            long[10:] = 1  # 2**10 products at the most
            few = rng.integers(0, num_axes - 1)
            short = np.where(rng.random(few) < 0.2, long[num_axes - 2 - few :], 1)
            stacks = [tuple(map(int, long)), tuple(map(int, short))]
            rng.shuffle(stacks)
            yield tuple(map(tuple, stacks))


@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize(
    "stacks", list(long_stacks()), ids=lambda x: f"{len(x[0])} {len(x[1])}"
)
def test_stacks_have_as_many_axes_as_arrays_of_numpy(stacks, accuracy):
    rng = np.random.default_rng(list(map(len, stacks)))
    left, right = stacks
    a = rng.integers(-9, 10, (*left, 3, 4)).astype(float)
    b = rng.integers(-9, 10, (*right, 4, 2)).astype(float)
    want = np.matmul(a, b)
    shape = np.zeros(left, np.int8) + np.zeros(right, np.int8)
    assert operands.shapes_of(a.shape, b.shape).batch == shape.shape
    np.testing.assert_array_equal(hg.matmul(a, b, accuracy=accuracy), want)
    c = rng.integers(-9, 10, want.shape[-2:])
    sums = hg.gemm(a, b, c, alpha=-1, beta=2, accuracy=accuracy)
    np.testing.assert_array_equal(sums, 2 * c - want)
    vector = hg.matmul(a, b.reshape(-1, 4, 2)[0, :, 0], accuracy=accuracy)
    np.testing.assert_array_equal(vector, np.matmul(a, b.reshape(-1, 4, 2)[0, :, 0]))
    out = np.empty_like(want)
    assert hg.matmul(a, b, accuracy=accuracy, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_scalars_are_refused():
    for a, b in ((2.0, np.ones(3)), (np.ones(3), np.float64(1))):
        with pytest.raises(ValueError, match="scalar"):
            hg.matmul(a, b)


@pytest.mark.parametrize(
    "first", [*DTYPES, "float16", "int64", "int8", "uint16", "bool"]
)
@pytest.mark.parametrize("second", [*DTYPES, "int32", "float16"])
def test_dtypes_promote_as_in_numpy(first, second):
    a, b = np.ones((2, 3)).astype(first), np.ones((3, 2)).astype(second)
    expected = np.result_type(a, b)
    expected = np.dtype(np.float32) if expected == np.float16 else expected
    if expected in [np.dtype(t) for t in DTYPES]:
        c = hg.matmul(a, b, accuracy="correct")
        assert c.dtype == expected
        np.testing.assert_array_equal(c, a @ b)
    else:
        np.testing.assert_array_equal(hg.matmul(a, b), a @ b, strict=True)


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
def test_mixed_dtypes_are_exact_in_the_promoted_one(
    make_pair, assert_same_bits, scheme
):
    for first, second in (
        ("float32", "float64"),
        ("complex64", "float64"),
        ("float32", "complex128"),
        ("complex64", "float32"),
    ):
        a = make_pair("phi_2", 4, 9, 3, first)[0]
        b = make_pair("phi_2", 4, 9, 3, second)[1]
        assert_same_bits(
            hg.matmul(a, b, accuracy="correct", scheme=scheme), correctly_rounded(a, b)
        )


@pytest.mark.parametrize(
    "operand",
    [
        np.full((2, 2), None),
        np.array([["a", "b"]] * 2),
        np.ones((2, 2), "M8[s]"),
        np.ones((2, 2), np.longdouble),
        np.ma.masked_array(np.ones((2, 2)), mask=[[True, False], [False, False]]),
        np.zeros((2, 2), [("x", "f8")]),
        [["a", 1.0], [2.0, 3.0]],
    ],
    ids=lambda x: str(getattr(x, "dtype", type(x))),
)
def test_what_is_not_one_of_the_four_dtypes_is_a_type_error(operand):
    for call in (hg.matmul, hg.gemm, hg.make_plan):
        with pytest.raises(TypeError):
            call(operand, operand)


def test_ragged_lists_are_a_value_error():
    with pytest.raises(ValueError, match="inhomogeneous"):
        hg.matmul([[1.0, 2.0], [3.0]], np.ones((2, 2)))


def test_lists_and_integers_are_operands():
    np.testing.assert_array_equal(
        hg.matmul([[1.0, 2.0]], [[3], [4]], accuracy="correct"), [[11.0]]
    )
    np.testing.assert_array_equal(
        hg.matmul(np.array([[True, False]]), np.ones((2, 1), np.float32)), [[1.0]]
    )
    assert (
        hg.matmul(np.array([[2**53 + 2]]), np.array([[1.0]]), accuracy="correct")
        == 2**53 + 2
    )


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**62 + 1])
def test_integers_that_the_dtype_cannot_hold_are_refused(value):
    for options in ({}, {"accuracy": "correct"}, {"scheme": "ozaki2"}):
        with pytest.raises(ValueError, match="not exact"):
            hg.matmul(np.array([[value]]), np.array([[1.0]]), **options)
    with pytest.raises(ValueError, match="not exact"):
        hg.matmul(np.array([[2**64 - 1]], np.uint64), np.array([[1.0]]))


@pytest.mark.parametrize("scheme", ["auto", "ozaki1", "ozaki2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_receives_the_result_also_when_it_is_an_operand(
    make_pair, assert_same_bits, scheme, dtype
):
    a, b = make_pair("phi_2", 6, 6, 6, dtype)
    c = hg.matmul(a, b, accuracy="correct", scheme=scheme)
    out = np.full((6, 6), np.nan, dtype)
    assert hg.matmul(a, b, accuracy="correct", scheme=scheme, out=out) is out
    assert_same_bits(out, c)
    for target in (0, 1):
        operands = [a.copy(), b.copy()]
        out = operands[target]
        assert hg.matmul(*operands, accuracy="correct", scheme=scheme, out=out) is out
        assert_same_bits(out, c)
    shared = np.zeros((9, 6), dtype)
    shared[:6] = a
    hg.matmul(shared[:6], b, accuracy="correct", scheme=scheme, out=shared[3:])
    assert_same_bits(shared[3:], c)
    strided = np.zeros((12, 12), dtype, order="F")
    hg.matmul(a, b, accuracy="correct", scheme=scheme, out=strided[::-2, ::2])
    assert_same_bits(strided[::-2, ::2], c)
    square = a.copy()
    hg.matmul(square, square, accuracy="correct", scheme=scheme, out=square)
    assert_same_bits(square, hg.matmul(a, a, accuracy="correct", scheme=scheme))


def test_out_for_vectors_stacks_and_empty_results():
    out = np.array(np.nan)
    assert hg.matmul(np.ones(3), np.ones(3), out=out) is out
    assert out == 3.0
    out = np.full((2, 3, 5), np.nan)
    result, report = hg.matmul(
        np.ones((2, 3, 0)), np.ones((2, 0, 5)), out=out, return_report=True
    )
    assert result is out
    assert not out.any()
    assert report.num_products == 0


def test_wrong_out_is_refused_before_anything_is_written():
    a, b = np.ones((3, 4)), np.ones((4, 5))
    read_only = np.zeros((3, 5))
    read_only.flags.writeable = False
    for out, kind, text in (
        (np.zeros((5, 3)), ValueError, r"\(5, 3\).*\(3, 5\)"),
        (np.zeros((3, 1)), ValueError, r"\(3, 1\)"),
        (np.zeros((2, 5, 3)), ValueError, r"\(2, 5, 3\)"),
        (np.zeros(5), ValueError, r"\(5,\)"),
        (np.zeros((3, 5), np.float32), TypeError, "float32.*float64"),
        (np.zeros((3, 5), np.complex64), TypeError, "complex64"),
        (np.zeros((3, 5), np.int64), TypeError, "int64"),
        (np.zeros((3, 5), object), TypeError, "object"),
        ((np.zeros((3, 5)), None), TypeError, "tuple of 2"),
        (np.ma.masked_array(np.zeros((3, 5))), TypeError, "out is a masked array"),
        (np.float64(0.0), TypeError, "out is a float64"),
        (read_only, ValueError, "read-only"),
        ([[0.0] * 5] * 3, TypeError, "list"),
    ):
        for call in (hg.matmul, hg.gemm):
            with pytest.raises(kind, match=text):
                call(a, b, out=out)
        assert not np.any(out[0] if isinstance(out, tuple) else out)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((1, 3, 4), (4, 5)),
    ],
)
@pytest.mark.parametrize("first", ["float32", "float64", "int32", "bool"])
def test_out_is_what_numpy_takes_unless_it_would_round(shapes, first):
    a, b = (np.ones(shape).astype(first) for shape in shapes)
    result = np.matmul(a, b)
    leads = ((), (1,), (2,), (3, 2), (2, 1), (7, 1, 2))
    for shape in {
        *(lead + result.shape for lead in leads),
        *((*lead, 3, 5) for lead in leads),
    }:
        for dtype in (
            "bool",
            "int16",
            "int32",
            "int64",
            "float32",
            "float64",
            ">f8",
            "longdouble",
            "complex64",
            "complex128",
        ):
            want, out = np.zeros(shape, dtype), np.zeros(shape, dtype)
            rounds = result.dtype.kind in "iu" and want.dtype.kind not in "iu"
            try:
                np.matmul(a, b, out=want)
                rounds |= not np.can_cast(result.dtype, want.dtype, "safe")
            except (TypeError, ValueError):
                with pytest.raises((TypeError, ValueError), match="out has"):
                    hg.matmul(a, b, out=out)
                continue
            if rounds:
                with pytest.raises(TypeError, match=f"out has dtype.*{result.dtype}"):
                    hg.matmul(a, b, out=out)
                continue
            assert hg.matmul(a, b, out=(out,)) is out
            np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(hg.matmul(a, b, out=(None,)), result, strict=True)


def test_gemm_fills_a_stack_of_a_wider_dtype(make_pair):
    a, b = make_pair("integers", 3, 4, 5, "float32")
    out = np.zeros((2, 3, 5), complex)
    assert hg.gemm(a, b, 1.0, alpha=2.0, beta=3.0, out=(out,)) is out
    np.testing.assert_array_equal(out, np.broadcast_to(2 * (a @ b) + 3, out.shape))


def test_subclasses_give_plain_arrays_where_nothing_is_lost():
    class Tagged(np.ndarray):
        pass

    class WithUnit(np.ndarray):
        def __array_finalize__(self, other):
            self.unit = getattr(other, "unit", None)

    a = np.ones((2, 2)).view(Tagged)
    assert type(hg.matmul(a, a)) is np.ndarray
    with pytest.raises(TypeError, match=r"b is a numpy\.matrix, .*\* is a product of"):
        hg.matmul(a, a.view(np.matrix))
    for x in (a.view(WithUnit), a.view(np.recarray)):
        with pytest.raises(
            TypeError,
            match=rf"b is a .*{type(x).__name__}.*would be lost; pass np\.asarray",
        ):
            hg.matmul(a, x)
    assert hg.matmul(a, a)[0, 0] == 2.0


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((3, 2), (8, 8)),
        ((3, 2), (0, 8)),
        ((3, 2), (-8, 8)),
        ((2, 3), (8, 4)),
        ((2, 3), (24, 16)),
    ],
)
def test_an_out_whose_entries_overlap_is_refused(shape, strides):
    memory = np.zeros(40)
    out = np.lib.stride_tricks.as_strided(memory[20:], shape, strides)
    a, b = np.ones((shape[0], 2)), np.ones((2, shape[1]))
    starts = {
        20 * 8 + i * strides[0] + j * strides[1]
        for i in range(shape[0])
        for j in range(shape[1])
    }
    if len(starts) == out.size and all(
        abs(x - y) >= 8 for x in starts for y in starts if x != y
    ):
        assert (hg.matmul(a, b, out=out) == 2.0).all()
    else:
        with pytest.raises(ValueError, match=r"entries of out share memory.*strides"):
            hg.matmul(a, b, out=out)


# The functions themselves


NUMPY = library_of(("a", np.ones(1)))
RESULTS = [np.dtype(name) for name in DTYPES]


@given(array_shapes(max_dims=4, max_side=3), array_shapes(max_dims=4, max_side=3))
def test_shapes_are_those_of_numpy_and_name_what_differs(a, b):
    x, y = np.ones(a), np.ones(b)
    try:
        want = np.matmul(x, y)
    except ValueError:
        with pytest.raises(ValueError, match=r"inner dimensions|do not broadcast"):
            operands.shapes_of(a, b)
        return
    shapes = operands.shapes_of(a, b)
    assert shapes.result == want.shape
    left = operands.stacked(x, shapes.left, shapes.batch, None)
    right = operands.stacked(y, shapes.right, shapes.batch, None)
    np.testing.assert_array_equal((left @ right).reshape(shapes.result), want)
    assert shapes.stack[0] == len(left @ right)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5, 2, 3, 4)])
def test_a_stack_times_a_matrix_is_one_tall_matrix(shape):
    shapes = operands.shapes_of(shape, (4, 6))
    rows = int(np.prod(shape[:-1]))
    assert (shapes.left, shapes.right) == ((1, rows, 4), (1, 4, 6))
    assert shapes.stack[0] == 1


def test_stacks_are_views_where_no_entry_repeats():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert np.shares_memory(operands.stacked(x, (2, 3, 4), (2,), None), x)
    repeated = operands.stacked(x[:1], (2, 3, 4), (2,), None)
    np.testing.assert_array_equal(repeated, np.stack([x[0], x[0]]))


@pytest.mark.parametrize(
    ("first", "second"),
    list(
        product(
            ["float16", "float32", "float64", "complex64", "int32", "bool"], repeat=2
        )
    ),
)
def test_results_have_the_dtype_that_numpy_promotes_to_or_none(first, second):
    dtypes = np.dtype(first), np.dtype(second)
    promoted = np.result_type(*dtypes)
    if promoted == np.float16:
        promoted = np.dtype(np.float32)
    if promoted in RESULTS:
        assert operands.result_dtype(*dtypes) == promoted
    else:
        with pytest.raises(TypeError, match=f"{first}, {second} promote to {promoted}"):
            operands.result_dtype(*dtypes)


def test_scalars_of_python_give_way_to_dtypes():
    single = np.dtype(np.float32)
    assert operands.result_dtype(single, 1.5) == single
    assert operands.result_dtype(single, 1j) == np.complex64
    assert operands.result_dtype(BFLOAT16, np.dtype(np.float16)) == single


def test_operands_have_a_narrow_format_in_common_or_none():
    half = np.dtype(np.float16)
    assert operands.common_narrow(half, half) is FP16
    assert operands.common_narrow(BFLOAT16, BFLOAT16) is BF16
    assert operands.common_narrow(half, BFLOAT16) is None
    assert operands.common_narrow(np.dtype(np.float32), half) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_converted_exactly_or_not_at_all(n):
    x = np.array([n])
    if int(float(n)) == n:
        assert int(operands.converted(x, np.dtype(float))[0]) == n
    else:
        with pytest.raises(ValueError, match=r"int64 beyond 2\*\*53"):
            operands.converted(x, np.dtype(float))


@given(st.integers(0, 2**64 - 1))
def test_unsigned_integers_are_converted_exactly_or_not_at_all(n):
    x = np.array([n], np.uint64)
    if int(float(n)) == n:
        assert int(operands.converted(x, np.dtype(float))[0]) == n
    else:
        with pytest.raises(ValueError, match="uint64"):
            operands.converted(x, np.dtype(float))


@given(array_shapes(min_dims=0, max_dims=3, max_side=3), array_shapes(max_dims=3))
def test_an_addend_fits_where_it_broadcasts_to_the_result(addend, result):
    try:
        fits = np.broadcast_shapes(addend, result) == result
    except ValueError:
        fits = False
    if fits:
        operands.check_addend(addend, result)
    else:
        with pytest.raises(ValueError, match="the result has shape"):
            operands.check_addend(addend, result)


def test_complex_scalars_need_a_complex_result():
    operands.check_scalars(np.dtype(complex), alpha=1j, beta=2.0)
    with pytest.raises(TypeError, match="beta = 2j is complex"):
        operands.check_scalars(np.dtype(float), alpha=1.0, beta=2j)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 2), (4, 1), (0, 5)])
def test_entries_overlap_where_their_bytes_do(shape):
    for strides in product([-16, -8, 0, 4, 8, 12, 16, 24], repeat=2):
        taken = []
        for i, j in np.ndindex(shape):
            start = i * strides[0] + j * strides[1]
            taken += range(start, start + 8)
        is_shared = len(set(taken)) < len(taken)
        assert operands._overlap(shape, strides, 8) == is_shared, strides


def test_a_result_goes_where_its_values_are_values():
    """But for int64 in float64, which NumPy counts as safe."""
    for dtype, wide in product([*RESULTS, np.dtype(np.int32), np.dtype(bool)], RESULTS):
        holds = np.can_cast(dtype, wide, "safe")
        if dtype.kind == "i":
            holds = False
        assert operands._holds(wide, dtype) == holds


def test_prepared_operands_bring_their_plans():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    plan = hg.make_plan(a, b, scheme="ozaki2")
    left = hg.prepare(a, "left", plan=plan)
    pair = operands.Operands(left, b, NUMPY, np.dtype(float))
    assert pair.are_prepared
    assert not pair.are_empty
    assert pair.plans(None) == [left.plan]
    assert pair.plans(plan) == [plan, left.plan]
    x, y = pair.stacks(None)
    assert (x.shape, y.shape) == ((1, 3, 4), (1, 4, 2))
    assert operands.array_of(left) is left.operand
    assert operands.array_of(b) is b


def test_operands_that_were_prepared_for_a_request_bring_no_plan():
    a, b = np.ones((3, 4)), np.ones((4, 2))
    left = hg.prepare(a, "left", accuracy="correct")
    pair = operands.Operands(left, b, NUMPY, np.dtype(float))
    assert pair.are_prepared
    assert pair.plans(None) == []
    plan = hg.make_plan(a, b)
    assert pair.plans(plan) == [plan, left.plan]
    right = hg.prepare(b, "right", plan=plan)
    both = operands.Operands(left, right, NUMPY, np.dtype(float))
    assert both.plans(None) == [left.plan, plan]


@pytest.mark.torch
def test_stacks_of_later_operands_are_made_as_those_of_the_first():
    """Of bfloat16 too, which NumPy does not have."""
    torch = pytest.importorskip("torch")
    from hifigemm.libraries.torch_tensors import TorchLibrary, device_array
    from hifigemm.operands.operands import Operands

    a = torch.ones((3, 4), dtype=torch.bfloat16)
    b = torch.ones((2, 4, 5), dtype=torch.bfloat16)
    single = np.dtype(np.float32)
    arrays = device_array(a), device_array(b)
    operands = Operands(*arrays, TorchLibrary("cuda:0"), single)
    of_a, of_b = operands.stack_functions(*operands.stacks(single), single)
    assert torch.equal(of_a(2 * a), 2 * a.float()[None])
    assert torch.equal(of_b(3 * b), 3 * b.float())
