"""How the INT8 kernels for Hopper multiply; they differ in what they do with the sums
of a tile.

Programs are persistent and warp specialised. A ring of stages lies in shared memory:
one producer warp fills it by TMA; two consumer warpgroups, half of the rows of the tile
each, multiply by wgmma and never wait for each other, so that the end of one tile runs
under the products of the other. A stage is released when the wgmmas of the next stage
have been issued and its own are done.

Operands are seen as matrices with a row for each vector of each plane: plane (z, l)
starts at row z * batch_rows + l * part_rows. Rows beyond m or n of a plane belong to
the next plane or are what lay in shared memory; they reach only sums beyond [:m, :n].
Columns and rows beyond the matrix are zeros, and count as received bytes.

The last column of tiles of a plane may be a half or a quarter as wide, and a warpgroup
whose rows lie beyond m may skip the tile. Each width has a loop of its own: ptxas waits
after every wgmma where one inside a loop depends on a run-time condition.
"""

# Kernels are untyped.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from hifigemm.kernels.runtime.common import holds, tile_of_result
from hifigemm.kernels.runtime.tiles import Tile

# The names that both have in newer versions of Triton, or those of 3.6.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

CONSUMER_REGISTERS = gl.constexpr(232)
"""Of a thread of the warps that multiply: most of them hold sums of the tile."""
PRODUCER_REGISTERS = gl.constexpr(40)
"""Of a thread of the warp that asks for copies. It counts for four warps, so that all
threads have (2 * 232 + 40) * 128 of the 65536 registers of a multiprocessor.
"""


@gluon.jit
def planes_behind(predicate, total_planes):
    """The number of planes to make: none where the predicate does not hold."""
    return gl.where(holds(predicate), total_planes, 0)


