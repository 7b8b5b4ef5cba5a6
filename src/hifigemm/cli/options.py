"""What commands share: how they are added, their operands, options that say how to
multiply.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import FP64
from hifigemm.cli.files import FORMATS
from hifigemm.differentiable.arguments import accuracy_from
from hifigemm.engines import engine_for
from hifigemm.model.accuracy import Accuracy, resolve
from hifigemm.schemes import SCHEMES, Scheme
from hifigemm.workshop.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", 1)
    for unit, base in ((letter, 1024), (f"{letter}IB", 1024), (f"{letter}B", 1000))
}


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but keeps indented lines, which are examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for line in text.splitlines():
            is_example = line.startswith("  ")
            lines.append(
                line if is_example else super()._fill_text(line, width, indent)
            )
        return "\n".join(lines)


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Any],
    text: str,
    *,
    example: str,
    more: str = "",
    usage: str | None = None,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """Add a command. In its own description, `more` and an example follow the text."""
    description = f"{text[0].upper()}{text[1:]}.{more}\n\n  {example}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_operands(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """The files of both operands."""
    count = "?" if optional else None
    parser.add_argument("a", metavar="A", nargs=count, help="file of the left operand")
    parser.add_argument("b", metavar="B", nargs=count, help="file of the right operand")
    parser.epilog = f"Files: {FORMATS}."


def add_multiplication_options(parser: argparse.ArgumentParser) -> None:
    """Accuracy, scheme, engine, workspace, and one option for each field of a scheme's
    dataclass.
    """
    accuracy = (
        '"correct" (the exact value, rounded once), "Relative(r)" (|C - AB| <= r |AB|), a number r below 1 '
        '(|C - AB| <= r |A||B| + u |AB|), "fp64" or "fp32" (default: the usual accuracy of the result)'
    )
    parser.add_argument("--accuracy", type=parse_accuracy, metavar="X", help=accuracy)
    parser.add_argument(
        "--scheme",
        choices=["auto", *SCHEMES],
        default="auto",
        help="the method (default: auto)",
    )
    parser.add_argument(
        "--engine",
        type=_engine,
        metavar="E",
        help="an engine that `hifigemm info` lists",
    )
    workspace = (
        "limit for memory in addition to operands and result, such as 512M or 2GiB"
    )
    parser.add_argument(
        "--workspace", type=parse_bytes, metavar="BYTES", help=workspace
    )
    group = parser.add_argument_group(
        "options of one scheme", "parameters of its class in Python; they need --scheme"
    )
    for name, users in _fields().items():
        texts = _described(name, users)
        is_count = all(text.startswith("a count") for text in texts)
        metavar = "N" if is_count else "VALUE"
        lines = [f"{', '.join(users)}: {text}" for text, users in texts.items()]
        group.add_argument(_flag(name), metavar=metavar, help="; ".join(lines))


def multiplication_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `matmul` and `make_plan`.

    Raises
    ------
    InputError
        Options of one scheme given to another, or values that the scheme refuses.
    """
    given = {
        name: getattr(args, name)
        for name in _fields()
        if getattr(args, name) is not None
    }
    chosen = {name: getattr(args, name) for name in ("accuracy", "engine", "workspace")}
    return chosen | {"scheme": _scheme(args.scheme, given)}


@contextmanager
def usage() -> Iterator[None]:
    """What is wrong with the value of an option as the complaint of argparse."""
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_accuracy(text: str) -> Accuracy:
    """A number, the name of an accuracy, or Relative(r), hg.Relative(r) and
    hifigemm.Relative(r).
    """
    with usage():
        accuracy = accuracy_from(text)
        resolve(accuracy, FP64, 1)
    return accuracy


def parse_bytes(text: str) -> int:
    """A number of bytes such as 1000000, 512M, 2GiB (powers of 1024) or 2GB (powers of
    1000).
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes such as 1000000, 512M or 2GiB"
        )
    count = float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= count <= sys.maxsize:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of bytes from 1 to {sys.maxsize}"
        )
    return int(count)


def _integer(lowest: int, highest: int) -> Callable[[str], int]:
    """The type of an option that is an integer from `lowest` to `highest`."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,18}", text) or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not an integer from {lowest} to {highest}"
            )
        return int(text)

    return parse


SIZE = _integer(1, 2**29)
"""The type of a size: of a square matrix that would fit into the address space."""

SEED = _integer(0, 2**32 - 1)
"""The type of the seed of a generator."""

DTYPES = ("float64", "float32", "complex128", "complex64")
"""Those of results."""


def parse_shape(text: str) -> tuple[int, int, int]:
    """Three sizes M,N,K of the product of an m x k and a k x n matrix."""
    words = text.split(",")
    if len(words) != 3:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected three sizes M,N,K such as 1000,1000,1000"
        )
    m, n, k = (SIZE(word) for word in words)
    return m, n, k


def _fields() -> dict[str, list[str]]:
    """Fields of the scheme dataclasses, with the names of the schemes that have
    them.
    """
    users: dict[str, list[str]] = {}
    for scheme in SCHEMES.values():
        for field in dataclasses.fields(scheme):
            users.setdefault(field.name, []).append(scheme.name)
    return users


def _described(name: str, users: list[str]) -> dict[str, list[str]]:
    """What a field may be, with its default: texts with the schemes that they are
    true of.
    """
    texts: dict[str, list[str]] = {}
    for user in users:
        scheme = SCHEMES[user]
        default = getattr(scheme(), name)
        values = []
        for option in scheme.options[name]:
            if option is int:
                least, most = scheme.limits
                values.append(f"a count from {least}" + (f" to {most}" if most else ""))
            elif option is bool:
                values += ["on", "off"]
            elif option is not None:
                values.append(option)
        if isinstance(default, bool):
            default = "on" if default else "off"
        elif default is None:
            is_count = int in scheme.options[name]
            default = "chosen by the library" if is_count else "none"
        text = f"{', '.join(values)} (default: {default})"
        texts.setdefault(text, []).append(user)
    return texts


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _scheme(name: str, given: dict[str, str]) -> str | Scheme:
    if not given:
        return name
    if name == "auto":
        raise InputError(
            f"{_flag(next(iter(given)))} needs --scheme; one of {', '.join(SCHEMES)}"
        )
    known = {field.name: field for field in dataclasses.fields(SCHEMES[name])}
    for option in given:
        if option not in known:
            raise InputError(
                f"{_flag(option)} is not an option of scheme {name}, which has {', '.join(map(_flag, known))}"
            )
    try:
        return SCHEMES[name](
            **{option: _value(known[option], text) for option, text in given.items()}
        )
    except PlanError as error:
        raise InputError(str(error)) from error


def _value(field: dataclasses.Field[Any], text: str) -> int | bool | str:
    """The text as the type that the field is annotated with."""
    types = str(field.type).split(" | ")
    if "bool" in types:
        if text not in ("on", "off"):
            raise InputError(f"{_flag(field.name)} {text}: expected on or off")
        return text == "on"
    if "int" in types:
        try:
            return int(text)
        except ValueError as error:
            raise InputError(
                f"{_flag(field.name)} {text}: expected an integer"
            ) from error
    if field.name == "product" and text not in (known := engine_for("numpy").products):
        raise InputError(
            f"{_flag(field.name)} {text}: expected one of {', '.join(sorted(known))}"
        )
    return text


def _engine(name: str) -> str:
    with usage():
        return engine_for(name).name
