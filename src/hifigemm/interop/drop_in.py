"""The products of a whole PyTorch program, computed to an accuracy.

`emulate` applies to a scope, `install` to the process. They reach mm, bmm, addmm,
baddbmm, addbmm, mv, addmv, dot, vdot and every function that calls them: ``@``, matmul,
einsum, linear, tensordot, multi_dot, cdist, their derivatives, compiled programs.
`hifigemm.distributed` computes products of DTensors.

They do not reach factorisations and solvers of torch.linalg, where LAPACK and cuSOLVER
multiply, convolutions, fused attention, and LSTM of oneDNN and cuDNN; `torch_unreached`
has the list. Nor do they reach sums of products such as vecdot and kron.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.base.transforms import opaque
from hifigemm.interop.summary import Sightings, Summary
from hifigemm.model.accuracy import Accuracy, Invariant
from hifigemm.running.request import Request
from hifigemm.schemes import Scheme, as_scheme

MANIFEST = "HIFIGEMM_MANIFEST"
"""Variable of the environment with the name of a file, to which a process writes its
summary; %p in it is the number of the process.
"""

F = TypeVar("F", bound=Callable[..., Any])
_RUN_LATER = (
    inspect.isclass,
    inspect.isgeneratorfunction,
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
)
_BETWEEN = (
    __name__,
    "hifigemm.base.transforms",
    "contextlib",
    "torch._dynamo.eval_frame",
)
_of_process: list[Summary] = []


class emulate(ContextDecorator):
    """Compute PyTorch's own products to an accuracy: a context manager and a decorator.

    A scope applies to its thread, and to backward passes that run while it is open; a
    backward pass after the scope is native, unless `install` is active. Scopes nest,
    and the inner one applies. Within a scope, ``emulate(scheme="native")`` leaves
    products to PyTorch. A scope does not reach products of NumPy and JAX: use
    `hifigemm.numpy` and `hifigemm.jax`.

    Parameters
    ----------
    accuracy, scheme, workspace
        As for `matmul`, for each product.
    min_size : int, optional
        Leave products with m n k < ``min_size**3``, for each matrix of a stack, to
        PyTorch. The default is 0, unless scheme is "auto" and the accuracy is None or
        the level of the dtype. Native products are accepted for that level, so the
        default is then 128 on a GPU, and the scope leaves all products on a CPU and all
        products of 16-bit operands to PyTorch.
    summary : bool
        True: the context returns a `Summary` of the products, which you can print or
        save.
    strict : bool
        True: raise an error at operations that multiply in a way that the scope does
        not reach, such as convolution and linalg.solve, and at the end of a scope in
        which PyTorch multiplied nothing.
    invariant : bool
        True: wrap the accuracy in `Invariant`. A row of a product then does not depend
        on the rest of the batch, the order of the terms, the number of ranks or the
        device.

    Raises
    ------
    PlanError
        An invalid accuracy, scheme or size. With `invariant`: a scheme whose bits
        depend on more than the row, a nonzero `min_size`, or a product of
        floating-point operands that the scope would leave to PyTorch.
    ImportError
        PyTorch is not installed.
    AccuracyError
        With `strict`, see there. It never replaces another exception.

    Warns
    -----
    UserWarning
        A scope without `strict` ends without an exception, and PyTorch multiplied
        nothing in it.

    Notes
    -----
    addmm and similar operations round the product and then add C, in eager and in
    compiled programs. Products of float16 and bfloat16 operands are rounded to their
    dtype as by `out_dtype` of `matmul`. If C is added, the product is computed in
    float32, and the sum is rounded to the dtype. PyTorch's previous kernel receives
    operations that a scope leaves alone, and those that PyTorch rejects.

    Examples
    --------
    >>> import torch, hifigemm as hg  # doctest: +SKIP
    >>> with hg.emulate("correct", summary=True) as products:  # doctest: +SKIP
    ...     c = a @ b
    >>> print(products)  # doctest: +SKIP
    >>> with hg.emulate(1e-7, invariant=True):  # doctest: +SKIP
    ...     row = a[:1] @ b  # the bits of the first row of a @ b
    """

    def __init__(
        self,
        accuracy: Accuracy = None,
        scheme: str | Scheme = "auto",
        *,
        min_size: int | None = None,
        workspace: int | None = None,
        summary: bool = False,
        strict: bool = False,
        invariant: bool = False,
    ) -> None:
        if invariant and not isinstance(accuracy, Invariant):
            accuracy = Invariant(accuracy)
        Request(accuracy=accuracy, scheme=scheme, workspace=workspace)
        if min_size is not None and (
            isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 0
        ):
            raise PlanError(
                f"min_size={min_size!r}: expected a number of rows, 0 or more"
            )
        if min_size and isinstance(accuracy, Invariant):
            raise PlanError(
                f"min_size={min_size}: the bits of an invariant scope would depend on the numbers of rows and columns; "
                "leave it out"
            )
        _check_torch()
        self._asked = (accuracy, scheme, min_size, workspace)
        self._hands_on = as_scheme(scheme) == as_scheme("native") and accuracy is None
        self._wants_summary = summary
        self._is_strict = strict
        self._scopes: list[Any] = []

    def __call__(self, function: F) -> F:
        """The function with a scope around each call."""
        # An object that is called runs the `__call__` of its class.
        body = function if inspect.isroutine(function) else type(function).__call__
        if any(is_kind(x) for is_kind in _RUN_LATER for x in (function, body)):
            raise TypeError(
                f"emulate cannot decorate {function!r}: its body runs after the call; use `with` inside it"
            )
        return super().__call__(function)

    @opaque
    def __enter__(self) -> Summary | None:
        summary = Summary() if self._wants_summary else None
        self._scopes.append(self._open_scope(summary))
        return summary

    @opaque
    def __exit__(self, *error: object) -> None:
        scope = self._ending_scope()
        if scope is None:
            return
        self._scopes.remove(scope)
        self._close_scope(scope)
        has_failed = bool(error) and error[0] is not None
        if not (has_failed or self._hands_on or scope.sightings.has_product):
            text = str(scope.sightings)
            if self._is_strict:
                raise AccuracyError(text)
            warnings.warn(text, stacklevel=_stacklevel())

    def _ending_scope(self) -> Any:
        """The last scope that this object has opened in this thread.

        A generator may have opened one and end in another thread: where no scope is of
        this thread, and this object has no more than one, it is that one. Of several
        scopes it is unknown which one ends, and all of them stay open.
        """
        for scope in reversed(self._scopes):
            if self._is_of_thread(scope):
                return scope
        return self._scopes[0] if len(self._scopes) == 1 else None

    def _open_scope(self, summary: Summary | None) -> Any:
        """A scope of this thread, with `is_open` and `sightings`."""
        from hifigemm.interop import policy

        return policy.open_scope(self._policy(summary))

    def _close_scope(self, scope: Any) -> None:
        """End a scope, which may be one of another thread."""
        from hifigemm.interop import policy, torch_unreached

        policy.close_scope(scope)
        if scope.policy.watches:
            torch_unreached.unwatch()

    def _is_of_thread(self, scope: Any) -> bool:
        """True if the scope is open in this thread."""
        from hifigemm.interop import policy

        return policy.is_of_thread(scope)

    def _policy(self, summary: Summary | None, place: str = "scope") -> Any:
        """The policy of a scope or of the process, with kernels in their places."""
        from hifigemm.interop import torch_leaves, torch_unreached
        from hifigemm.interop.policy import Policy

        torch_leaves.register(thoroughly=place == "process")
        _serve_meshes()
        accuracy, scheme, min_size, workspace = self._asked
        of_process = _summary_of_process()
        summaries = tuple(x for x in (summary, of_process) if x is not None)
        own = Sightings() if summary is None else summary.sightings
        own.place = place
        sightings = [own]
        if of_process is not None:
            sightings.append(of_process.sightings)
        policy = Policy(
            accuracy,
            scheme,
            min_size,
            workspace,
            summaries,
            self._hands_on,
            is_strict=self._is_strict,
            sightings=tuple(sightings),
        )
        if policy.watches:
            torch_unreached.watch()
        return policy


def _stacklevel() -> int:
    """The level for a warning at the line that a scope belongs to, with `opaque`,
    decorators and compilers between.
    """
    level = 1
    frame = sys._getframe(level)
    while frame.f_back is not None and frame.f_globals["__name__"] in _BETWEEN:
        frame = frame.f_back
        level += 1
    return level


def _check_torch() -> None:
    """Raise ImportError where PyTorch is not installed."""
    if sys.modules.get("torch") is None and find_spec("torch") is None:
        raise ImportError(
            "emulate and install replace the products of PyTorch, which is not installed: pip install torch. For "
            "arrays of NumPy call the functions of hifigemm.numpy",
            name="torch",
        )


def install(
    accuracy: Accuracy = None,
    scheme: str | Scheme = "auto",
    *,
    min_size: int | None = None,
    workspace: int | None = None,
    summary: bool = False,
    strict: bool = False,
    invariant: bool = False,
) -> Summary | None:
    """Compute PyTorch's products in this process to an accuracy, outside of scopes of
    `emulate`.

    The last call applies. `strict` raises at operations that it does not reach, but not
    for a process in which PyTorch multiplied nothing.

    Parameters
    ----------
    accuracy, scheme, min_size, workspace, summary, strict, invariant
        As for `emulate`.

    Returns
    -------
    Summary or None
        A `Summary` if `summary` is True.
    """
    request = emulate(
        accuracy,
        scheme,
        min_size=min_size,
        workspace=workspace,
        strict=strict,
        invariant=invariant,
    )
    of_process = Summary() if summary else None
    _set_process_policy(request._policy(of_process, "process"))
    return of_process


def uninstall() -> None:
    """Undo `install` and remove the kernels of open scopes; PyTorch computes its own
    products again.

    If another library has put its kernels in front, it may call the kernels of
    hifigemm. They then stay, and forward every product outside of open scopes.
    """
    if sys.modules.get("torch") is None:  # whose kernels were never replaced
        return
    from hifigemm.interop import torch_leaves, torch_unreached

    _set_process_policy(None)
    torch_unreached.unregister()
    torch_leaves.unregister()


def _set_process_policy(policy: Any) -> None:
    """Set the policy of the process, and end what the one before watched."""
    from hifigemm.interop import policy as policies
    from hifigemm.interop import torch_unreached

    before = policies.process_policy()
    policies.set_process_policy(policy)
    if before is not None and before.watches:
        torch_unreached.unwatch()


def keep_manifest(path: str | Path) -> None:
    """Write the summary of this process to a file when it ends; a forked child does
    not.
    """
    if not _of_process:
        _of_process.append(Summary())
        atexit.register(_save, _of_process[0], Path(path).absolute(), os.getpid())


def _save(summary: Summary, path: Path, process: int) -> None:
    """Write a summary to a file, in its own process alone."""
    if os.getpid() == process:
        summary.save(path)


def _summary_of_process() -> Summary | None:
    """The summary for the file that the environment names; None without one."""
    path = os.environ.get(MANIFEST)
    if path:
        keep_manifest(path.replace("%p", str(os.getpid())))
    return _of_process[0] if _of_process else None


def _serve_meshes() -> None:
    """Serve the products of DTensors too, where a program has any."""
    from torch.distributed import is_available

    is_started = "WORLD_SIZE" in os.environ and is_available()  # by torchrun
    if is_started or "torch.distributed.tensor" in sys.modules:
        from hifigemm.interop import torch_meshes

        torch_meshes.register()
