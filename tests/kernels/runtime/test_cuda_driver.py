"""Launches by the CUDA driver: where parameters lie, what Triton's metadata say, and,
on a GPU, that kernels run.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from hifigemm.kernels.runtime import cuda_driver
from hifigemm.kernels.runtime.cuda_driver import (
    Entry,
    MapForm,
    Parameters,
    argument_types,
    parameters_of,
    sizes_in_ptx,
)
from hifigemm.kernels.runtime.launch import Launch

HAS_GPU = torch.cuda.is_available()


def test_arguments_of_tuples_stand_one_by_one_and_constants_are_not_passed():
    signature = "*fp64", ("i32", "constexpr", ("*i8", "i64")), "constexpr", "fp32"
    assert [*argument_types(signature)] == [
        "*fp64",
        "i32",
        None,
        "*i8",
        "i64",
        None,
        "fp32",
    ]
    parameters = Parameters.of([*argument_types(signature)])
    assert parameters.is_passed == (True, True, False, True, True, False, True)
    # Two addresses of scratch memory come last.
    assert parameters.sizes == (8, 4, 8, 8, 4, 8, 8)


def test_parameters_lie_as_in_a_structure_of_c():
    class Arguments(ctypes.Structure):
        _fields_ = (
            ("byte", ctypes.c_int8),
            ("word", ctypes.c_int32),
            ("address", ctypes.c_uint64),
            ("number", ctypes.c_float),
            ("long", ctypes.c_int64),
            ("short", ctypes.c_int16),
            ("scratch", ctypes.c_uint64),
            ("profile", ctypes.c_uint64),
        )

    parameters = Parameters.of(["i8", "i32", "*fp64", "fp32", "i64", "i16"])
    assert parameters.offsets == tuple(
        getattr(Arguments, name).offset for name, _ in Arguments._fields_
    )
    packed = parameters.layout.pack(-3, -(1 << 31), 1 << 63, 0.5, -(1 << 40), -7)
    read = Arguments.from_buffer_copy(packed)
    assert (read.byte, read.word, read.address) == (-3, -(1 << 31), 1 << 63)
    assert (read.number, read.long, read.short) == (0.5, -(1 << 40), -7)
    assert (read.scratch, read.profile) == (0, 0)


def test_a_tensor_map_is_aligned_and_followed_by_its_shape_and_strides():
    parameters = Parameters.of(["i32", "tensordesc<i8[64, 128]>", "i32"])
    assert parameters.offsets[:7] == (0, 64, 192, 196, 200, 208, 216)
    assert parameters.sizes[:7] == (4, 128, 4, 4, 8, 8, 4)
    tail = struct.pack("=iiqq", 24, 256, 512, 1)
    packed = parameters.layout.pack(7, bytes(range(128)) + tail, 9)
    assert packed[64:192] == bytes(range(128))
    assert packed[192:216] == tail
    assert struct.unpack_from("=i", packed, 216) == (9,)


@pytest.fixture
def driver(monkeypatch):
    """A driver that reads what a launch gives it, and answers with the codes of
    `answers` in turn.
    """
    seen, answers, contexts = [], [], []

    def read(kind, address):
        return kind.from_address(address).value

    def launch(config, function, parameters, extra):
        grid = struct.unpack_from("=7I4xQQI", ctypes.string_at(config, 56))
        values = [
            read(ctypes.c_uint64, read(ctypes.c_uint64, parameters)),
            function,
            extra,
        ]
        values.append(read(ctypes.c_int32, read(ctypes.c_uint64, parameters + 8)))
        seen.append((grid, values))
        return answers.pop(0) if answers else 0

    def describe(code, text):
        text._obj.value = b"as the driver says"
        return 0

    library = SimpleNamespace(cuLaunchKernelEx=launch, cuGetErrorString=describe)
    library.cuCtxSetCurrent = lambda context: contexts.append(context) or 0
    monkeypatch.setattr(cuda_driver, "driver_library", lambda: library)
    monkeypatch.setattr(cuda_driver, "_primary_context", lambda device: 1000 + device)
    library.seen, library.answers, library.contexts = seen, answers, contexts
    return library


def small_entry():
    return Entry("small", 3, 77, 128, 4096, Parameters.of(["*fp64", None, "i32"]))


def test_a_launch_gives_the_driver_grid_stream_and_arguments(driver):
    prepared = small_entry().prepared((5, 6, 7), 99, [1 << 40, None, -2])
    for _ in range(2):
        prepared()
    config = 5, 6, 7, 128, 1, 1, 4096, 99, 0, 0
    assert driver.seen == [(config, [1 << 40, 77, None, -2])] * 2


def test_a_thread_that_has_not_used_cuda_gets_the_context_of_the_device(driver):
    driver.answers[:] = [201]
    small_entry().prepared((1, 1, 1), 0, [8, None, 1])()
    assert driver.contexts == [1003]
    assert len(driver.seen) == 2


def test_errors_of_the_driver_name_the_kernel(driver):
    driver.answers[:] = [701]
    message = "launch of small with 128 threads and 4096 bytes: CUDA error 701, as the driver says"
    with pytest.raises(cuda_driver.DriverError, match=message):
        small_entry().prepared((1, 1, 1), 0, [8, None, 1])()
    assert driver.contexts == []


def compiled(**changed):
    """What Triton says of a kernel, as far as this module asks."""
    metadata = {
        "launch_cooperative_grid": False,
        "launch_pdl": False,
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
        "num_ctas": 1,
        "tensordesc_meta": [],
    }
    signature = changed.pop("signature", {"x": "*fp64", "n": "i32"})
    return SimpleNamespace(
        metadata=SimpleNamespace(**(metadata | changed)),
        src=SimpleNamespace(signature=signature),
        asm={},
    )


def test_kernels_that_need_more_than_a_launch_have_no_entry():
    assert parameters_of(compiled()).sizes == (8, 4, 8, 8)
    for changed in (
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"global_scratch_size": 8},
        {"profile_scratch_size": 8},
        {"num_ctas": 2},
        {"signature": {"x": "tensordesc<i8[64, 128]>"}},
        {"signature": {"x": "a type of a later version"}},
    ):
        assert parameters_of(compiled(**changed)) is None, changed
    without = compiled()
    del without.metadata.num_ctas
    assert parameters_of(without) is None


def test_sizes_of_parameters_are_read_from_ptx():
    text = """
    .visible .entry kernel(
        .param .u64 .ptr .global .align 1 kernel_param_0,
        .param .u32 kernel_param_1,
        .param .align 64 .b8 kernel_param_2[128],
        .param .f32 kernel_param_3
    )
    .reqntid 128
    { ld.param.b64 %rd1, [kernel_param_0]; }
    """
    assert sizes_in_ptx(text) == (8, 4, 128, 4)


@triton.jit
def _fill_kernel(out, sizes, value, SIZE: tl.constexpr):
    """out[: count] = value."""
    count, step = sizes
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at * step, at + value, mask=at < count)


_fill = Launch(_fill_kernel)


@pytest.mark.gpu
class TestOnGpu:
    def test_triton_still_says_what_this_module_asks(self):
        """The test that fails on the day it moves."""
        out = torch.zeros(40, dtype=torch.int64, device="cuda")
        found = _fill.compile((out, (40, 1), 5), {"SIZE": 32})
        parameters = parameters_of(found)
        assert parameters is not None
        assert parameters.sizes == sizes_in_ptx(found.asm["ptx"])
        entry = cuda_driver.entry_of(found, torch.cuda.current_device())
        assert entry is not None
        assert cuda_driver._sizes_of(entry.function) in (None, parameters.sizes)

    def test_a_loaded_kernel_runs_in_a_thread_that_has_not_used_cuda(self):
        out = torch.zeros(40, dtype=torch.int64, device="cuda")
        entry = _fill.entry((out, (40, 1), 5), {"SIZE": 32})
        launch = entry.prepared((2, 1, 1), 0, [out.data_ptr(), 40, 1, 5])
        failures = []

        def run():
            try:
                launch()
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert failures == []
        assert torch.equal(out, torch.arange(5, 45, device="cuda"))

    def test_a_launch_that_cannot_be_made_raises(self):
        out = torch.zeros(40, dtype=torch.int64, device="cuda")
        entry = _fill.entry((out, (40, 1), 5), {"SIZE": 32})
        with pytest.raises(RuntimeError, match=r"_fill_kernel .* CUDA error 1"):
            entry.prepared((0, 1, 1), 0, [out.data_ptr(), 40, 1, 5])()

    def test_maps_are_encoded_as_triton_encodes_them(self):
        from hifigemm.kernels.runtime.launch import map_at, shared_layout

        x = torch.zeros((256, 512), dtype=torch.float16, device="cuda")
        map_ = map_at(x.data_ptr(), (x.dtype, 200, 512, 512, (64, 64)))
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[
            shared_layout((64, 64), x.dtype).swizzle_byte_width
        ]
        form = MapForm((64, 64), swizzle)
        packed = cuda_driver.tensor_map_bytes(
            map_.place, x.dtype, (200, 512), 512, form, 0
        )
        assert len(packed) == 152
        assert packed[128:] == struct.pack("=iiqq", 200, 512, 512, 1)
        with pytest.raises(
            cuda_driver.DriverError, match=r"tensor map of \(200, 512\) torch.float16"
        ):
            cuda_driver.tensor_map_bytes(
                map_.place + 2, x.dtype, (200, 512), 512, form, 0
            )
