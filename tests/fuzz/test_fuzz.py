"""The fuzzer: products at random keep their promises, and it tells where they do
not.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import hifigemm.numpy as hnp
from hifigemm import libraries
from hifigemm.libraries.array_like import as_array
from hifigemm.numerics import epilogue
from hifigemm.running import narrow
from hifigemm.schemes import ozaki1
from hifigemm.testing.reference import correctly_rounded
from tests.fuzz import functions
from tests.fuzz.cases import draw, laid_out
from tests.fuzz.judge import Exact
from tests.fuzz.run import case_of, fuzz


@pytest.mark.parametrize(
    ("seed", "cases"),
    [
        (1, 60),
        pytest.param(3, 60, marks=pytest.mark.torch),
        pytest.param(2, 2000, marks=pytest.mark.slow),
    ],
)
def test_products_keep_their_promises_however_they_are_asked_for(seed, cases):
    faults: list[str] = []
    counts = fuzz(seed, range(cases), faults.append)
    assert not faults, (
        f"{len(faults)} of {counts.total()} products, python -m tests.fuzz SEED INDEX:\n"
        + "\n".join(faults)
    )
    outcomes = Counter[str]()
    for (*_, outcome), count in counts.items():
        outcomes[outcome] += count
    assert outcomes["refused"] < outcomes["kept"] / 10


@pytest.mark.parametrize(
    ("seed", "cases"), [(1, 200), pytest.param(2, 4000, marks=pytest.mark.slow)]
)
def test_products_of_pytorch_in_a_scope_are_rounded_once_or_named_as_unseen(
    torch, seed, cases
):
    from tests.fuzz.scopes import fuzz_scopes

    faults: list[str] = []
    counts = fuzz_scopes(seed, range(cases), faults.append)
    assert not faults, "python -m tests.fuzz --what scopes SEED INDEX:\n" + "\n".join(
        faults
    )
    outcomes = Counter(outcome for *_, outcome in counts.elements())
    assert 0 < outcomes["unseen"] < outcomes["kept"] / 10


@pytest.mark.parametrize(
    ("shape", "cases"),
    [((3,), 8), pytest.param((2, 2), 200, marks=pytest.mark.slow)],
    ids=str,
)
def test_products_of_pytorch_on_a_mesh_are_rounded_once(torch, shape, cases):
    from tests.fuzz.scopes import run_on_mesh

    counts = run_on_mesh(shape, 1, cases)
    assert sum(counts.values()) > cases
    assert not [key for key in counts if key[-1] == "wrong"]


def test_wrong_entries_in_blocks_of_one_column_are_found(monkeypatch):
    def spoiled(b):
        out = right(b)
        if b.dtype.kind == "c" and b.shape[-1] == 1 < b.shape[-2]:
            out[..., -1, 0] = b[..., -1, 0].imag
        return out

    right = ozaki1.embed_right
    monkeypatch.setattr(ozaki1, "embed_right", spoiled)
    faults: list[str] = []
    fuzz(1, range(24, 40), faults.append)
    assert any("Ozaki1" in fault for fault in faults)


def test_a_power_of_two_that_all_entries_of_a_sum_share_is_found(monkeypatch):
    def shared(terms):
        top = max(np.frexp(s)[1] for s, _ in terms)
        return (
            sum(np.ldexp(s, -int(top)) * (x * 2.0**-40) for s, x in terms)
            * 2.0**40
            * 2.0 ** float(top - 1)
            * 2.0
        )

    monkeypatch.setattr(epilogue, "_scaled_sum", shared)
    faults: list[str] = []
    fuzz(
        1,
        [i for i in range(2000, 2200) if i % 8 < 5 and is_large(draw(1, i))],
        faults.append,
    )
    assert faults


def is_large(case):
    """True if halves of beta overflow."""
    return (
        case.gemm is not None
        and abs(case.gemm["beta"]) >= 2.0**997
        and np.isfinite(case.gemm["beta"])
    )


def test_integers_of_foreign_byte_order_with_other_values_are_found(monkeypatch):
    """Entries of uint64 as those of int64."""

    def spoiled(x, name):
        array = as_array(x, name)
        is_spoiled = not np.asarray(x).dtype.isnative and array.dtype == np.uint64
        return (
            array.astype(np.int64).astype(object)
            if is_spoiled and name != "out"
            else array
        )

    library = libraries.numpy_arrays.NumpyLibrary
    monkeypatch.setattr(library, "asarray", staticmethod(spoiled))
    faults: list[str] = []
    fuzz(1, range(6, 300, 8), faults.append)
    assert faults


def test_results_that_are_rounded_twice_are_found(monkeypatch):
    def nearest(lower, upper):
        with np.errstate(all="ignore"):
            return ((lower + upper) / 2).astype(np.float32).astype(np.float64)

    monkeypatch.setattr(narrow, "odd_between", nearest)
    faults: list[str] = []
    fuzz(1, range(5, 800, 8), faults.append)
    assert faults
    assert any("rounded once it is" in fault for fault in faults)


def test_functions_that_do_not_conjugate_are_found(monkeypatch):
    dims, function = functions.FUNCTIONS["vdot"][:2], hnp.dot
    monkeypatch.setitem(
        functions.FUNCTIONS, "vdot", (*dims, function, functions.FUNCTIONS["vdot"][3])
    )
    faults: list[str] = []
    fuzz(1, range(7, 500, 8), faults.append)
    assert faults
    assert all("vdot" in fault for fault in faults)


def test_layouts_and_byte_orders_and_scalars_are_all_drawn():
    cases = [case_of(1, i) for i in range(400)]
    ways = [way for case in cases for way in case.ways]
    assert {(way.swapped, way.seed is None) for way in ways} == {
        (x, y) for x in (False, True) for y in (False, True)
    }
    scalars = [
        abs(case.gemm["beta"])
        for case in cases
        if getattr(case, "gemm", None) is not None
    ]
    assert max(scalars) >= 2.0**997
    assert min(x for x in scalars if x) < 2.0**-900
    assert {type(case).__name__ for case in cases} == {
        "Case",
        "IntegerCase",
        "FunctionCase",
        "NarrowCase",
    }


def test_a_case_is_drawn_again_from_its_numbers():
    assert str(draw(3, 4)) == str(draw(3, 4))
    assert draw(3, 4).ways == draw(3, 4).ways != draw(3, 5).ways


def test_layouts_hold_the_same_entries():
    rng = np.random.default_rng(1)
    x, strides = rng.random((3, 4, 5)), set()
    for _ in range(200):
        view = laid_out(rng, x)
        np.testing.assert_array_equal(view, x)
        strides |= set(view.strides)
    assert {8, 16, 32, 64, 128, -8} <= strides


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_judge_sees_one_component_one_unit_away(make_pair, dtype):
    for name in ("phi_1", "cancelling", "underflowing", "overflowing"):
        a, b = make_pair(name, 4, 6, 3, dtype)
        expected, exact = correctly_rounded(a, b), Exact(a, b, dtype, None)
        assert not exact.fault(expected, 0.0, True)
        assert not exact.fault(expected, 0.0, False)
        parts = expected.view(expected.real.dtype)
        for wrong in (
            np.nextafter(parts[1, 2], parts.dtype.type(0)),
            -parts[1, 2],
            parts.dtype.type(np.nan),
        ):
            spoiled = parts.copy()
            spoiled[1, 2] = wrong
            if wrong != parts[1, 2] or np.signbit(wrong) != np.signbit(parts[1, 2]):
                assert "not rounded once" in exact.fault(
                    spoiled.view(dtype), 0.0, True
                ) or np.isnan(wrong)
            if np.isnan(wrong):
                assert "NaN" in exact.fault(spoiled.view(dtype), 0.5, False)
