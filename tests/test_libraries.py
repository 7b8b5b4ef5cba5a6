"""Whose arrays come in: one library and one device for all operands, and results of the
same kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.libraries import NUMPY, TorchLibrary, library_of

GPU = TorchLibrary("cuda:0")


def prepared_on(library):
    """An operand that was prepared elsewhere."""
    a = np.ones((3, 3))
    return replace(
        hg.prepare(a, "left", plan=hg.make_plan(a, a, scheme="ozaki1")), library=library
    )


class Foreign:
    """An array of a library that is not known here."""

    def __dlpack__(self):
        raise AssertionError("nothing is converted")


def test_what_numpy_converts_counts_as_numpy():
    assert library_of(("a", [[1.0]]), ("b", [[2.0]])) == NUMPY
    assert library_of(("a", np.ones(2)), ("b", [1, 2]), ("out", None)) == NUMPY
    assert library_of(("a", np.float64(1))) == NUMPY
    assert library_of() == NUMPY
    assert (str(NUMPY), str(GPU)) == ("numpy", "torch on cuda:0")
    assert NUMPY.on_host
    assert not GPU.on_host
    with NUMPY.active():
        pass


def test_prepared_operands_bring_their_library():
    assert library_of(("a", prepared_on(GPU)), ("b", None)) == GPU
    with pytest.raises(
        TypeError, match="a is of torch on cuda:0, b is of numpy; move one of them"
    ):
        library_of(("a", prepared_on(GPU)), ("b", np.ones((3, 3))))
    with pytest.raises(
        ValueError, match="a is of torch on cuda:0, b is of torch on cuda:1"
    ):
        library_of(("a", prepared_on(GPU)), ("b", prepared_on(TorchLibrary("cuda:1"))))
    with pytest.raises(TypeError, match="torch on cuda:0"):
        hg.matmul(prepared_on(GPU), np.ones((3, 3)))
    with pytest.raises(ValueError, match="b is of torch, out is of torch on cuda:0"):
        library_of(
            ("a", [1.0]),
            ("b", prepared_on(TorchLibrary("cpu"))),
            ("out", prepared_on(GPU)),
        )


@pytest.mark.parametrize("call", [hg.matmul, hg.gemm, hg.make_plan])
def test_arrays_of_other_libraries_are_refused_by_name(call):
    with pytest.raises(TypeError, match=r"Foreign.*from_dlpack"):
        call(Foreign(), np.ones((2, 2)))


def test_c_of_no_interest_may_be_of_another_library(torch):
    a = np.ones((2, 2))
    assert hg.gemm(a, a, torch.ones(2, 2), beta=0.0).tolist() == [[2.0, 2.0]] * 2
    with pytest.raises(TypeError, match="c is of torch"):
        hg.gemm(a, a, torch.ones(2, 2, dtype=torch.float64), beta=1.0)
