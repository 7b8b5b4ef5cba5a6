"""Operands that carry more than numbers: PyTorch and JAX differentiate, batch, trace
and compile programs.

A product reads the numbers in the memory of its operands and writes new ones. Whatever
else PyTorch follows would end there without a word. `matmul` of two tensors is an
operator where it does, see differentiable/torch_operators.py; elsewhere tensors that carry
more than numbers are refused, and compilers are sent around the public functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def opaque(function: F) -> F:
    """A function that compiled programs call between two of their graphs, with nothing
    in it compiled.

    It has what torch.compiler.disable would give it, if that could be called before
    torch is imported.
    """
    inside: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside is None:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:  # nothing was compiled yet
                return function(*args, **kwargs)
            inside = disable(function)
        return inside(*args, **kwargs)

    marked: Any = call
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "hifigemm multiplies outside of compiled graphs"
    # torch.compile leaves out frames of files that are called so. It would compile this
    # one otherwise, beside a graph.
    marked.__code__ = marked.__code__.replace(
        co_filename="<frozen importlib: hifigemm>"
    )
    return cast(F, call)


def check_tensor(x: object, name: str) -> None:
    """Raise TypeError for a tensor that carries more than numbers, or whose entries are
    not in dense memory.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return
    if is_wrapped(x) or torch._C._are_functorch_transforms_active():
        raise TypeError(
            f"{name} is inside a transform of torch.func (grad, jvp, vmap, functionalize, ...), which cannot follow "
            "this product: multiply outside it, or in a torch.autograd.Function with rules for it"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires a gradient, which would be lost: pass {name}.detach() or use torch.no_grad()"
        )
    _check_numbers(x, name)


def check_scalar(x: Any, name: str) -> None:
    """Raise TypeError for an alpha or beta that stands for more than a number; a plain
    tensor may be read inside a transform of torch.func.

    torch.compile traces this function too.
    """
    if is_traced(x):
        raise TypeError(
            f"{name} is traced by JAX ({x.aval.str_short()}), but alpha and beta must be constants of a program: pass "
            "a number (see static_argnames), or multiply an operand by it"
        )
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return
    is_compiled_here = is_traced_by_compiler()
    if not is_compiled_here and is_wrapped(x):
        check_tensor(x, name)
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires a gradient, and gemm has none for alpha and beta: multiply an operand by it, or pass "
            f"{name}.detach()"
        )
    if not is_compiled_here:
        _check_numbers(x, name)


def _check_numbers(x: Any, name: str) -> None:
    """Raise TypeError for a tensor that has a tangent, is traced or of a class with more
    than numbers, or whose entries are not in dense memory.
    """
    torch: Any = sys.modules["torch"]
    if is_followed():
        if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise TypeError(
                f"{name} has a tangent (forward_ad), which would be lost: pass {name}.detach()"
            )
        tracer = _tracer()
        if tracer is not None:
            raise TypeError(
                f"{name} is multiplied under {tracer}, which sees only operators of torch: multiply outside it, or "
                "in a torch.library.custom_op"
            )
    kind: Any = type(x)
    _check_no_mesh(kind, name)
    has_function = kind.__torch_function__ is not torch._C._disabled_torch_function_impl
    has_dispatch = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if kind is not torch.Tensor and (has_function or has_dispatch):
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, and what its class adds would be lost: pass "
            f"{name}.as_subclass(torch.Tensor) if that has the same entries"
        )
    check_dense(x, name, x._is_zerotensor())


def _check_no_mesh(kind: type, name: str) -> None:
    """Raise TypeError for the class of tensors that are spread over a mesh;
    torch.compile traces this function too.
    """
    if kind.__name__ == "DTensor":
        raise TypeError(
            f"{name} is a DTensor: multiply it with hifigemm.distributed.matmul or gemm"
        )


def check_dense(x: Any, name: str, is_zero: bool = False) -> None:
    """Raise TypeError for a tensor whose entries are not in dense memory; torch.compile
    traces this function too.
    """
    if x.is_nested:
        raise TypeError(
            f"{name} is a nested tensor, whose entries are not in dense memory: multiply the matrices of its unbind() "
            "one by one, or its to_padded_tensor(0.0)"
        )
    if x.layout is not sys.modules["torch"].strided or x.is_quantized or is_zero:
        raise TypeError(
            f"{name} is a tensor of layout {x.layout}, {x.dtype}, whose entries are not in dense memory"
        )


