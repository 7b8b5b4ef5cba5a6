"""Tables of pages whose figures come from results/. Usage: python tools/figures.py
[--write]

A table behind `<!-- figures: NAME -->` is what the function NAME of this module makes
of the CSV files. `--write` puts it there; without it the exit status is 1 where a page
says something else.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/peers.md", "docs/performance.md", "paper/paper.md")

MARK = re.compile(r"^<!-- figures: (\w+) -->\n\n((?:\|.*\n)+)", re.MULTILINE)

SQUARE = {
    **dict.fromkeys("mnk", "8192"),
    "batch": "1",
    "status": "timed",
    "family": "phi0.5",
    "mode": "eager",
}
"""Of timed calls on a GPU."""

Row = dict[str, str]


def rows_of(name: str, **wanted: str) -> list[Row]:
    """The rows of results/NAME.csv that have these values."""
    path = ROOT / "results" / f"{name}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        return [
            row
            for row in csv.DictReader(file)
            if all(row[column] == value for column, value in wanted.items())
        ]


def row_of(name: str, **wanted: str) -> Row:
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
    for label, way, file, case in (
        ("float64, native: `a @ b`", "native", "dgemm_h200", "native"),
        ("float64, `hg.matmul(a, b)`, checked", "auto", "dgemm_h200", "auto"),
        (
            'float64, `accuracy="correct"`, the same bits on both',
            "correct",
            "dgemm_correct_h200",
            "auto@correct",
        ),
        ("float32, native", "", "sgemm_h200", "native"),
        ("float32, `hg.matmul(a, b)`", "", "sgemm_h200", "auto"),
        ("complex128, native", "", "zgemm_h200", "native"),
        ("complex128, `hg.matmul(a, b)`", "", "zgemm_h200", "auto"),
    ):
        rows.append((label, *_on_cpu(way), *_on_gpu(file, case)))
    return table(*rows)


def _on_cpu(way: str) -> tuple[str, str]:
    if not way:
        return "", ""
    row = row_of("correct_rounding_cpu", n="1024", way=way)
    milliseconds = 1e3 * float(row["seconds_median"])
    return digits(milliseconds), digits(1 / float(row["ratio_to_native"]), 2)


def _on_gpu(file: str, case: str) -> tuple[str, str]:
    """Sustained, eager calls at n = 8192, one that is its own native product too."""
    dtype = {"d": "float64", "s": "float32", "z": "complex128"}[file[0]]
    row = row_of(file, case=case, **SQUARE, dtype=dtype)
    milliseconds = 1e3 * float(row["sustained_seconds"])
    return digits(milliseconds), digits(float(row["ratio_to_native"]), 3)


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
        "ozaki2:14": "`Ozaki2(num_moduli=14)`",
        "cublas-emulated": "cuBLAS 13.1 emulated, fixed",
        "cublas-emulated-dynamic": "cuBLAS 13.1 emulated, dynamic",
    }
    rows = [("product", "TFLOP/s", "speed-up", "error")]
    for case, label in names.items():
        row = row_of("dgemm_h200", case=case, **SQUARE, dtype="float64")
        rate = digits(float(row["sustained_tflops"]))
        ratio = digits(float(row["ratio_to_native"]))
        rows.append((label, rate, ratio, f"{float(row['error']):.1e}"))
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


TABLES: dict[str, Callable[[], str]] = {
    "products": products,
    "on_a_cpu": on_a_cpu,
    "peers": peers,
    "cpu_core": cpu_core,
    "cpu_threads": cpu_threads,
    "cpu_products": cpu_products,
    "cpu_dot_products": cpu_dot_products,
}


def with_figures(text: str) -> str:
    """The text of a page with every marked table as the CSV files have it."""
    return MARK.sub(
        lambda mark: f"<!-- figures: {mark[1]} -->\n\n{TABLES[mark[1]]()}", text
    )


def main() -> int:
    """Print the pages that differ, or write them; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables there")
    is_writing = parser.parse_args().write
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
