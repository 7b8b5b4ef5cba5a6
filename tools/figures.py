"""Tables of pages whose figures come from results/. Usage: python tools/figures.py
[--write | --fresh]

A table behind `<!-- figures: NAME -->` is what the function NAME of this module makes
of the CSV files. `--write` puts it there; without it the exit status is 1 where a page
says something else. `--fresh` names the commits that changed the measured code after
its figures were taken; a release needs that there are none. Tables in MEASURED_ONCE are
left out there.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/in-your-program.md",
    "docs/peers.md",
    "docs/performance.md",
    "docs/performance-tables.md",
    "examples/patches/README.md",
    "paper/paper.md",
)

MARK = re.compile(r"^<!-- figures: (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)

ON_CPU = (
    "core",
    "src/hifigemm/engines/core.py",
    "src/hifigemm/engines/core_sums.py",
    "src/hifigemm/numerics/double_double.py",
    "src/hifigemm/numerics/float64_products.py",
    "src/hifigemm/schemes/double_double.py",
)
ON_GPU = ("src/hifigemm/engines/cuda", "src/hifigemm/kernels")
ALSO = {
    "client_patches": ("examples/patches", "src/hifigemm/linalg"),
    "correct_rounding_cpu": ("src/hifigemm/numerics",),
}
"""The code that decides figures of a CPU, of a GPU, and of some files beside that."""

FIRST_VERSION = "0.1.0"
"""That of results whose description names none."""

Row = dict[str, str]


files: set[str] = set()
"""Files of results/ that tables have read."""


def rows_of(name: str, /, **wanted: str) -> list[Row]:
    """The rows of results/NAME.csv that have these values."""
    files.add(name)
    path = ROOT / "results" / f"{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return [
            row
            for row in csv.DictReader(file)
            if all(row[column] == value for column, value in wanted.items())
        ]


def row_of(name: str, /, **wanted: str) -> Row:
    """The one row of results/NAME.csv that has these values."""
    rows = rows_of(name, **wanted)
    if len(rows) != 1:
        raise ValueError(f"results/{name}.csv: {len(rows)} rows have {wanted}")
    return rows[0]


def digits(x: float, count: int = 3) -> str:
    """A number with so many significant digits, without an exponent."""
    rounded = float(f"{x:.{count}g}")
    return f"{rounded:.0f}" if rounded >= 10 ** (count - 1) else f"{rounded:g}"


def table(*rows: tuple[str, ...]) -> str:
    """A table of Markdown; the first row is its head."""
    head, *body = rows
    lines = [head, ("---",) * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def products() -> str:
    """Times of a product on a CPU and on an H200, and how they compare to native."""
    rows = [("product", "CPU, ms", "speed-up", "H200, ms", "speed-up")]
    for dtype in ("float64", "float32", "complex128"):
        for case, label in (
            ("native", "native: `a @ b`"),
            ("auto", "`hg.matmul(a, b)`"),
            ("auto@correct", '`accuracy="correct"`, the same bits on both'),
        ):
            on_cpu = row_of("headline_cpu", case=case, dtype=dtype)
            on_gpu = row_of("headline_h200", case=case, dtype=dtype)
            times = _speed(on_cpu, 2), _speed(on_gpu, 3)
            rows.append((f"{dtype}, {label}", *times[0], *times[1]))
    return table(*rows)


def _speed(row: Row, count: int) -> tuple[str, str]:
    """Milliseconds of sustained calls, and how many times as fast as native they are."""
    milliseconds = 1e3 * float(row["sustained_seconds"])
    return digits(milliseconds), digits(float(row["ratio_to_native"]), count)


def on_a_cpu() -> str:
    """Every way to a product on a CPU: time, products, and what is guaranteed."""
    names = {
        "native": "NumPy",
        "auto": "`hg.matmul(a, b)` (native, checked)",
        "correct": '`accuracy="correct"` (double-double sums)',
        "correct, ozaki2": '`accuracy="correct"` with `"ozaki2"`',
        "ozaki1 dp fp64": '`Ozaki1(product="fp64", mode="dp")`',
        "ozaki2 15 fast": '`Ozaki2(num_moduli=15, scaling="fast")`',
        "ozaki1 dp int8": '`Ozaki1(product="int8", mode="dp")`',
    }
    head = "n = 1024", "ms", "speed-up", "products", "correctly rounded", "guaranteed r"
    rows = [head]
    for way, label in names.items():
        row = row_of("correct_rounding_cpu", n="1024", way=way)
        bound = float(row["bound"]) if row["bound"] else None
        rows.append(
            (
                label,
                digits(1e3 * float(row["seconds_median"])),
                digits(1 / float(row["ratio_to_native"]), 2),
                row["num_products"],
                f"{100 * float(row['correct_entries']):.3g} %",
                "" if bound is None else f"{bound:.1e}" if bound else "0",
            )
        )
    return table(*rows)


def peers() -> str:
    """float64 products of this library and of cuBLAS on an H200, n = 8192."""
    names = {
        "native": "native",
        "auto": "`hg.matmul(a, b)`, bound in every entry",
        "ozaki2:14": '`Ozaki2(num_moduli=14, scaling="fast")`',
        "cublas-emulated": "cuBLAS 13.1 emulated, fixed",
        "cublas-emulated-dynamic": "cuBLAS 13.1 emulated, dynamic",
    }
    rows = [("product", "TFLOP/s", "speed-up", "error")]
    for case, label in names.items():
        row = row_of("headline_h200", case=case, dtype="float64")
        rate = digits(float(row["sustained_tflops"]))
        ratio = digits(float(row["ratio_to_native"]))
        rows.append((label, rate, ratio, f"{float(row['error']):.1e}"))
    return table(*rows)


GPU_PEERS = {
    "native": "native",
    "ozaki2:7": "ours, 7 moduli",
    "ozaki2:14": "ours, 14 moduli",
    "ozaki2:15": "ours, 15 moduli",
    "corrected:fp16": "ours, FP16 words",
    "auto": "ours, default",
    "auto@correct": "ours, correctly rounded",
    "cublas-emulated": "cuBLAS, 55 bits",
    "cublas-emulated-dynamic": "cuBLAS, dynamic",
    **{
        f"gemmul8-{count}-{mode}": f"GEMMul8, {count} moduli, {mode}"
        for count in (7, 8, 14, 15)
        for mode in ("fast", "accurate")
    },
}
"""Cases of the tables of other packages on a GPU, and their headings."""


def gpu_peers_float64() -> str:
    """float64 products of several packages on an H200."""
    return _gpu_peers("float64")


def gpu_peers_complex128() -> str:
    """complex128 products of several packages on an H200."""
    return _gpu_peers("complex128")


def gpu_peers_float32() -> str:
    """float32 products of several packages on an H200."""
    return _gpu_peers("float32")


def gpu_stacks() -> str:
    """Microseconds of stacks of float64 matrices of several packages on an H200."""
    names = {
        "native": "native",
        "ozaki2:14": "ours, 14 moduli",
        "ozaki2:15": "ours, 15 moduli",
        "auto@correct": "ours, correctly rounded",
        "cublas-13.1": "cuBLAS 13.1, 55 bits",
        "cublas-13.10": "cuBLAS 13.10, 55 bits",
        "cublas-13.10-dynamic": "cuBLAS 13.10, dynamic",
    }
    lines = rows_of("stacks_h200")
    stacks = dict.fromkeys((line["batch"], line["n"]) for line in lines)
    rows = [("product", *(f"{batch} of n = {n}" for batch, n in stacks))]
    for case, label in names.items():
        times = (float(line["us"]) for line in lines if line["case"] == case)
        rows.append((label, *map(digits, times)))
    return table(*rows)


def _gpu_peers(part: str) -> str:
    """Sustained TFLOP/s by size; the error and what a watt gives at n = 8192."""
    lines = rows_of("cuda_peers_h200", part=part)
    sizes = list(dict.fromkeys(line["n"] for line in lines))
    rows = [("product", "error", *(f"n = {n}" for n in sizes), "GFLOP/s per watt")]
    for case, label in GPU_PEERS.items():
        by_size = {line["n"]: line for line in lines if line["case"] == case}
        if not by_size:
            continue
        rates = (digits(float(by_size[n]["sustained_tflops"])) for n in sizes)
        large = by_size["8192"]
        error = f"{float(large['error']):.1e}"
        per_watt = digits(float(large["gflops_per_watt"]))
        rows.append((label, error, *rates, per_watt))
    return table(*rows)


def cpu_core() -> str:
    """Multiples of NumPy's time with the compiled core, by its sets, and without it."""
    files = ("cpu_core", "cpu_core_avx2", "cpu_core_off")
    tables = [{row["call"]: row for row in rows_of(name)} for name in files]
    rows = [("call", "NumPy, us", "AVX-512", "AVX2", "without the core")]
    for call, row in tables[0].items():
        ratios = (digits(float(lines[call]["ratio"]), 2) for lines in tables)
        rows.append((call, digits(float(row["numpy_us"]), 2), *ratios))
    return table(*rows)


