"""Progress bars: for the blocks and the escalated entries of a long product, and for
the steps of a command.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import hifigemm as hg
from hifigemm.executor import watch
from hifigemm.plan import Plan, Report
from hifigemm.problem import Block
from hifigemm.schemes import Native

LONG_WORK = 5e10
"""Multiplications in low precision from which on a bar is worth its lines: a second or
two on a small CPU.
"""

BLOCKS = 20
"""Steps that a bar should have at least, unless blocks would get smaller than
LEAST_ROWS.
"""

LEAST_ROWS = 256

BAR, LABEL = 24, 44
"""Characters of the bar of `Steps` and of the words behind it, which fit into a line of
80.
"""

OnBlock = Callable[[Plan, Block], None]


def multiply(
    a: Any, b: Any, options: dict[str, Any], *, quiet: bool
) -> tuple[Any, Report]:
    """`matmul` with its report, and a bar on stderr if that is a terminal, rich is
    installed and the work is long.
    """
    if (
        not quiet
        and sys.stderr.isatty()
        and find_spec("rich") is not None
        and 0 not in a.shape + b.shape
    ):
        plan = hg.make_plan(a, b, **options)
        if (
            not isinstance(plan.scheme, Native)
            and plan.problem.multiplications * plan.num_products >= LONG_WORK
        ):
            with _bars() as on_block:
                return multiply_watched(a, b, plan, options["workspace"], on_block)
    result: tuple[Any, Report] = hg.matmul(a, b, return_report=True, **options)
    return result


def multiply_watched(
    a: Any, b: Any, plan: Plan, workspace: int | None, on_block: OnBlock
) -> tuple[Any, Report]:
    """`matmul` under a plan, calling on_block(plan, block) after each block: same bits,
    same report.

    Without a limit on the workspace the blocks are cut finer than the plan says, which
    changes no bit.
    """
    if workspace is None:
        plan = replace(plan, blocking=replace(plan.blocking, shape=_finer(plan)))
    token = watch.set(on_block)
    try:
        result: tuple[Any, Report] = hg.matmul(
            a, b, return_report=True, plan=plan, workspace=workspace
        )
        return result
    finally:
        watch.reset(token)


def _finer(plan: Plan) -> tuple[int, int, int]:
    """The plan's block shape, cut along the stack and then along the rows until there
    are enough blocks.
    """
    p, (batch, rows, cols) = plan.problem, plan.block_shape
    while -(-p.batch // batch) * -(-p.m // rows) * -(-p.n // cols) < BLOCKS:
        if batch > 1:
            batch = -(-batch // 2)
        elif rows >= 2 * LEAST_ROWS:
            rows = -(-rows // 2)
        else:
            break
    return batch, rows, cols


@contextmanager
def _bars() -> Iterator[OnBlock]:
    """Bars that go away at the end; one for each scheme with its counts that blocks are
    done with.
    """
    from rich.console import Console
    from rich.progress import Progress

    tasks: dict[str, Any] = {}

    def on_block(plan: Plan, block: Block) -> None:
        name, p = str(plan.scheme), plan.problem
        if name not in tasks:
            tasks[name] = bars.add_task(
                f"escalating to {name}" if tasks else name, total=p.batch * p.m * p.n
            )
        bars.advance(
            tasks[name],
            math.prod(
                part.stop - part.start for part in (block.batch, block.rows, block.cols)
            ),
        )

    with Progress(console=Console(stderr=True), transient=True) as bars:
        yield on_block


class Steps:
    """The steps of a command on stderr: a bar on a terminal, without other packages; a
    line for each step elsewhere.
    """

    def __init__(self, total: float) -> None:
        self._total, self._done = total, 0.0

    def start(self, what: str) -> None:
        """Say which step begins."""
        if not sys.stderr.isatty():
            print(f"{what} ...", file=sys.stderr, flush=True)
            return
        share = min(self._done / self._total, 1.0)
        bar = "#" * int(BAR * share)
        print(
            f"\r[{bar:<{BAR}}] {share:4.0%}  {what:<{LABEL}.{LABEL}}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def advance(self, weight: float) -> None:
        """Count a step that is done."""
        self._done += weight

    def close(self) -> None:
        """Remove the bar."""
        if sys.stderr.isatty():
            print(f"\r{'':<{BAR + LABEL + 9}}\r", end="", file=sys.stderr, flush=True)
