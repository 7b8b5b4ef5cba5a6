"""What several test modules share: pairs of operands by name, and equality to the last
bit.
"""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import hifigemm as hg
from hifigemm.workshop.measuring.arrays import cuda_is_usable
from tests import hard_matrices as gen

# Tests run side by side on one GPU, of which JAX would take three quarters as soon as
# it is used.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

_MEMORY_OF_A_PROCESS = 8 * 2**30
"""Bytes of a GPU that a process of tests may need at a time: contexts of three
libraries, and its largest test.
"""
_MEMORY_TO_KEEP = 2**30
"""Bytes that PyTorch may keep in reserve between two tests."""


def pytest_addoption(parser):
    parser.addoption(
        "--part",
        type=_part,
        default=(1, 1),
        metavar="I/N",
        help="run one of N parts of the tests, each test in one of them, always the same",
    )
    parser.addoption(
        "--arch",
        type=int,
        action="append",
        default=[],
        metavar="ARCH",
        help="compile all kernels for this architecture (90 for sm_90, may be repeated)"
        " in place of a sample for three",
    )


def _part(text):
    """(2, 3) for 2/3."""
    number, of, count = text.partition("/")
    if not (of and number.isdigit() and count.isdigit()):
        raise ValueError(text)
    if not 1 <= int(number) <= int(count):
        raise ValueError(text)
    return int(number), int(count)


def _is_of_part(item, part):
    number, count = part
    return zlib.crc32(item.nodeid.encode()) % count == number - 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many processes for ``-n auto`` as cores and the memory of the GPUs carry."""
    cores = max((os.cpu_count() or 1) - 2, 1)
    if not cuda_is_usable():
        return cores
    import torch

    free, _ = torch.cuda.mem_get_info()
    num_gpus = len(_gpus()) if _takes_one_gpu(config) else 1
    return max(min(cores, free // _MEMORY_OF_A_PROCESS * num_gpus), 1)


def _gpus():
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _takes_one_gpu(config):
    """True unless tests of several GPUs may be selected."""
    expression = config.option.markexpr
    return "multigpu" not in expression or "not multigpu" in expression


def _choose_gpu(config):
    """Give each process of pytest-xdist one GPU, in turn, before CUDA is initialised."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    gpus = _gpus()
    if worker and len(gpus) > 1 and _takes_one_gpu(config):
        number = int(worker.removeprefix("gw"))
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """After a test on a GPU its memory is free for the tests of other processes."""
    torch = sys.modules.get("torch")
    if (
        torch is None
        or item.get_closest_marker("gpu") is None
        or not torch.cuda.is_initialized()
    ):
        return
    if torch.cuda.memory_reserved() > _MEMORY_TO_KEEP:
        gc.collect()
        torch.cuda.empty_cache()