@gluon.jit
def allocate(
    left, right, LEFT_WORDS: gl.constexpr, RIGHT_WORDS: gl.constexpr, TILE: gl.constexpr
):
    """The ring in shared memory: left stages, right stages, full and empty barriers.

    A stage of the left operand is an upper and a lower half of its rows, for each word
    of its entries.
    """
    STAGES: gl.constexpr = TILE.stages
    HALF: gl.constexpr = TILE.block_m // 2
    left_ring = gl.allocate_shared_memory(
        left.dtype, [STAGES * LEFT_WORDS * 2, HALF, TILE.block_k], left.layout
    )
    right_ring = gl.allocate_shared_memory(
        right.dtype, [STAGES * RIGHT_WORDS, TILE.block_n, TILE.block_k], right.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        # A stage is full once all its bytes are there, and empty once both consumers
        # have released it.
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    return left_ring, right_ring, full, empty


@gluon.jit
def free_stage(ring, count):
    """The stage that the producer fills next, once both consumers have released it.

    `count` stages were used before.
    """
    _, _, full, empty = ring
    STAGES: gl.constexpr = full.shape[0]
    stage = count % STAGES
    # The phase of a barrier changes with every round of the ring; in the first round
    # all stages are empty.
    mbarrier.wait(empty.index(stage), ((count // STAGES) & 1) ^ 1)
    return stage


@gluon.jit
def full_stage(ring, count):
    """The stage that a consumer reads next, once all its bytes are there."""
    _, _, full, _ = ring
    STAGES: gl.constexpr = full.shape[0]
    stage = count % STAGES
    mbarrier.wait(full.index(stage), (count // STAGES) & 1)
    return stage


@gluon.jit
def release(ring, stage, pred=True):
    """Leave a stage to the producer: this consumer reads it no more.

    One thread arrives for all. Triton puts a barrier of the four warps before that, so
    that none of them still reads the stage or waits for it.
    """
    _, _, _, empty = ring
    mbarrier.arrive(empty.index(stage), count=1, pred=pred)


@gluon.jit
def steps_of(l, lengths):
    """Steps of k of part l of a plane.

    `lengths` are the steps of part 0, how many each part has less than the one before,
    and the largest number of steps.
    """
    first, decrease, limit = lengths
    return gl.minimum(first - l * decrease, limit)


@gluon.jit
def tile_of_turn(
    index, tiles, m, UNEVEN: gl.constexpr, TRIANGLE: gl.constexpr, TILE: gl.constexpr
):
    """Plane, row and column of the tile of a program's turn.

    `tiles` are rows and columns of tiles of a plane, and all planes. Where tiles grow
    shorter, every other round before the last one goes backwards, so that programs have
    about the same work.
    """
    tiles_m, tiles_n, total_planes = tiles
    if UNEVEN:
        total = tiles_m * tiles_n * total_planes
        programs = gl.num_programs(0)
        turn = index // programs
        backwards = (2 * turn + 1) * programs - 1 - index
        index = gl.where(((total - 1) // programs - turn) % 2 == 1, backwards, index)
    return tile_of_result(index, tiles_m, tiles_n, m, TRIANGLE, TILE)


@gluon.jit
def _fill(
    left,
    right,
    ring,
    count,
    place,
    component,
    COLUMNS: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """Bring the vectors of a tile into the ring; the stages that were used until then.

    `place` are the first row and column of the tile, its part, and the first step of k
    and how many there are. The tile has all vectors of the left operand, and the first
    COLUMNS of the right one.
    """
    row, column, part, first_step, steps = place
    left_ring, right_ring, full, _ = ring
    HALF: gl.constexpr = left_ring.shape[1]
    BLOCK_K: gl.constexpr = left_ring.shape[2]
    BOX: gl.constexpr = right.block_type.shape[0]
    COUNT: gl.constexpr = COLUMNS // BOX
    for step in range(steps):
        stage = free_stage(ring, count)
        # The barrier counts the bytes that arrive, zeros beyond the edge of a matrix
        # included.
        ready = full.index(stage)
        mbarrier.expect(ready, (2 * HALF + COLUMNS) * BLOCK_K)
        left_k = (first_step + step) * BLOCK_K
        right_k = left_k + part * component
        # Components of complex vectors: re first, then im; for part 1 those on the
        # right in the other order.
        if WIDTH == 2:
            second = (step >= steps // 2).to(gl.int32)
            left_k = (step - second * (steps // 2)) * BLOCK_K
            right_k = left_k + (second ^ part) * component
            left_k += second * component
        # A copy counts its bytes at the barrier once they lie in shared memory.
        tma_load(left, [row, left_k], ready, left_ring.index(stage * 2))
        tma_load(left, [row + HALF, left_k], ready, left_ring.index(stage * 2 + 1))
        for i in gl.static_range(COUNT):
            slot = right_ring.index(stage).slice(i * BOX, BOX)
            tma_load(right, [column + i * BOX, right_k], ready, slot)
        count += 1
    return count


@gluon.jit
def produce(
    left,
    right,
    ring,
    n,
    tiles,
    num_planes,
    lengths,
    spans,
    component,
    WIDTH: gl.constexpr,
    JOINED: gl.constexpr,
    UNEVEN: gl.constexpr,
    TRIANGLE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Fill the ring, one step of k after the other, over all tiles of this program.

    An operand is what TMA moves of it, and its rows from one matrix to the next and
    from one part to the next; the right one is seen in boxes of a tile, then of a
    quarter of one. `tiles` are rows and columns of tiles of a plane, and all planes, of
    which a matrix has `num_planes`; `lengths` are for `steps_of`. k of matrix z is cut
    into `spans` of as many steps, which are planes as those of further matrices are.
    Part l of the right operand begins l `component` columns behind the first one. With
    WIDTH = 2 the vectors have two components, `component` columns apart, of which each
    takes half of the steps; for part 1 those of the right operand change places. JOINED
    parts follow each other in each tile.
    """
    left_map, left_batch, left_part = left
    right_map, quarter_map, right_batch, right_part = right
    tiles_m, tiles_n, total_planes = tiles
    BLOCK_M: gl.constexpr = TILE.block_m
    BLOCK_N: gl.constexpr = TILE.block_n
    count = 0
    total = tiles_m * tiles_n * total_planes
    # The tiles of this program in the order of its consumers; `count` numbers the
    # stages of all of them.
    for index in range(gl.program_id(0), total, gl.num_programs(0)):
        # m is read for triangles alone, and those are square.
        plane, tile_m, tile_n = tile_of_turn(index, tiles, n, UNEVEN, TRIANGLE, TILE)
        first_part = plane % num_planes
        matrix = plane // num_planes
        for part in gl.static_range(JOINED):
            l = first_part + part
            steps = steps_of(l, lengths)
            first_step = matrix % spans * steps
            z = matrix // spans
            row = z * left_batch + l * left_part + tile_m * BLOCK_M
            column = z * right_batch + l * right_part + tile_n * BLOCK_N
            # At the right edge no more columns are fetched than the consumers multiply.
            width = n - tile_n * BLOCK_N
            place = (row, column, l, first_step, steps)
            if width <= BLOCK_N // 4:
                count = _fill(
                    left_map,
                    quarter_map,
                    ring,
                    count,
                    place,
                    component,
                    BLOCK_N // 4,
                    WIDTH,
                )
            elif width <= BLOCK_N // 2:
                count = _fill(
                    left_map,
                    quarter_map,
                    ring,
                    count,
                    place,
                    component,
                    BLOCK_N // 2,
                    WIDTH,
                )
            else:
                count = _fill(
                    left_map, right_map, ring, count, place, component, BLOCK_N, WIDTH
                )


@gluon.jit
def multiply(
    ring,
    count,
    steps,
    HALF: gl.constexpr,
    COLUMNS: gl.constexpr,
    layout: gl.constexpr,
    sums=None,
):
    """INT32 sums of half of the rows and the first columns of the next tile, added to
    those that are given.

    They wrap at 2**31, so that sums of two components have the bits of a UINT32. The
    second result counts the stages that were used until then. Every tile has one step
    or more, as the producer fills no stage for a tile without.
    """
    left_ring, right_ring, _, _ = ring
    ROWS: gl.constexpr = left_ring.shape[1]
    # The first step starts the sums, so that no instruction has to clear them.
    IS_NEW: gl.constexpr = sums is None
    if IS_NEW:
        sums = gl.zeros([ROWS, COLUMNS], gl.int32, layout)
    previous = full_stage(ring, count)
    token = warpgroup_mma(
        left_ring.index(previous * 2 + HALF),
        right_ring.index(previous).slice(0, COLUMNS).permute((1, 0)),
        sums,
        use_acc=not IS_NEW,
        is_async=True,
    )
    # Nothing is waited for yet: one product may be under way.
    sums = warpgroup_mma_wait(1, deps=(token,))
    count += 1
    for _ in range(1, steps):
        stage = full_stage(ring, count)
        # The products of this stage are issued while those of the one before may still
        # run.
        columns = right_ring.index(stage).slice(0, COLUMNS).permute((1, 0))
        token = warpgroup_mma(
            left_ring.index(stage * 2 + HALF), columns, sums, is_async=True
        )
        # All but the newest of the products are done: the stage before this one is no
        # longer read, and the producer may fill it again.
        sums = warpgroup_mma_wait(1, deps=(token,))
        release(ring, previous)
        previous = stage
        count += 1
    # The last products of the tile, and their stage.
    sums = warpgroup_mma_wait(0, deps=(sums,))
    release(ring, previous)
    return sums, count


@gluon.jit
def skip(ring, count, steps):
    """Release the stages of the next tile, of which this consumer has no rows.

    The producer waits for both consumers, and fills the stages for the other one.
    """
    for _ in range(steps):
        release(ring, full_stage(ring, count))
        count += 1
    return count


def boxes_of(tile: Tile) -> tuple[tuple[int, int], ...]:
    """What TMA moves at a time, as three boxes of (vectors, entries along k).

    They are for the left operand, the right one, and the right one at the edge. Half of
    the rows goes to each consumer; columns come in tiles or, at the edge, in quarters
    of one.
    """
    return tuple(
        (vectors, tile.block_k)
        for vectors in (tile.block_m // 2, tile.block_n, tile.block_n // 4)
    )