def cpu_float32() -> str:
    """Milliseconds of large float32 products, native and correct, and multiples of the
    native time, with and without a float64 product.
    """
    rows = [("float32", "NumPy, ms", "correct, ms", "ratio", "the core's sums alone")]
    for row in rows_of("cpu_float32"):
        milliseconds = (
            digits(1e-3 * float(row[name]), 2) for name in ("numpy_us", "us")
        )
        sums = row["ratio_of_sums"]
        ratios = digits(float(row["ratio"]), 2), digits(float(sums), 2) if sums else ""
        rows.append((row["call"], *milliseconds, *ratios))
    return table(*rows)


def cpu_threads() -> str:
    """Milliseconds of correct products and pairs by the number of threads."""
    lines = rows_of("cpu_threads")
    counts = list(dict.fromkeys(row["threads"] for row in lines))
    times: dict[tuple[str, str], Row] = {}
    for row in lines:
        for way, column in (("NumPy", "numpy_ms"), (row["request"], "ms")):
            by_count = times.setdefault((row["shape"], way), {})
            by_count.setdefault(row["threads"], digits(float(row[column]), 2))
    rows = [("m x k x n", "threads:", *counts)]
    for (shape, way), by_count in times.items():
        rows.append((shape, way, *(by_count[count] for count in counts)))
    return table(*rows)


def cpu_products() -> str:
    """Square products of packages on a CPU, in microseconds."""
    names = {
        "numpy": "NumPy",
        "correct": '`accuracy="correct"`',
        "pair": '`result="pair"`',
        "accupy": "accupy",
        "python-flint": "python-flint",
        "mpmath": "mpmath",
    }
    squares = [row for row in rows_of("cpu_peers") if row["m"] != "1"]
    return times_of(squares, "n", names)


