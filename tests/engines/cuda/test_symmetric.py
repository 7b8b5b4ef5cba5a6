"""syrk and herk of tensors on a GPU: the bits of matmul on and below the diagonal, and
their mirror image above it.

Without a GPU the kernels run in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import hifigemm as hg
import hifigemm.numpy as hnp
from hifigemm.engines.cuda import ozaki2
from hifigemm.kernels.endings import crt
from hifigemm.model.plan import Blocking
from tests.conftest import on_gpu
from tests.engines.cuda.test_ozaki2 import by_numpy, expected_costs, fixed, run
from tests.engines.stand_in import DEVICE, planned

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
OPTIONS = {
    "level": {},
    "count": {"scheme": fixed(7)},
    "accurate": {"scheme": hg.Ozaki2(num_moduli=7, scaling="accurate")},
    "number": {"accuracy": 1e-18},
    "correct": {"accuracy": "correct"},
    "slices": {"scheme": hg.Ozaki1(num_slices=4)},
    "native": {"scheme": "native"},
}


@pytest.fixture(autouse=True)
def costs(request):
    """Costs by which moduli are sooner than a native product."""
    if not request.node.get_closest_marker("gpu"):
        request.getfixturevalue("as_on_gpu").costs = expected_costs(1.0)


@pytest.fixture(autouse=DEVICE == "cpu")
def few_columns(monkeypatch):
    """Squares of few rows, for the interpreter: one is as high as a tile has
    columns.
    """
    monkeypatch.setattr(crt, "_columns", lambda constants, **options: 8)


def check(a, function=hnp.syrk, **options):
    """A function of a tensor beside matmul."""
    turned = a.mT if function is hnp.syrk else a.mH
    (found, report), (want, of_matmul) = (
        call(*given, return_report=True, **options)
        for call, given in ((function, (a,)), (hg.matmul, (a, turned)))
    )
    same = report.scheme == of_matmul.scheme
    # half of the products may be sooner than a native one where all of them are not
    if not (same or options):
        want = hg.matmul(a, turned, scheme=report.scheme)
    low = torch.tril(found, -1)
    if a.isfinite().all():
        assert torch.equal(torch.tril(want, -1).nan_to_num(), low.nan_to_num())
    assert torch.equal(
        (low.mT if function is hnp.syrk else low.mH).nan_to_num(),
        torch.triu(found, 1).nan_to_num(),
    )
    on = found.diagonal(0, -2, -1)
    assert torch.equal(on.real.nan_to_num(), want.diagonal(0, -2, -1).real.nan_to_num())
    assert torch.equal(found.isnan(), want.isnan() | want.mT.isnan())
    if a.is_complex() and function is hnp.herk:
        assert not on.imag.any()
    assert (same and report.bound == of_matmul.bound) or not (same or options)


FEW = [("level", "float64"), ("count", "complex128"), ("accurate", "float32")]
FEW += [("correct", "float64"), ("slices", "float32"), ("native", "complex64")]


@pytest.mark.parametrize(("name", "dtype"), FEW)
def test_lower_triangles_have_the_bits_of_matmul(make_pair, name, dtype):
    a = make_pair("phi_0.1", 4, 20, 9, dtype)[0]
    a = torch.from_numpy(np.stack([a, a[::-1]])).to(DEVICE)
    check(a, hnp.herk if a.is_complex() else hnp.syrk, **OPTIONS[name])


@pytest.mark.parametrize(
    "options", [{"scheme": fixed(7)}, {"scheme": "native"}], ids=str
)
def test_inf_and_nan_spread_to_their_rows_and_columns(make_pair, options):
    a = torch.from_numpy(make_pair("phi_0.1", 4, 20, 9)[0]).to(DEVICE)
    a[1, 3], a[3, 10] = torch.inf, torch.nan
    check(a, **options)


@pytest.mark.parametrize(
    ("shape", "made"),
    [((1, 9, 9), [1]), ((1, 4, 4), [1] * 6), ((1, 9, 5), [2, 1])],
    ids=str,
)
def test_one_operand_is_split_once_and_blocks_above_the_diagonal_are_left_out(
    make_pair, engine, monkeypatch, assert_same_bits, shape, made
):
    """Six of nine blocks of four rows, each of which shares its columns with the one
    before or lies on the diagonal.
    """
    a = make_pair("phi_0.1", 9, 20, 9)[0][None]
    plan = planned(fixed(7), a, a.swapaxes(1, 2), engine)
    plan = replace(
        plan, problem=replace(plan.problem, mirror="T"), blocking=Blocking(shape)
    )
    found, own = [], ozaki2.scaled_residues.scaled_residues

    def watched(operands, *args, **options):
        found.append(len(operands))
        return own(operands, *args, **options)

    monkeypatch.setattr(ozaki2.scaled_residues, "scaled_residues", watched)
    _, _, values = run(plan, a, a.swapaxes(1, 2), engine)
    assert_same_bits(values, by_numpy(a, a.swapaxes(1, 2), fixed(7)))
    assert found == made


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("n", [100, 1000, 3001])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_large_triangles_have_the_bits_of_matmul(make_pair, options, n, dtype):
    (a,) = on_gpu(make_pair("phi_1", n, 1500, 1, dtype)[0])
    for function in (hnp.syrk, hnp.herk):
        check(a, function, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
@pytest.mark.parametrize(
    "family", ["phi_4", "full_range", "cancelling", "zeros", "subnormal_times_large"]
)
def test_hard_operands_have_the_bits_of_matmul(make_pair, family, dtype):
    (a,) = on_gpu(make_pair(family, 300, 200, 300, dtype)[0])
    for options in ({}, {"accuracy": "correct"}, {"scheme": fixed(9)}):
        check(a, hnp.herk, **options)
