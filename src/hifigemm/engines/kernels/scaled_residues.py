"""Scales and residues of the operands of Ozaki scheme II on a GPU, and what the operands tell of their products.

Overrides of numerics.scaling.norm_scale and of the residues of numerics.scaling.round_to_integers, with the same bits.
An operand is given as (tensor, axis): (batch, m, k) with axis 2 for rows, or (batch, k, n) with axis 1 for columns;
float32, float64, complex64 or complex128, any strides, none of its sizes 0. Two operands share each launch, and have
the same k, dtype and device.

Short vectors stay in the registers of a program. Long ones are cut into pieces: scales run ahead of residues in the
same launch, so that operands are read a second time from a cache. Which of the two is taken changes no bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from hifigemm.engines.kernels import scaled_residues_kernels, vector_norms_kernels
from hifigemm.engines.kernels.launch import Launch, empty, real_view
from hifigemm.engines.kernels.predicate import NO_PREDICATE, Predicate
from hifigemm.engines.kernels.scaled_residues_constants import VectorConstants, num_words_for, vector_constants
from hifigemm.engines.kernels.vector_norms_kernels import SizeForm
from hifigemm.engines.kernels.zeros import cleared
from hifigemm.numerics.residues import ModuliSet
from hifigemm.numerics.scaling import NORM_BLOCK

__all__ = [
    "NOT_FINITE",
    "Config",
    "Operand",
    "Sizes",
    "VectorScale",
    "config_for",
    "layout_of",
    "norm_scales",
    "pointers",
    "scaled_residues",
    "sized_residues",
    "warps_for",
]

NOT_FINITE: int = scaled_residues_kernels.NOT_FINITE.value
"""Exponent of a vector with an Inf or NaN; its residues mean nothing."""

Operand = tuple[Any, int]
_SIZES = {torch.float32: 4, torch.float64: 8, torch.complex64: 4, torch.complex128: 8}
_LONG = 1024
"""Inner dimension from which rows of residues begin on lines of 128 bytes: odd pitches slow the products down."""
_PANEL: int = vector_norms_kernels.PANEL.value
_PAIR_REGISTERS = 128
"""Of a thread that makes pairs of residues: two programs of 256 threads on a multiprocessor, of which one may load."""

_whole = Launch(scaled_residues_kernels.whole_kernel)
_pieces = Launch(scaled_residues_kernels.pieces_kernel)


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


class Sizes(NamedTuple):
    """What the vectors of two operands tell of their products.

    Attributes
    ----------
    exponents : int32 tensor, shape (total,)
        Of the largest entries of all vectors of the left operand, then of the right one.
    norms : float64 tensor, shape (2, total)
        Norms and sums of magnitudes in units of 2**(exponent - 15), rounded up; 0 for vectors with an Inf or NaN.
    magnitudes : pair of int8 tensors, shape (batch, vectors, width kp), kp = k rounded up to 128
        |x| 2**(7 - exponent), rounded down, zero beyond k; of re, then of im.
    width : int
        Components of an entry: 1, or 2 for complex operands, whose vectors have the sizes of both components together.
    """

    exponents: Any
    norms: Any
    magnitudes: tuple[Any, Any]
    width: int = 1


@dataclass(frozen=True)
class Config:
    """Shape of a tile; it changes no bits.

    Attributes
    ----------
    vectors : int
        Vectors of a tile: 4, 8 or 16.
    blocks : int
        Blocks of 256 along k in a tile, at most: a power of two. Vectors that are no longer stay in registers.
    entries : int
        Real numbers of a thread: 32 or a multiple. Where their integers have many words, threads have half as many.
    ahead : int
        Bytes by which scales run ahead of residues.
    stream : bool
        Residues leave the cache first.
    registers : int, optional
        Limit for a thread on NVIDIA GPUs.
    """

    vectors: int = 4
    blocks: int = 4
    entries: int = 32
    ahead: int = 8 << 20
    stream: bool = False
    registers: int | None = None


def norm_scales(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    balances: tuple[int, ...] = (0, 0),
    config: Config | None = None,
) -> tuple[VectorScale, ...]:
    """Scales by Cauchy-Schwarz, see numerics.scaling.norm_scale.

    Parameters
    ----------
    operands : one or two (tensor, axis)
    moduli : ModuliSet
    balances : tuple of int
        Added to the exponents of each operand.
    config : Config, optional
        Otherwise `config_for` chooses.
    """
    plan = layout_of(operands, config)
    constants = vector_constants(moduli, plan.width, 1, operands[0][0].device, plan.ptx)
    return _run(plan, operands, constants, balances)


def scaled_residues(
    operands: tuple[Operand, ...],
    moduli: ModuliSet,
    scales: tuple[VectorScale, ...] | None = None,
    balances: tuple[int, ...] = (0, 0),
    bits: int | None = None,
    config: Config | None = None,
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
    config : Config, optional
        Otherwise `config_for` chooses.

    Returns
    -------
    planes : tuple of int8 tensors, shape (batch, products, vectors, pitch)
        Representatives in [-128, 127], zero beyond k; the pitch is k rounded up to 16, or to 128 from k = 1024 on.
    scales : tuple of VectorScale
    """
    plan = layout_of(operands, config)
    constants, planes = _parts(plan, operands, moduli, balances, bits)
    return planes, _run(plan, operands, constants, balances, scales, planes)


