"""Products that are repeated without planning: only for calls of the same kind, only where no data decided the plan."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm import shortcuts
from hifigemm.accuracy import NOTHING_STATED, resolve
from hifigemm.driver import multiply
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.exceptions import HopeError
from hifigemm.formats import FP64
from hifigemm.numerics.epilogue import PLAIN
from hifigemm.numerics.scaling import required_bits
from hifigemm.plan import Problem
from hifigemm.schemes import certify

FAST = hg.Ozaki2(scaling="fast")
OPTIONS = {"accuracy": None, "scheme": "auto", "engine": None, "workspace": None, "sync": True}


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
        self.is_cuda, self.requires_grad, self.is_wrapped, self.layout = True, False, False, "strided"
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
    monkeypatch.setattr(shortcuts, "is_followed", lambda: False)
    monkeypatch.setattr(shortcuts, "is_wrapped", lambda x: x.is_wrapped)
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


def test_keys_tell_strict_mode_apart(gpu):
    a, b = Tensor(), Tensor(address=512)
    plain = key(a, b)
    with hg.strict():
        assert key(a, b) == key(a, b) != plain
    assert key(a, b) == plain


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
            {"sync": False},
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
        (Tensor(is_wrapped=True), Tensor()),
        (Tensor(), Tensor(is_wrapped=True)),
        (Tensor(), Tensor(dtype="float32")),
        (Tensor(is_cuda=False), Tensor(is_cuda=False)),
        (np.ones((4, 4)), Tensor()),
        ([[1.0]], [[1.0]]),
        (type("Parameter", (Tensor,), {})(), Tensor()),
    ],
    ids=[
        "another device",
        "two devices",
        "gradient",
        "gradient",
        "transform",
        "transform",
        "dtypes",
        "cpu",
        "mixed",
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
        Tensor(address=1024, dtype="float32"),
    ]
    keys = [key(a, b, out) for out in outs]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(a, b, Tensor(address=2048)) == keys[1]


@pytest.mark.parametrize(
    "out",
    [
        Tensor(address=1024, index=1),
        Tensor(address=1024, requires_grad=True),
        Tensor(address=1024, _storage=256),
        Tensor(address=1024, _storage=512),
        np.empty((4, 4)),
    ],
    ids=["device", "gradient", "storage of a", "storage of b", "numpy"],
)
def test_calls_with_other_outputs_have_no_key(gpu, out):
    assert key(Tensor(), Tensor(address=512), out) is None


def test_calls_that_torch_follows_have_no_key(gpu, monkeypatch):
    assert key(Tensor(), Tensor()) is not None
    monkeypatch.setattr(shortcuts, "is_followed", lambda: True)
    assert key(Tensor(), Tensor()) is None


def test_lazily_negated_operands_have_no_key(gpu):
    assert key(Tensor(_negative=True), Tensor()) is None


def test_nothing_has_a_key_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert key(Tensor(), Tensor()) is None


class RepeatingEngine(NumpyEngine):
    """Repeats any plan as a plain product that leaves a mark, and looks by the plain maths."""

    def __init__(self):
        self.asked, self.looks, self.order = [], 0, []

    def repeated_product(self, plan, operands, stacks, result_shape, out):
        self.asked.append((plan, result_shape))
        return lambda a, b, out: ("repeated", a, b, out)

    def repeated_look(self, operands, stacks, most):
        def look(a, b):
            self.looks += 1

            def answer():
                self.order.append("answer")
                return required_bits(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), most, 16384)

            return answer

        return look


def native_plan(n=4):
    return hg.Native().planned(Problem(1, n, n, n, np.dtype("float64")), NOTHING_STATED, NumpyEngine())


def keep(plan, engine, name="key"):
    x = np.ones((1, 4, 4))
    shortcuts.keep(name, plan, engine, (x, x), (x, x), (4, 4), None)


def test_what_was_kept_is_found_and_logged(caplog):
    engine = RepeatingEngine()
    assert shortcuts.repeat("key", 1, 2, 3) == (None, None)
    keep(native_plan(), engine)
    with caplog.at_level(logging.INFO, "hifigemm"):
        assert shortcuts.repeat("key", 1, 2, 3) == (("repeated", 1, 2, 3), None)
    assert "(4 x 4) @ (4 x 4) float64" in caplog.text
    assert "native product" in caplog.text
    assert shortcuts.repeat("another key", 1, 2, 3) == (None, None)
    assert shortcuts.repeat([], 1, 2, 3) == (None, None)


def test_a_call_that_is_captured_leaves_the_place_to_a_later_one(monkeypatch):
    engine = RepeatingEngine()
    monkeypatch.setattr(shortcuts, "_is_captured", lambda: True)
    keep(native_plan(), engine)
    assert shortcuts.repeat("key", 1, 2, 3) == (None, None)
    monkeypatch.setattr(shortcuts, "_is_captured", lambda: False)
    keep(native_plan(), engine)
    assert shortcuts.repeat("key", 1, 2, 3) == (("repeated", 1, 2, 3), None)


def test_plans_that_rest_on_more_than_a_look_and_large_products_are_not_kept():
    engine = RepeatingEngine()
    for plan in (
        replace(native_plan(), free=True),
        replace(native_plan(), promised=True),
        replace(native_plan(), exact=True),
        replace(native_plan(), promised=True, hopeful=True),
        native_plan(2**14),
    ):
        keep(plan, engine)
    assert engine.asked == []
    assert shortcuts._kept == {}


def test_gated_plans_are_repeated_without_a_look():
    engine, target = RepeatingEngine(), resolve(None, FP64, 4)
    plan = FAST.gated_plan(Problem(1, 4, 4, 4, np.dtype("float64")), target, engine, 2**28)
    keep(plan, engine)
    assert engine.asked == [(plan, (4, 4))]
    assert shortcuts.repeat("key", 1, 2, 3) == (("repeated", 1, 2, 3), None)
    assert engine.looks == 0


def test_what_an_engine_does_not_repeat_is_not_kept():
    keep(native_plan(), NumpyEngine())
    assert shortcuts._kept == {}
    engine = RepeatingEngine()
    keep(native_plan(), engine)
    assert (shortcuts._kept, engine.asked) == ({}, [])


def test_what_is_kept_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(shortcuts, "_LIMIT", 3)
    engine = RepeatingEngine()
    for name in range(10):
        keep(native_plan(), engine, name)
        assert name in shortcuts._kept
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


class GuessingEngine(RepeatingEngine):
    """Residues are cheap, counts are guessed, and native and whole products can be repeated."""

    looks_on_the_way = True
    fused = True
    costs = SimpleNamespace(
        native_seconds=lambda problem: 1.0, residue_seconds=lambda problem, count, looks: 0.8 * count / 15
    )

    def whole_product(self, plan):
        if plan.scheme.name != "ozaki2" or plan.certifies:
            return None

        def whole(a, b, shift, epilogue, splits, out):
            self.done.append(plan)
            self.order.append("product")
            ratio = certify.error_ratio(a, b, self, self.block_entries, 10**6)
            if plan.hopeful and not plan.scheme.suffices(plan, ratio):
                raise HopeError(ratio)
            return multiply(replace(plan, hopeful=False), a, b, NumpyEngine(), 2**30, shift, epilogue, splits).values

        return whole

    def __init__(self):
        super().__init__()
        self.done = []

    def repeated_product(self, plan, operands, stacks, result_shape, out):
        self.asked.append((plan, result_shape))
        if plan.scheme == hg.Native():
            return lambda a, b, out: np.matmul(a, b, out=out)
        whole = self.whole_product(plan)
        return whole and (lambda a, b, out: whole(a[None], b[None], 0, PLAIN, (None, None), None)[0])


@pytest.fixture
def kinds(make_pair):
    """Operands of one shape that take a guess, fewer moduli, more than a guess, and other ways."""
    names = ("phi_0.1", "integers", "phi_2", "uniform", "zeros", "phi_4", "single_nonzero", "cancelling", "ties")
    return {name: make_pair(name, 20, 100, 20) for name in names}


@pytest.mark.parametrize("options", [{}, {"scheme": FAST}, {"scheme": FAST, "accuracy": 1e-17}], ids=str)
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_what_came_before_does_not_change_bits(kinds, assert_same_bits, monkeypatch, options, accuracy):
    options = {"accuracy": accuracy} | options
    want = {}
    for name, pair in kinds.items():
        with monkeypatch.context() as patch:
            patch.setattr("hifigemm.api.engine_for", lambda *args: GuessingEngine())
            patch.setattr("hifigemm.api.key_of", lambda *args: None)
            want[name] = hg.matmul(*pair, **options)
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    for seed in range(3):
        for name in np.random.default_rng(seed).permutation([*kinds, *kinds]):
            assert_same_bits(hg.matmul(*kinds[name], **options), want[name])
    assert list(shortcuts._kept) == [("key", True)]
    assert engine.looks > 0


def test_what_takes_more_than_a_given_workspace_is_not_repeated(kinds, monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    for _ in range(2):
        hg.matmul(*kinds["phi_0.1"], scheme=FAST, workspace=2**24)
    assert engine.done[-1].hopeful
    assert shortcuts._kept == {}
    hg.matmul(*kinds["integers"], scheme=FAST, workspace=2**24)
    assert list(shortcuts._kept) == [("key", True)]


def test_a_look_finds_the_product_of_its_operands(kinds, monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    for name in ("phi_0.1", "integers", "uniform"):
        hg.matmul(*kinds[name], scheme=FAST)
    kept = shortcuts._kept["key", True]
    assert len(kept.products) == 3
    plans = [plan for plan, *_ in kept.products.values()]
    assert [plan.hopeful for plan in plans] == [True, False, False]
    assert [plan.exact for plan in plans] == [False, True, True]
    monkeypatch.setattr("hifigemm.api._product", None)
    engine.done.clear()
    for name, plan in zip(("uniform", "phi_0.1", "integers"), (plans[2], plans[0], plans[1]), strict=True):
        hg.matmul(*kinds[name], scheme=FAST)
        assert engine.done.pop() == plan


def test_products_begin_before_a_look_ends_where_the_last_looks_agreed(kinds, assert_same_bits, monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    want = {name: hg.matmul(*kinds[name], scheme=FAST) for name in ("phi_0.1", "integers", "phi_2")}
    before, after = ["answer", "product"], ["product", "answer"]
    for name, order in (
        ("phi_0.1", before),  # the look at phi_2 was the first that found this
        *[("phi_0.1", after)] * 2,
        ("integers", [*after, "product"]),
        *[("integers", before)] * 3,
        *[("integers", after)] * 2,
        ("phi_0.1", [*after, "product"]),
        ("phi_2", [*before, "product"]),  # its first product is the one that was looked for, with too few moduli
        ("phi_2", [*after, "product"]),
    ):
        engine.order.clear()
        assert_same_bits(hg.matmul(*kinds[name], scheme=FAST), want[name])
        assert engine.order == order, name


def test_random_operands_are_rounded_correctly_without_products_for_nothing(monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    rng = np.random.default_rng(1)
    for _ in range(100):
        a, b = rng.standard_normal((2, 24, 24))
        hg.matmul(a, b, accuracy="correct")
    assert len(shortcuts._kept["key", True].products) > 10
    assert len(engine.done) <= 101


def products_of(monkeypatch, *made):
    """Functions as the products of looks that answer 0, 1, .."""
    answers = iter(())

    def look(a, b):
        return lambda: (0, next(answers))

    def ask(*order):
        nonlocal answers
        answers = iter(order)
        return [shortcuts.repeat("key", 1, 2, None)[0] for _ in order]

    plan = replace(native_plan(), hopeful=True)
    products = {(0, i): (plan, product, "") for i, product in enumerate(made)}
    monkeypatch.setitem(shortcuts._kept, "key", shortcuts._Kept(look, products))
    return ask


def test_what_a_guess_raises_is_not_what_the_call_raises(monkeypatch):
    calls = []

    def large(*arguments):
        calls.append("large")
        if len(calls) > 2:
            raise MemoryError
        return "large"

    ask = products_of(monkeypatch, large, lambda *arguments: "small")
    assert ask(0, 0, 1, 1, 1) == ["large", "large", "small", "small", "small"]
    assert calls == ["large"] * 3
    with pytest.raises(MemoryError):
        ask(0)


def test_an_interrupted_guess_leaves_no_look_under_way(monkeypatch):
    waited = []

    def interrupted(*arguments):
        raise KeyboardInterrupt

    kept = shortcuts._Kept(lambda a, b: lambda: waited.append("answer"))
    found = replace(native_plan(), hopeful=True), interrupted, ""
    kept.recent = found, shortcuts._STREAK
    monkeypatch.setitem(shortcuts._kept, "key", kept)
    with pytest.raises(KeyboardInterrupt):
        shortcuts.repeat("key", 1, 2, None)
    assert waited == ["answer"]


def test_a_wrong_guess_holds_no_memory_while_the_product_is_made(monkeypatch):
    class Result:
        pass

    alive = []

    def other(*arguments):
        gc.collect()
        return [x() is not None for x in alive]

    def one(*arguments):
        result = Result()
        alive.append(weakref.ref(result))
        return result

    ask = products_of(monkeypatch, one, other)
    ask(0)
    ask(0)
    assert ask(1) == [[False, False, False]]


def test_a_guess_that_failed_is_not_made_twice(kinds, assert_same_bits, monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    hg.matmul(*kinds["phi_0.1"], scheme=FAST)
    engine.done.clear()
    for _ in range(2):
        c = hg.matmul(*kinds["phi_2"], scheme=FAST)
        assert [plan.hopeful for plan in engine.done] == [True, False]
        assert_same_bits(c, hg.matmul(*kinds["phi_2"], scheme=FAST, return_report=True)[0])
        engine.done.clear()
    ((plan, *_),) = shortcuts._kept["key", True].products.values()
    assert plan.hopeful


def test_plans_of_many_kinds_of_operands_do_not_grow_without_end(monkeypatch, assert_same_bits):
    monkeypatch.setattr(shortcuts, "_PLANS", 3)
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    for bits in (1, 5, 9, 14, 20, 26):
        a = np.full((4, 4), 2.0**bits - 1)
        for _ in range(2):
            assert_same_bits(hg.matmul(a, a, accuracy="correct"), a @ a)
        assert len(shortcuts._kept["key", True].products) <= 3


def test_operands_that_ask_for_the_same_plan_share_its_product(monkeypatch):
    engine = GuessingEngine()
    keyed(monkeypatch, engine)
    for value in (3.0, 7.0):
        hg.matmul(np.full((4, 4), value), np.ones((4, 4)), accuracy="correct")
    products = list(shortcuts._kept["key", True].products.values())
    assert len(products) == 2
    assert len(engine.asked) == len({str(plan) for plan, *_ in products})


def layouts(x):
    """The same matrix in other strides."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    return x, np.asfortranarray(x), wide[::2, ::3], x[::-1][::-1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", [{}, {"scheme": "native"}, {"accuracy": 1e-3}], ids=str)
