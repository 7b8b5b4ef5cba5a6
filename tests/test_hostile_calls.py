"""Calls that nobody should write: each returns what is right, or says in one error what
is wrong with which value.
"""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded


class Guest:
    """An array of a library that is not known here."""

    def __dlpack__(self):
        raise AssertionError("nothing is converted")


class Odd:
    """An object that compares with nothing."""

    def __eq__(self, other):
        raise KeyError("compared")

    __hash__ = None


A = np.arange(6.0).reshape(2, 3)
B = np.arange(12.0).reshape(3, 4)
NAMES = {
    "A": A,
    "B": B,
    "Decimal": Decimal,
    "F": A.astype(np.float32),
    "Fraction": Fraction,
    "I": np.arange(6).reshape(2, 3),
    "PLAN": hg.make_plan(A, B, scheme="ozaki1"),
    "Z": A + 1j,
    "guest": Guest(),
    "hg": hg,
    "np": np,
    "odd": Odd(),
}
NAMES |= {
    "LEFT": hg.prepare(A, "left", plan=NAMES["PLAN"]),
    "RIGHT": hg.prepare(B, "right", plan=NAMES["PLAN"]),
}

RIGHT = """
hg.matmul(A, B) == A @ B
hg.matmul(A.tolist(), B) == A @ B
hg.matmul(tuple(map(tuple, A.tolist())), B.tolist(), accuracy="correct") == A @ B
hg.matmul([range(3), range(3)], B) == np.array([range(3)] * 2) @ B
hg.matmul(memoryview(A), B) == A @ B
hg.matmul(A[::-1, ::-1], B[::-1]) == A[::-1, ::-1] @ B[::-1]
hg.matmul(np.broadcast_to(A, (2, 2, 3)), B) == np.broadcast_to(A, (2, 2, 3)) @ B
hg.matmul(np.asfortranarray(A), B.astype(">f8")) == A @ B
hg.matmul(A[:0], B) == A[:0] @ B
hg.matmul(A[:, :0], B[:0]) == np.zeros((2, 4))
hg.matmul(A[0], B[:, 0]) == A[0] @ B[:, 0]
hg.matmul(I, I.T) == I @ I.T
hg.matmul(I > 2, I.T > 2) == (I > 2) @ (I.T > 2)
hg.matmul(I, B, accuracy="correct") == I @ B
hg.matmul(I > 2, B) == (I > 2) @ B
hg.matmul(I, I.T, accuracy="correct") == I @ I.T
hg.matmul(A.astype(np.float16), B.astype(np.float16)) == (A @ B).astype(np.float32)
hg.matmul(A, B, accuracy=np.float32(1e-10)) == A @ B
hg.matmul(A, B, accuracy=0) == A @ B
hg.matmul(A, B, accuracy=Fraction(1, 10**400)) == A @ B
hg.matmul(A, B, accuracy=0.999) == A @ B
hg.matmul(A, B, accuracy=5e-324) == A @ B
hg.matmul(A, B, workspace=np.int64(2**20)) == A @ B
hg.matmul(A, B, workspace=10**30) == A @ B
hg.matmul(A, B, scheme=hg.Ozaki1(num_slices=np.int8(4))) == A @ B
hg.matmul(A, B, out=None) == A @ B
hg.matmul(A, B, out=(None,)) == A @ B
hg.matmul(A, B, out=(np.zeros((2, 4)),)) == A @ B
hg.matmul(A, B, out=np.zeros((5, 2, 4))) == np.array([A @ B] * 5)
hg.matmul(F, B, out=np.zeros((2, 4), complex)) == F @ B + 0j
hg.matmul(LEFT, B) == A @ B
hg.matmul(LEFT, RIGHT) == A @ B
hg.gemm(A, B, alpha=np.array(2.0)) == 2 * (A @ B)
hg.gemm(A, B, alpha=Fraction(1, 2)) == (A @ B) / 2
hg.gemm(A, B, alpha=True) == A @ B
hg.gemm(A, B, alpha=2 + 0j) == 2 * (A @ B)
hg.gemm(A, B, "not read", beta=0) == A @ B
hg.gemm(A, B, odd) == A @ B
hg.gemm(A, B, 1, beta=2) == A @ B + 2
hg.gemm(A, B, [1, 2, 3, 4], beta=1) == A @ B + [1, 2, 3, 4]
hg.gemm(np.full((2, 3), np.inf), B, alpha=0.0) == np.zeros((2, 4))
hg.gemm(I, B, alpha=-1) == -(I @ B)
hg.gemm(A, A, trans_b="C") == A @ A.T
hg.matmul(Z, B, accuracy="correct") == Z @ B
"""
"""Calls and what they return."""

