"""Primitives of JAX that run by callbacks: in programs for platforms that need not be
there, and with buffers seen as those of a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import hifigemm.jax as hj  # noqa: E402
from hifigemm import linalg  # noqa: E402
from hifigemm.differentiable import jax_callbacks  # noqa: E402
from hifigemm.libraries import jax_arrays  # noqa: E402
from tests.jax_arrays import DTYPES, PRODUCT, SHAPES, integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("place")


def lowered(platform, f=hj.matmul):
    """The program of a product that JAX compiles for a platform, which need not be
    there.
    """
    operands = [jnp.ones((2, 2))] * (2 if f is hj.matmul else 3)
    return jax.jit(f).trace(*operands).lower(lowering_platforms=(platform,)).as_text()


def test_programs_for_other_platforms_are_refused_by_name():
    for f in (hj.matmul, partial(hj.gemm, beta=1.0)):
        with pytest.raises(
            TypeError, match="no kernel for programs that JAX compiles for 'tpu'"
        ):
            lowered("tpu", f)


def test_programs_for_a_gpu_say_what_is_missing(torch, monkeypatch):
    missing = {"torch"}
    monkeypatch.setattr(
        jax_callbacks, "find_spec", lambda name: None if name in missing else name
    )
    with pytest.raises(
        TypeError, match="PyTorch is not installed: install torch for CUDA and triton"
    ):
        lowered("cuda")
    missing.clear()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(
        TypeError, match=r"PyTorch \d.* is built without CUDA: install torch"
    ):
        lowered("cuda")
    missing.add("triton")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with pytest.raises(TypeError, match="Triton is not installed"):
        lowered("cuda")


def test_programs_for_a_gpu_call_back(torch, monkeypatch):
    """A call of another kind would go into a command buffer of XLA, which reads nothing
    back.
    """
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(jax_callbacks, "find_spec", lambda name: name)
    for f in (hj.matmul, partial(hj.gemm, beta=1.0)):
        assert "@xla_buffer_python_gpu_callback(" in lowered("cuda", f)


@pytest.fixture
def as_on_a_gpu(torch, monkeypatch):
    """Programs of the CPU that see their buffers as those of a GPU do, as tensors; the
    list of calls on a stream.
    """
    calls = []
    monkeypatch.setattr(jax_callbacks, "_ON_HOST", None)
    monkeypatch.setattr(
        jax_callbacks,
        "_stream",
        lambda context, device: calls.append(device) or nullcontext(),
    )
    return calls


@pytest.mark.parametrize(
    "dtype", [*DTYPES, "float16", "bfloat16", "int64", "int8", "uint8", "bool"]
)
def test_buffers_are_tensors(as_on_a_gpu, assert_same_bits, dtype):
    product = PRODUCT if dtype in DTYPES else hj.matmul
    for left, right in SHAPES.values():
        a, b = integers(left).astype(dtype), integers(right, seed=1).astype(dtype)
        assert_same_bits(jax.jit(product)(a, b), product(a, b))
    assert len(as_on_a_gpu) == sum(
        0 not in np.matmul(np.ones(x), np.ones(y)).shape for x, y in SHAPES.values()
    )


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_buffers_of_scaled_products_are_tensors(as_on_a_gpu, assert_same_bits, dtype):
    a = integers((5, 1, 3, 4), dtype)
    b = integers((2, 4, 2), dtype, 1)
    c = integers((2,), dtype, 2)
    for beta in (0.0, 0.5):
        scaled = partial(hj.gemm, alpha=2.0, beta=beta, accuracy="correct")
        assert_same_bits(jax.jit(scaled)(a, b, c), scaled(a, b, c))
    assert len(as_on_a_gpu) == 2


def test_products_outside_of_programs_are_programs_on_a_gpu(
    monkeypatch, assert_same_bits
):
    """What is done there, done on the CPU: a program for each shape and policy, also
    where JAX compiles nothing.
    """
    a, b, c = integers((3, 4)), integers((4, 2), seed=1), integers((3, 2), seed=2)
    scaled = partial(hj.gemm, beta=0.5, accuracy="correct")
    want = [PRODUCT(a, b), PRODUCT(2 * a, b), scaled(a, b, c)]
    monkeypatch.setattr(
        jax_callbacks,
        "library_of",
        lambda *operands: jax_arrays.JaxLibrary("cuda:0"),
    )
    jax_callbacks._program.clear_cache()
    for found, expected in zip(
        (PRODUCT(a, b), PRODUCT(2 * a, b), scaled(a, b, c)), want, strict=True
    ):
        assert_same_bits(found, expected)
    assert jax_callbacks._program._cache_size() == 2
    with jax.disable_jit():
        assert_same_bits(PRODUCT(a, b), want[0])


def test_results_of_linalg_are_written_to_tensors(as_on_a_gpu):
    a = integers((2, 3, 3))
    gram = a @ a.mT + 1e-3 * jnp.eye(3)
    functions = {
        "det": 4,
        "cond": 2,
        "is_positive_definite": 1,
        "eigvalsh": 2,
        "svdvals": 2,
        "inv": 2,
        "slogdet": 4,
    }
    for name, count in functions.items():
        function = getattr(linalg, name)
        leaves = jax.tree.leaves(jax.jit(function)(gram))
        assert len(leaves) == count
        for leaf, expected in zip(leaves, jax.tree.leaves(function(gram))):
            assert np.array_equal(leaf, expected)
    assert len(as_on_a_gpu) == len(functions)
    tall, b = a[0, :, :2], a[1, :, :1]

    def gradient(a):
        return jax.grad(lambda a: (linalg.lstsq(a, b).x ** 2).sum())(a)

    assert np.array_equal(jax.jit(gradient)(tall), gradient(tall))