def test_native_products_of_numpy_are_repeated(make_pair, assert_same_bits, monkeypatch, dtype, options):
    a, b = make_pair("phi_1", 7, 30, 5, dtype)
    want = [hg.matmul(x, y, **options, return_report=True)[0] for x in layouts(a) for y in layouts(b)]
    hg.matmul(a, b, **options)
    monkeypatch.setattr("hifigemm.api._product", lambda *_, **__: pytest.fail("planned again"))
    found = [hg.matmul(x, y, **options) for x in layouts(a) for y in layouts(b)]
    for x, y in zip(found, want, strict=True):
        assert_same_bits(x, y)
        assert x.flags.writeable


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ([1e200, 1e200], [1e200, 0.0]),
        ([1e300, -1e300], [1e300, 1e300]),
        ([np.inf, 1.0], [1.0, 1.0]),
        ([np.nan, 1.0], [1.0, 1.0]),
        ([1e-200, 1.0], [1e-200, 1e-310]),
        ([1.0, -1.0], [1.0, 1.0]),
    ],
)
def test_products_of_numpy_that_need_a_closer_look_get_it(assert_same_bits, row, column):
    ones = np.ones((3, 2)), np.ones((2, 3))
    a, b = ones[0].copy(), ones[1].copy()
    a[1], b[:, 2] = row, column
    want = hg.matmul(a, b, return_report=True)[0]
    for _ in range(2):
        assert_same_bits(hg.matmul(*ones), np.full((3, 3), 2.0))
        assert_same_bits(hg.matmul(a, b), want)


