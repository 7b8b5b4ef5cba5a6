"""Results in a narrower dtype than the product's: "correct" is rounded once, numbers
are kept, and reports say what the others keep.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.formats import BF16, FP16, FP32
from tests import thread_modes
from tests.exact_values import exact_entries, rounded_to_format

FORMATS = {"float16": FP16, "bfloat16": BF16, "float32": FP32}
SOURCES = ["float16", "bfloat16", "float32", "float64"]
PAIRS = [
    (source, out)
    for source, out in product(SOURCES, FORMATS)
    if out != "float32" or source == "float64"
]
NUMBERS = [1e-2, 1e-5, 3e-7, 1e-12, 1e-20, 0.0]


class NumpyArrays:
    """Arrays of NumPy, of bfloat16 where ml_dtypes is installed."""

    def dtype(self, name):
        if name == "bfloat16":
            return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
        return np.dtype(name)

    def array(self, x, name):
        return np.asarray(x).astype(self.dtype(name))

    def numbers(self, x):
        return np.asarray(x).astype(complex if x.dtype.kind == "c" else float)

    def empty(self, shape, name):
        return np.empty(shape, self.dtype(name))


class Tensors:
    """Tensors of PyTorch."""

    def __init__(self, torch):
        self.torch = torch

    def dtype(self, name):
        return getattr(self.torch, name)

    def array(self, x, name):
        wide = self.torch.from_numpy(np.array(x))
        # PyTorch rounds float64 to float32 on the way to 16 bits.
        assert name not in ("float16", "bfloat16") or wide.dtype is self.torch.float32
        return wide.to(self.dtype(name))

    def numbers(self, x):
        return x.to(
            self.torch.complex128 if x.is_complex() else self.torch.float64
        ).numpy()

    def empty(self, shape, name):
        return self.torch.empty(shape, dtype=self.dtype(name))


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    if request.param == "numpy":
        return NumpyArrays()
    return Tensors(pytest.importorskip("torch"))


def rounded(exact, out, shape):
    """Exact entries rounded once to the dtype of this name."""
    fmt = FORMATS[out]
    entries = [rounded_to_format(x, fmt.t, fmt.emin, fmt.emax) for x in exact]
    return np.array(entries).reshape(shape)


def hostile(source, out):
    """Midpoints of the narrow dtype and numbers next to them, from subnormal ones to
    the largest, as the products of rows [x, y, z] by columns of 1 and -1.
    """
    fmt = FORMATS[out]
    of_source = {"float16": FP16, "bfloat16": BF16, "float32": FP32}.get(source)
    lowest = -1074 if of_source is None else of_source.min_exponent
    highest = 1023 if of_source is None else of_source.emax
    rng = np.random.default_rng([fmt.t, abs(lowest)])
    exponents = [fmt.emin - fmt.t + 1, fmt.emin - 3, fmt.emin, 0, 5, fmt.emax]
    rows = []
    for exponent in exponents:
        # The unit of the last place, and an odd number of its halves.
        unit = max(exponent, fmt.emin) - fmt.t + 1
        for _ in range(6):
            top = exponent - unit
            halves = 2 * int(rng.integers(2**top, 2 ** (top + 1))) + 1
            if exponent == fmt.emax:
                halves = 2 ** (fmt.t + 1) - 1 - 2 * int(rng.integers(0, 2))
            # Both parts are numbers of a source of few bits.
            high = halves >> 6 << 6
            x = Fraction(high) * Fraction(2) ** (unit - 1)
            y = Fraction(halves - high) * Fraction(2) ** (unit - 1)
            tiny = Fraction(2) ** max(lowest, unit - 1 - int(rng.integers(20, 300)))
            rows += [(x, y, Fraction(0)), (x, y, tiny), (x, y, -tiny), (-x, -y, tiny)]
    rows += [(Fraction(2) ** lowest, Fraction(0), Fraction(0))]
    rows += [(Fraction(1), Fraction(-1), -(Fraction(2) ** lowest))]
    rows += [(Fraction(1), Fraction(-1), Fraction(0))]
    limit = Fraction(2) ** min(highest + 1, 1023)
    fitting = [row for row in rows if all(abs(v) < limit for v in row)]
    a = np.array([[float(v) for v in row] for row in fitting])
    b = np.array([[1.0, -1.0, 0.5], [1.0, -1.0, 0.5], [1.0, -1.0, -1.0]])
    return a, b


def operands(library, source, out):
    """A and B of `hostile` in the library, and as float64 with the same numbers."""
    library.dtype(out)  # the test is skipped where there is none
    a, b = hostile(source, out)
    dtype = np.float64 if source == "float64" else np.float32
    x, y = (library.array(v.astype(dtype), source) for v in (a, b))
    return x, y, library.numbers(x), library.numbers(y)


def same_numbers(x, y):
    """Equal values, and equal signs of zeros."""
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


@pytest.mark.parametrize(("source", "out"), PAIRS)
def test_correct_is_the_exact_value_rounded_once(source, out, library):
    a, b, x, y = operands(library, source, out)
    want = rounded(exact_entries(x, y), out, (len(x), 3))
    options = {"accuracy": "correct", "out_dtype": library.dtype(out)}
    for _ in range(2):  # the second call repeats the first
        c, report = hg.matmul(a, b, return_report=True, **options)
        assert c.dtype == library.dtype(out)
        same_numbers(library.numbers(c), want)
        assert report.correct
        assert report.bound == 0.0
        assert f"rounded once to {out}" in report.reason
    target = library.empty(want.shape, out)
    assert hg.matmul(a, b, out=target, **options) is target
    same_numbers(library.numbers(target), want)
    prepared = hg.prepare(b, "right", accuracy="correct")
    c = hg.matmul(a, prepared, out_dtype=library.dtype(out))
    same_numbers(library.numbers(c), want)
    for kind in (hg.Relative(0.01), 0.0):
        c = hg.matmul(a, b, accuracy=kind, out_dtype=out)
        same_numbers(library.numbers(c), want)


def test_two_roundings_would_err():
    rng = np.random.default_rng(1)
    a, b = hostile("float64", "float16")
    exact = exact_entries(a, b)
    want = rounded(exact, "float16", (len(a), 3))
    with np.errstate(over="ignore"):
        twice = hg.matmul(a, b, accuracy="correct").astype(np.float16)
    assert np.count_nonzero(twice != want) > 50
    c = rng.standard_normal((4, 4))
    same_numbers(hg.matmul(c, c, out_dtype="float64"), hg.matmul(c, c))


SCALARS = [
    (1.0, 1.0),
    (-1.0, 0.5),
    (0.3, -1.7),
    (1.0, 0.0),
    (-0.75, 0.0),
    (2.0**-70, 3.0),
    (1e-40, 1.0),
    (0.0, -1.0),
    (0.0, 0.3),
]


@pytest.mark.parametrize(("source", "out"), PAIRS)
@pytest.mark.parametrize(("alpha", "beta"), SCALARS)
def test_correct_sums_are_rounded_once(source, out, alpha, beta, library):
    a, b, x, y = operands(library, source, out)
    # C cancels most of A B, or is as hostile as A.
    c = np.concatenate([-x[:, :1], x[:, 1:2], x[:, :1]], axis=1)
    name = source if source == "float64" else "float32"
    addend = library.array(c.astype(name), source)
    exact = [
        Fraction(alpha) * v + Fraction(beta) * Fraction(float(w))
        for v, w in zip(exact_entries(x, y), c.ravel(), strict=True)
    ]
    want = rounded(exact, out, c.shape)
    if alpha == 0.0:
        is_zero = c == 0
        want[is_zero] = np.copysign(0.0, beta * c[is_zero])
    options = {"alpha": alpha, "beta": beta, "accuracy": "correct", "out_dtype": out}
    for _ in range(2):
        d, report = hg.gemm(a, b, addend, return_report=True, **options)
        assert d.dtype == library.dtype(out)
        same_numbers(library.numbers(d), want)
        assert report.correct
    target = library.array(want.astype(np.float32), out)
    assert hg.gemm(a, b, addend, out=target, **options) is target
    same_numbers(library.numbers(target), want)
    d = hg.gemm(
        a,
        hg.prepare(b, "right", accuracy="correct"),
        addend,
        **{**options, "accuracy": None},
    )
    same_numbers(library.numbers(d), want)


def test_sums_whose_words_no_float64_holds_are_rounded_once():
    a = np.array([[2.0**1000, 2.0**-1000]])
    b = np.array([[2.0**-1000], [2.0**-60]])
    c = np.array([[2.0**-11]])
    alpha = 1.0 + 2.0**-52
    exact = Fraction(alpha) * exact_entries(a, b)[0] + Fraction(float(c[0, 0]))
    d = hg.gemm(a, b, c, alpha=alpha, beta=1.0, accuracy="correct", out_dtype="float16")
    same_numbers(d.astype(float), rounded([exact], "float16", (1, 1)))
    assert d[0, 0] == np.float16(1.0 + 2.0**-10)


@pytest.mark.parametrize(("source", "out"), PAIRS)
def test_numbers_are_kept_with_the_roundoff_of_the_narrow_dtype(source, out, library):
    library.dtype(out)
    rng = np.random.default_rng(2)
    name = source if source == "float64" else "float32"
    x, y, c = (
        (rng.standard_normal(s) * 2.0 ** rng.integers(-5, 5, s)).astype(name)
        for s in ((5, 40), (40, 6), (5, 6))
    )
    a, b, addend = (library.array(v, source) for v in (x, y, c))
    x, y, c = map(library.numbers, (a, b, addend))
    fmt = FORMATS[out]
    # Half of the smallest subnormal number of each dtype.
    least = Fraction(2) ** (fmt.min_exponent - 1) + Fraction(2) ** -150
    exact, size = exact_entries(x, y), exact_entries(abs(x), abs(y))
    for r in (*NUMBERS, None, "fp32", "fp64"):
        d, report = hg.matmul(a, b, accuracy=r, out_dtype=out, return_report=True)
        assert d.dtype == library.dtype(out)
        bound = Fraction(report.bound) if isinstance(r, str | None) else Fraction(r)
        assert report.correct == (report.bound == 0.0)
        for z, v, w in zip(library.numbers(d).ravel(), exact, size, strict=True):
            assert abs(Fraction(z) - v) <= bound * w + Fraction(fmt.u) * abs(v) + least
        again = hg.matmul(a, b, accuracy=r, out_dtype=out)
        same_numbers(library.numbers(again), library.numbers(d))

        # The same of a sum.
        options = {"alpha": 0.3, "beta": -1.5, "accuracy": r, "out_dtype": out}
        d, report = hg.gemm(a, b, addend, return_report=True, **options)
        assert d.dtype == library.dtype(out)
        bound = Fraction(report.bound) if isinstance(r, str | None) else Fraction(r)
        for z, v, w, q in zip(
            library.numbers(d).ravel(), exact, size, c.ravel(), strict=True
        ):
            s = Fraction(0.3) * v - Fraction(1.5) * Fraction(float(q))
            m = Fraction(0.3) * w + Fraction(1.5) * abs(Fraction(float(q)))
            assert abs(Fraction(z) - s) <= bound * m + Fraction(fmt.u) * abs(s) + least


def test_reports_state_the_second_rounding():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 8, 8)).astype(np.float32)
    for options in ({}, {"scheme": hg.Ozaki1("fp64", 2)}, {"scheme": "native"}):
        _, plain = hg.matmul(a, b, return_report=True, **options)
        for _ in range(2):
            _, report = hg.matmul(
                a, b, return_report=True, out_dtype="float16", **options
            )
            assert report.bound == (plain.bound + FP32.u) * (1.0 + FP16.u)
            assert not report.correct
            assert "rounded a second time, to float16" in report.reason
    mode = hg.Ozaki1("fp64", mode="correct")
    _, report = hg.matmul(a, b, scheme=mode, return_report=True, out_dtype="float16")
    assert report.correct


def test_plans_and_their_prepared_operands():
    a, b = hostile("float32", "float16")
    a, b = a.astype(np.float32), b.astype(np.float32)
    want = rounded(exact_entries(a, b), "float16", (len(a), 3))
    plan = hg.make_plan(a, b, accuracy="correct")
    same_numbers(hg.matmul(a, b, plan=plan, out_dtype="float16"), want)
    left = hg.prepare(a, "left", plan=plan)
    same_numbers(hg.matmul(left, b, out_dtype="float16"), want)
    plan = hg.make_plan(a, b, accuracy=1e-3)
    with np.errstate(over="ignore"):
        twice = hg.matmul(a, b, plan=plan).astype(np.float16)
    same_numbers(hg.matmul(a, b, plan=plan, out_dtype="float16"), twice)


@pytest.mark.parametrize("out", ["float16", "bfloat16"])
@pytest.mark.parametrize("accuracy", ["correct", None, 1e-3])
def test_special_values_and_empty_products(library, out, accuracy):
    library.dtype(out)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, 60000.0, 3.3e38]
    a = np.array([[v, w] for v in special for w in special], np.float32)
    b = np.array([[1.0, -1.0], [1.0, 2.0]], np.float32)
    x, y = library.array(a, "float32"), library.array(b, "float32")
    with np.errstate(all="ignore"):
        want = hg.matmul(a, b, accuracy="correct")
        c = library.numbers(hg.matmul(x, y, accuracy=accuracy, out_dtype=out))
        d = library.numbers(
            hg.gemm(x, y, x, alpha=1.0, beta=0.0, accuracy=accuracy, out_dtype=out)
        )
    for z in (c, d):
        np.testing.assert_array_equal(np.isnan(z), np.isnan(want))
        is_infinite = np.isinf(want)
        np.testing.assert_array_equal(z[is_infinite], want[is_infinite])
    empty = hg.matmul(x[:, :0], y[:0], accuracy=accuracy, out_dtype=out)
    assert empty.dtype == library.dtype(out)
    same_numbers(library.numbers(empty), np.zeros((64, 2)))
    vector = hg.matmul(x[5], y[:, 0], accuracy=accuracy, out_dtype=out)
    assert vector.dtype == library.dtype(out)
    for z in (y, y[:, :0]):
        d = hg.gemm(y, z, alpha=0.0, accuracy="correct", out_dtype=out)
        assert d.dtype == library.dtype(out)
        same_numbers(library.numbers(d), np.zeros((2, z.shape[1])))
    d = hg.gemm(y, y[:, :0], y[:, :0], beta=1.0, accuracy="correct", out_dtype=out)
    assert d.shape == (2, 0)
    for alpha, beta in ((np.inf, 1.0), (np.nan, 1.0), (1.0, np.inf)):
        d = hg.gemm(
            y, y, y, alpha=alpha, beta=beta, accuracy="correct", out_dtype="float16"
        )
        assert not np.isfinite(library.numbers(d)).any()


def test_complex_results_are_rounded_by_component(library):
    rng = np.random.default_rng(4)
    a, b, c = (
        rng.standard_normal(s) + 1j * rng.standard_normal(s)
        for s in ((3, 5), (5, 2), (3, 2))
    )
    x, y, z = (library.array(v, "complex128") for v in (a, b, c))
    exact = exact_entries(a, b)
    want = rounded(exact, "float32", (3, 4)).view(complex)
    d = hg.matmul(x, y, accuracy="correct", out_dtype="complex64")
    assert d.dtype == library.dtype("complex64")
    same_numbers(library.numbers(d).view(float), want.view(float))
    with pytest.raises(TypeError, match="out_dtype=float32 is real, and the product"):
        hg.matmul(x, y, out_dtype="float32")
    d = hg.gemm(x, y, z, alpha=1j, beta=2.0, accuracy="correct", out_dtype="complex64")
    parts = iter(exact)
    expected = []
    for w in c.ravel():
        re, im = next(parts), next(parts)
        expected += [2 * Fraction(w.real) - im, 2 * Fraction(w.imag) + re]
    want = rounded(expected, "float32", (3, 4))
    same_numbers(library.numbers(d).view(float), want)


def test_wider_dtypes_are_those_of_the_product(library, assert_same_bits):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((6, 6)).astype(np.float32) for _ in range(2))
    for source in ("float16", "bfloat16", "float32"):
        x, y = library.array(a, source), library.array(b, source)
        p, q = library.numbers(x), library.numbers(y)
        for accuracy in ("correct", 1e-12):
            c = hg.matmul(x, y, accuracy=accuracy, out_dtype="float64")
            assert_same_bits(library.numbers(c), hg.matmul(p, q, accuracy=accuracy))
            d = hg.gemm(
                x, y, x, alpha=0.3, beta=2.0, accuracy=accuracy, out_dtype="float64"
            )
            want = hg.gemm(p, q, p, alpha=0.3, beta=2.0, accuracy=accuracy)
            assert_same_bits(library.numbers(d), want)


def test_mixed_operands(library):
    a, b = hostile("float32", "bfloat16")
    x = library.array(a.astype(np.float32), "float32")
    y = library.array(b.astype(np.float32), "bfloat16")
    exact = exact_entries(library.numbers(x), library.numbers(y))
    c = hg.matmul(x, y, accuracy="correct", out_dtype="bfloat16")
    same_numbers(library.numbers(c), rounded(exact, "bfloat16", (len(a), 3)))


def test_errors(library):
    x = library.array(np.ones((2, 2), np.float32), "float16")
    for wrong in ("int8", "float8", 3, np.int32):
        with pytest.raises(
            TypeError, match=r"out_dtype=.*: expected float16, bfloat16"
        ):
            hg.matmul(x, x, out_dtype=wrong)
        with pytest.raises(
            TypeError, match=r"out_dtype=.*: expected float16, bfloat16"
        ):
            hg.gemm(x, x, out_dtype=wrong)
    for result in ("pair", "enclosure"):
        with pytest.raises(hg.PlanError, match="leave out out_dtype"):
            hg.matmul(x, x, result=result, out_dtype="float16")
    with pytest.raises(hg.PlanError, match="rounding to fp16 alone errs"):
        hg.matmul(x, x, accuracy=hg.Relative(1e-5), out_dtype="float16")
    with pytest.raises(TypeError, match="the product of integers is int64"):
        hg.matmul([[1]], [[2]], out_dtype="float32")
    for out, name in (("bfloat16", "float16"), ("float16", "bfloat16")):
        target = library.empty((2, 2), name)
        text = f"out has dtype .*{name}; the result has dtype {out}"
        with pytest.raises(TypeError, match=text):
            hg.matmul(x, x, out=target, out_dtype=out)
        with pytest.raises(TypeError, match=text):
            hg.gemm(x, x, out=target, out_dtype=out)


def test_numpy_has_no_bfloat16_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match="NumPy has no bfloat16 without ml_dtypes"):
        hg.matmul(np.ones((2, 2)), np.ones((2, 2)), out_dtype="bfloat16")


def _calls(a, b, out):
    """Products and sums of these operands in the narrow dtype."""
    results = []
    for accuracy in ("correct", 0.01, None):
        options = {"accuracy": accuracy, "out_dtype": out}
        for _ in range(2):
            results.append(hg.matmul(a, b, **options))
            results.append(hg.gemm(a, b, a, alpha=0.5, beta=-1.5, **options))
    return results


@thread_modes.needs_known_register
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
def test_modes_of_the_thread_change_nothing(library, out):
    library.dtype(out)
    machine = thread_modes.MACHINE
    with np.errstate(all="ignore"):
        a, b, *_ = operands(library, "float64", out)
        want = _calls(a, b, out)
        found = []
        for flags in thread_modes.MODES[machine]:
            with thread_modes.flushing(flags):
                found.append(_calls(a, b, out))
        for mode in thread_modes.ROUNDINGS[machine]:
            with thread_modes.rounding(mode):
                found.append(_calls(a, b, out))
    for results in found:
        for x, y in zip(results, want, strict=True):
            same_numbers(library.numbers(x), library.numbers(y))
