"""The primitives of other libraries that exactness rests on, and that a fault in one is
named.
"""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.cli import main
from hifigemm.engines import engine_for
from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.testing.primitives import Finding, findings
from hifigemm.testing.primitives.functions import functions
from hifigemm.testing.primitives.places import Place, on_device
from hifigemm.testing.primitives.products import exact_products

NUMPY = Place("NumPy")


def at_fault(found):
    return {
        finding.name: finding.fault
        for finding in found
        if finding.fault and finding.used
    }


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


@pytest.mark.torch
def test_arrays_of_a_device_run_through_the_same_checks():
    assert not at_fault(functions(on_device("cpu")))


def spoiled(function, where):
    """The function with one entry changed in calls for which `where` holds of its first
    argument.
    """

    def changed(x, *others, **options):
        found = np.array(function(x, *others, **options))
        if where(x):
            found.flat[-1] += 1
        return found

    return changed


def test_a_function_that_fails_in_one_stride_is_named_with_the_stride(monkeypatch):
    monkeypatch.setattr(
        np, "rint", spoiled(np.rint, lambda x: x.strides == (64,) and x.size > 16)
    )
    found = at_fault(functions(NUMPY))
    assert list(found) == ["rint (float64)"]
    assert found["rint (float64)"].startswith("stride 8, size 17: entry 16 is ")


def test_a_lost_sign_of_zero_is_a_fault(monkeypatch):
    trunc = np.trunc
    monkeypatch.setattr(np, "trunc", lambda x, **options: trunc(x, **options) + 0.0)
    assert "is 0.0, not -0.0" in at_fault(functions(NUMPY))["trunc (float64)"]


def test_a_product_that_rounds_at_its_limit_is_named(monkeypatch):
    product = NumpyEngine.exact_product

    def rounded(self, spec, a, b, x, y):
        found = product(self, spec, a, b, x, y)
        return (
            found.astype(np.float16).astype(found.dtype)
            if spec.name == "tf32" and a.shape[2] == 7
            else found
        )

    with np.errstate(over="ignore"):
        monkeypatch.setattr(NumpyEngine, "exact_product", rounded)
        found = at_fault(exact_products(engine_for("numpy"), NUMPY))
    assert list(found) == ["exact tf32 products"]
    assert "(1 x 7) @ (7 x 1)" in found["exact tf32 products"]


@pytest.mark.parametrize(
    ("fault", "used", "code"),
    [("", True, 0), ("stride 3", True, 1), ("stride 3", False, 0)],
)
def test_the_command_fails_where_a_primitive_in_use_does(
    monkeypatch, capsys, fault, used, code
):
    finding = Finding("rint", "NumPy 9", 7, fault, used)
    monkeypatch.setattr("hifigemm.cli.findings", lambda: iter([finding]))
    assert main(["info", "--check"]) == code
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("rint " if used else "not used: rint ")
    assert line.endswith(f"AT FAULT: {fault}" if fault else "ok")
