"""CUDA tensors with Inf, NaN, subnormal and huge numbers: the patterns of IEEE
arithmetic, and the bits of NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from tests.conftest import on_gpu
from tests.special_operands import assert_special_values, operands

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float64", "complex64", "complex128")
EXACT = {
    "correct": {"accuracy": "correct"},
    "ozaki1": {"scheme": hg.Ozaki1(num_slices=2)},
    "ozaki1-bf16": {"scheme": hg.Ozaki1(product="bf16", num_slices=2)},
    "ozaki2": {"scheme": hg.Ozaki2(num_moduli=3)},
    "ozaki2-fast": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
    "ozaki2-fast-20": {"scheme": hg.Ozaki2(num_moduli=20, scaling="fast")},
}
"""Options of products with the bits of NumPy, for operands of any exponents."""
ROUNDED = {
    "corrected": {"scheme": hg.Corrected()},
    "corrected-tf32": {"scheme": hg.Corrected("tf32")},
    "multiword": {"scheme": hg.Multiword()},
}
NARROW = {
    "auto": {},
    "native": {"scheme": "native"},
    "fine": {"accuracy": 1e-17},
    "ozaki2-promise": {"scheme": hg.Ozaki2(scaling="fast")},
    "ozaki2-fine": {"scheme": hg.Ozaki2(scaling="fast"), "accuracy": 1e-20},
    "ozaki2-accurate": {"scheme": "ozaki2"},
}
"""Options of products that may overflow on the way as the library's do, or refuse
exponents that are far apart.
"""


def check(pairs, options, compared):
    for a, b in pairs:
        x, y = on_gpu(a, b)
        c, report = hg.matmul(x, y, return_report=True, **options)
        found = c.cpu().numpy()
        assert_special_values(found, a, b, report.bound)
        # Without a report nothing is judged: kernels that do all of it take over.
        again = hg.matmul(x, y, **options).cpu().numpy()
        np.testing.assert_array_equal(again, found)
        if compared:
            np.testing.assert_array_equal(found, hg.matmul(a, b, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_exact_schemes_carry_any_special_values_with_the_bits_of_numpy(options, dtype):
    products = (
        4_000 if options.get("scheme") in (EXACT["ozaki2-fast"]["scheme"],) else 1_000
    )
    check(operands(6, products, 10, dtype, True), options, compared=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", ROUNDED.values(), ids=ROUNDED)
def test_products_of_words_carry_any_special_values(options, dtype):
    check(
        operands(7, 4_000 if dtype == "float32" else 1_000, 10, dtype, True),
        options,
        compared=False,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", NARROW.values(), ids=NARROW)
def test_promises_and_native_products_carry_inf_and_nan(options, dtype):
    check(operands(8, 3_000, 10, dtype, False), options, compared=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    {**EXACT, **ROUNDED, **NARROW}.values(),
    ids={**EXACT, **ROUNDED, **NARROW},
)
def test_neither_c_nor_out_is_read_where_beta_is_zero(make_pair, options, dtype):
    a, b = on_gpu(*make_pair("phi_1", 40, 30, 50, dtype))
    want = hg.matmul(a, b, **options)
    for value in (torch.nan, torch.inf):
        spoiled = want.new_full((40, 50), value)
        assert torch.equal(hg.gemm(a, b, spoiled, beta=0.0, **options), want)
        # the second call and later ones may be repeated without planning
        for _ in range(5):
            out = want.new_full((40, 50), value)
            assert hg.matmul(a, b, out=out, **options) is out
            assert torch.equal(out, want)
        out = want.new_full((40, 50), value)
        assert torch.equal(hg.gemm(a, b, out, beta=0.0, out=out, **options), want)


def test_strict_mode_refuses_what_was_repeated_without_planning():
    a = torch.rand(64, 64, dtype=torch.float64, device="cuda")
    for _ in range(3):
        want = hg.matmul(a, a)
    for _ in range(2):
        with hg.strict(), pytest.raises(hg.AccuracyError, match="strict mode"):
            hg.matmul(a, a)
    with hg.strict():
        for _ in range(3):
            assert torch.equal(hg.matmul(a, a, scheme="native"), want)
            assert (
                hg.matmul(a, a, scheme=hg.Ozaki2(num_moduli=15, scaling="fast"))
                .isfinite()
                .all()
            )
    assert torch.equal(hg.matmul(a, a), want)
