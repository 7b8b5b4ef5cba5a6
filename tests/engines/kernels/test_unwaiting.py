"""sync=False from the plan to the result: the device decides between residues and FP64 sums, and nothing is read."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hifigemm as hg
from hifigemm import api, libraries
from hifigemm.engines import host_copy, residue_pipeline
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import combine
from hifigemm.study.reference import meets_promise
from tests.engines.kernels.stand_in import StandIn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has tests of its own in test_cuda_sync.py")

FAST = hg.Ozaki2(scaling="fast")
EASY, HARD = "phi_0.1", "phi_4"
SHAPE = 9, 70, 8
COUNT = 15


def expected_costs(native):
    """Costs by which residues pay where a native product takes more than 0.2 s."""
    return SimpleNamespace(
        native_seconds=lambda problem: native,
        residue_seconds=lambda problem, count, looks: 0.01 * count,
        word_seconds=lambda problem: 1.0,
    )


@pytest.fixture
def engine(monkeypatch):
    """A GPU's engine on tensors of the CPU, within a capture: whatever waits fails."""

    def read(*_):
        raise AssertionError("something was read back")

    for module in (host_copy, residue_pipeline):
        monkeypatch.setattr(module, "send", read)
        monkeypatch.setattr(module, "check_not_capturing", read)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(libraries.Library, "on_host", property(lambda self: self.name == "numpy"))
    monkeypatch.setattr(libraries.Library, "active", lambda self: nullcontext())
    made = StandIn()
    made.costs = expected_costs(1.0)
    monkeypatch.setattr(api, "engine_for", lambda name, *_: NumpyEngine() if name == "numpy" else made)
    return made


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]


def unwaiting(a, b, *c, call=hg.matmul, **options):
    """Result and report with sync=False."""
    with np.errstate(all="ignore"):
        found, report = call(*tensors(a, b, *c), sync=False, return_report=True, **options)
    return found.numpy(), report


@pytest.mark.parametrize("options", [{}, {"scheme": FAST}, {"accuracy": "fp64"}], ids=str)
def test_operands_of_one_size_give_the_bits_of_the_expected_count(make_pair, assert_same_bits, engine, options):
    a, b = make_pair(EASY, *SHAPE)
    found, report = unwaiting(a, b, **options)
    scheme = report.scheme
    assert scheme == hg.Ozaki2(num_moduli=COUNT, scaling="fast")
    assert report.num_products == COUNT
    assert report.bound == max(4 * 2.0**-53, native_bound(70, 2.0**-53))
    assert f"the device decides by the operands between {COUNT} moduli and an FP64 product" in report.reason
    assert f"at worst {report.bound:.3g} |A||B|, accepted at the level of fp64 (r = {2.0**-51:.3g})" in report.reason
    assert_same_bits(found, hg.matmul(a, b, scheme=scheme, engine="numpy"))


@pytest.mark.parametrize("family", [HARD, "phi_8", "sparse", "opposed_spans"])
def test_wide_operands_give_an_fp64_product(make_pair, engine, family):
    a, b = make_pair(family, *SHAPE)
    found, report = unwaiting(a, b)
    assert meets_promise(found, a, b, report.bound).all()
    if family != "sparse":
        assert found.tobytes() != unwaiting(a, b, scheme=report.scheme)[0].tobytes()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", [EASY, HARD, "integers", "zeros", "cancelling", "span_60"])
@pytest.mark.parametrize("shape", [(3, 200, 5), (70, 5, 66)])
def test_all_operands_keep_the_bound(make_pair, engine, family, shape):
    a, b = make_pair(family, *shape)
    found, report = unwaiting(a, b)
    assert meets_promise(found, a, b, report.bound).all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", [EASY, HARD])
@pytest.mark.parametrize(("alpha", "beta"), [(4.0, 0.0), (-(2.0**-1050), 0.0), (0.3, 0.0), (1.0, 2.0), (-8.0, 0.7)])
def test_gemm_does_what_it_does_otherwise_to_either_product(make_pair, assert_same_bits, engine, family, alpha, beta):
    a, b = make_pair(family, *SHAPE)
    c = make_pair(EASY, 9, 8, 8)[0]
    options = {"alpha": alpha, "beta": beta, "call": hg.gemm}
    found, report = unwaiting(a, b, c, **options)
    if family == EASY:
        assert_same_bits(found, unwaiting(a, b, c, scheme=report.scheme, **options)[0])
        return
    # A power of two belongs to the product, any other factor comes after it.
    scale, rest = (alpha, 1.0) if abs(np.frexp(alpha)[0]) == 0.5 else (1.0, alpha)
    want = scale * unwaiting(a, b)[0]
    if beta or rest != 1.0:
        want = combine(want, rest, c if beta else None, beta)
    assert_same_bits(found, want)


