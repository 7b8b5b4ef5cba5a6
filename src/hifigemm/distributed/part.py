"""The part of a product that one rank makes: an operand that stays as a whole, times the
panels of the other one, while later panels travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hifigemm.api import make_plan
from hifigemm.base.store import kept, once
from hifigemm.distributed.collectives import agree, result_or_error
from hifigemm.distributed.exchange import Exchange, exchange_of
from hifigemm.distributed.layout import Layout, Placements
from hifigemm.distributed.memory import UNDER_WAY, share
from hifigemm.distributed.messages import Messages
from hifigemm.distributed.method import Method, library_and_engine
from hifigemm.distributed.peers import CopySchedule, Peers, peers_of
from hifigemm.distributed.ranks import ranks_of
from hifigemm.libraries import Library
from hifigemm.model.accuracy import NOTHING_STATED, Accuracy
from hifigemm.model.engine import Engine
from hifigemm.model.executable import Refusal
from hifigemm.model.plan import Plan
from hifigemm.operands.operands import Prepared, own_stack
from hifigemm.running.calls import KeptCall, Refused
from hifigemm.running.executor import splitting
from hifigemm.running.gemm import gemm_of_numbers
from hifigemm.running.keys import key_of
from hifigemm.running.plans import Preparation, prepared
from hifigemm.running.products import product_of_numbers
from hifigemm.schemes import Scheme

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True, eq=False)
class Moves:
    """What travels for products of one kind, as one rank sees it: first the operand
    that it needs as a whole, then the panels of the other one.
    """

    exchanges: tuple[Exchange, Exchange]  # of A and of B
    streamed: int  # the operand that comes in panels: 0 for A, 1 for B
    rank: int  # in the order of the mesh
    itemsize: int

    @property
    def in_order(self) -> tuple[Exchange, Exchange]:
        """The exchange of the whole operand, and that of the one in panels."""
        return self.exchanges[1 - self.streamed], self.exchanges[self.streamed]

    @cached_property
    def travel(self) -> bool:
        """True if a rank lacks a piece of an operand."""
        return any(exchange.travels for exchange in self.exchanges)

    @cached_property
    def copies(self) -> CopySchedule:
        """The same as copies between GPUs."""
        return CopySchedule(self.in_order, self.rank, self.itemsize)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of this rank's part of C."""
        of_a, of_b = (exchange.needed[self.rank] for exchange in self.exchanges)
        return of_a.shape[0], of_b.shape[1]

    @cached_property
    def spans(self) -> tuple[slice, list[slice]]:
        """The vectors of the whole operand, and those of each panel, in this rank's
        part of C.
        """
        whole, streamed = self.in_order
        (panel,) = whole.panels
        return whole.span(panel, self.rank), [
            streamed.span(panel, self.rank) for panel in streamed.panels
        ]


def moves_of(a: DTensor, b: DTensor, layout: Layout, workspace: int | None) -> Moves:
    """The moves of both operands to where a layout needs them, kept for later calls."""
    placements = a.placements, b.placements
    mesh = a.device_mesh
    rank = ranks_of(mesh).here
    key = "mesh moves", layout, placements, a.dtype, workspace, rank
    itemsize = a.dtype.itemsize
    return once(
        key,
        lambda: _moves(layout, placements, itemsize, workspace, rank),
        "mesh",
    )


