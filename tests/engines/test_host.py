"""Repeated calls on a CPU: arrays and tensors around one product of stacks."""

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget

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