def cpu_dot_products() -> str:
    """Dot products of packages on a CPU, in microseconds."""
    names = {
        "numpy": "NumPy",
        "correct": '`accuracy="correct"`',
        "pair": '`result="pair"`',
        "accupy": "accupy",
        "sumprod": "sumprod",
        "fsum": "fsum",
        "python-flint": "python-flint",
        "mpmath": "mpmath",
    }
    dots = [row for row in rows_of("cpu_peers") if row["m"] == "1"]
    return times_of(dots, "terms", names)


def times_of(lines: list[Row], size: str, names: dict[str, str]) -> str:
    """Microseconds by size, of which k is the number, and by way."""
    measured: dict[str, Row] = {}
    for row in lines:
        microseconds = digits(1e6 * float(row["seconds_least"]), 2)
        measured.setdefault(row["k"], {})[row["way"]] = microseconds
    rows = [(size, *names.values())]
    for k, times in measured.items():
        rows.append((k, *(times.get(way, "") for way in names)))
    return table(*rows)


def patches() -> str:
    """What two packages gain by a patch: errors of their own ways and of ours."""
    problems = dict.fromkeys(row["problem"] for row in rows_of("client_patches"))
    rows = [("problem", "condition", "default", "its other way", "verified", "ms")]
    for problem in problems:
        default, other, verified = rows_of("client_patches", problem=problem)
        cells = [_size(row["error"]) for row in (default, other, verified)]
        times = [digits(1e3 * float(row["seconds"]), 2) for row in (default, verified)]
        package = verified["package"].split()[0]
        condition = _size(verified["condition"])
        rows.append((f"{package}: {problem}", condition, *cells, ", ".join(times)))
    return table(*rows)


def _size(text: str) -> str:
    """A number as an order of magnitude with one digit."""
    number = float(text)
    return f"{number:.0e}" if number else "0"


def cpu_requests() -> str:
    """Square float64 products on a CPU by size and request, over NumPy's time."""
    calls = {row["call"]: row for row in rows_of("cpu_core")}
    rows = [("n", "NumPy, us", '`"correct"`', '`result="pair"`')]
    for n in ("4", "64", "256", "1000"):
        correct = calls[f"{n} x {n}"]
        requests = correct, calls[f"{n} x {n} pair"]
        ratios = (digits(float(row["ratio"]), 2) for row in requests)
        rows.append((n, digits(float(correct["numpy_us"]), 2), *ratios))
    return table(*rows)


def cpu_types() -> str:
    """Correct products of float32 on a CPU by size, over NumPy's time."""
    rows = [("n, float32", "NumPy, ms", '`"correct"`')]
    for n in ("128", "256", "1024", "2048"):
        row = row_of("cpu_float32", call=f"{n} normal")
        milliseconds = digits(1e-3 * float(row["numpy_us"]), 2)
        rows.append((n, milliseconds, digits(float(row["ratio"]), 2)))
    return table(*rows)


def linalg_requests() -> str:
    """Functions of linalg on a CPU by size, over the time of NumPy's."""
    names = {
        "solve": "`solve`",
        "inv": "`inv`",
        "det": "`det`, over `slogdet`",
        "is_positive_definite": "`is_positive_definite`, over `cholesky`",
        "eigvalsh": "`eigvalsh`, over `eigh`",
        "svdvals": "`svdvals`, over `svd`",
    }
    sizes = "8", "32", "64", "1024"
    rows = [("function", *(f"n = {n}" for n in sizes))]
    for name, label in names.items():
        found = (
            row_of("off_the_road_linalg_cpu", name=f"linalg.{name}, n = {n}")
            for n in sizes
        )
        rows.append((label, *(digits(float(row["ratio"]), 2) for row in found)))
    return table(*rows)


def linalg_calls() -> str:
    """Inverses, structured systems, least squares and stacks, over NumPy's time."""
    names = {
        "inv, ordinary": "`inv`",
        "inv, condition 1e10": "`inv`, condition 10¹⁰",
        "inv, triangular": "`inv` of a triangle",
        "solve, 3 diagonals": "`solve`, 3 diagonals",
        "solve, 41 diagonals": "`solve`, 41 diagonals",
        "solve, 201 diagonals": "`solve`, 201 diagonals",
        "solve, a triangle": "`solve`, a triangle",
        "lstsq": "`lstsq`",
        "solve of 100 systems": "`solve`, 100 systems",
        "solve of 65537 systems": "`solve`, 65,537 systems",
        "det of 1000 matrices": "`det`, 1,000 matrices",
        "is_positive_definite of 1000 matrices": "`is_positive_definite`, 1,000",
        "lstsq of 1000 matrices": "`lstsq`, 1,000, over a loop",
    }
    found = rows_of("off_the_road_linalg_cpu")
    rows = [("call", "size", "NumPy, us", "multiple")]
    for name, label in names.items():
        start = f"linalg.{name}, "
        for row in found:
            size = row["name"].removeprefix(start)
            if size != row["name"] and re.fullmatch(r"(n = )?\d+( x \d+)?", size):
                times = digits(float(row["plain_us"])), digits(float(row["ratio"]), 2)
                rows.append((label, size, *times))
    return table(*rows)


