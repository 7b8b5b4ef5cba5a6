"""Operations of PyTorch that multiply inside, where no kernel of `torch_leaves` is
called: counted, or raised at.

They are watched by kernels in front of theirs, at the keys of devices, which stand
there only while a scope or a process asks for a summary or is strict. Other operations
cost nothing, and graphs of compilers never hold one. What PyTorch makes of ``mul`` and
``sum`` has no operator to stand in front of: see `summary.WITHOUT_OPERATOR`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from hifigemm.base.exceptions import AccuracyError
from hifigemm.differentiable import torch_private as private
from hifigemm.interop.policy import SERVED, Policy, current_policy
from hifigemm.interop.torch_replacements import Kernel, Replacements

_OPERATIONS = {
    "convolution": ("convolution", "convolution.out"),
    "convolution_backward": ("convolution_backward", "convolution_backward.out"),
    "scaled_dot_product_attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ),
    "scaled_dot_product_attention_backward": (
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    "rnn": ("mkldnn_rnn_layer", "_cudnn_rnn"),
    "rnn_backward": ("mkldnn_rnn_layer_backward", "_cudnn_rnn_backward"),
    "linalg.solve": ("_linalg_solve_ex", "_linalg_solve_ex.result"),
    "linalg.inv": ("linalg_inv_ex", "linalg_inv_ex.inverse"),
    "linalg.det": ("_linalg_det", "_linalg_det.result"),
    "linalg.slogdet": ("_linalg_slogdet", "_linalg_slogdet.sign"),
    "linalg.lu": ("linalg_lu", "linalg_lu.out"),
    "linalg.lu_factor": ("linalg_lu_factor_ex", "linalg_lu_factor_ex.out"),
    "linalg.lu_solve": ("linalg_lu_solve", "linalg_lu_solve.out"),
    "linalg.ldl_factor": ("linalg_ldl_factor_ex", "linalg_ldl_factor_ex.out"),
    "linalg.ldl_solve": ("linalg_ldl_solve", "linalg_ldl_solve.out"),
    "linalg.solve_triangular": (
        "linalg_solve_triangular",
        "linalg_solve_triangular.out",
        "triangular_solve",
        "triangular_solve.X",
    ),
    "linalg.cholesky": ("linalg_cholesky_ex", "linalg_cholesky_ex.L"),
    "cholesky_solve": ("cholesky_solve", "cholesky_solve.out"),
    "cholesky_inverse": ("cholesky_inverse", "cholesky_inverse.out"),
    "linalg.qr": ("linalg_qr", "linalg_qr.out", "geqrf", "geqrf.a"),
    "linalg.householder_product": (
        "linalg_householder_product",
        "linalg_householder_product.out",
    ),
    "ormqr": ("ormqr", "ormqr.out"),
    "linalg.lstsq": ("linalg_lstsq", "linalg_lstsq.out"),
    "linalg.eigh": ("_linalg_eigh", "_linalg_eigh.eigenvalues"),
    "linalg.eig": (
        "linalg_eig",
        "linalg_eig.out",
        "_linalg_eigvals",
        "linalg_eigvals.out",
    ),
    "linalg.svd": ("_linalg_svd", "_linalg_svd.U"),
}
"""The operators of each operation, whose name is that of the function without
``torch.``.
"""

_thread = threading.local()


def _is_inside() -> bool:
    """True inside of an operation that was counted."""
    return getattr(_thread, "is_inside", False)


@contextmanager
def _inside() -> Iterator[None]:
    """A context in which further operations belong to one that was counted, as
    lu_factor belongs to solve.
    """
    _thread.is_inside = True
    try:
        yield
    finally:
        _thread.is_inside = False


def _is_unreached(policy: Policy | None, arguments: tuple[Any, ...]) -> bool:
    """True for an operation whose products a policy would make if it reached them."""
    if policy is None or policy.hands_on or _is_inside():
        return False
    dtypes = [x.dtype for x in arguments if isinstance(x, Tensor)]
    return bool(dtypes) and dtypes[0] in SERVED


def _kernel_before(operation: str, name: str, previous: Kernel) -> Kernel:
    """A kernel that counts an operation and hands it on, or raises AccuracyError where
    the policy is strict.
    """

    def kernel(keys: Any, *arguments: Any, **options: Any) -> Any:
        policy = current_policy()
        if policy is None or not _is_unreached(policy, arguments):
            return _REPLACEMENTS.hand_on(previous, name, keys, arguments, options)
        if policy.is_strict:
            shapes = " and ".join(
                str(tuple(x.shape)) for x in arguments if isinstance(x, Tensor)
            )
            raise AccuracyError(
                f"{operation} of shapes {shapes} multiplies where hifigemm does not reach, and the scope is strict: "
                'use hg.emulate(scheme="native") around it where native products will do'
            )
        for sightings in policy.sightings:
            sightings.count(operation)
        with _inside():
            return _REPLACEMENTS.hand_on(previous, name, keys, arguments, options)

    return kernel


def _all_kernels() -> dict[str, Callable[[Kernel], Kernel]]:
    """Makers of the kernels by the name of their operator. No version of PyTorch has
    all of these operators.
    """
    return {
        name: partial(_kernel_before, operation, name)
        for operation, names in _OPERATIONS.items()
        for name in names
        if private.is_operator(f"aten::{name}")
    }


_REPLACEMENTS = Replacements(_all_kernels())
_LOCK = threading.Lock()
_num_watching = 0


def watch() -> None:
    """Put the kernels in their places, until `unwatch` was called as many times."""
    global _num_watching
    with _LOCK:
        _num_watching += 1
        _REPLACEMENTS.register()


def unwatch() -> None:
    """Remove the kernels if no scope watches any more."""
    global _num_watching
    with _LOCK:
        _num_watching -= 1
        if _num_watching == 0:
            _REPLACEMENTS.unregister()


def unregister() -> None:
    """Remove the kernels, even if scopes still watch."""
    with _LOCK:
        _REPLACEMENTS.unregister()
