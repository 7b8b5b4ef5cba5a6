"""Operators of PyTorch as graphs, caches and exported programs name them: schemas,
texts of options, fake results.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

import hifigemm.linalg.torch_operators  # noqa: E402
from hifigemm.differentiable import torch_operators  # noqa: E402, F401
from tests.interop.texts import ACCURACIES, SCHEMES  # noqa: E402

OPTIONS = (
    'str? accuracy=None, str scheme="auto", int? workspace=None, '
    "ScalarType? out_dtype=None"
)
SCHEMAS = {
    "matmul": f"(Tensor a, Tensor b, *, {OPTIONS}) -> Tensor",
    "matmul.out": f"(Tensor a, Tensor b, *, {OPTIONS}, Tensor(a!) out) -> Tensor(a!)",
    "bmm": f"(Tensor a, Tensor b, *, {OPTIONS}) -> Tensor",
    "bmm.out": f"(Tensor a, Tensor b, *, {OPTIONS}, Tensor(a!) out) -> Tensor(a!)",
    "gemm": f"(Tensor a, Tensor b, Tensor? c=None, *, Scalar alpha=1, Scalar beta=0, {OPTIONS}) -> Tensor",
    "gemm.out": (
        f"(Tensor a, Tensor b, Tensor? c=None, *, Scalar alpha=1, Scalar beta=0, {OPTIONS}, Tensor(a!) out)"
        " -> Tensor(a!)"
    ),
}
"""Every operator of products and overload, as programs that were exported hold it."""
SCHEMAS_OF_SOLUTIONS = {
    "solve": "(Tensor a, Tensor b, str? accuracy=None) -> (Tensor x, Tensor radius)",
    "lstsq": "(Tensor a, Tensor b) -> (Tensor x, Tensor radius)",
    "slogdet": "(Tensor a) -> (Tensor sign, Tensor logabsdet, Tensor radius, Tensor sign_radius)",
}
"""Those of hifigemm.linalg."""


DTYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}
"""The dtype of the result, by that of the operands."""


def overload_of(name):
    """The overload that a name such as "matmul.out" or "matmul" stands for."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.hifigemm, packet), overload or "default")


def test_operators_and_their_schemas_are_those_of_exported_programs():
    prefix = "hifigemm::"
    names = [
        x.removeprefix(prefix)
        for x in torch._C._dispatch_get_all_op_names()
        if x.startswith(prefix)
    ]
    schemas = {name: str(overload_of(name)._schema) for name in names}
    wanted = SCHEMAS | SCHEMAS_OF_SOLUTIONS
    assert schemas == {name: f"{prefix}{name}{wanted[name]}" for name in wanted}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_operator_has_a_fake_result_of_the_shape_and_dtype_of_the_product(
    name, device, dtype
):
    with FakeTensorMode():
        a = torch.empty(2, 3, 4, dtype=dtype, device=device)
        b = torch.empty(2, 4, 5, dtype=dtype, device=device)
        options = {}
        if name.endswith(".out"):
            options["out"] = torch.empty(2, 3, 5, dtype=DTYPES[dtype], device=device)
        product = overload_of(name)(a, b, **options)
    assert isinstance(product, FakeTensor)
    assert product.shape == (2, 3, 5)
    assert product.dtype is DTYPES[dtype]
    assert product.device.type == device
    if options:
        assert product is options["out"]


@pytest.mark.parametrize("dtype", [x for x in DTYPES if not x.is_complex], ids=str)
@pytest.mark.parametrize("name", SCHEMAS)
def test_fake_results_have_the_dtype_that_is_asked(name, dtype):
    with FakeTensorMode():
        a = torch.empty(2, 3, 4, dtype=torch.bfloat16)
        b = torch.empty(2, 4, 5)
        options = {"out_dtype": dtype}
        if name.endswith(".out"):
            options["out"] = torch.empty(2, 3, 5, dtype=dtype)
        product = overload_of(name)(a, b, **options)
        assert product.dtype is dtype
        with pytest.raises(TypeError, match="is real, and the product is complex128"):
            overload_of(name)(a.to(torch.complex128), b, **options)


@pytest.mark.parametrize("text", ACCURACIES)
def test_graphs_hold_accuracies_as_these_texts(text):
    assert options_in_graph(accuracy=ACCURACIES[text])["accuracy"] == text


@pytest.mark.parametrize("text", SCHEMES)
def test_graphs_hold_schemes_as_these_texts(text):
    assert options_in_graph(scheme=SCHEMES[text]).get("scheme", "auto") == text


def options_in_graph(**options):
    """The options of the operator that `hifigemm.matmul` is in an exported program."""

    class Product(torch.nn.Module):
        def forward(self, a, b):
            return hg.matmul(a, b, **options)

    a = torch.ones(3, 4, dtype=torch.float64)
    program = torch.export.export(Product(), (a, a.T.contiguous()))
    (node,) = (
        node
        for node in program.graph.nodes
        if node.target is torch.ops.hifigemm.matmul.default
    )
    return node.kwargs


def test_operators_obey_the_text_of_a_scheme():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((20, 30))
    b = rng.standard_normal((30, 10))
    text = "Ozaki2(product='int8', num_moduli=9, scaling='fast')"
    product = torch.ops.hifigemm.matmul(
        torch.from_numpy(a), torch.from_numpy(b), scheme=text
    ).numpy()
    assert product.tobytes() == hg.matmul(a, b, scheme=SCHEMES[text]).tobytes()
    assert product.tobytes() != hg.matmul(a, b, accuracy="correct").tobytes()
