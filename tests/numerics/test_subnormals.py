"""Threads that flush subnormal numbers or round otherwise: results are those of other
threads, and the mode stays.
"""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.numerics import subnormals
from hifigemm.numerics.double_double import cut, error_bound, is_exact, sums_of
from hifigemm.testing.reference import meets_promise
from tests import hard_matrices as gen
from tests.thread_modes import (
    MACHINE,
    MODES,
    ROUNDINGS,
    WORD,
    control,
    flushing,
    in_thread,
    needs_known_register,
    rounding,
)

ROOT = Path(hg.__file__).parent
pytestmark = needs_known_register


def operands(dtype):
    """Rows of A and columns of B in all ranges, so that products and operands are
    subnormal.
    """
    rng, real = np.random.default_rng(7), np.finfo(dtype)
    a = gen.full_range(rng, (6, 8), dtype=real.dtype)
    b = gen.full_range(rng, (8, 5), dtype=real.dtype)
    a[::2], b[:, ::2] = (
        gen.subnormal(rng, a[::2].shape, real.dtype),
        gen.uniform(rng, b[:, ::2].shape, dtype=real.dtype),
    )
    a[1], b[:, 1] = real.smallest_normal, 0.25
    return (
        (a + 1j * a[::-1], b - 1j * b[::-1]) if np.dtype(dtype).kind == "c" else (a, b)
    )


