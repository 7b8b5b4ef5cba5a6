"""Products that are repeated without planning: only for calls of the same kind, only where no data decided the plan."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import shortcuts
from hifigemm.accuracy import NOTHING_STATED
from hifigemm.driver import multiply
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import HopeError
from hifigemm.plan import Problem
from hifigemm.schemes import promise

OPTIONS = {"accuracy": None, "scheme": "auto", "engine": None, "workspace": None}


class Device:
    """A device, equal to itself only."""

    type = "cuda"

    def __init__(self, index):
        self.index = index


DEVICES = [Device(0), Device(1)]


class Tensor:
    """As much of a CUDA tensor as a key is made of."""

    def __init__(self, shape=(4, 4), stride=(4, 1), dtype="float64", address=256, index=0, **fields):
        self.shape, self.dtype, self.device = shape, dtype, DEVICES[index]
        self.is_cuda, self.requires_grad, self.layout = True, False, "strided"
        self._stride, self._address, self._negative, self._storage = stride, address, False, address
        self.__dict__.update(fields)

    def stride(self):
        return self._stride

    def data_ptr(self):
        return self._address

    def is_neg(self):
        return self._negative

    def is_conj(self):
        return False

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self._storage)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(shortcuts, "_kept", {})
    monkeypatch.setattr(shortcuts, "_refused", set())


@pytest.fixture
def gpu(monkeypatch):
    """A PyTorch whose tensors are those above, with device 0 current."""
    fake = SimpleNamespace(Tensor=Tensor, strided="strided", cuda=SimpleNamespace(current_device=lambda: 0))
    fake.is_autocast_enabled = lambda: False
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def key(a, b, out=None, **options):
    return shortcuts.key_of(a, b, out, **OPTIONS | options)


def test_calls_of_one_kind_share_a_key(gpu):
    assert key(Tensor(), Tensor(address=512)) == key(Tensor(address=1024), Tensor(address=4096))
    assert key(Tensor(), Tensor()) == key(Tensor(address=512), Tensor(address=512))


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (5, 4)},
        {"stride": (1, 4)},
        {"stride": (8, 1)},
        {"address": 264},
    ],
    ids=str,
)
def test_keys_tell_layouts_apart(gpu, other):
    plain = key(Tensor(), Tensor(address=512))
    assert plain is not None
    assert key(Tensor(**other), Tensor(address=512)) != plain
    assert key(Tensor(), Tensor(**{"address": 512} | other)) != plain


def test_keys_tell_dtypes_operands_and_aliases_apart(gpu):
    a, b = Tensor(), Tensor(address=512)
    single = Tensor(dtype="float32"), Tensor(address=512, dtype="float32")
    wide = Tensor(shape=(4, 8), stride=(8, 1), address=512)
    keys = [key(a, b), key(a, a), key(*single), key(a, wide), key(wide, a)]
    assert len(set(keys)) == len(keys)


def test_keys_tell_options_apart(gpu):
    a, b = Tensor(), Tensor(address=512)
    keys = [
        key(a, b, **options)
        for options in (
            {},
            {"accuracy": "fp64"},
            {"accuracy": 1e-6},
            {"scheme": "native"},
            {"scheme": hg.Ozaki2(num_moduli=8, scaling="fast")},
            {"scheme": hg.Ozaki2(num_moduli=9, scaling="fast")},
            {"scheme": hg.Ozaki2(num_moduli=9)},
            {"engine": "torch"},
            {"workspace": 10**6},
        )
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Tensor(index=1), Tensor(index=1)),
        (Tensor(), Tensor(index=1)),
        (Tensor(requires_grad=True), Tensor()),
        (Tensor(), Tensor(requires_grad=True)),
        (Tensor(), Tensor(dtype="float32")),
        (Tensor(is_cuda=False), Tensor(is_cuda=False)),
        (np.ones((4, 4)), Tensor()),
        (np.ones((4, 4)), np.ones((4, 4))),
        ([[1.0]], [[1.0]]),
        (type("Parameter", (Tensor,), {})(), Tensor()),
    ],
    ids=[
        "another device",
        "two devices",
        "gradient",
        "gradient",
        "dtypes",
        "cpu",
        "mixed",
        "numpy",
        "list",
        "subclass",
    ],
)
def test_calls_of_other_kinds_have_no_key(gpu, a, b):
    assert key(a, b) is None


def test_keys_tell_outputs_apart(gpu):
    a, b = Tensor(), Tensor(address=512)
    outs = [
        None,
        Tensor(address=1024),
        Tensor(address=1032),
        Tensor(address=1024, stride=(1, 4)),
        Tensor(address=1024, shape=(2, 8)),
    ]
    keys = [key(a, b, out) for out in outs]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(a, b, Tensor(address=2048)) == keys[1]


@pytest.mark.parametrize(
    "out",
    [
        Tensor(address=1024, index=1),
        Tensor(address=1024, dtype="float32"),
        Tensor(address=1024, requires_grad=True),
        Tensor(address=1024, _storage=256),
        Tensor(address=1024, _storage=512),
        np.empty((4, 4)),
    ],
    ids=["device", "dtype", "gradient", "storage of a", "storage of b", "numpy"],
)
def test_calls_with_other_outputs_have_no_key(gpu, out):
    assert key(Tensor(), Tensor(address=512), out) is None


def test_lazily_negated_operands_have_no_key(gpu):
    assert key(Tensor(_negative=True), Tensor()) is None


def test_nothing_has_a_key_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert key(Tensor(), Tensor()) is None


class RepeatingEngine(NumpyEngine):
    """Repeats any plan as a plain product that leaves a mark."""

    def __init__(self):
        self.asked = []

    def repeated_product(self, plan, operands, stacks, result_shape, out):
        self.asked.append((plan, result_shape))
        return lambda a, b, out: ("repeated", a, b, out)


def native_plan(n=4):
    return hg.Native().planned(Problem(1, n, n, n, np.dtype("float64")), NOTHING_STATED, NumpyEngine())


def keep(plan, engine, name="key"):
    x = np.ones((1, 4, 4))
    shortcuts.keep(name, plan, engine, (x, x), (x, x), (4, 4), None)


def test_what_was_kept_is_found_and_logged(caplog):
    engine = RepeatingEngine()
    assert shortcuts.find("key") is None
    keep(native_plan(), engine)
    with caplog.at_level(logging.INFO, "hifigemm"):
        repeated = shortcuts.find("key")
    assert repeated(1, 2, 3) == ("repeated", 1, 2, 3)
    assert "(4 x 4) @ (4 x 4) float64" in caplog.text
    assert "native product" in caplog.text
    assert shortcuts.find("another key") is None


def test_plans_that_rest_on_data_and_large_products_are_not_kept():
    engine = RepeatingEngine()
    for plan in (
        replace(native_plan(), promised=True),
        replace(native_plan(), exact=True),
        replace(native_plan(), promised=True, hopeful=True),
        native_plan(2**13),
    ):
        keep(plan, engine)
    assert engine.asked == []
    assert shortcuts.find("key") is None


def test_what_an_engine_does_not_repeat_is_not_kept():
    keep(native_plan(), NumpyEngine())
    assert shortcuts.find("key") is None


def test_what_is_kept_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(shortcuts, "_LIMIT", 3)
    engine = RepeatingEngine()
    for name in range(10):
        keep(native_plan(), engine, name)
        assert shortcuts.find(name) is not None
    assert len(shortcuts._kept) <= 3


def keyed(monkeypatch, engine):
    monkeypatch.setattr("hifigemm.api.engine_for", lambda *args: engine)
    monkeypatch.setattr("hifigemm.api.key_of", lambda a, b, out, *options: ("key", out is None))


def test_the_second_call_of_a_kind_goes_straight_to_what_was_kept(make_pair, monkeypatch):
    a, b = make_pair("phi_1", 5, 6, 7)
    engine = RepeatingEngine()
    keyed(monkeypatch, engine)
    np.testing.assert_allclose(hg.matmul(a, b), a @ b)
    ((plan, shape),) = engine.asked
    assert (plan.scheme, shape) == (hg.Native(), (5, 7))
    assert hg.matmul(a, b) == ("repeated", a, b, None)


def test_reports_plans_and_outputs_on_the_host_are_never_short_cut(make_pair, monkeypatch):
    a, b = make_pair("phi_1", 5, 6, 7)
    engine = RepeatingEngine()
    keyed(monkeypatch, engine)
    hg.matmul(a, b)
    out = np.empty((5, 7))
    for _ in range(2):
        assert hg.matmul(a, b, out=out) is out
    for c in (out, hg.matmul(a, b, plan=hg.make_plan(a, b)), hg.matmul(a, b, return_report=True)[0], hg.gemm(a, b)):
        np.testing.assert_array_equal(c, a @ b)
    assert len(engine.asked) == 1


def test_empty_products_and_judged_ones_leave_nothing_wrong(make_pair, monkeypatch):
    keyed(monkeypatch, NumpyEngine())
    for _ in range(2):
        assert hg.matmul(np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0.0] * 3] * 2
        a, b = make_pair("cancelling", 5, 6, 7)
        c = hg.matmul(a, b, accuracy="correct")
        np.testing.assert_array_equal(c, hg.matmul(a, b, accuracy="correct"))
    assert shortcuts._kept == {}


class GuessingEngine(NumpyEngine):
    """Residues are cheap, counts are guessed, and native products can be repeated."""

    looks_on_the_way = True
    fused = True
    costs = SimpleNamespace(
        native_seconds=lambda problem: 1.0, residue_seconds=lambda problem, count, looks: 0.8 * count / 15
    )

    def whole_product(self, plan):
        if plan.scheme.name != "ozaki2" or plan.judged:
            return None

        def whole(a, b, shift, epilogue, splits, out):
            ratio = promise.error_ratio(a, b, self, self.part, 10**6)
            if plan.hopeful and not plan.scheme.suffices(plan, ratio):
                raise HopeError(ratio)
            return multiply(replace(plan, hopeful=False), a, b, NumpyEngine(), 2**30, shift, epilogue, splits).values

        return whole

    def repeated_product(self, plan, operands, stacks, result_shape, out):
        return (lambda a, b, out: np.matmul(a, b, out=out)) if plan.scheme == hg.Native() else None


def test_products_whose_operands_decided_are_planned_each_time(make_pair, assert_same_bits, monkeypatch):
    keyed(monkeypatch, GuessingEngine())
    easy, hard = make_pair("uniform", 20, 100, 20), make_pair("phi_8", 20, 100, 20)
    _, report = hg.matmul(*easy, return_report=True)
    assert isinstance(report.scheme, hg.Ozaki2)
    first = hg.matmul(*easy)
    assert_same_bits(hg.matmul(*easy), first)
    assert shortcuts._kept == {}
    assert hg.matmul(*hard, return_report=True)[1].native


def test_what_came_before_does_not_change_bits(make_pair, assert_same_bits, monkeypatch):
    keyed(monkeypatch, GuessingEngine())
    easy, hard = make_pair("uniform", 20, 100, 20), make_pair("phi_8", 20, 100, 20)
    first = hg.matmul(*easy)
    hg.matmul(*hard)
    assert_same_bits(hg.matmul(*easy), first)
