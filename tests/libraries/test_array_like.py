"""What NumPy reads as an array: taken where nothing is lost, refused by name where
anything would be.
"""

from __future__ import annotations

import array
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.libraries.array_like import as_array, holds_python_integers


class Frame:
    """A table with labels, as in pandas: NumPy's functions are its own."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 2))

    def __array_ufunc__(self, *args, **options):
        return NotImplemented


class Sparse:
    """A matrix of scipy.sparse, for NumPy one object."""

    def toarray(self):
        return np.ones((2, 2))


class Readable:
    """An object that makes an array of itself and is nothing more."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 2))


class Broken:
    """An object whose array cannot be made."""

    def __array__(self, dtype=None, copy=None):
        raise KeyError("lost")


class Float(float):
    """A number of Python under another name."""


@pytest.mark.parametrize(
    "x",
    [
        [[1.0, 2.0], [3.0, 4.0]],
        ((1, 2.5), (True, 4)),
        [[Float(1.0), np.float32(2.0)], [np.int8(3), 4j]],
        [np.ones(2), np.zeros(2)],
        deque([[1.0, 2.0], [3.0, 4.0]]),
        [array.array("d", [1.0, 2.0]), range(2)],
        [[2**60, 0.5], [-(2**63), 2.0**900]],
        Readable(),
        memoryview(np.ones((2, 2))),
        np.ones((2, 2), ">f4"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_loses_nothing_is_what_numpy_makes_of_it(x):
    found, want = hg.matmul(x, np.eye(2), accuracy="correct"), np.asarray(x) @ np.eye(2)
    np.testing.assert_array_equal(found, want, strict=True)


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        ([[2**60 + 1, 0.5]], ValueError, "integer 1152921504606846977"),
        (
            [[np.int64(2**53 + 1), 1j]],
            ValueError,
            "integer 9007199254740993.*complex128",
        ),
        ([[np.uint64(2**64 - 1), 0.5]], ValueError, "18446744073709551615"),
        ([np.array([2**53 + 1, 1]), [0.5, 1.0]], ValueError, "9007199254740993"),
        ([[np.longdouble(1) / 3, 0.5]], TypeError, str(np.dtype(np.longdouble))),
        ([[None, 1.0]], TypeError, "holds None"),
        ({1: 2}, TypeError, "is {1: 2}"),
        (object(), TypeError, "is <object"),
        (iter([1.0]), TypeError, "is <list_iter"),
        ("1.0", TypeError, "dtype <U3"),
        ([["1.0", 2.0]], TypeError, "dtype <U32"),
        (b"abc", TypeError, "dtype |S3"),
        (Frame(), TypeError, r"Frame, which has products of its own.*np\.asarray"),
        ([Frame(), Frame()], TypeError, "holds a .*Frame"),
        (Sparse(), TypeError, r"Sparse, which is not dense; pass \.toarray"),
        (Broken(), TypeError, "Broken, which NumPy does not read: 'lost'"),
        ([np.ma.masked, 1.0], TypeError, "holds a masked array"),
        (
            [np.ma.masked_array([1.0], [True])],
            TypeError,
            r"holds a masked array, whose mask would be lost; pass its \.filled",
        ),
        (np.zeros((2, 2), "m8[s]"), TypeError, r"timedelta64\[s\]"),
    ],
    ids=lambda x: None if isinstance(x, type | str) else type(x).__name__,
)
def test_what_would_lose_anything_is_refused_by_name(x, error, match):
    for call in (hg.matmul, hg.gemm, hg.make_plan):
        with pytest.raises(error, match=f"^a .*{match}|^operands of .*{match}"):
            call(x, np.eye(2))
    with pytest.raises(error, match=f"^c .*{match}|^operands of .*{match}"):
        hg.gemm(np.eye(2), np.eye(2), x, beta=1.0)


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        ("pandas.core.frame", r"the labels of rows and columns .* pass its \.to_numpy"),
        ("pandas", r"the labels of rows and columns .* pass its \.to_numpy"),
        ("xarray.core.dataarray", "the names and coordinates of its axes"),
        ("astropy.units.quantity", r"the unit would be lost; pass its \.value"),
        ("pint", r"the unit would be lost; pass its \.magnitude"),
        ("elsewhere", "what its class adds to the numbers"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_other_packages_would_lose_is_said(module, loss, wrapped):
    methods = {"__module__": module, "__array_finalize__": lambda self, other: None}
    x = np.eye(2).view(type("Labelled", (np.ndarray,), methods))
    with pytest.raises(TypeError, match=rf"a .*{module}\.Labelled.*{loss}"):
        hg.matmul([x, x] if wrapped else x, np.eye(2))


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "float32",
        "float64",
        "complex128",
        "uint64",
        "int16",
        "bool",
        "object",
    ],
)
def test_foreign_byte_order_ends_at_the_door(dtype):
    """Behind it dtypes are compared, are keys, and stand in messages."""
    x = np.arange(6).reshape(2, 3).astype(dtype)[:, ::-1]
    foreign = x.astype(x.dtype.newbyteorder())
    for z in (foreign, [foreign[0], foreign[1]]):
        found = as_array(z, "a")
        np.testing.assert_array_equal(found, x, strict=True)
        assert found.dtype.isnative
    assert as_array(x, "a") is x
    assert as_array(foreign, "out") is foreign
    if x.dtype.kind in "fc":
        for view in (
            hnp.einsum("ij->ji", foreign),
            hnp.matrix_power(foreign[:, :2], 1),
            hg.matmul(foreign, x.T),
        ):
            assert view.dtype.isnative


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accuracy": "correct"},
        {"scheme": "ozaki2"},
        {"scheme": hg.Multiword("fp16")},
    ],
)
def test_products_of_foreign_byte_order_have_the_same_bits(
    assert_same_bits, dtype, options
):
    a = np.random.default_rng(1).standard_normal((2, 3, 3)).astype(dtype)
    foreign = a.astype(a.dtype.newbyteorder())
    want, report = hg.matmul(a, a, **options, return_report=True)
    for _ in range(2):
        assert_same_bits(hg.matmul(foreign, foreign, **options), want)
        assert_same_bits(hg.matmul(foreign, a, **options), want)
    assert (
        hg.matmul(foreign, foreign, **options, return_report=True)[1].scheme
        == report.scheme
    )
    plan = hg.make_plan(foreign, a, **options)
    assert plan.problem == hg.make_plan(a, a, **options).problem
    left = hg.prepare(foreign, "left", plan=plan)
    assert_same_bits(hg.matmul(left, foreign, plan=plan), hg.matmul(a, a, plan=plan))
    out = np.zeros(want.shape, want.dtype.newbyteorder())
    assert (
        hg.gemm(foreign, foreign, foreign, alpha=3.0, beta=2.0, out=out, **options)
        is out
    )
    assert_same_bits(
        out.astype(want.dtype), hg.gemm(a, a, a, alpha=3.0, beta=2.0, **options)
    )


