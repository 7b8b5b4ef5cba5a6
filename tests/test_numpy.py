"""hifigemm.numpy has the functions, parameters and errors of NumPy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp

OURS = {"accuracy", "scheme", "engine", "workspace", "return_report"}
"""The options of every function, which may only be given by name."""
WITHOUT_NUMPY = {
    "congruence",
    "herk",
    "syrk",
    "BlocksReport",
    "ChainReport",
    "ThreeFactorsReport",
}
FUNCTIONS = [name for name in hnp.__all__ if name[0].islower()]


def of_numpy(name):
    """The function of that name, in numpy or in numpy.linalg."""
    return getattr(np, name, None) or getattr(np.linalg, name, None)


def test_all_functions_but_those_of_blas_are_those_of_numpy():
    for name in hnp.__all__:
        assert hasattr(hnp, name), name
        has_numpy = of_numpy(name) is not None
        if name not in ("matvec", "vecmat", "vecdot"):  # of NumPy 2.2 and newer
            assert has_numpy == (name not in WITHOUT_NUMPY), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_given_by_name_and_have_the_defaults_of_matmul(name):
    parameters = inspect.signature(getattr(hnp, name)).parameters
    of_matmul = inspect.signature(hg.matmul).parameters
    assert set(parameters) >= OURS
    for option in OURS:
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option].default == of_matmul[option].default


@pytest.mark.parametrize("name", ["tensordot", "multi_dot", "matrix_power", "outer"])
def test_parameters_are_those_of_numpy(name):
    ours = list(inspect.signature(getattr(hnp, name)).parameters)
    theirs = list(inspect.signature(of_numpy(name)).parameters)
    assert [x for x in ours if x not in OURS] == theirs


def test_matmul_takes_what_numpy_takes_by_place():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    out = np.empty((2, 4))
    assert hnp.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, np.matmul(a, b))
    with pytest.raises(TypeError):
        hnp.matmul(x1=a, x2=b)
    with pytest.raises(TypeError):
        np.matmul(x1=a, x2=b)


@pytest.mark.parametrize(
    "options", [{}, {"accuracy": "correct"}, {"scheme": hg.Ozaki2(num_moduli=9)}]
)
def test_matmul_is_that_of_the_package(make_pair, assert_same_bits, options):
    a, b = make_pair("phi_2", 5, 9, 4)
    value, report = hnp.matmul(a, b, **options, return_report=True)
    want, like = hg.matmul(a, b, **options, return_report=True)
    assert_same_bits(value, want)
    assert report == like
    with pytest.raises(hg.PlanError, match="engine='abacus'"):
        hnp.matmul(a, b, engine="abacus")
    with pytest.raises(hg.PlanError, match="workspace of 1 bytes"):
        hnp.matmul(a, b, scheme="ozaki2", workspace=1)


CALLS = {
    "dot": lambda xp, a, b: xp.dot(a, b),
    "vdot": lambda xp, a, b: xp.vdot(a, b.T),
    "inner": lambda xp, a, b: xp.inner(a, b.T),
    "outer": lambda xp, a, b: xp.outer(a, b),
    "matmul": lambda xp, a, b: xp.matmul(a, b),
    "tensordot": lambda xp, a, b: xp.tensordot(a, b, 1),
    "einsum": lambda xp, a, b: xp.einsum("ij,jk->ki", a, b),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "shapes", [((2, 3), (3, 4)), ((2, 3), (2, 4)), ((0, 3), (3, 0))]
)
def test_shapes_and_refusals_are_those_of_numpy(name, shapes):
    a, b = (np.ones(shape) for shape in shapes)
    try:
        want = CALLS[name](np, a, b)
    except ValueError:
        with pytest.raises(ValueError, match=r"\d"):
            CALLS[name](hnp, a, b)
        return
    np.testing.assert_array_equal(CALLS[name](hnp, a, b), want, strict=True)


def test_reports_are_public():
    chain = hnp.multi_dot([np.eye(2)] * 3, return_report=True)[1]
    assert type(chain) is hnp.ChainReport
    blocks = hnp.syrk(np.ones((700, 2)), return_report=True)[1]
    assert isinstance(blocks, hnp.BlocksReport | hg.Report)
