"""Launch functions for tensors: the launches of a function are recorded once for tensors
of one layout, kept, and run on any such tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from torch import Tensor

from hifigemm.base.store import once
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.launch import Scalar, float64_bits, with_parts
from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of


def run_recorded(
    function: Callable[..., Any],
    *arguments: Any,
    scalars: tuple[float, ...] = (),
    **options: Any,
) -> Any:
    """What a launch function returns for tensors, on torch's current stream.

    Scratch memory that the function returns is a new tensor in each run, and a buffer
    of an operand is that tensor or a view of it. The first call for a layout compiles
    and belongs before a graph capture; later ones are safe in a capture and in threads.

    Parameters
    ----------
    function : callable
        It adds launches to the launch list of the buffers that it is given.
    *arguments, **options
        Those of the function: tensors, tuples and lists with tensors, and what has a
        hash. A list is kept for each value of these.
    scalars : tuple of float
        Values of the `Scalar`s among the arguments, which share a list.
    """
    tensors: list[Tensor] = []
    launches = _kept(function, arguments, options, tensors)
    return launches(*tensors, scalars=scalars)


def recorded(
    function: Callable[..., Any], *arguments: Any, **options: Any
) -> LaunchList:
    """The launches of `run_recorded`, which run on any tensors that are laid out as
    these, in the order of the arguments.
    """
    return _kept(function, arguments, options, [])


def _kept(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    tensors: list[Tensor],
) -> LaunchList:
    """The launches of a function; the tensors among the arguments are added to a
    list.
    """
    layout = _layout_of((arguments, *options.items()), tensors)
    if not tensors:
        raise TypeError("no tensor among the arguments of a launch function")
    device = tensors[0].device

    def make() -> LaunchList:
        try:
            hash(layout)
        except TypeError as error:
            raise TypeError(
                f"launches are kept by the arguments beside tensors: {error}"
            ) from None
        launches = LaunchList(device)
        buffers = iter([launches.operand(x) for x in tensors])
        given = _with_buffers((arguments, *options.items()), buffers)
        launches.returns(function(*given[0], **dict(given[1:])))
        return launches.finish().compile()

    return once((function, device, layout), make, device)


def _layout_of(x: Any, tensors: list[Tensor]) -> Hashable:
    """What launches rest on: the facts of tensors, which are added to a list, and all
    other arguments with their types.
    """
    if isinstance(x, Tensor):
        # Kernels see memory alone, not what is still to be applied to it.
        x = x.resolve_conj().resolve_neg()
        tensors.append(x)
        return facts_of(x)
    if isinstance(x, (tuple, list)):
        return type(x), *[_layout_of(part, tensors) for part in x]
    # Zeros of both signs are equal, and so are all scalars.
    if isinstance(x, float):
        return type(x), float64_bits(x)
    return type(x), x.index if isinstance(x, Scalar) else x


def _with_buffers(x: Any, buffers: Iterator[Buffer]) -> Any:
    """Arguments with the next buffers instead of tensors."""
    if isinstance(x, Tensor):
        return next(buffers)
    if isinstance(x, (tuple, list)):
        return with_parts(x, [_with_buffers(part, buffers) for part in x])
    return x
