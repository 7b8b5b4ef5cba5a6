"""Inf and NaN in operands, scalars and C."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.blas.cases import draw, stored, stored_vector
from tests.blas.routines import DTYPES, INTERFACES, ROUTINES, call
from tests.exact_values import rounded_sum

SPECIAL = [np.inf, -np.inf, np.nan]


def gemm(library, a, b, c, alpha, beta):
    """alpha A B + beta C by the library, for matrices that lie by rows."""
    p = {np.dtype(v): k for k, v in DTYPES.items()}[a.dtype]
    result = c.copy()
    m, k = a.shape
    n = b.shape[1]
    arguments = {"transa": "N", "transb": "N", "m": m, "n": n, "k": k, "alpha": alpha}
    arguments |= {
        "A": a,
        "lda": k,
        "B": b,
        "ldb": n,
        "beta": beta,
        "C": result,
        "ldc": n,
    }
    call(library, INTERFACES[4], p, "gemm", "rows", arguments)
    return result


def by_terms(a, b, c, alpha, beta):
    """The sum as IEEE arithmetic makes it, term by term."""
    result = c * a.dtype.type(beta) if beta else np.zeros_like(c)
    for h in range(a.shape[1]):
        result = result + a[:, h : h + 1] * (a.dtype.type(alpha) * b[h : h + 1])
    return result


@np.errstate(all="ignore")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inf_and_nan_propagate_and_all_other_entries_are_rounded_once(library, dtype):
    for index in range(200):
        rng = np.random.default_rng(index)
        m, k, n = (int(x) for x in rng.integers(1, 8, 3))
        a, b, c = (
            rng.integers(-2, 3, shape).astype(dtype) + dtype(0.1)
            for shape in ((m, k), (k, n), (m, n))
        )
        a[rng.random(a.shape) < 0.2] = 0
        for x in (a, b, c):
            is_special = rng.random(x.shape) < rng.choice([0, 0.02, 0.2])
            x[is_special] = rng.choice(SPECIAL, int(is_special.sum()))
        alpha, beta = (
            float(dtype(x))
            for x in rng.choice([1.0, -2.0, 0.3, 1.0, -1.0, np.inf, np.nan], 2)
        )
        beta = 0.0 if index % 3 == 0 else beta
        result = gemm(library, a, b, c, alpha, beta)
        expected = by_terms(a, b, c, alpha, beta)
        is_finite = np.isfinite(expected)
        assert np.array_equal(result[~is_finite], expected[~is_finite], equal_nan=True)
        if not is_finite.any():
            continue
        clean = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
        exact = rounded_sum(*clean, alpha, beta)
        assert result[is_finite].tobytes() == exact[is_finite].tobytes()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_entries_without_inf_and_nan_are_rounded_once(library, dtype):
    rng = np.random.default_rng(1)
    for alpha, beta in ((1, 0), (-0.5, 2), (0.1 + 2j, 1j)):
        alpha, beta = (complex(dtype(x)) for x in (alpha, beta))
        a, b, c = (
            (rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4))).astype(
                dtype
            )
            for _ in range(3)
        )
        a[1, 2] = complex(np.nan, 1)
        b[0, 3] = complex(0, -np.inf)
        c[3, 0] = complex(np.inf, 0)
        result = gemm(library, a, b, c, alpha, beta)
        clean = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
        exact = rounded_sum(*clean, alpha, beta)
        is_reached = np.zeros((4, 4), bool)
        is_reached[1] = is_reached[:, 3] = True
        is_reached[3, 0] = beta != 0
        assert result[~is_reached].tobytes() == exact[~is_reached].tobytes()
        assert not np.isfinite(result[is_reached]).any()
        if beta == 1j:  # i Inf has a real part that is finite
            assert result[3, 0].real == exact[3, 0].real


def test_structural_zeros_multiply_nothing(library):
    """Inf in a row of B that a triangle does not reach stays there."""
    a = np.tril(np.ones((3, 3)))
    b = np.ones((3, 2))
    b[2] = np.inf, np.nan
    arguments = {"side": "L", "uplo": "L", "transa": "N", "diag": "N", "m": 3, "n": 2}
    arguments |= {"alpha": 1.0, "A": a, "lda": 3, "B": b, "ldb": 2}
    call(library, INTERFACES[4], "d", "trmm", "rows", arguments)
    assert np.array_equal(b, [[1, 1], [2, 2], [np.inf, np.nan]], equal_nan=True)


@pytest.mark.parametrize(
    "routine", [p + f for f, (types, _) in ROUTINES.items() for p in types]
)
def test_operands_are_not_read_where_alpha_is_zero(library, routine):
    """Not even those that are NaN; trmv has no alpha."""
    p, name = routine[0], routine[1:]
    if name == "trmv":
        return
    index = 0
    while True:
        rng = np.random.default_rng([index, zlib.crc32(routine.encode())])
        case = draw(rng, name, p)
        if case.arguments["alpha"] == 0 and case.order == "columns":
            break
        index += 1
    for key in "AXB":
        if key in case.arguments and case.arguments[key] is not case.result.data:
            is_result = np.shares_memory(case.arguments[key], case.result.memory)
            if not is_result:
                case.arguments[key][...] = np.nan
    call(library, INTERFACES[0], p, name, case.order, case.arguments)
    assert not case.fault()


def test_vectors_with_nan_between_their_entries_are_read_by_their_increments(library):
    rng = np.random.default_rng(0)
    x = stored_vector(rng, np.ones((4, 1)))
    a = stored(rng, np.ones((4, 4)), "columns")
    y = stored_vector(rng, np.zeros((4, 1)))
    arguments = {"trans": "N", "m": 4, "n": 4, "alpha": 1.0, "A": a.data, "lda": a.ld}
    arguments |= {"X": x.data, "incx": x.ld, "beta": 0.0, "Y": y.data, "incy": y.ld}
    call(library, INTERFACES[0], "d", "gemv", "columns", arguments)
    assert (y.values == 4).all()
