from __future__ import annotations

import ctypes

import numpy as np
import pytest

from hifigemm.workshop.measuring import cuda_peers
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.cuda_peers import _Product

torch = pytest.importorskip("torch")


class _Blas:
    """cuBLAS's products of float64 and complex128, column-major, on the host."""

    def __getattr__(self, name):
        if name not in (
            *("cublasDgemm_v2", "cublasZgemm_v2"),
            *("cublasDgemmStridedBatched", "cublasZgemmStridedBatched"),
        ):
            raise AttributeError(name)
        dtype = np.complex128 if "Z" in name else np.float64

        def matrix(pointer, rows, columns, leading, offset=0):
            size = leading * columns * np.dtype(dtype).itemsize
            address = pointer.value + offset * np.dtype(dtype).itemsize
            numbers = (ctypes.c_char * size).from_address(address)
            return np.frombuffer(numbers, dtype).reshape(columns, leading).T[:rows]

        def gemm(_, left_op, right_op, m, n, k, one, a, lda, b, ldb, zero, c, ldc):
            assert (left_op, right_op, one[0], zero[0]) == (0, 0, 1.0, 0.0)
            matrix(c, m, n, ldc)[...] = matrix(a, m, k, lda) @ matrix(b, k, n, ldb)
            return 0

        def batched(_, left_op, right_op, m, n, k, one, *rest):
            assert (left_op, right_op, one[0]) == (0, 0, 1.0)
            a, lda, a_step, b, ldb, b_step, _, c, ldc, c_step, count = rest
            for i in range(count):
                left = matrix(a, m, k, lda, i * a_step.value)
                right = matrix(b, k, n, ldb, i * b_step.value)
                matrix(c, m, n, ldc, i * c_step.value)[...] = left @ right
            return 0

        return batched if "Batched" in name else gemm


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("stack", [(), (3,)])
def test_a_product_by_the_functions_of_cublas(dtype, stack):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn((*stack, 5, 7), dtype=dtype, generator=generator)
    b = torch.randn((*stack, 7, 4), dtype=dtype, generator=generator)
    out = torch.full((*stack, 5, 4), torch.nan, dtype=dtype)
    _Product(_Blas(), a, b, out)(handle=None)
    torch.testing.assert_close(out, a @ b)


def test_a_status_is_told():
    def cublasDgemm_v2(*_):
        return 15

    class _Refusing:
        pass

    blas = _Refusing()
    blas.cublasDgemm_v2 = cublasDgemm_v2
    x = torch.ones((2, 2), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="cublasDgemm_v2 returned status 15"):
        _Product(blas, x, x, x.clone())(handle=None)


def test_gemmul8_reads_its_options_of_the_environment_in_a_call(monkeypatch):
    seen = []

    class _Recording:
        def __getattr__(self, name):
            def function(*_):
                import os

                seen.append((name, os.environ.get("GEMMUL8_NUM_MOD_S")))
                seen.append(os.environ.get("GEMMUL8_FASTMODE_S"))
                return 0

            return function

    monkeypatch.setattr(cuda_peers, "_gemmul8", _Recording)
    monkeypatch.setattr(cuda_peers, "_plain_handle", lambda: None)
    monkeypatch.setattr(cuda_peers, "_set_stream", lambda handle: None)
    monkeypatch.delenv("GEMMUL8_NUM_MOD_S", raising=False)
    x = torch.ones((2, 2))
    cuda_peers._prepare_gemmul8(7, True, x, x, x.clone())()
    assert seen == [("cublasSgemm_v2", "7"), "1"]
    _Recording().outside()
    assert seen[2:] == [("outside", None), None]


@pytest.mark.parametrize(
    ("dtype", "batch", "names"),
    [
        ("float64", 1, {"cublas-emulated", "gemmul8-14-fast", "gemmul8-15-accurate"}),
        ("complex64", 1, {"gemmul8-7-fast", "gemmul8-8-accurate"}),
        ("complex128", 3, {"cublas-emulated", "cublas-emulated-dynamic"}),
    ],
)
def test_who_multiplies_what(dtype, batch, names):
    load = Workload(8, 8, 8, batch=batch, dtype=dtype)
    supporting = {
        name for name, _, supports, _ in cuda_peers.facts() if supports("cuda:0", load)
    }
    assert names <= supporting
    if batch > 1:
        assert supporting == names
    assert not any(supports("cpu", load) for _, _, supports, _ in cuda_peers.facts())
