"""Compile the kernels of launches for a GPU that is not there; prints a JSON line for
each.

Usage: python -m tests.kernels.compiled ARCH [FAMILY], where TRITON_INTERPRET is not set:
all kernels of a family, or a sample of the kernels of all (see `sample`).

Launch functions that get the buffers of a launch list write steps into it instead of
launching. The driver is pretended, so that they choose tiles and variants as on a GPU
of compute capability ARCH.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from hifigemm.base.formats import BF16, FP16, FP32, TF32
from hifigemm.engines.cuda.ozaki2 import products_of_halves
from hifigemm.kernels.endings import slice_rounding
from hifigemm.kernels.endings.crt import crt
from hifigemm.kernels.endings.mirror import mirror
from hifigemm.kernels.endings.rounding import Targets
from hifigemm.kernels.endings.scalar_sums import rounded_sum_of_pair
from hifigemm.kernels.endings.special import restore_special_values
from hifigemm.kernels.endings.underflow import look_for_underflow, send_is_open
from hifigemm.kernels.products import (
    error_ratio,
    native_gemm,
    residue_gemm,
    slice_product,
    word_gemm,
)
from hifigemm.kernels.products.largest_sums import largest_sums
from hifigemm.kernels.products.thin_products import (
    product_of_columns,
    residual_of_column,
)
from hifigemm.kernels.runtime.buffers import contiguous_strides
from hifigemm.kernels.runtime.common import Predicate
from hifigemm.kernels.runtime.cuda_driver import parameters_of, sizes_in_ptx
from hifigemm.kernels.runtime.launch import (
    _OPTIONS,
    _for_jit,
    flat,
    scalar,
    with_parts,
)
from hifigemm.kernels.runtime.launch_list import LaunchList
from hifigemm.kernels.runtime.tiles import (
    SLICES,
    SMALL_SLICES,
    SUMS,
    gpu_of,
    valid_tiles,
)
from hifigemm.kernels.sums import rounded_sums
from hifigemm.kernels.systems.small_minors import facts_of_minors
from hifigemm.kernels.systems.small_systems import solved_systems
from hifigemm.kernels.vectors import (
    double_words,
    inner_scaling,
    residue_words,
    scaled_residues,
    slice_counts,
)
from hifigemm.kernels.vectors import required_bits as looks
from hifigemm.kernels.vectors.embedding import embed_left, embed_right
from hifigemm.kernels.vectors.equilibration import extremes_of_rows, scaled_entries
from hifigemm.kernels.vectors.scaled_along_k import scaled_along_k
from hifigemm.kernels.vectors.slices import slice_operands
from hifigemm.kernels.vectors.upper_magnitudes import (
    scales_of_sums,
    upper_magnitudes,
)
from hifigemm.kernels.vectors.words import split_words
from hifigemm.linalg.stacks import bounds_of_systems
from hifigemm.numerics.integer_sums import Rounding
from hifigemm.numerics.residue_products import num_planes
from hifigemm.numerics.residues import moduli_set
from hifigemm.numerics.words import Splitting
from tests.kernels.compilations import SAMPLED, SHARED

DEVICE = torch.device("cuda", 0)
DTYPES = torch.float64, torch.float32, torch.complex128, torch.complex64
OPS = "STL", "LDL", "DMMA", "LDG.E.128", "WARPGROUP.DEPBAR"
STORES = "st.global.v2.b32", "st.global.v4.b32", "st.global.v2.b64"
"""Counted in PTX, as the machine code that Triton shows ends after 4096
instructions.
"""
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)")
"""An asynchronous copy to shared memory, and how many bytes of a thread."""


class Driver:
    """What Triton asks of a driver to compile."""

    def __init__(self, arch):
        self.arch = arch

    def get_current_target(self):
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def pretend(arch):
    """Let torch and Triton see a GPU; constants of kernels stay on the CPU."""
    found = SimpleNamespace(
        name="", major=arch // 10, minor=arch % 10, multi_processor_count=132
    )
    found.shared_memory_per_block_optin = found.shared_memory_per_multiprocessor = (
        SHARED[arch]
    )
    torch.cuda.get_device_properties = lambda device=None: found
    torch.cuda.device = lambda device=None: nullcontext()
    for module in (residue_gemm, residue_words):
        module.uploaded = lambda constants, device: constants
    own = torch.Tensor.to

    def to(self, *given, device=None, non_blocking=False, **options):
        given = [x for x in given if not isinstance(x, torch.device)]
        return own(self, *given, **options) if given or options else self

    torch.Tensor.to = to
    triton.runtime.driver.set_active(Driver(arch))


class Layout:
    """The layout of a tensor; `order` lists its axes from the largest stride to the
    least.
    """

    def __init__(self, shape, dtype, order=None):
        self.shape, self.dtype = shape, dtype
        order = order or tuple(range(len(shape)))
        strides = contiguous_strides(tuple(shape[axis] for axis in order))
        self.strides = tuple(strides[order.index(axis)] for axis in range(len(shape)))

    def stride(self):
        return self.strides

    def data_ptr(self):
        return 0


def operands(launches, dtype, m=2048, k=2048, n=2048, transposed=""):
    """Buffers of A and B, of which those named are stored with their columns apart."""
    orders = [(0, 2, 1) if name in transposed else (0, 1, 2) for name in "ab"]
    layouts = [
        Layout(shape, dtype, order)
        for shape, order in zip(((1, m, k), (1, k, n)), orders, strict=True)
    ]
    return [launches.operand(layout) for layout in layouts]


def predicate(launches, predicated=True):
    if not predicated:
        return None
    return Predicate(launches.operand(Layout((1,), torch.int64)), 1, 5)


# A family yields the names of its cases, and functions that write them into a launch list.


def residues():
    for tile in valid_tiles(gpu_of(DEVICE)):
        for added, spans, predicated, triangle in (
            (False, 1, False, False),
            (True, 1, False, False),
            (False, 5, True, False),
            (False, 1, True, True),
        ):

            def write(
                launches,
                tile=tile,
                added=added,
                spans=spans,
                predicated=predicated,
                triangle=triangle,
            ):
                where = predicate(launches, predicated)
                left, right, out = (
                    launches.empty((1, 15, 2048, 2048), torch.int8) for _ in range(3)
                )
                table = residue_gemm.residue_constants(
                    moduli_set(15, is_complex=False).moduli, DEVICE
                )
                options = {"k_block": 1024} if added else {}
                options |= {"config": tile, "spans": spans}
                options |= {"predicate": where, "triangle": triangle}
                residue_gemm.residue_gemm(left, right, table, out, **options)

            yield (
                f"{tile}, added {added}, spans {spans}, predicated {predicated}, "
                f"triangle {triangle}",
                write,
            )


def reconstruction():
    for count, dtype, combined, triangle in (
        *product((8, 14, 15, 20, 28), (torch.float64,), (False,), (False,)),
        *product((8, 14, 15, 20), (torch.complex128,), (False,), (False,)),
        *product((15,), (torch.complex64, torch.complex128), (True,), (False,)),
        *product((15,), (torch.float64, torch.complex128), (False,), (True,)),
    ):

        def write(
            launches, count=count, dtype=dtype, combined=combined, triangle=triangle
        ):
            moduli = moduli_set(count, dtype.is_complex)
            width = 3 if dtype.is_complex else 1
            out = launches.operand(Layout((1, 1024, 1024), dtype))
            c = launches.operand(Layout((1, 1024, 1024), dtype))
            where = predicate(launches)
            pair = operands(launches, dtype)
            parts = launches.empty(
                (1, width * len(moduli.moduli), 1024, 1024), torch.int8
            )
            scales = (
                launches.empty((1, 1024), torch.int32),
                launches.empty((1, 1024), torch.int32),
            )
            targets = Targets(out, c=c if combined else None)
            options = {"alpha": 2.5, "beta": 0.5} if combined else {"predicate": where}
            crt(
                parts,
                scales,
                moduli,
                targets,
                operands=pair,
                triangle=triangle,
                **options,
            )

        yield f"{count} {dtype} combined {combined} triangle {triangle}", write
    for count, dtype, rounding in product(
        (8, 20, 28),
        (torch.float64, torch.float32, torch.complex128),
        (Rounding("pair"), Rounding("enclosure"), Rounding(has_addend=True)),
    ):

        def round_once(launches, count=count, dtype=dtype, rounding=rounding):
            moduli = moduli_set(count, dtype.is_complex)
            planes = num_planes(moduli, dtype.is_complex)
            layout = Layout((1, 1024, 1024), dtype)
            out, other = launches.operand(layout), launches.operand(layout)
            pair = operands(launches, dtype)
            parts = launches.empty((1, planes, 1024, 1024), torch.int8)
            scales = tuple(launches.empty((1, 1024), torch.int32) for _ in range(2))
            targets = (
                Targets(out, rounding, c=other)
                if rounding.has_addend
                else Targets(out, rounding, second=other)
            )
            crt(parts, scales, moduli, targets, operands=pair)

        yield f"{count} {dtype} {rounding.result} once", round_once
    for count, dtype in product((14, 15, 20), (torch.float64, torch.complex128)):

        def join(launches, count=count, dtype=dtype):
            moduli, (left, right) = (
                moduli_set(count, dtype.is_complex),
                operands(launches, dtype),
            )
            out = launches.operand(Layout((1, 2048, 2048), dtype))
            where = predicate(launches)
            many = num_planes(moduli, dtype.is_complex)
            x, y = (launches.empty((1, many, 2048, 2048), torch.int8) for _ in range(2))
            products, halves = products_of_halves(x, y, moduli, where)
            scales = (
                launches.empty((1, 2048), torch.int32),
                launches.empty((1, 2048), torch.int32),
            )
            targets = Targets(out)
            crt(
                products, scales, moduli, targets, operands=(left, right), halves=halves
            )

        yield f"{count} {dtype} of halves", join


def scaling():
    kinds = ("", 8, 300), ("ab", 14, 1024), ("", 15, 4096), ("b", 20, 20000)
    tasks = "residues", "sizes too", "missing bits too"
    for dtype, (transposed, count, k), task in product(DTYPES, kinds, tasks):

        def write(
            launches, dtype=dtype, transposed=transposed, count=count, k=k, task=task
        ):
            a, b = operands(launches, dtype, 2048, k, 2048, transposed)
            moduli = moduli_set(count, dtype.is_complex)
            sides = (a, 2), (b, 1)
            if task == "sizes too":
                scaled_residues.sized_residues(sides, moduli)
            elif task == "missing bits too":
                missing = launches.zeros((3,), torch.int64)
                scaled_residues.scaled_residues(sides, moduli, missing=missing)
            else:
                scaled_residues.scaled_residues(sides, moduli)

        yield f"{dtype} transposed {transposed!r} k {k} moduli {count} {task}", write


def ratios():
    for dtype, n, sides in (
        *product((torch.float64, torch.complex128), (300, 4096), (2,)),
        (torch.float64, 4096, 1),
    ):

        def write(launches, dtype=dtype, n=n, sides=sides):
            where = predicate(launches)
            a, b = operands(launches, dtype, n, 2048, n)
            *_, sizes = scaled_residues.sized_residues(
                ((a, 2), (b, 1))[:sides], moduli_set(15, dtype.is_complex)
            )
            error_ratio.error_ratio_bits(sizes)
            error_ratio.error_ratio_bits(sizes, 1024, 5, predicate=where)

        yield f"{dtype} {n} sides {sides}", write
    for dtype, (transposed, n), sides in (
        *product(DTYPES, (("", 300), ("ab", 2048)), (2,)),
        (torch.complex128, ("", 2048), 1),
    ):

        def write_largest(
            launches, dtype=dtype, transposed=transposed, n=n, sides=sides
        ):
            a, b = operands(launches, dtype, n, 2048, n, transposed)
            magnitudes = upper_magnitudes(((a, 2), (b, 1))[:sides])
            sums = largest_sums(magnitudes)
            scales_of_sums(magnitudes, sums, moduli_set(15, dtype.is_complex))

        yield f"largest sums {dtype} {transposed!r} {n} sides {sides}", write_largest


def bits():
    for dtype, transposed in product(DTYPES, ("", "ab")):
        for most in (None, 60, looks.NO_LIMIT):

            def write(launches, dtype=dtype, transposed=transposed, most=most):
                a, b = operands(launches, dtype, transposed=transposed)
                looks.launch_each(a, b) if most is None else looks.launch(a, b, most)

            yield f"{dtype} transposed {transposed!r} most {most}", write


def along_k():
    """Exponents along k, and copies of operands that are scaled by them."""
    for dtype, transposed in product(DTYPES, ("", "a", "b")):

        def write(launches, dtype=dtype, transposed=transposed):
            a, b = operands(launches, dtype, transposed=transposed)
            where = predicate(launches)
            mark = launches.operand(Layout((1,), torch.int64))
            exponents = inner_scaling.gaining_exponents(a, b, mark, where)
            scaled_along_k(((a, 2), (b, 1)), exponents, where)

        yield f"{dtype} {transposed}", write


def words_of_float64():
    """Words of 2048 and 2000 vectors that are scaled along k."""
    splittings = (
        (Splitting(FP16, 2, low_shift=11), 14),
        (Splitting(TF32, 2, "nearest-away"), 54),
        (Splitting(BF16, 3), 54),
        (Splitting(FP16, 2), None),
    )
    for (splitting, top), transposed, n in product(
        splittings, ("", "ab"), (2000, 2048)
    ):

        def write(
            launches,
            splitting=splitting,
            top=top,
            transposed=transposed,
            n=n,
        ):
            a, b = operands(launches, torch.float64, n, n, n, transposed)
            found = launches.operand(Layout((2,), torch.int32))
            split_words(((a, 2), (b, 1)), splitting, top, found=found)

        yield f"{splitting}, transposed {transposed!r}, n {n}", write


def words():
    pairs = (1, 1), (0, 1), (1, 0), (0, 0)
    sums = {
        "added outside": {},
        "chained, triangle": {"sums": "chained", "triangle": True},
        "pairs, chained": {"sums": "chained", "pairs": pairs},
        "pairs, separate": {"sums": "separate", "pairs": pairs},
        "pairs, blocked": {"sums": "blocked", "pairs": pairs, "block": 128},
        "spans": {"span": 512},
        "pairs, spans": {"pairs": pairs, "block": 128, "span": 512},
    }
    for (fmt, block), how in product(((FP16, 64), (TF32, 32)), sums):
        # Separate and blocked sums differ in the order of their loops alone.
        if (fmt.name, how) in (
            ("fp16", "pairs, blocked"),
            ("tf32", "pairs, separate"),
            ("tf32", "pairs, spans"),
        ):
            continue
        family = word_gemm.family_of(
            sums[how].get("sums", "blocked"), sums[how].get("pairs", ())
        )
        for tile in valid_tiles(
            gpu_of(DEVICE), family=family, fmt=fmt.name, block=block
        ):

            def write(launches, fmt=fmt, block=block, tile=tile, how=how):
                a, b = operands(launches, torch.float32)
                out = launches.operand(Layout((1, 2048, 2048), torch.float32))
                has_pairs = "pairs" in sums[how]
                low_shift = 11 if fmt is FP16 and not has_pairs else 0
                splitting = Splitting(fmt, 2, low_shift=low_shift)
                left, right = split_words(
                    ((a, 2), (b, 1)), splitting, 14 if fmt is FP16 else 100
                )
                word_gemm.word_gemm(
                    left,
                    right,
                    out,
                    operands=(a, b),
                    config=tile,
                    **{"block": block, **sums[how]},
                )

            yield f"{tile}, {fmt.name}, {how}", write
    for transposed in ("", "ab"):

        def embed(launches, transposed=transposed):
            a, b = operands(launches, torch.complex64, transposed=transposed)
            embed_left(a)
            embed_right(b)

        yield f"embedding transposed {transposed!r}", embed
    for transposed, n in product(("", "ab"), (1, 40, 2000, 2048)):

        def doubles(launches, transposed=transposed, n=n):
            a, b = operands(launches, torch.float64, n, n, n, transposed)
            out = launches.operand(Layout((1, n, n), torch.float64))
            left, right = double_words.split_doubles(
                ((a, 2), (b, 1)), Splitting(FP32, 2), 100
            )
            products = launches.empty((3, 1, n, n), torch.float64)
            double_words.double_sums(products, left, right, out, (a, b))

        yield f"float64, transposed {transposed!r}, n {n}", doubles
    for dtype in DTYPES:
        yield (
            f"mirror {dtype}",
            lambda launches, dtype=dtype: mirror(
                launches.empty((1, 2048, 2048), dtype), True
            ),
        )
    for has_addend, is_single in product((False, True), repeat=2):

        def sum_of_pair(launches, has_addend=has_addend, is_single=is_single):
            high, low, c = (
                launches.operand(Layout((1, 2048, 2048), torch.float64))
                for _ in range(3)
            )
            addend = c if has_addend else None
            scalars = scalar(0), addend, scalar(1), scalar(2)
            rounded_sum_of_pair(high, low, *scalars, is_single)

        yield f"sum of a pair, C {has_addend}, float32 {is_single}", sum_of_pair


def slices():
    gpu = gpu_of(DEVICE)
    for count, dtype in ((3, torch.float32), (5, torch.float32), (7, torch.float64)):
        for tile in valid_tiles(gpu):

            def write(launches, count=count, dtype=dtype, tile=tile):
                a, b = operands(launches, dtype)
                out = launches.operand(Layout((1, 2048, 2048), dtype))
                left, right = slice_operands(((a, 2), (b, 1)), count, 8)
                slice_product.slice_product(
                    left, right, out, 2048, operands=(a, b), config=tile
                )

            yield f"{count} {dtype} {tile}", write

    for count, few in product((3, 4), (1, 64)):

        def write(launches, count=count, few=few):
            a, b = operands(launches, torch.float32)
            out = launches.operand(Layout((1, few, 2048), torch.float32))
            left, right = slice_operands(((a[:, :few], 2), (b, 1)), count, 8)
            slice_product.slice_product(left, right, out, 2048, operands=(a, b))

        yield f"{few} vectors, {count} slices", write

    for stored, beta in (
        (torch.float16, 8),
        (torch.bfloat16, 9),
    ):
        name = str(stored).removeprefix("torch.")
        for tile in (SLICES[name], SMALL_SLICES[name]):

            def write(launches, stored=stored, beta=beta, tile=tile):
                a, b = operands(launches, torch.float64)
                out = launches.operand(Layout((1, 2048, 2048), torch.float64))
                left, right = slice_operands(((a, 2), (b, 1)), 8, beta, stored)
                slice_product.slice_product(
                    left, right, out, 2048, operands=(a, b), config=tile
                )

            yield f"{stored} {tile}", write

    for stored, beta, count in (
        (torch.int8, 8, 12),
        (torch.float16, 8, 12),
        (torch.float64, 22, 5),
    ):
        for dtype in (torch.float64, torch.float32):

            def write(launches, stored=stored, beta=beta, count=count, dtype=dtype):
                a, b = operands(launches, dtype)
                out = launches.operand(Layout((1, 2048, 2048), dtype))
                ends = launches.operand(Layout((2,), torch.int32))
                both = slice_operands(((a, 2), (b, 1)), count, beta, stored)
                needed = slice_rounding.needed_slices(a, b, both, ends)
                sums = slice_product.sums_of(*both, 2048, ends=ends)
                slice_rounding.round_correctly(
                    sums, both, needed, out, shift=0, operands=(a, b)
                )

            yield f"correct {stored} {dtype}", write


def counts():
    for dtype, transposed, u, shape in product(
        (torch.float64, torch.float32),
        ("", "ab"),
        (2.0**-53, 2.0**-24),
        ((2048, 2048, 2048), (700, 900, 800)),
    ):

        def write(launches, dtype=dtype, transposed=transposed, u=u, shape=shape):
            a, b = operands(launches, dtype, *shape, transposed)
            slice_counts.launch(a, b, 8, u)

        yield f"{dtype} transposed {transposed!r} {u} {shape}", write


def native():
    for dtype, transposed, n in product(
        (torch.float64, torch.complex128), ("", "a", "b", "ab"), (256, 300)
    ):

        def write(launches, dtype=dtype, transposed=transposed, n=n):
            out, where = launches.operand(Layout((1, n, n), dtype)), predicate(launches)
            native_gemm.fp64_product(
                *operands(launches, dtype, n, n, n, transposed), out, where
            )

        yield f"{dtype} transposed {transposed!r} n {n}", write

    def single(launches):
        out, lost = (launches.operand(Layout(shape, dtype)) for shape, dtype in SINGLE)
        native_gemm.fp32_product(*operands(launches, torch.float32), out, lost, (0, 5))

    yield "float32", single
    for dtype in (torch.complex64, torch.complex128):

        def repair(launches, dtype=dtype):
            c = launches.operand(Layout((1, 2048, 2048), dtype))
            restore_special_values(*operands(launches, dtype), c)

        yield f"special values {dtype}", repair


def sums():
    for dtype, form, tile, result in (
        *product((torch.float64,), ("biased", "two words"), SUMS, ("array",)),
        (torch.float32, "one word", SUMS[0], "array"),
        (torch.float32, "two words", SUMS[0], "array"),
        (torch.float64, "three words", SUMS[0], "pair"),
        (torch.float64, "three words", SUMS[0], "enclosure"),
        (torch.float32, "three words", SUMS[0], "pair"),
        (torch.float32, "three words", SUMS[0], "enclosure"),
    ):

        def write(launches, dtype=dtype, form=form, tile=tile, result=result):
            a, b = operands(launches, dtype)
            out = launches.operand(Layout((1, 2048, 2048), dtype))
            second = launches.operand(Layout((1, 2048, 2048), dtype))
            rounded_sums.rounded_sums(
                a,
                b,
                Targets(out, Rounding(result), second=second),
                form=form,
                tile=tile,
            )

        yield f"{dtype} {form} {result} {tile}", write
    for dtype, transposed in product(DTYPES, ("", "ab")):

        def write_certain(launches, dtype=dtype, transposed=transposed):
            a, b = operands(launches, dtype, transposed=transposed)
            out = launches.operand(Layout((1, 2048, 2048), dtype))
            underflow = look_for_underflow(out, a, b, 2048, -1022)
            send_is_open(underflow, launches.empty((1,), torch.int64))
            rounded_sums.finish_entries(a, b, Targets(out), underflow=underflow)

        yield f"underflow {dtype} {transposed!r}", write_certain


def thin_products():
    for count, of_magnitudes, order in product(
        (1, 2, 4), (False, True), ((0, 1), (1, 0))
    ):

        def write(launches, count=count, of_magnitudes=of_magnitudes, order=order):
            a = launches.operand(Layout((2048, 2048), torch.float64, order))
            columns = launches.operand(Layout((count, 2048), torch.float64))
            product_of_columns(a, columns, of_magnitudes=of_magnitudes)

        yield f"{count} columns, magnitudes {of_magnitudes}, order {order}", write

    for count, order in product((1, 2), ((0, 1), (1, 0))):

        def residual(launches, count=count, order=order):
            a = launches.operand(Layout((2048, 2048), torch.float64, order))
            words = launches.operand(Layout((count, 2048), torch.float64))
            b = launches.operand(Layout((2048,), torch.float64))
            residual_of_column(a, words, b)

        yield f"residual, {count} words, order {order}", residual


def equilibration():
    for order in ((0, 1), (1, 0)):

        def write(launches, order=order):
            a = launches.operand(Layout((2048, 2048), torch.float64, order))
            vectors = [launches.operand(Layout((2048,), torch.int32)) for _ in "st"]
            extremes_of_rows(a)
            extremes_of_rows(a, vectors[0])
            scaled_entries(a, *vectors)

        yield f"order {order}", write


def systems():
    for n, sides in ((3, 1), (8, 8), (32, 1)):

        def write(launches, n=n, sides=sides):
            a = launches.operand(Layout((1000, n, n), torch.float64))
            b = launches.operand(Layout((1000, n, sides), torch.float64))
            solved_systems(a, b, bounds_of_systems(n))

        yield f"{n} rows, {sides} sides", write


def minors():
    for n in (3, 8, 32):
        for exchanges in (True, False):

            def write(launches, n=n, exchanges=exchanges):
                a = launches.operand(Layout((1000, n, n), torch.float64))
                facts_of_minors(a, exchanges)

            yield f"{n} rows, {'determinants' if exchanges else 'definiteness'}", write


SINGLE = ((1, 2048, 2048), torch.float32), ((2,), torch.int32)
FAMILIES = {
    f.__name__: f
    for f in (
        *(
            residues,
            reconstruction,
            scaling,
            ratios,
            bits,
            along_k,
            words,
            words_of_float64,
            slices,
            counts,
            native,
            sums,
            thin_products,
            equilibration,
            systems,
            minors,
        ),
    )
}


def restarts(sass, ttgir, constants, warps):
    """MMAs that start from zero in the machine code, and how many do so if each block
    of the main product does.
    """
    tile = constants["TILE"]
    if "HGMMA" in sass:
        consumers = 2
        if tile.kernel == "triton":
            consumers = max(1, tile.block_m * 4 // (64 * warps))
        return len(re.findall(r"HGMMA[^;]*, RZ, !UPT", sass)), consumers
    if "HMMA" in sass.replace("UTCHMMA", ""):
        # Of Blackwell Triton 3.6 lists notes of waits behind the operands.
        return len(re.findall(r"HMMA[^;]*, RZ\s*[;&?]", sass)), tile.area // (
            16 * 8 * warps
        )
    loop = re.findall(r"tc_gen5_mma %\S+ %\S+ %main\S*, (%\w+)", ttgir)
    return loop.count("%false"), max(len(loop), 1)


def unguarded_arrivals(ptx):
    """Arrivals at barriers of a ring before which not all warps of the consumer meet.

    One thread arrives for all of them. Without the barrier that Triton puts before it, a
    stage might be filled again while another warp still waits for it.
    """
    lines = [line.strip() for line in ptx.splitlines()]
    code = [x for x in lines if x and not x.startswith((".loc", ".file", "//", "$"))]
    arrivals = [i for i, x in enumerate(code) if "mbarrier.arrive.shared" in x]
    return sum("bar.sync" not in " ".join(code[max(i - 3, 0) : i]) for i in arrivals)


def facts(step, found):
    """What the machine code of a step's kernel says."""
    sass, ttgir, constants = found.asm["sass"], found.asm["ttgir"], step.constants
    lines = {op: len(re.findall(rf"\b{re.escape(op)}\b", sass)) for op in OPS}
    lines |= {store: found.asm["ptx"].count(store) for store in STORES}
    lines["spills"] = lines["STL"] + lines["LDL"]
    lines["arrivals"] = found.asm["ptx"].count("mbarrier.arrive.shared")
    lines["unguarded arrivals"] = unguarded_arrivals(found.asm["ptx"])
    # ptxas 12.9, which Triton 3.8 brings for sm_90, may add 0 instead of a constant where
    # it takes an addition of two INT16 apart.
    lines["lost constants"] = len(re.findall(r"VIADD\.16x2 [^;]*, 0x0;", sass))
    lines["dot products"] = len(re.findall(r"\bdp[24]a\b", found.asm["ptx"]))
    lines["registers"] = max(
        (int(x) for x in re.findall(r"\bR(\d+)\b", sass)), default=0
    )
    lines["shared"] = found.metadata.shared
    parameters = parameters_of(found)
    # Tuples in tuples go through the JIT.
    is_flat = not any(isinstance(x, tuple) for x in flat(step.arguments))
    has_sizes = parameters is not None
    lines["enters directly"] = (
        is_flat and has_sizes and parameters.sizes == sizes_in_ptx(found.asm["ptx"])
    )
    lines["copies"] = sorted(set(COPY.findall(found.asm["ptx"])))
    # Tiles of vectors have four axes and more: none of them is exchanged between
    # threads. Single axes may be.
    exchanged = re.findall(r"convert_layout.*tensor<((?:\d+x){4,})", ttgir)
    lines["conversions"] = sum(
        math.prod(map(int, shape.split("x")[:-1])) >= 256 for shape in exchanged
    )
    if "MMA" in sass and "KIND" in constants:
        lines["restarts"], lines["blocks"] = restarts(
            sass, ttgir, constants, found.metadata.num_warps
        )
        loops = [block for block in re.split(r"\bBRA\b", sass) if "HGMMA" in block]
        # None where ptxas knows that no branch around the products diverges.
        lines["moves"] = sum(block.count("R2UR") for block in loops)
        lines["spills in loops"] = sum(
            len(re.findall(r"\b(?:STL|LDL)\b", block)) for block in loops
        )
    # Twice the entries of a matrix may exceed 2**31.
    lines["doubled"] = re.findall(
        r"arith\.muli %entries\S*, \S+ : (i\d+)", found.asm.get("ttir", "")
    )
    return lines


