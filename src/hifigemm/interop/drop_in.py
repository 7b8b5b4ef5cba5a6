"""One line that serves a whole program of PyTorch: its own products, made to an accuracy.

`emulate` holds for a scope, `install` for the process. They reach mm, bmm, addmm, baddbmm, addbmm, mv, addmv, dot, vdot
and all that ends in them: ``@``, matmul, einsum, linear, tensordot, multi_dot, cdist, their derivatives, compiled
programs; products of DTensors are those of `hifigemm.distributed`. They do not reach factorisations and solvers of
torch.linalg, whose products LAPACK and cuSOLVER make inside, fused attention, LSTM of oneDNN and cuDNN, nor sums of
products such as vecdot and kron.
"""

from __future__ import annotations

import atexit
import inspect
import os
from collections.abc import Callable
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any, TypeVar

from hifigemm.accuracy import Accuracy, resolve
from hifigemm.exceptions import PlanError
from hifigemm.formats import FP64
from hifigemm.interop.summary import Summary
from hifigemm.schemes import Scheme
from hifigemm.schemes.auto import as_scheme
from hifigemm.transforms import opaque

MANIFEST = "HIFIGEMM_MANIFEST"
"""Names a file in the environment, to which a process writes what became of its products; %p is its number."""

F = TypeVar("F", bound=Callable[..., Any])
_RUN_LATER = inspect.isclass, inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
_of_process: list[Summary] = []


class emulate(ContextDecorator):
    """Make the products of PyTorch inside to an accuracy: a context, and a decorator of functions.

    Scopes nest; the inner one holds. A scope holds in its thread, and in the threads that run backward passes for it
    while it is open: a backward pass after the scope is native, unless `install` holds. ``emulate(scheme="native")``
    leaves products alone within another scope.

    Parameters
    ----------
    accuracy, scheme, workspace
        As in `matmul`, for each product.
    min_size : int, optional
        Products with m n k below min_size**3 are handed on to PyTorch, for each matrix of a stack. By default 0, but
        where scheme is "auto" and the accuracy that of the dtype, which native products are accepted for: there it is
        128 on a GPU, and on a CPU all products are handed on.
    summary : bool
        Whether to find out what became of the products: the context is then a `Summary`, to be printed or saved.

    Raises
    ------
    PlanError
        An accuracy, scheme or size that is none.
    ImportError
        PyTorch is not installed.

    Notes
    -----
    addmm and its like round the product first and add C then, as programs do that are compiled and those that are not.
    What a policy leaves alone, and what PyTorch refuses, goes to the kernel that was there before.

    Examples
    --------
    >>> import torch, hifigemm as hg  # doctest: +SKIP
    >>> with hg.emulate("correct", summary=True) as products:  # doctest: +SKIP
    ...     c = a @ b
    >>> print(products)  # doctest: +SKIP
    """

    def __init__(
        self,
        accuracy: Accuracy = None,
        scheme: str | Scheme = "auto",
        *,
        min_size: int | None = None,
        workspace: int | None = None,
        summary: bool = False,
    ) -> None:
        resolve(accuracy, FP64, 1)
        as_scheme(scheme)
        if min_size is not None and (isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 0):
            raise PlanError(f"min_size={min_size!r}: expected a number of rows, 0 or more")
        if workspace is not None and (isinstance(workspace, bool) or not isinstance(workspace, int) or workspace < 1):
            raise PlanError(f"workspace={workspace!r}: expected a number of bytes, 1 or more")
        self._asked = (accuracy, scheme, min_size, workspace)
        self._wants_summary = summary

    def __call__(self, function: F) -> F:
        """The function with a scope around each call."""
        if any(is_kind(function) for is_kind in _RUN_LATER):
            raise TypeError(f"emulate cannot decorate {function!r}: its body runs after the call; use `with` inside it")
        return super().__call__(function)

    @opaque
    def __enter__(self) -> Summary | None:
        from hifigemm.interop import policy

        own = Summary() if self._wants_summary else None
        policy.open_scope(self._policy(own), self)
        return own

    @opaque
    def __exit__(self, *_: object) -> None:
        from hifigemm.interop import policy

        policy.close_scope(self)

    def _policy(self, summary: Summary | None, *, thoroughly: bool = False) -> Any:
        from hifigemm.interop import kernels, torch_leaves
        from hifigemm.interop.policy import Policy

        torch_leaves.register(thoroughly=thoroughly)
        kernels.serve_meshes()
        accuracy, scheme, min_size, workspace = self._asked
        of_process = _summary_of_process()
        summaries = tuple(x for x in (summary, of_process) if x is not None)
        hands_on = as_scheme(scheme) == as_scheme("native") and accuracy is None
        return Policy(accuracy, scheme, min_size, workspace, summaries, hands_on)


def install(
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    *,
    min_size: int | None = None,
    workspace: int | None = None,
    summary: bool = False,
) -> Summary | None:
    """Make the products of PyTorch in this process to an accuracy, where no scope of `emulate` says otherwise.

    The parameters are those of `emulate`; the last call holds. Returns the `Summary` that was asked for, or None.
    """
    from hifigemm.interop import policy

    asked = emulate(accuracy, scheme, min_size=min_size, workspace=workspace)
    own = Summary() if summary else None
    policy.set_process_policy(asked._policy(own, thoroughly=True))
    return own


def uninstall() -> None:
    """Take back `install`, and the kernels of open scopes too: the products of PyTorch are its own again.

    Where another library has put kernels in front of these, they stay, as that one may call them, and hand on what no
    open scope asks for.
    """
    from hifigemm.interop import policy, torch_leaves

    policy.set_process_policy(None)
    torch_leaves.unregister()


def keep_manifest(path: str | Path) -> None:
    """Write what becomes of the products of this process to a file when it ends; a forked child does not."""
    if not _of_process:
        _of_process.append(Summary())
        atexit.register(_save, _of_process[0], Path(path).absolute(), os.getpid())


def _save(summary: Summary, path: Path, process: int) -> None:
    if os.getpid() == process:
        summary.save(path)


def _summary_of_process() -> Summary | None:
    if path := os.environ.get(MANIFEST):
        keep_manifest(path.replace("%p", str(os.getpid())))
    return _of_process[0] if _of_process else None
