"""Whole products of words, in the interpreter up to the order of sums; their bits are tested in test_cuda_sgemm.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.accuracy import NOTHING_STATED
from hifigemm.engines import engine_for
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.repetition import repeated
from hifigemm.engines.word_pipeline import RangedProduct, ranged_product, whole_product, word_product
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.tensor_core import H100, V100
from hifigemm.plan import Problem
from hifigemm.study.matrices import EXPONENT_FAMILIES, exponent_family
from hifigemm.study.reference import meets_promise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS = hg.Corrected("fp16"), hg.Corrected("tf32")
CHAINED = hg.Corrected(accumulate="chained")
SINGLE = np.dtype(np.float32)
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


def on_device(*arrays):
    return [wrap(torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)) for x in arrays]


def planned(scheme, a, b, *, states_bound=False, workspace=2**28):
    """The plan of a forced scheme for NumPy stacks; the simulated engine has the device's blocks and units."""
    problem = Problem(max(len(a), len(b)), a.shape[1], b.shape[2], a.shape[2], SINGLE)
    target = replace(NOTHING_STATED, states_bound=states_bound)
    return scheme.plan(problem, a, b, target, engine_for("simulated-h100"), workspace)


def uniform(rng, *shape):
    return rng.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize(
    "scheme",
    [
        hg.Corrected(),
        hg.Corrected("tf32", block=16),
        hg.Corrected(shift_low=False, split_rounding="zero"),
        hg.Multiword("tf32", 1, 1),
        hg.Multiword("fp16", 1, 1, accumulate="blocked", block=32),
    ],
    ids=str,
)
def test_values_epilogue_and_stacks_are_those_of_the_scheme(scheme):
    rng = np.random.default_rng(1)
    a, b, c = uniform(rng, 1, 21, 70), uniform(rng, 2, 70, 18), uniform(rng, 2, 21, 18)
    a[0, 3, 5] = np.inf
    multiply = whole_product(planned(scheme, a, b), H100)
    want = hg.gemm(a, b, c, alpha=0.3 * 2, beta=-1.5, scheme=scheme, engine="simulated-h100")
    x, y, z = on_device(a, b, c)
    target = wrap(torch.empty((2, 18, 21), device=DEVICE).transpose(1, 2))
    for out in (None, target):
        made = multiply(x, y, 1, Epilogue(0.3, -1.5, z), (None, None), out)
        assert out is None or made is out
        np.testing.assert_allclose(unwrap(made).cpu().numpy(), want, rtol=0, atol=1e-5)
    plain = multiply(x, y, 0, PLAIN, (None, None), target)
    assert plain is target
    same = multiply(x, y, 0, PLAIN, (None, None), None)
    torch.testing.assert_close(unwrap(plain), unwrap(same), rtol=0, atol=1e-5, equal_nan=True)


def test_bits_do_not_depend_on_the_workspace():
    rng = np.random.default_rng(2)
    a, b = uniform(rng, 3, 40, 30), uniform(rng, 3, 30, 50)
    whole, parts = (planned(hg.Corrected(), a, b, workspace=limit) for limit in (2**28, 2**16))
    assert whole.block_shape == (3, 40, 50) != parts.block_shape
    values = [
        unwrap(whole_product(p, H100)(*on_device(a, b), 0, PLAIN, (None, None), None)).cpu() for p in (whole, parts)
    ]
    if DEVICE == "cuda":
        assert torch.equal(*values)
    torch.testing.assert_close(*values, rtol=0, atol=1e-5)  # the interpreter leaves the order of sums to NumPy


@pytest.mark.parametrize("family", ["uniform", "phi_4", "sparse", "span_60", "opposed_spans", "badly_scaled"])
def test_bound_from_the_losses_holds(family, make_pair):
    """In the interpreter sums are those of FP32 to nearest, which err less than those of the unit."""
    for product in ("fp16", "tf32"):
        a, b = (x[None] for x in make_pair(family, 9, 130, 8, np.float32))
        plan = planned(hg.Corrected(product), a, b, states_bound=True)
        assert whole_product(plan, H100) is None
        multiply = word_product(plan, H100)
        values, losses = multiply.run(*on_device(a, b), 0, PLAIN)
        bound = multiply.bound(losses)
        assert np.isfinite(bound) or family not in ("uniform", "phi_4")
        if np.isfinite(bound):
            assert meets_promise(unwrap(values).cpu().numpy()[0], a[0], b[0], bound).all()


