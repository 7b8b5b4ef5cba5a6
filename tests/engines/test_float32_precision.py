"""FP32 products of PyTorch keep their precision whatever the process has set, and the
setting stays as it is.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.engines import float32_precision as precision  # noqa: E402

LEVELS = {
    backend: (("generic", "all"), (backend, "all"), (backend, "matmul"))
    for backend in ("cuda", "mkldnn")
}
VALUES = {"generic": ("none", "ieee", "tf32", "bf16"), "cuda": ("none", "ieee", "tf32")}
VALUES["mkldnn"] = VALUES["generic"]


def old():
    torch.set_float32_matmul_precision("medium")


def new():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def generic():
    torch.backends.fp32_precision = "bf16"


def old_then_new():
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def new_then_old():
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("medium")


SETTINGS = (old, new, generic, old_then_new, new_then_old)


@pytest.fixture(autouse=True)
def settings():
    """The settings of a new process, before and after."""

    def reset():
        torch.set_float32_matmul_precision("highest")
        for level in {level for levels in LEVELS.values() for level in levels}:
            precision._set(*level, "none")

    reset()
    yield
    reset()


def all_settings():
    """What a user can read; the old function raises where the new ones were used."""
    found = [
        precision._holding(*level) for levels in LEVELS.values() for level in levels
    ]
    try:
        return [*found, torch.get_float32_matmul_precision()]
    except RuntimeError as error:
        return [*found, str(error)]


@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
@pytest.mark.parametrize("asked", ["ieee", "tf32"])
def test_settings_are_restored_exactly_at_every_level(backend, asked):
    levels = LEVELS[backend]
    for values in product(*(VALUES[name] for name, _ in levels)):
        for level, value in zip(levels, values, strict=True):
            precision._set(*level, value)
        before = all_settings()
        with (
            contextlib.suppress(ZeroDivisionError),
            precision.float32_precision(backend, asked),
        ):
            assert precision._holding(backend, "matmul") in (
                (asked, "none") if asked == "ieee" else (asked,)
            )
            raise ZeroDivisionError
        assert all_settings() == before
        found = []
        # what is set at a level is read where nothing is set above
        for level in levels:
            found.append(precision._holding(*level))
            precision._set(*level, "none")
        assert tuple(found) == values


def operands():
    made = torch.Generator().manual_seed(0)
    a, b = (torch.rand(200, 200, generator=made) for _ in range(2))
    stack = torch.rand(3, 200, 200, generator=made)
    yield from (
        (a, b),
        (a, b[0]),
        (a[0], b),
        (a[0], b[0]),
        (stack, b),
        (stack, stack),
        (a[:, ::2], b[::2]),
    )
    yield torch.complex(a, b), b
    yield a.bfloat16(), b.bfloat16()
    yield a.half(), b.half()


CALLS = (
    {"scheme": "native"},
    {"accuracy": "fp32", "engine": "torch"},
    {"accuracy": "correct"},
    {"scheme": hg.Ozaki2(num_moduli=8, scaling="fast")},
    {"scheme": hg.Multiword("bf16"), "engine": "simulated-h100"},
)


@pytest.mark.parametrize("set_precision", SETTINGS, ids=lambda f: f.__name__)
def test_products_have_the_bits_of_the_highest_precision(set_precision):
    first, *others = operands()
    calls = [(first, options) for options in CALLS] + [(pair, {}) for pair in others]
    want = [hg.matmul(*pair, **options) for pair, options in calls]
    set_precision()
    before = all_settings()
    for (pair, options), c in zip(calls, want, strict=True):
        assert torch.equal(hg.matmul(*pair, **options), c), options
    assert all_settings() == before


@pytest.mark.parametrize("set_precision", SETTINGS, ids=lambda f: f.__name__)
def test_products_keep_their_promise(set_precision):
    a = torch.full((200, 200), 1 + 2.0**-9)  # 1 in BF16
    set_precision()
    c, report = hg.matmul(a, a, return_report=True)
    assert report.native
    exact = 200 * (1 + 2.0**-9) ** 2
    assert ((c.double() - exact).abs() <= (report.bound + 2.0**-24) * exact).all()


def test_arrays_of_numpy_on_this_engine_keep_it_too(assert_same_bits):
    a, b = (x.numpy() for x in next(operands()))
    want = hg.matmul(a, b, engine="torch")
    old()
    assert_same_bits(hg.matmul(a, b, engine="torch"), want)


def test_threads_keep_it_and_leave_the_setting():
    a, b = next(operands())
    want = hg.matmul(a, b)
    old()
    before = all_settings()
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda _: torch.equal(hg.matmul(a, b), want), range(60)))
    assert all_settings() == before


def test_a_thread_waits_for_another_one_before_it_trusts_the_setting():
    old()
    with ThreadPoolExecutor(1) as thread:
        with precision.float32_precision("mkldnn", "ieee"):
            found = thread.submit(precision.rounds_float32, "mkldnn")
            with pytest.raises(TimeoutError):
                found.result(timeout=0.05)
        assert found.result()