def linalg_solve() -> str:
    """Systems of three sizes on a CPU, over the time of NumPy's."""
    columns = {
        "`solve`, calls in turns": "ratio of least",
        "`solve`, the same call repeated": "ratio in a row",
        '`solve`, `accuracy="correct"`, in turns': "ratio of correct",
        "crlin, in turns": "ratio of crlin",
    }
    found = rows_of("linalg_solve_cpu", dtype="float64")
    rows = [("call", *(f"n = {row['n']}" for row in found))]
    for label, column in columns.items():
        rows.append((label, *(digits(float(row[column]), 2) for row in found)))
    return table(*rows)


def linalg_gpu() -> str:
    """Systems and spectra on an H200 by size, over the time of torch.linalg."""
    sizes = "64", "128", "256", "512", "1024", "2048", "4096"
    doubles = rows_of("linalg_solve_h200", what="solve", dtype="float64")
    singles = rows_of("linalg_solve_h200", what="solve", dtype="float32")
    eigenvalues = rows_of("linalg_spectra_h200", function="eigvalsh")
    singular_values = rows_of("linalg_spectra_h200", function="svdvals")
    lines = {
        "`solve`, float64": (doubles, "ratio of least"),
        '`solve`, float64, `"correct"`': (doubles, "ratio of correct"),
        "`solve`, float32": (singles, "ratio of least"),
        "`eigvalsh`, over `eigh`": (eigenvalues, "ratio of least"),
        "`svdvals`, over `svd`": (singular_values, "ratio of least"),
    }
    rows = [("function", *(f"n = {n}" for n in sizes))]
    for label, (found, column) in lines.items():
        ratios = {row["n"]: digits(float(row[column]), 2) for row in found}
        rows.append((label, *(ratios.get(n, "") for n in sizes)))
    return table(*rows)


def linalg_stacks_gpu() -> str:
    """Stacks of small matrices on an H200: milliseconds, and over torch."""
    stacks = (("1024", "3"), ("65537", "3"), ("32768", "8"))
    heads = [f"{int(count):,} of n = {n}" for count, n in stacks]
    rows = [("function", *heads)]
    for function in ("solve", "inv", "det", "is_positive_definite"):
        cells = []
        for count, n in stacks:
            name = f"tensors, linalg.{function} of {count} systems, n = {n}"
            row = row_of("linalg_stacks_h200", name=name)
            milliseconds = digits(float(row["us"]) / 1e3, 2)
            cells.append(f"{milliseconds} ({digits(float(row['ratio']), 2)})")
        rows.append((f"`{function}`", *cells))
    return table(*rows)


SIZES = ("1024", "2048", "4096", "8192", "16384")
"""The n of most tables of a GPU."""


def gpu_requests() -> str:
    """Requests on an H200 by size: native TFLOP/s, and rates over the native one."""
    head = (
        "n",
        "float64 native",
        "default",
        '`"correct"`',
        "float32 native",
        "default",
        "complex128 native",
        "default",
        '`"correct"`',
    )
    rows = [head]
    for n in SIZES:
        correct = _correct_file(n)
        rows.append(
            (
                n,
                _sustained("dgemm_h200", case="native", n=n),
                _over_native("dgemm_h200", case="auto", n=n),
                _over_native(correct, case="auto@correct", n=n),
                _sustained("sgemm_h200", part="times", case="native", n=n),
                _over_native("sgemm_h200", part="times", case="auto", n=n),
                _sustained("zgemm_h200", case="native", n=n),
                _over_native("zgemm_h200", case="auto", n=n),
                _over_native("zgemm_h200", case="auto@correct", n=n),
            )
        )
    return table(*rows)


def _correct_file(n: str) -> str:
    """The file of correctly rounded float64 products of size n on an H200."""
    return "dgemm_correct_16384_h200" if n == "16384" else "dgemm_correct_h200"


def _sustained(name: str, **wanted: str) -> str:
    """Sustained TFLOP/s of a case."""
    return digits(float(row_of(name, **wanted)["sustained_tflops"]), 3)


def _over_native(name: str, **wanted: str) -> str:
    """The rate of a case over the native one."""
    return digits(float(row_of(name, **wanted)["ratio_to_native"]), 2)


def gpu_small() -> str:
    """Microseconds of small float64 calls from Python on an H200."""
    names = {
        "native": "native",
        "auto": "default",
        "auto@1e-12": "`1e-12`",
        "auto@Relative(1e-12)": "`hg.Relative(1e-12)`",
        "auto@correct": '`"correct"`',
    }
    rows = [("n", *names.values())]
    for n in ("256", "1024", "2048"):
        found = (row_of("accuracies_h200", case=case, n=n) for case in names)
        times = (digits(1e6 * float(row["sustained_seconds"]), 3) for row in found)
        rows.append((n, *times))
    return table(*rows)


REQUESTS = {
    "None": "None",
    "1e-6": "`1e-6`",
    "1e-12": "`1e-12`",
    "1e-14": "`1e-14`",
    "Relative(1e-12)": "`hg.Relative(1e-12)`",
    "correct": '`"correct"`',
    "pair": "pair",
}
"""Requests as files of costs name them, and as pages do."""


def _request_costs(
    name: str, families: Iterable[str], requests: Sequence[str] = tuple(REQUESTS)
) -> str:
    """Milliseconds by family of operands and by request."""
    rows = [("family", *(REQUESTS[request] for request in requests))]
    for family in families:
        found = (row_of(name, family=family, request=request) for request in requests)
        times = (digits(1e3 * float(row["seconds_least"]), 3) for row in found)
        rows.append((family.replace("^", r"\^"), *times))
    return table(*rows)