@pytest.mark.parametrize("family", [*EXPONENT_FAMILIES, "uniform", "wide"])
def test_words_are_chosen_by_the_exponents(family):
    rng = np.random.default_rng(3)
    if family == "wide":
        a, b = (np.ldexp(uniform(rng, *s), rng.integers(-70, 60, s)).astype(np.float32) for s in ((9, 200), (200, 8)))
    elif family == "uniform":
        a, b = uniform(rng, 9, 200), uniform(rng, 200, 8)
    else:
        a, b = exponent_family(rng, family, 9, 200, 8)
    multiply = ranged_product(Problem(1, 9, 8, 200, SINGLE), H100, WORDS)
    values, losses = multiply.run(*on_device(a[None], b[None]), 0, PLAIN)
    taken, bound = multiply.bound(losses)
    expected = {"uniform": "fp16", "wide": "fp32"}.get(family, taken)
    assert taken == expected
    assert bound <= 200 * 2.0**-24 * 1.001
    assert meets_promise(unwrap(values).cpu().numpy()[0], a, b, bound).all()


def test_what_the_kernels_do_not_have_is_left_to_the_steps():
    a, b = np.ones((1, 4, 99), np.float32), np.ones((1, 99, 4), np.float32)
    for scheme in (hg.Corrected(scale=False), hg.Corrected(block=24), CHAINED, hg.Multiword("bf16", 3, 6)):
        assert word_product(planned(scheme, a, b), H100) is None
    assert word_product(planned(hg.Corrected(block=100), a, b), H100) is None
    short = planned(hg.Corrected(block=100), a[..., :40], b[:, :40])
    assert word_product(short, H100).block == 64
    assert word_product(planned(hg.Corrected(), a, b), V100) is None


def test_products_of_few_terms_are_better_in_fp32():
    assert ranged_product(Problem(1, 4, 4, 32, SINGLE), H100, WORDS) is None
    assert isinstance(ranged_product(Problem(1, 4, 4, 128, SINGLE), H100, WORDS), RangedProduct)
    assert ranged_product(Problem(1, 4, 4, 128, np.dtype(np.complex64)), H100, WORDS) is None


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", WORDS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(40, 30, 50), (300, 3000, 260)])
def test_repeated_products_are_those_of_the_plan(scheme, m, k, n):
    rng = np.random.default_rng(4)
    plan = planned(scheme, uniform(rng, 1, m, k), uniform(rng, 1, k, n))
    for given in (False, True):
        x, y = on_device(uniform(rng, 1, m, k), uniform(rng, 1, k, n))
        target = wrap(torch.empty((1, m, n), device=DEVICE)) if given else None
        for _ in range(3):  # the first one compiles
            again = repeated(whole_product(plan, H100), plan, (x, y), (x, y), (m, n), target)
        u, v = on_device(uniform(rng, 1, m, k), uniform(rng, 1, k, n))
        want = unwrap(whole_product(plan, H100)(u, v, 0, PLAIN, (None, None), None))
        made = torch.empty((1, m, n), device=DEVICE) if given else None
        got = again(unwrap(u), unwrap(v), made)
        assert torch.equal(got.reshape(1, m, n), want)
        assert made is None or got is made


def test_copied_operands_are_not_repeated():
    rng = np.random.default_rng(5)
    a, b = uniform(rng, 1, 8, 9), uniform(rng, 1, 9, 7)
    x, y, copied = on_device(a, b, a)
    plan = planned(hg.Corrected(), a, b)
    assert repeated(whole_product(plan, H100), plan, (copied, y), (x, y), (8, 7), None) is None
