"""Kept calls: they give what the first call gives, say so, and refuse what needs more."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget
from hifigemm.engines import engine_for
from hifigemm.libraries.numpy_arrays import NUMPY
from hifigemm.model.executable import (
    NO_MEMORY,
    NOT_FINITE,
    OVERFLOW,
    Outcome,
    Refusal,
)
from hifigemm.running.calls import KeptCall
from tests import hard_matrices as gen
from tests.kinds_of_calls import (
    KINDS,
    NATIVE,
    READ_C,
    K,
    M,
    N,
    arrays_of,
    as_first_call,
    kept_call,
    kept_calls,
    operands,
)
from tests.thread_modes import (
    MACHINE,
    MODES,
    ROUNDINGS,
    flushing,
    in_thread,
    needs_known_register,
    rounding,
)

CORRECT = {"accuracy": "correct"}


@pytest.fixture(autouse=True)
def nothing_kept():
    forget()
    yield
    forget()


@pytest.fixture
def assert_same_results(assert_same_bits):
    """Two results of a call, with both arrays of a pair, have the same bits."""

    def check(found, want):
        for x, y in zip(arrays_of(found), arrays_of(want), strict=True):
            assert_same_bits(x, y)

    return check


def call_of(executable, *, stacks=None, is_final=True, scheme="native", accuracy=None):
    """What would be kept of a product of ones that is made by a function."""
    plan = hg.make_plan(
        np.ones((M, K)), np.ones((K, N)), scheme=scheme, accuracy=accuracy
    )
    return KeptCall(
        plan, executable, engine_for("numpy"), NUMPY, stacks, is_final, 0.0, 2**28
    )


# What the log says.


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_call_writes_one_line(kind, caplog):
    KINDS[kind](*operands())
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        KINDS[kind](*operands(1))
    (record,) = caplog.records
    assert record.message == f"{kept_call()}, as before"
    assert str(kept_call().plan.scheme) in record.message


def test_a_refused_call_writes_the_line_of_a_first_one(caplog):
    a, b, _ = operands()
    hg.matmul(a, b, **CORRECT)
    a[0, 0] = np.inf
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        hg.matmul(a, b, **CORRECT)
    (record,) = caplog.records
    assert "decided in" in record.message


def test_a_long_call_is_announced_before_it_is_made(caplog):
    a, b, _ = operands()
    hg.matmul(a, b, **CORRECT)
    call = kept_call()
    call.seconds = 30.0
    executable = call.executable

    def multiply(*args):
        (record,) = caplog.records
        assert record.message.endswith("about 30 s expected")
        return executable(*args)

    call.executable = multiply
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        hg.matmul(a, b, **CORRECT)
    assert caplog.records[-1].message.endswith("as before")


def test_a_call_of_seconds_is_kept_with_its_time(monkeypatch):
    monkeypatch.setattr("hifigemm.running.road.expected_seconds", lambda plan: 12.5)
    a, b, _ = operands()
    hg.matmul(a, b, **CORRECT)
    hg.matmul(a, b, result="pair")
    assert [call.seconds for call in kept_calls()] == [12.5, 12.5]


# Refusals.


@pytest.mark.parametrize(
    "kind",
    [
        "default",
        "correct",
        "pair",
        "two roundings",
        "sums, then scalars",
        "one rounding",
    ],
)
def test_a_refusal_writes_nothing(kind):
    KINDS[kind](*operands())
    call = kept_call()
    for bad in range(2):
        a, b, c = operands(1)
        (a, b)[bad][1, 1] = np.nan
        out = np.full((M, N), 7.0)
        refusal = call(a, b, out, c if kind in READ_C else None, 1.3, 0.7)
        assert isinstance(refusal, Refusal)
        assert (out == 7.0).all()


def test_a_refusal_is_not_an_outcome():
    assert call_of(lambda *_: NOT_FINITE)(*operands()[:2]) is NOT_FINITE


def test_a_rounded_product_that_overflows_needs_the_whole_road():
    overflowed = Outcome(np.full((M, N), np.inf), 0.0, 1)
    a, b, _ = operands()
    # T = A B is infinite by right; alpha T + beta C may be finite.
    assert call_of(lambda *_: overflowed, accuracy=1e-13)(a, b) is overflowed
    rounded_again = call_of(lambda *_: overflowed, is_final=False, accuracy=1e-13)
    assert rounded_again(a, b) is OVERFLOW
    # The level of a dtype is that of its native product.
    at_level = call_of(lambda *_: overflowed, is_final=False)
    assert at_level(a, b) is overflowed


def test_errors_of_an_executable_are_those_of_the_call():
    def fail(*_):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        call_of(fail)(*operands()[:2])


def without_memory(torch):
    """An executable whose memory is refused."""

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    return fail


def test_a_call_without_memory_goes_the_whole_road(torch, assert_same_bits):
    a, b, _ = operands()
    want = hg.matmul(a, b, **CORRECT)
    kept_call().executable = without_memory(torch)
    assert kept_call()(a, b) is NO_MEMORY
    # The road lowers the plan again.
    assert_same_bits(hg.matmul(a, b, **CORRECT), want)
    assert_same_bits(hg.matmul(a, b, **CORRECT), want)


def test_nothing_that_was_kept_is_lost_where_the_road_has_no_memory(
    torch, monkeypatch, assert_same_bits
):
    a, b, _ = operands()
    want = hg.matmul(a, b, **CORRECT)
    call = kept_call()
    executable = call.executable
    call.executable = without_memory(torch)
    with monkeypatch.context() as patch:
        patch.setattr("hifigemm.running.road.lowered", lambda *_: without_memory(torch))
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                hg.matmul(a, b, **CORRECT)
    assert kept_call() is call
    call.executable = executable
    assert_same_bits(hg.matmul(a, b, **CORRECT), want)


def test_c_is_untouched_where_a_sum_written_to_it_is_refused():
    scheme = hg.Ozaki1(num_slices=2)
    options = {"alpha": 0.3, "beta": 0.7, "scheme": scheme, "accuracy": 1e-15}
    a, b, c = np.ones((3, 4, 4))
    hard = np.logspace(0, -30, 16).reshape(4, 4)
    for _ in range(2):
        before = c.copy()
        with pytest.raises(hg.AccuracyError, match="does not meet"):
            hg.gemm(hard, hard.T, c, out=c, **options)
        assert (c == before).all()
        assert hg.gemm(a, b, c, out=c, **options) is c
        assert kept_calls()


def test_an_operand_is_untouched_where_a_product_written_to_it_is_refused():
    options = {"scheme": hg.Ozaki1(num_slices=2), "accuracy": 1e-15}
    easy = np.ones((4, 4))
    hard = np.logspace(0, -30, 16).reshape(4, 4)
    for _ in range(2):
        before = hard.copy()
        with pytest.raises(hg.AccuracyError, match="does not meet"):
            hg.matmul(hard, hard.T, out=hard, **options)
        assert (hard == before).all()
        hg.matmul(easy, easy, out=np.empty((4, 4)), **options)
        assert kept_calls()


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("accuracy", [None, "correct", 1e-13])
def test_a_kept_sum_may_be_written_to_an_operand(operand, accuracy, assert_same_bits):
    a, b, c = np.random.default_rng(2).standard_normal((3, 5, 5))
    options = {"alpha": 0.3, "beta": 0.7, "accuracy": accuracy}
    want = as_first_call(lambda: hg.gemm(a, b, c, **options))
    for _ in range(3):
        given = [a.copy(), b.copy()]
        hg.gemm(*given, c, out=given[operand], **options)
        assert_same_bits(given[operand], want)


# Operands that lie in memory otherwise.

SHAPES = [
    ((3, M, K), (K, N)),
    ((M, K), (3, K, N)),
    ((1, M, K), (3, K, N)),
    ((2, 1, M, K), (3, K, N)),
    ((2, 1, M, K), (1, 3, K, N)),
    ((K,), (3, K, N)),
    ((3, M, K), (K,)),
]


@pytest.mark.parametrize("options", [{}, CORRECT, {"result": "pair"}], ids=str)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_kept_stacks_are_broadcast_as_in_a_first_call(
    left, right, options, assert_same_results
):
    def product(seed):
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal(left), rng.standard_normal(right)
        return hg.matmul(a, b, **options)

    want = as_first_call(product, 1)
    forget()
    product(0)
    kept_call()
    assert_same_results(product(1), want)


def test_a_kept_call_makes_stacks_of_operands_that_are_none():
    a, b, _ = operands()

    def multiply(x, y, *_):
        assert y is b
        return Outcome(x @ y, 0.0, 1)

    def twice(x):
        return np.stack([x, x])

    outcome = call_of(multiply, stacks=(twice, None))(a, b)
    np.testing.assert_array_equal(outcome.values, np.stack([a @ b] * 2))


@pytest.mark.parametrize("kind", KINDS)
def test_kept_tensors_of_the_host_have_the_bits_of_arrays(
    torch, kind, assert_same_bits
):
    given = [[torch.from_numpy(x) for x in operands(seed)] for seed in range(2)]
    want = [arrays_of(as_first_call(KINDS[kind], *each)) for each in given]
    assert kept_call().library.name == "torch"
    for tensors, first in zip(given, want, strict=True):
        found = arrays_of(KINDS[kind](*tensors))
        assert {type(x) for x in found} == {torch.Tensor}
        of_arrays = arrays_of(KINDS[kind](*(x.numpy() for x in tensors)))
        for x, y, z in zip(found, first, of_arrays, strict=True):
            assert_same_bits(x.numpy(), y.numpy())
            # PyTorch's own product may add in another order.
            assert kind in NATIVE or (x.numpy() == z).all()


MIXED = [("f", "d"), ("d", "f"), ("e", "e"), ("e", "F"), ("D", "f")]
"""Dtypes of A and B that are converted for their product."""


@pytest.mark.parametrize("options", [{}, CORRECT])
@pytest.mark.parametrize("dtypes", MIXED)
def test_operands_of_two_dtypes_are_kept_with_the_bits_of_converted_ones(
    dtypes, options, assert_same_bits
):
    pairs = [
        [x.astype(dtype) for x, dtype in zip(operands(seed)[:2], dtypes, strict=True)]
        for seed in range(2)
    ]
    common = np.result_type(*dtypes, np.float32)
    want = [
        arrays_of(hg.matmul(*(x.astype(common) for x in pair), **options))
        for pair in pairs
    ]
    forget()
    for pair, arrays in zip(pairs, want, strict=True):
        for x, y in zip(arrays_of(hg.matmul(*pair, **options)), arrays, strict=True):
            assert_same_bits(x, y)
    kept_call()


def test_sums_with_operands_of_two_dtypes_are_those_of_converted_ones(assert_same_bits):
    a, b, c = operands()
    for left, addend in ((a, c), (a.astype(np.float16), c.astype(np.float16))):
        right = b.astype(np.float16)
        wide = [x.astype(np.float64) for x in (left, right, addend)]
        dtype = np.result_type(left, right, addend, np.float32)
        want = hg.gemm(
            *(x.astype(dtype) for x in wide), alpha=-1.0, beta=1.0, **CORRECT
        )
        for _ in range(2):
            assert_same_bits(
                hg.gemm(left, right, addend, alpha=-1.0, beta=1.0, **CORRECT), want
            )


@needs_known_register
def test_a_converted_operand_keeps_its_subnormal_entries(assert_same_bits):
    a = np.full((2, 2), 2.0**-140, np.float32)
    b = np.ones((2, 2))
    want = hg.matmul(a, b, **CORRECT)
    assert want[0, 0] == 2.0**-139
    for flags in MODES[MACHINE]:
        with flushing(flags):
            found = hg.matmul(a, b, **CORRECT)
        assert_same_bits(found, want)


def test_a_converted_nan_warns_of_nothing():
    signalling = np.array([[0x7F800001]], np.uint32).view(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert np.isnan(hg.matmul(signalling, np.ones((1, 1)))).all()


def test_tensors_in_other_strides_are_calls_of_one_kind(torch, assert_same_bits):
    a, b, _ = operands()
    want = hg.matmul(a, b, **CORRECT)
    forget()
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    wide = torch.zeros((M, 2 * K), dtype=torch.float64)
    wide[:, ::2] = x
    for left in (x, x.T.contiguous().T, wide[:, ::2]):
        assert_same_bits(hg.matmul(left, y, **CORRECT).numpy(), want)
    kept_call()


# Reports.


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_of_a_kept_call_is_that_of_the_first_one(kind, monkeypatch):
    for name in ("matmul", "gemm"):
        monkeypatch.setattr(hg, name, with_report(getattr(hg, name)))
    first = as_first_call(KINDS[kind], *operands(1))[-1]
    as_first_call(KINDS[kind], *operands(0))
    later = KINDS[kind](*operands(1))[-1]
    kept_call()
    assert first.decision_seconds > 0.0
    assert later.decision_seconds == 0.0
    for name in ("scheme", "bound", "correct", "num_products", "reason", "workspace"):
        assert getattr(first, name) == getattr(later, name), name


def with_report(function):
    return lambda *args, **options: function(
        *args, **{**options, "return_report": True}
    )


# Inf and NaN.


def with_special_entry(given, where, value):
    """The operands with an entry of A, B or C that is no finite number."""
    bad = [x.copy() for x in given]
    bad[where][1, 2] = value
    return bad


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", KINDS)
def test_inf_and_nan_in_a_later_call_give_what_they_give_in_a_first_one(
    kind, dtype, value, assert_same_results
):
    call = KINDS[kind]
    tame = operands(1, dtype)
    cases = [with_special_entry(tame, where, value) for where in range(3)]
    if dtype == "complex128":
        cases.append(with_special_entry(tame, 0, complex(1.0, value)))
    want = [as_first_call(call, *bad) for bad in cases]
    want_of_tame = as_first_call(call, *tame)
    for bad, result in zip(cases, want, strict=True):
        assert_same_results(call(*bad), result)
        assert_same_results(call(*tame), want_of_tame)


@pytest.mark.parametrize("kind", ["default", "correct", "one rounding"])
def test_a_first_call_with_nan_leaves_what_finite_operands_take(
    kind, assert_same_results
):
    tame = operands()
    want = as_first_call(KINDS[kind], *tame)
    forget()
    KINDS[kind](*with_special_entry(tame, 0, np.nan))
    for _ in range(2):
        assert_same_results(KINDS[kind](*tame), want)


def test_a_component_that_underflows_has_the_bits_of_the_first_call(assert_same_bits):
    # The real part is below the normal numbers, and the imaginary part is not.
    a = np.array([[1.1e-160 + 0j] * 3])
    b = np.array([[1.2345678912345e-162 + 1e160j], [2e-161], [1e-163]])
    (want,) = hg.matmul(a, b, **CORRECT)[0]
    assert 0.0 < want.real < 2.0**-1022
    for _ in range(3):
        found = hg.matmul(a, b, accuracy=1e-13)
        assert found[0, 0].real == want.real
        np.testing.assert_allclose(found[0, 0].imag, want.imag, rtol=1e-15)
        hg.matmul(np.ones_like(a), np.ones_like(b), accuracy=1e-13)


# Other modes of the thread.

IN_MODES = {
    "downward": lambda: rounding(ROUNDINGS[MACHINE][0]),
    "upward": lambda: rounding(ROUNDINGS[MACHINE][1]),
    "towards zero": lambda: rounding(ROUNDINGS[MACHINE][2]),
    "flushes": lambda: flushing(max(MODES[MACHINE])),
}


def operands_of_one_size(dtype):
    """Products are rounded, and no entry is near the ends of the exponents."""
    return operands(3, dtype)


def operands_of_all_ranges(dtype):
    """Products and operands are subnormal, and others are rounded."""
    rng = np.random.default_rng(7)
    real = np.finfo(dtype).dtype
    a, b, c = operands(3, dtype)
    a[0] = gen.subnormal(rng, a[0].shape, real)
    b[:, 0] = gen.subnormal(rng, b[:, 0].shape, real)
    a[1] = np.finfo(real).smallest_normal
    b[:, 1] *= 0.25
    c[1] = np.finfo(real).smallest_normal / 2
    return a, b, c


@needs_known_register
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("mode", IN_MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given_by", [operands_of_one_size, operands_of_all_ranges])
def test_a_later_call_in_another_mode_has_the_bits_of_the_first(
    kind, mode, dtype, given_by, assert_same_results
):
    given = given_by(dtype)
    call = KINDS[kind]

    def in_mode():
        with IN_MODES[mode]():
            return call(*given), call(*given)

    want = call(*given)
    later = in_thread(in_mode)
    assert_same_results(call(*given), want)
    # The same two calls in that mode, of which the first one is the first of all.
    forget()
    first = in_thread(in_mode)
    assert_same_results(call(*given), want)
    for result in (*later, *first):
        assert_same_results(result, first[0] if kind in NATIVE else want)
