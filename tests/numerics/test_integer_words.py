"""Words of integers and the sums of their products, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.numerics.integer_words import (
    MAX_WORD,
    WORD_BITS,
    beyond,
    cut,
    num_words,
    python_integers,
    word_sums,
    wrapped,
)

# The last integers of one and of two words, and of int64 and uint64.
EDGES = (MAX_WORD, MAX_WORD * (2**WORD_BITS - 1), 2**63, 2**64 - 1)


def as_array(values):
    unsigned = max(values) >= 2**63
    return np.array(values, np.uint64 if unsigned else np.int64)


@given(
    st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([s * x + d for x in EDGES for s in (-1, 1) for d in (-1, 0, 1)])
)
def test_words_are_balanced_and_sum_back(value):
    if not -(2**63) <= value < 2**64:
        return
    count = num_words(abs(value))
    words = [int(x[0]) for x in cut(as_array([value]), count, np.float64)]
    assert sum(x << (WORD_BITS * j) for j, x in enumerate(words)) == value
    assert max(map(abs, words)) <= MAX_WORD
    assert len(words) == count <= 3
    assert count == 1 or abs(value) > sum(
        MAX_WORD - 1 << (WORD_BITS * j) for j in range(count - 1)
    )


@pytest.mark.parametrize(("k", "k_block"), [(1000, 3), (2048 * 130 + 1, 2048)])
def test_sums_of_many_blocks_are_swept_without_a_loss(k, k_block):
    """The two lower words have their largest magnitude, so that S_1 is as large as it
    can be.
    """
    most = MAX_WORD + (MAX_WORD << WORD_BITS) + (2**18 << 2 * WORD_BITS)
    a, b = np.full((1, 1, k), -most), np.full((1, k, 2), -most)
    b[:, :, 1] *= -1
    assert [int(x[0, 0, 0]) for x in cut(a, 3, np.float64)] == [
        -MAX_WORD,
        -MAX_WORD,
        -(2**18),
    ]
    sums = word_sums(a, b, (3, 3), 6, np.float64, k_block, np.matmul)
    assert python_integers(sums).tolist() == [[[k * most**2, -k * most**2]]]
    modular = word_sums(a, b, (3, 3), 3, np.float64, k_block, np.matmul)
    assert [int(x) % 2**64 for x in wrapped(modular).ravel()] == [
        k * most**2 % 2**64,
        -k * most**2 % 2**64,
    ]


@given(st.lists(st.integers(-(2**62), 2**62), min_size=3, max_size=6))
def test_limits_and_integers_of_any_sums(totals):
    exact = sum(x << (WORD_BITS * s) for s, x in enumerate(totals))
    sums = np.array(totals, np.int64)[:, None]
    for dtype in ("int8", "uint16", "int32", "int64", "uint64"):
        limits = np.iinfo(dtype)
        assert bool(beyond(sums.copy(), limits)[0]) == (
            not limits.min <= exact <= limits.max
        )
    assert python_integers(sums.copy()).tolist() == [exact]
    assert int(wrapped(sums)[0]) % 2**64 == exact % 2**64


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
)
def test_the_last_integer_of_a_dtype_lies_within_and_the_next_beyond(dtype):
    limits = np.iinfo(dtype)
    values = [limits.min - 1, limits.min, limits.max, limits.max + 1]
    sums = np.array(
        [
            [(x >> (WORD_BITS * s)) & (2**WORD_BITS - 1) for x in values]
            for s in range(5)
        ]
    )
    sums = np.concatenate([sums, [[x >> (5 * WORD_BITS) for x in values]]])
    assert beyond(sums, limits).tolist() == [True, False, False, True]
