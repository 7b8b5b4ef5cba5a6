"""The part of a rank: the whole of one operand times each panel of the other one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.distributed.tensor import Replicate, Shard  # noqa: E402

from hifigemm.distributed import part  # noqa: E402
from hifigemm.distributed.exchange import exchange_of  # noqa: E402
from hifigemm.distributed.layout import MeshProduct, candidates  # noqa: E402
from hifigemm.distributed.method import Method  # noqa: E402
from hifigemm.distributed.panels import Pace, panel_seconds_of  # noqa: E402
from hifigemm.distributed.part import (  # noqa: E402
    Arrived,
    LocalProducts,
    Moves,
    Pair,
    moves_of,
    visit_pairs,
    wire_of,
)

FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")


def moves(m, k, n, streamed, widest):
    """The moves of one rank, to which nothing travels."""
    exchanges = tuple(
        exchange_of(
            shape,
            side,
            (Shard(0),),
            (Replicate(),),
            (1,),
            pace=Pace(1.0, 4.0) if side == streamed else None,
            widest=widest if side == streamed else None,
        )
        for side, shape in enumerate(((m, k), (k, n)))
    )
    return Moves(exchanges, streamed, 0, 8)


class Here:
    """A wire whose panels are there, and are counted."""

    def __init__(self, a, b, found):
        self.operands = (a, b)
        self.moves = found
        self.count = 0

    def panels(self, index):
        side = self.moves.streamed if index else 1 - self.moves.streamed
        for panel in self.moves.in_order[index].panels:
            self.count += 1
            rows, cols = panel.regions[0]
            yield self.operands[side][rows, cols]

    def finish(self):
        pass


@pytest.mark.parametrize("streamed", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"method": Method(FIXED, None)},
        {"method": Method(FIXED, None), "workspace": 2**16},
        {"method": Method(None, "correct")},
        {"method": Method(None, "correct"), "workspace": 2**20},
        {"method": Method(FIXED, None), "alpha": -0.5, "beta": 3.0},
        {"method": Method(None, "correct"), "alpha": -0.5, "beta": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("counts_products", [False, True])
def test_pairs_have_the_bits_of_the_whole_product(options, counts_products, streamed):
    generator = torch.Generator().manual_seed(1)
    a, b, c = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((7, 40), (40, 9), (7, 9))
    )
    out = torch.full((7, 9), torch.nan, dtype=torch.float64)
    addend = c if "beta" in options else None
    found = moves(7, 40, 9, streamed, 3)
    multiply = LocalProducts(
        out=out, moves=found, c=addend, counts_products=counts_products, **options
    )
    assert visit_pairs(Here(a, b, found), found, multiply, multiply.begin) is None
    scalars = {name: options[name] for name in ("alpha", "beta") if name in options}
    accuracy, scheme = options["method"].accuracy_and_scheme
    want = hg.gemm(a, b, addend, accuracy=accuracy, scheme=scheme, **scalars)
    assert torch.equal(out, want)
    has_report = counts_products and not options["method"].is_fixed
    assert (multiply.num_products > 0) == has_report


@pytest.mark.parametrize(
    ("n", "counts"), [(2048, (1, 1)), (4096, (2, 1)), (8192, (3, 2)), (16384, (3, 3))]
)
def test_large_operands_of_gpus_come_in_panels(n, counts, monkeypatch):
    """Fewer where a product waits for its device, one where all wait for both operands
    whole.
    """
    rows = (Shard(0),)
    monkeypatch.setattr(part, "ranks_of", lambda mesh: SimpleNamespace(here=0))

    def panels(method, workspace=None):
        seconds = panel_seconds_of(method, workspace)
        call = MeshProduct((n, n, n), 8, (4,), rows, rows, rows, 14, "cuda", seconds)
        layout = candidates(call, adds=False)[0]
        a = SimpleNamespace(placements=rows, device_mesh=None, dtype=torch.float64)
        made = moves_of(a, a, layout, workspace)
        return len(made.in_order[1].panels)

    fixed, correct = Method(FIXED, None), Method(None, "correct")
    waiting = Method(hg.Ozaki2(scaling="fast"), None, waits=True)
    assert (panels(fixed), panels(correct)) == counts
    assert panels(waiting) == 1
    assert panels(waiting, 2**30) >= counts[0]


def test_the_operand_that_stays_is_prepared_once_and_within_the_workspace():
    a, b = torch.ones((10, 10)).double(), torch.ones((10, 9)).double()
    pair = Pair((a, b), (slice(0, 10), slice(0, 3)))
    several, one = moves(10, 10, 9, 1, 3), moves(10, 10, 9, 1, None)
    for workspace, fits in ((None, True), (4 * 1400, True), (4 * 1399, False)):
        multiply = LocalProducts(Method(FIXED, None), a, several, workspace=workspace)
        assert multiply._prepares(a) == fits
        multiply = LocalProducts(Method(FIXED, None), a, one, workspace=workspace)
        assert not multiply._prepares(a)
    multiply = LocalProducts(Method(FIXED, None), a, several)
    assert multiply._whole_operand(pair) is multiply._whole_operand(pair)


def test_all_panels_arrive_though_a_visit_fails_and_the_first_error_is_told():
    found = moves(7, 4, 9, 1, 3)
    a, b = torch.zeros((7, 4)), torch.zeros((4, 9))
    visits = []

    def visit(pair):
        visits.append(pair)
        raise ValueError(f"visit {len(visits)}")

    wire = Here(a, b, found)
    assert str(visit_pairs(wire, found, visit)) == "visit 1"
    assert (len(visits), wire.count) == (1, 4)
    wire = Here(a, b, found)
    earlier = MemoryError("nothing is left")
    assert visit_pairs(wire, found, visit, None, earlier) is earlier
    assert (len(visits), wire.count) == (1, 4)


def test_panels_without_vectors_meet_nobody():
    found = moves(0, 4, 9, 1, 3)
    wire = Here(torch.zeros((0, 4)), torch.zeros((4, 9)), found)
    assert visit_pairs(wire, found, lambda _: pytest.fail("a visit")) is None


def test_panels_that_have_arrived_are_there_again():
    found = moves(7, 4, 9, 1, 3)
    wire = Here(torch.zeros((7, 4)), torch.zeros((4, 9)), found)
    arrived = Arrived(wire)
    for _ in range(2):
        assert [len(list(arrived.panels(i))) for i in (0, 1)] == [1, 3]
        assert wire.count == 4


def test_where_nothing_travels_there_is_no_wire(one_rank):
    assert wire_of(moves(7, 4, 9, 1, 3), one_rank, None) == ""
