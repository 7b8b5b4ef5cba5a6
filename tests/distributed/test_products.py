"""Products on meshes of processes on the CPU have the bits of one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import cases  # noqa: E402
from tests.distributed.processes import run  # noqa: E402

ALWAYS = [
    "every_layout",
    "sums_over_ranks",
    "invariant",
    "every_layout_of_the_model",
    "special_values",
    "few_entries",
    "refusals",
    "ranks_in_trouble",
    "wires",
]
ALL = [*ALWAYS, "panels_of_many_vectors", "methods", "scalars_and_out", "derivatives"]
ALL += [
    "derivatives_of_functions",
    "products_of_pytorch",
    "stacks_and_vectors_of_pytorch",
    "axes_shorter_than_the_mesh",
    "example",
    "tensor_parallel",
    "small_gpt",
]


@pytest.mark.parametrize(
    ("mesh", "names"),
    [
        ((3,), ["sums_over_ranks", "invariant", "special_values", "refusals"]),
        pytest.param((2, 2), ALWAYS, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_bits_and_refusals_are_those_of_one_process(mesh, names):
    run(mesh, cases.run_all, names)


def test_two_ranks():
    run((2,), cases.run_all, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(3,), (2, 2)], ids=str)
def test_all_else_of_larger_meshes(mesh):
    run(mesh, cases.run_all, ALL)


def test_programs_and_kernels_of_gpus_make_the_same():
    run((2,), cases.run_all, ["kernels_of_gpus"])


def test_one_rank_is_a_mesh():
    run((1,), cases.run_all, ["methods", "few_entries", "refusals", "repeated_calls"])


GPUS = torch.cuda.device_count()


@pytest.mark.multigpu
@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    "backend", ["", "nccl"], ids=["host and device", "device alone"]
)
@pytest.mark.parametrize("mesh", [(2,), (1, 2), (3,), (4,), (2, 2)], ids=str)
def test_bits_are_those_of_one_gpu(mesh, backend):
    if torch.Size(mesh).numel() > GPUS:
        pytest.skip(f"needs {torch.Size(mesh).numel()} GPUs")
    names = ["large_and_uneven", "graphs", *ALL]
    run(mesh, cases.run_all, names, device="cuda", backend=backend)


@pytest.mark.multigpu
@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_a_killed_rank_ends_the_others_on_gpus():
    with pytest.raises(Exception, match="exit code 7"):
        run((2,), cases.killed, device="cuda")


def test_a_killed_rank_ends_the_others():
    with pytest.raises(Exception, match="exit code 7"):
        run((3,), cases.killed)
