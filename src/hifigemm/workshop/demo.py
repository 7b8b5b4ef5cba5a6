"""`hifigemm demo`: every scheme and the native product against the exact product, as a
table, a CSV file and a picture.

The phi matrices are those of [MOOI20] (doi:10.1007/978-3-030-50743-5_12); a Hilbert
matrix times its inverse shows what cancellation does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg
from hifigemm.testing import (
    ExactProduct,
    Judgement,
    hilbert,
    inverse_hilbert,
    judge,
    phi_matrix,
)
from hifigemm.workshop.atomic import (
    check_results,
    check_writable,
    replacing,
    write_results,
)
from hifigemm.workshop.errors import InputError, complain
from hifigemm.workshop.measuring.arrays import Arrays, to_host
from hifigemm.workshop.measuring.timing import Method, time_bursts
from hifigemm.workshop.plots import SUFFIXES, save
from hifigemm.workshop.plots.demo import UNIT_ROUNDOFF, demo_figure
from hifigemm.workshop.table import percent, print_table

PHIS = (0.1, 1.0, 2.0)
HILBERT_SIZE = 12
"""The largest size for which the inverse is exact in float64."""

SCHEMES: dict[str, dict[str, Any]] = {
    "native": {"scheme": "native"},
    "Ozaki I, FP16, mode dp": {"scheme": hg.Ozaki1(product="fp16", mode="dp")},
    "Ozaki I, FP64, correct": {
        "scheme": hg.Ozaki1(product="fp64"),
        "accuracy": "correct",
    },
    "Ozaki II, 15 moduli, fast": {"scheme": hg.Ozaki2(num_moduli=15, scaling="fast")},
    "Ozaki II, 15 moduli, accurate": {
        "scheme": hg.Ozaki2(num_moduli=15, scaling="accurate")
    },
    'accuracy="correct"': {"accuracy": "correct"},
}

METHOD = Method(pause=0.0, warm=1, calls=(1, 1), bursts=5)
"""Five timed calls of each scheme, each behind one that is not timed."""

Row = dict[str, Any]


def demo(size: int, seed: int, output: Path) -> int:
    """The exit code of `hifigemm demo`: the table is printed, the CSV file and the
    picture are written.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise InputError(f"{output}: a picture ends in {', '.join(SUFFIXES)}")
    data = output.with_suffix(".csv")
    check_writable(output)
    check_results(data)
    print(f"compiled core: {hg.info().versions['core']} ...", file=sys.stderr)
    groups = []
    broken = []
    for name, a, b in _problems(size, seed):
        print(
            f"{name}: {len(SCHEMES)} products against the exact one ...",
            file=sys.stderr,
        )
        rows, complaints = against_exact(name, ExactProduct(a, b), SCHEMES)
        groups.append(rows)
        broken += complaints
    _print(groups)
    rows = [row for group in groups for row in group]
    write_results(data, rows, command=f"hifigemm demo --size {size} --seed {seed}")
    print(f"\nnumbers: {data}\n{_picture(rows, output)}")
    return complain(broken)


