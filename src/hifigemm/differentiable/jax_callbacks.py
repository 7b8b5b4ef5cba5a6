"""Primitives of JAX whose kernel is a callback: how they run outside of programs, and in
programs of a CPU or a GPU.

The callback reads and writes the buffers of XLA in place, on a CPU as arrays of NumPy.
It never waits for JAX, so that it cannot wait for the thread in which it runs. A
callback of `jax.pure_callback` may do so: its arguments are arrays of JAX.

On a GPU the buffers are tensors of PyTorch, and the callback launches kernels on the
stream that XLA computes on. XLA may run it long before the operands are there and use
the memory of the operands again as soon as it returns: the order of the stream is that
of the program. Primitives outside of programs are small programs there, for the same
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from hifigemm.libraries import library_of
from hifigemm.numerics.subnormals import ieee_arithmetic

if TYPE_CHECKING:
    import torch
    from jax.core import ShapedArray
    from jax.experimental.buffer_callback import Buffer, ExecutionContext

_ON_HOST = 1
"""The memory of the CPU as DLPack has it, kDLCPU."""
_CPU_HINT = "compile for the CPU, as under jax.default_device(jax.devices('cpu')[0])"


Kernel = Callable[..., Any]
"""What a primitive computes, for operands that are arrays of NumPy or tensors and for its
parameters: the result, or a list for a primitive of several. With `out`, a list of tensors
for them, it writes to those.
"""


def run_by_callback(primitive: Primitive, kernel: Kernel) -> None:
    """Have a primitive run by a kernel outside of programs, and by a callback in programs
    of CPUs and GPUs.
    """
    several = primitive.multiple_results
    primitive.def_impl(partial(_eager, primitive, kernel))
    mlir.register_lowering(primitive, _refused)
    compiled = partial(_compiled, primitive, kernel)
    in_program = mlir.lower_fun(compiled, multiple_results=several)
    mlir.register_lowering(primitive, in_program, platform="cpu")
    for platform in ("cuda", "rocm"):
        lowering = partial(_compiled_for_a_gpu, in_program)
        mlir.register_lowering(primitive, lowering, platform=platform)


def write_results(results: list[Any], out: list[torch.Tensor] | None) -> list[Any]:
    """The results, which may be numbers, arrays of NumPy or tensors; in the tensors for them
    where there are any.
    """
    if out is None:
        return results
    import torch

    return [x.copy_(torch.as_tensor(result)) for x, result in zip(out, results)]


@cache
def register_as_tree(dataclass: type) -> None:
    """Have programs take and return instances of a class, whose fields are arrays."""
    names = [field.name for field in fields(dataclass)]
    jax.tree_util.register_dataclass(dataclass, names, [])


def varying(*operands: jax.Array) -> list[jax.Array]:
    """The operands, all of them varying along the axes of a mesh along which one does.

    Inside `jax.shard_map` JAX wants operands of a primitive to vary alike.
    """
    axes_of_operands = [jax.typeof(x).mat.varying for x in operands]
    all_axes = frozenset().union(*axes_of_operands)

    def varying_alike(x: jax.Array, axes: frozenset[str]) -> jax.Array:
        missing = tuple(all_axes - axes)
        return lax.pcast(x, missing, to="varying") if missing else x

    return [varying_alike(*pair) for pair in zip(operands, axes_of_operands)]


def check_not_spread(*operands: ShapedArray) -> None:
    """Raise TypeError for operands whose types name axes of a mesh, as the operands of
    `jax.sharding.AxisType.Explicit` do.
    """
    for name, x in zip("abc", operands):
        if any(x.sharding.spec):
            raise TypeError(
                f"{name} is {x.str_short()}, sharded as {x.sharding.spec} over explicit axes of a mesh, and a product "
                "does not say how its result is sharded: multiply inside jax.shard_map, or reshard the operands"
            )


@partial(jax.jit, static_argnames=("primitive", "options"))
def _program(
    *operands: jax.Array, primitive: Primitive, options: tuple[tuple[str, Any], ...]
) -> Any:
    """A primitive as a separate program."""
    return primitive.bind(*operands, **dict(options))


def _eager(
    primitive: Primitive,
    kernel: Kernel,
    *operands: jax.Array | np.ndarray,
    **options: Any,
) -> Any:
    """The results of a primitive outside of programs."""
    # Cotangents that the caller has made with NumPy are not JAX arrays yet.
    arrays = [x if isinstance(x, jax.Array) else jax.numpy.asarray(x) for x in operands]
    library = library_of(*zip("abc", arrays))
    if not library.on_host:
        with jax.disable_jit(False):
            parameters = tuple(options.items())
            return _program(*arrays, primitive=primitive, options=parameters)
    host_arrays = [library.asarray(x, "an operand") for x in arrays]
    results = kernel(*host_arrays, **options)
    if primitive.multiple_results:
        return [library.to_native(x) for x in results]
    return library.to_native(results)


def _compiled(
    primitive: Primitive, kernel: Kernel, *operands: jax.Array, **options: Any
) -> Any:
    """A primitive in a compiled program of a CPU or a GPU."""
    several = primitive.multiple_results

    def run(context: ExecutionContext, out: Any, *buffers: Buffer) -> None:
        outs = list(out) if several else [out]
        if outs[0].__dlpack_device__()[0] == _ON_HOST:
            # Threads of XLA flush subnormal numbers, and a product is repeated only in
            # threads that do not.
            with ieee_arithmetic():
                results = kernel(*map(np.asarray, buffers), **options)
            for x, result in zip(outs, results if several else [results]):
                np.asarray(x)[...] = result
            return
        tensors = [_tensor(x) for x in buffers]
        out_tensors = [_tensor(x) for x in outs]
        with _stream(context, out_tensors[0].device):
            kernel(*tensors, out=out_tensors, **options)

    result = jax.eval_shape(partial(primitive.bind, **options), *operands)
    return buffer_callback(run, result)(*operands)


def _tensor(buffer: Buffer) -> torch.Tensor:
    """The tensor in the memory of a buffer of XLA on a GPU.

    DLPack does not say that the buffer is read-only. PyTorch would take no read-only
    array by `__cuda_array_interface__`.
    """
    import torch

    return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())


def _stream(
    context: ExecutionContext, device: torch.device
) -> AbstractContextManager[object]:
    """A context in which PyTorch works on the stream, and on the device, that XLA calls
    back for.
    """
    import torch

    return torch.cuda.stream(torch.cuda.ExternalStream(context.stream, device))


def _compiled_for_a_gpu(
    lowered: Callable[..., Any],
    context: mlir.LoweringRuleContext,
    *operands: object,
    **options: object,
) -> Any:
    """A primitive in a compiled program of a GPU; TypeError without the packages that
    its kernels need.
    """
    reason = ""
    if find_spec("torch") is None:
        reason = "PyTorch is not installed"
    else:
        import torch

        if not torch.backends.cuda.is_built():
            reason = f"PyTorch {torch.__version__} is built without CUDA"
        elif find_spec("triton") is None:
            reason = "Triton is not installed"
    if reason:
        raise TypeError(
            f"programs that JAX compiles for a GPU multiply by kernels of PyTorch and Triton, and {reason}: install "
            f"torch for CUDA and triton, or {_CPU_HINT}"
        )
    return lowered(context, *operands, **options)


def _refused(
    context: mlir.LoweringRuleContext, *operands: object, **options: object
) -> NoReturn:
    """A primitive in a compiled program of anything else."""
    (platform, *_) = context.module_context.platforms
    raise TypeError(
        f"hifigemm has no kernel for programs that JAX compiles for {platform!r}: multiply outside of jax.jit, or "
        f"{_CPU_HINT}"
    )
