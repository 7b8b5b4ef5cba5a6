"""PyTorch on a CPU, with all names of the library in front of its BLAS."""

from __future__ import annotations

import os

import pytest

from tests.blas.conftest import LIBRARY, run_python

torch = pytest.importorskip("torch")

PROGRAM = """
import torch
import hifigemm as hg
torch.manual_seed(1)
def product(a, b):
    return torch.from_numpy(hg.matmul(a.numpy(), b.numpy(), accuracy="correct"))
for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
    a, b = torch.randn(70, 60, dtype=dtype), torch.randn(60, 50, dtype=dtype)
    c = torch.randn(70, 50, dtype=dtype)
    assert torch.equal(torch.mm(a, b), product(a, b))
    assert torch.equal(torch.mm(b.T, a.T), product(b.T, a.T))
    expected = hg.gemm(a.numpy(), b.numpy(), c.numpy(), alpha=3.0, beta=0.5, accuracy="correct")
    assert torch.equal(torch.addmm(c, a, b, alpha=3.0, beta=0.5), torch.from_numpy(expected))
    if not dtype.is_complex:
        assert torch.equal(torch.mv(a, b[:, 0]), product(a, b[:, :1])[:, 0])
        assert torch.equal(torch.dot(a[0], b[:, 0]), product(a[:1], b[:, :1])[0, 0])
"""

DOTS = """
import torch
x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.{dtype})
print(torch.dot(x, x).item(), torch.vdot(x, x).item())
"""


def needs_a_blas():
    if "BLAS_INFO=mkl" not in torch.__config__.show():
        pytest.skip("this PyTorch has no MKL, whose names are replaced")


def test_products_of_pytorch_are_correct():
    needs_a_blas()
    run_python(PROGRAM, **(os.environ | {"LD_PRELOAD": str(LIBRARY)}))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_dot_products_of_pytorch_stay_what_they_are(dtype):
    """MKL's cdotu_ writes to an address, and gfortran's returns a value."""
    output = run_python(
        DOTS.format(dtype=dtype), **(os.environ | {"LD_PRELOAD": str(LIBRARY)})
    )
    assert output == "(5-2j) (15+0j)\n"
