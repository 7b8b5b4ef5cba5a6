"""The cache of programs: what calls of one kind share, what is never kept, and that no
bit depends on it.
"""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import store
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.engine import Lowering
from hifigemm.running import keys
from hifigemm.running.executor import InSteps

FAST = hg.Ozaki2(scaling="fast")
OPTIONS = {"accuracy": None, "scheme": "auto", "engine": None, "workspace": None}


class Device:
    """A device, equal to itself only."""

    type = "cuda"

    def __init__(self, index):
        self.index = index


DEVICES = [Device(0), Device(1)]


class Tensor:
    """As much of a CUDA tensor as a key is made of."""

    def __init__(
        self,
        shape=(4, 4),
        stride=(4, 1),
        dtype="float64",
        address=256,
        index=0,
        **fields,
    ):
        self.shape, self.dtype, self.device = shape, dtype, DEVICES[index]
        self.is_cuda, self.is_cpu = True, False
        self.requires_grad, self.is_wrapped, self.layout = False, False, "strided"
        self.is_nested, self.is_zero = False, False
        self._stride, self._address, self._negative, self._storage = (
            stride,
            address,
            False,
            address,
        )
        self.__dict__.update(fields)

    def stride(self):
        return self._stride

    def data_ptr(self):
        return self._address

    def is_neg(self):
        return self._negative

    def is_conj(self):
        return False

    def _is_zerotensor(self):
        return self.is_zero

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self._storage)


@pytest.fixture(autouse=True)
def nothing_kept():
    store.forget()
    yield
    store.forget()


@pytest.fixture
def gpu(monkeypatch):
    """A PyTorch whose tensors are those above, with device 0 current."""
    fake = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=type("Parameter", (Tensor,), {})),
        strided="strided",
        cuda=SimpleNamespace(current_device=lambda: 0),
        is_grad_enabled=lambda: True,
    )
    for dtype in (
        "float64",
        "float32",
        "complex128",
        "complex64",
        "float16",
        "bfloat16",
    ):
        setattr(fake, dtype, dtype)
    fake.is_autocast_enabled = lambda kind: False
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(keys, "is_followed", lambda: False)
    monkeypatch.setattr(keys, "is_wrapped", lambda x: x.is_wrapped)
    return fake


def key(a, b, out=None, **options):
    return keys.key_of(a, b, out, **OPTIONS | options)


def test_calls_of_one_kind_share_a_key(gpu):
    assert key(Tensor(), Tensor(address=512)) == key(
        Tensor(address=1024), Tensor(address=4096)
    )
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


def test_keys_tell_dtypes_and_operands_apart(gpu):
    a, b = Tensor(), Tensor(address=512)
    single = Tensor(dtype="float32"), Tensor(address=512, dtype="float32")
    wide = Tensor(shape=(4, 8), stride=(8, 1), address=512)
    keys = [key(a, b), key(*single), key(a, wide), key(wide, a)]
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
        )
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("option", ["accuracy", "workspace"])
def test_keys_tell_1_from_1_0_and_true(gpu, option):
    a, b = Tensor(), Tensor(address=512)
    equal = (1, 1.0, True)
    assert len({key(a, b, **{option: value}) for value in equal}) == len(equal)


def test_what_was_kept_for_a_number_serves_no_other_type():
    a, b = np.random.default_rng(1).standard_normal((2, 5, 5))
    want = hg.matmul(a, b, accuracy="correct")
    for zero in (0, 0.0):
        np.testing.assert_array_equal(hg.matmul(a, b, accuracy=zero), want)
        with pytest.raises(hg.PlanError, match="accuracy=False: expected"):
            hg.matmul(a, b, accuracy=False)
    for one, match in ((1, "not a count"), (1.0, "not a count"), (True, "=True")):
        with pytest.raises(hg.PlanError, match=match):
            hg.matmul(a, b, accuracy=one)
    hg.matmul(a, b, workspace=2**20)
    with pytest.raises(hg.PlanError, match=r"workspace=1048576.0: expected"):
        hg.matmul(a, b, workspace=float(2**20))


