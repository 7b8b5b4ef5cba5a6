"""Products of integers and bools: those of NumPy, and exact or refused where an
accuracy is asked for.
"""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.running import integers
from hifigemm.testing.exact import integer_product

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((3, 4), (4,)),
    ((3, 0), (0, 2)),
    ((0, 4), (4, 2)),
]


def full(rng, shape, dtype):
    """Entries of the whole range of a dtype."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("first", ["bool", *INTEGERS])
@pytest.mark.parametrize("second", ["bool", "int8", "uint32", "int64"])
def test_products_of_integers_are_those_of_numpy(first, second, shapes):
    if np.result_type(first, second).kind == "f":
        return
    rng = np.random.default_rng(1)
    a, b = full(rng, shapes[0], first), full(rng, shapes[1], second)
    expected = np.matmul(a, b)
    found, report = hg.matmul(a, b, return_report=True)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert type(found) is type(expected)
    assert report.scheme == hg.Native()
    assert report.correct == (report.bound == 0.0)
    out = np.zeros_like(np.asarray(expected))
    assert hg.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_report_says_whether_a_product_may_wrap(dtype):
    most = np.iinfo(dtype).max
    for k in (1, 3):
        a, b = np.full((1, k), most // k, dtype), np.ones((k, 1), dtype)
        found, report = hg.matmul(a, b, return_report=True)
        assert (report.bound, report.correct, found[0, 0]) == (
            0.0,
            True,
            k * (most // k),
        )
        assert "exact" in report.reason
        b[0] = 2
        _, report = hg.matmul(a, b, return_report=True)
        assert (report.bound, report.correct) == (math.inf, False)
        assert (
            f"wraps around: entries may reach {2 * k * (most // k)}, the dtype ends at {most}"
            in report.reason
        )


@pytest.mark.parametrize("accuracy", ["correct", "fp64", 1e-3])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_with_an_accuracy_every_entry_is_exact_or_the_product_is_refused(
    dtype, accuracy
):
    rng, limits = np.random.default_rng(2), np.iinfo(dtype)
    kept = refused = 0
    for bits in range(1, limits.bits + 1):
        a = full(rng, (3, 4), dtype) >> (limits.bits - bits)
        b = full(rng, (4, 2), dtype) >> (limits.bits - bits)
        exact = integer_product(a.astype(object), b.astype(object))
        fits = all(limits.min <= x <= limits.max for x in exact.ravel())
        if fits:
            found, report = hg.matmul(a, b, accuracy=accuracy, return_report=True)
            assert found.tolist() == exact.tolist()
            assert report.correct
            kept += 1
        else:
            beyond = [
                i
                for i in np.ndindex(exact.shape)
                if not limits.min <= exact[i] <= limits.max
            ]
            with pytest.raises(
                hg.AccuracyError,
                match=f"^{len(beyond)} of 6 entries.* beyond {dtype}, ",
            ) as error:
                hg.matmul(a, b, accuracy=accuracy)
            assert f"the first is entry {beyond[0]} = {exact[beyond[0]]}: " in str(
                error.value
            )
            refused += 1
    assert kept
    assert refused


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
@pytest.mark.parametrize("side", ["above", "below"])
def test_the_last_integer_of_a_dtype_is_exact_and_the_next_is_refused(dtype, side):
    limits = np.iinfo(dtype)
    last, step = (limits.max, 1) if side == "above" else (limits.min, -1)
    if last == 0:
        return
    # Large terms cancel, so that no bound of the sum tells: last - x + x and one more.
    x = limits.max // 2
    a = (
        np.array([[[last - x * step, x, 1]]], dtype)
        if side == "above"
        else np.array([[[last + x, -x, 1]]], dtype)
    )
    for more, fits in ((0, True), (step, False)):
        b = np.array([[1], [1], [more]]).astype(dtype)
        if fits:
            assert hg.matmul(a, b, accuracy="correct")[0, 0, 0] == last
        else:
            with pytest.raises(
                hg.AccuracyError, match=rf"entry \(0, 0, 0\) = {last + step}: "
            ):
                hg.matmul(a, b, accuracy="correct")


def test_int64_beside_uint64_is_float64_as_in_numpy():
    a, b = np.array([[2**53 + 2]]), np.array([[3]], np.uint64)
    np.testing.assert_array_equal(hg.matmul(a, b), a @ b, strict=True)
    with pytest.raises(ValueError, match="not exact in float64"):
        hg.matmul(a + 1, b)


def exact_product(a, b):
    """a @ b in Python's integers, for matrices."""
    return integer_product(a.astype(object) * 1, b.astype(object) * 1)