def _moves(
    layout: Layout,
    placements: tuple[Placements, Placements],
    itemsize: int,
    workspace: int | None,
    rank: int,
) -> Moves:
    m, n, k = layout.shape
    widest = None
    panel_bytes = share(workspace, "panels")
    if panel_bytes is not None:
        widest = max(panel_bytes // (UNDER_WAY * k * itemsize), 1)
    streamed = layout.streamed

    def exchange(side: int) -> Exchange:
        return exchange_of(
            ((m, k), (k, n))[side],
            side,
            placements[side],
            (layout.left, layout.right)[side],
            layout.mesh,
            pace=layout.pace if side == streamed else None,
            widest=widest if side == streamed else None,
        )

    return Moves((exchange(0), exchange(1)), streamed, rank, itemsize)


class Wire(Protocol):
    """What brings the panels of a call."""

    def panels(self, index: int) -> Iterator[Tensor]:
        """The panels of an operand: 0 for the whole one, 1 for the one in panels."""

    def finish(self) -> None:
        """Nothing is read any more; other ranks may go on."""


@contextmanager
def travelling(
    a: DTensor, b: DTensor, moves: Moves, workspace: int | None
) -> Iterator[Wire]:
    """The panels of both operands on their way.

    All of them travel whatever this rank makes of them, as other ranks send and wait.
    """
    tensors = [x.to_local().resolve_conj().resolve_neg() for x in (a, b)]
    if moves.streamed == 0:
        tensors.reverse()
    wire = _wire(tensors, moves, a.device_mesh, workspace)
    try:
        yield wire
    finally:
        wire.finish()


def _wire(
    tensors: list[Tensor], moves: Moves, mesh: DeviceMesh, workspace: int | None
) -> Wire:
    """Copies between GPUs where these can write to each other and what travels has
    room; else messages. All ranks take the same.
    """
    peers = _peers(moves, mesh, workspace)
    if peers is not None and peers.holds(moves.copies):
        return peers.call(moves.copies, tensors)
    ahead = None if workspace is None else 1
    agreed = partial(agree, mesh)
    return Messages(tensors, moves.in_order, ranks_of(mesh), agreed, ahead)


def _peers(moves: Moves, mesh: DeviceMesh, workspace: int | None) -> Peers | None:
    """The GPUs of a mesh, if they can write to each other what travels."""
    if workspace is not None or not moves.travel:
        return None
    peers = peers_of(mesh)
    return peers if peers is not None and peers.takes(moves.copies) else None


def wire_of(moves: Moves, mesh: DeviceMesh, workspace: int | None) -> str:
    """How panels travel, in words; nothing is allocated for that."""
    if not moves.travel:
        return ""
    by_copies = _peers(moves, mesh, workspace) is not None
    return "copies from GPU to GPU" if by_copies else "messages"


class Arrived:
    """Panels that are kept once they are here, to be visited again."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._kept: dict[int, list[Tensor]] = {}

    def panels(self, index: int) -> Iterator[Tensor]:
        """The panels of an operand, again and again."""
        if index in self._kept:
            yield from self._kept[index]
            return
        kept = []
        for x in self._wire.panels(index):
            kept.append(x)
            yield x
        self._kept[index] = kept


class Pair(NamedTuple):
    """What is multiplied at a time: a part of A and a part of B, and which rows and
    columns of this rank's part of C that makes.
    """

    operands: tuple[Tensor, Tensor]
    entries: tuple[slice, slice]
    panel: int = 0  # the number of the panel among those of its operand


def visit_pairs(
    wire: Wire | Arrived,
    moves: Moves,
    visit: Callable[[Pair], None],
    begin: Callable[[Tensor], None] | None = None,
    first_error: Exception | None = None,
) -> Exception | None:
    """The first error of the visits to the whole operand and each panel; None if there
    is none. After an error nothing is visited, but all panels arrive.

    `begin` gets the whole operand before the first panel is waited for.
    """
    (whole,) = wire.panels(0)
    whole_span, spans = moves.spans
    if begin is not None and first_error is None and whole.numel():
        _, first_error = result_or_error(begin, whole)
    for i, (span, x) in enumerate(zip(spans, wire.panels(1), strict=True)):
        pair = Pair((whole, x), (whole_span, span), i)
        if moves.streamed == 0:
            pair = Pair((x, whole), (span, whole_span), i)
        is_empty = 0 in (pair.operands[0].shape[0], pair.operands[1].shape[1])
        if first_error is None and not is_empty:
            _, first_error = result_or_error(visit, pair)
    return first_error


@dataclass(eq=False)
class KeptProducts:
    """What the first products of a rank leave for those of later calls of a kind."""

    # the operand that stays, prepared
    prepare: Callable[[Tensor], Prepared] | None = None
    # A B of each panel, by its number
    calls: dict[int, KeptCall] = field(default_factory=dict)


@dataclass
class LocalProducts:
    """alpha A B + beta C of this rank's part of C, by the products of one device.

    The operand that stays is split into residues or slices once, if it meets several
    panels and there is room for them.
    """

    method: Method
    out: Tensor
    moves: Moves
    alpha: complex = 1.0
    beta: complex = 0.0
    c: Tensor | None = None
    workspace: int | None = None
    # the products of a pair are counted, where the count depends on the operands; on a
    # GPU that waits for each pair
    counts_products: bool = False
    kept: KeptProducts = field(default_factory=KeptProducts)
    num_products: int = 0  # the most that a pair took
    _prepared: Prepared | None = None

    def begin(self, whole: Tensor) -> None:
        """Prepare the operand that stays, as far as that needs no panel."""
        if not self._prepares(whole):
            return
        if self.method.scheme is None:
            # For correct rounding `prepare` makes a copy too; a count needs none.
            side = _SIDES[self._stays]
            self._prepared = prepared(whole, side, None, self.method.accuracy, "auto")
        elif self.kept.prepare is not None:
            # A kept call has tensors of the current device, and no autocast.
            self._prepared = self.kept.prepare(whole)

    def __call__(self, pair: Pair) -> None:
        """Write the entries of a pair."""
        operands: list[Tensor | Prepared] = [*pair.operands]
        accuracy, scheme = self.method.accuracy_and_scheme
        if self._prepares(pair.operands[self._stays]):
            operands[self._stays] = self._whole_operand(pair)
            # Prepared operands have accuracy and scheme in their plan.
            accuracy, scheme = None, "auto"
        x, y = operands
        out = self.out[pair.entries]
        limit = share(self.workspace, "products")
        has_report = self.counts_products and not self.method.is_fixed
        if self.c is None and self.alpha == 1 and not has_report:
            self._product(pair.panel, x, y, out, accuracy, scheme, limit)
            return
        result = gemm_of_numbers(
            x,
            y,
            None if self.c is None else self.c[pair.entries],
            accuracy,
            scheme,
            limit,
            alpha=self.alpha,
            beta=self.beta,
            out=out,
            return_report=has_report,
        )
        if has_report:
            _, report = result
            self.num_products = max(self.num_products, report.num_products)

    def _product(
        self,
        panel: int,
        x: Tensor | Prepared,
        y: Tensor | Prepared,
        out: Tensor,
        accuracy: Accuracy,
        scheme: str | Scheme,
        workspace: int | None,
    ) -> None:
        """Write A B of a pair: by what is kept of an earlier one, if it takes these."""
        call = self.kept.calls.get(panel)
        refused: Refused | None = None
        if call is not None:
            outcome = call(x, y, out)
            if not isinstance(outcome, Refusal):
                call.delivered(outcome, out, False)
                return
            refused = Refused(call, outcome)
        key = key_of(x, y, out, accuracy, scheme, None, workspace)
        product_of_numbers(
            x,
            y,
            accuracy,
            scheme,
            out,
            workspace=workspace,
            key=key,
            refused=refused,
        )
        # What the plan of a prepared operand rests on may differ in the next call.
        call = kept(key)
        if call is not None and (self._prepared is None or self.method.is_fixed):
            self.kept.calls[panel] = call

    @property
    def _stays(self) -> int:
        """The operand that meets all panels of the other one."""
        return 1 - self.moves.streamed

    def _prepares(self, whole: Tensor) -> bool:
        """True if the operand that stays meets several panels, and residues or slices
        of it have room. Residues of Ozaki scheme II take a byte for each modulus.
        """
        scheme = self.method.scheme
        _, streamed = self.moves.in_order
        if len(streamed.panels) < 2:
            return False
        if scheme is None:
            return self.workspace is None
        if not self.method.is_fixed:
            return False
        nbytes = whole.numel() * (3 if whole.is_complex() else 1) * scheme.count
        limit = share(self.workspace, "residues")
        return limit is None or nbytes <= limit

    def _whole_operand(self, pair: Pair) -> Prepared:
        """The operand that stays, prepared: by a plan of the first pair where none is
        kept.
        """
        if self._prepared is None:
            x = pair.operands[self._stays]
            side = _SIDES[self._stays]
            library, engine = library_and_engine(x)
            with library.active():
                plan = _plan_of_pairs(pair, self.method, self.workspace)
                self.kept.prepare = _preparing(x, side, plan, library, engine)
                self._prepared = self.kept.prepare(x)
        return self._prepared


def _preparing(
    like: Tensor, side: str, plan: Plan, library: Library, engine: Engine
) -> Callable[[Tensor], Prepared]:
    """How operands that are laid out as this one are prepared by a plan."""
    x = library.asarray(like, "a")
    split = splitting(plan, own_stack(x, side, plan.problem), side, engine)
    preparation = Preparation(plan, plan, x.dtype, split, None)
    return lambda tensor: preparation(library.asarray(tensor, "a"), side, library)


def _plan_of_pairs(pair: Pair, method: Method, workspace: int | None) -> Plan:
    """The plan of all pairs, under which no bound is worked out."""
    scheme: Any = method.scheme
    limit = share(workspace, "products")
    plan = make_plan(*pair.operands, scheme=scheme, workspace=limit)
    return replace(plan, target=NOTHING_STATED)
