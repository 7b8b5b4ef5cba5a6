"""syrk and herk: exactly symmetric results, whose entries keep the promise of
matmul.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.functions import symmetric
from hifigemm.testing.reference import meets_promise
from tests.hard_matrices import as_complex, phi_matrix

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
OPTIONS = (
    {},
    {"accuracy": 1e-4},
    {"accuracy": "correct"},
    {"scheme": "ozaki1"},
    {"scheme": hg.Ozaki2(num_moduli=7, scaling="fast")},
    {"scheme": hg.Ozaki2(num_moduli=7, scaling="accurate")},
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of three rows are cut further."""
    monkeypatch.setattr(symmetric, "SMALLEST", 2)


def matrix(dtype, shape):
    rng = np.random.default_rng(0)
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        real = dtype.type(0).real.dtype
        return as_complex(phi_matrix, rng, shape, 2.0, real)
    return phi_matrix(rng, shape, 2.0, dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_symmetric_to_the_bit_and_keep_the_promise(dtype, options):
    a = matrix(dtype, (11, 7))
    for function, trans, left, right in (
        (hnp.syrk, "N", a, a.T),
        (hnp.syrk, "T", a.T, a),
        (hnp.herk, "N", a, a.T.conj()),
        (hnp.herk, "C", a.T.conj(), a),
    ):
        c, report = function(a, trans, **options, return_report=True)
        assert c.dtype == dtype
        mirror = c.mT if function is hnp.syrk else c.mT.conj()
        np.testing.assert_array_equal(c, mirror)
        if function is hnp.herk and c.dtype.kind == "c":
            assert (np.diagonal(c).imag == 0).all()
        assert meets_promise(c, left, right, report.bound).all()
        assert str(len(report.reports)) in str(report)
        if options.get("accuracy") == "correct":
            assert report.correct
            assert (
                c.tobytes()
                == np.ascontiguousarray(
                    hg.matmul(left, right, accuracy="correct")
                ).tobytes()
            )


@pytest.mark.parametrize(
    "options", [{}, {"scheme": "multiword"}, {"scheme": "ozaki1"}], ids=str
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_a_kind_are_symmetric_again_and_again(monkeypatch, dtype, options):
    """Of stacks, which no BLAS multiplies with their own transposes, and of a
    matrix.
    """
    monkeypatch.setattr(symmetric, "SMALLEST", 512)
    a = matrix(dtype, (40, 300))
    for x in (a, np.stack([a, a[::-1]])):
        first = hnp.syrk(x, **options)
        np.testing.assert_array_equal(first, first.mT)
        for _ in range(2):
            np.testing.assert_array_equal(hnp.syrk(x, **options), first)


@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "correct"},
        {"scheme": hg.Ozaki1(num_slices=4)},
        {"scheme": hg.Ozaki2(num_moduli=9, scaling="fast")},
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_scaled_by_themselves_give_the_bits_of_matmul(dtype, options):
    if np.dtype(dtype).kind == "c" and isinstance(options.get("scheme"), hg.Ozaki1):
        pytest.skip("only real slices give the bits of matmul")
    a = matrix(dtype, (19, 23))
    np.testing.assert_array_equal(hnp.syrk(a, **options), hg.matmul(a, a.T, **options))


def test_blocks_take_little_more_than_half_of_the_products():
    a = np.ones((16, 3))
    _, report = hnp.syrk(a, return_report=True)
    # 8 blocks on the diagonal, and one below for each cut
    assert len(report.reports) == 8 + 4 + 2 + 1


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (0, 4), (5, 0), (1, 1), (3, 0, 2)])
def test_stacks_and_empty_operands(shape):
    a = np.arange(np.prod(shape), dtype=float).reshape(shape)
    np.testing.assert_array_equal(hnp.syrk(a), a @ a.mT)
    np.testing.assert_array_equal(hnp.herk(a, "C"), a.mT @ a)


def test_infinities_and_signed_zeros_stay():
    a = np.array([[np.inf, 1.0], [0.0, 1.0], [5e-324, 0.0], [-5e-324, 0.0]])
    c = hnp.syrk(a, accuracy="correct")
    np.testing.assert_array_equal(c, hg.matmul(a, a.T, accuracy="correct"))
    np.testing.assert_array_equal(np.signbit(c), np.signbit(c.T))


def test_out_and_integers():
    a = np.arange(12).reshape(4, 3)
    out = np.empty((4, 4), int)
    assert hnp.syrk(a, out=out) is out
    np.testing.assert_array_equal(out, a @ a.T)


def test_errors():
    with pytest.raises(hg.PlanError, match='trans=\'C\': expected "N" or "T"'):
        hnp.syrk(np.ones((2, 2)), "C")
    with pytest.raises(hg.PlanError, match='trans=\'T\': expected "N" or "C"'):
        hnp.herk(np.ones((2, 2)), "T")
    with pytest.raises(ValueError, match=r"a has 1 axes, its shape is \(3,\)"):
        hnp.syrk(np.ones(3))
