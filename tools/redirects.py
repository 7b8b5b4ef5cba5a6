"""Addresses of pages of docs/ that were removed: each leads to the page that has the
contents now. The hooks of the site write a small page at the old address.
"""

from __future__ import annotations

import posixpath

REDIRECTS = {
    "decisions/blocks-of-four.md": "decisions/words.md#blocks-of-four",
    "decisions/correct-waits.md": "decisions/choice-of-moduli.md#correct-waits",
    "decisions/device-chooses.md": "decisions/choice-of-moduli.md#the-device-chooses",
    "decisions/double-double-sums.md": "decisions/cpu-sums.md#double-double-sums",
    "decisions/error-ratio.md": "decisions/choice-of-moduli.md#error-ratio",
    "decisions/exact-product-as-last-rung.md": "decisions/choice-of-moduli.md#exact-product-as-the-last-rung",
    "decisions/five-products.md": "decisions/cpu-sums.md#five-products",
    "decisions/flushing-threads.md": "decisions/thread-modes.md#flushing-threads",
    "decisions/freed-memory.md": "decisions/cpu-sums.md#freed-memory",
    "decisions/guessing-ahead.md": "decisions/choice-of-moduli.md#correct-waits",
    "decisions/nearest-in-scheme-2.md": "decisions/residues.md#rounding-to-nearest",
    "decisions/norms-of-integers.md": "decisions/residues.md#norms-of-integers",
    "decisions/odd-fp64-products.md": "decisions/choice-of-moduli.md#odd-fp64-products",
    "decisions/one-rounding.md": "decisions/rounding-once.md#one-rounding",
    "decisions/outliers.md": "decisions/choice-of-moduli.md#outliers",
    "decisions/products-by-diagonal.md": "decisions/slices.md#products-by-diagonal",
    "decisions/promises-by-entry.md": "decisions/rounding-once.md#promises-by-entry",
    "decisions/residues-in-parts.md": "decisions/residues.md#residues-in-parts-on-a-cpu",
    "decisions/rounding-modes.md": "decisions/thread-modes.md#rounding-modes",
    "decisions/roundings-of-one-product.md": "decisions/rounding-once.md#pairs-and-c-on-gpus",
    "decisions/seven-products.md": "decisions/residues.md#seven-products",
    "decisions/short-float32-products.md": "decisions/choice-of-moduli.md#short-float32-products",
    "decisions/slices-by-rounding.md": "decisions/slices.md#slices-by-rounding",
    "decisions/three-words.md": "decisions/cpu-sums.md#three-words",
    "decisions/unary-functions.md": "decisions/thread-modes.md#unary-functions",
    "decisions/weaker-requests-on-a-cpu.md": "decisions/cpu-sums.md#weaker-requests",
    "decisions/word-scaling.md": "decisions/words.md#word-scaling",
    "decisions/zeros-of-tensor-cores.md": "decisions/words.md#zeros-of-tensor-cores",
    "decisions/residues-travel.md": "decisions/meshes.md#how-do-partial-sums-and-operands-travel",
    "decisions/counts-on-meshes.md": "decisions/meshes.md#how-do-the-ranks-choose-the-number-of-moduli",
    "decisions/copies-between-gpus.md": "decisions/meshes.md#how-do-panels-reach-the-ranks-that-need-them",
    "decisions/words-in-shared-memory.md": "decisions/meshes.md#how-do-ranks-of-one-host-exchange-small-messages",
    "decisions/emulated-placements.md": "decisions/meshes.md#how-do-scopes-multiply-stacks-and-vectors",
    "decisions/compiled-frames.md": "decisions/pytorch-and-jax.md#how-does-a-product-stay-out-of-compiled-frames",
    "decisions/wrapped-tensors.md": "decisions/pytorch-and-jax.md#what-happens-inside-transforms-of-torchfunc",
    "decisions/float32-precision.md": "decisions/pytorch-and-jax.md#how-is-pytorchs-fp32-precision-read",
    "decisions/unreached-operations.md": "decisions/pytorch-and-jax.md#how-does-a-scope-notice-other-operations",
    "decisions/jax-callbacks.md": "decisions/pytorch-and-jax.md#when-do-jax-callbacks-restore-the-threads-mode",
    "decisions/rooms.md": "decisions/house.md#where-does-a-module-go",
    "decisions/schemes-in-plans.md": "decisions/house.md#why-is-planscheme-of-type-any",
    "decisions/workshop.md": "decisions/house.md#what-may-the-workshop-import",
    "decisions/timing-on-one-card.md": "decisions/house.md#how-are-times-compared",
    "decisions/axis-order.md": "decisions/residue-kernels.md#order-of-the-axes",
    "decisions/eight-bit-slices.md": "decisions/slice-kernels.md#eight-bits-in-a-slice",
    "decisions/error-ratio-tiles.md": "decisions/inspecting-operands.md#error-ratio",
    "decisions/fp16-tile-end.md": "decisions/product-kernels.md#end-of-an-fp16-tile",
    "decisions/fp64-tiles.md": "decisions/product-kernels.md#fp64-tiles",
    "decisions/norms-ahead-of-residues.md": "decisions/residue-kernels.md#norms-and-residues-in-one-launch",
    "decisions/outer-extremes.md": "decisions/inspecting-operands.md#extremes-along-an-outer-axis",
    "decisions/reconstruction.md": "decisions/residue-kernels.md#reconstruction",
    "decisions/required-bits.md": "decisions/inspecting-operands.md#required-bits",
    "decisions/residue-arithmetic.md": "decisions/residue-kernels.md#arithmetic-of-a-residue",
    "decisions/residue-pitch.md": "decisions/residue-kernels.md#pitch",
    "decisions/residue-tiles.md": "decisions/residue-kernels.md#tiles",
    "decisions/slice-products.md": "decisions/slice-kernels.md#slices-in-the-residue-kernel",
    "decisions/slices-in-floating-point.md": "decisions/slice-kernels.md#floating-point-slices",
    "decisions/uniform-branches.md": "decisions/product-kernels.md#uniform-branches",
    "decisions/word-tiles.md": "decisions/product-kernels.md#tiles-of-words",
    "decisions/inverse-by-halves.md": "decisions/gpu-structure.md#large-inverses-by-halves",
    "decisions/plain-maths-on-tensors.md": "decisions/gpu-structure.md#plain-maths-on-tensors",
    "decisions/block-by-block.md": "decisions/gpu-structure.md#products-in-blocks",
    "decisions/launches-by-driver.md": "decisions/gpu-launches.md#launches-by-the-cuda-driver",
    "decisions/records-of-arguments.md": "decisions/gpu-launches.md#records-of-arguments",
    "decisions/few-kernels.md": "decisions/gpu-compilation.md#one-kernel-for-all-layouts",
    "decisions/compile-side-by-side.md": "decisions/gpu-compilation.md#kernels-are-compiled-in-parallel",
    "decisions/idle-launches.md": "decisions/gpu-launches.md#idle-launches",
    "decisions/one-kernel.md": "decisions/gpu-structure.md#one-kernel-for-each-step",
    "decisions/cutile.md": "decisions/gpu-structure.md#gluon-and-triton-not-cutile",
    "theory/corrected.md": "theory/words.md#error-corrected-products",
    "theory/double-double.md": "theory/words.md#double-double-sums",
    "theory/multiword.md": "theory/words.md#multiword-products",
    "theory/native.md": "theory/tensor-cores.md#native-products",
}
"""The new address of each page of docs/ that was removed: "old.md": "new.md#heading"."""

MOVED = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={address}">
<title>This page has moved</title>
</head>
<body><article><p>This page has moved: <a href="{address}">{address}</a></p></article></body>
</html>
"""


def redirect(old: str, new: str) -> tuple[str, str]:
    """The file at the address of a removed page, and its HTML, which leads to `new`."""
    page, mark, heading = new.partition("#")
    target = posixpath.relpath(page, posixpath.dirname(old) or ".")
    address = f"{target.removesuffix('.md')}.html{mark}{heading}"
    return f"{old.removesuffix('.md')}.html", MOVED.format(address=address)
