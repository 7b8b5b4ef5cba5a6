"""How quick is the INT8 residue product as a kernel of cuTile, compared with the kernels
of the library?

    python -m experiments.gpu.cutile_product --compile FOLDER
    python -m experiments.gpu.cutile_product --measure FOLDER

The first command needs the package `cuda-tile[tileiras]` and no GPU, the second a Hopper
GPU and no cuTile: it launches the compiled kernels by the driver. Residues are checked in
a sample of rows before a kernel is timed. The finding is in docs/decisions/gpu-structure.md.
"""

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

COUNT = 14
"""Moduli."""
SIZES = (2048, 4096, 8192)
GROUP = 8
"""Rows of tiles that follow each other down a column."""


class Variant(NamedTuple):
    """A kernel as the compiler is asked for it."""

    block_m: int
    block_n: int
    block_k: int
    blocks: int
    """Blocks of a cluster."""
    occupancy: int
    warps: int
    """Warps that compute; 0 leaves the number to the compiler."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return "_".join(map(str, self))


VARIANTS = (
    Variant(128, 256, 128, 1, 1, 8),
    Variant(128, 256, 128, 2, 1, 8),
    Variant(128, 256, 128, 2, 1, 0),
    Variant(128, 256, 128, 1, 1, 0),
    Variant(128, 256, 64, 1, 1, 8),
    Variant(128, 128, 128, 1, 2, 0),
    Variant(128, 128, 128, 1, 1, 8),
    Variant(128, 128, 256, 1, 1, 0),
    Variant(256, 128, 128, 1, 1, 8),
    Variant(256, 128, 128, 2, 1, 0),
    Variant(256, 256, 128, 2, 1, 8),
    Variant(256, 256, 128, 2, 1, 0),
)


def compile_all(folder: Path) -> None:
    """Write a cubin for sm_90 of each variant."""
    import cuda.tile as ct
    from cuda.tile import compilation

    def stacked(dtype: Any) -> Any:
        """Planes (moduli, rows, columns), rows 16 bytes apart."""
        return compilation.ArrayConstraint(
            dtype,
            3,
            index_dtype=ct.int32,
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=False,
            stride_constant=(None, None, 1),
            stride_divisible_by=(16, 16, 1),
            shape_divisible_by=(1, 16, 16),
            base_addr_divisible_by=128,
        )

    moduli = compilation.ArrayConstraint(
        ct.int32,
        1,
        index_dtype=ct.int32,
        stride_lower_bound_incl=0,
        alias_groups=(),
        may_alias_internally=False,
        stride_constant=(1,),
    )
    operands = [stacked(ct.int8), stacked(ct.int8), moduli, stacked(ct.int8)]
    folder.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        constants = (variant.block_m, variant.block_n, variant.block_k, GROUP)
        signature = compilation.KernelSignature(
            [*operands, *map(compilation.ConstantConstraint, constants)],
            compilation.CallingConvention.cutile_python_v1(),
            "residue_product",
        )
        kernel = _kernel(variant)
        path = folder / f"{variant.name}.cubin"
        compilation.export_kernel(
            kernel, [signature], path, gpu_code="sm_90", output_format="cubin"
        )
        print(path, flush=True)


def _kernel(variant: Variant) -> Any:
    """The kernel, which the compiler reads with the options of a variant.

    Sums of INT8 products saturate in INT32, which none of up to 2**17 terms reaches.
    """
    import cuda.tile as ct

    @ct.kernel(
        num_ctas=variant.blocks,
        occupancy=variant.occupancy,
        num_worker_warps=variant.warps or None,
    )
    def residue_product(  # type: ignore[no-untyped-def]
        a,
        b,
        moduli,
        out,
        BLOCK_M: ct.Constant[int],
        BLOCK_N: ct.Constant[int],
        BLOCK_K: ct.Constant[int],
        GROUP: ct.Constant[int],
    ):
        # A plane for each modulus; tiles in groups of rows
        plane = ct.bid(1)
        rows = ct.num_tiles(a, 1, (1, BLOCK_M, BLOCK_K))
        columns = ct.num_tiles(b, 1, (1, BLOCK_N, BLOCK_K))
        tiles_of_group = GROUP * columns
        first = (ct.bid(0) // tiles_of_group) * GROUP
        height = ct.minimum(rows - first, GROUP)
        row = first + (ct.bid(0) % tiles_of_group) % height
        column = (ct.bid(0) % tiles_of_group) // height

        # Exact sums of the products of a tile
        sums = ct.zeros((BLOCK_M, BLOCK_N), dtype=ct.int32)
        for block in range(ct.num_tiles(a, 2, (1, BLOCK_M, BLOCK_K))):
            left = ct.load(a, (plane, row, block), (1, BLOCK_M, BLOCK_K))
            right = ct.load(b, (plane, column, block), (1, BLOCK_N, BLOCK_K))
            left = ct.reshape(left, (BLOCK_M, BLOCK_K))
            right = ct.reshape(right, (BLOCK_N, BLOCK_K))
            sums = ct.mma(left, ct.transpose(right), sums)

        # The residues of least magnitude
        modulus = ct.reshape(ct.load(moduli, (plane,), (1,)), (1, 1))
        residues = sums % modulus
        residues = ct.where(residues > modulus // 2, residues - modulus, residues)
        tile = ct.reshape(ct.astype(residues, ct.int8), (1, BLOCK_M, BLOCK_N))
        ct.store(out, (plane, row, column), tile)

    return residue_product


class Launcher:
    """A compiled kernel, launched by the driver."""

    def __init__(self, folder: Path, variant: Variant) -> None:
        from hifigemm.kernels.runtime.cuda_driver import check, driver_library

        self.variant = variant
        self.driver = driver_library()
        self.check = check
        image = (folder / f"{variant.name}.cubin").read_bytes()
        module = ctypes.c_void_p()
        check(self.driver.cuModuleLoadData(ctypes.byref(module), image), "load")
        self.function = ctypes.c_void_p()
        code = self.driver.cuModuleGetFunction(
            ctypes.byref(self.function), module, b"residue_product"
        )
        check(code, "find")
        threads = ctypes.c_int()
        most_threads = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        code = self.driver.cuFuncGetAttribute(
            ctypes.byref(threads), most_threads, self.function
        )
        check(code, "read")
        # Kernels with a fixed number of threads allow no other one, but for those that
        # share a multiprocessor
        self.threads = min(threads.value, 384 if variant.warps else 256)

    def bound(self, a: Any, b: Any, moduli: Any, out: Any) -> Callable[[], None]:
        """The launch for some operands: address, shape and strides of each."""
        import torch

        values: list[Any] = []
        for tensor in (a, b, moduli, out):
            values.append(ctypes.c_uint64(tensor.data_ptr()))
            values.extend(map(ctypes.c_int32, (*tensor.shape, *tensor.stride())))
        pointers = [ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in values]
        parameters = (ctypes.c_void_p * len(values))(*pointers)
        count, m, _ = a.shape
        rows = -(-m // self.variant.block_m)
        columns = -(-b.shape[1] // self.variant.block_n)

        def launch() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            grid = (rows * columns, count, 1)
            block = (self.threads, 1, 1)
            code = self.driver.cuLaunchKernel(
                self.function, *grid, *block, 0, stream, parameters, None
            )
            self.check(code, "launch")

        return launch


def measure(folder: Path, output: Path) -> None:
    """Rates of all kernels, in turns."""
    import torch

    from benchmarks.common import BRIEF
    from benchmarks.int8_product import _call, _is_right
    from hifigemm.kernels.products.residue_gemm import residue_constants
    from hifigemm.kernels.runtime.tiles import ProductShape, gpu_of, tile_for
    from hifigemm.numerics.residues import real_moduli
    from hifigemm.workshop.environment import write_csv
    from hifigemm.workshop.measuring.power import open_meter
    from hifigemm.workshop.measuring.timing import CudaClock, time_variants

    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)  # the driver needs a context
    launchers = [Launcher(folder, variant) for variant in VARIANTS]
    moduli = real_moduli()[:COUNT]
    of_cutile = torch.tensor(list(moduli), dtype=torch.int32, device=device)
    rows = []
    for n in SIZES:
        options: dict[str, Any] = {"dtype": torch.int8, "device": device}
        shape = (1, COUNT, n, n)
        a, b, c = (torch.randint(-128, 128, shape, **options) for _ in range(3))
        constants = residue_constants(moduli, device)
        product = ProductShape(n, n, n, COUNT)
        gpu = gpu_of(device)
        tiles = tile_for(product, gpu), tile_for(product, gpu, ("triton",))
        runs = {str(tile): _call(a, b, constants, c, tile) for tile in tiles}
        for launcher in launchers:
            name = f"cutile {launcher.variant.name}"
            runs[name] = launcher.bound(a[0], b[0], of_cutile, c[0])
        for name, run in runs.items():
            if not _is_right(run, a, b, c, moduli, (n, n)):
                raise ArithmeticError(f"n = {n}: residues of {name} are wrong")
        work = 2.0 * n**3 * COUNT * 1e-12
        times = time_variants(runs, CudaClock(), BRIEF, open_meter())
        for name, seconds in times.items():
            row = {
                "n": n,
                "moduli": COUNT,
                "kernel": name,
                "burst_us": 1e6 * seconds.burst.median,
                "sustained_us": 1e6 * seconds.sustained.median,
                "burst_tops": work / seconds.burst.median,
                "sustained_tops": work / seconds.sustained.median,
                "sm_clock_mhz": seconds.readings.sm_clock_mhz,
                "watts": seconds.readings.watts,
            }
            rows.append(row)
            print(n, name, round(row["burst_tops"]), round(row["sustained_tops"]))
    write_csv(
        output,
        rows,
        device=torch.cuda.get_device_name(device),
        torch=torch.__version__,
    )


def main() -> None:
    """Compile or measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--compile", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--output", type=Path, default=Path("results/cutile_h200.csv"))
    options = parser.parse_args()
    if options.compile:
        compile_all(options.compile)
    if options.measure:
        measure(options.measure, options.output)


if __name__ == "__main__":
    main()
