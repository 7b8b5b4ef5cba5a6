"""float16 and bfloat16 operands: float32 results, as accurate as those of the same
numbers in float32.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded

ASKED = [
    *(
        (scheme, None)
        for scheme in (
            "auto",
            "native",
            "ozaki1",
            "ozaki2",
            "corrected",
            hg.Multiword("fp16", 1, 1),
        )
    ),
    *((scheme, "correct") for scheme in ("auto", "ozaki1", "ozaki2")),
]
REAL = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "bool",
]
PAIRS = [(x, y) for x in REAL for y in REAL if np.result_type(x, y).kind == "f"]


def half(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize(("scheme", "accuracy"), ASKED, ids=str)
def test_results_are_those_of_the_same_numbers_in_float32(
    scheme, accuracy, assert_same_bits
):
    rng = np.random.default_rng(1)
    a, b = half(rng, 2, 5, 40), half(rng, 40, 6)
    options = {"scheme": scheme, "accuracy": accuracy, "return_report": True}
    c, report = hg.matmul(a, b, **options)
    want, stated = hg.matmul(a.astype(np.float32), b.astype(np.float32), **options)
    assert c.dtype == np.float32
    assert_same_bits(c, want)
    assert (report.scheme, report.bound, report.correct) == (
        stated.scheme,
        stated.bound,
        stated.correct,
    )


def test_subnormal_numbers_and_the_largest_are_exact(assert_same_bits):
    a = np.array([[2.0**-24, 65504.0, -(2.0**-14)]], np.float16)
    c = hg.matmul(a, a.T, accuracy="correct")
    assert_same_bits(c, correctly_rounded(a.astype(np.float32), a.T.astype(np.float32)))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_dtypes_promote_as_in_numpy_but_to_float32_at_least(first, second):
    a, b = np.ones((2, 3), first), np.ones((3, 2), second)
    c = hg.matmul(a, b)
    assert c.dtype == np.result_type(first, second, np.float32)
    np.testing.assert_array_equal(c, 3.0)
    assert hg.gemm(a, b, np.ones((2, 2), np.float16), beta=1.0).dtype == c.dtype


def test_complex_operands_promote_half_ones():
    a = np.ones((2, 2), np.float16)
    assert hg.matmul(a, a.astype(np.complex64)).dtype == np.complex64
    assert hg.matmul(a.astype(np.complex128), a).dtype == np.complex128


def test_out_is_float32_and_c_may_be_half(assert_same_bits):
    rng = np.random.default_rng(2)
    a, b, c = half(rng, 4, 5), half(rng, 5, 3), half(rng, 4, 3)
    out = np.empty((4, 3), np.float32)
    assert hg.matmul(a, b, out=out) is out
    with pytest.raises(
        TypeError, match="out has dtype float16; the result has dtype float32"
    ):
        hg.matmul(a, b, out=np.empty((4, 3), np.float16))
    options = {"alpha": -0.3, "beta": 2.0}
    assert_same_bits(
        hg.gemm(a, b, c, **options), hg.gemm(a, b, c.astype(np.float32), **options)
    )
    np.testing.assert_array_equal(hg.gemm(a, b, alpha=-1.0), -hg.matmul(a, b))


def test_plans_and_prepared_operands(assert_same_bits):
    rng = np.random.default_rng(3)
    a, b = half(rng, 4, 50), half(rng, 50, 3)
    for scheme in ("auto", "ozaki2", "corrected"):
        plan = hg.make_plan(a, b, scheme=scheme)
        assert "float32 of fp16 operands" in str(plan)
        want = hg.matmul(a, b, plan=plan)
        assert_same_bits(hg.matmul(hg.prepare(a, "left", plan=plan), b), want)
        assert_same_bits(hg.matmul(a.astype(np.float32), b, plan=plan), want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensors_on_the_cpu(torch, dtype, assert_same_bits):
    kind = getattr(torch, dtype)
    a, b = (torch.randn(shape).to(kind) for shape in ((5, 40), (40, 6)))
    for options in ({"accuracy": "correct"}, {"scheme": "corrected"}):
        c = hg.matmul(a, b, **options)
        assert c.dtype is torch.float32
        assert_same_bits(
            c.numpy(), hg.matmul(a.float().numpy(), b.float().numpy(), **options)
        )
    for other, want in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int8, torch.float32),
        (torch.complex64, torch.complex64),
    ):
        assert hg.matmul(a, b.to(other)).dtype is want
        assert hg.matmul(a.to(other), b).dtype is want
    out = torch.empty(5, 6)
    assert hg.matmul(a, b, out=out) is out
    with pytest.raises(
        TypeError, match=f"out has dtype .*{dtype}; the result has dtype float32"
    ):
        hg.matmul(a, b, out=out.to(kind))
    c = torch.randn(5, 6).to(kind)
    want = hg.gemm(a.float(), b.float(), c.float(), alpha=-1.0, beta=0.5)
    assert torch.equal(hg.gemm(a, b, c, alpha=-1.0, beta=0.5), want)
