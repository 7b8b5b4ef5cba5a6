"""Prepared operands of plans whose launches take residues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines.cuda import ozaki2
from hifigemm.engines.cuda.ozaki2 import PreparedResidues
from hifigemm.libraries.torch_tensors import device_array
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import gained_bits, norm_scale
from tests.engines.stand_in import DEVICE, arrays, on_host

FIXED = hg.Ozaki2(num_moduli=5, scaling="fast")
SLICES = {"scheme": hg.Ozaki1(num_slices=4)}
CORRECT = {"accuracy": "correct", "scheme": hg.Ozaki2(scaling="fast")}
REQUESTS = {
    "fixed": {"scheme": FIXED},
    "slices": SLICES,
    "correct": CORRECT,
    "sums": {"accuracy": "correct"},
    "1e-12": {"accuracy": 1e-12},
    "default": {},
}
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")


def integers(seed, shape, bits, dtype=np.float64):
    """Entries of so many bits, or fewer."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2**bits) + 1, 2**bits, shape).astype(float)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.integers(-(2**bits) + 1, 2**bits, shape)
    return torch.from_numpy(x.astype(dtype)).to(DEVICE)


def pair(seed=0, bits=(20, 20), dtype=np.float64):
    return integers(seed, (5, 9), bits[0], dtype), integers(
        seed + 1, (9, 4), bits[1], dtype
    )


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_bits_are_those_of_the_operands(as_on_gpu, assert_same_bits, kind, dtype):
    options = REQUESTS[kind]
    a, b = pair(dtype=dtype)
    want = on_host(hg.matmul(a, b, **options))
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)
    for x, y in ((left, b), (a, right), (left, right)):
        for _ in range(2):
            assert_same_bits(on_host(hg.matmul(x, y)), want)
        # Operands of later calls that need other bits.
        for bits in (3, 30):
            other = integers(7, b.shape, bits, dtype)
            if y is b:
                assert_same_bits(
                    on_host(hg.matmul(x, other)),
                    on_host(hg.matmul(a, other, **options)),
                )


@pytest.mark.parametrize("num_bits", [1, 12, 26, 52])
def test_the_integers_of_a_correct_product_hold_the_bits_and_no_more(
    as_on_gpu, num_bits
):
    a, _ = pair(bits=(num_bits, 1))
    split = hg.prepare(a, "left", **CORRECT).split
    (stack,) = arrays(on_host(a)[None])
    scale = norm_scale(on_host(stack), 2, moduli_set(2, False), 0, 2**20)
    np.testing.assert_array_equal(
        on_host(split.exponents), scale.exponent[:, :, 0] + max(split.bits, 0)
    )
    unit = np.ldexp(1.0, -on_host(split.exponents))[..., None]
    whole = on_host(a)[None] / unit
    np.testing.assert_array_equal(whole, np.rint(whole))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("others", [2, 19, 20, 21, 22, 23, 28, 60])
def test_moduli_follow_from_both_operands(
    as_on_gpu, assert_same_bits, monkeypatch, side, others
):
    """Integers of the other operand may be as long as the moduli allow, and no longer:
    numbers that were prepared serve up to the spare moduli.
    """
    a, b = pair(bits=(20, min(others, 52)))
    if others > 52:
        b[0, 0] = 2.0**-others
    if side == "right":
        a, b = b.mT.contiguous(), a.mT.contiguous()
    want, report = hg.matmul(a, b, **CORRECT, return_report=True)
    taken = []
    own = ozaki2._FixedCount.takes

    def takes(self, split, side):
        taken.append(own(self, split, side))
        return taken[-1]

    monkeypatch.setattr(ozaki2._FixedCount, "takes", takes)
    x = hg.prepare(a, "left", **CORRECT) if side == "left" else a
    y = hg.prepare(b, "right", **CORRECT) if side == "right" else b
    prepared = x if side == "left" else y
    for _ in range(2):
        got, other = hg.matmul(x, y, return_report=True)
        assert_same_bits(on_host(got), on_host(want))
        assert other.scheme == report.scheme
    assert taken[0] == (report.scheme.num_moduli <= prepared.split.count)


def test_balances_give_the_other_operand_what_is_left():
    """The condition of an exact product, for all counts and bits: both integers hold
    their bits, and the product of their norms stays below half the range.
    """
    for count in range(2, 40):
        held = gained_bits(count, False)
        for left in range(-5, 2 * held + 1):
            right = 2 * held - max(left, 0)
            # See `_gained_bits`: rows get max(left, 0) - held bits.
            assert held - (max(left, 0) - held) >= right
            two = moduli_set(2, False).half_range
            assert 4**held * two <= moduli_set(count, False).half_range


def with_more_bits(x):
    longer = x.clone()
    longer[1, 1] = 2.0**-40
    return longer