def gpu_exponents() -> str:
    """What the width of exponents costs on an H100, n = 4096."""
    families = "phi 0.5", "phi 2", "phi 4", "phi 8", "phi 20"
    requests = "None", "1e-6", "1e-12", "correct", "pair"
    return _request_costs("request_costs_h100", families, requests)


def request_costs_h100() -> str:
    """What each request costs for each family of operands on an H100, n = 4096."""
    families = dict.fromkeys(row["family"] for row in rows_of("request_costs_h100"))
    return _request_costs("request_costs_h100", families)


def request_costs_cpu() -> str:
    """What each request costs for each family of operands without the core, n = 256."""
    families = dict.fromkeys(row["family"] for row in rows_of("request_costs_cpu"))
    return _request_costs("request_costs_cpu", families)


def four_gpus() -> str:
    """Products on one and on four H200 cards: milliseconds, and the gain."""
    head = "n", "one GPU, ms", "four GPUs, ms", "gain", '`"correct"`, four GPUs, ms'
    rows = [(*head, "native DTensors, four GPUs, ms")]
    for n in ("4096", "8192", "16384", "32768"):
        cases = "one card", "0x0", "correct", "native"
        found = (row_of("mesh_calls_4_h200", n=n, case=case) for case in cases)
        one, four, correct, native = (float(row["ms"]) for row in found)
        times = (digits(ms, 3) for ms in (correct, native))
        rows.append((n, digits(one), digits(four), digits(one / four, 2), *times))
    return table(*rows)


def first_calls() -> str:
    """Seconds of first calls on an H200, with an empty and a filled cache."""
    names = {
        "float64 1024 NN accuracy=correct": '`"correct"`, float64, n = 1024',
        "float64 4096 NN": "default, float64, n = 4096",
        "float32 2048 NN": "default, float32, n = 2048",
        "complex128 4096 TN": "default, complex128, n = 4096",
        "program ended": "a program of 51 kinds of calls, in all",
    }
    rows = [("first call", "empty cache, s", "cache of an earlier process, s")]
    for call, label in names.items():
        row = row_of("first_calls_h200", call=call)
        seconds = (
            digits(float(row[name]), 2) for name in ("cold_seconds", "second_seconds")
        )
        rows.append((label, *seconds))
    return table(*rows)


def _rates(name: str, cases: dict[str, str], **wanted: str) -> str:
    """Sustained TFLOP/s by size and case; in brackets, those of a burst."""
    rows = [("n", *cases.values())]
    for n in SIZES:
        cells = []
        for case in cases:
            row = row_of(name, case=case, n=n, **wanted)
            rates = (
                digits(float(row[f"{kind}_tflops"]), 3)
                for kind in ("sustained", "burst")
            )
            cells.append("{} ({})".format(*rates))
        rows.append((n, *cells))
    return table(*rows)


def gpu_float64() -> str:
    """Schemes for float64 on an H200 by size."""
    cases = {
        "native": "native",
        "auto": "default",
        "ozaki2:14": "14 moduli",
        "ozaki2:15": "15 moduli",
        "ozaki1:7": "7 slices",
        "cublas-emulated": "cuBLAS 13.1, fixed",
        "cublas-emulated-dynamic": "cuBLAS 13.1, dynamic",
    }
    return _rates("dgemm_h200", cases)


def gpu_correct() -> str:
    """Correctly rounded float64 products on an H200 by size."""
    rows = [("n", "native", '`"correct"`')]
    for n in SIZES:
        name = _correct_file(n)
        cases = "native", "auto@correct"
        rows.append((n, *(_sustained(name, case=case, n=n) for case in cases)))
    return table(*rows)


def gpu_complex128() -> str:
    """Schemes for complex128 on an H200 by size."""
    cases = {
        "native": "native",
        "auto": "default",
        "ozaki2:14": "14 moduli",
        "ozaki2:15": "15 moduli",
        "auto@correct": '`"correct"`',
    }
    return _rates("zgemm_h200", cases)


FLOAT32_CASES = {
    "native": "native",
    "auto": "default",
    "corrected:fp16": '`Corrected("fp16")`',
    "corrected:tf32": '`Corrected("tf32")`',
    "ozaki2:7": "7 moduli",
    "ozaki1:3": "3 slices",
}
"""Cases of the float32 tables of a GPU, and their headings."""


def gpu_float32() -> str:
    """Schemes for float32 on an H200 by size."""
    return _rates("sgemm_h200", FLOAT32_CASES, part="times")


def gpu_float32_errors() -> str:
    """Errors of schemes for float32 over |A||B|, on an H200, n = 2048."""
    families = {
        "uniform": "both signs",
        "uniform01": "one sign",
        "type1": "type 1",
        "type2": "type 2",
        "type3": "type 3",
        "type4": "type 4",
    }
    rows = [("entries", *FLOAT32_CASES.values())]
    for family, label in families.items():
        cells = []
        for case in FLOAT32_CASES:
            row = row_of("sgemm_h200", case=case, n="2048", family=family)
            cells.append(f"{float(row['error']):.1e}")
        rows.append((label, *cells))
    return table(*rows)


