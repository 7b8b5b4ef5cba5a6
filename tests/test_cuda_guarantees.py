"""CUDA tensors of every family that grades a product: promises against the exact
product, bits against NumPy's.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from experiments import guarantees
from experiments.grading import FAMILIES, make_pair
from hifigemm.base.formats import FP64
from hifigemm.model.accuracy import resolve

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

N = 256
FORCED = [hg.Ozaki2(scaling="fast"), hg.Ozaki2(), hg.Ozaki1(product="fp64")]
EXPLICIT = [
    hg.Ozaki2(num_moduli=15, scaling="fast"),
    hg.Ozaki2(num_moduli=16),
    hg.Ozaki1(num_slices=4),
]


@pytest.fixture(scope="module", params=FAMILIES)
def operands(request):
    return request.param, guarantees.Operands(request.param, N, 64, "cuda")


@pytest.mark.parametrize("accuracy", guarantees.ACCURACIES)
def test_promises_are_kept_on_every_family(operands, accuracy):
    family, pair = operands
    for method, scheme in guarantees.methods("cuda").items():
        if method == "Ozaki I" and family in ("circulants", "inner dimension scaled"):
            scheme = FORCED[2]  # hundreds of INT8 slices
        row = guarantees.measure(family, N, pair, accuracy, method, scheme)
        assert row["outcome"] == "kept" or (
            row["outcome"] == "refused" and method.startswith("Ozaki II")
        ), row
        if row["outcome"] == "refused" or row["taken"] == "native":
            continue
        assert row["bound_over_u"] <= resolve(accuracy, FP64, N).r / FP64.u
        if accuracy == "fp64":
            assert row["constant"] < 4, row


@pytest.mark.parametrize("scheme", [*FORCED, *EXPLICIT], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_schemes_have_the_bits_of_numpy(assert_same_bits, family, scheme):
    a, b = make_pair(family, 96)
    x, y = (torch.from_numpy(v).cuda() for v in (a, b))
    for accuracy in (None, 1e-13, "correct"):
        if accuracy is not None and scheme in EXPLICIT:
            continue
        # the count that the device takes, if it takes any
        if scheme == FORCED[0] and accuracy != "correct":
            found, report = hg.matmul(
                x, y, scheme=scheme, accuracy=accuracy, return_report=True
            )
            if not report.native:
                assert_same_bits(
                    found.cpu().numpy(), hg.matmul(a, b, scheme=report.scheme)
                )
            continue
        try:
            want = hg.matmul(a, b, scheme=scheme, accuracy=accuracy)
        except hg.AccuracyError:
            with pytest.raises(hg.AccuracyError):
                hg.matmul(x, y, scheme=scheme, accuracy=accuracy)
            continue
        assert_same_bits(
            hg.matmul(x, y, scheme=scheme, accuracy=accuracy).cpu().numpy(), want
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_is_correctly_rounded_with_the_bits_of_numpy(assert_same_bits, family):
    a, b = make_pair(family, N)
    x, y = (torch.from_numpy(v).cuda() for v in (a, b))
    found = hg.matmul(x, y, accuracy="correct").cpu().numpy()
    assert_same_bits(found, hg.matmul(a, b, accuracy="correct"))
    assert np.isfinite(found).all()