@pytest.mark.parametrize("family", [EASY, HARD])
def test_outputs_stacks_strides_and_special_values(make_pair, engine, family):
    a, b = (np.stack([x * 2.0**e for e in range(2)]) for x in make_pair(family, 6, 20, 7))
    a[1, 2, 3], b[0, 1, 4] = np.inf, np.nan
    with np.errstate(all="ignore"):
        special = ~np.isfinite(a @ b)
        want = (a @ b)[special]
    x, y = tensors(a, b)
    out = torch.full((2, 7, 6), 5.0, dtype=torch.float64).transpose(1, 2)
    with np.errstate(all="ignore"):
        for left, right in ((x, y), (x.mT.contiguous().mT, y.mT.contiguous().mT)):
            assert hg.matmul(left, right, out=out, sync=False) is out
            np.testing.assert_array_equal(out.numpy()[special], want)
            assert np.isfinite(out.numpy()[~special]).all()


def test_what_takes_no_look_needs_nothing(make_pair, assert_same_bits, engine):
    a, b = make_pair(HARD, *SHAPE)
    scheme = hg.Ozaki2(num_moduli=12, scaling="fast")
    found, report = unwaiting(a, b, scheme=scheme)
    assert_same_bits(found, hg.matmul(a, b, scheme=scheme, engine="numpy"))
    assert report.bound == np.inf
    assert unwaiting(a, b, scheme="native")[1].native
    engine.costs = expected_costs(0.1)
    assert unwaiting(a, b)[1].native
    single = unwaiting(a.astype(np.float32), b.astype(np.float32))
    assert single[1].native
    assert unwaiting(a[:0], b)[1].num_products == 0


@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "correct"},
        {"accuracy": 1e-17},
        {"accuracy": 1e-10, "scheme": FAST},
        {"accuracy": 1e-10, "scheme": hg.Ozaki2(num_moduli=12, scaling="fast")},
        {"scheme": "ozaki1"},
        {"scheme": "ozaki2"},
        {"scheme": hg.Ozaki1(mode="dp")},
        {"scheme": "native", "accuracy": 1e-3},
        {"dtype": "complex128"},
        {"dtype": "float32", "scheme": FAST},
        {"dtype": "float32", "accuracy": "fp64"},
    ],
    ids=str,
)
def test_plans_that_rest_on_a_look_are_refused(make_pair, engine, options):
    options = {"dtype": "float64"} | options
    a, b = make_pair(EASY, *SHAPE, options.pop("dtype"))
    for call in (hg.matmul, hg.gemm):
        with pytest.raises(hg.PlanError, match=r"sync=False reads nothing back.*or sync=True"):
            unwaiting(a, b, call=call, **options)


def test_plans_that_were_passed_must_not_wait_either(make_pair, engine, monkeypatch):
    a, b = make_pair(EASY, *SHAPE)
    x, y = tensors(a, b)
    monkeypatch.setattr(residue_pipeline, "_required_bits", lambda *_: None)
    monkeypatch.setitem(residue_pipeline.OVERRIDES, "required_bits", lambda *_: None)
    hopeful = hg.make_plan(x, y, scheme=FAST)
    assert hopeful.hopeful
    with pytest.raises(hg.PlanError, match="sync=False"):
        hg.matmul(x, y, plan=hopeful, sync=False)
    fixed = hg.make_plan(x, y, scheme=hg.Ozaki2(num_moduli=12, scaling="fast"))
    assert hg.matmul(x, y, plan=fixed, sync=False, return_report=True)[1].scheme == fixed.scheme


def test_a_workspace_for_less_than_the_whole_is_too_small(make_pair, engine):
    a, b = make_pair(EASY, *SHAPE)
    with pytest.raises(hg.PlanError, match="give a larger workspace"):
        unwaiting(a, b, workspace=unwaiting(a, b)[1].workspace - 1)


def test_strict_mode_cannot_tell_which_was_taken(make_pair, engine):
    a, b = make_pair(EASY, *SHAPE)
    with hg.strict():
        for scheme in ("auto", FAST):
            with pytest.raises(hg.AccuracyError, match="nobody would know"):
                unwaiting(a, b, scheme=scheme)
        unwaiting(a, b, scheme=hg.Ozaki2(num_moduli=14, scaling="fast"))


@pytest.mark.parametrize("family", [EASY, HARD])
def test_exactly_one_of_two_products_is_written(make_pair, engine, monkeypatch, family):
    a, b = make_pair(family, *SHAPE)
    written = []

    def watch(module, name, place):
        own = getattr(module, name)

        def watched(*args, **options):
            out = args[place]
            before = out.clone()
            out.fill_(7.25)
            own(*args, **options)
            if (out != 7.25).any():
                written.append(name)
            else:
                out.copy_(before)

        monkeypatch.setattr(module, name, watched)

    watch(residue_pipeline.crt, "reconstruct", 3)
    watch(residue_pipeline.native_gemm, "fp64_product", 2)
    unwaiting(a, b)
    assert written == [{EASY: "reconstruct", HARD: "fp64_product"}[family]]
