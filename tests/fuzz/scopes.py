"""Products of PyTorch inside `hifigemm.emulate`, of one process and on meshes, all of
them from (seed, index).

A product that the scope has seen is rounded once, whatever the layout of its operands,
and on a mesh whatever their placements. What it has not seen is what every summary
names as such.
"""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hifigemm as hg
from tests.fuzz.cases import DTYPES, FAMILIES, WIDE, laid_out, real_pair
from tests.fuzz.judge import Exact

__all__ = ["ScopeCase", "draw_scope_case", "fuzz_scopes", "run_on_mesh"]

Counts = Counter[tuple[str, str, str, str]]

AXES = {
    "mm": [("mk", "kn", "mn")],
    "matmul": [
        ("mk", "kn", "mn"),
        ("smk", "skn", "smn"),
        ("smk", "kn", "smn"),
        ("mk", "skn", "smn"),
        ("k", "kn", "n"),
    ],
    "bmm": [("smk", "skn", "smn")],
    "mv": [("mk", "k", "m")],
    "dot": [("k", "k", "")],
    "vdot": [("k", "k", "")],
    "inner": [
        ("k", "k", ""),
        ("mk", "k", "m"),
        ("mk", "nk", "mn"),
        ("smk", "nk", "smn"),
    ],
    "tensordot": [
        ("k", "k", ""),
        ("mk", "kn", "mn"),
        ("kl", "kl", ""),
        ("mkl", "kln", "mn"),
        ("smkl", "kl", "sm"),
    ],
    "linear": [("mk", "nk", "mn"), ("smk", "nk", "smn")],
    "multi_dot": [("mk", "kn", "mn")],
    "einsum": [
        ("k", "k", ""),
        ("mk", "kn", "mn"),
        ("smk", "skn", "smn"),
        ("smkl", "kln", "smn"),
        ("sk", "sk", "s"),
    ],
}
"""The axes of A, B and the result for each function: k and l are summed, s is in both
operands or in one.
"""
ON_MESHES = ("mm", "matmul", "bmm", "mv", "dot", "vdot", "linear", "einsum")


@dataclass(frozen=True)
class ScopeCase:
    """A call of a function of PyTorch; `sizes` has the length of each axis."""

    index: tuple[int, int]
    function: str
    axes: tuple[str, str, str]
    sizes: dict[str, int]
    family: str
    a: np.ndarray
    b: np.ndarray
    layout_seed: int | None

    def __str__(self) -> str:
        layout = (
            "in C order"
            if self.layout_seed is None
            else f"laid out by {self.layout_seed}"
        )
        a, b, c = self.axes
        shapes = f"{self.a.dtype}{self.a.shape}, {self.b.dtype}{self.b.shape}"
        return f"{self.index[0]} {self.index[1]}: {self.function}({a},{b}->{c}: {shapes}) of {self.family}, {layout}"

    def call(self, a: Any, b: Any) -> Any:
        """The function of PyTorch."""
        left, right, result = self.axes
        calls: dict[str, Callable[[], Any]] = {
            "inner": lambda: torch.inner(a, b),
            "tensordot": lambda: torch.tensordot(a, b, self._summed_axes()),
            "linear": lambda: torch.nn.functional.linear(a, b),
            "multi_dot": lambda: torch.linalg.multi_dot([a, b]),
            "einsum": lambda: torch.einsum(f"{left},{right}->{result}", a, b),
        }
        return (
            calls[self.function]()
            if self.function in calls
            else getattr(torch, self.function)(a, b)
        )

    def fault(self, values: np.ndarray) -> str:
        """What is wrong with the result of a product that was seen, or ""."""
        left, right, result = self.axes
        shape = tuple(self.sizes[axis] for axis in result)
        if (values.shape, values.dtype) != (shape, self.a.dtype):
            return f"shape {values.shape} and dtype {values.dtype}"
        if values.size == 0:
            return ""
        a = self.a.conj() if self.function == "vdot" else self.a
        stack = [axis for axis in "s" if axis in left + right]
        rows = [axis for axis in "m" if axis in left]
        cols = [axis for axis in "n" if axis in right]
        summed = [axis for axis in "kl" if axis in left]
        factors = (
            self._factor(a, left, stack, rows, summed),
            self._factor(self.b, right, stack, summed, cols),
        )
        values = np.ascontiguousarray(
            values.transpose([result.index(axis) for axis in (*stack, *rows, *cols)])
        )
        return Exact(*factors, self.a.dtype, None).fault(values.reshape(-1), 0.0, True)

    def may_be_unseen(self, a: Any, b: Any) -> bool:
        """True if a summary names such a call as one that PyTorch makes of mul and
        sum.
        """
        if self.function in ("inner", "tensordot"):
            is_number = all(self.sizes[axis] == 1 for axis in self.axes[2])
            return is_number and not (a.is_contiguous() and b.is_contiguous())
        return self.function == "einsum" and all(
            self.sizes[axis] == 1 for axis in self._summed_axes_named()
        )

    def _summed_axes_named(self) -> list[str]:
        return [axis for axis in "kl" if axis in self.axes[0]]

    def _summed_axes(self) -> list[list[int]]:
        return [
            [operand.index(axis) for axis in self._summed_axes_named()]
            for operand in self.axes[:2]
        ]

    def _factor(self, x: np.ndarray, axes: str, *groups: list[str]) -> np.ndarray:
        """x with the axes of each group made one, in this order; a stack that x has not
        is an axis of length 1.
        """
        stack = [axis for axis in groups[0] if axis in axes]
        order = [axes.index(axis) for group in (stack, *groups[1:]) for axis in group]
        lengths = [
            int(np.prod([self.sizes[axis] for axis in group]))
            for group in (stack, *groups[1:])
        ]
        return x.transpose(order).reshape(lengths)


