"""Repeated calls on a CPU: arrays and tensors around one product of stacks."""

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget
from hifigemm.engines.host import NativeLowering
from hifigemm.model.executable import NOT_ORDINARY, Refusal
from hifigemm.running.calls import KeptCall

CALLS = {
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
    "enclosure": {"result": "enclosure"},
    "default": {},
    "slices": {"scheme": hg.Ozaki1(num_slices=3)},
    "report": {"accuracy": "correct", "return_report": True},
}


def arrays_of(result):
    """All arrays or tensors of a result."""
    parts = result if isinstance(result, tuple) else (result,)
    return [x for x in parts if not isinstance(x, hg.Report)]


@pytest.fixture
def rng():
    return np.random.default_rng(12)


@pytest.fixture(params=CALLS)
def options(request):
    """The options of a call, of which nothing is kept yet."""
    forget()
    return CALLS[request.param]


def test_a_product_of_vectors_stays_a_scalar(options, rng):
    a = rng.standard_normal(6)
    b = rng.standard_normal(6)
    first, *others = [arrays_of(hg.matmul(a, b, **options)) for _ in range(3)]
    for repeated in others:
        for x, y in zip(first, repeated, strict=True):
            assert type(y) is type(x) is np.float64
            assert y == x


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("has_tensors", [False, True])
def test_results_belong_to_the_library_of_the_operands_on_any_engine(
    options, rng, engine, has_tensors, assert_same_bits
):
    torch = pytest.importorskip("torch")
    a = rng.standard_normal((4, 6))
    b = rng.standard_normal((6, 5))
    operands = (torch.from_numpy(a), torch.from_numpy(b)) if has_tensors else (a, b)
    kind = torch.Tensor if has_tensors else np.ndarray
    first, *others = [
        arrays_of(hg.matmul(*operands, engine=engine, **options)) for _ in range(3)
    ]
    for repeated in others:
        for x, y in zip(first, repeated, strict=True):
            assert type(x) is type(y) is kind
            assert_same_bits(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("accuracy", [1e-12, "correct"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.0), (0.3, 0.7), (-1.0, 1.0)])
def test_what_is_rounded_again_has_the_bits_of_the_first_call(
    rng, accuracy, alpha, beta, assert_same_bits
):
    forget()
    a = rng.standard_normal((4, 6))
    b = rng.standard_normal((6, 5))
    c = rng.standard_normal((4, 5))
    scalars = {"alpha": alpha, "beta": beta, "accuracy": accuracy}
    first = hg.gemm(a, b, c, **scalars)
    assert_same_bits(hg.gemm(a, b, c, **scalars), first)
    written = c.copy()
    assert hg.gemm(a, b, written, out=written, **scalars) is written
    assert hg.gemm(a, b, c.copy(), out=written, **scalars) is written
    assert_same_bits(written, first)


def test_a_difference_of_two_that_overflow_is_finite(assert_same_bits):
    forget()
    a = np.full((2, 2), 1e200)
    c = np.full((2, 2), -1.5e308)
    scalars = {"alpha": 0.3, "beta": 0.7, "accuracy": "correct"}
    tame = np.ones((2, 2))
    for _ in range(2):
        assert np.isfinite(hg.gemm(tame, tame, tame, **scalars)).all()
    first = hg.gemm(a, a * 1e-92, c, **scalars)
    forget()
    assert_same_bits(hg.gemm(a, a * 1e-92, c, **scalars), first)


def refusals(monkeypatch):
    """What kept calls refuse from here on."""
    seen = []
    own = KeptCall.__call__

    def call(self, *args):
        outcome = own(self, *args)
        if isinstance(outcome, Refusal):
            seen.append(outcome)
        return outcome

    monkeypatch.setattr(KeptCall, "__call__", call)
    return seen


ZEROS = {
    "unit matrices": (np.eye(3), np.eye(3)),
    "triangles": (np.triu(np.ones((3, 3))), np.tril(np.full((3, 3), 0.3), -1)),
    "smallest terms": (np.full((3, 3), 2.0**-511), np.full((3, 3), 2.0**-511)),
    "of nothing": (np.zeros((3, 3)), np.ones((3, 3))),
}
LOST = {
    "a term underflows": (np.full((3, 3), 2.0**-512), np.full((3, 3), 2.0**-511)),
    "a term vanishes": (np.diag([1e-200, 1.0, 1.0]), np.diag([1e-200, 1.0, 1.0])),
    "an infinite entry": (np.diag([np.inf, 1.0, 1.0]), np.eye(3)),
}


@pytest.mark.parametrize("kind", [*ZEROS, *LOST])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("has_tensors", [False, True])
def test_small_entries_are_refused_only_where_a_term_may_underflow(
    kind, dtype, has_tensors, monkeypatch, assert_same_bits
):
    forget()
    a, b = (x.astype(dtype) for x in (ZEROS | LOST)[kind])
    if has_tensors:
        torch = pytest.importorskip("torch")
        a, b = torch.from_numpy(a), torch.from_numpy(b)
    with np.errstate(all="ignore"):
        want = np.asarray(hg.matmul(a, b))
        seen = refusals(monkeypatch)
        for _ in range(2):
            assert_same_bits(np.asarray(hg.matmul(a, b)), want)
    assert seen == ([NOT_ORDINARY] * 2 if kind in LOST else [])


@pytest.mark.parametrize("shift", [-30, -5, 3, 30, -31, 31])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("exponent", [0, -520, 505])
def test_powers_of_two_in_alpha_have_the_bits_of_steps(
    shift, beta, exponent, rng, assert_same_bits, monkeypatch
):
    """Entries near both ends of the range too."""
    forget()
    a, b = (np.ldexp(rng.standard_normal((4, 4)), exponent) for _ in range(2))
    c = rng.standard_normal((4, 4)) if beta else None
    for mantissa in (1.0, 1.3):
        alpha = mantissa * 2.0**shift
        kept = [hg.gemm(a, b, c, alpha=alpha, beta=beta) for _ in range(3)]
        forget()
        with monkeypatch.context() as patch:
            patch.setattr(NativeLowering, "lower", lambda self, signature: None)
            want = hg.gemm(a, b, c, alpha=alpha, beta=beta)
        forget()
        for values in kept:
            assert_same_bits(values, want)
