"""Record what mma.sync and wgmma of a Hopper GPU return for hostile and random inputs,
and compare with the model.

    PYTHONPATH=src python -m experiments.make_hardware_vectors --out
    tests/data/hardware_vectors_h200.npz [--seed 1]

Needs an sm_90a GPU and nvcc. A tile is A (64, k), B (k, 8), C (64, 8): 512 dot products
with a C of their own. Both instructions get the same tiles. The file holds bit
patterns, for <set> = fp16, bf16, tf32 with k of one block and for <set> = fp16_chain,
bf16_chain, tf32_chain with k of eight blocks:

    <set>_a (tiles, 64, k), <set>_b (tiles, 8, k), that is B transposed: uint16; uint32
    with 13 low zeros for TF32 <set>_c, <set>_mma, <set>_wgmma (tiles, 64, 8): uint32
    <set>_family (tiles,): index into `families`

and the strings `device`, `compiler`, and the seed. The families are described in
hostile_tiles.py.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hostile_tiles import CHAIN_BLOCKS, FAMILIES, LAYOUTS, Array, decode, draw_set

CUDA_SOURCE = Path(__file__).with_name("hardware_vectors.cu")
INSTRUCTIONS = ("mma", "wgmma")


class Device:
    """The CUDA source, compiled by nvcc into a shared library."""

    def __init__(self, folder: Path) -> None:
        library = folder / "hardware_vectors.so"
        target = "-gencode=arch=compute_90a,code=sm_90a"
        command = [
            "nvcc",
            "-O2",
            "-shared",
            "-Xcompiler",
            "-fPIC",
            target,
            "-o",
            str(library),
            str(CUDA_SOURCE),
        ]
        subprocess.run(command, check=True)
        self.compiler = subprocess.run(
            ["nvcc", "--version"], capture_output=True, text=True
        ).stdout.split("\n")[-2]
        if shutil.which("cuobjdump"):
            sass = subprocess.run(
                ["cuobjdump", "-sass", str(library)], capture_output=True, text=True
            ).stdout
            print("instructions:", {w: sass.count(w + ".") for w in ("HMMA", "HGMMA")})
        self._library = ctypes.CDLL(str(library))
        self._library.run.restype = self._library.device_name.restype = ctypes.c_char_p
        self.name = self._library.device_name().decode()
        if not self.name:
            raise SystemExit("no CUDA device")

    def product(
        self, name: str, instruction: str, a: Array, b: Array, c: Array
    ) -> Array:
        """Bit patterns of D for stacks of tiles, by one instruction after the other
        along k.
        """
        which = list(LAYOUTS).index(name) + len(LAYOUTS) * INSTRUCTIONS.index(
            instruction
        )
        a, b, c = (np.ascontiguousarray(x) for x in (a, b, c))
        d = np.zeros_like(c)
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c, d)]
        status = self._library.run(
            which, *pointers, len(a), a.shape[-1] // LAYOUTS[name].k
        ).decode()
        if status != "no error":
            raise SystemExit(f"{instruction} {name}: {status}")
        return d


def check_layout(device: Device) -> None:
    """Small integers, whose product is exact, show that both instructions see A, B and
    C where they belong.
    """
    rng = np.random.default_rng(0)
    for name, layout in LAYOUTS.items():
        a, b, c = (
            rng.integers(-8, 9, size=s)
            for s in ((2, 64, 2 * layout.k), (2, 8, 2 * layout.k), (2, 64, 8))
        )
        want = a @ b.transpose(0, 2, 1) + c
        a = encode_integers(a, name)
        b = encode_integers(b, name)
        c = encode_integers(c, "tf32")
        for instruction in INSTRUCTIONS:
            got = device.product(name, instruction, a, b, c).view(np.float32)
            print(
                f"layout {name} {instruction:6} {'ok' if np.array_equal(got, want) else 'WRONG'}"
            )


def encode_integers(x: Array, name: str) -> Array:
    """Bit patterns of small integers in an operand format ("tf32": FP32 too)."""
    if name == "fp16":
        return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return bits if name == "tf32" else (bits >> 16).astype(np.uint16)


def make_vectors(
    seed: int, product: Callable[[str, str, Array, Array, Array], Array]
) -> dict[str, Array]:
    """Inputs of all sets and what `product` returns for them."""
    vectors: dict[str, Array] = {
        "families": np.array(list(FAMILIES)),
        "seed": np.array(seed),
    }
    for suffix, blocks in (("", 1), ("_chain", CHAIN_BLOCKS)):
        for order, name in enumerate(LAYOUTS):
            tiles = draw_set(np.random.default_rng([seed, blocks, order]), name, blocks)
            for instruction in INSTRUCTIONS:
                tiles[instruction] = product(
                    name, instruction, tiles["a"], tiles["b"], tiles["c"]
                )
            vectors |= {f"{name}{suffix}_{key}": x for key, x in tiles.items()}
    return vectors


def compare(vectors: dict[str, Array]) -> None:
    """Print how many results the model gives bit for bit, for each set and instruction
    and the families that differ.
    """
    from hifigemm.base.formats import FORMATS
    from hifigemm.numerics.tensor_core import MODELS, tensor_core_product

    for name in [n + suffix for suffix in ("", "_chain") for n in LAYOUTS]:
        fmt = name.removesuffix("_chain")
        a, b, c, family = (
            vectors[f"{name}_{key}"] for key in ("a", "b", "c", "family")
        )
        for instruction, gpu in zip(INSTRUCTIONS, ("h200", "h200-wgmma"), strict=True):
            operands = (
                decode(a, fmt),
                decode(b, fmt).transpose(0, 2, 1),
                c.view(np.float32),
            )
            want = tensor_core_product(
                *operands, fmt=FORMATS[fmt], model=MODELS[gpu]
            ).view(np.uint32)
            got = vectors[f"{name}_{instruction}"]
            print(
                f"{name:10} {instruction:6} {np.count_nonzero(got == want):6} of {got.size}"
            )
            for index in np.unique(family):
                places = np.argwhere((got != want) & (family == index)[:, None, None])
                count = np.count_nonzero(family == index) * got[0].size
                print(
                    f"    {vectors['families'][index]:18} {count - len(places):6} of {count}"
                )
                for t, i, j in places[:: max(1, len(places) // 2)][:2]:
                    print(
                        f"      tile {t} entry {i}, {j}: got {got[t, i, j]:08x}, model {want[t, i, j]:08x}"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        device = Device(Path(folder))
        check_layout(device)
        vectors = make_vectors(args.seed, device.product)
        vectors |= {
            "device": np.array(device.name),
            "compiler": np.array(device.compiler),
        }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, allow_pickle=False, **vectors)
    try:
        compare(vectors)
    except ImportError as error:
        print(f"not compared with the model: {error}")
    for name in LAYOUTS:
        differ = np.count_nonzero(vectors[name + "_mma"] != vectors[name + "_wgmma"])
        print(
            f"{name}: {vectors[name + '_c'].size} cases, mma and wgmma differ in {differ}"
        )
    print(f"{device.name}: {args.out}, {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
