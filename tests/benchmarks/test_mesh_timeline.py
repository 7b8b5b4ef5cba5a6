"""What a timeline keeps of a trace of PyTorch's profiler."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.mesh_timeline import events_of


def test_kernels_and_copies_are_taken_in_the_order_of_their_start():
    trace = {
        "traceEvents": [
            {"cat": "gpu_memcpy", "name": "Memcpy PtoP", "ts": 20, "dur": 5.5},
            {"cat": "kernel", "name": "int8_product", "ts": 10.25, "dur": 12},
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2},
            {"name": "process_name", "ph": "M"},
        ]
    }
    assert events_of(trace) == [
        {
            "lane": "multiplies",
            "name": "int8_product",
            "start_us": 10.25,
            "stop_us": 22.25,
        },
        {"lane": "copies", "name": "Memcpy PtoP", "start_us": 20.0, "stop_us": 25.5},
    ]