def test_scalars_of_a_sum_that_is_rounded_once_are_told_apart(assert_same_bits):
    a, b, c = np.random.default_rng(1).standard_normal((3, 5, 5))
    scalars = [
        (1.0, 1.0),
        (-1.0, 1.0),
        (1.0, -1.0),
        (2.0, 1.0),
        (1.0, 0.5),
        (1.0, 0.75),
    ]
    scalars += [(1.5, 1.0), (1.0, True), (1, 1), (1.0, 1.0 + 0j)]

    def sums(order):
        return {
            i: hg.gemm(
                a, b, c, alpha=scalars[i][0], beta=scalars[i][1], accuracy="correct"
            )
            for i in order
        }

    each = range(len(scalars))
    want = {}
    for i in each:
        store.forget()
        want |= sums([i])
    store.forget()
    for order in (each, reversed(each)):
        for i, found in sums(order).items():
            assert_same_bits(found, want[i])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Tensor(index=1), Tensor(index=1)),
        (Tensor(), Tensor(index=1)),
        (Tensor(requires_grad=True), Tensor()),
        (Tensor(), Tensor(requires_grad=True)),
        (Tensor(is_wrapped=True), Tensor()),
        (Tensor(), Tensor(is_wrapped=True)),
        (Tensor(), Tensor(dtype="int64")),
        (Tensor(is_cuda=False), Tensor(is_cuda=False)),
        (Tensor(layout="sparse"), Tensor()),
        (Tensor(is_zero=True), Tensor()),
        (np.ones((4, 4)), Tensor()),
        ([[1.0]], [[1.0]]),
        (type("Subclass", (Tensor,), {})(), Tensor()),
    ],
    ids=[
        "another device",
        "two devices",
        "gradient",
        "gradient",
        "transform",
        "transform",
        "floats and integers",
        "another type of device",
        "layout",
        "zeros without memory",
        "mixed",
        "list",
        "subclass",
    ],
)
def test_calls_of_other_kinds_have_no_key(gpu, a, b):
    assert key(a, b) is None


def test_operands_of_two_dtypes_have_keys_of_their_own(gpu):
    narrow = Tensor(dtype="float32")
    keys = [key(Tensor(), Tensor()), key(Tensor(), narrow), key(narrow, Tensor())]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_gradients_that_nothing_records_share_a_key(gpu, monkeypatch):
    plain = key(Tensor(), Tensor())
    weights = gpu.nn.Parameter(requires_grad=True)
    assert key(weights, Tensor()) is None
    monkeypatch.setattr(gpu, "is_grad_enabled", lambda: False)
    assert key(weights, Tensor()) == plain
    assert key(Tensor(), Tensor(requires_grad=True)) == plain


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
    monkeypatch.setattr(keys, "is_followed", lambda: True)
    assert key(Tensor(), Tensor()) is None


def test_calls_under_autocast_have_no_key(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "is_autocast_enabled", lambda kind: kind == "cuda")
    assert key(Tensor(), Tensor()) is None


def test_tensors_of_the_cpu_share_a_key_whatever_their_layout(gpu):
    def on_cpu(**fields):
        return Tensor(is_cuda=False, is_cpu=True, **fields)

    assert (
        key(on_cpu(), on_cpu(address=264))
        == key(on_cpu(stride=(1, 4)), on_cpu())
        is not None
    )
    assert key(on_cpu(), on_cpu()) not in (
        key(Tensor(), Tensor()),
        key(on_cpu(dtype="float32"), on_cpu(dtype="float32")),
    )
    assert key(on_cpu(dtype="int64"), on_cpu(dtype="int64")) is None
    assert key(on_cpu(), on_cpu(dtype="int64")) is None
    assert key(on_cpu(), on_cpu(dtype="float32")) not in (
        None,
        key(on_cpu(), on_cpu()),
        key(on_cpu(dtype="float32"), on_cpu()),
    )
    out = on_cpu(address=4096)
    assert key(on_cpu(), on_cpu(), out) not in (None, key(on_cpu(), on_cpu()))
    assert key(on_cpu(), on_cpu(), on_cpu()) is None  # out is an operand


def test_lazily_negated_operands_have_no_key(gpu):
    assert key(Tensor(_negative=True), Tensor()) is None


