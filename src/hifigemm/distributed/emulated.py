"""Products of DTensors inside `hifigemm.emulate`: ``@``, linear and their derivatives on meshes.

DTensor itself would cut them up, multiply the shards by the kernels of the drop-in and add partial sums up in the
dtype of the result: other bits for other meshes. Handlers in the place of mm and addmm give whole products instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hifigemm.distributed.api import matmul, without_partial
from hifigemm.exceptions import PlanError
from hifigemm.interop import torch_private as private
from hifigemm.interop.policy import LEVELS, Policy, current_policy
from hifigemm.schemes import Ozaki1, Ozaki2
from hifigemm.schemes.auto import as_scheme


def register() -> None:
    """Put the handlers in their places."""
    private.handle_on_meshes(torch.ops.aten.mm.default, _mm)
    private.handle_on_meshes(torch.ops.aten.addmm.default, _addmm)


def _mm(operator: Any, args: Any, kwargs: Any) -> Any:
    policy = current_policy()
    if policy is None or not _is_taken(policy, *args):
        return private.made_by_dtensor(operator, args, kwargs)
    return _product(policy, *args)


def _addmm(operator: Any, args: Any, kwargs: Any) -> Any:
    """beta C + alpha A B with the product rounded first, as the drop-in makes it for tensors of one device."""
    policy = current_policy()
    c, a, b = args
    if policy is None or not _is_taken(policy, a, b) or not isinstance(c, DTensor) or c.dtype != a.dtype:
        return private.made_by_dtensor(operator, args, kwargs)
    return torch.add(c * kwargs.get("beta", 1), _product(policy, a, b), alpha=kwargs.get("alpha", 1))


def _is_taken(policy: Policy, a: Any, b: Any) -> bool:
    """Whether the product is made here; PyTorch's own way is left what no policy asks for, and its own errors."""
    scheme = as_scheme(policy.scheme)
    if policy.hands_on or not all(isinstance(x, DTensor) and x.dtype in LEVELS and x.ndim == 2 for x in (a, b)):
        return False
    if a.dtype != b.dtype or a.shape[1] != b.shape[0] or a.device_mesh != b.device_mesh or a.device_mesh.ndim > 2:
        return False
    if not (scheme is None or isinstance(scheme, (Ozaki1, Ozaki2))):
        return False
    size = policy.least_size(a.dtype, on_cpu=a.device_mesh.device_type == "cpu")
    return size is not None and a.shape[0] * a.shape[1] * b.shape[1] >= size**3


def _product(policy: Policy, a: DTensor, b: DTensor) -> DTensor:
    operands = [without_partial(x.detach()) for x in (a, b)]
    options: Any = {"accuracy": policy.accuracy, "scheme": policy.scheme, "workspace": policy.workspace}
    try:
        made: DTensor = matmul(*operands, **options)
    except (PlanError, TypeError, ValueError) as error:  # which an operator sign of Python might take for its own
        raise RuntimeError(f"hifigemm: {error}") from error
    return made