def test_operands_that_were_prepared_are_not_inspected_again(as_on_gpu, monkeypatch):
    a, b = pair()
    left = hg.prepare(a, "left", **CORRECT)
    right = hg.prepare(b, "right", **CORRECT)
    hg.matmul(left, right)
    hg.matmul(left, b)
    seen = []
    own = ozaki2.required_bits_of_one

    def bits_of(x, side):
        inspect = own(x, side)

        def noted(p):
            seen.append((tuple(p.shape), side))
            return inspect(p)

        return noted

    monkeypatch.setattr(ozaki2, "required_bits_of_one", bits_of)
    store.forget()
    for _ in range(3):
        hg.matmul(left, right)
    assert seen == []
    # The first call plans; of later ones the residues of B tell.
    for _ in range(3):
        hg.matmul(left, b)
    assert seen == []
    # With more bits than B had there is a look at it alone.
    hg.matmul(left, with_more_bits(b))
    assert seen == [((9, 4), "right")]
    for _ in range(3):
        hg.matmul(a, right)
    assert seen[1:] == []
    hg.matmul(with_more_bits(a), right)
    assert seen[1:] == [((5, 9), "left")]


@pytest.mark.parametrize("kind", ["fixed", "slices", "correct"])
def test_inf_and_nan_of_prepared_operands(as_on_gpu, assert_same_bits, kind):
    options = REQUESTS[kind]
    a, b = pair()
    a[1, 2] = np.inf
    b[3, 0] = np.nan
    want = on_host(hg.matmul(a, b, **options))
    left = hg.prepare(a, "left", **options)
    right = hg.prepare(b, "right", **options)
    for x, y in ((left, b), (a, right), (left, right)):
        for _ in range(2):
            np.testing.assert_array_equal(on_host(hg.matmul(x, y)), want)


def test_stacks_blocks_and_sums(as_on_gpu, assert_same_bits):
    a = integers(1, (3, 5, 9), 20)
    b = integers(2, (3, 9, 4), 20)
    c = integers(3, (3, 5, 4), 20)
    for options in (REQUESTS["fixed"], SLICES, REQUESTS["correct"]):
        left = hg.prepare(a, "left", **options)
        right = hg.prepare(b[0], "right", **options)
        want = hg.matmul(a, b, **options)
        assert_same_bits(on_host(hg.matmul(left, b)), on_host(want))
        small = hg.matmul(left, b, workspace=200000, return_report=True)[0]
        assert_same_bits(on_host(small), on_host(want))
        want = hg.matmul(a, b[0], **options)
        for _ in range(2):
            assert_same_bits(on_host(hg.matmul(a, right)), on_host(want))
        want = hg.gemm(a, b, c, alpha=0.3, beta=0.7, **options)
        for _ in range(2):
            got = hg.gemm(left, b, c, alpha=0.3, beta=0.7)
            assert_same_bits(on_host(got), on_host(want))


def test_a_device_prepares_without_a_look_at_numbers(as_on_gpu, monkeypatch):
    a, _ = pair()
    hg.prepare(a, "left", scheme=FIXED)
    monkeypatch.setattr(np, "isfinite", None)
    assert isinstance(hg.prepare(a, "left", scheme=FIXED).split, PreparedResidues)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_operands_are_prepared_in_the_dtype_that_products_take(as_on_gpu, dtype):
    """Their own where the device chooses between words, float32 elsewhere."""
    for n, takes_own in ((6, False), (1024, True)):
        x = torch.ones(n, n).to(dtype).to(DEVICE)
        want = device_array(x).dtype if takes_own else np.dtype(np.float32)
        for _ in range(2):
            assert hg.prepare(x, "left").operand.dtype == want


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_operands_like_an_earlier_one_are_prepared_without_a_plan_of_their_own(
    as_on_gpu, assert_same_bits, monkeypatch, kind, side
):
    options = REQUESTS[kind]
    first, second = (integers(seed, (5, 9), 20) for seed in (1, 2))
    hg.prepare(first, side, **options)
    with monkeypatch.context() as patch:
        patch.setattr("hifigemm.running.plans.plan_for", None)
        kept = hg.prepare(second, side, **options)
        if kind == "correct":
            # Other bits have another plan.
            with pytest.raises(TypeError):
                hg.prepare(integers(3, (5, 9), 11), side, **options)
    store.forget()
    new = hg.prepare(second, side, **options)
    assert kept.plan == new.plan
    assert_same_bits(on_host(kept.operand), on_host(new.operand))
    if kind not in ("fixed", "slices", "correct"):
        assert kept.split is new.split is None
        return
    assert kept.split.count == new.split.count
    assert getattr(kept.split, "bits", None) == getattr(new.split, "bits", None)
    assert_same_bits(on_host(kept.split.planes), on_host(new.split.planes))
    assert_same_bits(on_host(kept.split.exponents), on_host(new.split.exponents))


@pytest.mark.parametrize("kind", ["fixed", "correct"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_operands_of_another_dtype_and_order_are_copied_in_the_order_of_launches(
    as_on_gpu, assert_same_bits, kind, dtype
):
    """A conversion keeps the strides of a tensor, for which the launches are not."""
    options = REQUESTS[kind]
    a, b = pair(bits=(4, 4))
    like = a.to(dtype).mT.contiguous().mT
    plan = None
    if dtype is torch.float32:
        plan = hg.make_plan(a, b, **options)
        options = {"plan": plan}
    for _ in range(2):
        left = hg.prepare(like, "left", **options)
        right = b if plan is not None else b.to(dtype)
        want = on_host(a) @ on_host(b)
        np.testing.assert_array_equal(on_host(hg.matmul(left, right)), want)
