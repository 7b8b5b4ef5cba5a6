"""Products in FP64, real and complex, behind a predicate."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.endings.special import restore_special_values
from hifigemm.kernels.products.native_gemm import fp64_product
from hifigemm.kernels.runtime.common import LARGEST, Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from hifigemm.numerics.bounds import native_bound
from tests.special_operands import assert_special_values, operands

fp64_product = partial(run_recorded, fp64_product)
restore_special_values = partial(run_recorded, restore_special_values)

PLACE = "cuda" if torch.cuda.is_available() else "cpu"


def product(a, b, shift=0, predicate=7, least=0, most=LARGEST):
    """What is written over sevens."""
    a, b = (
        x if isinstance(x, torch.Tensor) else torch.from_numpy(x).to(PLACE)
        for x in (a, b)
    )
    out = torch.full(
        (max(len(a), len(b)), a.shape[1], b.shape[2]), 7.0, dtype=a.dtype, device=PLACE
    )
    bits = torch.tensor([predicate], dtype=torch.int64, device=PLACE)
    with np.errstate(all="ignore"):
        fp64_product(a, b, out, Predicate(bits, least, most), shift)
    return out.cpu().numpy()


def random_stacks(make_pair, dtype, batches, m, k, n):
    """Stacks of matrices of entries of a few magnitudes."""
    pairs = [make_pair("phi_4", m, k, n, dtype, seed=i) for i in range(max(batches))]
    return [
        np.stack(x[:count])
        for x, count in zip(zip(*pairs, strict=True), batches, strict=True)
    ]


def assert_errors_below_those_of_any_order(found, a, b):
    """Each component is a sum of as many products as a real embedding has terms."""
    terms = a.shape[2] * (2 if found.dtype.kind == "c" else 1)
    bound = native_bound(terms, 2.0**-53) * (1 + 1e-12)
    a_re, a_im, b_re, b_im = (
        part(x).astype(np.longdouble) for x in (a, b) for part in (np.real, np.imag)
    )
    size_re = abs(a_re) @ abs(b_re) + abs(a_im) @ abs(b_im)
    size_im = abs(a_re) @ abs(b_im) + abs(a_im) @ abs(b_re)
    assert (abs(found.real - (a_re @ b_re - a_im @ b_im)) <= bound * size_re).all()
    assert (abs(found.imag - (a_re @ b_im + a_im @ b_re)) <= bound * size_im).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("batches", "m", "k", "n"),
    [
        ((1, 1), 5, 7, 3),
        ((1, 1), 65, 33, 70),
        ((2, 1), 64, 16, 64),
        ((1, 3), 128, 32, 64),
        ((2, 2), 640, 16, 128),
        ((2, 2), 64, 17, 33),
        ((1, 1), 1, 1, 1),
    ],
)
def test_errors_stay_below_those_of_any_order(make_pair, dtype, batches, m, k, n):
    a, b = random_stacks(make_pair, dtype, batches, m, k, n)
    assert_errors_below_those_of_any_order(product(a, b), a, b)


def views(x):
    """The same stack in memory of other orders."""
    _, rows, columns = x.shape
    yield x
    yield x.mT.contiguous().mT
    room = x.new_full((len(x), rows, 2 * columns + 1), 3.0)
    room[:, :, 1::2] = x
    yield room[:, :, 1::2]
    room = x.new_full((columns, 3 * rows, len(x)), 3.0).permute(2, 1, 0)
    room[:, ::3] = x
    yield room[:, ::3]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("m", "k", "n"), [(64, 32, 64), (67, 21, 35)])
def test_strides_change_no_bits(make_pair, dtype, m, k, n):
    a, b = (
        torch.from_numpy(x).to(PLACE)
        for x in random_stacks(make_pair, dtype, (2, 1), m, k, n)
    )
    want = product(a, b)
    for left in views(a):
        for right in views(b):
            np.testing.assert_array_equal(product(left, right), want)
    room = torch.full((2, 2 * n, m + 1), 7.0, dtype=a.dtype, device=PLACE)
    out = room.mT[:, 1:, ::2]
    zero = torch.zeros(1, dtype=torch.int64, device=PLACE)
    fp64_product(a, b, out, Predicate(zero, 0, 0))
    np.testing.assert_array_equal(out.cpu().numpy(), want)
    out.fill_(7.0)
    assert (room == 7.0).all()


@pytest.mark.parametrize("shift", [-1074, -1073, -1023, -1022, -1, 0, 1, 1023])
def test_shifts_round_once(shift):
    rng = np.random.default_rng(1)
    a = rng.integers(1, 2**20, (1, 6, 1)).astype(float)
    b = rng.integers(1, 2**20, (1, 1, 5)).astype(float)
    for scale in (1.0, 2.0**-30, 2.0**-1000):
        with np.errstate(all="ignore"):
            want = np.ldexp(a * scale * b, shift)
        np.testing.assert_array_equal(product(a * scale, b, shift), want)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(
    ("predicate", "least", "most"),
    [(5, 6, LARGEST), (5, 0, 4), (0, 0, -1), (2**62, 0, 2**61)],
)
def test_nothing_is_written_where_the_predicate_does_not_hold(
    dtype, predicate, least, most
):
    for size in (3, 64):
        a = np.ones((1, size, size), dtype)
        assert (product(a, a, predicate=predicate, least=least, most=most) == 7.0).all()


def test_complex_results_are_shifted():
    a, b = np.full((1, 2, 1), 3.0 - 2.0j), np.full((1, 1, 3), 1.0 + 4.0j)
    assert (product(a, b, shift=-20) == (11.0 + 10.0j) * 2.0**-20).all()


@pytest.mark.slow
def test_special_values_of_complex_products():
    """Those of the definition, once they are restored behind the same predicate."""
    for a, b in operands(21, 150, 5, "complex128", False):
        left, right, record = (
            torch.from_numpy(x).to(PLACE) for x in (a, b, np.array([5]))
        )
        out = torch.full(
            (len(a), a.shape[1], b.shape[2]), 7.0, dtype=torch.complex128, device=PLACE
        )
        for least in (6, 5):
            predicate = Predicate(record, least, LARGEST)
            with np.errstate(all="ignore"):
                fp64_product(left, right, out, predicate)
                restore_special_values(left, right, out, predicate=predicate)
            if least == 6:
                assert (out == 7.0).all()
        assert_special_values(out.cpu().numpy(), a, b)


def test_special_values_meet_no_padding():
    a, b = np.ones((1, 5, 19)), np.ones((1, 19, 4))
    a[0, 1, 18], b[0, 18, 2] = np.inf, -np.inf
    a[0, 3, 0] = np.nan
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(product(a, b), a @ b)


def test_compiled_native_products(arch, compiled):
    for line in compiled("native"):
        product = line["kernel"] == "_native_kernel" and line["case"] != "float32"
        # FP64 tensor cores of Blackwell: Triton 3.9 takes them, 3.6 does not
        if not (product and arch == 100):
            assert (line["DMMA"] > 0) == (product and arch in (80, 90)), line
        even = line["case"].endswith("n 256")
        if not product or (line["DMMA"] and even):
            assert line["spills"] == 0, line
        if product and even and "float64" in line["case"]:
            assert line["copies"] == ["0x10"], line
        assert "i32" not in line["doubled"], line