def sized_residues(
    operands: tuple[Operand, Operand],
    moduli: ModuliSet,
    balances: tuple[int, int] = (0, 0),
    config: Config | None = None,
    predicate: Predicate | None = None,
) -> tuple[tuple[Any, ...], tuple[VectorScale, ...], Sizes]:
    """`scaled_residues` of two operands, and their sizes.

    Parameters
    ----------
    predicate : (int64 tensor of one entry, least, most), optional
        Decides on the device: unless least <= predicate <= most the operands are not read, and what is returned means
        nothing.
    """
    plan = layout_of(operands, config, sized=True)
    like, total = operands[0][0], sum(plan.totals)
    constants, planes = _parts(plan, operands, moduli, balances, None)
    pitch = plan.width * (-(-plan.k // 128) * 128)
    left, right = (empty((*shape, pitch), torch.int8, like) for shape in plan.shapes)
    exponents, norms = empty((total,), torch.int32, like), empty((2, total), torch.float64, like)
    sizes = Sizes(exponents, norms, (left, right), plan.width)
    return planes, _run(plan, operands, constants, balances, None, planes, sizes, predicate), sizes


def _parts(
    plan: _Plan, operands: tuple[Operand, ...], moduli: ModuliSet, balances: tuple[int, ...], bits: int | None
) -> tuple[VectorConstants, tuple[Any, ...]]:
    """Constants for integers of some bits, and tensors for residues."""
    device = operands[0][0].device
    top = (math.isqrt(moduli.half_range) + 1) << max(*balances, 0) if bits is None else 1 << bits
    constants = vector_constants(moduli, plan.width, num_words_for(top), device, plan.ptx)
    shapes = [(batch, constants.num_planes, count, plan.pitch) for batch, count in plan.shapes]
    return constants, tuple(empty(shape, torch.int8, operands[0][0]) for shape in shapes)


def _run(
    plan: _Plan,
    operands: tuple[Operand, ...],
    constants: VectorConstants,
    balances: tuple[int, ...],
    scales: tuple[VectorScale, ...] | None = None,
    planes: tuple[Any, ...] | None = None,
    sizes: Sizes | None = None,
    predicate: Predicate | None = None,
) -> tuple[VectorScale, ...]:
    """Launch what is asked for: scales where they are not given, residues and sizes where there is room for them."""
    like, unused, is_given = operands[0][0], constants.range, scales is not None
    if scales is None:
        found = [empty((2, *shape), torch.int32, like) for shape in plan.shapes]
        scales = tuple(VectorScale(*x.unbind()) for x in found)
    (left, left_stride), *_, (right, right_stride) = [_with_batch_stride(scale) for scale in scales] * 2
    out = (unused, unused) if planes is None else (planes[0], planes[-1])
    own, norms, low, _ = (unused, unused, (unused, unused), 1) if sizes is None else sizes
    arguments = (*pointers(operands), *left, *right, own, norms, constants.range, *out, *low, constants.table)
    low_pitch = 0 if sizes is None else low[0].shape[2] // plan.width
    integers = (*plan.sizes, plan.pitch // 16, low_pitch // 16, constants.num_planes)
    integers += (left_stride, right_stride, plan.totals[0], sum(plan.totals), balances[0], balances[-1])
    integers += predicate or NO_PREDICATE
    options = {
        "FORM": plan.form,
        "NUM_WORDS": constants.num_words,
        "TRUNCATES": planes is not None and (is_given or constants.truncates(plan.width * plan.k, balances)),
        "SUMS": sizes is not None,
        "PTX": plan.ptx,
        "DP4A": constants.dp4a,
        "PAIRS": constants.pairs,
    }
    if constants.pairs and planes is not None:
        options["maxnreg"] = _PAIR_REGISTERS
    options |= plan.options
    if planes is not None:
        options["num_warps"] = warps_for(plan.options["num_warps"], constants.num_words, dp4a=constants.dp4a)
    if plan.whole and planes is not None and not is_given:
        _whole((plan.programs,), *arguments, plan.tiles_a, *integers, **options)
        return scales
    blocks, ahead, workspace = 0, 0, (unused, unused, unused)
    if not is_given:
        blocks, ahead = -(-plan.k // NORM_BLOCK), 0 if planes is None else plan.ahead
        shape = plan.panels, blocks, _PANEL
        workspace = empty(shape, torch.int64, like), empty(shape, torch.int32, like), cleared(plan.panels, like)
    grid = (plan.panels + ahead) * (blocks + (0 if planes is None else plan.tiles_per_panel))
    options |= {"LEFT": plan.size_forms[0], "RIGHT": plan.size_forms[-1], "SCALES": not is_given}
    options["RESIDUES"] = planes is not None
    if planes is None:
        options["num_warps"] = 8
    _pieces((grid,), *arguments, *workspace, plan.panels_a, plan.panels, ahead, *integers, **options)
    return scales


def _with_batch_stride(scale: VectorScale) -> tuple[VectorScale, int]:
    """The scale with vectors side by side, and the distance of matrices; 0 for one."""
    exponent, nearest = scale
    if exponent.stride() != nearest.stride() or exponent.stride(1) != 1:
        exponent, nearest = exponent.contiguous(), nearest.contiguous()
    return VectorScale(exponent, nearest), exponent.stride(0) if exponent.shape[0] > 1 else 0


def pointers(operands: tuple[Operand, ...]) -> tuple[Any, Any]:
    """Both operands as real numbers, the components of an entry side by side; one operand stands for both."""
    left, right = operands[0][0], operands[-1][0]
    return real_view(left), real_view(right)


@dataclass(frozen=True, eq=False)
class _Plan:
    """Launches for operands of some shapes and strides.

    Attributes
    ----------
    shapes, totals : tuple
        (batch, vectors) of each operand; vectors of the first, and of a second one.
    k, pitch : int
        Inner dimension, and the length of rows of residues.
    width : int
        1, or 2 for complex operands.
    form, size_forms : Form, tuple of SizeForm
        For the residues, and for the sizes of each operand.
    programs, tiles_a : int
        Tiles of vectors that stay in registers, of all operands and of the first.
    panels, panels_a, tiles_per_panel : int
        Panels of 16 vectors, of all operands and of the first, and tiles of residues in one.
    ahead : int
        Panels by which scales run ahead of residues.
    whole : bool
        Whether the vectors stay in registers.
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
    form: scaled_residues_kernels.Form
    size_forms: tuple[SizeForm, ...]
    programs: int
    tiles_a: int
    panels: int
    panels_a: int
    tiles_per_panel: int
    ahead: int
    whole: bool
    sizes: tuple[int, ...]
    ptx: bool
    options: dict[str, Any]


def config_for(dtype: Any, k: int, *, sized: bool) -> Config:
    """The tile that was quickest for square float64 operands on an H200, between n = 512 and 16384.

    In microseconds for 15 moduli: n = 2048, 70 instead of 80 with the default; n = 4096, 270 instead of 281, or 304
    instead of 318 with sizes; n = 16384, 4550 and 5034 instead of 4721 and 5269. With sizes, vectors of 2048 that stay
    in registers are slower, or spill.
    """
    if dtype != torch.float64 or k <= 1024 or (sized and k <= 2048):
        return Config()
    return Config(blocks=8) if k <= 2048 else Config(vectors=8, blocks=2)


def warps_for(warps: int, num_words: int, *, dp4a: bool) -> int:
    """Warps of a program that makes residues, where one that holds integers of two words has `warps`.

    Twice as many for more words, which are registers, or pairs of them in float64: three words of 32 integers leave
    room for 8 warps on a multiprocessor, of 16 integers for 16.
    """
    return min(2 * warps, 32) if num_words * (1 if dp4a else 2) > 2 else warps


def layout_of(operands: tuple[Operand, ...], config: Config | None = None, *, sized: bool = False) -> _Plan:
    """Launches for these operands, whether or not their sizes are asked for."""
    first, axis = operands[0]
    config = config or config_for(first.dtype, first.shape[axis], sized=sized)
    facts = tuple((x.shape, x.stride(), axis, x.data_ptr() % 16 == 0) for x, axis in operands)
    return _plan(first.dtype, first.is_cuda, config, facts)


@lru_cache(maxsize=1024)
def _plan(dtype: Any, is_cuda: bool, config: Config, facts: tuple[Any, ...]) -> _Plan:
    width = 2 if dtype.is_complex else 1
    k = facts[0][0][facts[0][2]]
    shapes = tuple((shape[0], shape[3 - axis]) for shape, _, axis, _ in facts)
    distances = [(stride[0] if shape[0] > 1 else 0, stride[3 - axis], stride[axis]) for shape, stride, axis, _ in facts]
    sides = [1 if k == 1 or e == 1 else 2 if v == 1 else 0 for _, v, e in distances]
    wide = 16 // _SIZES[dtype] if width == 1 else 1
    vectors = [
        wide if aligned and b % wide == 0 and (v if side == 1 else e) % wide == 0 else 1
        for (b, v, e), side, (*_, aligned) in zip(distances, sides, facts, strict=True)
    ]
    vector = min([own for own, side in zip(vectors, sides, strict=True) if side == 1], default=wide)
    units = [vector if side == 1 else 1 for side in sides]
    distances = [(b // unit, v // unit, e) for (b, v, e), unit in zip(distances, units, strict=True)]
    blocks = min(config.blocks, 1 << (-(-k // NORM_BLOCK) - 1).bit_length())
    steps = -(-k // (blocks * NORM_BLOCK))
    tiles = [batch * -(-count // config.vectors) for batch, count in shapes]
    panels = [batch * -(-count // _PANEL) for batch, count in shapes]
    even = k % NORM_BLOCK == 0 and all(count % _PANEL == 0 for _, count in shapes)
    pieces = [32 * vector if side == 1 else _PANEL * own if side == 2 else 32 for own, side in zip(vectors, sides)]
    form = (sides[0] == 1, sides[-1] == 1, k % (blocks * NORM_BLOCK) == 0, vector, width, config.vectors, blocks)
    options = {"num_warps": min(blocks * NORM_BLOCK * config.vectors * width // (32 * config.entries), 32)}
    if config.registers is not None and is_cuda and torch.version.hip is None:
        options["maxnreg"] = config.registers
    return _Plan(
        shapes=shapes,
        totals=(math.prod(shapes[0]), sum(math.prod(shape) for shape in shapes[1:])),
        k=k,
        pitch=-(-k // 128) * 128 if k >= _LONG else -(-k // 16) * 16,
        width=width,
        form=scaled_residues_kernels.Form(*form, 512 // config.vectors, config.stream),
        size_forms=tuple(
            SizeForm(side, even, vector if side == 1 else own, width, piece)
            for side, own, piece in zip(sides, vectors, pieces, strict=True)
        ),
        programs=sum(tiles),
        tiles_a=tiles[0],
        panels=sum(panels),
        panels_a=panels[0],
        tiles_per_panel=steps * (_PANEL // config.vectors),
        ahead=min(max(config.ahead // (_PANEL * k * width * _SIZES[dtype]), 1), sum(panels)),
        whole=steps == 1,
        sizes=(shapes[0][1], shapes[-1][1], k, *distances[0], *distances[-1]),
        ptx=is_cuda and torch.version.hip is None,
        options=options,
    )