def test_lists_that_hold_themselves_or_are_deep_end():
    own: list = [1.0]
    own.append(own)
    deep: list = [1.0]
    for _ in range(5000):
        deep = [deep]
    for x in (own, deep):
        with pytest.raises(
            ValueError, match="a is a list that cannot be converted to an array"
        ):
            hg.matmul(x, np.eye(2))


def test_files_in_memory_give_plain_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "a", dtype=float, mode="w+", shape=(2, 2))
    mapped[...] = 3.0
    assert type(as_array(mapped, "a")) is np.ndarray
    found = hg.matmul(mapped, np.eye(2), out=mapped)
    assert found is mapped
    np.testing.assert_array_equal(np.asarray(mapped), np.full((2, 2), 3.0))


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.T, lambda x: x[::2, ::-1]])
def test_bfloat16_of_ml_dtypes_is_taken_as_that_of_torch(
    torch, assert_same_bits, layout
):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(4).integers(0, 2**16, (6, 6)).astype(np.uint16)
    bits[0] = [0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8001, 0x7F7F]
    x = layout(bits.view(ml_dtypes.bfloat16))
    same = torch.from_numpy(np.ascontiguousarray(x).view(np.int16).copy()).view(
        torch.bfloat16
    )
    for scheme in ("auto", "ozaki1", "corrected"):
        found = hg.matmul(x, x.T, scheme=scheme)
        assert found.dtype == np.float32
        assert_same_bits(
            np.isnan(found), np.isnan(hg.matmul(same, same.T, scheme=scheme).numpy())
        )
        finite = ~np.isnan(found)
        assert_same_bits(
            found[finite], hg.matmul(same, same.T, scheme=scheme).numpy()[finite]
        )
    assert hg.matmul(x, np.eye(x.shape[1])).dtype == np.float64
    with pytest.raises(TypeError, match="out has dtype bfloat16"):
        hg.matmul(x, x.T, out=np.zeros((len(x), len(x)), ml_dtypes.bfloat16))


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn"]
)
def test_other_dtypes_of_ml_dtypes_are_refused_by_name(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match=f"b has dtype {name}; expected"):
        hg.matmul(np.eye(2), np.ones((2, 2), getattr(ml_dtypes, name)))


