"""result="pair" and "enclosure": to the last bit, by correctly rounded sums of the
judge and by fractions.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded
from tests.exact_values import components, exact_entries
from tests.test_correct import DTYPES, NAMES

SHAPES = ((1, 1, 1), (5, 1, 4), (7, 13, 6), (1, 64, 1))


def check_pair(pair, a, b):
    high, low = pair
    want = correctly_rounded(a, b)
    np.testing.assert_array_equal(high, want)
    assert low.dtype == high.dtype
    real = want.view(want.real.dtype)
    known = np.where(np.isfinite(real), real, 0).view(want.dtype)
    rest = correctly_rounded(
        np.concatenate([a, known], axis=1),
        np.concatenate([b, -np.eye(b.shape[1], dtype=b.dtype)]),
    )
    rest = np.where(np.isfinite(real), rest.view(real.dtype), 0)
    np.testing.assert_array_equal(low.view(real.dtype), rest)


def check_enclosure(enclosure, a, b):
    lower, upper = (x.view(x.real.dtype).ravel() for x in enclosure)
    with np.errstate(over="ignore"):
        after = np.nextafter(lower, lower.dtype.type(np.inf))
    for x, y, z, next_x in zip(lower, upper, exact_entries(a, b), after, strict=True):
        first, last = components(x.reshape(1))[0], components(y.reshape(1))[0]
        if x == y:
            assert first == z
        else:
            assert first == -np.inf or first < z
            assert last == np.inf or z < last
            assert y == next_x


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_pairs_and_enclosures_of_hard_products(make_pair, name, dtype):
    for m, k, n in SHAPES:
        a, b = make_pair(name, m, k, n, dtype)
        check_pair(hg.matmul(a, b, result="pair"), a, b)
        check_enclosure(hg.matmul(a, b, result="enclosure"), a, b)


@pytest.mark.parametrize("scheme", [hg.Ozaki1(), hg.Ozaki2(scaling="fast")], ids=str)
def test_schemes_are_obeyed(make_pair, scheme):
    a, b = make_pair("uniform", 9, 20, 8, "float64")
    pair, report = hg.matmul(a, b, result="pair", scheme=scheme, return_report=True)
    check_pair(pair, a, b)
    assert type(report.scheme) is type(scheme)
    assert report.correct
    correct = hg.matmul(a, b, accuracy="correct", scheme=scheme, return_report=True)[1]
    assert report.num_products > correct.num_products
    assert "products for A B - C" in report.reason


def test_differences_far_below_the_range_of_the_dtype_have_a_side():
    """2**-2000 beside 1: what lies between the two is no float64 by itself."""
    a, b = np.array([[1.0, 2.0**-1000, 0.0]]), np.array([[1.0], [2.0**-1000], [1.0]])
    for sign in (1.0, -1.0):
        lower, upper = hg.matmul(a, b * [[1.0], [sign], [1.0]], result="enclosure")
        want = sorted((1.0, np.nextafter(1.0, 1.0 + sign)))
        assert (lower[0, 0], upper[0, 0]) == tuple(want)
    least = np.full((1, 1), 2.0**-1074)
    lower, upper = hg.matmul(-least, least, result="enclosure")
    assert (lower[0, 0], upper[0, 0]) == (-(2.0**-1074), 0.0)


def test_stacks_vectors_and_empty_dimensions():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 1, 3, 4)), rng.standard_normal((5, 4, 2))
    for kind, check in (("pair", check_pair), ("enclosure", check_enclosure)):
        found = hg.matmul(a, b, result=kind)
        assert found[0].shape == found[1].shape == (2, 5, 3, 2)
        for i, j in np.ndindex(2, 5):
            check([np.ascontiguousarray(x[i, j]) for x in found], a[i, 0], b[j])
        scalar = hg.matmul(a[0, 0, 0], b[0, :, 0], result=kind)
        check([np.reshape(x, (1, 1)) for x in scalar], a[0, 0, :1], b[0, :, :1])
        for shapes in (((0, 3), (3, 2)), ((2, 0), (0, 3))):
            made = hg.matmul(*(np.ones(s) for s in shapes), result=kind)
            assert [x.shape for x in made] == [(shapes[0][0], shapes[1][1])] * 2
            assert not any(x.any() for x in made)


def test_inf_and_nan_are_those_of_ieee_arithmetic():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    a[0, 1], b[2, 3] = np.inf, np.nan
    want = hg.matmul(a, b, accuracy="correct")
    high, low = hg.matmul(a, b, result="pair")
    np.testing.assert_array_equal(high, want)
    known = np.isfinite(want)
    assert not low[~known].any()
    for x in hg.matmul(a, b, result="enclosure"):
        np.testing.assert_array_equal(x[~known], want[~known])
    big = np.full((1, 1), 1e300)
    assert [float(x[0, 0]) for x in hg.matmul(big, -big, result="enclosure")] == [
        -np.inf,
        -np.finfo(float).max,
    ]


def test_narrow_and_mixed_operands():
    a, b = np.array([[1 / 3, 2.0]], np.float16), np.array([[1 / 7], [3.0]], np.float16)
    check_pair(
        [x.astype(np.float32) for x in hg.matmul(a, b, result="pair")],
        a.astype("f4"),
        b.astype("f4"),
    )
    high, low = hg.matmul(a.astype("f4"), b.astype("f8") / 3, result="pair")
    check_pair((high, low), a.astype("f8"), b.astype("f8") / 3)


def test_tensors_have_the_bits_of_arrays(make_pair):
    torch = pytest.importorskip("torch")
    for dtype in DTYPES:
        a, b = make_pair("nearly_cancelling", 6, 30, 5, dtype)
        for kind in ("pair", "enclosure"):
            found = hg.matmul(torch.from_numpy(a), torch.from_numpy(b), result=kind)
            for x, y in zip(found, hg.matmul(a, b, result=kind), strict=True):
                np.testing.assert_array_equal(x.numpy(), y)


def test_what_does_not_go_with_it():
    a = np.ones((2, 2))
    for kind in (
        "interval",
        "int64",
        None,
        ["pair"],
        np.array([1, 2]),
        np.array("pair"),
    ):
        with pytest.raises(hg.PlanError, match='expected "array", "pair", "enclosure"'):
            hg.matmul(a, a, result=kind)
    others = {"accuracy": 1e-3, "out": a.copy(), "plan": hg.make_plan(a, a)}
    for name, value in others.items():
        with pytest.raises(hg.PlanError, match=f"leave out {name}"):
            hg.matmul(a, a, result="pair", **{name: value})
    with pytest.raises(hg.PlanError, match="int64"):
        hg.matmul(a.astype(int), a.astype(int), result="enclosure")
    assert len(hg.matmul(a, a, result="pair", accuracy="correct")) == 2
    prepared = hg.prepare(a, "left", plan=hg.make_plan(a, a, accuracy="correct"))
    with pytest.raises(hg.PlanError, match="pass the array itself"):
        hg.matmul(prepared, a, result="pair")
