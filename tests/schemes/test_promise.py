"""The ratio behind counts that are chosen beforehand, against exact sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.schemes import promise
from hifigemm.study.reference import meets_promise


def exact_ratio(a, b):
    """max (||A_i|| sum|B_j| + ||B_j|| sum|A_i|) / |A||B|, norms in float64."""
    left = [[abs(Fraction(float(x))) for x in row] for row in a]
    right = [[abs(Fraction(float(x))) for x in column] for column in b.T]
    worst = 0.0
    for i, row in enumerate(left):
        for j, column in enumerate(right):
            sizes = sum(x * y for x, y in zip(row, column, strict=True))
            above = Fraction(np.linalg.norm(a[i])) * sum(column) + Fraction(np.linalg.norm(b[:, j])) * sum(row)
            worst = max(worst, float(above / sizes) if sizes else (np.inf if above else 0.0))
    return worst


@pytest.mark.parametrize("family", ["uniform", "phi_0.1", "phi_1", "integers", "sparse", "empty_rows_and_columns"])
def test_ratio_is_not_below_the_exact_one(make_pair, family):
    a, b = make_pair(family, 6, 40, 7)
    found = promise.error_ratio(a[None], b[None], engine_for("numpy"), 16384, 10)
    exact = exact_ratio(a, b)
    assert found >= exact * (1 - 1e-12)
    if np.isfinite(found):
        assert found <= 1.5 * exact


def test_ratio_does_not_depend_on_parts_nor_on_vectors_with_special_values(make_pair):
    a, b = make_pair("phi_1", 30, 50, 20)
    a, b = np.stack([a, 2 * a[::-1]]), b[None].copy()
    want = promise.error_ratio(a, b[:, :, 1:], engine_for("numpy"), 16384, 10**6)
    b[0, 3, 0] = np.inf
    assert want == promise.error_ratio(a, b, engine_for("numpy"), 64, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("r", [1e-6, 1e-10, 1e-14, 1e-18])
def test_a_count_seen_beforehand_keeps_the_target_in_every_entry(make_pair, dtype, r):
    for family in ("uniform", "phi_0.1", "phi_1"):
        a, b = make_pair(family, 9, 200, 8, dtype)
        c, report = hg.matmul(a, b, scheme=hg.Ozaki2(scaling="fast"), accuracy=r, return_report=True)
        assert "in every entry" in report.reason or "exact" in report.reason
        assert report.bound <= r
        assert meets_promise(c, a, b, r).all()


def test_a_plan_for_other_operands_is_judged_again(make_pair):
    easy, hard = make_pair("phi_1", 8, 100, 8), make_pair("phi_8", 8, 100, 8)
    plan = hg.make_plan(*easy, scheme=hg.Ozaki2(scaling="fast"), accuracy="fp64")
    c, report = hg.matmul(*hard, plan=plan, return_report=True)
    assert meets_promise(c, *hard, plan.target.r).all()
    assert "refined" in report.reason