def draw_scope_case(
    seed: int,
    index: int,
    functions: tuple[str, ...] = tuple(AXES),
    longest: int = 12,
    longest_sum: int = 12,
) -> ScopeCase:
    """The case of this number; axes have up to `longest` entries, and some sums
    `longest_sum`.
    """
    rng = np.random.default_rng([seed, index])
    function = str(rng.choice(functions))
    choices = AXES[function]
    left, right, result = choices[rng.integers(len(choices))]
    if function == "einsum":
        left, right, result = (
            "".join(rng.permutation(list(axes))) for axes in (left, right, result)
        )
    family = str(rng.choice(FAMILIES))
    limit = 4 if family in WIDE else longest
    sizes = {axis: int(limit ** rng.random() + 0.5) for axis in "smnkl"}
    if rng.random() < 0.05:
        sizes[str(rng.choice(list("smnkl")))] = 0
    dtype = np.dtype(str(rng.choice(DTYPES)))
    if longest_sum > limit and family not in WIDE and rng.random() < 0.4:
        sizes["k"] = int(longest_sum ** rng.uniform(0.7, 1.0))
    a, b = _operands(rng, family, (left, right), sizes, dtype)
    layout_seed = None if rng.random() < 0.3 else int(rng.integers(2**32))
    return ScopeCase(
        (seed, index), function, (left, right, result), sizes, family, a, b, layout_seed
    )


def _operands(
    rng: np.random.Generator,
    family: str,
    axes: tuple[str, str],
    sizes: dict[str, int],
    dtype: np.dtype,
) -> list[np.ndarray]:
    """Arrays with these axes, whose products are those of pairs of the family."""
    lengths = {
        axis: sizes[axis] if axis in axes[0] + axes[1] else 1 for axis in "smnkl"
    }
    m = lengths["m"]
    n = lengths["n"]
    summed = lengths["k"] * lengths["l"]
    count = max(lengths["s"], 1)
    real = np.finfo(dtype).dtype
    operands = [
        np.empty((count, m, summed), dtype),
        np.empty((count, summed, n), dtype),
    ]
    for i, name in product(
        range(count), ("real", "imag") if dtype.kind == "c" else ("real",)
    ):
        # some have two terms at least
        pair = real_pair(rng, family, m, summed, n, real)
        getattr(operands[0], name)[i] = pair[0][:, :summed]
        getattr(operands[1], name)[i] = pair[1][:summed]
    for x in operands:
        if rng.random() < 0.05:
            x[rng.random(x.shape) < 0.1] = rng.choice([np.inf, -np.inf, np.nan])
    return [
        _with_axes(x, order, axes[side], lengths)
        for side, (x, order) in enumerate(zip(operands, ("smkl", "skln")))
    ]


def _with_axes(
    x: np.ndarray, order: str, axes: str, lengths: dict[str, int]
) -> np.ndarray:
    """x, whose axes are in another order and partly grouped, with these axes; a stack
    may be left out, or be empty.
    """
    x = x.reshape([len(x), *(lengths[axis] for axis in order[1:])])
    x = x[: lengths["s"]] if "s" in axes else x[:1]
    kept = [axis for axis in order if axis in axes]
    x = x.reshape([lengths[axis] for axis in kept])
    return np.ascontiguousarray(x.transpose([kept.index(axis) for axis in axes]))