def pytest_itemcollected(item):
    """Tests of a module that imports torch, and tests that take the fixture of that
    name, carry the marker `torch`.
    """
    if hasattr(item.module, "torch") or "torch" in item.fixturenames:
        item.add_marker("torch")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Parameters of thinned tests are slow but for each n-th set; tests of other parts
    are left out; tests that lack PyTorch or a GPU are skipped.
    """
    counts = Counter()
    for item in items:
        for marker in item.iter_markers("thinned"):
            if counts[item.function] % marker.args[0]:
                item.add_marker("slow")
            counts[item.function] += 1
    part = config.getoption("part")
    others = [item for item in items if not _is_of_part(item, part)]
    if others:
        items[:] = [item for item in items if _is_of_part(item, part)]
        config.hook.pytest_deselected(items=others)
    for marker, is_there, what in (
        ("torch", _has_torch, "PyTorch"),
        ("gpu", cuda_is_usable, "a CUDA device"),
    ):
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_there():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=f"needs {what}"))


def _has_torch():
    return find_spec("torch") is not None


# The same examples in every run, on slow machines too: fewer without the slow tests,
# where a test asks for no number.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=40)


def pytest_configure(config):
    _choose_gpu(config)
    settings.load_profile(
        "quick" if "not slow" in config.option.markexpr else "repeatable"
    )


SINGLES = {
    "uniform": gen.uniform,
    "phi_0.1": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 0.1, dtype),
    "phi_1": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 1.0, dtype),
    "phi_2": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 2.0, dtype),
    "phi_4": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 4.0, dtype),
    "phi_8": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 8.0, dtype),
    "phi_20": lambda rng, shape, dtype: gen.phi_matrix(rng, shape, 20.0, dtype),
    "full_range": gen.full_range,
    "subnormal": gen.subnormal,
    "vandermonde": gen.vandermonde,
    "integers": lambda rng, shape, dtype: rng.integers(-3, 4, shape).astype(dtype),
    "largest": lambda rng, shape, dtype: (
        np.where(rng.random(shape) < 0.5, -1, 1).astype(dtype) * np.finfo(dtype).max
    ),
    "smallest": lambda rng, shape, dtype: (
        np.where(rng.random(shape) < 0.5, -1, 1).astype(dtype)
        * np.finfo(dtype).smallest_subnormal
    ),
    "sparse": lambda rng, shape, dtype: (
        gen.uniform(rng, shape, dtype=dtype) * (rng.random(shape) < 0.1).astype(dtype)
    ),
    "single_nonzero": lambda rng, shape, dtype: _single_nonzero(rng, shape, dtype),
    "zeros": lambda rng, shape, dtype: np.full(shape, -0.0, dtype),
}
PAIRS = {
    "cancelling": gen.cancelling,
    "nearly_cancelling": lambda *args: gen.cancelling(*args, perturb=True),
    "ties": gen.ties,
    "near_ties": lambda rng, m, k, n, dtype: gen.ties(
        rng, m, max(k, 2), n, dtype, nudge_bits=100
    ),
    "far_nudged_ties": lambda rng, m, k, n, dtype: gen.ties(
        rng,
        m,
        max(k, 2),
        n,
        dtype,
        nudge_bits=200 if np.dtype(dtype) == np.float32 else 1800,
    ),
    "overflowing": gen.overflowing,
    "underflowing": gen.underflowing,
    "vanishing": gen.vanishing,
    "half_the_smallest": gen.half_the_smallest,
    "signed_zeros": gen.signed_zeros,
    "subnormal_times_large": lambda rng, m, k, n, dtype: (
        gen.subnormal(rng, (m, k), dtype),
        gen.exp_rand(rng, (k, n), -9, np.finfo(dtype).maxexp - 1, dtype),
    ),
    "largest_times_smallest": lambda rng, m, k, n, dtype: (
        SINGLES["largest"](rng, (m, k), dtype),
        SINGLES["smallest"](rng, (k, n), dtype),
    ),
    "span_60": lambda rng, m, k, n, dtype: (
        gen.row_span(rng, (m, k), 60, dtype),
        gen.row_span(rng, (n, k), 60, dtype).T,
    ),
    "opposed_spans": lambda rng, m, k, n, dtype: (
        gen.graded(rng, (m, k), -30, 30, dtype),
        gen.graded(rng, (k, n), 30, -30, dtype),
    ),
    "badly_scaled": lambda rng, m, k, n, dtype: (
        gen.badly_scaled(rng, (m, k), -50, 50, dtype),
        gen.badly_scaled(rng, (k, n), -50, 50, dtype),
    ),
    "empty_rows_and_columns": lambda rng, m, k, n, dtype: _with_empty_vectors(
        rng, m, k, n, dtype
    ),
    "subnormal_rows": lambda rng, m, k, n, dtype: _with_subnormal_vectors(
        rng, m, k, n, dtype
    ),
}


def _single_nonzero(rng, shape, dtype):
    x = np.zeros(shape, dtype)
    x[tuple(rng.integers(0, size) for size in shape)] = rng.uniform(-1, 1)
    return x


def _with_empty_vectors(rng, m, k, n, dtype):
    a = gen.phi_matrix(rng, (m, k), 1.0, dtype)
    b = gen.phi_matrix(rng, (k, n), 1.0, dtype)
    a[::2], b[:, 1::2] = 0, 0
    a[:, k // 2] = 0
    return a, b


def _with_subnormal_vectors(rng, m, k, n, dtype):
    a = gen.phi_matrix(rng, (m, k), 1.0, dtype)
    b = gen.phi_matrix(rng, (k, n), 1.0, dtype)
    a[::2], b[:, ::2] = (
        gen.subnormal(rng, a[::2].shape, dtype),
        gen.subnormal(rng, b[:, ::2].shape, dtype),
    )
    return a, b


def real_pair(rng, name, m, k, n, dtype):
    if name in PAIRS:
        return PAIRS[name](rng, m, k, n, dtype)
    return SINGLES[name](rng, (m, k), dtype=dtype), SINGLES[name](
        rng, (k, n), dtype=dtype
    )


def on_gpu(*arrays):
    """NumPy arrays as CUDA tensors."""
    import torch

    return [torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in arrays]


@pytest.fixture(scope="session")
def torch():
    """PyTorch, for tests in modules that run without it."""
    import torch

    return torch


@pytest.fixture
def without_core(monkeypatch):
    """The compiled core is left alone, as where it is not built."""
    from hifigemm.base import store
    from hifigemm.engines import core

    store.forget()
    monkeypatch.setattr(core, "loaded", lambda: (None, "left alone"))
    yield
    store.forget()


@pytest.fixture(scope="session")
def make_pair():
    """make_pair(name, m, k, n, dtype, seed): operands of shapes (m, k) and (k, n);
    complex ones from two real pairs.
    """

    def make(name, m, k, n, dtype=np.float64, seed=0):
        rng = np.random.default_rng([seed, m, k, n, *name.encode()])
        if np.dtype(dtype).kind == "c":
            return gen.as_complex(real_pair, rng, name, m, k, n, np.finfo(dtype).dtype)
        return real_pair(rng, name, m, k, n, np.dtype(dtype))

    return make


@pytest.fixture(scope="session")
def assert_same_bits():
    """Equal dtype, shape and bits, the signs of zeros included."""

    def check(x, y):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        bytes_of_x, bytes_of_y = (
            np.ascontiguousarray(z).reshape(-1, 1).view(np.uint8) for z in (x, y)
        )
        different = (bytes_of_x != bytes_of_y).any(axis=-1)
        assert not different.any(), (
            f"{np.count_nonzero(different)} of {x.size} entries differ"
        )

    return check


@pytest.fixture(scope="session")
def workspaces():
    """workspaces(a, b, **options): the smallest limit that is accepted, two between,
    what is taken without one.
    """

    def find(a, b, **options):
        with pytest.raises(hg.PlanError, match=r"takes \d+$") as error:
            hg.make_plan(a, b, workspace=1, **options)
        smallest = int(str(error.value).split()[-1])
        full = hg.make_plan(a, b, **options).workspace
        return (
            smallest,
            smallest + (full - smallest) // 10,
            smallest + (full - smallest) // 2,
            full,
        )

    return find


@pytest.fixture
def place(request):
    """The device of new arrays of JAX, the CPU where a test does not say otherwise; they
    may have 64 bits.
    """
    import jax

    try:
        (device, *_) = jax.devices(getattr(request, "param", "cpu"))
    except RuntimeError:
        pytest.skip("JAX finds no CUDA device")
    with jax.enable_x64(True), jax.default_device(device):
        yield device
