"""Operations that multiply where no product is reached: counted, or raised at, and
native.
"""

from __future__ import annotations

import functools

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from tests.interop.scopes import scope_without_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def convolution(x):
    return torch.nn.functional.conv2d(x(1, 2, 8, 8), x(3, 2, 3, 3))


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(
        x(1, 2, 8, 16), x(1, 2, 8, 16), x(1, 2, 8, 16)
    )


def solution(x):
    return torch.linalg.solve(x(4, 4) + 9 * torch.eye(4, dtype=torch.float64), x(4, 4))


UNREACHED = {
    "convolution": convolution,
    "scaled_dot_product_attention": attention,
    "linalg.solve": solution,
    "linalg.inv": lambda x: torch.linalg.inv(x(4, 4)),
    "linalg.det": lambda x: torch.linalg.det(x(4, 4)),
    "linalg.qr": lambda x: torch.linalg.qr(x(4, 4)).R,
    "linalg.svd": lambda x: torch.linalg.svdvals(x(4, 4)),
    "linalg.eigh": lambda x: torch.linalg.eigvalsh(x(4, 4)),
    # exact in any order
    "linalg.lstsq": lambda x: (
        torch.linalg.lstsq(2 * torch.eye(4), 4 * torch.eye(4)).solution
    ),
    "linalg.solve_triangular": lambda x: torch.linalg.solve_triangular(
        x(4, 4), x(4, 4), upper=True
    ),
    "linalg.cholesky": lambda x: torch.linalg.cholesky(
        torch.eye(4, dtype=torch.float64)
    ),
}


@pytest.fixture
def on_cpu():
    """Random tensors of the CPU, the same in each call of a test."""

    def make(*shape):
        return torch.randn(
            *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )

    return make


@pytest.mark.parametrize("operation", UNREACHED)
def test_operations_that_are_not_reached_are_counted_once_and_stay_native(
    operation, on_cpu
):
    native = UNREACHED[operation](on_cpu)
    with scope_without_products("correct", summary=True) as products:
        for _ in range(2):
            assert torch.equal(UNREACHED[operation](on_cpu), native)
    assert dict(products.sightings.unreached) == {operation: 2}
    assert f"not reached: {operation} 2" in str(products).splitlines()


@pytest.mark.parametrize("operation", UNREACHED)
def test_strict_scopes_raise_at_operations_that_are_not_reached(operation, on_cpu):
    native = UNREACHED[operation](on_cpu)
    with (
        pytest.raises(hg.AccuracyError, match=f"{operation} of shapes .*4"),
        hg.emulate("correct", strict=True),
    ):
        UNREACHED[operation](lambda *shape: on_cpu(*(4 for _ in shape)))
    hg.install("correct", strict=True)
    with pytest.raises(hg.AccuracyError, match=operation):
        UNREACHED[operation](on_cpu)
    with hg.emulate(scheme="native"):
        assert torch.equal(UNREACHED[operation](on_cpu), native)
    hg.uninstall()
    assert torch.equal(UNREACHED[operation](on_cpu), native)


def test_backward_passes_of_operations_that_are_not_reached_are_counted(on_cpu):
    x, w = on_cpu(1, 2, 8, 8), on_cpu(3, 2, 3, 3).requires_grad_()
    with hg.emulate("correct", summary=True) as products:
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))
        torch.nn.functional.conv2d(x, w).sum().backward()
    assert dict(products.sightings.unreached) == {
        "convolution": 1,
        "convolution_backward": 1,
    }
    with hg.emulate("correct", strict=True):
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))
        with hg.emulate(scheme="native"):
            y = torch.nn.functional.conv2d(x, w).sum()
        with pytest.raises(hg.AccuracyError, match="convolution_backward"):
            y.backward()


def test_operations_that_are_not_reached_in_other_dtypes_are_no_concern_of_a_strict_scope(
    on_cpu,
):
    x, w = on_cpu(1, 2, 8, 8).long(), on_cpu(3, 2, 3, 3).long()
    native = torch.nn.functional.conv2d(x, w)
    with hg.emulate("correct", strict=True):
        assert torch.equal(torch.nn.functional.conv2d(x, w), native)
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))
        with pytest.raises(hg.AccuracyError, match="convolution"):
            torch.nn.functional.conv2d(x.bfloat16(), w.bfloat16())


def test_kernels_that_watch_stand_there_for_summaries_and_strict_scopes_alone(on_cpu):
    names = (
        "convolution",
        "_linalg_solve_ex",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    before = [torch._C._dispatch_dump_table(f"aten::{name}") for name in names]

    def is_watched():
        return [
            torch._C._dispatch_dump_table(f"aten::{name}") for name in names
        ] != before

    product = functools.partial(torch.mm, on_cpu(2, 3), on_cpu(3, 2))
    for options in ({"summary": True}, {"strict": True}):
        with hg.emulate("correct"):
            product()
            assert not is_watched()
            with hg.emulate("correct", **options):
                assert is_watched()
                with hg.emulate("fp64", **options):
                    product()
                assert is_watched()
            assert not is_watched()
        hg.install("correct", **options)
        assert is_watched()
        hg.install("correct")
        assert not is_watched()
        hg.install("correct", **options)
        hg.uninstall()
        assert not is_watched()
