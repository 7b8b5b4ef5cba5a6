"""Products in FP64 behind a predicate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hifigemm.engines.kernels.native_gemm import fp64_product
from hifigemm.numerics.bounds import native_bound

LARGEST = 2**63 - 1
PLACE = "cuda" if torch.cuda.is_available() else "cpu"


def product(a, b, shift=0, predicate=7, least=0, most=LARGEST):
    """What is written over sevens."""
    out = torch.full((max(len(a), len(b)), a.shape[1], b.shape[2]), 7.0, dtype=torch.float64, device=PLACE)
    bits = torch.tensor([predicate], dtype=torch.int64, device=PLACE)
    with np.errstate(all="ignore"):
        fp64_product(*(torch.from_numpy(x).to(PLACE) for x in (a, b)), out, (bits, least, most), shift)
    return out.cpu().numpy()


@pytest.mark.parametrize("shape", [(1, 5, 7, 3), (1, 65, 33, 70), (2, 64, 16, 64), (1, 1, 1, 1)])
def test_errors_stay_below_those_of_any_order(make_pair, shape):
    batch, m, k, n = shape
    a, b = make_pair("phi_4", m, k, n)
    a = np.stack([a * 2.0**i for i in range(batch)])
    found = product(a, b[None])
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    assert (abs(found - exact) <= native_bound(k, 2.0**-53) * (abs(a) @ abs(b)) * (1 + 1e-12)).all()


@pytest.mark.parametrize("shift", [-1074, -1073, -1023, -1022, -1, 0, 1, 1023])
def test_shifts_round_once(shift):
    rng = np.random.default_rng(1)
    a, b = rng.integers(1, 2**20, (1, 6, 1)).astype(float), rng.integers(1, 2**20, (1, 1, 5)).astype(float)
    for scale in (1.0, 2.0**-30, 2.0**-1000):
        with np.errstate(all="ignore"):
            want = np.ldexp(a * scale * b, shift)
        np.testing.assert_array_equal(product(a * scale, b, shift), want)


@pytest.mark.parametrize(("predicate", "least", "most"), [(5, 6, LARGEST), (5, 0, 4), (0, 0, -1), (2**62, 0, 2**61)])
def test_nothing_is_written_where_the_predicate_does_not_hold(predicate, least, most):
    a = np.ones((1, 3, 3))
    assert (product(a, a, predicate=predicate, least=least, most=most) == 7.0).all()


def test_special_values_meet_no_padding():
    a, b = np.ones((1, 5, 19)), np.ones((1, 19, 4))
    a[0, 1, 18], b[0, 18, 2] = np.inf, -np.inf
    a[0, 3, 0] = np.nan
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(product(a, b), a @ b)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "89", "90", "100"])
def test_kernels_compile_without_spills(arch):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script = Path(__file__).parent / "compiled_plain_product.py"
    done = subprocess.run([sys.executable, script, arch], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(line)
        assert found["STL"] == found["LDL"] == 0, found
        assert "i32" not in found["doubled"], found
        assert (found["DMMA"] > 0) == (found["type"] == "fp64" and arch in ("80", "90")), found
