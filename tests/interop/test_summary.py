"""Summaries: rows, calls and seconds of products, and what no summary can count."""

from __future__ import annotations

import json

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from tests.interop.scopes import exact, scope_without_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def test_the_summary_counts_times_and_saves(tmp_path, random):
    a, b = random(40, 70), random(70, 60)
    with hg.emulate("correct", summary=True) as products:
        for _ in range(4):
            a @ b
        a.half() @ b.half()
    emulated, other = products.rows
    assert (emulated.operation, emulated.dtype, emulated.device) == (
        "mm",
        "float64",
        a.device.type,
    )
    assert (emulated.shapes, emulated.calls, emulated.timed_calls) == (
        ((40, 70), (70, 60)),
        4,
        4,
    )
    assert "DoubleDouble" in emulated.scheme  # on a GPU as well, where it is small
    assert emulated.seconds > 0
    assert emulated.gain == pytest.approx(
        emulated.native_seconds * 4 / emulated.seconds
    )
    assert (other.calls, other.gain) == (1, None)
    products.save(tmp_path / "products.json")
    rows = json.loads((tmp_path / "products.json").read_text())["products"]
    assert [(row["operation"], row["calls"], row["reason"]) for row in rows] == [
        ("mm", 4, emulated.reason),
        ("mm", 1, "dtype float16"),
    ]
    table, remark = str(products).splitlines()[:-1], str(products).splitlines()[-1]
    assert len(table) == 3
    assert "speed-up" in table[0]
    assert remark.startswith("never counted")


def test_products_that_fail_are_not_counted():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", workspace=1, summary=True) as products,
        pytest.raises(hg.PlanError),
    ):
        a @ b
    assert [(row.calls, row.timed_calls) for row in products.rows] == [(0, 0)]


def test_sums_of_products_without_an_operator_are_named_in_each_summary():
    """inner, tensordot and einsum that PyTorch makes of mul and sum: native, and said
    to be.
    """
    strided = torch.tensor([1e16, 9, 1, 9, -1e16], dtype=torch.float64)[::2]
    ones = torch.ones(3, dtype=torch.float64)
    p = torch.randn(3, 1, dtype=torch.complex128)
    q = torch.randn(1, 3, dtype=torch.complex128)
    calls = [
        ("inner", torch.inner, (strided, ones)),
        ("tensordot", torch.tensordot, (strided, ones, 1)),
        ("einsum", torch.einsum, ("ij,jk->ik", p, q)),
        ("vecdot", torch.linalg.vecdot, (p, p)),
        ("kron", torch.kron, (p, q)),
        ("outer", torch.outer, (ones, ones)),
    ]
    for name, function, operands in calls:
        native = function(*operands)
        with scope_without_products("correct", summary=True) as products:
            assert torch.equal(function(*operands), native)
        assert products.rows == []
        assert name in str(products).splitlines()[-1]
    with hg.emulate("correct"):
        assert torch.dot(strided, ones) == torch.inner(strided.contiguous(), ones) == 1
        assert torch.equal(p @ q, exact(p, q))