WRONG = """
hg.matmul() | TypeError | missing 2 required
hg.matmul(A, B, np.zeros((2, 4))) | TypeError | positional arguments but 3
hg.matmul(A, B, dtype=float) | TypeError | 'dtype'
hg.matmul(None, B) | TypeError | a has dtype object and is None
hg.matmul(A, None) | TypeError | b has dtype object and is None
hg.matmul(1.0, B) | ValueError | a is a scalar
hg.matmul(A, np.float64(2)) | ValueError | b is a scalar
hg.matmul("A", B) | TypeError | a has dtype <U1
hg.matmul(A, b"B") | TypeError | b has dtype |S1
hg.matmul({}, B) | TypeError | is {}
hg.matmul(object, B) | TypeError | <class 'object'>
hg.matmul(lambda: 1, B) | TypeError | <function
hg.matmul(odd, B) | TypeError | Odd
hg.matmul(hg, B) | TypeError | <module
hg.matmul([[1, 2], [3]], B) | ValueError | a is a list that cannot be converted to an array.*inhomogeneous
hg.matmul([[1, "x", 2]], B) | TypeError | a has dtype <U
hg.matmul([[Decimal("0.1")] * 3], B) | ValueError | Decimal\\('0.1'\\)
hg.matmul([[Fraction(1, 3), 1.0, 2.0]], B) | ValueError | Fraction\\(1, 3\\)
hg.matmul([[2**1024, 1, 2]], B) | ValueError | entry \\(0, 0\\) of a is 17976
hg.matmul([[2**63 + 1, 1.5, 2]], B) | ValueError | 9223372036854775809
hg.matmul([[2**53 + 1, 1, 2]], B) | ValueError | not exact in float64
hg.matmul([[0.5, 2**53 + 1, 2]], B) | ValueError | 9007199254740993
hg.matmul([[None] * 3], B) | TypeError | holds None
hg.matmul([guest], B) | TypeError | a holds a .*Guest
hg.matmul(guest, B) | TypeError | Guest.*from_dlpack
hg.matmul(np.ma.masked_array(A, A > 2), B) | TypeError | a is a masked array
hg.matmul([np.ma.masked, 1.0, 2.0], B) | TypeError | a holds a masked array
hg.matmul(A.view(np.matrix), B) | TypeError | a is a numpy\\..*matrix
hg.matmul(A, B.view(np.recarray)) | TypeError | b is a numpy.*recarray
hg.matmul(A.astype(np.longdouble), B) | TypeError | promote to (float128|longdouble|float96)
hg.matmul(A.astype(np.clongdouble), B) | TypeError | promote to (complex256|clongdouble|complex192)
hg.matmul(np.full((2, 3), None), B) | TypeError | a has dtype object
hg.matmul(A.astype("m8[s]"), B) | TypeError | timedelta64
hg.matmul(A.astype("M8[D]"), B) | TypeError | datetime64
hg.matmul(np.zeros((2, 3), [("x", float)]), B) | TypeError | a has dtype \\[\\('x'
hg.matmul(A, A) | ValueError | k = 3.*k = 2
hg.matmul(np.ones((2, 2, 3)), np.ones((3, 3, 4))) | ValueError | \\(2,\\) of a and \\(3,\\) of b
hg.matmul(A, np.ones((0, 4))) | ValueError | k = 3.*k = 0
hg.matmul(A, B, accuracy="1e-10") | hg.PlanError | accuracy='1e-10'
hg.matmul(A, B, accuracy="Correct") | hg.PlanError | accuracy='Correct'
hg.matmul(A, B, accuracy=True) | hg.PlanError | accuracy=True
hg.matmul(A, B, accuracy=np.True_) | hg.PlanError | accuracy=np.True_
hg.matmul(A, B, accuracy=float("nan")) | hg.PlanError | accuracy=nan
hg.matmul(A, B, accuracy=float("inf")) | hg.PlanError | accuracy=inf
hg.matmul(A, B, accuracy=-1e-10) | hg.PlanError | accuracy=-1e-10
hg.matmul(A, B, accuracy=10**400) | hg.PlanError | accuracy=inf
hg.matmul(A, B, accuracy=np.array(1e-10)) | hg.PlanError | accuracy=array\\(1.e-10\\)
hg.matmul(A, B, accuracy=np.array([1e-10, 1])) | hg.PlanError | accuracy=array
hg.matmul(A, B, accuracy=[1e-10]) | hg.PlanError | accuracy=\\[1e-10\\]
hg.matmul(A, B, accuracy={}) | hg.PlanError | accuracy={}
hg.matmul(A, B, accuracy=1j) | hg.PlanError | accuracy=1j
hg.matmul(A, B, accuracy=Decimal("1e-10")) | hg.PlanError | accuracy=Decimal
hg.matmul(A, B, accuracy=b"correct") | hg.PlanError | accuracy=b'correct'
hg.matmul(A, B, accuracy=odd) | hg.PlanError | accuracy=.*Odd
hg.matmul(I, I.T, accuracy="best") | hg.PlanError | accuracy='best'
hg.matmul(A, B, scheme=hg.Ozaki1) | hg.PlanError | Ozaki1.* is a class; expected .* such as hifigemm.Ozaki1\\(\\)
hg.gemm(A, B, scheme=hg.Native) | hg.PlanError | such as hifigemm.Native\\(\\)
hg.make_plan(A, B, scheme=hg.Multiword) | hg.PlanError | such as hifigemm.Multiword\\(\\)
hg.matmul(I, I.T, scheme=hg.Ozaki2) | hg.PlanError | such as hifigemm.Ozaki2\\(\\)
hg.matmul(A, B, scheme=int) | hg.PlanError | scheme=<class 'int'>
hg.matmul(A, B, scheme="ozaki 1") | hg.PlanError | scheme='ozaki 1'
hg.matmul(A, B, scheme=None) | hg.PlanError | scheme=None
hg.matmul(A, B, scheme=[hg.Ozaki1()]) | hg.PlanError | scheme=\\[Ozaki1
hg.matmul(A, B, scheme=np.array(["auto", "auto"])) | hg.PlanError | scheme=array
hg.matmul(A, B, scheme=PLAN) | hg.PlanError | scheme=<Plan
hg.matmul(A, B, scheme=odd) | hg.PlanError | scheme=.*Odd
hg.Ozaki1(num_slices=0) | hg.PlanError | num_slices=0
hg.Ozaki1(num_slices=2.5) | hg.PlanError | num_slices=2.5
hg.Ozaki1(num_slices=True) | hg.PlanError | num_slices=True
hg.matmul(A, B, scheme=hg.Ozaki1(product="int4")) | hg.PlanError | int4
hg.Ozaki1(mode="best") | hg.PlanError | mode='best'
hg.matmul(A, B, scheme=hg.Ozaki1(product=["int8"])) | hg.PlanError | product=\\['int8'\\]
hg.Ozaki2(num_moduli=1) | hg.PlanError | num_moduli=1
hg.Ozaki2(num_moduli=50) | hg.PlanError | num_moduli=50
hg.Ozaki2(scaling=None) | hg.PlanError | scaling=None
hg.Ozaki2(slices=3) | TypeError | 'slices'
hg.Multiword(num_words=-1) | hg.PlanError | num_words=-1
hg.Corrected(scale="yes") | hg.PlanError | scale='yes'
hg.Native("fp32") | hg.PlanError | product='fp32'
hg.matmul(A, B, engine="gpu") | hg.PlanError | engine='gpu'
hg.matmul(A, B, engine=np) | hg.PlanError | engine=<module
hg.matmul(A, B, engine=["numpy"]) | hg.PlanError | engine=\\['numpy'\\]
hg.matmul(A, B, engine=odd) | hg.PlanError | engine=.*Odd
hg.matmul(I, I.T, engine="gpu") | hg.PlanError | engine='gpu'
hg.matmul(A, B, workspace=0) | hg.PlanError | workspace=0
hg.matmul(A, B, workspace=-1) | hg.PlanError | workspace=-1
hg.matmul(A, B, workspace=1e9) | hg.PlanError | workspace=1000000000.0
hg.matmul(A, B, workspace=True) | hg.PlanError | workspace=True
hg.matmul(A, B, workspace="1 GB") | hg.PlanError | workspace='1 GB'
hg.matmul(A, B, workspace=np.array([1])) | hg.PlanError | workspace=array
hg.matmul(A, B, workspace=odd) | hg.PlanError | workspace=.*Odd
hg.matmul(A, B, workspace=1, scheme="ozaki1") | hg.PlanError | workspace of 1 bytes is too small
hg.matmul(A, B, plan="ozaki1") | hg.PlanError | plan is a str
hg.matmul(A, B, plan=hg.Ozaki1()) | hg.PlanError | plan is a Ozaki1
hg.matmul(A, B, plan=PLAN, accuracy="correct") | hg.PlanError | leave accuracy= out, or leave the plan out
hg.matmul(A, B, plan=PLAN, scheme="native") | hg.PlanError | leave scheme= out, or leave the plan out
hg.matmul(Z, B, plan=PLAN) | hg.PlanError | plan is for .*float64; the operands are .*complex128
hg.matmul(A.T, A, plan=PLAN) | hg.PlanError | plan is for
hg.matmul(I, I.T, plan=PLAN) | hg.PlanError | the operands are int64
hg.matmul(RIGHT, LEFT) | (hg.PlanError, ValueError) | inner dimensions|prepared for the right is used on the left
hg.matmul(A, LEFT) | (hg.PlanError, ValueError) | inner dimensions|prepared for the left is used on the right
hg.matmul(LEFT, B, accuracy="correct") | hg.PlanError | leave accuracy= out, or prepare it again
hg.matmul(LEFT, Z.T) | hg.PlanError | plan is for
hg.prepare(LEFT, "left", plan=PLAN) | hg.PlanError | prepared already
hg.prepare(A, "top", plan=PLAN) | hg.PlanError | side='top'
hg.prepare(A, 0, plan=PLAN) | hg.PlanError | side=0
hg.prepare(A, ["left"], plan=PLAN) | hg.PlanError | side=\\['left'\\]
hg.prepare(A, np.array(["left", "right"]), plan=PLAN) | hg.PlanError | side=array
hg.prepare(A, "left", plan=0) | hg.PlanError | plan is a int
hg.prepare(B, "left", plan=PLAN) | hg.PlanError | shape \\(3, 4\\).*does not fit
hg.prepare(Z, "left", plan=PLAN) | hg.PlanError | complex128 does not fit
hg.prepare(None, "left", plan=PLAN) | TypeError | is None
hg.gemm(A, B, trans_a="t") | hg.PlanError | trans_a='t'
hg.gemm(A, B, trans_a=True) | hg.PlanError | trans_a=True
hg.gemm(A, B, trans_b=None) | hg.PlanError | trans_b=None
hg.gemm(A, B, trans_b=np.array(["N", "T"])) | hg.PlanError | trans_b=array
hg.gemm(A, B, trans_a=["N"]) | hg.PlanError | trans_a=\\['N'\\]
hg.gemm(LEFT, B, trans_a="T") | hg.PlanError | transpose a before it is prepared
hg.gemm(A[0], B, trans_a="T") | ValueError | two dimensions, a has shape \\(3,\\)
hg.gemm(A, B, alpha="2") | TypeError | alpha = '2'
hg.gemm(A, B, alpha=None) | TypeError | alpha = None
hg.gemm(A, B, alpha=[2.0]) | TypeError | alpha = \\[2.0\\]
hg.gemm(A, B, alpha=np.array([2.0])) | TypeError | alpha = array
hg.gemm(A, B, alpha=10**400) | ValueError | alpha is beyond the range
hg.gemm(A, B, alpha=Fraction(1, 3)) | ValueError | Fraction\\(1, 3\\) is not a float64 number
hg.gemm(A, B, alpha=Decimal("0.1")) | ValueError | Decimal\\('0.1'\\) is not a float64 number
hg.gemm(A, B, alpha=2**53 + 1) | ValueError | 9007199254740993 is not a float64 number
hg.gemm(A, B, alpha=1j) | TypeError | alpha = 1j is complex
hg.gemm(A, B, A, beta="1") | TypeError | beta = '1'
hg.gemm(A, B, beta=1.0) | ValueError | beta = 1.0 needs c
hg.gemm(A, B, A, beta=1.0) | ValueError | c has shape \\(2, 3\\)
hg.gemm(A, B, "c", beta=1.0) | TypeError | c has dtype <U1
hg.gemm(A, B, Fraction(1, 3), beta=1.0) | TypeError | c has dtype object and is Fraction\\(1, 3\\)
hg.gemm(A, B, LEFT, beta=1.0) | TypeError | c is a prepared operand
hg.gemm(A, B, np.ma.masked_array(1.0), beta=1.0) | TypeError | c is a masked array
hg.gemm(A, B, odd, beta=1.0) | TypeError | c .*Odd
hg.gemm(F, B, 2**63 + 1, beta=1.0) | ValueError | not exact in float64
hg.gemm(I, I.T) | TypeError | int64
hg.gemm(A, B, accuracy=np.array(["correct", "fp64"])) | hg.PlanError | accuracy=array
hg.matmul(A, B, out=np.zeros((4, 2))) | ValueError | out has shape \\(4, 2\\); the result has shape \\(2, 4\\)
hg.matmul(A, B, out=np.zeros((2, 4), np.float32)) | TypeError | out has dtype float32; the result has dtype float64
hg.matmul(A, B, out=np.zeros((2, 4), int)) | TypeError | out has dtype int64
hg.matmul(I, I.T, out=np.zeros((2, 2))) | TypeError | out has dtype float64; the result has dtype int64
hg.matmul(A, B, out=np.ma.zeros((2, 4))) | TypeError | out is a masked array
hg.matmul(A, B, out=np.zeros((2, 4)).view(np.matrix)) | TypeError | out is a numpy\\..*matrix
hg.matmul(A, B, out=[[0.0] * 4] * 2) | TypeError | out is a list
hg.matmul(A, B, out=()) | TypeError | out is a tuple of 0
hg.matmul(A, B, out=(None, None)) | TypeError | out is a tuple of 2
hg.matmul(A, B, out=np.broadcast_to(0.0, (2, 4))) | ValueError | read-only
hg.matmul(A[0], B[:, 0], out=np.float64(0)) | TypeError | out is a float64
hg.matmul(A, B, out="C") | TypeError | out is a str
hg.make_plan(A, A) | ValueError | inner dimensions
hg.make_plan(I, I.T) | TypeError | int64
hg.make_plan(A, B, engine=3) | hg.PlanError | engine=3
hg.make_plan(A, B, accuracy=-1) | hg.PlanError | accuracy=-1
hg.make_plan(A, B, workspace="all") | hg.PlanError | workspace='all'
hg.matmul(A, B, scheme="native", accuracy="correct") | hg.AccuracyError | native product.*correct rounding
hg.matmul([[10**5000, 1, 2]], B) | ValueError | entry \\(0, 0\\) of a is what cannot be shown
hg.gemm(A, B, alpha=10**5000) | ValueError | alpha is beyond the range
hg.matmul(A, B, scheme=hg.Multiword(), accuracy=1e-30) | (hg.AccuracyError, hg.PlanError) | 1e-30|float64
"""
"""Calls, the error, and what it says: the value, or its type."""


