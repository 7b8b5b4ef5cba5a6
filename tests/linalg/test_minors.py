"""Determinants and definiteness of stacks on a device; the kernel has tests of its own."""

from __future__ import annotations

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.engines import core
from hifigemm.linalg import arrays, minors, stacks
from tests.linalg.test_stacks import COUNT, few_systems, on_device  # noqa: F401, fixtures

pytestmark = pytest.mark.skipif(
    core.loaded()[0] is None, reason="the core is not compiled"
)


@pytest.fixture
def by_kernel(on_device, monkeypatch, torch):  # noqa: F811
    """The core stands for the kernel, and knows nothing of every fifth matrix; how many
    matrices were told so.
    """
    from hifigemm.engines.device_array import unwrap, wrap

    told = []
    by_core = core.neighbours_of_determinants
    definiteness_by_core = core.definiteness

    def launched(function, a, exchanges):
        a = unwrap(a).numpy()
        told.append(len(a))
        facts = np.zeros((len(a), 4))
        if exchanges:
            for i, column in enumerate(by_core(a)):
                facts[:, i] = column
            facts[::5] = 0.0
        else:
            found = definiteness_by_core(a)
            facts[:, 0] = np.where(found.is_known, found.is_definite, 2.0)
            facts[::5] = 2.0
        return (wrap(torch.from_numpy(facts)),)

    monkeypatch.setattr(minors, "launched", launched)
    return told


def test_determinants_of_a_stack_are_told_on_the_device(by_kernel, torch):
    rng = np.random.default_rng(1)
    count = 12_000  # so that more are left than an array of the host may hold
    a = rng.standard_normal((2, count, 3, 3))
    a[1, 5] = 0.0
    a[1, 7] *= 2.0**250
    found = linalg.det(torch.from_numpy(a))
    want = linalg.det(a)
    assert by_kernel == [2 * count]
    for name in ("sign", "lower", "upper", "exponent"):
        assert (getattr(found, name) == getattr(want, name)).all()
        assert getattr(found, name).shape == (2, count)
    logarithms = linalg.slogdet(torch.from_numpy(a))
    assert (logarithms.sign.numpy() == want.sign).all()


def test_definiteness_of_a_stack_is_told_on_the_device(by_kernel, torch):
    rng = np.random.default_rng(2)
    a = rng.standard_normal((COUNT, 4, 4))
    a = a @ np.swapaxes(a, 1, 2)
    a[::3] -= 2.0 * np.eye(4)
    a[9] = np.ones((4, 4))
    found = linalg.is_positive_definite(torch.from_numpy(a))
    assert by_kernel == [COUNT]
    assert (found == linalg.is_positive_definite(a)).all()


def test_failures_harm_no_other(by_kernel, torch):
    a = np.random.default_rng(3).standard_normal((COUNT, 2, 2))
    a[4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        linalg.det(torch.from_numpy(a))
    a[4] = [[1.0, 2.0], [3.0, 1.0]]
    a[4] *= 1.0 + 1e-3
    with pytest.raises(ValueError, match="transpose"):
        linalg.is_positive_definite(torch.from_numpy(a))
    assert by_kernel == [COUNT, COUNT]


def test_float32_is_told_in_float64(by_kernel, torch):
    a = np.random.default_rng(4).standard_normal((COUNT, 2, 2)).astype(np.float32)
    found = linalg.det(torch.from_numpy(a))
    want = linalg.det(a)
    assert (found.lower == want.lower).all()
    assert by_kernel == [COUNT]


@pytest.mark.usefixtures("by_kernel")
@pytest.mark.parametrize(
    ("count", "n", "dtype"),
    [(2, 3, float), (COUNT, stacks.MOST_ROWS + 1, float), (COUNT, 3, complex)],
)
def test_other_matrices_go_to_the_host(monkeypatch, torch, count, n, dtype):
    monkeypatch.setattr(minors, "launched", None)
    a = np.random.default_rng(5).standard_normal((count, n, n)).astype(dtype)
    found = linalg.det(torch.from_numpy(a))
    want = linalg.det(a)
    for name in vars(want):
        assert (getattr(found, name) == getattr(want, name)).all()


def test_stacks_are_real_and_on_a_device(on_device, torch):  # noqa: F811
    from hifigemm.engines.device_array import wrap

    a = torch.zeros(COUNT, 3, 3, dtype=torch.float64)
    assert minors.is_real_stack(wrap(a))
    assert not minors.is_real_stack(wrap(a[:2]))
    assert not minors.is_real_stack(wrap(a.to(torch.complex128)))
    assert not minors.is_real_stack(a.numpy())
    assert not arrays.is_on_host(wrap(a))