def gpu_h100() -> str:
    """Products on an H100 by size, and rates over the native one."""
    names = (
        ("dgemm_h100", "native", "float64 native"),
        ("dgemm_h100", "auto", "default"),
        ("dgemm_h100", "ozaki2:14", "14 moduli"),
        ("sgemm_h100", "native", "float32 native"),
        ("sgemm_h100", "auto", "default"),
    )
    rows = [("n", *(label for _, _, label in names))]
    for n in SIZES:
        cells = []
        for name, case, _ in names:
            is_native = case == "native"
            rate = _sustained(name, case=case, n=n)
            gain = "" if is_native else f", {_over_native(name, case=case, n=n)}"
            cells.append(rate + gain)
        rows.append((n, *cells))
    return table(*rows)


def syrk() -> str:
    """Milliseconds of matmul(a, a.mT) and of syrk on an H200, and the gain."""
    columns = {
        ("float64", "level"): "float64",
        ("float64", "14 moduli"): "float64, 14 moduli",
        ("float64", "correct"): 'float64, `"correct"`',
        ("float32", "level"): "float32",
        ("complex128", "level"): "complex128",
    }
    lines = {
        (row["n"], row["dtype"], row["options"]): row for row in rows_of("syrk_h200")
    }
    rows = [("n", *columns.values())]
    for n in SIZES[1:]:
        cells = []
        for column in columns:
            row = lines.get((n, *column))
            if row is None:
                cells.append("")
                continue
            both = (digits(float(row[f"{way}_ms"]), 3) for way in ("matmul", "syrk"))
            cells.append(f"{', '.join(both)}; {digits(float(row['ratio']), 3)}")
        rows.append((n, *cells))
    return table(*rows)


def along_k() -> str:
    """What operands with units cost on an H200: without D, and with D over 60 bits."""
    names = {
        "default": ("default", "default D"),
        '`"correct"`': ("correct", "correct D"),
        "14 moduli": ("14 fast", "14 inner D"),
        '`Corrected("fp16")`': ("fp16", "fp16 inner D"),
    }
    rows = [("call, n = 4096", "A times B, ms", "A D times D⁻¹ B, ms")]
    for label, calls in names.items():
        found = (
            row_of("scaling_along_k_copies_h200", n="4096", call=call) for call in calls
        )
        rows.append((label, *(digits(float(row["after_ms"]), 3) for row in found)))
    return table(*rows)


def along_k_errors() -> str:
    """Errors of A D times D⁻¹ B with and without scaling along k, n = 8192."""
    spans = "0", "20", "60", "200", "600"
    rows = [("bits that D spans", *spans)]
    for count in ("14", "15"):
        for scaling in ("fast", "inner"):
            cells = []
            for span in spans:
                wanted = {"n": "8192", "num_moduli": count, "span": span}
                row = row_of("inner_scaling_errors_h100", **wanted)
                cells.append(f"{float(row[f'error_{scaling}']):.1e}")
            rows.append((f'{count} moduli, "{scaling}"', *cells))
    return table(*rows)


def prepared() -> str:
    """Milliseconds of products with prepared operands on an H200."""
    kinds = {
        'float64 "correct"': 'float64, `"correct"`',
        "float64 14 moduli": "float64, 14 moduli",
        "float64 default": "float64, default",
        'float32 "correct"': 'float32, `"correct"`',
        "float32 Corrected": 'float32, `Corrected("fp16")`',
    }
    head = "request", "n", "plain", "A prepared", "both prepared", "`hg.prepare(a)`"
    rows = [head]
    for kind, label in kinds.items():
        for n in ("2048", "8192"):
            found = [
                row_of(
                    "off_the_road_since_ba551b3_h200",
                    name=f"tensors, {kind}, n = {n}, {way}",
                )
                for way in ("A prepared", "both prepared", "prepare(a)")
            ]
            plain = digits(1e-3 * float(found[0]["plain_us"]), 3)
            times = (digits(1e-3 * float(row["us"]), 3) for row in found)
            rows.append((label, n, plain, *times))
    return table(*rows)


def heads() -> str:
    """A head of a language model on an H200: milliseconds, and errors over |A||B|."""
    ways = {
        "torch, ieee": "`torch.mm`, IEEE float32",
        "torch, tf32": "`torch.mm`, TF32",
        "torch, bf16": "`torch.mm`, bfloat16",
        "hg, default": "default",
        "hg, 1e-6": "`1e-6`",
        "hg, invariant fp32": '`Invariant("fp32")`',
        "hg, invariant fp32, prepared": "the same, weights prepared",
        "hg, three slices": "`Ozaki1(num_slices=3)`",
        "hg, three slices, prepared": "the same, weights prepared",
        "hg, correct": '`"correct"`',
    }
    operands = "float32 by float32", "bfloat16 by bfloat16", "float32 by bfloat16"
    rows = [("ms; error", *operands)]
    lines = {
        (row["operands"], row["way"]): row
        for row in rows_of("heads_h200", part="head", mode="eager")
    }
    for way, label in ways.items():
        cells = []
        for pair in operands:
            row = lines.get((pair, way))
            if row is None:
                cells.append("")
                continue
            milliseconds = digits(1e3 * float(row["least"]), 3)
            cells.append(f"{milliseconds}; {float(row['error']):.1e}")
        rows.append((label, *cells))
    return table(*rows)