def rows(table, mark):
    return [
        [x.strip() for x in line.split(mark)] for line in table.strip().splitlines()
    ]


@pytest.mark.parametrize(("call", "want"), rows(RIGHT, " == "))
def test_what_can_be_done_is_done_right(call, want):
    found, expected = eval(call, NAMES), eval(want, NAMES)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


@pytest.mark.parametrize(("call", "error", "match"), rows(WRONG, " | "))
def test_what_cannot_be_done_is_refused_in_plain_words(call, error, match):
    with pytest.raises(eval(error, NAMES), match=match) as caught:
        eval(call, NAMES)
    kinds = (TypeError, ValueError, hg.HifigemmError)
    assert (
        type(caught.value) in kinds or type(caught.value) in kinds[2].__subclasses__()
    )


def test_there_are_enough_of_them():
    assert len(rows(RIGHT, " == ")) + len(rows(WRONG, " | ")) >= 200


def attempt(call):
    """What a call returns, or the class of its error."""
    try:
        return call()
    except hg.HifigemmError as error:
        return type(error)


SCHEMES = [
    "auto",
    "native",
    "ozaki1",
    "ozaki2",
    "multiword",
    "corrected",
    hg.Ozaki2(scaling="fast"),
    hg.Native("fp64"),
]
FAMILIES = [
    "full_range",
    "subnormal",
    "overflowing",
    "underflowing",
    "zeros",
    "largest_times_smallest",
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "scheme",
    [*SCHEMES, hg.Ozaki1(num_slices=2), hg.Ozaki1(product="fp16", mode="dp")],
    ids=str,
)
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128"]
)
def test_settings_of_the_caller_change_nothing(
    make_pair, assert_same_bits, dtype, scheme
):
    """np.seterr(all="raise") and warnings as errors raise nothing, whatever underflows
    or overflows on the way.
    """
    for family in FAMILIES:
        x, y = make_pair(family, 3, 5, 4, "float32" if dtype == "float16" else dtype)
        with np.errstate(all="ignore"):
            x, y = x.astype(dtype), y.astype(dtype)
        c = x[:, :4].copy()
        x[0, 0], y[1, 1] = np.inf, np.nan
        for call in (
            lambda x=x, y=y: hg.matmul(x, y, scheme=scheme),
            lambda x=x, y=y: hg.matmul(x, y, scheme=scheme, return_report=True)[0],
            lambda x=x, y=y, c=c: hg.gemm(
                x, y, c, alpha=-(2.0**100), beta=3e-30, scheme=scheme
            ),
            lambda x=x, y=y, c=c: hg.gemm(
                x, y, c, alpha=0.5, beta=2.0**100, scheme=scheme, trans_a="N"
            ),
        ):
            want = attempt(call)
            with np.errstate(all="raise"), warnings.catch_warnings():
                warnings.simplefilter("error")
                found = attempt(call)
            if isinstance(want, np.ndarray):
                assert_same_bits(found, want)
            else:
                assert found is want


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_correct_products_ask_no_settings_of_the_caller(
    make_pair, assert_same_bits, dtype
):
    for family in FAMILIES:
        x, y = make_pair(family, 3, 5, 4, dtype)
        want = correctly_rounded(x, y)
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = hg.make_plan(x, y, accuracy="correct", scheme="ozaki1")
            assert_same_bits(hg.matmul(x, y, accuracy="correct"), want)
            assert_same_bits(hg.matmul(hg.prepare(x, "left", plan=plan), y), want)
