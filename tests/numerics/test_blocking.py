"""Parts of operands cover every vector once, whole, and are as large as they may be."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.numerics.blocking import (
    BLOCK_ENTRIES,
    entries_within,
    largest_block,
    map_vectors,
    parts_of,
    put,
    vector_blocks,
    widen,
)


def test_part_sizes_stay_between_64_entries_and_the_limit():
    assert [entries_within(x) for x in (0, 64 * 1024, 65 * 1024 - 1, 65 * 1024)] == [
        64,
        64,
        64,
        65,
    ]
    assert entries_within(2**40) == entries_within(2**24) == BLOCK_ENTRIES
    assert entries_within(2**40, 100) == 100


def test_parts_have_a_vector_at_least_and_eight_where_memory_is_no_concern():
    assert largest_block(3000, BLOCK_ENTRIES - 1) == BLOCK_ENTRIES - 1
    assert largest_block(3000, BLOCK_ENTRIES) == 24000
    assert largest_block(20, BLOCK_ENTRIES) == BLOCK_ENTRIES
    assert largest_block(20000, 100) == 20000


SHAPES = [
    (1, 7, 5),
    (3, 7, 5),
    (5, 2, 3),
    (1, 1, 1),
    (4, 1, 9),
    (2, 3, 0),
    (0, 3, 4),
    (2, 0, 4),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 5, 11, 20, 35, 70, 1000])
@pytest.mark.parametrize("axis", [1, 2])
def test_every_vector_is_in_one_part_and_parts_are_filled(shape, size, axis):
    x = np.zeros(shape, int)
    batch, vectors, k = x.shape[0], x.shape[3 - axis], x.shape[axis]
    many = max(size // max(k, 1), 1)
    places = list(vector_blocks(x, axis, size))
    for where in places:
        x[where] += 1
        stack, part = where[0], where[-1]
        assert part.stop == min(part.start + many, vectors)
        assert x[where].shape[0] == min(batch - stack.start, max(many // vectors, 1))
        assert x[where].shape[axis] == k
    assert (x == 1).all()
    assert [w[0].start for w in places] == sorted(w[0].start for w in places)


def test_a_wider_array_has_the_same_parts():
    x = np.arange(30).reshape(1, 6, 5)
    wide = np.repeat(x, 3, axis=1)
    for where in vector_blocks(x, 2, 11):
        np.testing.assert_array_equal(
            wide[widen(where, 3)], np.repeat(x[where], 3, axis=1)
        )
    assert widen((slice(0, 1), slice(None), slice(2, 4)), 2) == (
        slice(0, 1),
        slice(None),
        slice(4, 8),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("size", [1, 12, 1000])
def test_a_function_of_vectors_is_found_part_by_part(shape, axis, size):
    x = np.random.default_rng(1).integers(0, 99, shape)

    def total(y):
        assert not y.size or y.size <= largest_block(shape[axis], size)
        return y.sum(axis=axis, keepdims=True)

    want = x.sum(axis=axis, keepdims=True)
    np.testing.assert_array_equal(map_vectors(total, x, axis, size), want)


def test_arrays_are_made_when_their_first_part_comes():
    found = {}
    put(found, "x", (4,), (slice(2, 4),), np.array([3, 4], np.int8))
    first = found["x"]
    put(found, "x", (4,), (slice(0, 2),), np.array([1, 2], np.int8))
    assert found["x"] is first
    assert first.dtype == np.int8
    assert first.tolist() == [1, 2, 3, 4]


def test_a_pass_over_an_array_of_the_host_goes_by_small_parts():
    x = np.zeros((2, 50, 1000), np.int8)
    assert parts_of(x) == vector_blocks(x, 2, BLOCK_ENTRIES)
    assert len(parts_of(x)) > 2
