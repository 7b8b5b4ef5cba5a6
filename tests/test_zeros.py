"""Signs of zeros: a value that rounds to zero keeps its sign, an exact zero is +0; by
every exact scheme, with the compiled core and without it, held against fractions.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import core
from tests import hard_matrices as gen
from tests.conftest import real_pair
from tests.exact_values import exact_results, same_bits

FAMILIES = ("vanishing", "half_the_smallest", "signed_zeros", "underflowing")
DTYPES = ("float64", "float32", "complex128", "complex64")
SCHEMES = {
    "auto": {"accuracy": "correct"},
    "double-double": {"scheme": "double-double"},
    "ozaki1": {"scheme": "ozaki1", "accuracy": "correct"},
    "ozaki1 of fp16": {"scheme": hg.Ozaki1("fp16", mode="correct")},
    "ozaki2": {"scheme": "ozaki2", "accuracy": "correct"},
}
COUNT = 20
"""Matrices of a stack."""


@pytest.fixture(params=["core", "numpy"])
def sums(request):
    """Sums of the compiled core, and of NumPy alone."""
    if request.param == "numpy":
        request.getfixturevalue("without_core")
    elif core.loaded()[0] is None:
        pytest.skip("the core is not built")


def stacks(family, dtype, seed, m=3, k=6, n=2):
    """Stacks of operands, of which every other complex one has a component of zeros."""
    rng = np.random.default_rng(seed)
    pairs = []
    for z in range(COUNT):
        if np.dtype(dtype).kind != "c":
            pairs.append(real_pair(rng, family, m, k, n, dtype))
            continue
        real = np.finfo(dtype).dtype
        a, b = gen.as_complex(real_pair, rng, family, m, k, n, real)
        part = [a.real, a.imag, b.real, b.imag][rng.integers(4)]
        part[...] = np.where(z % 2, part, rng.choice([0.0, -0.0]))
        pairs.append((a, b))
    return tuple(np.stack(x) for x in zip(*pairs, strict=True))


def check(results, a, b, kind="nearest", **gemm):
    """Arrays of results, each a stack, have the bits of fractions."""
    c = gemm.pop("c", None)
    for z in range(len(a)):
        addend = None if c is None else c[z]
        expected = exact_results(a[z], b[z], kind, c=addend, **gemm)
        for x, y in zip(results, expected, strict=True):
            assert same_bits(x[z], y), (z, x[z], y)


@pytest.mark.usefixtures("sums")
@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_results_that_are_rounded_once(scheme, family, dtype):
    num_judged = 0
    for seed in range(2):
        a, b = stacks(family, dtype, seed)
        try:
            result = hg.matmul(a, b, **SCHEMES[scheme])
        except hg.AccuracyError:
            # Exponents that no number of moduli holds.
            assert scheme == "ozaki2"
            continue
        check((result,), a, b)
        num_judged += 1
    assert num_judged or family != "half_the_smallest"


@pytest.mark.usefixtures("sums")
@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["pair", "enclosure"])
@pytest.mark.parametrize("scheme", ["auto", "ozaki1"])
def test_both_parts_of_pairs_and_enclosures(scheme, kind, family, dtype):
    for seed in range(2):
        a, b = stacks(family, dtype, seed)
        check(hg.matmul(a, b, result=kind, scheme=scheme), a, b, kind)


@pytest.mark.usefixtures("sums")
@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scheme", ["auto", "double-double", "ozaki1"])
def test_powers_of_two_that_underflow_and_sums_with_c(scheme, family, dtype):
    rng = np.random.default_rng(1)
    a, b = stacks(family, dtype, 2)
    options = {"accuracy": "correct", "scheme": scheme}
    for alpha in (-1.0, 2.0**-30, -(2.0**20)):
        check((hg.gemm(a, b, alpha=alpha, **options),), a, b, alpha=alpha)

    # C cancels the rounded product, or is a zero of either sign, or the smallest number.
    near = np.stack([exact_results(x, y)[0] for x, y in zip(a, b, strict=True)])
    parts = near.view(near.real.dtype)
    least = np.finfo(dtype).smallest_subnormal
    for alpha, beta in ((1.0, -1.0), (-2.0, 2.0), (0.25, 1.0)):
        factor = parts.dtype.type(-alpha / beta)
        kinds = rng.integers(0, 4, parts.shape)
        c = np.choose(kinds, [factor * parts, -0.0 * abs(parts), 0 * parts, -least])
        c = c.astype(parts.dtype).view(near.dtype)
        scalars = {"alpha": alpha, "beta": beta}
        check((hg.gemm(a, b, c, **scalars, **options),), a, b, c=c, **scalars)


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 1), (1, 40, 5), (5, 40, 1)])
def test_vectors_and_thin_products(m, k, n):
    for family in FAMILIES:
        a, b = stacks(family, "float64", 3, m, k, n)
        check((hg.matmul(a, b, accuracy="correct"),), a, b)
        check(hg.matmul(a, b, result="pair"), a, b, "pair")
        dot = hg.matmul(a[0, 0], b[0, :, 0], accuracy="correct")
        assert same_bits(np.asarray(dot), exact_results(a[0], b[0])[0][0, 0])


@pytest.mark.usefixtures("sums")
def test_operands_of_two_dtypes():
    for family in FAMILIES:
        a, _ = stacks(family, "float32", 4)
        _, b = stacks(family, "float64", 5)
        for scheme in ("auto", "double-double", "ozaki1"):
            check((hg.matmul(a, b, accuracy="correct", scheme=scheme),), a, b)


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["correct", 1e-6])
def test_sums_without_terms_and_sums_of_zeros_are_positive_zeros(accuracy, dtype):
    minus = np.full((3, 4), -1.0, dtype)
    for a in (np.full((2, 3), 0.0, dtype), np.full((2, 3), -0.0, dtype)):
        for x, y in ((a, minus), (-minus.T, a.T), (a[:, :0], minus[:0])):
            options = {"accuracy": accuracy, "scheme": "ozaki1"}
            result = hg.matmul(x, y, **options)
            assert same_bits(result, np.zeros_like(result))
            result = hg.gemm(x, y, alpha=-2.0, **options)
            assert same_bits(result, np.zeros_like(result))


def test_beta_c_alone_keeps_the_signs_of_c():
    a = np.ones((2, 2))
    c = np.array([[0.0, -0.0], [1.0, -1.0]])
    result = hg.gemm(a, a, c, alpha=0.0, beta=1.0, accuracy="correct")
    assert same_bits(result, c)


def test_tensors_have_the_bits_of_arrays(torch):
    for family in FAMILIES:
        for dtype in DTYPES:
            a, b = stacks(family, dtype, 6)
            x, y = torch.from_numpy(a), torch.from_numpy(b)
            for scheme in ("auto", "double-double", "ozaki1"):
                result = hg.matmul(x, y, accuracy="correct", scheme=scheme)
                check((result.numpy(),), a, b)
            pair = hg.matmul(x, y, result="pair")
            check([part.numpy() for part in pair], a, b, "pair")
