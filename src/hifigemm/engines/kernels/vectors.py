"""Scales and residues of the operands of Ozaki scheme II on a GPU.

Overrides of numerics.scaling.norm_scale and of the residues of numerics.scaling.round_to_integers, with the same bits.
An operand is given as (tensor, axis): (batch, m, k) with axis 2 for rows, or (batch, k, n) with axis 1 for columns;
float32, float64, complex64 or complex128, any strides, none of its sizes 0. Two operands share each launch, and have
the same k, dtype and device.

One kernel reads whole vectors twice, the second time from a cache where they fit, or once where they fit into the
registers. Few long vectors do not fill a GPU: then norms of pieces, scales and residues take a launch each. Which of
the two is taken changes no bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from hifigemm.engines.kernels import vectors_kernels as kernels
from hifigemm.engines.kernels.launch import Launch, empty
from hifigemm.engines.kernels.vectors_constants import VectorConstants, num_words_for, vector_constants
from hifigemm.numerics.residues import ModuliSet
from hifigemm.numerics.scaling import NORM_BLOCK

__all__ = ["NOT_FINITE", "Config", "Operand", "VectorScale", "norm_scales", "scaled_residues"]

NOT_FINITE: int = kernels.NOT_FINITE.value
"""Exponent of a vector with an Inf or NaN; its residues mean nothing."""

Operand = tuple[Any, int]
_SIZES = {torch.float32: 4, torch.float64: 8, torch.complex64: 4, torch.complex128: 8}
_MOST_STEPS = 16

_scaled_residues = Launch(kernels.scaled_residues_kernel)
_block_norms = Launch(kernels.block_norms_kernel)
_join_norms = Launch(kernels.join_norms_kernel)
_residues = Launch(kernels.residues_kernel)


class VectorScale(NamedTuple):
    """How vectors become integers, as numerics.scaling.Scale: int32 tensors of shape (batch, vectors).

    Attributes
    ----------
    exponent : tensor
        Power of two that multiplies the vector, or NOT_FINITE.
    nearest : tensor
        1 where the integers are rounded to nearest, 0 where toward zero.
    """

    exponent: Any
    nearest: Any

    def take(self, batch: slice, vectors: slice) -> VectorScale:
        """The scale of some vectors of some matrices of the stack."""
        return VectorScale(self.exponent[batch, vectors], self.nearest[batch, vectors])


@dataclass(frozen=True)
class Config:
    """Shape of a tile; it changes no bits.

    Attributes
    ----------
    vectors : int
        Vectors of a tile: 4, 8, 16 or 32.
    blocks : int
        Blocks of 256 along k in a tile, at most: a power of two.
    entries : int
        Entries of a thread: 16 or a multiple.
    whole : int
        Fewer tiles of vectors than that are cut along k too.
    registers : int, optional
        Limit for a thread on NVIDIA GPUs.
    """

    vectors: int = 4
    blocks: int = 4
    entries: int = 16
    whole: int = 96
    registers: int | None = None


def norm_scales(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    balances: tuple[int, ...] = (0, 0),
    config: Config = Config(),
) -> tuple[VectorScale, ...]:
    """Scales by Cauchy-Schwarz, see numerics.scaling.norm_scale.

    Parameters
    ----------
    operands : one or two (tensor, axis)
    moduli : ModuliSet
    balances : tuple of int
        Added to the exponents of each operand.
    config : Config
    """
    plan = _plan_for(operands, config)
    constants = vector_constants(moduli, plan.width, 1, operands[0][0].device, plan.ptx)
    return _scales(plan, operands, constants, balances)


def scaled_residues(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    scales: tuple[VectorScale, ...] | None = None,
    balances: tuple[int, ...] = (0, 0),
    bits: int | None = None,
    config: Config = Config(),
) -> tuple[tuple[Any, ...], tuple[VectorScale, ...]]:
    """Residues of the scaled and rounded operands, for the products of schemes.residue_products.product_operands.

    Parameters
    ----------
    operands : one or two (tensor, axis)
    moduli : ModuliSet
    scales : tuple of VectorScale, optional
        Of these vectors; found on the way where None.
    balances : tuple of int
        Added to the exponents that are found on the way, or contained in those that are given.
    bits : int, optional
        |2**exponent x| < 2**bits for given scales that are not those of `norm_scales`.
    config : Config

    Returns
    -------
    parts : tuple of int8 tensors, shape (batch, products, vectors, k rounded up to 16), zero beyond k
        Representatives in [-128, 127].
    scales : tuple of VectorScale
    """
    plan = _plan_for(operands, config)
    device = operands[0][0].device
    top = (math.isqrt(moduli.half_range) + 1) << max(*balances, 0) if bits is None else 1 << bits
    constants = vector_constants(moduli, plan.width, num_words_for(top), device, plan.ptx)
    shapes = [(batch, constants.num_parts, count, plan.pitch) for batch, count in plan.shapes]
    parts = tuple(empty(shape, torch.int8, device) for shape in shapes)
    if scales is None and plan.whole:
        return parts, _whole(plan, operands, constants, balances, parts)
    truncates = scales is not None or constants.truncates(plan.width * plan.k, balances)
    scales = _scales(plan, operands, constants, balances) if scales is None else scales
    pairs = [_with_batch_stride(scale) for scale in scales]
    (left, left_stride), (right, right_stride) = pairs[0], pairs[-1]
    arguments = (*left, *right, parts[0], parts[-1], constants.table, *plan.sizes, left_stride, right_stride)
    _residues(
        (plan.programs, plan.steps),
        *_pointers(operands),
        *arguments,
        plan.pitch // 16,
        constants.num_parts,
        FORM=plan.form,
        NUM_WORDS=constants.num_words,
        TRUNCATES=truncates,
        DP4A=constants.dp4a,
        **plan.options,
    )
    return parts, scales


def _with_batch_stride(scale: VectorScale) -> tuple[VectorScale, int]:
    """The scale with vectors side by side, and the distance of matrices; 0 for one."""
    exponent, nearest = scale
    if exponent.stride() != nearest.stride() or exponent.stride(1) != 1:
        exponent, nearest = exponent.contiguous(), nearest.contiguous()
    return VectorScale(exponent, nearest), exponent.stride(0) if exponent.shape[0] > 1 else 0


def _scales(
    plan: _Plan, operands: tuple[Operand, ...], constants: VectorConstants, balances: tuple[int, ...]
) -> tuple[VectorScale, ...]:
    """Scales alone, in one launch or in two."""
    if plan.whole:
        return _whole(plan, operands, constants, balances, None)
    device, blocks = operands[0][0].device, -(-plan.k // NORM_BLOCK)
    total = sum(plan.totals[: len(operands)])
    norms = empty((blocks, total), torch.float64, device)
    exponents = empty((blocks, total), torch.int32, device)
    columns = (plan.totals[0], total)
    arguments = (*_pointers(operands), norms, exponents, *plan.sizes, *columns)
    _block_norms((plan.programs, plan.steps), *arguments, FORM=plan.norm_form, PTX=plan.ptx, **plan.options)
    found = _new_scales(plan, operands)
    # Columns of a second operand that is not there stay empty.
    sizes = (plan.totals[0], total - plan.totals[0])
    arguments = (norms, exponents, found[0], found[-1], constants.range, blocks, *sizes, balances[0], balances[-1])
    _join_norms((-(-total // 32),), *arguments, ROWS=32, COLUMNS=32, num_warps=4)
    return tuple(VectorScale(*scale.unbind()) for scale in found)


def _whole(
    plan: _Plan, operands: tuple[Operand, ...], constants: VectorConstants, balances: tuple[int, ...], parts: Any
) -> tuple[VectorScale, ...]:
    """Scales, and residues where `parts` are given, in one launch."""
    found = _new_scales(plan, operands)
    left, right = (found[0], found[-1]) if parts is None else (parts[0], parts[-1])
    _scaled_residues(
        (plan.programs,),
        *_pointers(operands),
        *(found[0], found[-1], constants.range, left, right, constants.table),
        *plan.sizes,
        *plan.totals,
        *(balances[0], balances[-1], plan.pitch // 16, constants.num_parts),
        FORM=plan.norm_form if parts is None else plan.form,
        STEPS=plan.padded_steps,
        NUM_WORDS=constants.num_words,
        TRUNCATES=parts is not None and constants.truncates(plan.width * plan.k, balances),
        RESIDUES=parts is not None,
        PTX=plan.ptx,
        DP4A=constants.dp4a,
        **plan.options,
    )
    return tuple(VectorScale(*scale.unbind()) for scale in found)


def _new_scales(plan: _Plan, operands: tuple[Operand, ...]) -> tuple[Any, ...]:
    """Tensors for exponents and rounding of the vectors of each operand."""
    device = operands[0][0].device
    return tuple(empty((2, *shape), torch.int32, device) for shape in plan.shapes)


def _pointers(operands: tuple[Operand, ...]) -> tuple[Any, Any]:
    """Both operands as real numbers, the components of an entry side by side; one operand stands for both."""
    left, right = operands[0][0], operands[-1][0]
    if left.is_complex():
        return torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj())
    return left, right


@dataclass(frozen=True, eq=False)
class _Plan:
    """Launches for operands of some shapes and strides.

    Attributes
    ----------
    shapes, totals : tuple
        (batch, vectors) of each operand; vectors of the first and of the last.
    k, pitch : int
        Inner dimension, and rounded up to 16.
    width : int
        1, or 2 for complex operands.
    form, norm_form : Form
        For kernels that make residues, and for those that only take norms.
    programs, steps, padded_steps : int
        Tiles of vectors, tiles along k, the same as a power of two.
    whole : bool
        Whether a program takes whole vectors.
    sizes : tuple of int
        Sizes and strides as the kernels take them.
    ptx : bool
        Whether inline PTX may be used.
    options : dict
        Options of the compiler.
    """

    shapes: tuple[tuple[int, int], ...]
    totals: tuple[int, int]
    k: int
    pitch: int
    width: int
    form: kernels.Form
    norm_form: kernels.Form
    programs: int
    steps: int
    padded_steps: int
    whole: bool
    sizes: tuple[int, ...]
    ptx: bool
    options: dict[str, int]


def _plan_for(operands: tuple[Operand, ...], config: Config) -> _Plan:
    first = operands[0][0]
    facts = tuple((x.shape, x.stride(), axis, x.data_ptr() % 16 == 0) for x, axis in operands)
    return _plan(first.dtype, first.is_cuda, config, facts)


@lru_cache(maxsize=1024)
def _plan(dtype: Any, is_cuda: bool, config: Config, facts: tuple[Any, ...]) -> _Plan:
    width = 2 if dtype.is_complex else 1
    k = facts[0][0][facts[0][2]]
    shapes = tuple((shape[0], shape[3 - axis]) for shape, _, axis, _ in facts)
    blocks = min(config.blocks, 1 << (-(-k // NORM_BLOCK) - 1).bit_length())
    tiles = [batch * -(-count // config.vectors) for batch, count in shapes]
    along = [k == 1 or stride[axis] == 1 for _, stride, axis, _ in facts]
    distances = [(stride[0] if shape[0] > 1 else 0, stride[3 - axis], stride[axis]) for shape, stride, axis, _ in facts]
    vector = 16 // _SIZES[dtype] if width == 1 else 1
    for side_by_side, distance, (*_, aligned) in zip(along, distances, facts, strict=True):
        if side_by_side and not (aligned and distance[0] % vector == 0 and distance[1] % vector == 0):
            vector = 1
    units = [vector if side_by_side else 1 for side_by_side in along]
    distances = [(b // unit, v // unit, e) for (b, v, e), unit in zip(distances, units, strict=True)]
    steps = -(-k // (blocks * NORM_BLOCK))
    programs = sum(tiles)
    even = k % (blocks * NORM_BLOCK) == 0
    form = (along[0], along[-1], even, vector, width, config.vectors, blocks)
    options = {"num_warps": blocks * NORM_BLOCK * config.vectors // (32 * config.entries)}
    if config.registers is not None and is_cuda and torch.version.hip is None:
        options["maxnreg"] = config.registers
    return _Plan(
        shapes=shapes,
        totals=(math.prod(shapes[0]), math.prod(shapes[-1])),
        k=k,
        pitch=-(-k // 16) * 16,
        width=width,
        form=kernels.Form(*form, 512 // config.vectors),
        norm_form=kernels.Form(*form, 32 // config.vectors),
        programs=programs,
        steps=steps,
        padded_steps=1 << (steps - 1).bit_length(),
        whole=steps <= 2 or (steps <= _MOST_STEPS and programs >= config.whole),
        sizes=(tiles[0], shapes[0][1], shapes[-1][1], k, *distances[0], *distances[-1]),
        ptx=is_cuda and torch.version.hip is None,
        options=options,
    )
