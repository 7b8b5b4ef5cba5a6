"""Where the entries of a matrix are."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.linalg.bands import Band


def entries(n, lower, upper):
    """A matrix of ones within a band."""
    return np.triu(np.tril(np.ones((n, n)), upper), -lower)


@pytest.mark.parametrize(
    ("n", "lower", "upper"),
    [(1, 0, 0), (5, 0, 4), (5, 4, 0), (6, 1, 2), (200, 3, 0), (70, 40, 69), (4, 3, 3)],
)
def test_the_band_is_the_narrowest(n, lower, upper):
    a = entries(n, lower, upper)
    assert Band.of(a) == Band(n, lower, upper)
    assert Band.of(-np.asfortranarray(a)) == Band(n, lower, upper)


def test_single_entries_and_rows_of_zeros_count():
    a = np.zeros((9, 9))
    assert Band.of(a) == Band(9, 0, 0)
    a[7, 2] = 1.0
    assert Band.of(a) == Band(9, 5, 0)
    a[3, 5] = 5e-324
    assert Band.of(a) == Band(9, 5, 2)
    a[0, 6] = np.nan
    assert Band.of(a) == Band(9, 5, 6)
    assert Band.of(np.where(a == 0.0, -0.0, a)) == Band(9, 5, 6)


def test_two_corners_decide_about_a_full_matrix():
    class Corners(np.ndarray):
        def __ne__(self, other):
            raise AssertionError("all entries were read")

    full = np.ones((50, 50)).view(Corners)
    assert Band.of(full) == Band(50, 49, 49)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (2, 1), (0, 200), (90, 0)])
def test_blocks_hold_every_entry_once(n, lower, upper):
    a = entries(n, lower, upper)
    seen = np.zeros_like(a)
    for block in Band.of(a).blocks():
        seen[block] += a[block]
    np.testing.assert_array_equal(seen, a)