def fuzz_scopes(
    seed: int, indices: Iterable[int], on_fault: Callable[[str], object]
) -> Counts:
    """Calls by function, dtype, "scope" and outcome: "kept", "unseen" or "wrong"."""
    counts: Counts = Counter()
    for index in indices:
        case = draw_scope_case(seed, index)
        rng = np.random.default_rng(case.layout_seed)
        arrays = (case.a, case.b)
        if case.layout_seed is not None:
            arrays = tuple(laid_out(rng, x, ascending=True) for x in arrays)
        a, b = (torch.from_numpy(x) for x in arrays)
        outcome, text = _outcome(case, a, b)
        counts[case.function, str(case.a.dtype), "scope", outcome] += 1
        if outcome == "wrong":
            on_fault(f"{case}\n  {text}")
    return counts


def _outcome(case: ScopeCase, a: Any, b: Any) -> tuple[str, str]:
    """The outcome of a call in a scope, and what is to be said of it."""
    values, is_seen = _in_scope(case, a, b)
    if not is_seen:
        if case.may_be_unseen(a, b) or values.numel() == 0:
            return "unseen", ""
        return "wrong", "the scope has not seen it"
    text = case.fault(values.resolve_conj().resolve_neg().numpy())
    return ("wrong" if text else "kept"), text


def _in_scope(case: ScopeCase, a: Any, b: Any) -> tuple[Any, bool]:
    """The result of a call in a scope; False if the scope warns that it saw nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with hg.emulate("correct"):
            values = case.call(a, b)
    return values, not any(
        "no product of PyTorch was seen" in str(warning.message) for warning in caught
    )


def run_on_mesh(shape: tuple[int, ...], seed: int, count: int) -> Counts:
    """The outcomes of as many cases on a mesh of processes of this shape."""
    from tests.distributed.processes import run

    with tempfile.TemporaryDirectory() as folder:
        run(shape, fuzz_mesh, seed, count, folder)
        return pickle.loads((Path(folder) / "counts").read_bytes())


def fuzz_mesh(mesh: Any, seed: int, count: int, folder: str) -> None:
    """Calls with operands in all placements and axes shorter than the mesh; each rank
    makes them, one counts.

    Long sums are those that DTensor would rather cut than move.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard

    from tests.distributed.cases import spread

    counts: Counts = Counter()
    for index in range(count):
        case = draw_scope_case(
            seed, index, ON_MESHES, longest=2 * mesh.size(), longest_sum=3000
        )
        if case.a.size == 0 or case.b.size == 0:
            continue
        tensors = torch.from_numpy(case.a), torch.from_numpy(case.b)
        choices = [
            [Replicate(), *(Shard(axis) for axis in range(x.ndim))] for x in tensors
        ]
        rng = np.random.default_rng([seed, index, 1])
        for _ in range(3):
            placements = [
                [x[rng.integers(len(x))] for _ in range(mesh.ndim)] for x in choices
            ]
            operands = [
                spread(x, mesh, *place)
                for x, place in zip(tensors, placements, strict=True)
            ]
            outcome, text = _outcome_on_mesh(case, *operands)
            counts[
                case.function, str(case.a.dtype), f"mesh {tuple(mesh.shape)}", outcome
            ] += 1
            if outcome == "wrong" and dist.get_rank() == 0:
                print(
                    f"{case}\n  {placements} on {tuple(mesh.shape)}: {text}", flush=True
                )
    if dist.get_rank() == 0:
        (Path(folder) / "counts").write_bytes(pickle.dumps(counts))


def _outcome_on_mesh(case: ScopeCase, a: Any, b: Any) -> tuple[str, str]:
    """The outcome of a call of DTensors in a scope, and what is to be said of it."""
    try:
        value, is_seen = _in_scope(case, a, b)
    except (RuntimeError, NotImplementedError) as error:
        try:
            case.call(a, b)
        except type(error):  # DTensor has no such view, or no such operator
            return "unseen", ""
        return "wrong", f"refused, and PyTorch takes it: {error}"
    if not is_seen and case.may_be_unseen(a, b):
        return "unseen", ""
    if any(place.is_partial() for place in value.placements):
        return "wrong", f"a pending sum, {value.placements}"
    text = case.fault(value.full_tensor().resolve_conj().resolve_neg().numpy())
    return ("wrong" if text else "kept"), text
