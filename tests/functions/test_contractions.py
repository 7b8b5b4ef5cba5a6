"""One product of two operands, whatever their axes: NumPy's shapes and dtypes, the
promise of matmul, exact results.
"""

from __future__ import annotations

import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.testing.reference import correctly_rounded, meets_promise
from tests.functions.cancelling import hostile

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


@pytest.mark.parametrize("accuracy", [None, 1e-5, "fp32", "correct"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_promise_of_matmul_holds(dtype, accuracy):
    rng = np.random.default_rng(4)
    a, b = hostile(rng, (4, 3, 5), dtype), hostile(rng, (5, 6, 3), dtype)
    left = np.transpose(a, (0, 2, 1)).reshape(4, 15)
    right = np.transpose(b, (0, 2, 1)).reshape(15, 6)
    for made, report in (
        hnp.tensordot(
            a, b, axes=([1, 2], [2, 0]), accuracy=accuracy, return_report=True
        ),
        hnp.einsum("ijk,klj->il", a, b, accuracy=accuracy, return_report=True),
    ):
        assert made.dtype == dtype
        assert meets_promise(made, left, right, report.bound).all()
        if accuracy == "correct":
            np.testing.assert_array_equal(made, correctly_rounded(left, right))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_inner_outer_vdot(dtype):
    rng = np.random.default_rng(5)
    a, b, v, w = (hostile(rng, s, dtype) for s in ((3, 4, 5), (2, 5, 6), (5,), (5,)))
    options = {"accuracy": "correct"}
    rows, columns = a.reshape(12, 5), np.moveaxis(b, 1, 0).reshape(5, 12)
    np.testing.assert_array_equal(
        hnp.dot(a, b, **options), correctly_rounded(rows, columns).reshape(3, 4, 2, 6)
    )
    np.testing.assert_array_equal(hnp.dot(a, v, **options), correctly_rounded(a, v))
    np.testing.assert_array_equal(
        hnp.inner(a, rows, **options), correctly_rounded(rows, rows.T).reshape(3, 4, 12)
    )
    np.testing.assert_array_equal(hnp.inner(v, w, **options), correctly_rounded(v, w))
    np.testing.assert_array_equal(
        hnp.vdot(v, w, **options), correctly_rounded(v.conj(), w)
    )
    np.testing.assert_array_equal(
        hnp.outer(v, w, **options), correctly_rounded(v[:, None], w[None])
    )
    for made, expected in (
        (hnp.dot(v, w), np.dot(v, w)),
        (hnp.dot(a, 2), np.dot(a, 2)),
        (hnp.dot(a, dtype(2)), np.dot(a, dtype(2))),
        (hnp.vdot(a, a), np.vdot(a, a)),
        (hnp.inner(3.0, 2.0), np.inner(3.0, 2.0)),
    ):
        assert (type(made), made.dtype, np.shape(made)) == (
            type(expected),
            expected.dtype,
            np.shape(expected),
        )


@pytest.mark.skipif(
    not hasattr(np, "matvec"), reason="matvec and vecmat came with NumPy 2.2"
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_of_vectors(dtype):
    rng = np.random.default_rng(6)
    shapes = ((4, 1, 5), (3, 5), (2, 1, 6, 5), (3, 5, 6))
    v, w, m, n = (rng.integers(-8, 9, s).astype(dtype) for s in shapes)
    if v.dtype.kind == "c":
        v, w, m, n = (
            x + 1j * rng.integers(-8, 9, x.shape).astype(x.real.dtype)
            for x in (v, w, m, n)
        )
    for ours, theirs, operands in (
        (hnp.vecdot, np.vecdot, (v, w)),
        (hnp.matvec, np.matvec, (m, w)),
        (hnp.vecmat, np.vecmat, (w, n)),
        (hnp.matvec, np.matvec, (m[0, 0], w[0])),
    ):
        expected = theirs(*operands)
        made = ours(*operands, accuracy=1e-3)
        assert made.dtype == expected.dtype
        np.testing.assert_array_equal(made, expected)
        out = np.empty_like(expected)
        assert ours(*operands, out) is out
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(
        hnp.vecdot(v[:, 0].T, v[:, 0].T, axis=0), np.vecdot(v[:, 0], v[:, 0])
    )


@given(data=st.data())
def test_random_tensordots(data):
    count = data.draw(st.integers(0, 3))
    summed = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    free = [data.draw(st.lists(st.integers(0, 3), max_size=2)) for _ in range(2)]
    operands, axes = [], []
    for own in free:
        order = data.draw(st.permutations(range(count + len(own))))
        shape = [0] * len(order)
        for at, n in zip(order, [*summed, *own]):
            shape[at] = n
        operands.append(
            np.arange(math.prod(shape), dtype=np.float32).reshape(shape) - 3
        )
        axes.append(list(order[:count]))
    expected = np.tensordot(*operands, axes)
    made = hnp.tensordot(*operands, axes)
    assert (made.dtype, np.shape(made)) == (expected.dtype, np.shape(expected))
    np.testing.assert_array_equal(made, expected)


def test_integers_are_exact_or_wrap_as_numpy_does():
    a = np.full((3, 4), 2**61)
    np.testing.assert_array_equal(hnp.einsum("ij->i", a), np.einsum("ij->i", a))
    with pytest.raises(hg.AccuracyError):
        hnp.einsum("ij->i", a, accuracy=1e-3)
    assert hnp.dot([True, False], [True, True]) is np.True_


def test_out():
    a, b = np.ones((2, 3)), np.ones((3, 4))
    out = np.empty((2, 4), complex)
    assert hnp.einsum("ij,jk->ik", a, b, out=out) is out
    assert (out == 3).all()
    made, report = hnp.dot(a, b, (out,), return_report=True)
    assert made is out
    assert report.native
    np.testing.assert_array_equal(hnp.einsum("ij->ji", b, out=np.empty((4, 3))), b.T)
    square = np.arange(4.0).reshape(2, 2)
    np.testing.assert_array_equal(hnp.dot(square, square, square), [[2, 3], [6, 11]])
    with pytest.raises(
        ValueError, match=r"out has shape \(4, 2\); the result has shape \(2, 4\)"
    ):
        hnp.dot(a, b, np.empty((4, 2)))
    with pytest.raises(
        TypeError, match="out has dtype float32; the result has dtype float64"
    ):
        hnp.dot(a, b, np.empty((2, 4), np.float32))
    with pytest.raises(TypeError, match="out is a list"):
        hnp.dot(a, b, [1])


a23, a34 = np.ones((2, 3)), np.ones((3, 4))
ERRORS = (
    (
        hnp.dot,
        (a23, a23),
        ValueError,
        r"axis 1 of a has length 3, axis 0 of b has length 2",
    ),
    (
        hnp.inner,
        (a23, a34),
        ValueError,
        r"axis 1 of a has length 3, axis 1 of b has length 4",
    ),
    (
        hnp.vdot,
        (a23, a34),
        ValueError,
        r"axis 0 of a has length 6, axis 0 of b has length 12",
    ),
    (hnp.vecdot, (a23, 1.0), ValueError, r"x2 has 0 axes"),
    (partial(hnp.vecdot, axis=0), (a23, 1.0), ValueError, r"x2 has 0 axes"),
    (
        hnp.vecdot,
        (np.ones((5, 3)), np.ones((2, 3))),
        ValueError,
        r"stacks \(5,\) of x1 and \(2,\) of x2",
    ),
    (hnp.vecdot, (a23, np.ones(1)), ValueError, "length 3.*length 1"),
    (hnp.matvec, (np.ones(3), np.ones(3)), ValueError, r"x1 has 1 axes"),
    (hnp.vecmat, (np.ones(2), np.ones((3, 2))), ValueError, "length 2.*length 3"),
    (hnp.tensordot, (a23, a34, 3), ValueError, "axes = 3: a has 2 axes, b has 2"),
    (hnp.tensordot, (a23, a34, 2), ValueError, "length 2.*length 3"),
    (
        hnp.tensordot,
        (a23, a34, ([0], [0, 1])),
        ValueError,
        r"\(0,\) of a are 1, axes \(0, 1\) of b are 2",
    ),
    (hnp.tensordot, (a23, a34, ([1, 1], [0, 0])), ValueError, "repeated axis"),
    (hnp.tensordot, (a23, a34, (5, 0)), IndexError, "axis 5 is out of bounds"),
    (hnp.einsum, (), ValueError, "0 arguments"),
    (hnp.einsum, ("ij,jk", a23), ValueError, "2 terms, for 1 operands"),
    (
        hnp.einsum,
        ("ij,jk->ik", a23, a23),
        ValueError,
        "label 'j' has length 2 in operand 1, 3 before",
    ),
    (
        hnp.einsum,
        ("ijk,jk", a23, a34),
        ValueError,
        "'ijk' has 3 labels, its operand 2 axes",
    ),
    (
        hnp.einsum,
        ("ii", a23),
        ValueError,
        "axes 0 and 1 of operand 0 have the label 'i', and lengths 2 and 3",
    ),
    (hnp.einsum, ("ij->iij", a23), ValueError, "'i' 2 times"),
    (hnp.einsum, ("ij->ik", a23), ValueError, "'k' of the output"),
    (hnp.einsum, ("i1", a23), ValueError, "'1' is not a label"),
    (hnp.einsum, ("...i->i", a23), ValueError, "lacks the ellipsis, of 1 axes"),
    (hnp.einsum, (a23, [0, 52]), ValueError, "52 is not within 0 to 51"),
    (hnp.einsum, (a23, ["i", "j"]), TypeError, "'i' is not a label"),
    (hnp.dot, (np.full(2, None), np.ones(2)), TypeError, "dtype object"),
    (hnp.dot, (np.ma.ones(2), np.ones(2)), TypeError, "masked array"),
    (
        hnp.dot,
        (a23, hg.prepare(a34, "right", plan=hg.make_plan(a23, a34))),
        TypeError,
        r"prepared operand of shape \(3, 4\)",
    ),
)


@pytest.mark.parametrize(("function", "operands", "error", "words"), ERRORS)
def test_errors_have_numbers(function, operands, error, words):
    with pytest.raises(error, match=words):
        function(*operands)


def test_unknown_keywords_are_refused_by_name():
    with pytest.raises(TypeError, match="casting"):
        hnp.einsum("i->", np.ones(2), casting="safe")


@pytest.mark.parametrize(
    "axes", [np.array(1), np.int64(1), np.array([1, 0]), [1, np.array([0])], ((-1,), 0)]
)
def test_axes_of_tensordot_may_be_arrays(axes):
    a, b = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(
        hnp.tensordot(a, b, axes=axes), np.tensordot(a, b, axes=axes), strict=True
    )


@pytest.mark.parametrize(
    ("axes", "error"), [(1.0, TypeError), (([2], [0]), IndexError)]
)
def test_axes_that_are_none_are_refused(axes, error):
    a, b = np.ones((3, 4)), np.ones((4, 2))
    for function in (np.tensordot, hnp.tensordot):
        with pytest.raises(error):
            function(a, b, axes=axes)
    with pytest.raises(
        np.exceptions.AxisError,
        match="axis 2 is out of bounds for array of dimension 2",
    ):
        hnp.vecdot(a, a, axis=2)
    with pytest.raises(ValueError, match=r"repeated axis in axes of a: \(1, -1\)"):
        hnp.tensordot(a, b, axes=([1, -1], [0, 1]))


@pytest.mark.parametrize("axis", [(1,), [1], (0, 1), 1.0])
def test_vecdot_takes_one_axis(axis):
    a = np.ones((2, 3))
    for call in (np.vecdot, hnp.vecdot):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            call(a, a, axis=axis)


PLACED = {
    "dot": lambda a, b, **o: hnp.dot(a, b, **o),
    "inner": lambda a, b, **o: hnp.inner(a, np.moveaxis(np.array(b), 0, -1), **o),
    "tensordot": lambda a, b, **o: hnp.tensordot(a, b, 1, **o),
    "transposed": lambda a, b, **o: hnp.einsum("ijk,kl->lji", a, b, **o),
    "stack": lambda a, b, **o: hnp.einsum("ijk,kl->jli", a, b, **o),
    "matvec": lambda a, b, **o: hnp.matvec(a, np.array(b)[:, 0], **o),
    "number": lambda a, b, **o: hnp.einsum("ijk,kl->", a, b, **o),
    "three": lambda a, b, **o: hnp.einsum(
        "ijk,kl,lm->mji", a, b, np.eye(2, dtype=int), **o
    ),
}


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("is_exact", [False, True])
def test_the_first_entry_beyond_is_named_as_the_result_has_it(name, is_exact):
    rng = np.random.default_rng(len(name))
    call = PLACED[name]
    counts = {True: 0, False: 0}
    for trial in range(30):
        a = rng.integers(-5, 6, (2, 3, 2)) * 2 ** rng.choice([0, 31], (2, 3, 2))
        b = rng.integers(-5, 6, (2, 2)) * 2 ** rng.choice([0, 29 + trial % 3], (2, 2))
        exact = exact_of_objects(name, a, b)
        beyond = [
            i for i in np.ndindex(exact.shape) if not -(2**63) <= exact[i] < 2**63
        ]
        counts[bool(beyond)] += 1
        options = {} if is_exact else {"accuracy": "correct"}
        if is_exact:
            a, b = a.astype(object), b.astype(object)
        if beyond:
            place = re.escape(f"first is entry {beyond[0]} = {exact[beyond[0]]}: ")
            with pytest.raises(hg.AccuracyError, match=f"{len(beyond)} of .* {place}"):
                call(a, b, **options)
        else:
            found = np.asarray(call(a, b, **options))
            assert found.tolist() == exact.tolist()
    assert min(counts.values()) > 0


def exact_of_objects(name, a, b):
    """The exact result as objects: by sums of Python's integers."""
    product = np.tensordot(a.astype(object), b.astype(object), 1)
    if name == "transposed" or name == "three":
        return product.transpose(2, 1, 0)
    if name == "stack":
        return product.transpose(1, 2, 0)
    if name == "matvec":
        return product[..., 0]
    if name == "number":
        return np.array(product.sum(), object)
    return product


@pytest.mark.parametrize("num_axes", [34, 40, 64])
def test_stacks_have_as_many_axes_as_arrays_of_numpy(num_axes):
    a = np.arange(12.0).reshape(*(1,) * (num_axes - 3), 2, 2, 3)
    x = np.arange(3.0)
    np.testing.assert_array_equal(hnp.matvec(a, x), np.matmul(a, x))
    np.testing.assert_array_equal(hnp.vecdot(a, a), (a * a).sum(-1))
    with pytest.raises(ValueError, match=r"stacks .* of x1 and .* of x2 do not"):
        hnp.vecdot(a, np.ones((3, 1, 3)))
