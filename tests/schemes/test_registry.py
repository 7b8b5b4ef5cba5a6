"""Schemes are found by their names, and where users look for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import hifigemm as hg
from hifigemm.schemes.registry import SCHEMES, as_scheme

FAST = hg.Ozaki2(scaling="fast")


def test_schemes_by_name():
    assert as_scheme("auto") is None
    assert as_scheme("ozaki2") == hg.Ozaki2()
    assert as_scheme(FAST) is FAST
    with pytest.raises(hg.PlanError, match=r"'strassen'.*native.*ozaki1"):
        as_scheme("strassen")
    with pytest.raises(
        hg.PlanError,
        match=r"is a class; expected an instance, such as hifigemm.Ozaki2\(\)",
    ):
        as_scheme(hg.Ozaki2)


@pytest.mark.parametrize("package", ["", "hg.", "hifigemm."])
@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_a_scheme_in_quotes_is_shown_without_them(package, scheme):
    text = repr(scheme())
    with pytest.raises(hg.PlanError) as caught:
        as_scheme(package + text)
    assert f"scheme=hg.{text} without quotes" in str(caught.value)
    with pytest.raises(hg.PlanError, match='expected "auto"'):
        as_scheme(f"X{text}")


@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_every_scheme_is_public_has_a_type_for_its_name_and_a_page(scheme):
    assert getattr(hg, scheme.__name__) is scheme
    assert scheme.__name__ in hg.__all__
    signatures = Path(hg.__file__).with_name("signatures.pyi").read_text()
    names = signatures.partition("SchemeName: TypeAlias = Literal[")[2].partition("]")[
        0
    ]
    assert f'"{scheme.name}"' in names
    page = Path(__file__).parents[2] / "docs" / "api" / "schemes.md"
    assert f"::: hifigemm.{scheme.__name__}\n" in page.read_text()