def test_nothing_has_a_key_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert key(Tensor(), Tensor()) is None


def test_options_that_cannot_be_hashed_have_nothing_kept():
    a = np.ones((2, 2))
    assert store.kept(key(a, a, accuracy=[1e-3])) is None
    for options in (
        {"accuracy": [1e-3]},
        {"scheme": ["native"]},
        {"engine": {}},
        {"workspace": []},
        {"result": []},
    ):
        for _ in range(2):
            with pytest.raises(hg.PlanError):
                hg.matmul(a, a, **options)


def repeated():
    """The keys of products that are repeated."""
    return set(store._programs)


def test_products_are_kept_by_their_engines(monkeypatch):
    monkeypatch.setattr(store, "_LIMIT", 2)
    hg.matmul(np.ones((2, 3)), np.ones((3, 2)))
    by_default = set(store._programs)
    for k in range(1, 6):
        hg.matmul(
            np.ones((2, k)),
            np.ones((k, 2)),
            scheme=hg.Ozaki1(num_slices=3),
            engine="simulated-h100",
        )
    # The product of one engine, and the last two of the other one.
    assert len(by_default) == 1
    assert by_default <= set(store._programs)
    assert len(store._programs) == 3


class CountingEngine(NumpyEngine):
    """Notes what is lowered, and which executables run."""

    def __init__(self):
        self.signatures, self.ran = [], []

    def lowering(self, plan):
        return CountingLowering(self, plan)


class CountingLowering(Lowering):
    """A plan in steps."""

    def __init__(self, engine, plan):
        self.engine, self.plan = engine, plan

    def in_halves(self, batch, rows, cols):
        return False

    def nbytes(self, batch, rows, cols):
        return self.plan.scheme.nbytes(self.plan, batch, rows, cols)

    def lower(self, signature):
        self.engine.signatures.append(signature)
        steps = InSteps(self.plan, signature, NumpyEngine(), 2**28)

        def multiply(*arrays):
            self.engine.ran.append(multiply)
            return steps(*arrays)

        return multiply


def keyed(monkeypatch, engine):
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)


def test_the_second_call_of_a_kind_runs_what_the_first_one_ran(make_pair, monkeypatch):
    a, b = make_pair("phi_1", 5, 6, 7)
    engine = CountingEngine()
    keyed(monkeypatch, engine)
    for _ in range(3):
        np.testing.assert_array_equal(hg.matmul(a, b), a @ b)
    (signature,) = engine.signatures
    assert (signature.shape, signature.out, signature.shift) == ((5, 7), None, 0)
    assert signature.left.shape == (1, 5, 6)
    assert signature.right.shape == (1, 6, 7)
    assert len(engine.ran) == 3
    assert len(set(engine.ran)) == 1


@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_products_with_weights_are_kept_where_nothing_records_gradients(
    accuracy, torch, make_pair, monkeypatch
):
    a, b = (torch.from_numpy(x) for x in make_pair("phi_1", 5, 6, 7))
    c = torch.ones(5, 7, dtype=torch.float64, requires_grad=True)
    want = hg.matmul(a, b, accuracy=accuracy)
    of_sum = {"alpha": -1.0, "beta": 1.0, "accuracy": accuracy}
    want_sum = hg.gemm(a, b, c.detach(), **of_sum)

    # The long way is closed: what is kept of plain tensors has to serve.
    for module in ("products", "gemm"):
        monkeypatch.setattr(f"hifigemm.running.{module}.product", None)
    weights = b.clone().requires_grad_(), torch.nn.Parameter(b)
    for x in weights:
        with torch.no_grad():
            product = hg.matmul(a, x, accuracy=accuracy)
            total = hg.gemm(a, x, c, **of_sum)
        assert torch.equal(product, want)
        assert torch.equal(total, want_sum)
        assert not product.requires_grad
        assert not total.requires_grad


