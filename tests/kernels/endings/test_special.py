"""Inf and NaN of complex products of a library."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hifigemm.kernels.endings.special import restore_special_values
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.recording import run_recorded
from tests.special_operands import assert_special_values, operands

restore_special_values = partial(run_recorded, restore_special_values)

PLACE = "cuda" if torch.cuda.is_available() else "cpu"


def library_product(a, b):
    """A sum that is multiplied by the complex number 1 at last, as a BLAS does."""
    with np.errstate(all="ignore"):
        re = a.real @ b.real - a.imag @ b.imag
        im = a.real @ b.imag + a.imag @ b.real
        c = np.empty(re.shape, a.dtype)
        c.real, c.imag = re * 1.0 - im * 0.0, re * 0.0 + im * 1.0
    return c


def restored(a, b, c):
    c = c if isinstance(c, torch.Tensor) else torch.from_numpy(c.copy()).to(PLACE)
    with np.errstate(all="ignore"):
        restore_special_values(
            torch.from_numpy(a).to(PLACE), torch.from_numpy(b).to(PLACE), c
        )
    return c.cpu().numpy()


@pytest.mark.parametrize(
    "dtype", [pytest.param("complex64", marks=pytest.mark.slow), "complex128"]
)
def test_patterns_are_those_of_any_order(dtype):
    spoiled = 0
    for a, b in operands(11, 200, 8, dtype, False):
        c = library_product(a, b)
        found = restored(a, b, c)
        assert_special_values(found, a, b)
        spoiled += np.count_nonzero(
            np.isnan(c) & ~(np.isnan(found.real) & np.isnan(found.imag))
        )
        kept = np.isfinite(c)
        np.testing.assert_array_equal(found[kept], c[kept])
    assert spoiled > 20


def test_results_with_strides_and_stacks_of_one():
    ((a, b),) = operands(12, 60, 1, "complex128", False)
    a = a[:1]
    c = library_product(a, b)
    room = torch.full(
        (*c.shape[:2], 2 * c.shape[2] + 1), 7.0, dtype=torch.complex128, device=PLACE
    )
    target = room[:, :, 1::2]
    target.copy_(torch.from_numpy(c))
    np.testing.assert_array_equal(restored(a, b, target), restored(a, b, c))
    assert_special_values(
        restored(a, b, c), np.broadcast_to(a, (len(b), *a.shape[1:])), b
    )
    assert (room[:, :, ::2] == 7.0).all()


def test_what_overflowed_stays():
    a, b = np.full((1, 40, 3), 1e300 + 1e300j), np.full((1, 3, 50), 1e300 + 0j)
    c = np.full((1, 40, 50), complex(np.inf, -np.inf))
    # as times 1 + 0j leaves it where the real part alone overflows
    c[0, 1] = complex(np.inf, np.nan)
    np.testing.assert_array_equal(restored(a, b, c), c)


def test_nothing_is_written_where_the_predicate_does_not_hold():
    for a, b in operands(13, 60, 3, "complex128", False):
        record, c = torch.tensor([5], device=PLACE), library_product(a, b)
        for least, most, holds in ((5, 5, True), (6, 9, False), (0, -1, False)):
            found = torch.from_numpy(c.copy()).to(PLACE)
            with np.errstate(all="ignore"):
                left, right = (torch.from_numpy(x).to(PLACE) for x in (a, b))
                restore_special_values(
                    left, right, found, predicate=Predicate(record, least, most)
                )
            np.testing.assert_array_equal(
                found.cpu().numpy(), restored(a, b, c) if holds else c
            )


def test_nothing_to_write():
    shapes = (1, 0, 3), (1, 3, 2), (1, 0, 2)
    restore_special_values(
        *(torch.zeros(shape, dtype=torch.complex64, device=PLACE) for shape in shapes)
    )
