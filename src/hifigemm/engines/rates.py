"""Rates of a GPU and the times that follow: the cost model behind scheme="auto".

A native product takes the larger of its operations over the rate of cubes of the same
volume and its bytes over the bandwidth. Ozaki scheme II adds up its passes over memory,
its INT8 products, and its launches. `gpu_rates` says which rates a GPU has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hifigemm.kernels.runtime.tiles import (
    TILES,
    ProductShape,
    tile_of_sums,
    waves,
)
from hifigemm.model.problem import Problem
from hifigemm.numerics.rounded_sums import form_for
from hifigemm.numerics.spans import span_length

SIZES = (256, 512, 1024, 2048, 4096)
"""Sizes of the cubes whose native products have a rate each."""
_LOOK = 3e-5
"""Seconds that products with an error ratio take beyond passes, products and launches:
10 to 55 us on an H200 at n = 1024 to 2048, the idle launches of larger counts included.
"""
_BLOCK = 64
"""Terms of a block of k of FP16 words, which a device takes first."""
_FROM_MEMORY = 0.7
"""Share of the bytes of a pass over memory that no cache holds. Fitted with
`_ARITHMETIC` to the residues and the reconstruction of 14 and 15 moduli at n = 2048 and
4096, which take 1.4 times as long as their bytes on an H200 and 1.2 times on an H100,
of complex entries 2.1 times on an H200.
"""
_ARITHMETIC = 2.2e-11
"""Seconds of arithmetic for each byte of a pass, on one SM; twice as many for complex
entries.
"""

_SHORT = 320
"""Entries of a vector below which its residues and their reconstruction take hardly less
time. On an H100 they take 300 and 196 us for 512 products with n = 128, 21 moduli, where
longer vectors would take 306 in all, and 170 and 106 for 1024 float32 ones with n = 64
and 14 moduli, for 92.
"""

_INSTRUCTIONS = {"one word": 8.0, "biased": 9.0, "two words": 11.0}
"""FP64 instructions that take the time of a term, by the form of its sum: of one word
and a biased one more than there are, as they wait for loads. Fitted, with the share
below, to 69 ms of two words at n = 4096 and to 7.3 and 0.92 ms of biased ones of 64
products with n = 512 and 512 with n = 128, on an H200.
"""
_INSTRUCTIONS_OF_ONE_WARP = {"one word": 4.0, "biased": 6.2, "two words": 9.4}
"""The same in tiles of one warp, which load less. Fitted to 0.44 ms of one word and 0.67
of biased ones of 512 products with n = 128, and 60 ms of two words at n = 4096, on an
H100.
"""
_ROUNDING = 60
"""FP64 instructions that round an entry and test it."""
_SHARE_OF_SUMS = 0.65
"""The share of their rate that these instructions reach."""


@dataclass(frozen=True)
class Rates:
    """Sustained rates of a GPU; printable."""

    gpu: str
    # FLOP/s of the library's product of cubes of the `SIZES`
    native_fp64: tuple[float, ...]
    native_fp32: tuple[float, ...]  # the same
    # the share of this rate that real FP64 products with odd n or k reach
    odd_fp64: float
    # FP64 instructions a second outside the tensor cores
    fp64_instructions: float
    int8: float  # operations a second of the residue product, 2 m n k for each modulus
    bandwidth: float  # bytes a second, read and written
    launch: float  # seconds that a dependent launch adds
    # FLOP/s of the product with two FP16 words an operand, 2 m n k, while tiles of 128
    # x 128 occupy all SMs
    words: float
    num_sms: int
    source: str  # where these figures come from

    def native_seconds(self, problem: Problem) -> float:
        """The native product of a problem in its own format."""
        p = problem
        multiplications = p.multiplications * (4 if p.is_complex else 1)
        rates = self.native_fp32 if p.fmt.t == 24 else self.native_fp64

        # The rate of a cube of the same volume, between those of the two nearest sizes.
        size = max(min(multiplications ** (1 / 3), SIZES[-1]), SIZES[0])
        below = max(i for i, n in enumerate(SIZES) if n <= size)
        above = min(below + 1, len(SIZES) - 1)
        share = 0.0
        if above != below:
            step = SIZES[above] / SIZES[below]
            share = math.log(size / SIZES[below]) / math.log(step)
        rate = rates[below] ** (1.0 - share) * rates[above] ** share
        if p.dtype == np.float64 and (p.n | p.k) & 1:
            rate *= self.odd_fp64

        operands = p.batch * (p.m * p.k + p.k * p.n)
        nbytes = (operands + p.batch * p.m * p.n) * p.dtype.itemsize
        product = max(2 * multiplications / rate, nbytes / self.bandwidth)
        seconds = product + self.launch + self._mirror_seconds(p)
        if p.narrow is None:
            return seconds
        # Operands of two bytes are converted first.
        conversion = operands * (p.dtype.itemsize + 2) / self.bandwidth
        return seconds + conversion + 2 * self.launch

    def residue_seconds(
        self, problem: Problem, num_products: int, estimate: bool
    ) -> float:
        """Ozaki scheme II; `estimate` adds the product of magnitudes by which a count
        is chosen beforehand.

        The magnitudes of complex entries take four real products.
        """
        p = problem
        share = _share_of_tiles(p)
        num_operands = 1 if p.is_of_one_operand else 2
        # Passes over short vectors take nearly the time of longer ones.
        k = max(p.k, 15 / 16 * _SHORT + p.k / 16)
        n = max(p.n, 15 / 16 * _SHORT + p.n / 16)
        operands = p.batch * num_operands * k * (p.m + p.n) / 2
        result = share * p.batch * p.m * n

        # Products of whole tiles. That of magnitudes takes a quarter longer than
        # others, and mostly half of its terms are enough.
        rows = -(-p.m // 128) * 128
        cols = -(-p.n // 256) * 256
        terms = -(-p.k // 128) * 128
        volume = share * rows * cols * terms
        of_magnitudes = 0.75 * estimate * (4 if p.is_complex else 1)
        products = 2 * p.batch * volume * (num_products + of_magnitudes) / self.int8

        # Residues and reconstruction.
        nbytes = (operands + result) * (p.dtype.itemsize + num_products)
        arithmetic = _ARITHMETIC * (2 if p.is_complex else 1) / self.num_sms
        passes = nbytes * (_FROM_MEMORY / self.bandwidth + arithmetic)
        launches = 6 * self.launch + _LOOK if estimate else 4 * self.launch
        return products + passes + launches + self._mirror_seconds(p)

    def sum_seconds(self, problem: Problem) -> float:
        """Sums of products in words that are rounded once, for any operands.

        Without tiles enough for all multiprocessors it is the time of one tile.
        """
        p = problem
        tile = tile_of_sums(p.batch, p.m, p.n, self.num_sms)
        tiles = p.batch * -(-p.m // tile.block_m) * -(-p.n // tile.block_n)
        terms = tile.area * p.terms
        rate = _SHARE_OF_SUMS * self.fp64_instructions / self.num_sms
        rounds = max(tiles / self.num_sms, 1.0)
        form = form_for(p.terms, p.fmt)
        per_term = _INSTRUCTIONS[form]
        if tile.warps == 1:
            per_term = _INSTRUCTIONS_OF_ONE_WARP[form]
        instructions = per_term * terms + _ROUNDING * tile.area
        seconds = rounds * instructions / rate
        return seconds + 2 * self.launch + self._mirror_seconds(p)

    def halves_pay(self, m: int, n: int, k: int, planes: int) -> bool:
        """Whether seven products of halves for eight (numerics/strassen.py) save more
        than their sums take.

        Residues of the operands are read and written once more, and those of the
        product three quarters as often again.
        """
        saved_seconds = 2 * m * n * k * planes / 8 / self.int8
        nbytes = planes * (2 * k * (m + n) + 1.5 * m * n)
        return saved_seconds > 1.2 * nbytes / self.bandwidth + 6 * self.launch

    def word_seconds(self, problem: Problem) -> float:
        """Words whose format is chosen on the device: words, product and result one
        after the other.

        Passes over memory take a third longer than their bytes. With one product there
        is no second kernel whose time could hide them. Complex operands are embedded
        first: B is written with twice the rows and columns.
        """
        p = problem
        embedding = 0
        if p.is_complex:
            p = replace(p, n=2 * p.n, k=2 * p.k, dtype=np.dtype(np.float32))
            embedding = p.batch * 6 * p.k * p.n

        # Narrow operands are one word each, others two.
        rate = self.words
        entry_bytes = 8
        if p.narrow is not None:
            rate = 2 * self.words
            entry_bytes = 4

        # The product by the quickest tile, where k is cut into spans as many planes.
        span = span_length(p.m, p.n, p.k, _BLOCK) or p.k
        spans = -(-p.k // max(span, 1))
        shape = ProductShape(p.m, p.n, span, p.batch * spans)
        seconds_of_tiles = []
        for tile, share in TILES["words"].items():
            if tile.kernel == "hopper":
                num_tiles = self.num_sms * waves(tile, shape, self.num_sms)
                operations = 2 * span * num_tiles * tile.area
                seconds_of_tiles.append(operations / (rate * share))
        # Embedded matrices do not mirror each other.
        share_of_tiles = 1.0 if problem.is_complex else _share_of_tiles(p)
        product = share_of_tiles * min(seconds_of_tiles)

        operand_bytes = entry_bytes * (p.m * p.k + p.k * p.n)
        nbytes = p.batch * (operand_bytes + 4 * p.m * p.n) + embedding
        launches = 6 * self.launch
        if spans > 1:
            nbytes += p.batch * 8 * spans * p.m * p.n
            launches += self.launch
        passes = 4 / 3 * nbytes / self.bandwidth
        return product + passes + launches + self._mirror_seconds(problem)

    def _mirror_seconds(self, p: Problem) -> float:
        """Reading one triangle of a result and writing the other, for results that are
        mirrored.
        """
        if not p.mirror:
            return 0.0
        nbytes = p.batch * p.m * p.n * p.dtype.itemsize
        return nbytes / self.bandwidth + self.launch

    def __str__(self) -> str:
        lines = []
        for name, rates in (("FP64", self.native_fp64), ("FP32", self.native_fp32)):
            pairs = zip(SIZES, rates, strict=True)
            texts = [f"{n}: {rate / 1e12:.3g}" for n, rate in pairs]
            lines.append(f"  native {name:<5} {'  '.join(texts)}")
        native = "\n".join(lines)
        return (
            f"{self.gpu}: {self.source}\n  TFLOP/s by size\n{native}\n"
            f"  native FP64 with odd n or k {self.odd_fp64:.2f} of that\n"
            f"  INT8 residue product {self.int8 / 1e12:.0f} TOP/s, FP16 words "
            f"{self.words / 1e12:.0f} TFLOP/s, memory {self.bandwidth / 1e12:.2f} TB/s, a launch "
            f"{self.launch * 1e6:.1f} us"
        )


def _share_of_tiles(p: Problem) -> float:
    """The share of the tiles of a result that are computed; the others are mirrored."""
    return min((1 + 256 / p.m) / 2, 1.0) if p.mirror else 1.0


H200 = Rates(
    gpu="NVIDIA H200",
    native_fp64=(3.0e12, 11.7e12, 47e12, 54e12, 58e12),
    native_fp32=(4.0e12, 14e12, 36e12, 50e12, 51e12),
    odd_fp64=0.73,
    fp64_instructions=64 * 132 * 1.98e9,
    int8=1400e12,
    bandwidth=4.3e12,
    launch=3e-6,
    words=220e12,
    num_sms=132,
    source="measured on an H200 of 700 W",
)