def test_what_is_no_plain_matrix_of_numpy_has_no_key():
    a = np.ones((4, 4))
    assert key(a, a) == key(a.copy(), a[::-1])
    assert key(a, a) != key(a, a, accuracy="fp64")
    assert key(a, a) != key(a.astype(np.float32), a.astype(np.float32))
    with hg.strict():
        strict = key(a, a)
    assert strict not in (None, key(a, a))
    others = a.astype(">f8"), a.astype(int), a.astype(complex), a.astype(np.float16), np.ma.masked_array(a), [[1.0]]
    assert [key(x, x) for x in others] == [None] * len(others)
    assert key(a, a.astype(np.float32)) is None
    assert key(a, a, out=a.copy()) is None


def test_a_thread_that_flushes_subnormals_is_no_shortcut(monkeypatch):
    a = np.ones((4, 4))
    hg.matmul(a, a)
    for name in ("hifigemm.engines.numpy_engine", "hifigemm.numerics.subnormals"):
        monkeypatch.setattr(sys.modules[name], "flushes_subnormals", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", None)  # whose mode is left alone
    with pytest.raises(hg.AccuracyError, match="flushes"):
        hg.matmul(a, a)


def test_repeated_products_of_numpy_are_logged(caplog):
    a = np.ones((4, 4))
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        hg.matmul(a, a)
        hg.matmul(a, a)
    assert [record.message.endswith("as before") for record in caplog.records] == [False, True]


def test_strict_mode_refuses_a_native_product_of_numpy_every_time():
    a = np.ones((4, 4))
    hg.matmul(a, a)
    for _ in range(2):
        with hg.strict(), pytest.raises(hg.AccuracyError):
            hg.matmul(a, a)


def test_a_repeated_product_for_which_memory_is_short_is_planned_anew():
    torch = pytest.importorskip("torch")
    a = np.ones((4, 4))
    own = key(a, a)

    def product(error):
        def fails(*_):
            raise error

        return fails

    for error, result in ((torch.OutOfMemoryError("all is taken"), (None, None)), (RuntimeError("no kernel"), None)):
        plan = hg.make_plan(a, a)
        shortcuts._kept[own] = shortcuts._Kept(None, {None: (plan, product(error), "")})
        try:
            if result is None:
                with pytest.raises(RuntimeError, match="no kernel"):
                    shortcuts.repeat(own, a, a, None)
            else:
                assert shortcuts.repeat(own, a, a, None) == result
                assert (hg.matmul(a, a) == 4.0).all()
        finally:
            del shortcuts._kept[own]
