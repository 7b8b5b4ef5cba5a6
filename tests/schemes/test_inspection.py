"""Looks at operands: how far, in which order, and what evidence they leave."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import CORRECT, NO_PROMISE, Target
from hifigemm.model.plan import Evidence
from hifigemm.model.problem import Problem
from hifigemm.numerics.error_ratio import count_for_ratio, error_ratio
from hifigemm.numerics.residues import MAX_MODULI
from hifigemm.numerics.scaling import gained_bits, required_bits
from hifigemm.schemes import inspection
from hifigemm.schemes.inspection import Inspection, largest_error_ratio
from hifigemm.schemes.moduli_counts import exact_count, expected_count
from hifigemm.schemes.scheme import int8_product
from tests.hard_matrices import with_units
from tests.host_programs import ProgramEngine

WORKSPACE = 2**28


def inspection_of(
    a, b, target, engine=None, *, by_norms=True, explicit=False, mirror=""
):
    """A look at two matrices."""
    problem = Problem(1, *a.shape[:1], b.shape[1], a.shape[1], a.dtype, mirror=mirror)
    engine = engine or engine_for("numpy")
    return Inspection(
        problem, target, a[None], b[None], engine, WORKSPACE, by_norms, explicit
    )


class AskedEngine(NumpyEngine):
    """Keeps how many bits were asked for."""

    def __init__(self):
        self.most = []

    def override(self, function):
        def asked(a, b, most, entries):
            self.most.append(most)
            return required_bits(a, b, most, entries)

        return asked if function is required_bits else function


@pytest.mark.parametrize("is_complex", [False, True])
def test_plans_look_for_bits_as_far_as_their_moduli_reach(is_complex):
    a = np.ones((1, 3, 4), complex if is_complex else float)
    problem, engine, scheme = Problem(1, 3, 3, 4, a.dtype), AskedEngine(), hg.Ozaki2()
    for target, count in ((Target(0.0, correct=True), 49), (Target(1e-10), None)):
        count = count or expected_count(problem, target)
        found = scheme.evidence(
            problem, target, a / 3, np.swapaxes(a, 1, 2) / 7, engine, 2**28
        )
        assert engine.most.pop() == 2 * gained_bits(count, is_complex)
        assert found.error_ratio is None
    assert not hg.Ozaki2(num_moduli=9).needs_evidence(problem, target, engine)


@pytest.mark.parametrize("r", [1e-10, 1e-30])
def test_fast_plans_look_for_bits_as_far_as_the_moduli_reach_that_the_error_ratio_asks_for(
    make_pair, r
):
    a, b = (x[None] for x in make_pair("phi_2", 5, 30, 4))
    problem, engine = Problem(1, 5, 4, 30, a.dtype), AskedEngine()
    found = hg.Ozaki2(scaling="fast").evidence(problem, Target(r), a, b, engine, 2**28)
    assert found.error_ratio == error_ratio(a, b, int8_product(engine), 2**14, 10**6)
    count = max(
        expected_count(problem, Target(r)),
        count_for_ratio(30, r, found.error_ratio, False),
    )
    assert engine.most == [2 * gained_bits(count, False)]


def test_where_programs_choose_operands_are_read_for_correct_rounding_only():
    x, engine = np.full((1, 3, 3), 1 / 3), ProgramEngine()
    problem = Problem(1, 3, 3, 3, x.dtype)
    for scheme in (hg.Ozaki2(scaling="fast"), hg.Ozaki2(num_moduli=9, scaling="fast")):
        for target in (NO_PROMISE, Target(1e-9)):
            assert not scheme.needs_evidence(problem, target, engine)
        assert scheme.needs_evidence(problem, Target(0.0, correct=True), engine)
        found = scheme.evidence(problem, Target(0.0, correct=True), x, x, engine, 2**28)
        assert found == Evidence(required_bits=required_bits(x, x, 10**4, 2**14))


@pytest.fixture
def in_units(make_pair):
    """Operands that powers of two along k make flat."""
    return with_units(*make_pair("phi_0.1", 20, 120, 18), 200)


def test_operands_of_one_size_are_looked_at_once(make_pair, monkeypatch):
    a, b = make_pair("phi_0.1", 20, 120, 18)
    look = inspection_of(a, b, Target(1e-10))
    ways = []
    for name in ("along_k", "without_vectors"):
        monkeypatch.setattr(Inspection, name, lambda self, name=name: ways.append(name))
    evidence = look.evidence(scales_along_k=False)
    assert ways == []
    assert not evidence.inner
    assert evidence.error_ratio == largest_error_ratio(
        a[None], b[None], look.engine, WORKSPACE
    )


def test_operands_in_units_are_looked_at_along_k(in_units):
    a, b = in_units
    evidence = inspection_of(a, b, CORRECT).evidence(scales_along_k=False)
    assert evidence.inner
    assert evidence == inspection_of(a, b, CORRECT).along_k()
    plain = required_bits(a[None], b[None], 10**6, 2**14)
    assert sum(evidence.required_bits) < sum(plain)


@pytest.mark.parametrize(
    "options", [{"explicit": True}, {"mirror": "T"}], ids=["forced", "mirrored"]
)
def test_forced_counts_and_mirrored_products_are_looked_at_as_they_are(options):
    rng = np.random.default_rng(3)
    a, b = with_units(
        rng.standard_normal((18, 120)), rng.standard_normal((120, 18)), 200
    )
    assert inspection_of(a, b, CORRECT).evidence(False).inner
    assert not inspection_of(a, b, CORRECT, **options).evidence(False).inner


def test_a_scheme_that_scales_along_k_looks_once(in_units, monkeypatch):
    look = inspection_of(*in_units, CORRECT)
    want = look.along_k()
    monkeypatch.setattr(inspection, "expected_count", lambda problem, target: 0)
    monkeypatch.setattr(Inspection, "along_k", lambda self: pytest.fail("once more"))
    assert look.evidence(scales_along_k=True) == want


def test_data_without_a_pattern_gain_nothing_along_k(make_pair):
    a, b = make_pair("phi_4", 20, 120, 18)
    assert inspection_of(a, b, CORRECT).along_k() is None
    evidence = inspection_of(a, b, CORRECT).evidence(scales_along_k=False)
    assert not evidence.inner


def test_another_way_is_taken_where_it_asks_for_fewer_moduli(in_units, monkeypatch):
    look = inspection_of(*in_units, CORRECT)
    first = Evidence(required_bits=(90, 90))
    for bits, is_taken in (((50, 90), True), ((90, 90), False), ((99, 99), False)):
        other = Evidence(required_bits=bits, inner=True)
        assert (look._better(first, lambda other=other: other) is other) == is_taken
    assert look._better(first, lambda: None) is first
    # Beyond all moduli any other evidence is as good.
    beyond = Evidence(required_bits=(2000, 2000))
    other = Evidence(required_bits=(2001, 2001))
    assert look._better(beyond, lambda: other) is other


@pytest.mark.parametrize(
    ("target", "by_norms", "has_ratio"),
    [
        (Target(1e-10), True, True),
        (Target(1e-10), False, False),
        (CORRECT, True, False),
        (Target(1e-10, relative=1e-10), True, False),
        (NO_PROMISE, True, False),
    ],
)
def test_a_ratio_is_looked_for_where_norms_scale_and_a_number_is_asked_for(
    make_pair, target, by_norms, has_ratio
):
    a, b = make_pair("phi_0.1", 20, 120, 18)
    evidence = inspection_of(a, b, target, by_norms=by_norms).evidence(False)
    assert (evidence.error_ratio is not None) == has_ratio


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_empty_operands_have_no_ratio(shape):
    m, k, n = shape
    evidence = inspection_of(np.ones((m, k)), np.ones((k, n)), Target(1e-10)).evidence(
        scales_along_k=False
    )
    assert evidence.error_ratio is None


def test_a_ratio_does_not_depend_on_the_workspace(make_pair):
    a, b = (x[None] for x in make_pair("phi_1", 20, 120, 18))
    engine = engine_for("numpy")
    ratios = [largest_error_ratio(a, b, engine, 2**size) for size in (8, 14, 28)]
    assert ratios == [ratios[0]] * 3
    assert math.isfinite(ratios[0])


@pytest.fixture
def every_size_is_large(monkeypatch):
    """Vectors are sought apart in small matrices, too."""
    monkeypatch.setattr(inspection, "may_separate", lambda problem: True)


def wild_rows(num_rows):
    """Operands of integers, but for rows of A that no moduli hold."""
    a, b = np.ones((20, 9)), np.ones((9, 8))
    a[:num_rows, 0] = 1.5 * 2.0**1000
    a[:num_rows, 1] = 1.5 * 2.0**-1000
    return a, b


def test_vectors_that_no_moduli_hold_are_named(every_size_is_large):
    look = inspection_of(*wild_rows(2), CORRECT, ProgramEngine())
    evidence = look.without_vectors()
    assert (evidence.separate.rows, evidence.separate.cols) == ((0, 1), ())
    # The bits are those of the others.
    ones = np.ones((1, 20, 9)), np.ones((1, 9, 8))
    assert evidence.required_bits == required_bits(*ones, 10**6, 2**14)


def test_vectors_are_separate_for_exact_products_by_kernels_only(every_size_is_large):
    a, b = wild_rows(2)
    for target, engine, by_norms in (
        (CORRECT, engine_for("numpy"), True),
        (Target(1e-10), ProgramEngine(), True),
        (CORRECT, ProgramEngine(), False),
    ):
        look = inspection_of(a, b, target, engine, by_norms=by_norms)
        assert look.without_vectors() is None


def test_vectors_are_sought_last(every_size_is_large, in_units):
    found = inspection_of(*wild_rows(2), CORRECT, ProgramEngine()).evidence(False)
    assert found.separate is not None
    # Where powers of two along k make the integers short, no vector is separate.
    found = inspection_of(*in_units, CORRECT, ProgramEngine()).evidence(False)
    assert found.inner
    assert found.separate is None


def test_no_vectors_are_sought_where_moduli_hold_all(make_pair, monkeypatch):
    monkeypatch.setattr(
        Inspection, "without_vectors", lambda self: pytest.fail("sought")
    )
    look = inspection_of(*make_pair("phi_4", 20, 120, 18), CORRECT, ProgramEngine())
    evidence = look.evidence(scales_along_k=False)
    count = exact_count(False, *evidence.required_bits)
    assert expected_count(look.problem, CORRECT) < count <= MAX_MODULI
