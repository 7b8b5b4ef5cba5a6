"""Tables on stdout: by rich on a terminal where it is installed, in plain text
otherwise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec


def print_table(
    title: str, header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]
) -> None:
    """Print groups of rows with a line between them; the first two columns are text,
    the others numbers.
    """
    if sys.stdout.isatty() and find_spec("rich") is not None:
        _print_rich(title, header, groups)
    else:
        print(_plain_table(title, header, groups))


def _plain_table(
    title: str, header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]
) -> str:
    """The table as text with aligned columns."""
    widths = [
        max(map(len, column))
        for column in zip(
            header, *(row for group in groups for row in group), strict=True
        )
    ]

    def line(row: Sequence[str]) -> str:
        cells = (
            text.ljust(w) if i < 2 else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    # Groups with a rule between them.
    rule = "  ".join("-" * width for width in widths)
    lines = [title, "", line(header)]
    for group in groups:
        lines += [rule, *map(line, group)]
    return "\n".join(lines)


def _print_rich(
    title: str, header: Sequence[str], groups: Sequence[Sequence[Sequence[str]]]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=i >= 2)
    for group in groups:
        for row in group:
            table.add_row(*row)
        table.add_section()
    Console().print(table)


def percent(share: float) -> str:
    """Two decimals, never rounded up to 100."""
    return "100 %" if share == 1 else f"{math.floor(1e4 * share) / 100:.2f} %"
