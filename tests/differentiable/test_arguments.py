"""Accuracies and schemes as text: each stands for what it was made of, and no text for
anything else.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hifigemm as hg
from hifigemm.differentiable.arguments import (
    accuracy_from,
    accuracy_text,
    scheme_from,
    scheme_text,
)
from tests.interop.texts import ACCURACIES, SCHEMES


@pytest.mark.parametrize("text", ACCURACIES)
def test_texts_of_accuracies_in_graphs_stand_for_what_they_stood_for(text):
    accuracy = accuracy_from(text)
    assert type(accuracy) is type(ACCURACIES[text])
    assert accuracy == ACCURACIES[text]


@pytest.mark.parametrize("text", SCHEMES)
def test_texts_of_schemes_in_graphs_stand_for_what_they_stood_for(text):
    scheme = scheme_from(text)
    assert type(scheme) is type(SCHEMES[text])
    assert scheme == SCHEMES[text]


def test_text_stands_for_accuracies_and_schemes():
    for accuracy in (None, "fp64", "correct", 1e-12, 0.1, hg.Relative(1e-3)):
        assert accuracy_from(accuracy_text(accuracy)) == accuracy
        invariant = hg.Invariant(accuracy)
        assert accuracy_from(accuracy_text(invariant)) == invariant
        assert accuracy_from(repr(invariant)) == invariant
        assert accuracy_from(f"hg.{invariant!r}") == invariant
    schemes = (
        hg.Native(),
        hg.Multiword("fp16", 2, 3),
        hg.Corrected("tf32"),
        hg.Ozaki1(num_slices=4),
        hg.Ozaki2(num_moduli=9),
    )
    for scheme in ("auto", "ozaki2", *schemes):
        assert scheme_from(scheme_text(scheme)) == scheme
    for scheme in schemes:
        for package in ("hg.", "hifigemm.", " "):
            assert scheme_from(package + scheme_text(scheme)) == scheme
    for text in (
        "Ozaki2(num_moduli=open('x'))",
        "Ozaki3()",
        "Ozaki2(moduli=3)",
        "Ozaki2(",
        "print(1)",
        "np.Ozaki2()",
        "hg.hg.Ozaki2()",
    ):
        with pytest.raises(hg.PlanError, match="expected a name"):
            scheme_from(text)


@given(st.floats(min_value=0.0, exclude_min=True, max_value=1.0, exclude_max=True))
def test_every_number_and_relative_error_survives_its_text(r):
    for accuracy in (r, hg.Relative(r)):
        copy = accuracy_from(accuracy_text(accuracy))
        assert type(copy) is type(accuracy)
        assert copy == accuracy


@pytest.mark.parametrize(
    "text",
    [
        "Relative(1e-12)",
        "Relative(r=1e-12)",
        "hg.Relative(1e-12)",
        "hifigemm.Relative(r=1e-12)",
        "  Relative(1e-12) ",
    ],
)
def test_a_relative_error_is_read_as_a_program_writes_it(text):
    assert accuracy_from(text) == hg.Relative(1e-12)


@pytest.mark.parametrize("text", ["Relative(2)", "Relative(0)", "Relative(nan)"])
def test_a_relative_error_beyond_its_range_raises(text):
    with pytest.raises(hg.PlanError, match="between 0 and 1"):
        accuracy_from(text)


@pytest.mark.parametrize("text", ["correct", "fp64", "exact", "Relative(two)"])
def test_a_text_that_is_no_number_stays_itself(text):
    assert accuracy_from(text) == text


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_the_text_of_a_scheme_names_every_field(scheme):
    text = scheme_text(scheme)
    assert scheme_from(text) == scheme
    if not isinstance(scheme, str):
        assert text == repr(scheme)
        assert all(f"{field.name}=" in text for field in fields(scheme))


def test_the_text_of_a_scheme_runs_nothing(tmp_path):
    path = tmp_path / "written"
    with pytest.raises(hg.PlanError, match="expected a name"):
        scheme_from(f"Ozaki2(num_moduli=open({str(path)!r}, 'w'))")
    assert not path.exists()
