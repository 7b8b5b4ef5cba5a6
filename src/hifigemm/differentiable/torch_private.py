"""Names of PyTorch that no documentation has, and without which operators cannot do: all
of them in this file.

PyTorch's own `torch._library.autograd` and `torch._functorch` use the same ones. They
were seen in 2.11 to 2.15.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch._C import DispatchKeySet as DispatchKeySet
from torch._functorch.utils import enable_single_level_autograd_function
from torch._ops import OpOverload as OpOverload
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

_C: Any = torch._C
F = TypeVar("F", bound=Callable[..., Any])

SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction
"""`torch.autograd.Function` without what makes it call functorch, of which operators
are called by themselves.
"""

DEVICE_KEYS = "CPU", "CUDA"
"""Dispatch keys of the devices whose tensors are multiplied here."""
_DEVICES = tuple(getattr(_C.DispatchKey, key) for key in DEVICE_KEYS)
_BELOW_AUTOGRAD = _C._after_autograd_keyset
_BELOW_VIEWS = _C._after_ADInplaceOrView_keyset
_NOTHING = nullcontext()


def below_autograd(
    operator: OpOverload, keys: DispatchKeySet, *arguments: Any, **options: Any
) -> Any:
    """The operator without its derivatives, for what comes behind the autograd keys
    among `keys`.
    """
    with _C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & _BELOW_AUTOGRAD, *arguments, **options)


def reaches_device(keys: DispatchKeySet) -> bool:
    """True if the kernel for tensors of a device comes next behind the keys of autograd
    and of views among `keys`.
    """
    return (keys & _BELOW_VIEWS).highestPriorityTypeId() in _DEVICES


def without_autocast() -> AbstractContextManager[None]:
    """A context in which autocast changes no dtype."""
    context: AbstractContextManager[None] = _NOTHING
    if _C._is_any_autocast_enabled():
        context = _C._DisableAutocast()
    return context


def is_zero(x: complex) -> bool:
    """True if a number is zero; False if it is one that a graph reads when it runs."""
    if not isinstance(x, torch.SymInt | torch.SymFloat):
        return x == 0
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(x == 0))


def in_functorch() -> bool:
    """True inside a transform of `torch.func`."""
    return bool(_C._are_functorch_transforms_active())


def innermost(x: Any) -> Any:
    """The tensor for which another one stands inside transforms of `torch.func`; the
    tensor itself elsewhere.
    """
    functorch: Any = _C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return x


def in_forward_ad() -> bool:
    """True if tensors may have tangents."""
    return bool(forward_ad._current_level >= 0)


def is_differentiated(*tensors: Tensor | None) -> bool:
    """True if PyTorch differentiates what is done with these tensors, backward or
    forward.
    """
    if in_forward_ad():
        return True
    return bool(_C.is_grad_enabled() and _C._any_requires_grad(*tensors))


@contextmanager
def differentiating_outside() -> Iterator[None]:
    """Both kinds of derivatives switched on: `Function.apply` switches them off for the
    levels outside of its own.
    """
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def single_level() -> AbstractContextManager[None]:
    """A context in which a `SingleLevelFunction` may be applied inside a transform of
    `torch.func`.
    """
    context: AbstractContextManager[None] = enable_single_level_autograd_function()
    return context


def untraced(function: F) -> F:
    """Have torch.compile run a function, and what it calls, as it stands, where it
    comes upon it in a program.

    That costs the calls nothing, unlike `torch.compiler.disable`, which also imports
    the compiler.
    """
    frames = _C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(
        function.__code__, frames._FrameExecStrategy(skip, skip)
    )
    return function


def of_thread(key: str) -> Any:
    """The object that `give_thread` has left under a key; None without one.

    Backward threads inherit the value of the thread that started them.
    """
    return _C._get_obj_in_tls(key) if _C._is_key_in_tls(key) else None


def _takes_references() -> bool:
    """True if PyTorch keeps an object without counting a reference of its own, as 2.11
    does.
    """
    probe = object()
    before = sys.getrefcount(probe)
    _C._stash_obj_in_tls("probe of hifigemm", probe)
    takes = sys.getrefcount(probe) == before
    if takes:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(probe))
    return takes


_TAKES_REFERENCES = _takes_references()


def give_thread(key: str, value: object) -> None:
    """Leave an object under a key, for this thread and those that work for it."""
    if _TAKES_REFERENCES:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(key, value)


def is_operator(name: str) -> bool:
    """True if PyTorch has an operator of this name, such as ``aten::mm.out``."""
    return bool(_C._dispatch_has_kernel(name))


def has_kernel(operator: str, dispatch_key: str) -> bool:
    """True if an operator such as ``aten::mm.out`` has a kernel for a device, be it the
    one for all devices.
    """
    keys = (dispatch_key, "CompositeExplicitAutograd")
    return any(_C._dispatch_has_kernel_for_dispatch_key(operator, key) for key in keys)


def is_zero_tensor(x: Tensor) -> bool:
    """True if a tensor has no memory, because derivatives know that it is zero."""
    return bool(x._is_zerotensor())


def is_from(file: str, operator: str, dispatch_key: str) -> bool:
    """True if the kernel that is called first is a function of a file, which put it
    there by `implement`.
    """
    return file in repr(torch.library.get_kernel(operator, dispatch_key))


def is_gone(error: RuntimeError) -> bool:
    """True if a kernel could not be called because its library is destroyed."""
    return "SafeKernelFunction has been invalidated" in str(error)


def implement(
    library: torch.library.Library,
    operator: str,
    kernel: Callable[..., Any],
    dispatch_key: str,
) -> None:
    """Put a kernel, whose first argument are the dispatch keys, in front of the one
    that an operator has.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        warnings.filterwarnings("ignore", "Overriding a previously registered kernel")
        library.impl(
            operator, kernel, dispatch_key, with_keyset=True, allow_override=True
        )


