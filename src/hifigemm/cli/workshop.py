"""The commands `demo`, `report` and `bench`: their options. What they do is in
`hifigemm.workshop`, which is loaded when one of them runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hifigemm.cli.options import DTYPES, SEED, SIZE, add_command, parse_shape, usage


def add_demo(commands: Any) -> None:
    """Add the command `demo`."""
    text = "compare the accuracy of all schemes and the native product: a table and a picture"
    example = "hifigemm demo --size 200 -o demo.png"
    parser = add_command(commands, "demo", _demo, text, example=example)
    parser.add_argument(
        "--size",
        type=SIZE,
        default=200,
        metavar="N",
        help="size of the random matrices (default: 200)",
    )
    parser.add_argument(
        "--seed", type=SEED, default=0, help="seed of the matrices (default: 0)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("hifigemm-demo.png"),
        metavar="FILE",
        help="picture (.png, .svg, .pdf), and a CSV file with the same name (default: hifigemm-demo.png)",
    )


def _demo(args: argparse.Namespace) -> int:
    from hifigemm.workshop.demo import demo

    return demo(args.size, args.seed, args.output)


def add_report(commands: Any) -> None:
    """Add the command `report`."""
    text = "measure this machine and write an HTML page: engines, times, errors, and what to write"
    more = " This takes one to three minutes."
    epilog = "The exit code is 1 if a result broke its promise; the page says so too."
    parser = add_command(
        commands,
        "report",
        _report,
        text,
        more=more,
        example="hifigemm report -o report.html",
        epilog=epilog,
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("hifigemm-report.html"),
        metavar="FILE",
        help="HTML page, replaced if it exists (default: hifigemm-report.html)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="NumPy or PyTorch (default: cuda if available)",
    )
    parser.add_argument(
        "--seed", type=SEED, default=0, help="seed of the matrices (default: 0)"
    )


def _report(args: argparse.Namespace) -> int:
    from hifigemm.workshop.report import report

    return report(args.output, args.device, args.seed)


def add_bench(commands: Any) -> None:
    """Add the command `bench`."""
    epilog = "S is native, peers (other packages), the name of a peer, or SCHEME[:COUNT][:WORD...][@ACCURACY] such as "
    epilog += "auto, ozaki2:14, ozaki1:7:fp16, auto@correct. The exit code is 1 if a result was wrong."
    text = "measure times of the native product, of schemes and of other packages"
    parser = add_command(
        commands,
        "bench",
        _bench,
        text,
        more=" It checks the results first.",
        example="hifigemm bench --sizes 500,1000 --schemes native,auto,auto@correct",
        epilog=epilog,
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--sizes",
        type=_list(SIZE),
        metavar="N,N,...",
        help="square products (default: by device)",
    )
    group.add_argument(
        "--shapes",
        type=parse_shape,
        nargs="+",
        metavar="M,N,K",
        help="m x k times k x n",
    )
    add = parser.add_argument
    add(
        "--batch",
        type=SIZE,
        default=1,
        metavar="N",
        help="matrices in each stack (default: 1)",
    )
    add("--dtype", choices=DTYPES, default="float64", help="(default: float64)")
    add(
        "--schemes",
        type=_list(_case),
        metavar="S,S,...",
        help="what to time, see below (default: by dtype)",
    )
    add(
        "--family",
        type=_family,
        default="phi0.5",
        metavar="F",
        help="kind of matrices: uniform, uniform01, phi and a number, type1 to type4 (default: phi0.5)",
    )
    add(
        "--mode",
        choices=("eager", "graph", "both"),
        help="calls, CUDA graphs, or both (default: both on CUDA)",
    )
    add(
        "--device",
        choices=("cpu", "cuda"),
        help="NumPy or PyTorch (default: cuda if available)",
    )
    add(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write the times to FILE, and the environment next to it",
    )
    add(
        "--quick",
        action="store_true",
        help="short bursts and runs: a first look, not a measurement",
    )
    add(
        "--runs",
        type=SIZE,
        metavar="N",
        help="sustained runs of each case (default: 1)",
    )
    add("--seed", type=SEED, default=1, help="seed of the matrices (default: 1)")


def _list(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: list(dict.fromkeys(parse(word) for word in text.split(",")))


def _case(text: str) -> str:
    from hifigemm.workshop.measuring.cases import check_case

    with usage():
        check_case(text)
    return text


def _family(text: str) -> str:
    from hifigemm.workshop.measuring.arrays import check_family

    with usage():
        check_family(text)
    return text


def _bench(args: argparse.Namespace) -> int:
    from hifigemm.workshop.bench import Settings, bench

    squares = [(n, n, n) for n in args.sizes or ()]
    return bench(
        Settings(
            shapes=args.shapes or squares,
            batch=args.batch,
            dtype=args.dtype,
            schemes=args.schemes,
            family=args.family,
            mode=args.mode,
            device=args.device,
            csv=args.csv,
            quick=args.quick,
            runs=args.runs,
            seed=args.seed,
        )
    )
