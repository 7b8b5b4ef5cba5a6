"""Verbs that all libraries have in common do what NumPy does, for arrays of NumPy and
tensors, and copy only where no view exists.
"""

from __future__ import annotations

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.functions import verbs

DTYPES = "float32", "float64", "complex64", "complex128"


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def library(request):
    """Arrays of a library from those of NumPy."""
    if request.param == "numpy":
        return np.asarray
    return request.getfixturevalue("torch").from_numpy


def on_host(x):
    return x.resolve_conj().numpy() if hasattr(x, "numpy") else np.asarray(x)


def shares_memory(x, y):
    return np.shares_memory(on_host(x), on_host(y))


def numbers(shape, dtype="float64"):
    rng = np.random.default_rng([*shape])
    x = rng.standard_normal(shape).astype(dtype)
    if x.dtype.kind == "c":
        x = x + x.dtype.type(1j) * rng.standard_normal(shape).astype(x.real.dtype)
    return x


def test_views_share_memory_and_have_the_entries_of_numpy(library):
    a = numbers((2, 3, 3))
    x = library(a)
    for view, want in (
        (verbs.permute(x, (2, 0, 1)), a.transpose(2, 0, 1)),
        (verbs.permute(x, (0, 1, 2)), a),
        (verbs.expand(x[:1], (4, 3, 3)), np.broadcast_to(a[:1], (4, 3, 3))),
        (verbs.diagonal(x, 1, 2), np.diagonal(a, 0, 1, 2)),
    ):
        assert shares_memory(view, x)
        assert verbs.shape_of(view) == want.shape
        np.testing.assert_array_equal(on_host(view), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_arrays_have_the_dtype_of_the_other(library, dtype):
    a = numbers((2, 3, 3), dtype)
    x = library(a)
    for made, want in (
        (verbs.ones((2, 5), x), np.ones((2, 5), dtype)),
        (verbs.identities(x), np.broadcast_to(np.eye(3, dtype=dtype), (2, 3, 3))),
        (verbs.join([x, x[:, :1]], 1), np.concatenate([a, a[:, :1]], 1)),
        (verbs.conj(x), a.conj()),
    ):
        np.testing.assert_array_equal(on_host(made), want, strict=True)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_lower_triangle_is_mirrored(library, dtype, conjugate):
    a = numbers((2, 4, 4), dtype)
    a[0, 2, 1] = np.nan
    a[1, 3, 3] = -0.0
    found = on_host(verbs.mirrored(library(a), conjugate))
    want = np.empty_like(a)
    for at in np.ndindex(a.shape):
        batch, i, j = at
        low = a[at] if i >= j else a[batch, j, i]
        if conjugate and i < j:
            low = low.conjugate()
        if conjugate and i == j:
            low = low.real
        want[at] = low
    np.testing.assert_array_equal(found, want, strict=True)


def test_dtypes_promote_as_in_numpy(library):
    for names in (
        ("float32", "float64"),
        ("float32", "complex64"),
        ("int32", "float32"),
    ):
        arrays = [np.arange(1, 4).astype(name) for name in names]
        want = np.result_type(*arrays)
        for x, a in zip(verbs.promoted([library(a) for a in arrays]), arrays):
            np.testing.assert_array_equal(on_host(x), a.astype(want), strict=True)


def test_arrays_of_one_dtype_are_not_copied(library):
    x = library(numbers((2, 2)))
    assert verbs.promoted([x, x])[1] is x


def test_integers_that_the_dtype_cannot_hold_raise(library):
    arrays = [library(np.array([2**53 + 1])), library(np.ones(1))]
    with pytest.raises(ValueError, match="not exact in float64"):
        verbs.promoted(arrays)


def test_roundoffs_are_half_of_epsilon(library):
    for dtype in DTYPES:
        x = library(np.ones(1, dtype))
        assert verbs.unit_roundoff(x) == float(np.finfo(dtype).eps) / 2
    assert verbs.unit_roundoff(library(np.ones(1, np.int32))) == 0.0


def test_lists_become_arrays_and_libraries_do_not_mix(torch):
    x, y = verbs.as_arrays(("a", [1.0, 2.0]), ("b", 3))
    assert isinstance(x, np.ndarray)
    assert y.shape == ()
    tensor = torch.ones(2)
    assert verbs.as_arrays(("a", tensor), ("b", tensor))[0] is tensor
    with pytest.raises(TypeError, match="b is a list; expected an array of torch"):
        verbs.as_arrays(("a", tensor), ("b", [1.0, 2.0]))


def test_prepared_operands_are_for_matmul_alone():
    a = np.ones((2, 2))
    prepared = hg.prepare(a, "left", plan=hg.make_plan(a, a))
    with pytest.raises(TypeError, match=r"x is a prepared operand of shape \(2, 2\)"):
        verbs.as_arrays(("x", prepared))


def test_plain_arrays_are_taken_as_they_are(library):
    for dtype in DTYPES:
        arrays = [library(numbers((2, 3), dtype)) for _ in range(3)]
        plain = verbs.plain_arrays(arrays)
        assert len(plain) == 3
        assert all(x is y for x, y in zip(plain, arrays))
    assert verbs.plain_arrays([]) == []


def test_arrays_that_need_a_second_look_are_not_plain():
    a = numbers((2, 3))
    for x in (
        a.tolist(),
        a[0, 0],
        a.astype(">f8"),
        a.astype(np.float16),
        a.astype(np.int64),
        a.astype(object),
        np.ma.array(a),
        a.view(np.matrix),
    ):
        assert verbs.plain_arrays([a, x]) is None
        assert verbs.plain_arrays([x, a]) is None


@pytest.mark.torch
def test_tensors_that_need_a_second_look_are_not_plain(torch):
    a = torch.ones((2, 3))
    for x in (
        numbers((2, 3)),
        [1.0],
        a.to("meta"),
        a.to_sparse(),
        torch.nested.nested_tensor([a, a], layout=torch.jagged),
        torch.nn.Parameter(a),
    ):
        assert verbs.plain_arrays([a, x]) is None
        assert verbs.plain_arrays([x, a]) is None
