"""Products of words on Hopper: `word_gemm` in Gluon, with TMA, wgmma and specialised
warps.

Each thread block walks over tiles of the result. One warp loads the words of both
operands for a block of k into a ring in shared memory, in the order of the schedule of
`word_gemm`; two warpgroups of half the rows each multiply, and never wait for each
other. A warpgroup holds three accumulators: P, the main product of the block, which
starts from zero; D, the chain of the corrections; S, the sum of all P. It issues the
MMAs of P, then those of D, frees the words of the block before as soon as its
corrections are made, waits for P only and adds it to S while D is being made.

Without corrections the MMAs of a block are issued while those of the block before are
being made. A single chain has one accumulator, so that tiles may be 256 wide: they read
48 bytes of words in the time in which 128 x 128 read 64, as much as the level-two cache
delivers to all multiprocessors at the full rate of the tensor cores.

The exponents of rows and columns arrive during the last products of a tile; tiles that
lie inside the result and have no wide exponents are scaled and stored by a short path,
which takes 3 us less (4 % of a tile at n = 4096).

The order of all operations is that of `word_gemm`, and so are the bits.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hifigemm.kernels.products.hopper_ring import (
    CONSUMER_REGISTERS,
    PRODUCER_REGISTERS,
    allocate,
    free_stage,
    full_stage,
    release,
    tma_load,
)
from hifigemm.kernels.products.word_gemm import (
    WordsProduct,
    nonfinite_sums,
    side_of,
    unscaled,
)
from hifigemm.kernels.runtime.common import power_of_two_single, tile_of_result
from hifigemm.kernels.runtime.launch import Launch, TensorMap, tensor_map
from hifigemm.kernels.runtime.tiles import gpu_of
from hifigemm.kernels.vectors.vector_tiles import NOT_FINITE
from hifigemm.kernels.vectors.words import Words, losses_in_range


@gluon.jit
def _turn(index, counts, m, KIND: gl.constexpr, TILE: gl.constexpr):
    """The tile of a program's turn: its plane of the target, row and column; matrix z of
    the operands, and the first and number of its blocks of k.

    Spans of k are planes of the target, those of a matrix one after the other.
    """
    k_steps, _, span, _, tiles_m, tiles_n = counts
    plane, tile_m, tile_n = tile_of_result(
        index, tiles_m, tiles_n, m, KIND.triangle, TILE
    )
    z = plane
    first_block = 0
    steps = k_steps
    if KIND.spans:
        spans = gl.cdiv(k_steps, span)
        first_block = plane % spans * span
        steps = gl.minimum(span, k_steps - first_block)
        z = plane // spans
    return plane, tile_m, tile_n, z, first_block, steps


@gluon.jit
def _produce(
    left_map,
    right_map,
    ring,
    left,
    right,
    counts,
    KIND: gl.constexpr,
    TILE: gl.constexpr,
    WORD_BYTES: gl.constexpr,
):
    """The warp that loads the words of both operands, block of k after block.

    Its tiles, and the blocks of each, come in the order in which `_consume` multiplies
    them.
    """
    LEFT_WORDS: gl.constexpr = KIND.left_words
    RIGHT_WORDS: gl.constexpr = KIND.right_words
    BLOCK_M: gl.constexpr = TILE.block_m
    BLOCK_N: gl.constexpr = TILE.block_n
    BLOCK_K: gl.constexpr = TILE.block_k
    HALF: gl.constexpr = BLOCK_M // 2
    BYTES: gl.constexpr = (
        (LEFT_WORDS * BLOCK_M + RIGHT_WORDS * BLOCK_N) * BLOCK_K * WORD_BYTES
    )
    left_ring, right_ring, full, _ = ring
    _, blocks_per_round, _, tiles, _, _ = counts
    step = 0
    # Tiles of this program: `step` counts the blocks of k of all of them.
    for index in range(gl.program_id(0), tiles, gl.num_programs(0)):
        _, tile_m, tile_n, z, begin, steps = _turn(
            index, counts, left.vectors, KIND, TILE
        )
        # Planes of words are stacked as the rows of one matrix: word p of a vector lies
        # p times `vectors` rows below its first one.
        left_row = z * left.batch + tile_m * BLOCK_M
        right_row = z * right.batch + tile_n * BLOCK_N
        # `blocks_per_round` blocks of k of one walk after the other.
        end = begin + steps
        for first in range(begin, end, blocks_per_round):
            last = gl.minimum(first + blocks_per_round, end)
            for j in gl.static_range(len(KIND.walks)):
                left_start = left_row + KIND.walks[j][0][0] * left.vectors
                right_start = right_row + KIND.walks[j][0][1] * right.vectors
                for h in range(first, last):
                    stage = free_stage(ring, step)
                    barrier = full.index(stage)
                    mbarrier.expect(barrier, BYTES)
                    # Halves of the rows lie apart, as each consumer reads one. The
                    # barrier counts the bytes of all copies.
                    for p in gl.static_range(LEFT_WORDS):
                        for half in gl.static_range(2):
                            row = left_start + p * left.vectors + half * HALF
                            slot = left_ring.index((stage * LEFT_WORDS + p) * 2 + half)
                            tma_load(left_map, [row, h * BLOCK_K], barrier, slot)
                    for p in gl.static_range(RIGHT_WORDS):
                        row = right_start + p * right.vectors
                        slot = right_ring.index(stage * RIGHT_WORDS + p)
                        tma_load(right_map, [row, h * BLOCK_K], barrier, slot)
                    step += 1


@gluon.jit
def _issue(
    ring,
    stage,
    main,
    correction,
    HALF_INDEX: gl.constexpr,
    KIND: gl.constexpr,
    STARTS: gl.constexpr,
):
    """Issue the MMAs of a block of k, which add to `main` and `correction`.

    With STARTS the main sum starts from zero instead.
    """
    left_ring, right_ring, _, _ = ring
    for i in gl.static_range(len(KIND.products)):
        left_slot = stage * KIND.left_words + KIND.products[i][0]
        right_slot = stage * KIND.right_words + KIND.products[i][1]
        left = left_ring.index(left_slot * 2 + HALF_INDEX)
        right = right_ring.index(right_slot).permute((1, 0))
        if KIND.products[i][2] == "correction":
            correction = warpgroup_mma(left, right, correction, is_async=True)
        else:
            main = warpgroup_mma(left, right, main, use_acc=not STARTS, is_async=True)
    return main, correction


@gluon.jit
def _multiply(
    ring,
    step,
    steps,
    total,
    correction,
    HALF_INDEX: gl.constexpr,
    KIND: gl.constexpr,
):
    """S and D with the products of the next `steps` blocks of k, of one walk or several.

    Returns them with the number of stages that were used until then, and the last of
    them. Products of the last block may still be under way. Where P is a chain it takes
    the place of S, and starts from zero, so that no instruction has to clear it.
    """
    CORRECTIONS: gl.constexpr = len(KIND.products) - 1
    BY_BLOCK: gl.constexpr = KIND.added == "block"
    # Given to MMAs that start a sum and do not read it.
    zero = gl.zeros_like(total)
    previous = 0
    first = 0
    if KIND.main_is_chain:
        first = 1
        previous = full_stage(ring, step)
        token, _ = _issue(ring, previous, zero, correction, HALF_INDEX, KIND, True)
        total = warpgroup_mma_wait(1, deps=(token,))
        step += 1
    for i in range(first, steps):
        # The words of this block of k, once all their bytes are there.
        stage = full_stage(ring, step)
        main = zero if BY_BLOCK else total
        main, chain = _issue(ring, stage, main, correction, HALF_INDEX, KIND, BY_BLOCK)
        # No more MMAs are under way than this block's: those of the block before are
        # done with its stage, which is released. The last stage of a tile or of a chain
        # P is released at its end, so that a first block finds none.
        if CORRECTIONS > 0:
            main, chain = warpgroup_mma_wait(CORRECTIONS + 1, deps=(main, chain))
            release(ring, previous, i > 0)
            # P is done, its corrections need not be: FP32 adds P while the unit adds
            # these.
            main, correction = warpgroup_mma_wait(CORRECTIONS, deps=(main, chain))
        else:
            main = warpgroup_mma_wait(1, deps=(main,))
            release(ring, previous, i > 0)
        total = total + main if BY_BLOCK else main
        previous = stage
        step += 1
    return total, correction, step, previous


@gluon.jit
def _uniform(flag):
    """A flag that all threads of a warp share, from the first of them: ptxas sees that
    branches on it do not diverge.

    Where it does not see that, it keeps what the loop around the branch computes in
    registers of each thread, and moves the descriptors of each MMA to uniform
    registers: a block of k takes 213 instructions instead of 153.
    """
    shared = gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;",
        "=r,r",
        [flag.to(gl.int32)],
        gl.int32,
        is_pure=True,
        pack=1,
    )
    return shared != 0


@gluon.jit
def _scales(
    z,
    row,
    column,
    left_side,
    right_side,
    shift,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    IN_FP32: gl.constexpr,
    layout: gl.constexpr,
):
    """Exponents of some rows and columns, those of the rows once more, and a flag.

    The flag is true where FP32 holds the powers of two: with IN_FP32 one after the
    other, otherwise those of row and column together. The second copy of the rows'
    exponents is laid out along columns: every warp looks at all rows and columns of its
    warpgroup, so that warps need not exchange anything.
    """
    row_exponents = left_side.exponents + z * left_side.exponents_batch
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    inside = rows < left_side.vectors
    row_exponent = gl.load(row_exponents + rows, mask=inside, other=0) + shift
    cols = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    col_exponent = gl.load(
        right_side.exponents + z * right_side.exponents_batch + cols,
        mask=cols < right_side.vectors,
        other=0,
    )
    lane_rows = row + gl.arange(0, ROWS, gl.SliceLayout(0, layout))
    inside = lane_rows < left_side.vectors
    exponents = gl.load(row_exponents + lane_rows, mask=inside, other=0) + shift
    # Where a row or column is marked, its spread is far too wide.
    row_spread = gl.max(gl.abs(exponents), axis=0)
    col_spread = gl.max(gl.abs(col_exponent), axis=0)
    if IN_FP32:
        narrow = _uniform((row_spread <= 64) & (col_spread <= 126))
    else:
        narrow = _uniform((row_spread <= 126) & (row_spread + col_spread <= 126))
    return row_exponent, col_exponent, exponents, narrow


@gluon.jit
def _store(
    sums,
    plane,
    z,
    row,
    column,
    scales,
    shift,
    k,
    sides,
    KIND: gl.constexpr,
    ADJACENT: gl.constexpr,
):
    """Scale the sums of some rows and columns back and store them, as entries of the
    result; sums of spans, a plane of the target each, as they are.
    """
    ROWS: gl.constexpr = sums.shape[0]
    COLUMNS: gl.constexpr = sums.shape[1]
    layout: gl.constexpr = sums.type.layout
    left_side, right_side, out, operands = sides
    row_exponent, col_exponent, exponents, narrow = scales
    c, out_batch, out_row, out_col = out
    m, n = left_side.vectors, right_side.vectors
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    cols = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    # With ADJACENT columns the compiler knows that their stride is 1.
    first_entry = c + plane.to(gl.int64) * out_batch
    target = first_entry + rows[:, None].to(gl.int64) * out_row
    if ADJACENT:
        target = target + cols[None, :]
    else:
        target = target + cols[None, :].to(gl.int64) * out_col
    inside = (rows[:, None] < m) & (cols[None, :] < n)
    # The short path: a whole tile, with powers of two that FP32 holds. Either way the
    # product is rounded once.
    is_whole = (row + ROWS <= m) & (column + COLUMNS <= n)
    if KIND.spans:
        gl.store(target, sums, mask=inside)
    elif narrow & is_whole:
        if KIND.in_fp32:
            gl.store(target, unscaled(sums, row_exponent, col_exponent, True))
        else:
            factor = power_of_two_single(row_exponent[:, None] + col_exponent[None, :])
            gl.store(target, sums * factor)
    else:
        result = unscaled(sums, row_exponent, col_exponent, KIND.in_fp32 & narrow)
        if operands is not None:
            marked = (row_exponent == NOT_FINITE + shift)[:, None] | (
                col_exponent == NOT_FINITE
            )[None, :]
            gl.store(target, result, mask=inside & (marked == 0))
            # Marked entries are filled in from A and B themselves, in the few tiles
            # that hold any.
            smallest_row = gl.min(exponents, axis=0)
            smallest_col = gl.min(col_exponent, axis=0)
            if _uniform(
                (smallest_row == NOT_FINITE + shift) | (smallest_col == NOT_FINITE)
            ):
                a, a_batch, a_row, a_k, b, b_batch, b_k, b_col = operands
                a_rows = a + z.to(gl.int64) * a_batch + rows.to(gl.int64) * a_row
                b_cols = b + z.to(gl.int64) * b_batch + cols.to(gl.int64) * b_col
                zeros = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
                filled = nonfinite_sums(
                    a_rows, b_cols, a_k, b_k, rows < m, cols < n, k, zeros
                )
                gl.store(target, filled, mask=inside & marked)
        else:
            gl.store(target, result, mask=inside)


@gluon.jit
def _consume(
    HALF_INDEX: gl.constexpr,
    ring,
    out,
    left_side,
    right_side,
    operands,
    shift,
    low_scale,
    k,
    counts,
    KIND: gl.constexpr,
    TILE: gl.constexpr,
    ADJACENT: gl.constexpr,
    WORD_BYTES: gl.constexpr,
):
    """A warpgroup that multiplies: upper or lower half of the rows of each tile.

    No other warpgroup or program writes to its entries. P, D and S of the module are
    `main`, `correction` and `total`.
    """
    BLOCK_M: gl.constexpr = TILE.block_m
    BLOCK_N: gl.constexpr = TILE.block_n
    HALF: gl.constexpr = BLOCK_M // 2
    WALKS: gl.constexpr = len(KIND.walks)
    IN_FP32: gl.constexpr = KIND.in_fp32
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[4, 1],
        instr_shape=[16, BLOCK_N, 32 // WORD_BYTES],
    )
    # The layout in which sums are stored, at most 128 columns at a time.
    WIDTH: gl.constexpr = min(BLOCK_N, 128)
    stored: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[4, 1],
        instr_shape=[16, WIDTH, 32 // WORD_BYTES],
    )
    sides = (left_side, right_side, out, operands)
    _, blocks_per_round, _, tiles, _, _ = counts
    step = 0
    for index in range(gl.program_id(0), tiles, gl.num_programs(0)):
        plane, tile_m, tile_n, z, _, k_steps = _turn(
            index, counts, left_side.vectors, KIND, TILE
        )
        # Sums of the tile start from zero.
        total = gl.zeros([HALF, BLOCK_N], gl.float32, layout)
        correction = gl.zeros([HALF, BLOCK_N], gl.float32, layout)
        previous = 0
        if KIND.main_is_chain:
            # One P after the other: of a walk, or of all walks over some blocks of k.
            # FP32 adds each to S while the other warpgroup multiplies.
            chains = (
                WALKS if KIND.added == "walk" else gl.cdiv(k_steps, blocks_per_round)
            )
            for chain in range(chains):
                steps = k_steps
                if KIND.added == "round":
                    steps = WALKS * gl.minimum(
                        blocks_per_round, k_steps - chain * blocks_per_round
                    )
                main = gl.zeros_like(total)
                main, correction, step, previous = _multiply(
                    ring, step, steps, main, correction, HALF_INDEX, KIND
                )
                main = warpgroup_mma_wait(0, deps=(main,))
                release(ring, previous)
                total = total + main
        else:
            total, correction, step, previous = _multiply(
                ring, step, WALKS * k_steps, total, correction, HALF_INDEX, KIND
            )
        # The exponents of rows and columns, while the last products are being made.
        # Sums of spans need none.
        row = tile_m * BLOCK_M + HALF_INDEX * HALF
        column = tile_n * BLOCK_N
        scales = _scales(
            z, row, column, left_side, right_side, shift, HALF, WIDTH, IN_FP32, stored
        )
        if len(KIND.products) > 1:
            correction = warpgroup_mma_wait(0, deps=(correction,))
            total = total + correction * low_scale
            release(ring, previous)
        elif KIND.added == "never":
            total = warpgroup_mma_wait(0, deps=(total,))
            release(ring, previous)
        # Wide tiles are stored in two halves, whose exponents fit into the registers.
        if BLOCK_N > WIDTH:
            halves = total.reshape([HALF, 2, WIDTH]).permute((0, 2, 1)).split()
            sums = gl.convert_layout(halves[0], stored)
            _store(sums, plane, z, row, column, scales, shift, k, sides, KIND, ADJACENT)
            column += WIDTH
            scales = _scales(
                z,
                row,
                column,
                left_side,
                right_side,
                shift,
                HALF,
                WIDTH,
                IN_FP32,
                stored,
            )
            sums = gl.convert_layout(halves[1], stored)
            _store(sums, plane, z, row, column, scales, shift, k, sides, KIND, ADJACENT)
        else:
            _store(
                total, plane, z, row, column, scales, shift, k, sides, KIND, ADJACENT
            )


@gluon.jit(
    do_not_specialize=[
        "operands",
        "shift",
        "k_steps",
        "blocks_per_round",
        "span",
        "tiles",
        "tiles_m",
        "tiles_n",
        "loss_from",
        "loss_to",
    ]
)
def _corrected_kernel(
    left_map,
    right_map,
    left,
    right,
    losses,
    out,
    operands,
    shift,
    low_scale,
    loss_from,
    loss_to,
    k,
    k_steps,
    blocks_per_round,
    span,
    tiles,
    tiles_m,
    tiles_n,
    KIND: gl.constexpr,
    TILE: gl.constexpr,
    ADJACENT: gl.constexpr,
):
    """Twin: schemes.corrected.Corrected, with pairs schemes.multiword.Multiword.

    The bits are those of `word_gemm._corrected_kernel`. Programs walk over tiles of
    TILE.block_m x TILE.block_n entries, plane after plane, which lie apart by the
    number of programs; there are none where the loss of both operands lies outside the
    range that is asked for.
    """
    WORD_BYTES: gl.constexpr = left_map.dtype.primitive_bitwidth // 8
    ring = allocate(left_map, right_map, KIND.left_words, KIND.right_words, TILE)
    # All three parts of the program see the same number of tiles, so that none waits
    # for a step that another one does not take.
    if losses is not None:
        tiles = gl.where(losses_in_range(losses, loss_from, loss_to), tiles, 0)
    upper: gl.constexpr = 0
    lower: gl.constexpr = 1
    counts = (k_steps, blocks_per_round, span, tiles, tiles_m, tiles_n)
    # Two warpgroups of four warps that multiply, and a warp that loads.
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    upper,
                    ring,
                    out,
                    left,
                    right,
                    operands,
                    shift,
                    low_scale,
                    k,
                    counts,
                    KIND,
                    TILE,
                    ADJACENT,
                    WORD_BYTES,
                ),
            ),
            (
                _consume,
                (
                    lower,
                    ring,
                    out,
                    left,
                    right,
                    operands,
                    shift,
                    low_scale,
                    k,
                    counts,
                    KIND,
                    TILE,
                    ADJACENT,
                    WORD_BYTES,
                ),
            ),
            (
                _produce,
                (
                    left_map,
                    right_map,
                    ring,
                    left,
                    right,
                    counts,
                    KIND,
                    TILE,
                    WORD_BYTES,
                ),
            ),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )


_launch: Any = Launch(_corrected_kernel)


def _map_of(words: Words, block: tuple[int, int]) -> TensorMap:
    """All words of an operand as one matrix.

    Rows that a tile reads beyond its own end up beyond the result.
    """
    batch, count, vectors, pitch = words.planes.shape
    return tensor_map(words.planes, batch * count * vectors, pitch, pitch, block)


def launch(product: WordsProduct) -> None:
    """Launch the kernel for Hopper; see `word_gemm.word_gemm`."""
    left, right, tile = product.left, product.right, product.tile
    out, *_, column_stride = product.out
    pitch = left.planes.shape[3]
    tiles_m, tiles_n = product.tiles_of(tile)
    tiles = out.shape[0] * tiles_m * tiles_n
    k_steps = -(-max(left.k, 1) // tile.block_k)
    blocks_per_round = -(-product.terms_per_round // tile.block_k)
    _launch(
        (min(tiles, gpu_of(out.device).num_sms),),
        _map_of(left, (tile.block_m // 2, tile.block_k)),
        _map_of(right, (tile.block_n, tile.block_k)),
        side_of(left, pitch),
        side_of(right, pitch),
        product.noted_losses,
        product.out,
        product.operands,
        product.shift,
        product.low_scale,
        *product.losses,
        left.k,
        k_steps,
        blocks_per_round,
        product.span // tile.block_k if product.span else None,
        tiles,
        tiles_m,
        tiles_n,
        KIND=product.kind,
        TILE=tile,
        ADJACENT=column_stride == 1,
        num_warps=4,
        enable_fp_fusion=False,
    )
