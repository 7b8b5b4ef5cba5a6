"""`hifigemm accuracy`: errors of schemes and engines for the matrices in two files,
against the exact product.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg
from hifigemm.cli.files import read_array
from hifigemm.cli.options import add_command, add_operands
from hifigemm.engines import available
from hifigemm.schemes import SCHEMES
from hifigemm.schemes.multiword import PRESETS
from hifigemm.testing.reference import ExactProduct, Judgement, judge
from hifigemm.workshop.errors import COMPUTATION_ERROR, InputError, complain
from hifigemm.workshop.table import percent, print_table

WAYS: dict[str, dict[str, Any]] = {
    "correct": {"accuracy": "correct"},
    "auto": {},
    **{name: {"scheme": name} for name in SCHEMES},
    **{name: {"scheme": scheme} for name, scheme in PRESETS.items()},
}
"""What --schemes may name, with the options of `matmul`."""

DEFAULT = {
    np.float32: "native,valero-lara-tf32x1,valero-lara-tf32x3,markidis,corrected,ozaki1,ozaki2,correct",
    np.float64: "native,valero-lara-tf64x1,valero-lara-tf64x3,ozaki1,ozaki2,correct",
}
"""--schemes by the dtype of the product."""

_NOTES = """
componentwise  max |C - AB| / (|A||B|), entry by entry
normwise       ||C - AB|| / (||A|| ||B||), Frobenius norms
correct        share of the entries that are the exact value rounded once
bound          r of the report: |C - AB| <= r |A||B| + u |AB|, u the unit roundoff of the result"""


def add_accuracy(commands: Any) -> None:
    """Add the command `accuracy`."""
    text = "errors of schemes and engines for the matrices in two files, against the exact product"
    parser = add_command(
        commands, "accuracy", _accuracy, text, ": real, finite matrices."
    )
    add_operands(parser)
    schemes = f"of {', '.join(WAYS)} (default: by the dtype of the operands)"
    parser.add_argument(
        "--schemes",
        type=_names("scheme", lambda: list(WAYS)),
        metavar="S,S,...",
        help=schemes,
    )
    engines = "of those that `hifigemm info` lists (default: numpy)"
    kind = _names("engine", available)
    parser.add_argument(
        "--engines", type=kind, default=["numpy"], metavar="E,E,...", help=engines
    )


def _names(what: str, known: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """The type of an option that is a list of names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known():
                raise argparse.ArgumentTypeError(
                    f"no {what} {name!r}; known: {', '.join(known())}"
                )
        return names

    return parse


def _accuracy(args: argparse.Namespace) -> int:
    a, b = _matrices(args)
    dtype = np.result_type(a, b)
    exact = ExactProduct(a, b)
    groups, refused, broken = [], [], []
    for engine in args.engines:
        rows = []
        for name in args.schemes or DEFAULT[dtype.type].split(","):
            print(f"{name} on {engine} ...", file=sys.stderr)
            try:
                c, report = hg.matmul(
                    a, b, engine=engine, return_report=True, **WAYS[name]
                )
            except hg.HifigemmError as error:
                refused.append(f"{name} on {engine}: {error}")
                continue
            judged = judge(c, exact, report.bound)
            rows.append(_cells(name, engine, judged, report))
            if not judged.kept:
                text = f"{name} on {engine}: an error of {judged.error:.3g} |A||B| breaks the bound {report.bound:.3g}"
                broken.append(text)
        groups += [rows] if rows else []
    (m, k), n = a.shape, b.shape[1]
    header = (
        "scheme",
        "engine",
        "componentwise",
        "normwise",
        "correct",
        "bound",
        "products",
    )
    print_table(
        f"{m} x {k} times {k} x {n}, {dtype}, against the exact product", header, groups
    )
    print("\n".join([_NOTES, *(f"not possible: {text}" for text in refused)]))
    return complain(broken) if groups else COMPUTATION_ERROR


def _matrices(args: argparse.Namespace) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both operands: real, finite, two-dimensional, of shapes that fit."""
    a, b = read_array(args.a), read_array(args.b)
    for name, x in ((args.a, a), (args.b, b)):
        if x.ndim != 2 or x.dtype.kind != "f":
            raise InputError(
                f"{name}: holds {x.dtype} of shape {x.shape}; errors are measured for real matrices"
            )
        if not np.isfinite(x).all():
            raise InputError(
                f"{name}: {np.count_nonzero(~np.isfinite(x))} entries are not finite"
            )
    if a.shape[1] != b.shape[0]:
        raise InputError(
            f"{args.a} and {args.b} cannot be multiplied: shapes {a.shape} and {b.shape}"
        )
    return a, b


def _cells(
    name: str, engine: str, judged: Judgement, report: hg.Report
) -> tuple[str, ...]:
    product = getattr(report.scheme, "product", None) or "native"
    errors = (f"{x:.2e}" for x in (judged.error, judged.normwise_error))
    share, products = percent(judged.share_correct), f"{report.num_products} {product}"
    return (name, engine, *errors, share, f"{report.bound:.2e}", products)
