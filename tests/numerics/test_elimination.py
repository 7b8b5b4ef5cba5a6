"""Elimination of a few columns, by the compiled core as by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm.engines import core
from hifigemm.numerics.elimination import factor_panel


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (9, 9)])
def test_the_panel_of_the_core_is_the_plain_one(shape):
    run = core.override(factor_panel)
    a = np.random.default_rng(1).standard_normal((shape[0], 2 * shape[1]))
    columns = a[:, : shape[1]]
    plain = columns.copy()
    order = factor_panel(plain)
    np.testing.assert_array_equal(run(columns), order)
    np.testing.assert_allclose(columns, plain, rtol=0, atol=1e-14)
    # Columns in the order of Fortran
    strided = np.asfortranarray(plain)
    run(strided)
    assert (np.abs(np.tril(strided, -1)) <= 1.0).all()


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built")
def test_panels_that_do_not_fit_raise():
    module = core.loaded()[0]
    order = np.empty((1, 2))
    for panel in (np.ones((2, 3)), np.ones((3, 2)), np.asfortranarray(np.ones((2, 2)))):
        with pytest.raises(ValueError, match="do not fit"):
            module.factor_panel(panel, order)
    with pytest.raises(TypeError, match="two"):
        module.factor_panel(order)