def squares() -> str:
    """Square matrices of bfloat16 on an H200: TFLOP/s, and errors over |A||B|."""
    ways = {
        "torch, bf16": "`torch.mm`, bfloat16",
        "Triton, bf16, fixed order": "a Triton kernel with a fixed order of additions",
        "torch, ieee": "`torch.mm`, IEEE float32",
        "hg, default": "default",
        "hg, three slices": "`Ozaki1(num_slices=3)`",
        "hg, three slices, prepared": "the same, one operand prepared",
        "hg, invariant fp32": '`Invariant("fp32")`',
        "hg, correct": '`"correct"`',
    }
    sizes = "4096", "8192"
    rows = [("TFLOP/s; error", *(f"n = {n}" for n in sizes))]
    for way, label in ways.items():
        cells = []
        for n in sizes:
            (row,) = rows_of("heads_h200", part="square", n=n, way=way)
            rate = digits(float(row["TFLOP/s"]), 3)
            cells.append(f"{rate}; {float(row['error']):.1e}")
        rows.append((label, *cells))
    return table(*rows)


def ozaki1_modes() -> str:
    """The modes of Ozaki scheme I on an H200, n = 10240: products and TFLOP/s."""
    rows = [("mode", "products", "sustained", "burst")]
    for mode in ("sp", "dp", "correct"):
        for product in ("int8", "fp16", "fp64"):
            found = rows_of(
                "ozaki1_programs_h200",
                n="10240",
                mode=mode,
                product=product,
            )
            measured = [row for row in found if row["num_products"]]
            for row in measured:
                rates = (
                    digits(float(row[f"{kind}_tflops"]), 3)
                    for kind in ("sustained", "best")
                )
                scheme = f'`Ozaki1("{product}", mode="{mode}")`'
                rows.append((scheme, row["num_products"], *rates))
    return table(*rows)


def shapes() -> str:
    """The default on an H200 at other shapes, over native, in CUDA graphs."""
    rows = [("m x k x n", "float64", "float32")]
    gains: dict[str, Row] = {}
    for row in rows_of("shapes_h200", case="auto", mode="graph"):
        shape = f"{row['m']} x {row['k']} x {row['n']}"
        if row["batch"] != "1":
            shape = f"{row['batch']} of {shape}"
        gain = digits(float(row["ratio_to_native"]), 3)
        gains.setdefault(shape, {})[row["dtype"]] = gain
    for shape, by_dtype in gains.items():
        rows.append((shape, by_dtype.get("float64", ""), by_dtype.get("float32", "")))
    return table(*rows)


def gemm_calls() -> str:
    """Microseconds of gemm with C from Python on an H100, and of torch.addmm."""
    rows = [("n", "dtype", "`torch.addmm`, us", "`hg.gemm`, us")]
    calls = {"commit": "3765ae5", "call": "gemm(-1, 1, out=c)"}
    for row in rows_of("gemm_calls_h100", **calls):
        times = (digits(float(row[f"{way}_us"]), 2) for way in ("torch", "ours"))
        rows.append((row["n"], row["dtype"], *times))
    return table(*rows)


def pairs() -> str:
    """Milliseconds of pairs and of gemm with C on an H100, the second of two runs."""
    names = "correct", "pair", "gemm(-1, 1)"
    rows = [("n", '`"correct"`', "pair", '`gemm(-1, 1, "correct")`')]
    for n in ("64", "1024", "4096"):
        wanted = {"n": n, "dtype": "float64", "run": "2"}
        found = (
            next(row for row in rows_of("pairs_h100", call=call, **wanted) if row["ms"])
            for call in names
        )
        rows.append((n, *(digits(float(row["ms"]), 3) for row in found)))
    return table(*rows)


def long_sums() -> str:
    """Few entries with a long k on an H100, in milliseconds."""
    rows = [("m = n", "k", "native", "14 moduli", '`"correct"`')]
    columns = "native_ms", "moduli_14_ms", "correct_ms"
    for row in rows_of("long_sums_h100", commit="0a7a53a"):
        times = (digits(float(row[column]), 3) for column in columns)
        rows.append((row["m"], row["k"], *times))
    return table(*rows)


def word_programs() -> str:
    """Products of words on an H200, n = 8192, in sustained TFLOP/s."""
    names = {
        "tf32:3": '`Multiword("tf32", 2, 3)`, "3xTF32"',
        "tf32:4": '`Multiword("tf32", 2, 4)`, "4xTF32"',
        "tf32:1": '`Multiword("tf32", 1, 1)`',
        "fp16:3": '`Multiword("fp16", 2, 3)`',
        "fp16:1": '`Multiword("fp16", 1, 1)`',
        "bf16:6": '`Multiword("bf16", 3, 6)`',
        "tf64:3": '`Multiword("fp32", 2, 3)`, "TF64"',
    }
    rows = [("scheme", "TFLOP/s")]
    wanted = {"n": "8192", "kind": "sustained"}
    for scheme, label in names.items():
        row = rows_of("words_programs_h200", scheme=scheme, **wanted)[0]
        rows.append((label, digits(float(row["after_tflops"]), 3)))
    return table(*rows)


def int8_product() -> str:
    """The INT8 kernel of Hopper on an H200, 14 moduli: TOP/s sustained and in bursts."""
    rows = [("m x k x n", "sustained", "burst")]
    for row in rows_of("int8_product_h200"):
        if row["tile"].startswith("hopper"):
            shape = f"{row['m']} x {row['k']} x {row['n']}"
            rates = (
                digits(float(row[f"{kind}_tops"]), 4) for kind in ("sustained", "burst")
            )
            rows.append((shape, *rates))
    return table(*rows)


