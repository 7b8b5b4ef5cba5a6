"""The fuzzer: products at random keep their promises, and it tells where they do not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hifigemm.schemes import ozaki1
from hifigemm.study.reference import correctly_rounded
from tests.fuzz.cases import draw, laid_out
from tests.fuzz.judge import Exact
from tests.fuzz.run import fuzz


@pytest.mark.parametrize(
    ("seed", "cases"),
    [(1, 60), pytest.param(3, 60, marks=pytest.mark.torch), pytest.param(2, 2000, marks=pytest.mark.slow)],
)
def test_products_keep_their_promises_however_they_are_asked_for(seed, cases):
    faults: list[str] = []
    counts = fuzz(seed, range(cases), faults.append)
    assert not faults, f"{len(faults)} of {counts.total()} products, python -m tests.fuzz SEED INDEX:\n" + "\n".join(
        faults
    )
    outcomes = Counter[str]()
    for (*_, outcome), count in counts.items():
        outcomes[outcome] += count
    assert outcomes["refused"] < outcomes["kept"] / 10


def test_wrong_entries_in_blocks_of_one_column_are_found(monkeypatch):
    def spoiled(b):
        out = right(b)
        if b.dtype.kind == "c" and b.shape[-1] == 1 < b.shape[-2]:
            out[..., -1, 0] = b[..., -1, 0].imag
        return out

    right = ozaki1.embed_right
    monkeypatch.setattr(ozaki1, "embed_right", spoiled)
    faults: list[str] = []
    fuzz(1, range(10), faults.append)
    assert any("Ozaki1" in fault for fault in faults)


def test_a_case_is_drawn_again_from_its_numbers():
    assert str(draw(3, 4)) == str(draw(3, 4))
    assert draw(3, 4).ways == draw(3, 4).ways != draw(3, 5).ways


def test_layouts_hold_the_same_entries():
    rng = np.random.default_rng(1)
    x, strides = rng.random((3, 4, 5)), set()
    for _ in range(200):
        view = laid_out(rng, x)
        np.testing.assert_array_equal(view, x)
        strides |= set(view.strides)
    assert {8, 16, 32, 64, 128, -8} <= strides


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_judge_sees_one_component_one_unit_away(make_pair, dtype):
    for name in ("phi_1", "cancelling", "underflowing", "overflowing"):
        a, b = make_pair(name, 4, 6, 3, dtype)
        expected, exact = correctly_rounded(a, b), Exact(a, b, dtype, None)
        assert not exact.fault(expected, 0.0, True)
        assert not exact.fault(expected, 0.0, False)
        parts = expected.view(expected.real.dtype)
        for wrong in (np.nextafter(parts[1, 2], parts.dtype.type(0)), -parts[1, 2], parts.dtype.type(np.nan)):
            spoiled = parts.copy()
            spoiled[1, 2] = wrong
            if wrong != parts[1, 2] or np.signbit(wrong) != np.signbit(parts[1, 2]):
                assert "not rounded once" in exact.fault(spoiled.view(dtype), 0.0, True) or np.isnan(wrong)
            if np.isnan(wrong):
                assert "NaN" in exact.fault(spoiled.view(dtype), 0.5, False)
