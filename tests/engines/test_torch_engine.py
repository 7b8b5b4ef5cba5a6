"""Engine "torch" on the CPU: the maths of NumPy's engine, PyTorch's native product."""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for

torch = pytest.importorskip("torch")
from hifigemm.engines import torch_engine as module  # noqa: E402
from hifigemm.engines.torch_engine import TorchEngine, native_product_of  # noqa: E402

SCHEMES = (
    hg.Ozaki1(),
    hg.Ozaki1(product="fp16"),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_tensors_give_the_bits_of_arrays(make_pair, assert_same_bits, scheme, dtype):
    a, b = make_pair("phi_1", 5, 30, 4, dtype)
    c, report = hg.matmul(
        torch.from_numpy(a), torch.from_numpy(b), scheme=scheme, return_report=True
    )
    assert isinstance(c, torch.Tensor)
    assert (report.engine, report.device) == ("torch", "cpu")
    assert_same_bits(c.numpy(), hg.matmul(a, b, scheme=scheme))


def test_native_product_is_that_of_torch():
    a = torch.rand(40, 50, dtype=torch.float64)
    b = torch.rand(50, 30, dtype=torch.float64)
    torch.testing.assert_close(hg.matmul(a, b), a @ b, rtol=0, atol=0)


ENGINE = TorchEngine()
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.swapaxes(np.swapaxes(x, 1, 2).copy(), 1, 2),
    "reversed": lambda x: x[:, ::-1, ::-1],
    "one for all": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("batch", [1, 3])
def test_integers_are_multiplied_exactly_in_any_layout(batch, dtype, layout):
    rng = np.random.default_rng(batch)
    a, b = (
        LAYOUTS[layout](rng.integers(-9, 10, shape).astype(dtype))
        for shape in ((batch, 5, 7), (batch, 7, 4))
    )
    np.testing.assert_array_equal(ENGINE.native_product(a, b), a @ b, strict=True)


def test_a_stack_of_one_is_multiplied_as_the_matrix_that_it_is():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((1, 65, 130)), rng.standard_normal((1, 130, 43))
    want = torch.matmul(torch.from_numpy(a[0]), torch.from_numpy(b[0])).numpy()
    assert ENGINE.native_product(a, b).tobytes() == want.tobytes()


def test_read_only_arrays_are_left_as_they_are():
    a = np.ones((1, 2, 2))
    a.flags.writeable = False
    assert (ENGINE.native_product(a, a) == 2).all()
    assert module._writable(a) is not a
    b = np.ones((1, 2, 2))
    assert module._writable(b) is b


def test_float32_is_not_rounded_to_shorter_words():
    """Integers of 24 bits, in a process that lets PyTorch round float32."""
    x = torch.tensor([[2.0**23 + 1, 1.0]])
    torch.set_float32_matmul_precision("medium")
    try:
        product = native_product_of(x, torch.eye(2))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(product, x)


def test_exact_products_are_those_of_the_engine_of_numpy():
    numpy = engine_for("numpy")
    rng = np.random.default_rng(3)
    assert ENGINE.products == numpy.products
    for spec in ENGINE.products.values():
        a, b = (rng.integers(-3, 4, s).astype(float) for s in ((2, 5, 6), (2, 6, 4)))
        x, y = (engine.exact_product(spec, a, b, 3, 3) for engine in (ENGINE, numpy))
        np.testing.assert_array_equal(x, y, strict=True)


def test_devices_have_engines_of_their_own():
    assert isinstance(module.torch_engine("cpu"), TorchEngine)
    first, second = (module.torch_engine(f"cuda:{i}") for i in range(2))
    assert (first.place.index, second.place.index) == (0, 1)
    assert module.torch_engine("cuda:0") is first


def test_what_is_installed_is_told(monkeypatch):
    version, gpus = module.describe_gpus()
    assert version == torch.__version__
    if not torch.cuda.is_available():
        assert gpus == ()
        assert module.describe_triton().endswith("without a GPU")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert module.describe_triton().startswith("not installed")
