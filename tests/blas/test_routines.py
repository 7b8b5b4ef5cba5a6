"""Routines that return nothing: every bit that they write, under all names."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import hifigemm as hg
from tests.blas.cases import draw
from tests.blas.routines import (
    DTYPES,
    INTERFACES,
    ONLY_IN_FORTRAN,
    REALS,
    ROUTINES,
    call,
)
from tests.exact_values import same_bits

ALL = [p + name for name, (types, _) in ROUTINES.items() for p in types]


def interface_for(rng, case):
    """An interface that has the routine of a case, and its order of entries."""
    needs_fortran = case.p + case.name in ONLY_IN_FORTRAN
    interfaces = [
        interface
        for interface in INTERFACES
        if interface.is_c != needs_fortran
        and (interface.is_c or case.order == "columns")
    ]
    if case.order == "columns" and not needs_fortran:
        interfaces = INTERFACES
    return interfaces[int(rng.integers(len(interfaces)))] if interfaces else None


@pytest.mark.parametrize("routine", ALL)
def test_every_number_is_the_exact_value_rounded_once(library, routine):
    for index in range(20):
        rng = np.random.default_rng([index, zlib.crc32(routine.encode())])
        case = draw(rng, routine[1:], routine[0])
        interface = interface_for(rng, case)
        if interface is None:
            continue  # rows, which Fortran does not have
        call(library, interface, case.p, case.name, case.order, case.arguments)
        assert not case.fault(), (index, interface, case.fault())


@pytest.mark.parametrize("p", "sdcz")
def test_products_of_many_blocks_are_rounded_once(library, p):
    rng = np.random.default_rng(3)
    for name in ("gemm", "syrk", "trmm", "syr2k", "gemv"):
        case = draw(rng, name, p, largest=150)
        call(library, INTERFACES[6], p, name, case.order, case.arguments)
        assert not case.fault()


@pytest.mark.parametrize("p", "sdcz")
@pytest.mark.parametrize(
    ("alpha", "beta"),
    [
        (1, 0),
        (-0.5, 1),
        (0.1, -0.7),
        (3, 2.5),
        (-1, 1),
        (0.1, 1),
        (1e-200, 0),
        (1e31, 1),
    ],
)
def test_gemm_has_the_bits_of_the_gemm_of_python(library, p, alpha, beta):
    rng = np.random.default_rng(9)
    dtype = DTYPES[p]
    alpha, beta = (float(REALS[p](x)) for x in (alpha, beta))
    a, b, c = (rng.standard_normal((70, 70)).astype(dtype) for _ in range(3))
    if p in "cz":
        a = a + dtype(1j) * b
    expected = hg.gemm(a, b, c, alpha=alpha, beta=beta, accuracy="correct")
    arguments = {"transa": "N", "transb": "N", "m": 70, "n": 70, "k": 70}
    arguments |= {"alpha": alpha, "A": a, "lda": 70, "B": b, "ldb": 70}
    arguments |= {"beta": beta, "C": c, "ldc": 70}
    call(library, INTERFACES[7], p, "gemm", "rows", arguments)
    assert same_bits(c, expected)
