"""Panels of A times panels of B: each pair is multiplied once, in the order in which
the panels arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch import Tensor

from hifigemm.accuracy import NOTHING_STATED
from hifigemm.api import make_plan, prepare, product_of_numbers
from hifigemm.distributed.memory import share
from hifigemm.distributed.method import Method, library_and_engine
from hifigemm.distributed.panels import Panel
from hifigemm.gemm import gemm_of_numbers
from hifigemm.operands import Prepared
from hifigemm.plan import Plan
from hifigemm.schemes import Ozaki2


@dataclass
class Arrived:
    """A panel in the memory of this rank."""

    at: slice
    x: Tensor
    several: bool  # whether it meets more than one panel of the other operand
    ready: Any = None  # with its residues or slices, once they are made


Visit = Callable[[Arrived, Arrived], None]


def walk(
    left: Sequence[Panel], right: Sequence[Panel], ahead: int | None, visit: Visit
) -> Exception | None:
    """Visit every pair; so many panels are on their way beside the one that is needed
    next, all for None.

    All panels arrive, whatever a visit raises, as other ranks send them and wait for
    those of this one. The first error is returned.
    """
    order = [(0, x) for x in left[:1]] + [(1, x) for x in right[:1]]
    order += [(0, x) for x in left[1:]] + [(1, x) for x in right[1:]]
    here: tuple[list[Arrived], list[Arrived]] = [], []
    counts, failed = (len(left), len(right)), None
    for (side, panel), x in zip(
        order, _arrivals([x for _, x in order], ahead), strict=True
    ):
        new = Arrived(panel.at, x, counts[1 - side] > 1)
        for other in here[1 - side]:
            pair = (new, other) if side == 0 else (other, new)
            if failed is None and 0 not in (pair[0].x.shape[0], pair[1].x.shape[1]):
                try:
                    visit(*pair)
                except Exception as error:
                    failed = error
        if len(here[1 - side]) < counts[1 - side]:  # others are still to come
            here[side].append(new)
    return failed


def _arrivals(panels: Sequence[Panel], ahead: int | None) -> Iterator[Tensor]:
    """The panels as tensors, one after the other; what nobody refers to any more makes
    room.
    """
    coming = iter(panels)
    under_way = deque(
        panel.start() for panel in islice(coming, None if ahead is None else ahead + 1)
    )
    while under_way:
        x = under_way.popleft()()
        under_way.extend(panel.start() for panel in islice(coming, 1))
        yield x


@dataclass
class LocalProducts:
    """alpha A B + beta C of this rank's part of C, by the products of one device.

    What meets several panels is split into residues or slices once, where there is room
    for them.
    """

    method: Method
    out: Tensor
    alpha: complex = 1.0
    beta: complex = 0.0
    c: Tensor | None = None
    workspace: int | None = None
    num_products: int = 0
    _plan: Plan | None = None
    _kept: int = 0  # bytes of residues

    def __call__(self, left: Arrived, right: Arrived) -> None:
        """Write the entries of a pair of panels."""
        entries = left.at, right.at
        pair: Any = [left.x, right.x]
        sides: Any = (left, "left"), (right, "right")
        for i, (panel, side) in enumerate(sides):
            if panel.several and (panel.ready is not None or self._splits(panel.x)):
                if panel.ready is None:
                    panel.ready = _prepared(panel.x, side, self._shared(*pair))
                pair[i] = panel.ready
        asked: Any = (
            {} if any(isinstance(x, Prepared) for x in pair) else self.method.options
        )
        limit = share(self.workspace, "products")
        asked |= {
            "workspace": limit,
            "return_report": not self.method.is_fixed,
            "out": self.out[entries],
        }
        if self.c is None and self.alpha == 1:
            made = product_of_numbers(*pair, **asked)
        else:
            c = None if self.c is None else self.c[entries]
            made = gemm_of_numbers(
                pair[0], pair[1], c, alpha=self.alpha, beta=self.beta, **asked
            )
        if asked["return_report"]:
            self.num_products = max(self.num_products, made[1].num_products)

    def _splits(self, x: Tensor) -> bool:
        """Whether there is room to keep residues or slices of x, which is taken then.

        Those of Ozaki scheme II take a byte for each modulus.
        """
        scheme: Any = self.method.scheme
        if not self.method.is_fixed:
            return False
        planes = x.numel() * (3 if x.is_complex() else 1) * scheme.count
        limit = share(self.workspace, "residues")
        if limit is not None and self._kept + planes > limit:
            return False
        self._kept += planes
        return True

    def _shared(self, x: Any, y: Any) -> Plan:
        """The plan of all pairs, under which no bound is worked out."""
        if self._plan is None:
            scheme: Any = self.method.scheme
            self._plan = replace(
                make_plan(
                    x, y, scheme=scheme, workspace=share(self.workspace, "products")
                ),
                target=NOTHING_STATED,
            )
        return self._plan


def _prepared(x: Tensor, side: Any, plan: Plan) -> Prepared:
    """`prepare` without a copy and, for Ozaki scheme II on a GPU, without a look at the
    entries.

    The kernels there mark the vectors with an Inf or NaN by themselves, so that the
    host does not wait.
    """
    (library, engine), scheme = library_and_engine(x), plan.scheme
    if library.on_host or not isinstance(scheme, Ozaki2):
        return prepare(x, side, plan=plan)
    with library.active():
        stack = library.asarray(x[None], "a")
        pair = (stack, None) if side == "left" else (None, stack)
        scales: Any = scheme.scales(plan, pair[0], pair[1], engine)
        split = scheme.split(plan, stack, side, scales[side == "right"], engine)
        return Prepared(library.asarray(x, "a"), split, side, plan, library)
