"""The primitives of other libraries that exactness rests on, and that a fault in one is
named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hifigemm.cli import main
from hifigemm.testing.primitives import Finding, findings
from hifigemm.testing.primitives.platforms import Platform
from tests.testing.primitives.faults import at_fault

NUMPY = Platform("NumPy")


def test_every_primitive_of_the_cpu_is_exact():
    found = list(findings())
    assert not at_fault(found)
    assert all(finding.cases for finding in found)
    assert {
        "rint (float64)",
        "float64 to float32",
        "sum (int64)",
        "exact int8 products",
    } <= {x.name for x in found}


@pytest.mark.gpu
def test_every_primitive_of_the_gpu_is_exact():
    found = [finding for finding in findings() if "cuda" in finding.library]
    assert not at_fault(found)
    assert {"rint (float64)", "exact int8 products", "exact tf32 products"} <= {
        x.name for x in found
    }


@pytest.mark.parametrize(
    ("fault", "used", "code"),
    [("", True, 0), ("stride 3", True, 1), ("stride 3", False, 0)],
)
def test_the_command_fails_where_a_primitive_in_use_does(
    monkeypatch, capsys, fault, used, code
):
    finding = Finding("rint", "NumPy 9", 7, fault, used)
    monkeypatch.setattr("hifigemm.testing.primitives.findings", lambda: iter([finding]))
    assert main(["info", "--check"]) == code
    lines = capsys.readouterr().out.splitlines()
    line = lines.pop(-2 if fault else -1)
    assert line.startswith("rint " if used else "not used: rint ")
    assert line.endswith(f"AT FAULT: {fault}" if fault else "ok")
    if fault and used:
        assert lines[-1].endswith("its results may be wrong here: rint")
    if fault and not used:
        assert "its results are right: rint. Your own code may" in lines[-1]
        page = lines[-1].split()[-1]
        assert (Path(__file__).parents[2] / page).is_file()
