"""Sums of products of words by the kernels of corrected products: which schemes they have, and how they add.

Words that were made step by step, and those that a fused product makes for itself, are multiplied in the same order by
the same unit, so that a product whose entries have to be certified has the bits of one that has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from hifigemm.engines.device_array import unwrap, wrap
from hifigemm.engines.kernels import word_gemm
from hifigemm.engines.kernels.words import STORED, Words, k_pitch
from hifigemm.formats import FORMATS
from hifigemm.numerics.accumulation import Accumulation, of_tensor_core
from hifigemm.numerics.bits import Array
from hifigemm.numerics.tensor_core import V100, TensorCoreModel

__all__ = ["KernelSums", "sums_of", "unit_of"]

Tensor = Any


@lru_cache
def unit_of(model: TensorCoreModel, product: str) -> Accumulation:
    """How the kernels add words of a format on a device: instruction by instruction, in order of k."""
    return of_tensor_core(model, FORMATS[product], block=8 if product == "tf32" else 16)


@lru_cache(maxsize=1024)
def sums_of(scheme: Any, k: int, model: TensorCoreModel) -> KernelSums | None:
    """The kernels' order of sums for a scheme of words, None where they do not have it."""
    if model is V100 or scheme.product not in word_gemm.BLOCKS or not scheme.chains_corrections:
        return None
    chained = scheme.accumulate not in ("outside", "blocked")
    unit, blocks = unit_of(model, scheme.product), word_gemm.BLOCKS[scheme.product]
    wanted = word_gemm.WHOLE_BLOCK[scheme.product] if chained else scheme.block_length(unit, k)
    block = wanted if wanted in blocks else next((b for b in blocks if min(b, wanted) >= k), None)
    return None if block is None else KernelSums(scheme, k, unit, block, chained)


@dataclass(frozen=True)
class KernelSums:
    """Sums of all products of a scheme's words; see `numerics.accumulation.WordSums`.

    Attributes
    ----------
    scheme : Corrected or Multiword
    k : int
    unit : Accumulation
    block : int
        Of the kernels.
    chained : bool
    """

    scheme: Any
    k: int
    unit: Accumulation
    block: int
    chained: bool

    def __call__(self, left: Array, right: Array) -> Array:
        """The sums for words that lie one after the other along k."""
        count = self.scheme.splitting.num_words
        x, y = unwrap(left), unwrap(right)
        a = self._words(x.reshape(len(x), -1, count, self.k).transpose(1, 2))
        b = self._words(y.reshape(len(y), count, self.k, -1).transpose(2, 3))
        out = torch.empty((max(len(x), len(y)), a.vectors, b.vectors), dtype=torch.float32, device=x.device)
        word_gemm.word_gemm(a, b, out, block=self.block, chained=self.chained)
        return wrap(out)

    def _words(self, x: Tensor) -> Words:
        """Words (batch, words, vectors, k) in the layout of the kernels."""
        batch, count, vectors, k = x.shape
        splitting = self.scheme.splitting
        planes = x.new_zeros((batch, count, vectors, k_pitch(k)), dtype=STORED[splitting.fmt.name])
        planes[..., :k] = x
        return Words(planes, x.new_zeros((batch, vectors), dtype=torch.int32), None, k, splitting)
