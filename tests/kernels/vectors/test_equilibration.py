"""Matrices in scale: the kernels have the bits of the plain function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.kernels.vectors import equilibration
from hifigemm.linalg import arrays
from hifigemm.numerics.equilibration import MODERATE, equilibrated, matrix_in_scale
from tests.numerics.test_equilibration import systems

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_kernels(a):
    """What the kernels make of an array of NumPy, as arrays of NumPy."""
    found = equilibration.matrix_in_scale(torch.from_numpy(a).to(DEVICE))
    if found is None:
        return None
    in_scale, rows, columns = found
    return in_scale.cpu().numpy(), rows, columns


@pytest.fixture
def small_spans(monkeypatch):
    """A row has several spans, of several tiles."""
    monkeypatch.setattr(equilibration, "_ROWS", 4)
    monkeypatch.setattr(equilibration, "_TERMS", 4)
    monkeypatch.setattr(equilibration, "_LONGEST", 8)


def compare(a):
    """The bits of the plain function, whatever the layout."""
    want = matrix_in_scale(a, True)
    for layout in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        got = by_kernels(layout)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype


def test_bits_are_those_of_the_plain_function(small_spans):
    for a, _ in list(systems())[::4]:
        if a.size:
            compare(a)
    compare(np.zeros((3, 3)))


def test_tiles_as_they_are():
    rng = np.random.default_rng(0)
    compare(np.ldexp(rng.standard_normal((70, 70)), rng.integers(-90, 90, (70, 70))))


@pytest.mark.parametrize(
    "value", [np.inf, -np.inf, np.nan, 2.0**201, 2.0**-201, 5e-324, -(2.0**900)]
)
def test_other_matrices_are_left_to_others(small_spans, value):
    for place in ((0, 0), (5, 11), (11, 3)):
        a = np.ones((12, 12))
        a[place] = value
        assert by_kernels(a) is None
    limits = np.array([[MODERATE, 1.0 / MODERATE], [0.0, 1.0]])
    assert by_kernels(limits) is not None


def test_systems_are_scaled_by_the_kernels(monkeypatch):
    calls = []
    original = equilibration.matrix_in_scale

    def counted(*given):
        calls.append(given)
        return original(*given)

    monkeypatch.setattr(equilibration, "matrix_in_scale", counted)
    monkeypatch.setattr(arrays, "has_triton", lambda a: True)
    rng = np.random.default_rng(1)
    a = np.ldexp(rng.standard_normal((9, 9)), rng.integers(-9, 9, (9, 1)))
    b = rng.standard_normal((9, 2))
    on_device = [wrap(torch.from_numpy(x).to(DEVICE)) for x in (a, b)]
    got = arrays.system_in_scale(*on_device)
    want = equilibrated(a, b)
    assert len(calls) == 1
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(unwrap(x).cpu().numpy(), y)

    b[0, 0] = np.nan
    on_device = [wrap(torch.from_numpy(x).to(DEVICE)) for x in (a, b)]
    assert arrays.system_in_scale(*on_device) is None


def test_compiled_equilibration(compiled):
    for line in compiled("equilibration"):
        assert line["spills"] == 0, line
