"""Products of integers and bools: those of NumPy, and exact or refused where an accuracy is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.study.exact import integer_product

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SHAPES = [((3, 4), (4, 5)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 4), (4,)), ((3, 0), (0, 2)), ((0, 4), (4, 2))]


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
        assert (report.bound, report.correct, found[0, 0]) == (0.0, True, k * (most // k))
        assert "exact" in report.reason
        b[0] = 2
        _, report = hg.matmul(a, b, return_report=True)
        assert (report.bound, report.correct) == (math.inf, False)
        assert f"wraps around: entries may reach {2 * k * (most // k)}, the dtype ends at {most}" in report.reason


@pytest.mark.parametrize("accuracy", ["correct", "fp64", 1e-3])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_with_an_accuracy_every_entry_is_exact_or_the_product_is_refused(dtype, accuracy):
    rng, limits = np.random.default_rng(2), np.iinfo(dtype)
    kept = refused = 0
    for bits in range(1, limits.bits + 1):
        a, b = full(rng, (3, 4), dtype) >> (limits.bits - bits), full(rng, (4, 2), dtype) >> (limits.bits - bits)
        exact = integer_product(a.astype(object), b.astype(object))
        fits = all(limits.min <= x <= limits.max for x in exact.ravel())
        if fits:
            found, report = hg.matmul(a, b, accuracy=accuracy, return_report=True)
            assert found.tolist() == exact.tolist()
            assert report.correct
            kept += 1
        else:
            beyond = sum(not limits.min <= x <= limits.max for x in exact.ravel())
            with pytest.raises(hg.AccuracyError, match=f"^{beyond} of 6 entries.*{dtype}, which ends at {limits.max}"):
                hg.matmul(a, b, accuracy=accuracy)
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
    a = np.array([[[last - x * step, x, 1]]], dtype) if side == "above" else np.array([[[last + x, -x, 1]]], dtype)
    for more, fits in ((0, True), (step, False)):
        b = np.array([[1], [1], [more]]).astype(dtype)
        if fits:
            assert hg.matmul(a, b, accuracy="correct")[0, 0, 0] == last
        else:
            with pytest.raises(hg.AccuracyError, match=f"ends at {limits.max}"):
                hg.matmul(a, b, accuracy="correct")


def test_int64_beside_uint64_is_float64_as_in_numpy():
    a, b = np.array([[2**53 + 2]]), np.array([[3]], np.uint64)
    np.testing.assert_array_equal(hg.matmul(a, b), a @ b, strict=True)
    with pytest.raises(ValueError, match="not exact in float64"):
        hg.matmul(a + 1, b)


@pytest.mark.parametrize("options", [{"scheme": "ozaki1"}, {"scheme": hg.Native("fp64")}, {"scheme": hg.Corrected()}])
def test_schemes_for_floating_point_operands_are_refused(options):
    a = np.ones((2, 2), int)
    with pytest.raises(hg.PlanError, match=r"floating-point.*int64"):
        hg.matmul(a, a, **options)


def test_plans_and_prepared_operands_are_for_floating_point_operands():
    a, x = np.ones((2, 2), int), np.ones((2, 2))
    plan = hg.make_plan(x, x, scheme="ozaki1")
    with pytest.raises(hg.PlanError, match=r"plan is for.*float64; the operands are int64"):
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
    found, report = hg.matmul(torch.from_numpy(a), torch.from_numpy(b), return_report=True)
    np.testing.assert_array_equal(found.numpy(), a @ b, strict=True)
    assert (report.engine, report.device) == ("torch", "cpu")
    out = torch.empty_like(found)
    assert hg.matmul(torch.from_numpy(a), torch.from_numpy(b), out=out) is out
    assert torch.equal(out, found)


@pytest.mark.gpu
def test_tensors_of_integers_on_a_gpu_are_refused():
    import torch

    a = torch.ones(2, 2, dtype=torch.int64, device="cuda")
    for b in (a, a.bool()):
        with pytest.raises(TypeError, match=r"torch\.int|int64.*cuda.*convert"):
            hg.matmul(a, b)
    assert hg.matmul(a, a.double()).tolist() == [[2.0, 2.0]] * 2