def is_compiled() -> bool:
    """True if torch.compile traces what calls this function."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def is_traced_by_compiler() -> bool:
    """True if Dynamo, the front end of torch.compile, traces what calls this function."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_dynamo_compiling())


def belongs_to_torch(*operands: Any) -> bool:
    """True if PyTorch compiles, differentiates, batches or traces the product of these,
    or a class of tensors handles it by itself.

    torch.compile traces this function too.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    differentiates = torch.is_grad_enabled()
    belongs: bool = torch.compiler.is_compiling()
    for x in operands:
        if type(x) is not torch.Tensor:
            if not isinstance(x, torch.Tensor):
                return False
            _check_no_mesh(type(x), "an operand")
            belongs |= type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if x.is_nested:
            check_dense(x, "an operand")
        belongs |= differentiates and x.requires_grad
    return belongs or is_followed()


def belongs_to_jax(*operands: object) -> bool:
    """True if all of these are arrays of JAX, whose product is a primitive of JAX."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return array is not None and all(isinstance(x, array) for x in operands)


def is_traced(*operands: object) -> bool:
    """True if one of these stands for arrays in a program that JAX traces."""
    core = getattr(sys.modules.get("jax"), "core", None)
    if core is None:
        return False
    return any([isinstance(x, core.Tracer) for x in operands])  # noqa: C419 torch.compile


def check_untraced(operands: dict[str, Any], **options: object) -> None:
    """Raise TypeError for an array that JAX traces, or PyTorch differentiates, beside
    an option for which there are no such products.
    """
    names = []
    for option, value in options.items():
        if value is not None and value is not False:
            names.append(option)
    if not names:
        return
    them = "it" if len(names) == 1 else "them"
    for name, x in operands.items():
        if is_traced(x):
            lacking = "= and no ".join(names)
            raise TypeError(
                f"{name} is traced by JAX ({x.aval.str_short()}), and programs of JAX take no {lacking}=: "
                f"leave {them} out, or call the function outside the program"
            )
        if needs_gradient(x):
            texts = [f"{x}=True" if options[x] is True else f"{x}=" for x in names]
            asked = " and ".join(texts)
            raise TypeError(
                f"{name} requires a gradient, which would be lost: products with {asked} have none. Leave {them} out, "
                f"or pass {name}.detach() or use torch.no_grad()"
            )


def needs_gradient(x: object) -> bool:
    """True if x is a tensor for which PyTorch itself, and no transform of torch.func,
    records what is done with it.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return False
    return bool(
        x.requires_grad
        and torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
    )


def is_wrapped(x: object) -> bool:
    """True if a tensor stands for others inside a transform of torch.func, or in a
    backward pass of many gradients at once, though it has no class of its own.
    """
    functorch: Any = sys.modules["torch"]._C._functorch
    is_of_func = functorch.is_functorch_wrapped_tensor(x)
    return bool(is_of_func or functorch.is_legacy_batchedtensor(x))


def is_followed() -> bool:
    """True if torch may differentiate this thread by tangents, batch or record what it
    does.

    Gradients do not count. Nor do tangents below the autograd keys, in the kernel of an
    operator, where they have been computed.
    """
    import torch

    c: Any = torch._C
    has_tangents = (
        torch.autograd.forward_ad._current_level >= 0
        and not c._dispatch_tls_is_dispatch_key_excluded(
            c.DispatchKey.AutogradFunctionality
        )
    )
    return bool(
        has_tangents
        or c._are_functorch_transforms_active()
        or c._len_torch_dispatch_stack()
        or c._dispatch_tls_is_dispatch_key_included(c.DispatchKey.PreDispatch)
        or c._is_tracing()
    )


def _tracer() -> str | None:
    """The name of what makes a graph of this thread's operations, or runs them without
    numbers; None without one. A mode that only watches is none.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    c: Any = torch._C
    if c._is_tracing():
        return "torch.jit.trace"
    for mode in (get_proxy_mode(), *_get_current_dispatch_mode_stack()):
        if mode is not None and mode.is_infra_mode():
            return type(mode).__name__
    return None