def launches(family):
    """Names of the cases of a family, and the launches of each."""
    for case, write in FAMILIES[family]():
        launches = LaunchList(DEVICE)
        write(launches)
        yield case, launches.finish()._steps


def whole(family):
    """(family, case, launch) of all launches of a family."""
    return ((family, case, step) for case, steps in launches(family) for step in steps)


def sample(arch):
    """(family, case, launch) of one launch or more of each family.

    Of each family the last launch of its first case is taken, which is what the family
    is about, for one of SAMPLED. Of each other kernel and epilogue the first launch is taken, for
    one of SAMPLED each, as its name says; kernels for sm_90 alone are taken there. Left out are all other
    variants of a kernel (tiles, types, numbers of moduli, layouts).
    """
    turn = SAMPLED.index(arch)
    seen = set()
    for family in FAMILIES:
        for number, (case, steps) in enumerate(launches(family)):
            for step in steps:
                kernel = step.kernel.kernel
                name = kernel.__name__, repr(step.constants.get("EPILOGUE"))
                is_of_turn = (
                    kernel.__module__.endswith("_hopper")
                    or zlib.crc32(kernel.__name__.encode()) % len(SAMPLED) == turn
                )
                is_of_family = turn == zlib.crc32(family.encode()) % len(SAMPLED)
                is_main = is_of_family and number == 0 and step is steps[-1]
                if is_main or (is_of_turn and name not in seen):
                    yield family, case, step
                seen.add(name)


def compile_for_jit(step):
    """Compile a launch as Triton's JIT does where integers of all tuples are 1, which it
    makes constants.
    """
    arguments = []
    for argument in step.arguments:
        if isinstance(argument, tuple):
            parts = [1 if type(x) is int else x for x in argument]
            argument = with_parts(argument, parts)
        arguments.append(_for_jit(argument))
    step.kernel.kernel.warmup(*arguments, grid=(1,), **_OPTIONS | step.constants)


def main(arch, family=None):
    pretend(arch)
    seen = set()
    for named_family, case, step in sample(arch) if family is None else whole(family):
        found = step.kernel.compile(step.arguments, step.constants)
        if named_family == "sums":
            compile_for_jit(step)
        if found.hash in seen:
            continue
        seen.add(found.hash)
        named = {
            "family": named_family,
            "case": case,
            "kernel": found.name,
        }
        print(json.dumps(named | facts(step, found)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
