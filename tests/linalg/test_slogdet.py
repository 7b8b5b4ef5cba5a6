"""slogdet of tensors: tensors with the numbers that arrays have."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hifigemm import linalg

torch = pytest.importorskip("torch")


def parts_of(d):
    return d.sign, d.logabsdet, d.radius, d.sign_radius


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (0, 0), (0, 2, 2)])
def test_tensors_give_tensors_with_the_numbers_of_arrays(shape, kind, requires_grad):
    a = np.random.default_rng(1).standard_normal(shape).astype(kind)
    tensor = torch.from_numpy(a).requires_grad_(requires_grad)
    results = parts_of(linalg.slogdet(tensor))
    is_complex = a.dtype.kind == "c"
    dtypes = [torch.complex128 if is_complex else torch.float64] + 3 * [torch.float64]
    for result, number, dtype in zip(results, parts_of(linalg.slogdet(a)), dtypes):
        assert result.dtype == dtype
        assert result.shape == shape[:-2]
        assert (result.detach().numpy() == number).all()
    assert [x.requires_grad for x in results] == 2 * [requires_grad] + 2 * [False]


def test_integers_are_taken_as_float64():
    d = linalg.slogdet(torch.tensor([[1, 2], [3, 4]]))
    assert (d.sign.item(), d.sign.dtype) == (-1.0, torch.float64)
    beyond = linalg.slogdet(torch.tensor([[2**60 + 1]]))
    assert (
        abs(beyond.logabsdet.item() - 60 * math.log(2)) <= beyond.radius.item() + 1e-15
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_was_proven_of_a_stack_is_in_tensors_too(requires_grad):
    a = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    a[0, 0, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError) as error:
        linalg.slogdet(a.requires_grad_(requires_grad))
    logarithms = error.value.solution.logabsdet
    assert torch.isnan(logarithms).tolist() == [True, False]


def test_other_shapes_raise():
    for requires_grad in (False, True):
        a = torch.ones((2, 3), requires_grad=requires_grad)
        with pytest.raises(np.linalg.LinAlgError, match="square"):
            linalg.slogdet(a)
