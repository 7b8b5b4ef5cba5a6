"""The cut of a long k: whole blocks, by the shape alone, few entries of scratch memory."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hifigemm.numerics.spans import span_length

SIZES = st.one_of(st.integers(0, 300), st.integers(1, 3000))


@pytest.mark.parametrize(
    ("m", "n", "k", "spans"),
    [
        (256, 256, 2**18, 32),
        (512, 512, 2**16, 8),
        (1024, 1024, 2**16, 2),
        (1, 1, 2**15, 8),
        (64, 8192, 2**16, 2),
        # As many tiles as parts, or a short k.
        (2048, 2048, 2**16, 1),
        (1024, 1025, 2**20, 1),
        (256, 256, 2**15 - 1, 1),
        (1024, 1024, 1024, 1),
        (4096, 4096, 4096, 1),
    ],
)
def test_few_entries_of_a_long_k_are_cut(m, n, k, spans):
    length = span_length(m, n, k, 64)
    assert length == (0 if spans == 1 else k // spans)


@given(
    SIZES, SIZES, st.integers(1, 2**22), st.sampled_from([1, 8, 24, 32, 48, 64, 512])
)
@example(128, 128, 2**19 + 1, 64)
@example(0, 5, 2**18, 64)
@example(1, 1, 100000, 512)
def test_spans_are_whole_blocks_and_their_sums_are_few(m, n, k, block):
    length = span_length(m, n, k, block)
    assert length == span_length(n, m, k, block)
    if not length:
        return
    spans = -(-k // length)
    assert k >= 2**15
    assert length < k
    assert length % block == 0
    assert 4 * spans * m * n <= 2**23
    # Rounding up to whole blocks leaves most of the parts that were meant.
    assert length >= 4096


def test_formats_and_blocks_of_powers_of_two_have_one_cut():
    for k in (2**15, 10**5, 2**18 + 3):
        cuts = {span_length(200, 300, k, block) for block in (8, 16, 32, 64, 128, 256)}
        assert len(cuts) == 1
