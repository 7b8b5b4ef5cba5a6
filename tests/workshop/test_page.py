from __future__ import annotations

import pytest

import hifigemm as hg
from hifigemm.workshop.page import _short

SCHEMES = [
    (hg.Ozaki2(), "Ozaki2()"),
    (hg.Ozaki2(num_moduli=14, scaling="fast"), "Ozaki2(num_moduli=14, scaling='fast')"),
    (hg.Multiword("fp32", 2, 3), "Multiword(product='fp32')"),
    (hg.Corrected(scale=False, block=16), "Corrected(scale=False, block=16)"),
    (hg.DoubleDouble(), "DoubleDouble()"),
]


@pytest.mark.parametrize(("scheme", "text"), SCHEMES)
def test_schemes_are_shown_without_their_usual_fields(scheme, text):
    assert _short(str(scheme)) == _short(repr(scheme)) == text
    assert eval(text, vars(hg)) == scheme


def test_names_are_shown_as_they_are():
    assert _short("cublas-emulated") == "cublas-emulated"