def stages() -> str:
    """Microseconds of the stages of 14 moduli on an H200, over the floor of each."""
    names = "scaling and residues", "INT8 products", "reconstruction"
    rows = [("n", *names)]
    for n in SIZES:
        cells = []
        for stage in names:
            row = row_of("dgemm_h200_stages", case="ozaki2:14", n=n, stage=stage)
            microseconds = digits(float(row["microseconds"]))
            cells.append(f"{microseconds}, {digits(float(row['ratio_to_floor']), 3)}")
        rows.append((n, *cells))
    return table(*rows)


TABLES: dict[str, Callable[[], str]] = {
    "products": products,
    "on_a_cpu": on_a_cpu,
    "peers": peers,
    "gpu_peers_float64": gpu_peers_float64,
    "gpu_peers_complex128": gpu_peers_complex128,
    "gpu_peers_float32": gpu_peers_float32,
    "gpu_stacks": gpu_stacks,
    "cpu_core": cpu_core,
    "cpu_float32": cpu_float32,
    "cpu_threads": cpu_threads,
    "cpu_products": cpu_products,
    "cpu_dot_products": cpu_dot_products,
    "patches": patches,
    "cpu_requests": cpu_requests,
    "cpu_types": cpu_types,
    "linalg_requests": linalg_requests,
    "linalg_calls": linalg_calls,
    "linalg_solve": linalg_solve,
    "linalg_gpu": linalg_gpu,
    "linalg_stacks_gpu": linalg_stacks_gpu,
    "gpu_requests": gpu_requests,
    "gpu_small": gpu_small,
    "gpu_exponents": gpu_exponents,
    "request_costs_h100": request_costs_h100,
    "request_costs_cpu": request_costs_cpu,
    "four_gpus": four_gpus,
    "first_calls": first_calls,
    "gpu_float64": gpu_float64,
    "gpu_correct": gpu_correct,
    "gpu_complex128": gpu_complex128,
    "gpu_float32": gpu_float32,
    "gpu_float32_errors": gpu_float32_errors,
    "gpu_h100": gpu_h100,
    "syrk": syrk,
    "along_k": along_k,
    "along_k_errors": along_k_errors,
    "prepared": prepared,
    "heads": heads,
    "squares": squares,
    "ozaki1_modes": ozaki1_modes,
    "shapes": shapes,
    "gemm_calls": gemm_calls,
    "pairs": pairs,
    "long_sums": long_sums,
    "word_programs": word_programs,
    "int8_product": int8_product,
    "stages": stages,
}


MEASURED_ONCE = frozenset(
    {
        "along_k",
        "along_k_errors",
        "cpu_requests",
        "cpu_types",
        "first_calls",
        "four_gpus",
        "gemm_calls",
        "gpu_complex128",
        "gpu_correct",
        "gpu_exponents",
        "gpu_float32",
        "gpu_float32_errors",
        "gpu_float64",
        "gpu_h100",
        "gpu_peers_complex128",
        "gpu_peers_float32",
        "gpu_peers_float64",
        "gpu_requests",
        "gpu_small",
        "gpu_stacks",
        "heads",
        "int8_product",
        "linalg_calls",
        "linalg_gpu",
        "linalg_requests",
        "linalg_solve",
        "long_sums",
        "ozaki1_modes",
        "pairs",
        "prepared",
        "request_costs_cpu",
        "request_costs_h100",
        "shapes",
        "squares",
        "stages",
        "syrk",
        "word_programs",
    }
)
"""Tables of studies: their pages say the day, and a release does not repeat them."""


def with_figures(text: str) -> str:
    """The text of a page with every marked table as the CSV files have it."""
    return MARK.sub(
        lambda mark: f"<!-- figures: {mark[1]} -->\n\n{TABLES[mark[1]]()}", text
    )


def measured_again() -> list[str]:
    """The files of results/ that a release measures again."""
    files.clear()
    for name, write in TABLES.items():
        if name not in MEASURED_ONCE:
            write()
    return sorted(files)


def described(name: str) -> dict[str, Any]:
    """What results/NAME.csv was measured with."""
    path = ROOT / "results" / f"{name}.env.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return {"hifigemm": FIRST_VERSION} | found


def changes_since(name: str) -> list[str]:
    """The commits that changed the code behind results/NAME.csv after it was measured."""
    paths = ON_GPU if re.search(r"_h[12]00$", name) else ON_CPU
    commit = described(name)["commit"]
    if not commit:
        return [f"results/{name}.csv: it is not said which code was measured"]
    commits = f"{commit.rstrip('+')}..HEAD"
    command = [
        "git",
        "log",
        "--format=%h %s",
        commits,
        "--",
        *paths,
        *ALSO.get(name, ()),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stderr if done.returncode else done.stdout
    return [f"results/{name}.csv: {line}" for line in lines.splitlines()]


def main() -> int:
    """Print the pages that differ, or write them; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the tables there")
    what.add_argument("--fresh", action="store_true", help="is the code as measured?")
    options = parser.parse_args()
    if options.fresh:
        changes = [line for name in measured_again() for line in changes_since(name)]
        print("\n".join(changes) or "figures: the code is as it was measured")
        return int(bool(changes))
    is_writing = options.write
    different = []
    for name in PAGES:
        path = ROOT / name
        text = path.read_text("utf-8") if path.exists() else ""
        if (new := with_figures(text)) == text:
            continue
        different.append(name)
        if is_writing:
            path.write_text(new, "utf-8")
    print("\n".join(different) or "figures: all pages say what results/ say")
    return int(bool(different) and not is_writing)


if __name__ == "__main__":
    sys.exit(main())
