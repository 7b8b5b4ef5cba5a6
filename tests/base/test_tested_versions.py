"""The versions that were tested are the same wherever they are named, and what is
installed here is told.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hifigemm.base.tested_versions import TESTED

ROOT = Path(__file__).parents[2]


def text_of(name):
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not part of this tree")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "end"), [("oldest", 0), ("newest", 1)])
def test_requirements_name_the_ends_of_the_range(name, end):
    pins = dict(
        re.findall(
            r"^(\w+)==([\d.]+)", text_of(f"requirements/{name}.txt"), re.MULTILINE
        )
    )
    assert pins == {library: TESTED[library][end] for library in ("torch", "triton")}


def test_the_extras_take_every_version_from_the_oldest_on():
    declared = text_of("pyproject.toml")
    for library, name in (("numpy", "numpy"), ("torch", "torch"), ("jax", "jax")):
        (oldest,) = set(re.findall(rf'"{name}>=([\d.]+)"', declared))
        assert TESTED[library].oldest.startswith(oldest)


@pytest.mark.parametrize("page", ["README.md", "docs/gpu.md"])
def test_pages_name_the_range(page):
    for library, name in (("torch", "PyTorch"), ("triton", "Triton")):
        oldest, newest = (
            ".".join(version.split(".")[:2]) for version in TESTED[library]
        )
        assert f"{name} {oldest} to {newest}" in text_of(page)


def test_ci_tries_the_ends_of_the_range_and_what_is_on_offer():
    workflow = text_of(".github/workflows/ci.yml")
    for library in ("torch", "triton"):
        assert f"{library}=={TESTED[library].oldest}" in workflow
        assert f'{library}: "{library}"' in workflow
    assert "schedule:" in workflow


def test_gluon_is_known_for_every_triton_of_the_range():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from hifigemm.kernels.runtime.launch import _GLUON_SERIES

    oldest, newest = (version.rpartition(".")[0] for version in TESTED["triton"])
    assert (_GLUON_SERIES[0], _GLUON_SERIES[-1]) == (oldest, newest)