def test_plans_and_prepared_operands_are_parts_of_a_key(make_pair):
    a, b = make_pair("phi_1", 5, 6, 7)
    plan = hg.make_plan(a, b)
    other = hg.make_plan(a, b, accuracy="correct")
    calls = [
        lambda: hg.matmul(a, b),
        lambda: hg.matmul(a, b, plan=plan),
        lambda: hg.matmul(a, b, plan=other),
        lambda: hg.gemm(a, b, plan=plan),
        *(
            partial(hg.matmul, hg.prepare(a, "left", plan=each), b)
            for each in (plan, other)
        ),
        *(
            partial(hg.matmul, hg.prepare(a, "left", accuracy=accuracy), b)
            for accuracy in (None, 1e-3, "correct")
        ),
        partial(hg.matmul, a, hg.prepare(b, "right")),
    ]
    store.forget()  # how the operands were prepared
    for number, call in enumerate(calls, 1):
        for _ in range(2):
            np.testing.assert_allclose(call(), a @ b)
            assert len(repeated()) == number


def test_what_is_no_plan_is_refused_and_leaves_nothing(make_pair):
    a, b = make_pair("phi_1", 5, 6, 7)
    for plan in ([], "correct", 1):
        with pytest.raises(hg.PlanError, match="plan is a"):
            hg.matmul(a, b, plan=plan)
    assert not repeated()


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("accuracy", [None, "correct", 1e-3])
def test_products_in_out_are_repeated_on_the_host(
    make_pair, assert_same_bits, dtype, accuracy
):
    a, b = make_pair("phi_1", 6, 6, 6, dtype)
    want = hg.matmul(a, b, accuracy=accuracy)
    wider = np.complex128 if dtype == "complex128" else np.float64
    outs = (
        np.empty((6, 6), dtype),
        np.empty((12, 6), dtype)[::-2],
        np.empty((6, 6), wider),
        np.empty((2, 6, 6), dtype),
    )
    for out in outs:
        for _ in range(3):
            out[...] = np.nan
            assert hg.matmul(a, b, accuracy=accuracy, out=out) is out
            if out.dtype == want.dtype:
                assert_same_bits(out, np.broadcast_to(want, out.shape))
    x = a.copy()
    hg.matmul(x, b, accuracy=accuracy, out=x)
    assert_same_bits(x, want)

    # What cannot be written to is refused, whatever an earlier call has left.
    read_only = np.empty((6, 6), dtype)
    read_only.flags.writeable = False
    overlapping = np.lib.stride_tricks.as_strided(outs[0], (6, 6), (0, 8))
    for out in (read_only, overlapping):
        with pytest.raises(ValueError, match="out"):
            hg.matmul(a, b, accuracy=accuracy, out=out)


def test_products_in_tensors_of_the_host_are_repeated(torch, make_pair):
    a, b = (torch.from_numpy(x) for x in make_pair("phi_1", 6, 6, 6, "complex128"))
    out = torch.empty_like(a)
    for accuracy in (None, "correct"):
        want = hg.matmul(a, b, accuracy=accuracy)
        for _ in range(3):
            version = out.zero_()._version
            assert hg.matmul(a, b, accuracy=accuracy, out=out) is out
            assert torch.equal(out, want)
            assert out._version > version


@pytest.mark.parametrize("accuracy", [None, "correct", 1e-6])
def test_a_report_of_a_repeated_product_says_what_the_first_one_said(accuracy):
    rng = np.random.default_rng(3)
    reports = []
    for _ in range(2):
        a, b = rng.standard_normal((2, 6, 6))
        values, report = hg.matmul(a, b, accuracy=accuracy, return_report=True)
        np.testing.assert_array_equal(values, hg.matmul(a, b, accuracy=accuracy))
        reports.append(report)
    first, second = reports
    assert first.scheme == second.scheme
    assert first.bound == second.bound
    assert first.reason == second.reason
    assert first.num_products == second.num_products
    assert second.decision_seconds == 0.0