def test_tensors_are_not_taken_out_of_a_list(torch):
    for x in (
        [torch.ones(2)],
        [[torch.tensor(1.0), 2.0]],
        [torch.ones(2, requires_grad=True)],
    ):
        with pytest.raises(
            TypeError, match=r"a holds a torch\.Tensor; arrays of other libraries"
        ):
            hg.matmul(x, np.ones((2, 2)))


@pytest.mark.parametrize(
    "scalar",
    [
        Fraction(1, 3),
        Decimal("0.1"),
        2**53 + 1,
        np.longdouble(1) / 3,
        np.int64(2**62 + 1),
    ],
    ids=str,
)
def test_scalars_that_would_be_rounded_are_refused(scalar):
    a = np.eye(2)
    for options in ({"alpha": scalar}, {"beta": scalar, "c": a}):
        with pytest.raises(
            ValueError, match=r"not a float64 number; it would be rounded to"
        ):
            hg.gemm(a, a, **options)
    for exact in (
        Fraction(3, 4),
        Decimal("0.5"),
        2**60,
        np.longdouble(0.1),
        np.float16(0.1),
        np.array(2.0),
        True,
    ):
        assert hg.gemm(a, a, alpha=exact)[0, 0] == float(exact)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        ([[2**63 + 1, 1]], object),
        ([[2**63, -1], [2**64, 3]], object),
        ([[2**63, 2**63 + 1]], np.uint64),
        ([[2**62, 1]], np.int64),
        ([[2**63, 1.0]], np.float64),
        ([[np.uint64(2**63), -1]], np.float64),
        ([], np.float64),
    ],
    ids=str,
)
def test_integers_of_python_are_not_made_floats(x, dtype):
    taken = as_array(x, "a")
    assert taken.dtype == dtype
    assert taken.tolist() == np.array(x, object).tolist()


@pytest.mark.parametrize(
    ("x", "holds"),
    [
        (3, True),
        ([[1.5], [2]], True),
        (range(2), True),
        ((np.int8(3), (4,)), True),
        ([True, False], False),
        ([[np.int8(3)]], False),
        (np.array([3]), False),
        (array.array("b", [3]), False),
        ("3", False),
        ([1.5, 2.5], False),
    ],
    ids=str,
)
def test_integers_of_python_are_told_from_those_of_numpy(x, holds):
    assert holds_python_integers(x) is holds