CALLS = {
    "correct": lambda a, b: hg.matmul(a, b, accuracy="correct"),
    "ozaki1": lambda a, b: hg.matmul(a, b, scheme="ozaki1", accuracy=1e-14),
    "ozaki2": lambda a, b: hg.matmul(
        a, b, scheme=hg.Ozaki2(num_moduli=14, scaling="fast")
    ),
    "bound": lambda a, b: np.float64(
        hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=2), return_report=True)[1].bound
    ),
    "gemm": lambda a, b: hg.gemm(
        a, b, a[:, :5], alpha=5e-324, beta=2.0**30, accuracy="correct"
    ),
    "scalars": lambda a, b: hg.gemm(
        a, b, a[:, :5], alpha=3.0, beta=1e-310, accuracy="correct"
    ),
    "prepared": lambda a, b: hg.matmul(
        hg.prepare(a, "left", plan=(p := hg.make_plan(a, b, scheme="ozaki1"))),
        b,
        plan=p,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("call", CALLS)
def test_results_are_those_of_other_threads_and_the_mode_stays(
    assert_same_bits, call, dtype
):
    a, b = operands(dtype)
    want = CALLS[call](a, b)

    def found():
        results = []
        for flags in MODES[MACHINE]:
            with flushing(flags):
                results += [CALLS[call](a, b), CALLS[call](a, b)]
        return results

    for result in in_thread(found):
        assert_same_bits(result, want)
    assert control() == 0


@pytest.mark.parametrize(
    "scheme",
    [
        "auto",
        hg.Multiword("fp16"),
        hg.Corrected("tf32"),
        hg.Native(),
        hg.Native("fp64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_native_products_and_words_keep_their_bounds(dtype, scheme):
    if dtype != "float32" and isinstance(scheme, hg.Corrected):
        return
    a, b = operands(dtype)
    with flushing(MODES[MACHINE][-1]):
        c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
        native = hg.matmul(a, b)
    assert meets_promise(c, a, b, report.bound).all()
    assert meets_promise(native, a, b, 32 * float(np.finfo(dtype).eps)).all()


def test_ordinary_native_products_have_the_bits_of_the_library(assert_same_bits):
    a, b = np.random.default_rng(3).standard_normal((2, 40, 40))
    for x, y in ((a, b), (a.astype(np.float32), b.astype(np.float32))):
        with flushing(MODES[MACHINE][-1]):
            found = hg.matmul(x, y)
        assert_same_bits(found, x @ y)


@pytest.mark.parametrize("flags", MODES.get(MACHINE, ()))
def test_the_mode_is_restored_after_an_error(flags):
    ones = np.ones((2, 2))
    with flushing(flags):
        for call in (hg.matmul, hg.gemm, hg.make_plan):
            with pytest.raises(ValueError, match="inner dimensions"):
                call(ones, np.ones((3, 2)))
        with pytest.raises(hg.AccuracyError, match="errs by up to"):
            hg.matmul(ones, ones, scheme="native", accuracy=1e-20)


def hard_products():
    """Products near halfway between two floats, with words of all signs, and exact
    zeros.
    """
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 12, 12))
    a[0], a[1, ::2], a[1, 1::2] = 0.0, 1.0, -1.0
    a[2], b[:, 2] = 2.0 ** -np.arange(0, 48, 4), 1.0 + 2.0**-52
    b[:, 1] = 3.0
    return a, b


ROUNDED_CALLS = {
    **{name: call for name, call in CALLS.items() if name != "bound"},
    "ozaki2 by default": lambda a, b: hg.matmul(a, b, scheme="ozaki2"),
    "integers": lambda a, b: hg.matmul(
        np.rint(8 * a).astype(int), np.rint(8 * b).astype(int), result="int64"
    ),
    "relative": lambda a, b: hg.matmul(a, b, accuracy=hg.Relative(1e-6)),
    "pair": lambda a, b: np.stack(hg.matmul(a, b, result="pair")),
    "enclosure": lambda a, b: np.stack(hg.matmul(a, b, result="enclosure")),
    "other scalars": lambda a, b: hg.gemm(
        a, b, a[:, : b.shape[1]], alpha=0.3, beta=-0.7, scheme="ozaki1"
    ),
    "a large scalar": lambda a, b: hg.gemm(
        a, b, 0 * a[:, : b.shape[1]], beta=1e305, scheme="ozaki1"
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("call", ROUNDED_CALLS)
def test_results_are_those_of_threads_that_round_to_nearest(
    assert_same_bits, call, dtype
):
    a, b = (x[:, :8].astype(dtype) for x in hard_products())
    a, b = (
        (a, b[:8, :5])
        if a.dtype.kind != "c"
        else (a + 1j * a[::-1], b[:8, :5] - 1j * b[:8, 2:7])
    )
    if call == "integers" and a.dtype.kind == "c":
        return
    want = ROUNDED_CALLS[call](a, b)

    def results():
        values = []
        for mode in ROUNDINGS[MACHINE]:
            with rounding(mode):
                values += [ROUNDED_CALLS[call](a, b), ROUNDED_CALLS[call](a, b)]
        return values

    for result in in_thread(results):
        assert_same_bits(result, want)


def test_bounds_are_those_of_threads_that_round_to_nearest():
    # Magnitudes are added in another order there, which moves the last digits.
    a, b = (x[:8, :8] for x in hard_products())
    for dtype in ("float32", "float64", "complex128"):
        x, y = a.astype(dtype), b.astype(dtype)
        want = CALLS["bound"](x, y)
        for mode in ROUNDINGS[MACHINE]:
            with rounding(mode):
                found = CALLS["bound"](x, y)
            assert abs(found - want) <= 1e-14 * want


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize(
    "scheme",
    [
        "auto",
        hg.Multiword("fp16"),
        hg.Corrected("tf32"),
        hg.Native(),
        hg.Native("fp64"),
    ],
    ids=str,
)
def test_rounded_products_keep_their_bounds_in_every_rounding_mode(scheme, mode):
    rng = np.random.default_rng(6)
    a, b = rng.uniform(0.5, 1.0, (2, 40, 40)).astype("float32")
    with rounding(ROUNDINGS[MACHINE][mode]):
        c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    assert meets_promise(c, a, b, report.bound).all()


def test_repeated_products_are_those_of_threads_that_round_to_nearest(assert_same_bits):
    """The first call of a kind leaves a program; the later ones run in another mode."""
    for a, b in (hard_products(), (x.astype("float32") for x in hard_products())):
        for options in (
            {},
            {"accuracy": "correct"},
            {"scheme": "ozaki2"},
            {"accuracy": 1e-20},
        ):
            want = [hg.matmul(a, b, **options) for _ in range(2)]
            for mode in ROUNDINGS[MACHINE]:
                with rounding(mode):
                    result = hg.matmul(a, b, **options)
                if options:
                    assert_same_bits(result, want[0])
                assert meets_promise(
                    result, a, b, 4 * float(np.finfo(a.dtype).eps)
                ).all()


def test_the_rounding_mode_and_the_flags_of_the_thread_come_back():
    library, upward = ctypes.CDLL("libm.so.6"), ROUNDINGS[MACHINE][1]

    def modes():
        library.fesetround(upward)
        with flushing(MODES[MACHINE][-1]), subnormals.ieee_arithmetic():
            inside = library.fegetround(), control()
        return inside, library.fegetround()

    assert in_thread(modes) == ((0, 0), upward)


@pytest.mark.parametrize("mode", range(3))
def test_two_sums_tell_every_rounding_mode(mode):
    assert subnormals.rounds_to_nearest()
    assert subnormals.is_ieee()
    with rounding(ROUNDINGS[MACHINE][mode]):
        assert not subnormals.rounds_to_nearest()
        assert not subnormals.is_ieee()
        assert not subnormals.flushes_subnormals()


def test_no_accuracy_is_kept_where_the_rounding_mode_cannot_be_changed(monkeypatch):
    monkeypatch.setattr(subnormals, "_c_library", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    a = np.eye(2)
    hg.matmul(a, a)
    for mode in ROUNDINGS[MACHINE]:
        for call in (hg.matmul, hg.gemm, hg.make_plan):
            with (
                rounding(mode),
                pytest.raises(
                    hg.AccuracyError, match=f"does not round to nearest.*{MACHINE}"
                ),
            ):
                call(a, a)


def test_a_rounding_mode_that_does_not_go_is_left_as_it_was(monkeypatch):
    upward = ROUNDINGS[MACHINE][1]
    monkeypatch.setattr(subnormals, "_TO_NEAREST", upward)
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        rounding(upward),
        pytest.raises(hg.AccuracyError, match="does not round to nearest"),
    ):
        hg.matmul(np.eye(2), np.eye(2))


def test_nothing_is_changed_in_a_thread_that_does_not_flush(monkeypatch):
    monkeypatch.setattr(
        subnormals, "_set_ieee_mode", lambda: pytest.fail("the mode was changed")
    )
    a = np.ones((3, 3))
    for _ in range(2):
        hg.matmul(a, a)
        hg.gemm(a, a, accuracy="correct")


def test_no_accuracy_is_kept_where_the_mode_cannot_be_changed(monkeypatch):
    monkeypatch.setattr(subnormals, "_CONTROL", {})
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        flushing(MODES[MACHINE][0]),
        pytest.raises(hg.AccuracyError, match=f"flushes subnormal.*{MACHINE}"),
    ):
        hg.matmul(np.eye(2), np.eye(2))


def test_a_flag_that_does_not_go_is_left_as_it_was(monkeypatch):
    place = WORD[MACHINE], 0
    monkeypatch.setattr(subnormals, "_CONTROL", {("linux", MACHINE): place})
    monkeypatch.setitem(sys.modules, "torch", None)
    with (
        flushing(MODES[MACHINE][-1]),
        pytest.raises(hg.AccuracyError, match="flushes subnormal"),
    ):
        hg.matmul(np.eye(2), np.eye(2))


def test_torch_lifts_its_own_mode_on_other_systems(
    torch, monkeypatch, assert_same_bits
):
    monkeypatch.setattr(subnormals, "_CONTROL", {})
    a, b = operands("float64")
    want = hg.matmul(a, b, accuracy="correct")
    assert torch.set_flush_denormal(True)
    try:
        assert_same_bits(hg.matmul(a, b, accuracy="correct"), want)
        assert control() == max(MODES[MACHINE])
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_and_its_tensors_are_no_exception(torch, assert_same_bits, dtype):
    a, b = map(torch.from_numpy, operands(dtype))
    want = [call(a, b) for call in CALLS.values()]
    assert torch.set_flush_denormal(True)
    try:
        found = [call(a, b) for call in CALLS.values()]
        assert control() == max(MODES[MACHINE])
    finally:
        torch.set_flush_denormal(False)
    for x, y in zip(found, want, strict=True):
        assert_same_bits(x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_callbacks_of_jax_are_no_exception(assert_same_bits, dtype):
    jax = pytest.importorskip("jax")
    a, b = operands(dtype)
    want, modes = [call(a, b) for call in CALLS.values()], []

    def callback(x):
        modes.append(control())
        found = [call(a, b) for call in CALLS.values()]
        modes.append(control())
        for result, other in zip(found, want, strict=True):
            assert_same_bits(result, other)
        return x

    shape = jax.ShapeDtypeStruct((), np.float32)
    jax.block_until_ready(
        jax.jit(lambda x: jax.pure_callback(callback, shape, x))(np.float32(1.0))
    )
    assert modes[0] == modes[1] != 0


def test_products_of_subnormal_numbers_stay_in_the_calling_thread(monkeypatch):
    monkeypatch.setattr(subnormals, "_flushed", FakeVariable())
    tiny = np.float64([[2.0**-1022]])
    one = np.ones((1, 1))
    huge = np.float64([[2.0**1000]])
    edge = np.float64([[2.0**-459]])
    assert not subnormals.others_may_differ(one, tiny * 2.0**104)
    assert subnormals.others_may_differ(one, tiny * 2.0**103)
    assert not subnormals.others_may_differ(edge, edge)
    assert subnormals.others_may_differ(edge, edge / 2)
    assert subnormals.others_may_differ(tiny / 2, huge)
    assert not subnormals.others_may_differ(tiny, huge)
    assert not subnormals.others_may_differ(0 * one, one)
    single = np.float32([[2.0**-80]])
    assert not subnormals.others_may_differ(single, one.astype(np.float32))
    assert subnormals.others_may_differ(single / 2, one.astype(np.float32))
    assert subnormals.others_may_differ(one + 0j, one + 2.0**-1000 * 1j)


def test_products_in_a_thread_that_rounded_otherwise_stay_in_it():
    one = np.ones((1, 1))
    assert not subnormals.others_may_differ(one, one)
    with rounding(ROUNDINGS[MACHINE][0]), subnormals.ieee_arithmetic():
        assert subnormals.others_may_differ(one, one)
        with subnormals.ieee_arithmetic():
            assert subnormals.others_may_differ(one, one)
    assert not subnormals.others_may_differ(one, one)


def at_the_edges_of_the_range(rng, shape, exponent):
    """Rows whose largest entries, the first ones, are just below 2**exponent; the
    others reach down to nothing.
    """
    x = np.ldexp(rng.uniform(-1.0, 1.0, shape), rng.integers(-1074, exponent, shape))
    x[rng.random(shape) < 0.2] = 0.0
    x[:, 0] = np.ldexp(rng.uniform(0.5, 1.0, shape[0]), exponent)
    return x


@pytest.mark.parametrize(("count", "fewer"), [(2, False), (3, False), (3, True)])
@pytest.mark.parametrize(
    ("left", "right"),
    [(-450, -450), (-449, -440), (-450, 450), (450, -450), (-300, -420)],
)
def test_double_double_sums_keep_their_bound_in_threads_that_flush(
    count, fewer, left, right
):
    rng, moved = np.random.default_rng(5), 0
    for k in (2, 2, 2, 3, 5, 40):
        a = at_the_edges_of_the_range(rng, (4, k), left)
        # the largest terms are no products of both tops
        b = at_the_edges_of_the_range(rng, (3, k), right)[:, ::-1].T
        rows = cut(a[None], 2, count, np.empty((2 * count - 2) * a.size), fewer=fewer)
        columns = cut(
            b[None], 1, count, np.empty((2 * count - 2) * b.size), fewer=fewer
        )
        sure = is_exact(rows, columns).ravel()
        err = error_bound(
            [(rows.top, columns.top)], [slice(0, k)], count, fewer=fewer
        ).ravel()

        def multiply(x, y):
            nonlocal moved
            with flushing(MODES[MACHINE][-1]):
                product = np.matmul(x, y)
            moved += (product != np.matmul(x, y)).any()
            return product

        hi, lo = (part.ravel() for part in sums_of(rows, columns, multiply))
        pairs = [(row, column) for row in a for column in b.T]
        for entry, (row, column) in enumerate(pairs):
            want = sum(
                Fraction(x) * Fraction(y)
                for x, y in zip(row.tolist(), column.tolist(), strict=True)
            )
            error = abs(Fraction(float(hi[entry])) + Fraction(float(lo[entry])) - want)
            assert error <= Fraction(float(err[entry]))
            assert error == 0 or not sure[entry]
    assert moved


class FakeVariable:
    """A context variable that is always set."""

    def get(self):
        return True


def test_threads_of_a_blas_that_flush_change_no_promise():
    """A library that was loaded before NumPy lets the process flush, and with it the
    threads of the BLAS.
    """
    code = f"""
import ctypes
library, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 64)()
library.fegetenv(environment)
environment[{WORD[MACHINE]}] |= {max(MODES[MACHINE])}
library.fesetenv(environment)
import numpy as np
import hifigemm as hg
a, b = np.full((300, 300), 2.0**-1040), np.full((300, 300), 2.0**500)
c, report = hg.matmul(a, b, return_report=True)
assert report.native and (c == 300 * 2.0**-540).all(), c
environment[{WORD[MACHINE]}] &= ~{max(MODES[MACHINE])}
library.fesetenv(environment)
print((np.matmul(a, b) == 0).any())
"""
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "False":
        pytest.skip("no thread of the BLAS flushes")


DRIFTS = (-1.0, -(2.0**-80)), (1.0, 2.0**-80), (1.5, -(2.0**-80))
"""A first term, and another that moves sums by two units roundoff of 1 each time:
downward, upward, towards zero.
"""


@pytest.mark.parametrize(
    "mode",
    [
        0,
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
    ],
)
def test_threads_of_a_blas_that_round_otherwise_change_no_promise(mode):
    """A mode that was set before NumPy was loaded is that of the threads of the BLAS
    for good.
    """
    code = f"""
import ctypes
library = ctypes.CDLL("libm.so.6")
library.fesetround({ROUNDINGS[MACHINE][mode]})
import numpy as np
import hifigemm as hg
rng = np.random.default_rng(1)
a, b = rng.standard_normal((2, 300, 300))
ones, drift = np.ones((300, 300)), np.full((300, 300), {DRIFTS[mode][1]})
drift[0] = {DRIFTS[mode][0]}
calls = [
    dict(accuracy="correct"), dict(scheme="ozaki1"), dict(scheme="ozaki2"), dict(accuracy=hg.Relative(1e-6)),
    dict(scheme=hg.Native()), dict(scheme=hg.Multiword("fp16")), {{}},
]
cases = [
    (call, x.astype(dtype), y.astype(dtype))
    for call in calls for dtype in ("float64", "float32") for x, y in ((a, b), (ones, drift))
]
results = [hg.matmul(x, y, **call, return_report=True) for call, x, y in cases]
tiny, large = a * 2.0**-1040, b * 2.0**500
exponents = hg.matmul(tiny, large, accuracy="correct")
i, j = np.rint(2**50 * a).astype(int), np.rint(2**50 * b).astype(int)
integers = hg.matmul(i, j, result="object")

library.fesetround(0)
from hifigemm.testing.reference import correctly_rounded, meets_promise
for (call, x, y), (c, report) in zip(cases, results):
    # Blocks at all ends, which several threads make.
    for rows in (slice(20), slice(-20, None)):
        for columns in (slice(20), slice(-20, None)):
            x_, y_, c_ = x[rows], y[:, columns], c[rows, columns]
            assert meets_promise(c_, x_, y_, report.bound).all(), (call, report)
            assert not report.correct or (c_ == correctly_rounded(x_, y_)).all(), (call, report)
assert (exponents[:20, :20] == correctly_rounded(tiny[:20], large[:, :20])).all()
assert (integers[:9, :9] == i[:9].astype(object) @ j[:, :9].astype(object)).all()
print((np.matmul(ones, drift) != drift[0, 0]).any())
"""
    environment = {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "False":
        pytest.skip("no thread of the BLAS rounds otherwise")


def test_threads_of_torch_that_flush_change_no_promise(torch):
    a, b = (torch.full((300, 300), 2.0**e, dtype=torch.float64) for e in (-1040, 500))

    def found():
        torch.set_flush_denormal(True)
        try:
            torch.matmul(b, b)  # makes the other threads of this one, in its mode
            return hg.matmul(a, b)
        finally:
            torch.set_flush_denormal(False)

    assert (in_thread(found) == 300 * 2.0**-540).all()


def test_no_constant_is_a_subnormal_number():
    """Compiled in a thread that flushes, it would be zero, and stay so where the
    bytecode is kept.
    """
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
            try:
                value = (
                    ast.literal_eval(node.left) ** ast.literal_eval(node.right)
                    if is_power
                    else node.value
                )
            except (AttributeError, ValueError, ArithmeticError):
                continue
            is_subnormal = isinstance(value, float) and 0 < abs(value) < 2.0**-1022
            assert not is_subnormal, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
