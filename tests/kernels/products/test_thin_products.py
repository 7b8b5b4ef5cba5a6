"""Products with few columns: every entry of the kernel is that of its plain twin for
integers, and within the bound of its roundings for other numbers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

pytest.importorskip("flint")

from experiments.systems import FAMILIES, exact_parts, misses
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.kernels.products.thin_products import residual, roundings, thin_product
from hifigemm.linalg import arrays
from hifigemm.linalg.certificate import prove
from hifigemm.linalg.inverse import approximate_inverse
from hifigemm.linalg.refinement import enclosure
from hifigemm.linalg.scaling import scaled_system
from hifigemm.linalg.upward import gamma
from hifigemm.numerics import magnitudes
from tests.linalg.worst_arithmetic import exact_matmul, fractions
from tests.linalg.worst_arithmetic import moduli as exact_moduli

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TWINS = {False: magnitudes.thin_product, True: magnitudes.magnitude_product}
SHAPES = [(1, 1, 1), (3, 5, 2), (16, 64, 1), (17, 65, 3), (40, 130, 4), (5, 0, 2)]


def by_kernel(a, v, of_magnitudes):
    """The kernel's product as an array of NumPy."""
    tensors = (torch.from_numpy(x).to(DEVICE) for x in (a, v))
    return thin_product(*tensors, of_magnitudes=of_magnitudes).cpu().numpy()


@pytest.mark.parametrize("of_magnitudes", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_integers_have_the_bits_of_the_twin(shape, of_magnitudes):
    m, n, k = shape
    rng = np.random.default_rng(m)
    a = rng.integers(-(2**20), 2**20, (m, n)).astype(float)
    v = rng.integers(0, 2**20, (n, k)).astype(float)
    want = TWINS[of_magnitudes](a, v)
    for layout in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(by_kernel(layout, v, of_magnitudes), want)


@pytest.mark.parametrize("of_magnitudes", [False, True])
def test_terms_pass_no_more_roundings_than_there_are(of_magnitudes):
    rng = np.random.default_rng(0)
    a = np.ldexp(rng.standard_normal((20, 70)), rng.integers(-30, 30, (20, 70)))
    v = rng.random((70, 2))
    got = fractions(by_kernel(a, v, of_magnitudes))
    left = exact_moduli(fractions(a)) if of_magnitudes else fractions(a)
    exact = exact_matmul(left, fractions(v))
    sizes = exact_matmul(exact_moduli(fractions(a)), fractions(v))
    assert roundings(70) == 9
    for i, j in np.ndindex(20, 2):
        assert abs(got[i][j] - exact[i][j]) <= Fraction(gamma(9)) * sizes[i][j]


def test_inf_and_nan_spread_as_in_any_sum():
    a = np.array([[1.0, np.inf], [np.nan, 2.0], [3.0, 4.0]])
    product = by_kernel(a, np.ones((2, 1)), True)
    np.testing.assert_array_equal(product, [[np.inf], [np.nan], [7.0]])


def test_more_columns_are_refused():
    with pytest.raises(ValueError, match="5 columns"):
        by_kernel(np.ones((2, 2)), np.ones((2, 5)), False)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (17, 65), (18, 200)])
def test_residuals_are_good_to_two_words(shape, count):
    m, n = shape
    rng = np.random.default_rng(n)
    a = np.ldexp(rng.standard_normal((m, n)), rng.integers(-9, 9, (m, n)))
    x = rng.standard_normal((count, n)) * np.array([[1.0], [2.0**-54]])[:count]
    b = (a @ x.T).sum(axis=1)
    for layout in (a, np.asfortranarray(a)):
        tensors = [torch.from_numpy(y).to(DEVICE) for y in (layout, x, b)]
        q, sizes, partial_sums = residual(*tensors)
        unit = Fraction(1, 2**53)
        share = (3 * partial_sums + 10) * unit**2
        for i in range(m):
            terms = [Fraction(b[i])]
            for word in x:
                terms += [-Fraction(v) * Fraction(y) for v, y in zip(a[i], word)]
            exact = sum(terms)
            size = sum(map(abs, terms))
            got = Fraction(q[i].item())
            assert abs(got - exact) <= unit * abs(got) + share * size
            assert abs(Fraction(sizes[i].item()) - size) <= size * partial_sums * unit
            assert abs(exact) < 2.0**-45 * size, "nothing cancels"


@pytest.fixture
def by_kernels(monkeypatch):
    """Device arrays are multiplied by the kernels, also those of the CPU."""

    def has_kernel(a, v):
        is_real = a.dtype.kind == v.dtype.kind == "f"
        return is_real and not arrays.is_on_host(a) and v.shape[1] <= 4

    monkeypatch.setattr(arrays, "_has_kernel", has_kernel)


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("family", ["random", "condition 1e9", "tridiagonal", "zeros"])
def test_enclosures_by_kernels_hold(by_kernels, family, words):
    draw = FAMILIES["random" if family == "zeros" else family]
    systems = (draw(np.random.default_rng(seed)) for seed in range(9))
    for a, b in [system for system in systems if len(system[0]) < 10][:2]:
        if family == "zeros":
            b[:, 0] = 0.0
        b = b[:, :2]
        on_device = [wrap(torch.from_numpy(x).to(DEVICE)) for x in (a, b)]
        system = scaled_system(*on_device)
        proof = prove(system.a, approximate_inverse(system.a))
        enclosed = enclosure(system, proof, words)
        radius = enclosed.of_one_word()
        x, radius = (
            unwrap(y).cpu().numpy() for y in system.restored(enclosed.x, radius)
        )
        assert misses(x, radius, exact_parts(a, b)) == []
        assert (radius <= np.spacing(np.abs(x)) * 2.0**9).all()
        if family == "zeros" and words == 1:
            assert (radius[:, 0] == 0.0).all()


MEASURED_SPILLS = {
    # The PTX compiler keeps threads to 48 and 56 registers, so that more programs fit,
    # and puts one or two words into memory instead. None of the 255 is missed.
    "1 columns, magnitudes True, order (1, 0)": {"3.9": {80: 3}},
    "1 columns, magnitudes False, order (0, 1)": {
        "3.6": {86: 4, 89: 4},
        "3.9": {86: 4, 89: 4},
    },
}
"""Stores and loads by case, Triton and architecture; there are none elsewhere."""


def test_compiled_thin_products(compiled, most_spills):
    for line in compiled("thin_products"):
        assert line["spills"] <= most_spills(line, 0, MEASURED_SPILLS), line
        assert line["LDG.E.128"] > 0, line