@pytest.mark.parametrize("accuracy", [None, "correct"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(-3.0, 1.0), (1.0, 0.3), (2.5, 0.0), (-1.0, 0.3), (0.25, 1e40)]
)
def test_repeated_sums_with_an_addend_have_the_bits_of_the_first(
    alpha, beta, accuracy, monkeypatch
):
    rng = np.random.default_rng(4)
    options = {"alpha": alpha, "beta": beta, "accuracy": accuracy}
    hg.gemm(*rng.standard_normal((3, 5, 5)), **options)
    a, b, c = rng.standard_normal((3, 5, 5))

    def values():
        given = c.copy()
        written = hg.gemm(a, b, given, out=given, **options)
        assert written is given
        transposed = hg.gemm(a.T, b.T, c, trans_a="T", trans_b="C", **options)
        reported, report = hg.gemm(a, b, c, return_report=True, **options)
        is_correct = accuracy == "correct"
        assert ("alpha, beta applied" in report.reason) != is_correct
        assert report.correct == is_correct
        return hg.gemm(a, b, c, **options), written, transposed, reported

    repeats = values()
    module = sys.modules["hifigemm.running.gemm"]
    monkeypatch.setattr(module, "replay", lambda *args: None)
    for repeated, anew in zip(repeats, values(), strict=True):
        np.testing.assert_array_equal(repeated, anew)
        np.testing.assert_array_equal(repeated, repeats[0])


def test_an_addend_of_another_kind_is_not_taken_for_that_of_an_earlier_call():
    a, b, c = np.random.default_rng(5).standard_normal((3, 4, 4))
    hg.gemm(a, b, c, beta=0.3)
    for other in (c[:1], c[0], 2.0, c.astype(np.float32), c.tolist()):
        want = hg.gemm(a, b, np.broadcast_to(other, (4, 4)).copy(), beta=0.3)
        np.testing.assert_array_equal(hg.gemm(a, b, other, beta=0.3), want)
    read_only = c.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        hg.gemm(a, b, c, beta=0.3, out=read_only)
    with pytest.raises(hg.PlanError, match="trans_a"):
        hg.gemm(a, b, c, beta=0.3, trans_a="X")


def test_empty_products_leave_nothing():
    for _ in range(2):
        assert hg.matmul(np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0.0] * 3] * 2
        assert hg.matmul(np.ones((0, 2)), np.ones((2, 3))).shape == (0, 3)
    assert not repeated()


def test_products_that_were_refused_leave_nothing(make_pair):
    easy, hard = make_pair("integers", 5, 6, 7), make_pair("full_range", 5, 6, 7)
    options = {"scheme": hg.Ozaki1(num_slices=2), "accuracy": 1e-15}
    for _ in range(2):
        with pytest.raises(hg.AccuracyError, match="does not meet"):
            hg.matmul(*hard, **options)
    assert not repeated()
    for _ in range(2):
        hg.matmul(*easy, **options)
        assert len(repeated()) == 1
        with pytest.raises(hg.AccuracyError, match="does not meet"):
            hg.matmul(*hard, **options)


def test_plans_that_rest_on_their_operands_are_not_kept_on_the_host(make_pair):
    for options in (
        {"scheme": FAST, "accuracy": 1e-15},
        {"scheme": "ozaki2"},
        {"scheme": hg.Ozaki1(mode="dp")},
    ):
        for family in ("integers", "phi_4"):
            hg.matmul(*make_pair(family, 5, 6, 7), **options)
        assert not repeated()


KINDS = (
    "phi_0.1",
    "integers",
    "phi_2",
    "uniform",
    "zeros",
    "phi_4",
    "single_nonzero",
    "cancelling",
    "ties",
)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accuracy": "correct"},
        {"accuracy": 1e-17},
        {"scheme": FAST},
        {"scheme": FAST, "accuracy": 1e-17},
        {"scheme": FAST, "accuracy": "correct"},
        {"scheme": hg.Ozaki2(num_moduli=9)},
        {"scheme": hg.Ozaki1(num_slices=3)},
        {"scheme": hg.Ozaki1(mode="dp")},
        {"scheme": "corrected"},
        {"scheme": hg.Multiword("bf16", 3, 6)},
        {"accuracy": "correct", "workspace": 2**18},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_came_before_does_not_change_bits(
    make_pair, assert_same_bits, options, dtype
):
    kinds = {name: make_pair(name, 20, 100, 20, dtype) for name in KINDS}
    want = {
        name: hg.matmul(*pair, **options, return_report=True)[0]
        for name, pair in kinds.items()
    }
    for seed in range(3):
        for name in np.random.default_rng(seed).permutation([*kinds, *kinds]):
            assert_same_bits(hg.matmul(*kinds[name], **options), want[name])


