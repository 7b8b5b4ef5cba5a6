"""The schedule of a product on a mesh: pairs of panels, in the order of their arrival.

Each panel of A is multiplied with each panel of B once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from torch import Tensor

from hifigemm.api import make_plan
from hifigemm.distributed.memory import share
from hifigemm.distributed.method import Method, library_and_engine
from hifigemm.distributed.panels import Panel
from hifigemm.model.accuracy import NOTHING_STATED
from hifigemm.model.plan import Plan
from hifigemm.operands.operands import Prepared
from hifigemm.running.executor import split_of
from hifigemm.running.gemm import gemm_of_numbers
from hifigemm.running.products import product_of_numbers


@dataclass
class Arrived:
    """A panel in the memory of this rank."""

    span: slice  # its rows or columns in this rank's part of C
    x: Tensor
    meets_several: bool  # the other operand has more than one panel
    prepared: Prepared | None = None  # with its residues or slices


Visit = Callable[[Arrived, Arrived], None]
"""A function of a panel of A and a panel of B."""


def visit_pairs(
    left: Sequence[Panel], right: Sequence[Panel], ahead: int | None, visit: Visit
) -> Exception | None:
    """The first error of the visits to all pairs of panels; None if there is none.

    `ahead` panels, all for None, travel beside the one that is needed next. All panels
    arrive, even after an error, because other ranks send them and wait for the panels
    of this one.
    """
    # One panel of each operand, so that there is a pair, then A and then B.
    rows = [(0, x) for x in left]
    cols = [(1, x) for x in right]
    first_pair = rows[:1] + cols[:1]
    order = first_pair + rows[1:] + cols[1:]
    tensors = _arrivals([panel for _, panel in order], ahead)
    counts = (len(left), len(right))
    arrived: tuple[list[Arrived], list[Arrived]] = [], []
    first_error = None
    for (side, panel), x in zip(order, tensors, strict=True):
        new = Arrived(panel.span, x, counts[1 - side] > 1)
        for other in arrived[1 - side]:
            pair = (new, other) if side == 0 else (other, new)
            is_empty = 0 in (pair[0].x.shape[0], pair[1].x.shape[1])
            if first_error is None and not is_empty:
                try:
                    visit(*pair)
                except Exception as error:
                    first_error = error
        # Panels that it has yet to meet are still to come.
        if len(arrived[1 - side]) < counts[1 - side]:
            arrived[side].append(new)
    return first_error


def _arrivals(panels: Sequence[Panel], ahead: int | None) -> Iterator[Tensor]:
    """The panels as tensors, one after the other, `ahead` of them under way.

    The memory of a tensor is free once nothing refers to it.
    """
    remaining = iter(panels)
    first = islice(remaining, None if ahead is None else ahead + 1)
    under_way = deque(panel.start() for panel in first)
    while under_way:
        # No name for the function that waits: it holds memory that was sent.
        x = under_way.popleft()()
        under_way.extend(panel.start() for panel in islice(remaining, 1))
        yield x


@dataclass
class LocalProducts:
    """alpha A B + beta C of this rank's part of C, by the products of one device.

    A panel that meets several others is split into residues or slices once, if there is
    room for them.
    """

    method: Method
    out: Tensor
    alpha: complex = 1.0
    beta: complex = 0.0
    c: Tensor | None = None
    workspace: int | None = None
    # the products of a pair are counted, where the count depends on the operands; on a
    # GPU that waits for each pair
    counts_products: bool = False
    num_products: int = 0  # the most that a pair took
    _plan: Plan | None = None
    _residue_bytes: int = 0  # of all prepared panels

    def __call__(self, left: Arrived, right: Arrived) -> None:
        """Write the entries of a pair of panels."""
        entries = left.span, right.span
        pair: list[Tensor | Prepared] = [left.x, right.x]
        self._prepare(left, "left", pair)
        self._prepare(right, "right", pair)

        # Prepared operands have accuracy and scheme in their plan.
        options: dict[str, Any] = {}
        if left.prepared is None and right.prepared is None:
            options = self.method.options
        options["workspace"] = share(self.workspace, "products")
        has_report = self.counts_products and not self.method.is_fixed
        options["return_report"] = has_report
        options["out"] = self.out[entries]

        if self.c is None and self.alpha == 1:
            result = product_of_numbers(pair[0], pair[1], **options)
        else:
            c = None if self.c is None else self.c[entries]
            result = gemm_of_numbers(
                pair[0], pair[1], c, alpha=self.alpha, beta=self.beta, **options
            )
        if has_report:
            _, report = result
            self.num_products = max(self.num_products, report.num_products)

    def _prepare(
        self,
        panel: Arrived,
        side: Literal["left", "right"],
        pair: list[Tensor | Prepared],
    ) -> None:
        """Put the prepared panel into the pair, if it is worth it and there is room."""
        if not panel.meets_several:
            return
        if panel.prepared is None:
            if not self._reserve(panel.x):
                return
            panel.prepared = _prepared(panel.x, side, self._common_plan(*pair))
        pair[side == "right"] = panel.prepared

    def _reserve(self, x: Tensor) -> bool:
        """True if there is room for residues or slices of x, which is reserved then.

        Residues of Ozaki scheme II take a byte for each modulus.
        """
        scheme = self.method.scheme
        if scheme is None or not self.method.is_fixed:
            return False
        nbytes = x.numel() * (3 if x.is_complex() else 1) * scheme.count
        limit = share(self.workspace, "residues")
        if limit is not None and self._residue_bytes + nbytes > limit:
            return False
        self._residue_bytes += nbytes
        return True

    def _common_plan(self, x: Tensor | Prepared, y: Tensor | Prepared) -> Plan:
        """The plan of all pairs, under which no bound is worked out."""
        if self._plan is None:
            workspace = share(self.workspace, "products")
            scheme: Any = self.method.scheme
            plan = make_plan(x, y, scheme=scheme, workspace=workspace)
            self._plan = replace(plan, target=NOTHING_STATED)
        return self._plan


def _prepared(x: Tensor, side: Literal["left", "right"], plan: Plan) -> Prepared:
    """`prepare` without a copy."""
    library, engine = library_and_engine(x)
    with library.active():
        split = split_of(plan, library.asarray(x[None], "a"), side, engine)
        return Prepared(library.asarray(x, "a"), split, side, plan, library)
