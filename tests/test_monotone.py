"""No request costs more than a stronger one: what ran, by the reports, weighed by one
table, over families of data.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.engines import core
from hifigemm.testing.matrices import COST_FAMILIES, phi_matrix
from tests.host_programs import ProgramEngine

N = 64
MARGIN = 1.1
"""What the looks of a weaker request may add."""

PAIR_MARGIN = 1.4
"""A pair begins with sums in three words; other requests take them where double-double
sums, which are a third of their products, have left most entries.
"""

# Of one table for all requests, in BLAS products of n^3: not the planner's costs, and
# no clock.
PASSES = {"native": 0.2, "double-double": 3.0, "ozaki1": 3.0, "ozaki2": 2.0}
"""Passes of a scheme over operands and result."""
ESCALATION = 0.5
"""Entries that are gathered and put back."""
PRODUCT = {"native": 4.0, "ozaki2": 1.0}
"""Products on a GPU, in INT8 products: about as many of them as a native product takes
the time of on an H200.
"""
LOOK = 0.75
"""A product of magnitudes by which the device chooses."""

REQUESTS = {
    "None": {},
    "1e-6": {"accuracy": 1e-6},
    "1e-12": {"accuracy": 1e-12},
    "1e-14": {"accuracy": 1e-14},
    "1e-16": {"accuracy": 1e-16},
    "1e-20": {"accuracy": 1e-20},
    "Relative(1e-3)": {"accuracy": hg.Relative(1e-3)},
    "Relative(1e-12)": {"accuracy": hg.Relative(1e-12)},
    "correct": {"accuracy": "correct"},
    "pair": {"result": "pair"},
}
CHAINS = (
    ("1e-6", "1e-12", "1e-14", "1e-16", "1e-20", "correct", "pair"),
    ("1e-12", "Relative(1e-12)", "correct"),
    ("Relative(1e-3)", "Relative(1e-12)", "correct"),
    ("None", "correct"),
)
"""Requests from weak to strong. The native product's own worst case is no number, so
None is beside the others.
"""


def cost_on_cpu(report: hg.Report) -> float:
    """What ran: products, those of entries that were escalated by their share, passes
    of every scheme, escalations.
    """
    schemes = [report.scheme.name, *_escalations(report)]
    if core.loaded()[0] and schemes == ["native", "double-double"]:
        # A native product is tried before the core is, which takes three times as long:
        # that it may keep nothing is a third of the price, and not counted.
        return report.num_products - 1 + PASSES["double-double"]
    return (
        report.num_products
        + sum(PASSES[name] for name in schemes)
        + ESCALATION * (len(schemes) - 1)
    )


def _escalations(report):
    """Names of the schemes to which entries were escalated."""
    names = {"Ozaki1": "ozaki1", "Ozaki2": "ozaki2", "DoubleDouble": "double-double"}
    parts = report.reason.split(" escalated by ")[1:]
    return [names[part.split("(")[0]] for part in parts]


def costs_of(a, b, cost, requests=REQUESTS, **options):
    """The cost of every request for two operands."""
    found = {}
    for request in requests:
        asked = {**REQUESTS[request], **options}
        _, report = hg.matmul(a, b, return_report=True, **asked)
        found[request] = cost(report)
    return found


def dearer(costs):
    """The requests that cost more than a stronger one, with what they cost."""
    violations = []
    for chain in CHAINS:
        requests = [request for request in chain if request in costs]
        for weak, strong in combinations(requests, 2):
            margin = PAIR_MARGIN if strong == "pair" else MARGIN
            if costs[weak] > margin * costs[strong]:
                violations.append((weak, costs[weak], strong, costs[strong]))
    return violations


@pytest.mark.parametrize("family", COST_FAMILIES)
def test_no_request_costs_more_than_a_stronger_one_on_a_cpu(family):
    a, b = COST_FAMILIES[family](np.random.default_rng(1), N)
    assert dearer(costs_of(a, b, cost_on_cpu)) == []


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    "family",
    ["phi 0.5", "phi 2", "phi 8", "A D, D^-1 B over 60 bits", "Q^T Q", "Hilbert"],
)
def test_nor_for_other_dtypes(family, dtype):
    a, b = COST_FAMILIES[family](np.random.default_rng(2), 24)
    x, y = (
        z.astype(dtype) * (1 + 0.3j if dtype == "complex128" else 1) for z in (a, b)
    )
    requests = [
        name for name in REQUESTS if dtype != "float32" or name != "Relative(1e-12)"
    ]
    assert dearer(costs_of(x, y, cost_on_cpu, requests)) == []


@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("family", ["phi 0.5", "phi 2", "Q^T Q", "Hilbert"])
def test_nor_for_narrower_results(family, dtype, out_dtype):
    a, b = COST_FAMILIES[family](np.random.default_rng(4), 24)
    with np.errstate(over="ignore"):
        x, y = (z.astype(dtype) for z in (a, b))
    requests = [name for name in REQUESTS if name not in ("pair", "Relative(1e-12)")]
    costs = costs_of(x, y, cost_on_cpu, requests, out_dtype=out_dtype)
    assert dearer(costs) == []


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0, 20.0]),
    st.sampled_from([0, 20, 60, 200]),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([0, 60, 300]),
)
def test_a_report_never_says_that_a_weaker_request_did_more(
    seed, phi, span, sign, spike
):
    rng = np.random.default_rng(seed)
    a, b = phi_matrix(rng, (9, 40), phi), phi_matrix(rng, (40, 8), phi)
    exponents = rng.integers(0, span, 40, endpoint=True)
    a, b = np.ldexp(a, exponents), np.ldexp(b, sign * exponents[:, None])
    a[rng.integers(9), rng.integers(40)] *= 2.0**spike
    assert dearer(costs_of(a, b, cost_on_cpu)) == []


# A GPU: an engine with programs, which carries them out by the plain maths and notes
# them.


@pytest.fixture
def device(monkeypatch):
    engine = ProgramEngine()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    return engine


SUMS_ON_DEVICE = 30.0
"""Native products in the time of double-double sums: 69 ms beside 2.3 at n = 4096 on an
H200.
"""


def cost_on_device(engine: ProgramEngine):
    """What ran since the last call: the programs in turn, then the
    entries that were escalated.
    """

    def cost(report: hg.Report) -> float:
        looks = sum(LOOK for plan in engine.done if plan.certifies or plan.alternatives)
        name = report.scheme.name
        price = SUMS_ON_DEVICE if name == "double-double" else PRODUCT.get(name, 1.0)
        products = report.num_products * price
        # Programs that were given up had made residues.
        given_up = max(len(engine.done) - 1, 0) * PASSES["ozaki2"]
        engine.done.clear()
        escalated = _escalations(report)
        passes = sum(PASSES[name] for name in (report.scheme.name, *escalated))
        return looks + products + given_up + passes + ESCALATION * len(escalated)

    return cost


DEFAULT_BESIDE_SHORT_DATA = {"None", "1e-6", "1e-12", "1e-14"}
"""What a native product keeps waits for no look at the operands, so it does not know
that they are short.
"""


@pytest.mark.parametrize("family", COST_FAMILIES)
def test_no_request_costs_more_than_a_stronger_one_on_a_device(device, family):
    a, b = COST_FAMILIES[family](np.random.default_rng(1), N)
    requests = [name for name in REQUESTS if name != "pair"]
    found = dearer(costs_of(a, b, cost_on_device(device), requests))
    if family == "integers of 20 bits":
        found = [case for case in found if case[0] not in DEFAULT_BESIDE_SHORT_DATA]
    assert found == []
