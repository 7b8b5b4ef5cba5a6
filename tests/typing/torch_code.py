"""What users of PyTorch write: tensors give tensors."""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import hifigemm as hg

t = torch.ones(4, 4)
u = torch.ones(4, 4)
assert_type(hg.matmul(t, u), torch.Tensor)
assert_type(hg.matmul(t, u, return_report=True), tuple[torch.Tensor, hg.Report])
assert_type(hg.gemm(t, u, u, beta=1.0), torch.Tensor)
assert_type(hg.gemm(t, u, u, beta=1.0, out_dtype=torch.bfloat16), torch.Tensor)
assert_type(hg.matmul(t, u, out=torch.ones(4, 4)), torch.Tensor)
assert_type(hg.numpy.dot(t, u), torch.Tensor)
assert_type(hg.numpy.einsum("ij,jk", t, u, accuracy="correct"), torch.Tensor)
assert_type(
    hg.numpy.tensordot(t, u, axes=1, return_report=True), tuple[torch.Tensor, hg.Report]
)
assert_type(hg.numpy.herk(t), torch.Tensor)
side = hg.prepare(u, "right", plan=hg.make_plan(t, u))
assert_type(hg.matmul(t, side), torch.Tensor)
own = torch.nn.Parameter(u, requires_grad=False)
assert_type(hg.matmul(t, own), torch.Tensor)
