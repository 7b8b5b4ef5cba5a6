"""C^H S C is exactly Hermitian where S is."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from tests.exact_values import same_bits
from tests.fuzz.three_factors import rounded_product


def random(shape, dtype=np.float64):
    rng = np.random.default_rng(list(shape))
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def hermitian(n, dtype):
    s = random((n, n), dtype)
    return s + s.conj().T


@pytest.mark.parametrize("accuracy", [None, "fp64", 1e-14, 1e-30, "correct"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_results_are_hermitian_where_s_is(dtype, accuracy):
    c = random((30, 7), dtype)
    s = hermitian(30, dtype)
    if accuracy == 1e-14 and np.finfo(dtype).eps > 1e-10:
        accuracy = 1e-6
    value = hnp.congruence(c, s, accuracy=accuracy)
    assert value.dtype == dtype
    np.testing.assert_array_equal(value, value.conj().T)
    np.testing.assert_allclose(value, c.conj().T @ s @ c, rtol=1e-3, atol=1e-3)


def test_complex_c_and_a_real_symmetric_s():
    c = random((9, 4), np.complex128)
    s = hermitian(9, np.float64)
    value = hnp.congruence(c, s)
    np.testing.assert_array_equal(value, value.conj().T)
    assert (np.diag(value).imag == 0).all()


def test_other_matrices_are_not_mirrored():
    c = random((5, 3))
    s = random((5, 5))
    stack = np.stack([s, s + s.T])
    value = hnp.congruence(c, stack)
    assert (value[0] != value[0].T).any()
    assert (value[1] == value[1].T).all()
    np.testing.assert_allclose(value, c.T @ stack @ c)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_correct_results_are_rounded_once(dtype):
    c = random((2, 6, 3), dtype)
    s = hermitian(6, dtype)
    value, report = hnp.congruence(c, s, accuracy="correct", return_report=True)
    assert report.correct
    for z in range(2):
        assert same_bits(value[z], rounded_product(c[z].conj().T, s, c[z]))


def test_forms_of_skew_matrices_are_exact_zeros():
    c = random((20, 5))
    s = random((20, 20))
    value = hnp.congruence(c, s - s.T, accuracy=hg.Relative(1e-10))
    assert (np.diag(value) == 0).all()
    np.testing.assert_array_equal(value, -value.T)


def test_the_report_of_a_chain_bounds_the_whole():
    c = random((6, 3))
    s = hermitian(6, np.float64)
    out = np.empty((3, 3))
    value, report = hnp.congruence(c, s, accuracy=1e-12, out=out, return_report=True)
    assert value is out
    assert len(report.reports) == 2
    assert report.bound <= 1.1e-12
    exact = rounded_product(c.T, s, c)
    size = abs(c).T @ abs(s) @ abs(c)
    assert (abs(value - exact) <= report.bound * size * 1.01).all()


def test_errors_have_numbers():
    with pytest.raises(np.linalg.LinAlgError, match=r"s has shape \(2, 3\)"):
        hnp.congruence(np.ones((3, 2)), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"c has shape \(2, 3\), .*: 2 != 3"):
        hnp.congruence(np.ones((2, 3)), np.ones((3, 3)))
    with pytest.raises(ValueError, match="c has 1 axes"):
        hnp.congruence(np.ones(3), np.ones((3, 3)))


@pytest.mark.torch
def test_gradients_flow_through_chains(torch):
    c = torch.from_numpy(random((4, 2))).requires_grad_()
    s = torch.from_numpy(hermitian(4, np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda c: hnp.congruence(c, s.detach()), [c])
