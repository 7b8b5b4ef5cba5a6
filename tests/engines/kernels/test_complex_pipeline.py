"""Complex products by fused residues, in the interpreter: the bits of the NumPy engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm.accuracy import NO_PROMISE, NOTHING_STATED, resolve
from hifigemm.driver import multiply, whole_split
from hifigemm.engines import engine_for, residue_pipeline
from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.exceptions import HopeError
from hifigemm.formats import FP64
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.plan import Problem
from hifigemm.schemes.certify import error_ratio
from tests.engines.kernels.stand_in import DEVICE

DTYPES = [np.complex128, np.complex64]
LIMIT = 2**28
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def on_device(*arrays):
    return [wrap(torch.from_numpy(np.ascontiguousarray(x)).to(DEVICE)) for x in arrays]


def planned(scheme, a, b, engine, target=NOTHING_STATED):
    """A plan for NumPy stacks; what it does not ask of the operands is left out."""
    problem = Problem(max(len(a), len(b)), a.shape[1], b.shape[2], a.shape[2], a.dtype)
    return scheme.plan(problem, *on_device(a, b), target, engine, LIMIT)


def pair(make_pair, family="phi_1", m=5, k=70, n=9, dtype=np.complex128, batch=(1, 2)):
    made = [make_pair(family, m, k, n, dtype, seed=seed) for seed in range(max(batch))]
    return np.stack([a for a, _ in made[: batch[0]]]), np.stack([b for _, b in made[: batch[1]]])


def run(plan, a, b, engine, *, shift=0, epilogue=PLAIN, splits=(None, None), out=None):
    return unwrap(multiply(plan, *on_device(a, b), engine, LIMIT, shift, epilogue, splits, out).values).cpu().numpy()


@pytest.mark.parametrize(("count", "dtype"), [(2, DTYPES[1]), (7, DTYPES[0]), (9, DTYPES[1]), (21, DTYPES[0])])
def test_whole_products_give_the_bits_of_numpy(make_pair, assert_same_bits, engine, count, dtype):
    scheme = hg.Ozaki2(num_moduli=count, scaling="fast")
    a, b = pair(make_pair, dtype=dtype)
    plan = planned(scheme, a, b, engine)
    assert engine.whole_product(plan) is not None
    assert_same_bits(run(plan, a, b, engine), hg.matmul(a, b, scheme=scheme))


@pytest.mark.parametrize("dtype", [np.complex128, np.float64])
def test_blocks_give_the_bits_of_numpy(make_pair, assert_same_bits, engine, dtype):
    scheme = hg.Ozaki2(num_moduli=4, scaling="fast")
    a, b = pair(make_pair, dtype=dtype)
    a[0, 4, 1], b[1, 2, 6] = np.inf, np.nan
    plan = replace(planned(scheme, a, b, engine), block_shape=(1, 3, 5))
    assert engine.whole_product(plan) is not None
    assert_same_bits(run(plan, a, b, engine), hg.matmul(a, b, scheme=scheme))
    x, y = on_device(a, b)
    splits = whole_split(plan, x, "left", engine), whole_split(plan, y, "right", engine)
    c = np.ones((2, 5, 9), dtype)
    epilogue = Epilogue(-0.3, 1.7, on_device(c)[0])
    want = hg.gemm(a, b, c, alpha=-0.3, beta=1.7, scheme=scheme)
    for kept in (splits, (None, splits[1]), (None, None)):
        assert_same_bits(run(plan, a, b, engine, epilogue=epilogue, splits=kept), want)


@pytest.mark.parametrize(
    ("block_shape", "batch", "made"),
    [((1, 3, 9), (1, 2), [2, 1, 2, 1]), ((1, 5, 5), (2, 1), [2, 1, 2, 1]), ((1, 5, 9), (1, 2), [2, 1])],
)
def test_blocks_use_residues_again(make_pair, assert_same_bits, engine, monkeypatch, block_shape, batch, made):
    scheme = hg.Ozaki2(num_moduli=4, scaling="fast")
    a, b = pair(make_pair, dtype=np.float64, batch=batch)
    plan = replace(planned(scheme, a, b, engine), block_shape=block_shape)
    found, own = [], residue_pipeline.scaled_residues.scaled_residues

    def watched(operands, *args, **options):
        found.append(len(operands))
        return own(operands, *args, **options)

    monkeypatch.setattr(residue_pipeline.scaled_residues, "scaled_residues", watched)
    assert_same_bits(run(plan, a, b, engine), hg.matmul(a, b, scheme=scheme))
    assert found == made


@pytest.mark.parametrize("dtype", [np.complex64, np.float64])
def test_rows_of_one_prepared_operand_are_as_long_as_those_of_the_other(make_pair, assert_same_bits, engine, dtype):
    """From k = 1024 on rows are padded to more than 16."""
    scheme = hg.Ozaki2(num_moduli=3, scaling="fast")
    a, b = pair(make_pair, m=2, k=1030, n=3, dtype=dtype, batch=(1, 1))
    plan, (x, y) = planned(scheme, a, b, engine), on_device(a, b)
    left, right = whole_split(plan, x, "left", engine), whole_split(plan, y, "right", engine)
    want = hg.matmul(a, b, scheme=scheme)
    for splits in ((left, None), (None, right), (left, right)):
        assert_same_bits(run(plan, a, b, engine, splits=splits), want)


@pytest.mark.parametrize("family", ["full_range", "subnormal_times_large", "overflowing", "cancelling", "zeros"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_operands(make_pair, assert_same_bits, engine, family, dtype):
    a, b = pair(make_pair, family, dtype=dtype, batch=(1, 1))
    scheme = hg.Ozaki2(num_moduli=5, scaling="fast")
    assert_same_bits(run(planned(scheme, a, b, engine), a, b, engine), hg.matmul(a, b, scheme=scheme))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.5 - 2j])
@pytest.mark.parametrize("beta", [0.0, -1.5, 1j])
def test_alpha_and_beta(make_pair, assert_same_bits, engine, alpha, beta):
    scheme = hg.Ozaki2(num_moduli=2, scaling="fast")
    a, b = pair(make_pair)
    c = pair(make_pair, "phi_2", 5, 5, 9)[1]
    epilogue = Epilogue(alpha, beta, on_device(c)[0] if beta else None)
    want = hg.matmul(a, b, scheme=scheme) * 4.0
    want = Epilogue(alpha, beta, c if beta else None).apply(want)
    target = wrap(torch.empty((2, 9, 5), dtype=torch.complex128, device=DEVICE).mT)
    for out in (None, target):
        found = run(planned(scheme, a, b, engine), a, b, engine, shift=2, epilogue=epilogue, out=out)
        if isinstance(alpha, complex) or isinstance(beta, complex):
            # The complex product of NumPy and that of PyTorch need not round alike.
            np.testing.assert_allclose(found, want, rtol=1e-13)
        else:
            assert_same_bits(found, want)
    if not isinstance(alpha, complex) and not isinstance(beta, complex):
        assert_same_bits(unwrap(target).cpu().numpy(), want)


def test_infinities_and_nans(make_pair, engine):
    scheme = hg.Ozaki2(num_moduli=3, scaling="fast")
    a, b = pair(make_pair)
    a[0, 1, 3], a[0, 4, 5] = complex(np.inf, 1), complex(0, np.nan)
    b[0, 3, 2], b[1, 0, 0], b[1, 69, 8] = complex(2, -np.inf), 0, complex(np.nan, np.inf)
    want = hg.matmul(a, b, scheme=scheme)
    plan = planned(scheme, a, b, engine)
    found = run(plan, a, b, engine)
    np.testing.assert_array_equal(found.view(float), want.view(float))
    x, y = on_device(a, b)
    splits = whole_split(plan, x, "left", engine), whole_split(plan, y, "right", engine)
    assert "marked" in splits[1].facts
    for given in ((splits[0], None), (None, splits[1])):
        again = run(plan, a, b, engine, splits=given)
        np.testing.assert_array_equal(again.view(float), want.view(float))


@pytest.mark.parametrize("family", ["uniform", "phi_4", "sparse", "empty_rows_and_columns"])
def test_counts_are_found_on_the_way(make_pair, assert_same_bits, engine, family):
    a, b = pair(make_pair, family, 4, 130, 6, batch=(1, 1))
    asked = resolve(1e-6, FP64, 130)
    plan = replace(planned(hg.Ozaki2(num_moduli=9, scaling="fast"), a, b, engine), target=asked, promised=True)
    plan = replace(plan, hopeful=True, fixed=False)
    ratio = engine.override(error_ratio)(*on_device(a, b), engine, LIMIT, LIMIT)
    assert ratio == error_ratio(a, b, engine_for("numpy"), LIMIT, LIMIT)
    if plan.scheme.suffices(plan, ratio):
        assert_same_bits(run(plan, a, b, engine), hg.matmul(a, b, scheme=plan.scheme))
    else:
        with pytest.raises(HopeError):
            run(plan, a, b, engine)


def test_judged_products_take_the_steps(make_pair, assert_same_bits, engine):
    a, b = pair(make_pair, batch=(1, 1))
    scheme = hg.Ozaki2(num_moduli=4, scaling="fast")
    plan = planned(scheme, a, b, engine, NO_PROMISE)
    assert plan.certifies
    assert_same_bits(run(plan, a, b, engine), hg.matmul(a, b, scheme=scheme))