def hostile(rng, shape, dtype):
    """Entries of one of four kinds: the whole range, its ends in any order, one end
    only, few bits.
    """
    x = full(rng, shape, dtype)
    if dtype == "bool":
        return x
    limits, kind = np.iinfo(dtype), rng.integers(4)
    if kind == 1:
        least, most = np.array([limits.min, limits.max], dtype)
        return np.where(x & 1, most, least)
    if kind == 2:
        return np.full(shape, (limits.min, limits.max)[rng.integers(2)], dtype)
    return x >> int(rng.integers(limits.bits)) if kind == 3 else x


@pytest.fixture(params=["blocks as they are", "blocks of few entries"])
def blocks(request, monkeypatch):
    """Blocks of the result, and a choice between NumPy's product and that of words, as
    they are and at their ends.
    """
    if request.param == "blocks of few entries":
        for name, value in (("_SMALL", 0), ("_MIN_ROWS", 2), ("_HOST_ENTRIES", 5)):
            monkeypatch.setattr(integers, name, value)


@pytest.mark.thinned(5)
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("k", [0, 1, 2, 33, 2048, 2049, 5000])
@pytest.mark.parametrize("first", ["bool", *INTEGERS])
def test_every_entry_is_that_of_python_or_named(first, k):
    rng = np.random.default_rng(k)
    for second in ("bool", *INTEGERS):
        a, b = hostile(rng, (3, k), first), hostile(rng, (k, 4), second)
        exact, promoted = exact_product(a, b), np.result_type(first, second)
        found, report = hg.matmul(a, b, result="object", return_report=True)
        assert (found.dtype, found.tolist()) == (object, exact.tolist())
        assert all(type(x) is int for x in found.ravel())
        assert (report.bound, report.correct, report.native) == (0.0, True, False)
        asked = [("int64", {"result": "int64"})]
        if promoted.kind in "iu":
            np.testing.assert_array_equal(hg.matmul(a, b), np.matmul(a, b), strict=True)
            asked.append((promoted, {"accuracy": "correct"}))
        for dtype, options in asked:
            limits = np.iinfo(dtype)
            beyond = [
                i
                for i in np.ndindex(exact.shape)
                if not limits.min <= exact[i] <= limits.max
            ]
            if beyond:
                with pytest.raises(
                    hg.AccuracyError,
                    match=f"^{len(beyond)} of 12 entries of the product lie beyond ",
                ) as e:
                    hg.matmul(a, b, **options)
                assert f"the first is entry {beyond[0]} = {exact[beyond[0]]}: " in str(
                    e.value
                )
            else:
                found = hg.matmul(a, b, **options)
                assert (found.dtype, found.tolist()) == (dtype, exact.tolist())