def is_traced(x: Tensor) -> bool:
    """True if a tensor, or one that it wraps, has no numbers: compilers make graphs of
    such tensors.
    """
    from torch._subclasses.fake_tensor import is_fake

    return bool(is_fake(x))


def handle_on_meshes(operator: OpOverload, handler: Callable[..., Any]) -> None:
    """Have DTensor call ``handler(operator, args, kwargs)`` instead of an
    operator.
    """
    from torch.distributed.tensor import DTensor

    handlers: Any = DTensor._op_dispatcher._custom_op_handlers
    handlers[operator] = handler


def made_by_dtensor(
    operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """An operator of DTensors by the rules of PyTorch, from a handler that stands in
    its place.
    """
    from torch.distributed.tensor import DTensor

    dispatcher: Any = DTensor._op_dispatcher
    info = dispatcher.unwrap_to_op_info(operator, args, kwargs)
    info.output_sharding = dispatcher.sharding_propagator.propagate_op_sharding(
        info.schema
    )
    local = dispatcher._dispatch_get_local_results_slow_path(operator, args, info)
    return dispatcher.wrap(local, info.output_sharding.output_spec)


def maker_of_matrices(
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> Callable[[Tensor], DTensor]:
    """Makes DTensors of row-major matrices, without derivatives, of the parts of this
    rank.

    `DTensor.from_local` does the same in eight times the time, and does it where
    PyTorch has changed what is used here.
    """
    from torch.distributed.tensor import DTensor

    stride = shape[1], 1

    def by_public_function(local: Tensor) -> DTensor:
        return DTensor.from_local(
            local,
            mesh,
            placements,
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )

    try:
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

        meta = TensorMeta(torch.Size(shape), stride, dtype)
        spec = DTensorSpec(mesh, placements, tensor_meta=meta)
    except (ImportError, TypeError):
        return by_public_function
    constructor: Any = DTensor

    def made(local: Tensor) -> DTensor:
        try:
            matrix: DTensor = constructor(local, spec, requires_grad=False)
        except TypeError:
            return by_public_function(local)
        return matrix

    return made