def _problems(size: int, seed: int) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Name and both operands of each problem."""
    for phi in PHIS:
        rng = np.random.default_rng([seed, int(10 * phi)])
        a = phi_matrix(rng, (size, size), phi)
        b = phi_matrix(rng, (size, size), phi)
        yield f"phi = {phi:g}, n = {size}", a, b
    name = f"Hilbert, n = {HILBERT_SIZE}"
    yield name, hilbert(HILBERT_SIZE), inverse_hilbert(HILBERT_SIZE)


def against_exact(
    problem: str,
    exact: ExactProduct,
    schemes: Mapping[str, dict[str, Any]],
    arrays: Arrays | None = None,
) -> tuple[list[Row], list[str]]:
    """One row for each set of options of `matmul`, and what broke a promise; the
    operands are those of the product.
    """
    arrays = arrays or Arrays()
    a = arrays.asarray(exact.a)
    b = arrays.asarray(exact.b)
    products: dict[str, tuple[Any, hg.Report]] = {}

    def multiply(name: str) -> None:
        products[name] = hg.matmul(a, b, return_report=True, **schemes[name])

    variants = {name: partial(multiply, name) for name in schemes}
    times = time_bursts(variants, arrays.clock(), METHOD)
    dtype = exact.rounded.dtype
    unit_roundoff = float(np.finfo(dtype).eps) / 2
    rows = []
    complaints = []
    for name, (c, report) in products.items():
        judged = judge(to_host(c), exact, report.bound)
        is_correct = schemes[name].get("accuracy") == "correct"
        title = f"{problem}, {name}"
        complaints += _complaints(title, judged, report, is_correct)
        product = getattr(report.scheme, "product", None)
        row = {
            "problem": problem,
            "scheme": name,
            "error": judged.error,
            "relative_error": judged.relative_error,
            "bound": report.bound,
            "guaranteed": report.bound + unit_roundoff,
            "promise_kept": judged.kept,
            "share_correct": judged.share_correct,
            "num_products": report.num_products,
            "product": product or str(dtype).replace("float", "fp"),
            "chosen": str(report.scheme),
            "time_s": times[name].least,
            "time_median_s": times[name].median,
        }
        rows.append(row)
    return rows, complaints


def _complaints(
    title: str, judged: Judgement, report: hg.Report, asked_correct: bool
) -> list[str]:
    """What is not as promised."""
    complaints = []
    if not judged.kept:
        complaints.append(
            f"{title}: an error of {judged.error:.3g} |A||B| breaks the reported bound {report.bound:.3g}"
        )
    if asked_correct and not report.correct:
        complaints.append(
            f"{title}: the report does not say that the result is correctly rounded"
        )
    if report.correct and judged.share_correct < 1:
        complaints.append(
            f"{title}: {1 - judged.share_correct:.3%} of the entries are not correctly rounded"
        )
    return complaints


def _print(groups: list[list[Row]]) -> None:
    header = (
        "problem",
        "scheme",
        "error",
        "guaranteed",
        "rel. error",
        "correct",
        "products",
        "time",
    )
    tables = []
    for rows in groups:
        tables.append([_cells(row, first=i == 0) for i, row in enumerate(rows)])
    print_table(
        "Products of float64 matrices against the exact product", header, tables
    )
    print(
        f"""
phi         how far apart exponents lie: both matrices are (rand - 0.5) exp(phi randn)
Hilbert     the Hilbert matrix times its inverse, whose terms cancel
|A||B|      the product of the magnitudes of all entries: what the terms of an entry sum up to without cancelling
error       max |C - AB| / |A||B|, entry by entry
guaranteed  the error is at most this: r + u, r the bound of the report, u = {UNIT_ROUNDOFF:.3g} the unit roundoff
rel. error  max |C - AB| / |AB|: only accuracy="correct" and hg.Relative(r) promise anything about it
correct     share of the entries that are the exact value rounded once
time        the least of {METHOD.bursts} calls

Read on: docs/accuracy.md says which accuracy to ask for, docs/bounds.md what |A||B|, r and u mean."""
    )


def _cells(row: Row, first: bool) -> tuple[str, ...]:
    errors = (f"{row[key]:.2e}" for key in ("error", "guaranteed", "relative_error"))
    share = percent(row["share_correct"])
    products = f"{row['num_products']} {row['product']}"
    return (
        row["problem"] if first else "",
        row["scheme"],
        *errors,
        share,
        products,
        f"{1e3 * row['time_s']:.2f} ms",
    )


def _picture(rows: list[Row], path: Path) -> str:
    """Draw, and say where; or say why not."""
    if find_spec("matplotlib") is None:
        return "picture: none, matplotlib is not installed (pip install matplotlib)"
    with replacing(path) as file:
        save(demo_figure(rows), file, path.suffix.lower())
    return f"picture: {path}"
