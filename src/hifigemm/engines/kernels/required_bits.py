"""How many bits do exact integers of two operands need? The GPU's version of numerics.scaling.required_bits.

One launch reads both operands once and leaves two numbers on the device, or one for each row and column. For operands
that need more than a limit, as all but short data do where a limit is low, it stops early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.required_bits_kernels import required_bits_kernel
from hifigemm.engines.kernels.scaled_residues import layout_of, pointers
from hifigemm.engines.kernels.scaled_residues_constants import vector_constants
from hifigemm.engines.kernels.vector_norms_kernels import PANEL
from hifigemm.engines.kernels.vector_tiles import num_sms
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.numerics.bits import NO_BIT, Array
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.scaling import NORM_BLOCK

__all__ = ["NO_LIMIT", "launch", "launch_each", "num_counters", "required_bits_from", "required_bits_of_vectors_from"]

_required_bits = Launch(required_bits_kernel)
NO_LIMIT = 2**24
"""More bits than any two operands lack."""
_PROGRAMS = 2
"""That a multiprocessor runs at a time; no more take part in a look that may stop early, which each has to find out."""


def num_counters(left: Any, right: Any) -> int:
    """Entries of the counters of `launch`."""
    return 2 + layout_of(((left, 2), (right, 1))).panels


def launch(left: Any, right: Any, most: int, counters: Any = None) -> Any:
    """Launch the look at two operands; an int32 tensor of two entries for `required_bits_from`.

    Parameters
    ----------
    left, right : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n)
        float32, float64, complex64 or complex128, the same for both, any strides, none of the sizes 0.
    most : int
        See numerics.scaling.required_bits.
    counters : int32 tensor of `num_counters` zeros, optional
        Whose first two entries are returned.
    """
    return _launch_counters(left, right, most, None, counters)[:2]


def launch_each(left: Any, right: Any) -> Any:
    """Launch the look at one matrix times another; an int32 tensor for `required_bits_of_vectors_from`."""
    panels = sum(-(-size // PANEL.value) for size in (left.shape[1], right.shape[2]))
    each = empty((panels * PANEL.value,), torch.int32, left)
    _launch_counters(left, right, NO_LIMIT, each)
    return each


def _launch_counters(left: Any, right: Any, most: int, each: Any, counters: Any = None) -> Any:
    """The counters of a launch, on their way."""
    operands = (left, 2), (right, 1)
    plan, device = layout_of(operands), left.device
    constants = vector_constants(moduli_set(2, plan.width == 2), plan.width, 1, device, plan.ptx)
    blocks = -(-plan.k // NORM_BLOCK)
    shape = plan.panels, blocks, PANEL.value
    counters = cleared(2 + plan.panels, left) if counters is None else counters
    programs = plan.panels * blocks
    if each is None and most < NO_LIMIT:
        programs = min(programs, _PROGRAMS * max(num_sms(left), 1))
    _required_bits(
        (programs,),
        *(*pointers(operands), constants.range),
        *(empty(shape, dtype, left) for dtype in (torch.int64, torch.int32, torch.int32)),
        *(counters, each, most, plan.panels, plan.panels_a, *plan.sizes),
        LEFT=plan.size_forms[0],
        RIGHT=plan.size_forms[1],
        PTX=plan.ptx,
        num_warps=8,
    )
    return counters


def required_bits_of_vectors_from(found: Array, m: int, n: int) -> tuple[Array, Array]:
    """numerics.scaling.required_bits_of_vectors from what a look at each found, once it is on the host."""
    columns = -(-m // PANEL.value) * PANEL.value
    return found[None, :m] - NO_BIT, found[None, columns : columns + n] - NO_BIT


def required_bits_from(found: Sequence[int], most: int) -> tuple[int, int] | None:
    """numerics.scaling.required_bits from what a look found, once it is on the host."""
    left, right = (x - NO_BIT for x in found)
    return None if left + right > most else (left, right)
