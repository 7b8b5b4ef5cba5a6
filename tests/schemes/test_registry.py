"""Schemes are found by their names, and where users look for them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import hifigemm as hg
from hifigemm import schemes
from hifigemm.schemes import SCHEMES, as_scheme

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
    signatures = (Path(hg.__file__).parent / "model" / "signatures.pyi").read_text()
    names = signatures.partition("SchemeName: TypeAlias = Literal[")[2].partition("]")[
        0
    ]
    assert f'"{scheme.name}"' in names
    page = Path(__file__).parents[2] / "docs" / "api" / "schemes.md"
    assert f"::: hifigemm.{scheme.__name__}\n" in page.read_text()


def test_the_package_of_schemes_has_each_class_and_no_other_name():
    for name in schemes.__all__:
        assert getattr(schemes, name) is not None
    for scheme in SCHEMES.values():
        assert getattr(schemes, scheme.__name__) is scheme
    with pytest.raises(
        AttributeError, match=r"'hifigemm\.schemes' has no .*'Strassen'"
    ):
        getattr(schemes, "Strassen")  # noqa: B009


@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_the_options_of_a_scheme_are_its_fields(scheme):
    assert {*scheme.options} == {field.name for field in fields(scheme)}


def test_a_scheme_is_made_for_the_first_time_in_a_compiled_program(torch):
    """In a fresh process, where no call has made one before."""
    lines = ["import torch, hifigemm as hg", "x = torch.rand(4, 4)"]
    for scheme in SCHEMES.values():
        call = f"hg.matmul(x, x, scheme=hg.{scheme.__name__}())"
        compiled = f"torch.compile(lambda x: {call}, backend='eager', fullgraph=True)"
        lines.append(f"assert torch.equal({compiled}(x), {call})")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], text=True)
    assert done.returncode == 0