def test_threads_share_what_is_kept(make_pair, assert_same_bits):
    shapes = [(m, k, n) for m in (3, 8) for k in (5, 40) for n in (4, 9)]
    calls = [
        (make_pair("phi_1", *shape, seed=seed), options)
        for shape in shapes
        for seed in range(2)
        for options in ({}, {"accuracy": "correct"}, {"scheme": "ozaki2"})
    ]
    want = [
        hg.matmul(*pair, **options, return_report=True)[0] for pair, options in calls
    ]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = list(pool.map(lambda call: hg.matmul(*call[0], **call[1]), calls))
            for x, y in zip(found, want, strict=True):
                assert_same_bits(x, y)


def test_results_share_no_memory(make_pair):
    a, b = make_pair("phi_1", 5, 6, 7)
    for options in ({}, {"accuracy": "correct"}):
        found = [hg.matmul(a, b, **options) for _ in range(3)]
        assert not any(
            np.shares_memory(x, y)
            for i, x in enumerate(found)
            for y in (a, b, *found[:i])
        )


def layouts(x):
    """The same matrix in other strides."""
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::2, ::3] = x
    return x, np.asfortranarray(x), wide[::2, ::3], x[::-1][::-1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scheme": "native"},
        {"accuracy": 1e-3},
        {"accuracy": "correct"},
        {"scheme": hg.Ozaki1(num_slices=3)},
    ],
    ids=str,
)
def test_products_of_matrices_of_numpy_are_repeated(
    make_pair, assert_same_bits, monkeypatch, dtype, options
):
    a, b = make_pair("phi_1", 7, 30, 5, dtype)
    want = [
        hg.matmul(x, y, **options, return_report=True)[0]
        for x in layouts(a)
        for y in layouts(b)
    ]
    hg.matmul(a, b, **options)
    monkeypatch.setattr(
        "hifigemm.running.products.product",
        lambda *_, **__: pytest.fail("planned again"),
    )
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
def test_products_of_numpy_that_need_a_closer_look_get_it(
    assert_same_bits, row, column
):
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
    others = (
        a.astype(">f8"),
        a.astype(">i8"),
        a.astype(np.longdouble),
        np.ma.masked_array(a),
        [[1.0]],
    )
    assert [key(x, x) for x in others] == [None] * len(others)
    assert key(a, a.astype(int)) is None
    assert key(a.astype(int), a.astype(bool)) is None
    assert key(a, a, out=a.copy()) not in (None, key(a, a), key(a, a, out=a.T.copy().T))
    assert key(a, a, out=[[1.0]]) is None


def test_mixed_dtypes_of_numpy_have_keys_of_their_own():
    arrays = [np.ones((4, 4), dtype) for dtype in ("e", "f", "d", "F", "D")]
    found = {key(x, y) for x in arrays for y in arrays}
    assert None not in found
    assert len(found) == 25


def test_a_thread_that_flushes_subnormals_takes_the_long_way(monkeypatch):
    a = np.ones((4, 4))
    hg.matmul(a, a)
    for name in ("hifigemm.engines.host", "hifigemm.numerics.subnormals"):
        monkeypatch.setattr(sys.modules[name], "is_ieee", lambda: False)
    monkeypatch.setattr(
        sys.modules["hifigemm.numerics.subnormals"], "rounds_to_nearest", lambda: True
    )
    monkeypatch.setitem(sys.modules, "torch", None)  # whose mode is left alone
    with pytest.raises(hg.AccuracyError, match="flushes"):
        hg.matmul(a, a)


def test_repeated_products_of_numpy_are_logged(caplog):
    a = np.ones((4, 4))
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        hg.matmul(a, a)
        hg.matmul(a, a)
    assert [record.message.endswith("as before") for record in caplog.records] == [
        False,
        True,
    ]


def test_strict_mode_refuses_a_native_product_of_numpy_every_time():
    a = np.ones((4, 4))
    hg.matmul(a, a)
    for _ in range(2):
        with hg.strict(), pytest.raises(hg.AccuracyError):
            hg.matmul(a, a)
