"""Later exact products of a kind begin before the host knows their bits: the residues
tell whether the moduli hold them, and nothing is written where they do not.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.engines.cuda import lowering
from tests.engines.stand_in import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
CORRECT = {"accuracy": "correct", "scheme": hg.Ozaki2(scaling="fast")}
M, K, N = 5, 23, 6


def integers(rng, shape, bits, dtype=np.float64):
    """Integers of which one of each vector has so many bits, and all are as large."""
    x = rng.integers(2 ** (bits - 1), 2**bits, shape) | 1
    return (x * rng.choice([-1, 1], shape)).astype(dtype)


def pair(seed, bits, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return integers(rng, (M, K), bits, dtype), integers(rng, (K, N), bits, dtype)


def on_gpu(*arrays):
    return tuple(torch.from_numpy(x).to(DEVICE) for x in arrays)


@pytest.fixture
def looks(as_on_gpu, monkeypatch):
    """How often the operands of a call are looked at before their product begins."""
    count = []
    own = lowering.required_bits_of

    def counted(*arguments):
        inspect = own(*arguments)

        def look(a, b):
            count.append(1)
            return inspect(a, b)

        return look

    monkeypatch.setattr(lowering, "required_bits_of", counted)
    return count


def multiply(a, b, looks, **options):
    """The product as NumPy has it, its scheme, and the looks at the operands."""
    before = len(looks)
    c, report = hg.matmul(*on_gpu(a, b), return_report=True, **CORRECT, **options)
    want = hg.matmul(a, b, accuracy="correct")
    np.testing.assert_array_equal(c.cpu().numpy(), want)
    return report.scheme, len(looks) - before


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_operands_like_those_before_are_not_looked_at(looks, dtype):
    first, _ = multiply(*pair(0, 20, dtype), looks)
    for seed in range(1, 4):
        assert multiply(*pair(seed, 20, dtype), looks) == (first, 0)
    # A few bits less, which the moduli hold as well.
    assert multiply(*pair(4, 18, dtype), looks)[1] == 0


def test_other_operands_get_moduli_of_their_own(looks):
    counts = {}
    for bits in (9, 20, 40):
        counts[bits] = multiply(*pair(bits, bits), looks)[0].num_moduli
    assert counts[9] < counts[20] < counts[40]
    # Shorter operands are served once by the moduli of those before, then by their own.
    for bits in (20, 9):
        scheme, seen = multiply(*pair(bits + 1, bits), looks)
        assert (scheme.num_moduli > counts[bits], seen) == (True, 0)
        for expected in (1, 0):
            scheme, seen = multiply(*pair(bits + 2, bits), looks)
            assert (scheme.num_moduli, seen) == (counts[bits], expected)
    # Longer ones are refused, and come first the next time.
    for bits in (20, 40):
        for expected in (1, 0):
            scheme, seen = multiply(*pair(bits + 3, bits), looks)
            assert (scheme.num_moduli, seen) == (counts[bits], expected)


def test_an_operand_with_no_bit_to_spare_does_not_hide_those_of_the_other(looks):
    a = pair(0, 20)[0]
    long, short = (pair(1, bits)[1] for bits in (50, 9))
    wide = multiply(a, long, looks)[0].num_moduli
    assert multiply(a, short, looks) == (hg.Ozaki2(num_moduli=wide, scaling="fast"), 0)
    scheme, seen = multiply(a, short, looks)
    assert (scheme.num_moduli < wide, seen) == (True, 1)


def test_reports_speak_of_their_own_operands(looks):
    a, b = pair(0, 20)
    for seed in range(2):
        a, b = pair(seed, 20 - seed)
        _, report = hg.matmul(*on_gpu(a, b), return_report=True, **CORRECT)
    assert (
        f"{report.scheme.num_moduli} moduli hold all bits of the operands"
        in report.reason
    )
    assert "exact product of" not in report.reason


def test_one_bit_too_many_is_one_too_many(looks):
    """Of operands that the moduli hold to the last bit."""
    a, b = pair(1, 20)
    scheme, _ = multiply(a, b, looks)
    while True:
        a[0, 0] /= 2  # one bit more below the others
        longer, seen = multiply(a, b, looks)
        if seen:
            break
        assert longer == scheme
    assert longer.num_moduli == scheme.num_moduli + 1


def test_what_is_refused_writes_nothing(looks):
    """C is the result too, and is read again by the executable that comes behind."""
    rng = np.random.default_rng(3)
    for bits in (12, 12, 40, 12):
        a, b = pair(bits, bits)
        c = rng.integers(-9, 9, (M, N)).astype(np.float64)
        want = hg.gemm(a, b, c, alpha=2.0, beta=4.0, accuracy="correct")
        x, y, z = on_gpu(a, b, c.copy())
        hg.gemm(x, y, z, alpha=2.0, beta=4.0, out=z, **CORRECT)
        np.testing.assert_array_equal(z.cpu().numpy(), want)
    assert looks


def test_one_operand_on_both_sides(looks):
    for bits in (12, 12, 40, 12):
        a, _ = pair(bits, bits)
        want = hg.numpy.einsum("ij,kj->ik", a, a, accuracy="correct")
        (x,) = on_gpu(a)
        got = hg.numpy.einsum("ij,kj->ik", x, x, **CORRECT)
        np.testing.assert_array_equal(got.cpu().numpy(), want)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_vectors_with_inf_or_nan_have_no_bits(looks, bad):
    multiply(*pair(0, 20), looks)
    a, b = pair(1, 20)
    a[1, 2] = bad
    assert multiply(a, b, looks)[1] == 0
    b[0, 0] = bad
    a[1, 3] = 2.0**-300
    assert multiply(a, b, looks)[1] == 0  # beside the Inf or NaN


def test_zeros_are_served_once_and_ask_for_another_plan(looks):
    a, b = pair(0, 20)
    multiply(a, b, looks)
    assert multiply(0 * a, 0 * b, looks)[1] == 0
    assert multiply(0 * a, 0 * b, looks)[1] == 1
    assert multiply(a, b, looks)[1] == 1


# Numbers, which the device keeps by the error ratio or by the exact product.


def numbers(seed, phi, dtype):
    rng = np.random.default_rng(seed)

    def entries(shape):
        return (
            (rng.random(shape) - 0.5) * np.exp(phi * rng.standard_normal(shape))
        ).astype(dtype)

    return entries((40, 64)), entries((64, 30))


@pytest.mark.parametrize(
    ("dtype", "accuracy"), [(np.float64, 1e-15), (np.float32, 1e-6)]
)
def test_numbers_of_like_operands_need_no_look(looks, as_on_gpu, dtype, accuracy):
    as_on_gpu.costs = SimpleNamespace(
        residue_seconds=lambda problem, count, estimate: 1.0 * count,
        native_seconds=lambda problem: 99.0,
        halves_pay=lambda m, n, k, planes: False,
        sum_seconds=lambda problem: 1e9,
    )
    counts = []
    for seed, phi in ((0, 0.3), (1, 0.3), (2, 0.5), (3, 8.0), (4, 8.0), (5, 0.3)):
        a, b = numbers(seed, phi, dtype)
        before = len(looks)
        c, report = hg.matmul(*on_gpu(a, b), accuracy=accuracy, return_report=True)
        sizes = np.abs(a).astype(float) @ np.abs(b)
        exact = np.array(
            hg.matmul(a.astype(float), b.astype(float), accuracy="correct")
        )
        error = np.abs(c.cpu().numpy() - exact)
        u = np.finfo(dtype).eps / 2
        assert (error <= (accuracy + 2 * u) * sizes).all()
        assert report.bound <= accuracy
        scheme = report.scheme
        counts.append((len(looks) - before, scheme.num_moduli))
    first = counts[0][1]
    # The first call plans; the next ones need no look, until data are wide.
    assert counts[1:3] == [(0, first), (0, first)]
    assert counts[3][0] == 1
    assert counts[3][1] > first


def test_a_number_that_is_refused_keeps_c(looks, as_on_gpu):
    """alpha and beta come behind the product: C is the result, and is read again."""
    as_on_gpu.costs = SimpleNamespace(
        residue_seconds=lambda problem, count, estimate: 1.0 * count,
        native_seconds=lambda problem: 99.0,
        halves_pay=lambda m, n, k, planes: False,
        sum_seconds=lambda problem: 1e9,
    )
    rng = np.random.default_rng(0)
    for seed, phi in enumerate((0.3, 0.3, 8.0, 8.0, 0.3)):
        a, b = numbers(seed, phi, np.float64)
        c = rng.standard_normal((40, 30))
        want = hg.gemm(a, b, c, alpha=1.5, beta=0.75, accuracy="correct")
        x, y, z = on_gpu(a, b, c.copy())
        hg.gemm(x, y, z, alpha=1.5, beta=0.75, out=z, accuracy=2e-15)
        sizes = 1.5 * np.abs(a) @ np.abs(b) + 0.75 * np.abs(c)
        assert (np.abs(z.cpu().numpy() - want) <= 4e-15 * sizes).all()
    assert looks