@given(st.data())
def test_entries_at_the_ends_of_a_dtype(data):
    dtype = data.draw(st.sampled_from(INTEGERS))
    limits = np.iinfo(dtype)
    entry = st.one_of(
        st.integers(limits.min, limits.max),
        st.sampled_from([limits.min, limits.max, 0, 1]),
    )
    k = data.draw(st.integers(1, 5))
    row, column = (data.draw(st.lists(entry, min_size=k, max_size=k)) for _ in range(2))
    a, b = np.array([row], dtype), np.array(column, dtype)[:, None]
    exact = sum(x * y for x, y in zip(row, column, strict=True))
    assert hg.matmul(a, b, result="object").tolist() == [[exact]]
    if limits.min <= exact <= limits.max:
        assert hg.matmul(a, b, accuracy="correct").tolist() == [[exact]]
    else:
        with pytest.raises(
            hg.AccuracyError, match=rf"^1 of 1 entries .* entry \(0, 0\) = {exact}: "
        ):
            hg.matmul(a, b, accuracy="correct")


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "dtypes",
    [("int8", "int8"), ("int64", "uint16"), ("int64", "uint64"), ("bool", "bool")],
)
def test_exact_products_of_stacks_vectors_and_nothing(dtypes, shapes):
    rng = np.random.default_rng(4)
    a, b = (
        full(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    expected = np.matmul(a.astype(object) * 1, b.astype(object) * 1)
    found = hg.matmul(a, b, result="object")
    assert np.shape(found) == np.shape(expected)
    assert np.array_equal(found, expected) or expected.size == 0 or a.shape[-1] == 0
    if a.shape[-1] == 0:
        assert found.tolist() == np.zeros(found.shape, int).tolist()
    small = hg.matmul(a.astype("int64") >> 40, b.astype("int64") >> 40, result="int64")
    assert type(small) is (np.int64 if a.ndim == b.ndim == 1 else np.ndarray)
    np.testing.assert_array_equal(
        small, np.matmul(a.astype("int64") >> 40, b.astype("int64") >> 40), strict=True
    )


def test_the_error_counts_places_as_the_result_has_them():
    a = np.ones((2, 3, 2), np.int8)
    a[1, 2] = 100, 27
    b = np.array([[1, 1], [1, 2]], np.int8)
    with pytest.raises(
        hg.AccuracyError,
        match=r"^1 of 12 .*int8, which holds -128 to 127; .* \(1, 2, 1\) = 154: .*int64",
    ):
        hg.matmul(a, b, accuracy="correct")
    with pytest.raises(hg.AccuracyError, match=r"^1 of 1 .* entry \(\) = -129: "):
        hg.matmul(
            np.array([-128, 1], np.int8), np.array([1, -1], np.int8), accuracy="correct"
        )
    with pytest.raises(
        hg.AccuracyError, match=rf'uint64, .* = {2**64}: result="object"'
    ):
        hg.matmul(
            np.array([[2**63]], np.uint64),
            np.array([[2]], np.uint64),
            accuracy="correct",
        )


def test_an_out_of_integers_takes_exact_entries_or_names_one():
    a, b = np.full((2, 3), 100, np.int8), np.full((3, 2), 100, np.int8)
    for options in ({"accuracy": "correct"}, {"result": "int64"}, {"result": "object"}):
        out = np.zeros((2, 2), np.int16)
        assert hg.matmul(a, b, out=out, **options) is out
        assert out.tolist() == [[30000] * 2] * 2
        with pytest.raises(
            hg.AccuracyError, match=r"^2 of 4 entries.* int16, .* \(0, 1\) = 38100: "
        ):
            hg.matmul(a, np.array([[100, 127]] * 3, np.int8), out=out, **options)
        assert out.tolist() == [[30000] * 2] * 2
        with pytest.raises(
            hg.AccuracyError, match=r"uint8, which holds 0 to 255; .* \(0, 0\) = -300: "
        ):
            hg.matmul(a, -b // 100, out=np.zeros((2, 2), np.uint8), **options)
        with pytest.raises(TypeError, match="out has dtype float32"):
            hg.matmul(a, b, out=np.zeros((2, 2), np.float32), **options)
    out = np.zeros((2, 2), object)
    assert hg.matmul(a, b, out=out, result="object") is out
    assert out.tolist() == [[30000] * 2] * 2
    # A default product is made in the promoted dtype and widened, as by NumPy.
    out = np.zeros((2, 2), np.int64)
    np.testing.assert_array_equal(
        hg.matmul(a, b, out=out), np.matmul(a, b, out=np.zeros_like(out))
    )


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "options",
    [{"accuracy": "correct"}, {"accuracy": 1e-3}, {"result": "int64"}],
    ids=str,
)
def test_bools_are_counted_in_an_out_of_integers_where_they_are_to_be_exact(
    dtype, options
):
    rng = np.random.default_rng(2)
    a, b = full(rng, (4, 200), "bool"), full(rng, (200, 3), "bool")
    b[:, 0] = a[0] = True
    out, exact = np.zeros((4, 3), dtype), a.astype(int) @ b.astype(int)
    if exact.max() <= np.iinfo(dtype).max:
        assert hg.matmul(a, b, out=out, **options) is out
        np.testing.assert_array_equal(out, exact)
    else:
        with pytest.raises(
            hg.AccuracyError, match=rf"{dtype}, .* entry \(0, 0\) = 200: "
        ):
            hg.matmul(a, b, out=out, **options)
    # a default product is one of bools, as in NumPy
    np.testing.assert_array_equal(hg.matmul(a, b, out=out), a @ b)


def test_no_floats_are_taken_for_bools_that_are_to_be_exact():
    a = np.ones((2, 5), bool)
    for dtype in ("float64", "complex64"):
        out = np.zeros((2, 2), dtype)
        with pytest.raises(TypeError, match=f"out has dtype {dtype}; .* bool"):
            hg.matmul(a, a.T, accuracy="correct", out=out)
        np.testing.assert_array_equal(hg.matmul(a, a.T, out=out), np.ones((2, 2)))
    out = np.zeros((2, 2), bool)
    assert hg.matmul(a, a.T, accuracy="correct", out=out).all()


@pytest.mark.parametrize("first", ["uint16", "uint32", "uint64", "int64"])
@pytest.mark.parametrize("second", ["uint8", "int8", "uint64"])
def test_integers_of_foreign_byte_order_are_the_same_integers(first, second):
    rng = np.random.default_rng(4)
    a, b = full(rng, (3, 5), first), full(rng, (5, 2), second)
    a[0, 0] = np.iinfo(first).max
    x, y = (z.astype(z.dtype.newbyteorder()) for z in (a, b))
    exact = integer_product(a, b)
    for left, right in ((x, y), (x, b), (a, y)):
        np.testing.assert_array_equal(hg.matmul(left, right, result="object"), exact)
        if np.result_type(a, b).kind != "f":
            np.testing.assert_array_equal(
                hg.matmul(left, right), hg.matmul(a, b), strict=True
            )
    ones = np.ones((5, 1), np.uint8)
    ones[1:] = 0
    for result in ("int64", "object"):
        one, foreign = ({"result": result} for _ in range(2))
        for options, z in ((one, a), (foreign, x)):
            try:
                options["found"] = hg.matmul(z, ones, result=result).tolist()
            except hg.AccuracyError as error:
                options["found"] = str(error)
        assert one == foreign


@pytest.mark.parametrize(
    "options",
    [{"accuracy": "correct"}, {"accuracy": "correct", "scheme": "native"}],
    ids=str,
)
def test_an_out_of_foreign_byte_order_takes_exact_integers(options):
    a = np.full((2, 3), 2**20, "int64")
    out = np.zeros((2, 2), np.dtype("int64").newbyteorder())
    assert hg.matmul(a, a.T, out=out, **options) is out
    np.testing.assert_array_equal(out, 3 * 2**40)


def test_kinds_of_results_that_do_not_exist_are_refused():
    a, x = np.ones((2, 2), np.int8), np.ones((2, 2))
    with pytest.raises(
        hg.PlanError, match=r"""'pair'.*int8.*"array", "int64" or "object\""""
    ):
        hg.matmul(a, a, result="pair")
    with pytest.raises(hg.PlanError, match='\'int32\': expected "array", "pair"'):
        hg.matmul(a, a, result="int32")
    for left, right in ((x, x), (a, x)):
        with pytest.raises(hg.PlanError, match=r"'int64', the operands are .*float64"):
            hg.matmul(left, right, result="int64")


def test_a_forced_native_product_is_exact_or_refused():
    a = np.full((2, 3), 6, np.int8)
    found, report = hg.matmul(
        a, a.T, accuracy="correct", scheme="native", return_report=True
    )
    assert (found.tolist(), report.native, report.correct) == (
        [[108] * 2] * 2,
        True,
        True,
    )
    for options, most in (({"accuracy": "correct"}, 147), ({"result": "int64"}, 147)):
        with pytest.raises(
            hg.AccuracyError, match=f"in int8; entries may reach {most}"
        ):
            hg.matmul(a + 1, a.T + 1, scheme="native", **options)


def test_large_products_are_sums_of_words_with_the_bits_of_numpy():
    rng = np.random.default_rng(5)
    for dtype, products in (("int8", 1), ("int32", 4), ("int64", 6), ("uint64", 6)):
        a, b = full(rng, (70, 90), dtype), full(rng, (90, 80), dtype)
        found, report = hg.matmul(a, b, return_report=True)
        np.testing.assert_array_equal(found, a @ b, strict=True)
        assert (report.native, report.num_products, report.bound) == (
            False,
            products,
            math.inf,
        )


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64"])
def test_exact_products_of_tensors_are_those_of_arrays(torch, dtype):
    rng = np.random.default_rng(3)
    a, b = full(rng, (3, 40), dtype) >> 2, full(rng, (40, 2), dtype) & 1
    exact, x, y = exact_product(a, b), torch.from_numpy(a), torch.from_numpy(b)
    if all(v < 2**63 for v in exact.ravel()):
        found = hg.matmul(x, y, result="int64")
        assert (found.dtype, found.tolist()) == (torch.int64, exact.tolist())
    else:
        with pytest.raises(hg.AccuracyError, match="int64, which holds"):
            hg.matmul(x, y, result="int64")
    with pytest.raises(
        TypeError, match=f"tensors of {dtype}.*no tensor holds Python integers"
    ):
        hg.matmul(x, y, result="object")


@pytest.mark.parametrize(
    "options",
    [{"scheme": "ozaki1"}, {"scheme": hg.Native("fp64")}, {"scheme": hg.Corrected()}],
)
def test_schemes_for_floating_point_operands_are_refused(options):
    a = np.ones((2, 2), int)
    with pytest.raises(hg.PlanError, match=r"floating-point.*int64"):
        hg.matmul(a, a, **options)


def test_plans_and_prepared_operands_are_for_floating_point_operands():
    a, x = np.ones((2, 2), int), np.ones((2, 2))
    plan = hg.make_plan(x, x, scheme="ozaki1")
    with pytest.raises(
        hg.PlanError, match=r"plan is for.*float64; the operands are int64"
    ):
        hg.matmul(a, a, plan=plan)
    assert hg.matmul(hg.prepare(x, "left", plan=plan), a).tolist() == [[2.0, 2.0]] * 2
    for call in (hg.gemm, hg.make_plan):
        with pytest.raises(TypeError, match="int64"):
            call(a, a)


def test_strict_mode_has_nothing_against_integers():
    a = np.ones((2, 2), int)
    with hg.strict():
        assert hg.matmul(a, a).tolist() == [[2, 2]] * 2


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64"])
def test_tensors_of_integers_are_multiplied_as_arrays(torch, dtype):
    rng = np.random.default_rng(3)
    a, b = full(rng, (3, 4), dtype), full(rng, (4, 2), dtype)
    found, report = hg.matmul(
        torch.from_numpy(a), torch.from_numpy(b), return_report=True
    )
    np.testing.assert_array_equal(found.numpy(), a @ b, strict=True)
    assert (report.engine, report.device) == ("torch", "cpu")
    out = torch.empty_like(found)
    assert hg.matmul(torch.from_numpy(a), torch.from_numpy(b), out=out) is out
    assert torch.equal(out, found)


@pytest.mark.gpu
def test_tensors_of_integers_on_a_gpu_are_exact():
    import torch

    rng = np.random.default_rng(6)
    for dtype in ("int8", "uint8", "int16", "int32", "int64"):
        a, b = full(rng, (300, 2500), dtype), full(rng, (2500, 100), dtype)
        x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        np.testing.assert_array_equal(
            hg.matmul(x, y).cpu().numpy(), hg.matmul(a, b), strict=True
        )
        short = (
            hg.matmul(x >> 3, y >> 3, result="int64")
            if dtype != "int64"
            else hg.matmul(x >> 40, y >> 40)
        )
        exact = (
            hg.matmul(a >> 3, b >> 3, result="object")
            if dtype != "int64"
            else hg.matmul(a >> 40, b >> 40)
        )
        assert short.tolist() == exact.tolist()
    with pytest.raises(TypeError, match="whose library multiplies no integers"):
        hg.matmul(x, y, scheme="native")
    assert hg.matmul(x[:1, :1] * 0 + 2, x[:1, :1].double() * 0 + 3).tolist() == [[6.0]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.uint64])
def test_a_magnitude_of_128_is_no_int8_with_a_positive_sign(dtype):
    for value in (127, 128, 129):
        a = np.array([[value, 1]], dtype)
        for kind in ("int64", "object"):
            assert hg.matmul(a, np.ones((2, 1), dtype), result=kind)[0, 0] == value + 1
            assert (
                hg.matmul(np.ones((1, 2), dtype), a.T, result=kind)[0, 0] == value + 1
            )
    x = np.ones((300, 300), dtype)
    x[0, 0] = 128
    np.testing.assert_array_equal(hg.matmul(x, np.eye(300, dtype=dtype)), x)
    if np.dtype(dtype).kind == "i":
        low = np.array([[-128, -128]], dtype)
        assert hg.matmul(low, low.T, result="int64")[0, 0] == 2**15


def test_the_error_of_an_overflow_goes_into_a_pickle():
    a = np.full((2, 2), 2**40)
    with pytest.raises(hg.AccuracyError) as raised:
        hg.matmul(a, a, accuracy="correct")
    for error in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert type(error) is hg.AccuracyError
        assert str(error) == str(raised.value)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint32", "bool"])
@pytest.mark.parametrize("shapes", [((4, 5), (5, 3)), ((4, 5), (5,)), ((5,), (5,))])
def test_products_of_the_library_are_kept(dtype, shapes, monkeypatch):
    """Later calls wrap around as NumPy does, whatever the first operands held."""
    rng = np.random.default_rng(1)
    most = 2 if dtype == "bool" else int(np.iinfo(dtype).max)
    pairs = []
    for high in (2, most):
        pairs.append([rng.integers(0, high, shape).astype(dtype) for shape in shapes])
    out = np.zeros((pairs[0][0] @ pairs[0][1]).shape, "int64")
    hg.matmul(*pairs[0])
    hg.matmul(*pairs[0], out=out)
    monkeypatch.setattr("hifigemm.running.integers.integer_product", None)
    for a, b in pairs:
        result = hg.matmul(a, b)
        want = a @ b
        assert type(result) is type(want)
        assert result.dtype == want.dtype
        np.testing.assert_array_equal(result, want)
        assert hg.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, want)


def test_exact_products_and_reports_of_integers_are_made_anew():
    small = np.ones((3, 3), "int64")
    large = np.full((3, 3), 2**62)
    for _ in range(2):
        hg.matmul(small, small)
        hg.matmul(small, small, accuracy="correct")
        with pytest.raises(hg.AccuracyError, match="lie beyond int64") as e:
            hg.matmul(large, large, accuracy="correct")
        # A traceback shows the public class.
        assert (e.type.__module__, e.type.__name__) == (
            hg.AccuracyError.__module__,
            "AccuracyError",
        )
        _, report = hg.matmul(large, large, return_report=True)
        assert "wraps around" in report.reason
        _, report = hg.matmul(small, small, return_report=True)
        assert "no entry exceeds 3" in report.reason
