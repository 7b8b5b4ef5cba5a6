"""Summaries: rows, calls and seconds of products, and what no summary can count."""

from __future__ import annotations

import json
from statistics import median

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.interop.summary import Row, _add  # noqa: E402
from tests.interop.scopes import exact, scope_without_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def test_the_summary_counts_times_and_saves(tmp_path, random):
    a, b = random(40, 70), random(70, 60)
    with hg.emulate("correct", summary=True) as products:
        for _ in range(4):
            a @ b
        a[:, :0] @ b[:0]
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
    assert emulated.native_calls == len(emulated.pairs) == 3
    assert emulated.gain == median(native / own for own, native in emulated.pairs)
    assert (other.calls, other.gain) == (1, None)
    products.save(tmp_path / "products.json")
    rows = json.loads((tmp_path / "products.json").read_text())["products"]
    assert [(row["operation"], row["calls"], row["reason"]) for row in rows] == [
        ("mm", 4, emulated.reason),
        ("mm", 1, "nothing to multiply"),
    ]
    head, *table = str(products).splitlines()
    assert len(table) == 2
    assert "speed-up" in head
    assert f"  {emulated.gain:.2f}  " in table[0]


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 9])
def test_a_speed_up_of_fewer_than_three_native_products_is_not_printed(calls, random):
    a, b = random(40, 70), random(70, 60)
    with hg.emulate("correct", summary=True) as products:
        for _ in range(calls):
            a @ b
    (row,) = products.rows
    assert row.native_calls == min(calls - 1, 3)
    assert (row.gain is None) == (calls < 4)
    text = "not measured" if calls < 4 else f"{row.gain:.2f}"
    assert text in str(products)


def test_one_slow_native_product_does_not_make_a_speed_up():
    row = Row("mm", "float64", "cpu", ((2, 2), (2, 2)), "Ozaki2()", "")
    for native in (1.0, 100.0, 1.0):
        _add(row, "seconds", 2.0)
        _add(row, "native_seconds", native)
    assert (row.gain, row.native_seconds) == (0.5, 1.0)


def test_an_operation_that_is_not_reached_is_named_where_it_is_alone():
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    weight = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    text = "no product of PyTorch was seen in this scope but inside operations that are not reached"
    with (
        pytest.warns(UserWarning, match=text),
        hg.emulate("correct", summary=True) as products,
    ):
        torch.nn.functional.conv2d(x, weight)
    assert str(products).splitlines()[:2] == [text, "not reached: convolution 1"]
    assert "NumPy" not in str(products)


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
        remark = str(products).splitlines()[-1]
        assert remark.startswith("not watched (PyTorch builds them from mul and sum)")
        assert name in remark
        assert len(remark) < 140
    # Where products were seen, nobody misses one.
    with hg.emulate("correct", summary=True) as products:
        p @ q
    assert "not watched" not in str(products)
    with hg.emulate("correct"):
        assert torch.dot(strided, ones) == torch.inner(strided.contiguous(), ones) == 1
        assert torch.equal(p @ q, exact(p, q))
