"""Sums over an inner dimension in pieces: exact, whatever the pieces, and rounded
once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.model.problem import Problem
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import NORM_BLOCK

torch = pytest.importorskip("torch")
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

from hifigemm.distributed import sums  # noqa: E402
from hifigemm.distributed.layout import Layout  # noqa: E402
from hifigemm.distributed.method import Method  # noqa: E402

FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")


@given(*[st.integers(0, 20)] * 4)
def test_ranges_share_the_integers_that_are_in_both(a, b, c, d):
    one, other = slice(min(a, b), max(a, b)), slice(min(c, d), max(c, d))
    both = set(range(one.start, one.stop)) & set(range(other.start, other.stop))
    assert sums._overlap(one, other) == len(both)


@pytest.mark.parametrize("count", [2, 7, 14])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_residues_of_partial_sums_are_added_modulo_each_modulus(count, ranks):
    rng = np.random.default_rng(count)
    moduli = moduli_set(count, False)
    residues = rng.integers(-128, 128, (ranks, count, 4, 5)).astype(np.int8)
    residues[:, :, 0] = 127
    residues[:, :, 1] = -128
    plan = SimpleNamespace(problem=Problem(1, 4, 5, 6, np.dtype(float)))
    scheme = hg.Ozaki2(num_moduli=count)
    added = sums._Sums._sum_over_ranks(
        SimpleNamespace(plan=plan, scheme=scheme), torch.from_numpy(residues)
    ).numpy()
    p = np.array(moduli.moduli)[:, None, None]
    assert added.dtype == np.int8
    assert ((added - residues.astype(int).sum(axis=0)) % p == 0).all()
    assert (abs(added.astype(int)) <= p // 2).all()


def test_pieces_of_a_cut_cover_the_vectors():
    cut = sums._SplitDimension(None, 3, 0, 0)
    vectors = list(range(10))
    pieces = [vectors[cut.piece(10, rank)] for rank in range(3)]
    assert list(chain(*pieces)) == vectors


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize(
    ("scheme", "alpha", "beta"),
    [(FIXED, 1.0, 0.0), (FIXED, -2.0, 0.0), (FIXED, -0.75, 3.0), (None, 1.0, 0.0)],
)
def test_a_sum_of_one_piece_has_the_bits_of_one_process(
    one_rank, dtype, scheme, alpha, beta
):
    rng = np.random.default_rng(1)
    m, k, n = 5, 2 * NORM_BLOCK + 30, 4

    def numbers(*shape):
        x = rng.standard_normal(shape).astype(dtype)
        return torch.from_numpy(x + (1j * x[::-1] if dtype == "complex128" else 0))

    a, b, c = numbers(m, k), numbers(k, n), numbers(m, n)
    a[0], b[: k // 2, -1] = 0, 0
    x, y = (DTensor.from_local(z, one_rank, [Replicate()]) for z in (a, b))
    layout = Layout(
        ("k",), (m, n, k), (1,), (Shard(0),), (0, 0), 0, 0, products=0.0, seconds=0.0
    )
    method = Method(scheme, None if scheme else "correct")
    problem = Problem(1, m, n, k, np.dtype(dtype))
    out = torch.full_like(c, torch.nan)
    addend = c if beta else None
    partial_sums = sums.PartialSums(method, problem, layout, alpha, beta)
    made = partial_sums.write(x, y, addend, out)
    options = {"accuracy": "correct"} if scheme is None else {"scheme": scheme}
    want = hg.gemm(a, b, addend, alpha=alpha, beta=beta, **options)
    assert out.numpy().tobytes() == want.numpy().tobytes()
    assert made.scheme.num_moduli == (14 if scheme else made.scheme.num_moduli)


@pytest.mark.parametrize("entry", [np.inf, np.nan])
def test_operands_that_are_not_finite_are_left_to_whole_products(one_rank, entry):
    a, b = (torch.ones(shape, dtype=torch.float64) for shape in ((3, 300), (300, 2)))
    a[1, 270] = entry
    x, y = (DTensor.from_local(z, one_rank, [Replicate()]) for z in (a, b))
    layout = Layout(
        ("k",), (3, 2, 300), (1,), (Shard(0),), (0, 0), 0, 0, products=0.0, seconds=0.0
    )
    out = torch.full((3, 2), 7.0, dtype=torch.float64)
    problem = Problem(1, 3, 2, 300, np.dtype(float))
    partial_sums = sums.PartialSums(Method(FIXED, None), problem, layout)
    assert partial_sums.write(x, y, None, out) is None
    assert (out == 7).all()
    a[1, 270] = 1.0
    assert replace(partial_sums, workspace=1).write(x, y, None, out) is None
    assert (out == 7).all()
