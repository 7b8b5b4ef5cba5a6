"""Sums modulo p of the blocks of an operand, for seven products of halves; see
numerics/strassen.py.

Inline PTX adds residues two in a register, as float16: a byte b + 128 under the byte
0x64 has the bits of the number 1024 + (b + 128). Sums of four residues are integers
|s| <= 512. A fused multiply-add with 1 / p and 1536 rounds s / p to an integer q. The
quotient errs by less than 512 2**-11 / p, and for odd p is never within 1 / (2 p) of a
tie. The number s - q p + 1152, again exact, has the byte of the residue plus 128 in its
bits; 128 mod 256 becomes -128.

On an H200 the kernel moves 3.9 TB/s.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hifigemm.kernels.products.residue_gemm import (
    CONSTANTS,
    HALVES,
    constants_of,
    reduce_portable,
)
from hifigemm.kernels.runtime.buffers import Buffer
from hifigemm.kernels.runtime.common import (
    NO_PREDICATE,
    Predicate,
    as_mask,
    holds,
    runs_ptx,
)
from hifigemm.kernels.runtime.launch import Launch
from hifigemm.numerics.strassen import TERMS, VECTORS, half_of

_BLOCK = 2048
"""Entries of a program: 16 in each thread."""
_PAIRS = {
    "m1536": 0xE600,
    "m1152": 0xE480,
    "m384": 0xDE00,
    "p1152": 0x6480,
    "p1536": 0x6600,
}
"""Bits of -1536 to 1536 in float16, by the names of registers that hold two of each."""
_HALVES = {"lo": "0x4140", "hi": "0x4342"}
"""Selectors of `prmt`, lowest digit first: digits 0 to 3 are the bytes of its first
register, and 4 is the lowest byte of its second one. The lower or the upper two bytes
of the first register go into a pair, each below that byte of the second one.
"""


def _registers(names: str) -> str:
    """The beginning of PTX: registers with these names, and those of pairs."""
    pairs = " ".join(
        f"mov.b32 {name}, 0x{half * 0x10001:08x};" for name, half in _PAIRS.items()
    )
    return f"{{ .reg .b32 {names}, {', '.join(_PAIRS)}; {pairs}"


def _ptx_of_reduction(
    s: str, plus_1152: str, inverse: str, minus_p: str, target: str
) -> str:
    """PTX that puts 1024 plus residue plus 128 of a pair of sums into `target`."""
    return (
        f"fma.rn.f16x2 q, {s}, {inverse}, p1536; add.rn.f16x2 q, q, m1536; "
        f"fma.rn.f16x2 {target}, q, {minus_p}, {plus_1152};"
    )


def _ptx_of_sums(*, is_right: bool) -> str:
    """PTX of four sums of four blocks each.

    Outputs are $0 .. $3, blocks $4 .. $7, then 1 / p in $8 .. and -p in $12 ...
    """
    lines = [_registers("x, q, t, s<8>, lo<4>, hi<4>")]
    for i in range(4):
        lines.append(f"xor.b32 x, ${4 + i}, 0x80808080;")
        for half, select in _HALVES.items():
            lines.append(f"prmt.b32 {half}{i}, x, 0x64646464, {select};")
            lines.append(f"add.rn.f16x2 {half}{i}, {half}{i}, m1152;")
    for first_register, half in zip((0, 4), _HALVES, strict=True):
        x, y, z, w = (f"{half}{i}" for i in range(4))
        targets = [f"s{first_register + i}" for i in range(4)]
        if is_right:
            sums = [
                ("sub", z, x),
                ("sub", w, targets[0]),
                ("sub", w, z),
                ("sub", y, targets[1]),
            ]
        else:
            sums = [
                ("add", z, w),
                ("sub", targets[0], x),
                ("sub", x, z),
                ("sub", y, targets[1]),
            ]
        lines += [
            f"{verb}.rn.f16x2 {target}, {a}, {b};"
            for target, (verb, a, b) in zip(targets, sums, strict=True)
        ]
    for i in range(4):
        for half, s in (("lo0", f"s{i}"), ("hi0", f"s{4 + i}")):
            lines.append(
                f"add.rn.f16x2 t, {s}, p1152; {_ptx_of_reduction(s, 't', '$8', '$12', half)}"
            )
        lines.append(f"prmt.b32 x, lo0, hi0, 0x6420; xor.b32 ${i}, x, 0x80808080;")
    return " ".join([*lines, "}"])


def ptx_of_join(p: int) -> str:
    """PTX of the residue of a sum of four residues: output $0, four operands behind it.

    The bytes b + 128 are added as integers under the bits of 1024, which makes
    1536 + s.
    """
    inverse, minus_p = (
        f"0x{x & 0xFFFFFFFF:08x}" for x in constants_of(p)[HALVES.value :]
    )
    lines = [_registers("x, q, t, lo, hi, inverse, minus_p")]
    lines.append(f"mov.b32 inverse, {inverse}; mov.b32 minus_p, {minus_p};")
    for i in range(4):
        lines.append(f"xor.b32 x, ${1 + i}, 0x80808080;")
        for half, select in _HALVES.items():
            lines.append(
                f"prmt.b32 t, x, 0, {select}; add.u32 {half}, {half}, t;"
                if i
                else f"prmt.b32 {half}, x, 0x64646464, {select};"
            )
    for half in _HALVES:
        lines.append(
            f"add.rn.f16x2 t, {half}, m384; add.rn.f16x2 {half}, {half}, m1536;"
        )
        lines.append(_ptx_of_reduction(half, "t", "inverse", "minus_p", half))
    return " ".join(
        [*lines, "prmt.b32 x, lo, hi, 0x6420; xor.b32 $0, x, 0x80808080; }"]
    )


_PTX_LEFT, _PTX_RIGHT = (tl.constexpr(_ptx_of_sums(is_right=x)) for x in (False, True))
_CONSTRAINTS = tl.constexpr(",".join(["=r"] * 4 + ["r"] * 12))


@triton.jit
def _sums(blocks, row, IS_RIGHT: tl.constexpr, PTX: tl.constexpr):
    """The four sums of four blocks as INT8, modulo the p of a row of constants."""
    if PTX:
        text: tl.constexpr = _PTX_RIGHT if IS_RIGHT else _PTX_LEFT
        inputs = blocks + (tl.load(row + HALVES), tl.load(row + HALVES + 1))  # noqa: RUF005
        return tl.inline_asm_elementwise(
            text,
            _CONSTRAINTS,
            inputs,
            dtype=(tl.int8, tl.int8, tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
    else:
        # Sums of up to four residues, |s| <= 512, are exact; each is reduced once.
        x = blocks[0].to(tl.int32)
        y = blocks[1].to(tl.int32)
        z = blocks[2].to(tl.int32)
        w = blocks[3].to(tl.int32)
        if IS_RIGHT:
            first = z - x
            second = w - first
            third = w - z
        else:
            first = z + w
            second = first - x
            third = x - z
        return (
            reduce_portable(first, row),
            reduce_portable(second, row),
            reduce_portable(third, row),
            reduce_portable(y - second, row),
        )


@triton.jit(do_not_specialize=["vectors", "half", "num_planes", "predicate"])
def _block_sums_kernel(
    planes,
    part,
    pitch,
    out,
    constants,
    vectors,
    k,
    half,
    half_k,
    num_planes,
    predicate,
    IS_RIGHT: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Twin: numerics.strassen.block_sums, any representatives.

    A tile is BLOCK entries along k of one vector in plane l, and a program makes it for
    all four sums. Nothing where the predicate does not hold.
    """
    if not holds(predicate):
        return
    # Programs count the tiles of a vector, the vectors v of a half, then the planes l.
    # No two write to the same entries.
    pieces = tl.cdiv(half_k, BLOCK)
    index = tl.program_id(0) // pieces
    l = (index // half).to(tl.int64)
    v = (index % half).to(tl.int64)
    h = tl.program_id(0) % pieces * BLOCK + tl.arange(0, BLOCK)
    inside = h < half_k
    first_block = planes + l * part + v * pitch + h
    # The same entries of the four blocks: upper and lower vectors, first and second
    # half of k. Blocks may be shorter, and count 0 there.
    blocks = ()
    for i in tl.static_range(4):
        has_vector = as_mask(v + i // 2 * half < vectors, h)
        inside_block = inside & (h + i % 2 * half_k < k) & has_vector
        address = first_block + i // 2 * half.to(tl.int64) * pitch + i % 2 * half_k
        blocks = blocks + (tl.load(address, mask=inside_block, other=0),)  # noqa: RUF005
    sums = _sums(blocks, constants + l * CONSTANTS, IS_RIGHT, PTX)
    # All planes of the first sum, then those of the second one, and so on.
    step = num_planes.to(tl.int64) * half * half_k
    target = out + (l * half + v) * half_k + h
    for i in tl.static_range(4):
        tl.store(target + i * step, sums[i], mask=inside)


_launch = Launch(_block_sums_kernel)


def halves_of(planes: Buffer) -> tuple[int, int]:
    """The longer halves of vectors and terms of planes (1, L, vectors, k)."""
    return half_of(planes.shape[2], VECTORS), half_of(planes.shape[3], TERMS)


def block_sums(
    planes: Buffer,
    constants: Buffer,
    *,
    is_right: bool,
    predicate: Predicate | None = None,
) -> Buffer:
    """Sums modulo p of the blocks of one matrix, as numerics.strassen.block_sums.

    Residues are any representatives.

    Parameters
    ----------
    planes : int8 tensor, shape (1, L, vectors, k)
        Unit stride along k, k and the other strides multiples of 16.
    constants : int32 tensor, shape (L, 8)
        `residue_gemm.residue_constants` of the moduli.
    is_right : bool
    predicate : Predicate, optional
        Decides on the device: nothing is written unless the entry lies within the
        limits.

    Returns
    -------
    int8 tensor, shape (1, 4 L, half of the vectors, half of k)
        The four sums one after the other, all planes of each.
    """
    _, count, vectors, k = planes.shape
    _, part, pitch, _ = planes.stride()
    half, half_k = halves_of(planes)
    out = planes.launches.empty((1, 4 * count, half, half_k), torch.int8)
    _launch(
        (count * half * -(-half_k // _BLOCK),),
        planes,
        part,
        pitch,
        out,
        constants,
        vectors,
        k,
        half,
        half_k,
        count,
        predicate or NO_PREDICATE,
        IS_RIGHT=is_right,
        PTX=runs_ptx(planes),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out
