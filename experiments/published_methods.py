"""Published methods that add products of words, as schemes of the library."""

from __future__ import annotations

from hifigemm import Multiword

PUBLISHED_METHODS = {
    "markidis": Multiword("fp16", 2, 4, split_rounding="zero", scale=False),
    "feng": Multiword("fp16", 2, 4, scale=False),
    "fasi-fp16": Multiword("fp16", 2, 3, accumulate="blocked", scale=False),
    "fasi-bf16": Multiword("bf16", 3, 6, accumulate="blocked", scale=False),
    "valero-lara-tf32x1": Multiword("tf32", 1, 1, scale=False),
    "valero-lara-tf32x3": Multiword("tf32", 2, 3, scale=False),
    "valero-lara-tf32x4": Multiword("tf32", 2, 4, scale=False),
    "valero-lara-tf64x1": Multiword("fp32", 1, 1, scale=False),
    "valero-lara-tf64x3": Multiword("fp32", 2, 3, scale=False),
    "valero-lara-tf64x4": Multiword("fp32", 2, 4, scale=False),
}
"""Published methods, named after first authors: [MCLVH18], [FWLD21], [FHLMM23],
[VLVJ23].
"""
