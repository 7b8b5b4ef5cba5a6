"""Tables of pages whose figures come from results/. Usage: python tools/figures.py
[--write | --fresh]

A table behind `<!-- figures: NAME -->` is what the function NAME of this module makes
of the CSV files. `--write` puts it there; without it the exit status is 1 where a page
says something else. `--fresh` names the commits that changed the measured code after
its figures were taken; a release needs that there are none.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/in-your-program.md",
    "docs/peers.md",
    "docs/performance.md",
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


def rows_of(name: str, **wanted: str) -> list[Row]:
    """The rows of results/NAME.csv that have these values."""
    files.add(name)
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
    """Times of a product on a CPU and on an H100, and how they compare to native."""
    rows = [("product", "CPU, ms", "speed-up", "H100, ms", "speed-up")]
    for dtype in ("float64", "float32", "complex128"):
        for case, label in (
            ("native", "native: `a @ b`"),
            ("auto", "`hg.matmul(a, b)`"),
            ("auto@correct", '`accuracy="correct"`, the same bits on both'),
        ):
            on_cpu = row_of("headline_cpu", case=case, dtype=dtype)
            on_gpu = row_of("headline_h100", case=case, dtype=dtype)
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
    """float64 products of this library and of cuBLAS on an H100, n = 8192."""
    names = {
        "native": "native",
        "auto": "`hg.matmul(a, b)`, bound in every entry",
        "ozaki2:14": "`Ozaki2(num_moduli=14)`",
        "cublas-emulated": "cuBLAS 13.1 emulated, fixed",
        "cublas-emulated-dynamic": "cuBLAS 13.1 emulated, dynamic",
    }
    rows = [("product", "TFLOP/s", "speed-up", "error")]
    for case, label in names.items():
        row = row_of("headline_h100", case=case, dtype="float64")
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


TABLES: dict[str, Callable[[], str]] = {
    "products": products,
    "on_a_cpu": on_a_cpu,
    "peers": peers,
    "cpu_core": cpu_core,
    "cpu_float32": cpu_float32,
    "cpu_threads": cpu_threads,
    "cpu_products": cpu_products,
    "cpu_dot_products": cpu_dot_products,
    "patches": patches,
}


def with_figures(text: str) -> str:
    """The text of a page with every marked table as the CSV files have it."""
    return MARK.sub(
        lambda mark: f"<!-- figures: {mark[1]} -->\n\n{TABLES[mark[1]]()}", text
    )


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
        for write in TABLES.values():
            write()
        changes = [line for name in sorted(files) for line in changes_since(name)]
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
