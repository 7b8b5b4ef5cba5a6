"""Panels of A times panels of B: each pair once, in the order in which they arrive."""

from __future__ import annotations

from itertools import product

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.distributed.method import Method  # noqa: E402
from hifigemm.distributed.panels import Panel, panel_here  # noqa: E402
from hifigemm.distributed.schedule import LocalProducts, visit_pairs  # noqa: E402

FIXED = hg.Ozaki2(num_moduli=14, scaling="fast")


def tracked(events, side, count, shape=(2, 2)):
    """Panels that note when they start and when they are waited for."""

    def panel(i):
        def start():
            events.append(("start", side, i))

            def wait():
                events.append(("wait", side, i))
                return torch.full(shape, float(i))

            return wait

        return Panel(slice(2 * i, 2 * i + 2), start)

    return [panel(i) for i in range(count)]


@pytest.mark.parametrize("ahead", [0, 1, 2, None])
@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1, 4), (3, 2), (0, 2)])
def test_every_pair_is_visited_once_and_panels_are_ahead(counts, ahead):
    events, visits = [], []
    left, right = (tracked(events, side, n) for side, n in enumerate(counts))

    def visit(x, y):
        visits.append((int(x.x[0, 0]), int(y.x[0, 0])))
        assert (x.meets_several, y.meets_several) == (counts[1] > 1, counts[0] > 1)

    assert visit_pairs(left, right, ahead, visit) is None
    assert sorted(visits) == list(product(range(counts[0]), range(counts[1])))
    for kind in ("start", "wait"):
        assert len([x for x in events if x[0] == kind]) == sum(counts)
    under_way = most = 0
    for kind, *_ in events:
        under_way += 1 if kind == "start" else -1
        most = max(most, under_way)
    assert most == min(sum(counts), sum(counts) if ahead is None else ahead + 1)


def test_all_panels_arrive_though_a_visit_fails_and_the_first_error_is_told():
    events, visits = [], []
    left, right = (tracked(events, side, 2) for side in (0, 1))

    def visit(x, y):
        visits.append(1)
        raise ValueError(f"visit {len(visits)}")

    error = visit_pairs(left, right, 1, visit)
    assert str(error) == "visit 1"
    assert len(visits) == 1
    assert len([x for x in events if x[0] == "wait"]) == 4


def test_panels_without_vectors_meet_nobody():
    left = tracked([], 0, 2, shape=(0, 2))
    assert (
        visit_pairs(left, tracked([], 1, 2), None, lambda *_: pytest.fail("a visit"))
        is None
    )


@pytest.mark.parametrize(
    "options",
    [
        {"method": Method(FIXED, None)},
        {"method": Method(FIXED, None), "workspace": 2**16},
        {"method": Method(None, "correct")},
        {"method": Method(FIXED, None), "alpha": -0.5, "beta": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("counts_products", [False, True])
def test_pairs_of_panels_have_the_bits_of_the_whole_product(options, counts_products):
    generator = torch.Generator().manual_seed(1)
    a, b, c = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((7, 40), (40, 9), (7, 9))
    )
    out = torch.full((7, 9), torch.nan, dtype=torch.float64)
    addend = c if "beta" in options else None
    multiply = LocalProducts(
        out=out, c=addend, counts_products=counts_products, **options
    )
    rows = [panel_here(at, a[at]) for at in (slice(0, 3), slice(3, 7))]
    cols = [panel_here(at, b[:, at]) for at in (slice(0, 4), slice(4, 9))]
    assert visit_pairs(rows, cols, None, multiply) is None
    scalars = {name: options[name] for name in ("alpha", "beta") if name in options}
    want = hg.gemm(a, b, addend, **scalars, **options["method"].options)
    assert torch.equal(out, want)
    has_report = counts_products and not options["method"].is_fixed
    assert (multiply.num_products > 0) == has_report


def test_residues_are_kept_as_far_as_the_workspace_goes():
    x = torch.zeros((10, 10), dtype=torch.float64)
    multiply = LocalProducts(Method(FIXED, None), x, workspace=4 * 3000)
    assert [multiply._reserve(x) for _ in range(3)] == [True, True, False]
    assert multiply._residue_bytes == 2 * 14 * 100
    assert not LocalProducts(Method(None, "correct"), x)._reserve(x)
