"""What users write: it runs, no type checker has a word to say, and every result has
the type that is stated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import hifigemm as hg

Reported = tuple[NDArray[Any], hg.Report]

x: NDArray[np.float64] = np.ones((4, 4))
y = np.ones((4, 4), np.float32)
z: NDArray[np.complex128] = np.ones((4, 4), np.complex128)
rows = [[1.0, 2.0, 3.0, 4.0]]

# Arrays and lists give arrays.
assert_type(hg.matmul(x, y), NDArray[Any])
assert_type(hg.matmul(rows, y), NDArray[Any])
assert_type(hg.matmul([1, 2, 3], (4.0, 5.0, 6.0)), NDArray[Any])
assert_type(hg.matmul(x, y, return_report=False), NDArray[Any])
assert_type(hg.matmul([[1, 2]], [[3], [4]], result="int64"), NDArray[Any])
assert_type(hg.matmul(x, y, return_report=True), Reported)
assert_type(hg.matmul(x, y, accuracy=hg.Relative(1e-9)), NDArray[Any])
assert_type(hg.matmul(x, y, result="pair"), tuple[NDArray[Any], NDArray[Any]])
assert_type(hg.matmul(hg.matmul(x, y), y.T, return_report=True), Reported)
assert_type(
    hg.matmul(
        x, y, accuracy="correct", scheme="ozaki2", engine="numpy", workspace=2**20
    ),
    NDArray[Any],
)
assert_type(
    hg.matmul(x, y, accuracy=1e-12, scheme=hg.Ozaki1(product="fp16", mode="dp")),
    NDArray[Any],
)
assert_type(hg.matmul(x, y, out_dtype="float16"), NDArray[Any])
assert_type(hg.numpy.matmul(x, y, dtype=np.float32), NDArray[Any])
single: NDArray[np.float32] = hg.matmul(y.T, y)

# What is given as out comes back.
assert_type(hg.matmul(x, x.T, out=x), NDArray[np.float64])
assert_type(
    hg.matmul(x, z, out=z, return_report=True), tuple[NDArray[np.complex128], hg.Report]
)


def twice(verbose: bool) -> Any:
    return hg.matmul(x, y, return_report=verbose)


# gemm takes scalars, and what broadcasts.
assert_type(hg.gemm(x, y), NDArray[Any])
assert_type(
    hg.gemm(x, y, z, alpha=-1.0, beta=2, trans_a="N", trans_b="T"), NDArray[Any]
)
assert_type(
    hg.gemm(z, y, 1.0, alpha=1j, beta=np.float32(2.0), return_report=True), Reported
)
assert_type(hg.gemm(x, y, z, beta=1.0, out=z), NDArray[np.complex128])

# Functions of NumPy.
v = np.ones(4)
Chained = tuple[
    NDArray[Any],
    hg.Report | hg.numpy.ChainReport | hg.numpy.ThreeFactorsReport,
]
assert_type(hg.numpy.dot(x, y), NDArray[Any])
assert_type(hg.numpy.dot(x, y, x), NDArray[Any])
assert_type(hg.numpy.dot([1.0, 2.0], [3, 4], accuracy="correct"), NDArray[Any])
assert_type(hg.numpy.dot(2.0, hg.matmul(x, y)), NDArray[Any])
assert_type(hg.numpy.inner(hg.matmul(x, y), y.T, return_report=True), Reported)
assert_type(hg.numpy.einsum("ij,jk->ik", x, y, accuracy=1e-12), NDArray[Any])
assert_type(hg.numpy.einsum("ij,jk,kl", x, y, x, return_report=True), Chained)
assert_type(hg.numpy.einsum(x, [0, 1], y, [1, 2], [0, 2]), Any)
assert_type(hg.numpy.tensordot(x, y, axes=([0, 1], [1, 0])), NDArray[Any])
assert_type(hg.numpy.tensordot(x, y, 1, return_report=True), Reported)
assert_type(hg.numpy.multi_dot([x, y, v]), NDArray[Any])
assert_type(hg.numpy.multi_dot([x, [[1.0]] * 4], return_report=True), Chained)
assert_type(hg.numpy.matrix_power(x, 5), NDArray[Any])
assert_type(hg.numpy.vecdot(x, v, axis=0, scheme="ozaki2"), NDArray[Any])
assert_type(hg.numpy.syrk(x, "T"), NDArray[Any])
assert_type(hg.numpy.matmul(x, y, return_report=True), Reported)

# Plans and prepared operands.
plan = hg.make_plan(x, y, accuracy=1e-16, scheme="ozaki1", workspace=None)
assert_type(plan, hg.Plan)
assert_type(plan.bound, float)
assert_type(hg.prepare(y, "right", accuracy="correct").plan, hg.Plan)
fixed = hg.prepare(y, "right", plan=plan)
assert_type(hg.matmul(x, fixed), NDArray[Any])
assert_type(
    hg.matmul(hg.prepare(rows, "left", plan=plan), fixed, return_report=True), Reported
)
result, report = hg.matmul(x, y, plan=plan, return_report=True)
assert_type(report.bound, float)
assert_type(report.correct, bool)

assert_type(hg.warmup(x, y, accuracy="correct", workspace=2**20), str)

# Schemes, words and contexts.
schemes = (
    hg.Native(product="fp64"),
    hg.Multiword(
        "bf16", 3, 6, split_rounding="nearest-away", accumulate="blocked", block=64
    ),
    hg.Corrected("tf32", accumulate="chained", split_rounding="zero"),
    hg.Ozaki1(num_slices=7),
    hg.Ozaki2(num_moduli=14, scaling="fast"),
)
with hg.strict():
    for scheme in schemes:
        hg.matmul(y, y, scheme=scheme)
assert_type(hg.engines(), list[str])

# Solutions with proof.
unit = np.eye(2)
solution = hg.linalg.solve(unit, unit, accuracy="correct")
assert_type(solution, hg.linalg.VerifiedSolution)
assert_type(
    hg.linalg.solve(unit, [1.0, 2.0], return_report=True),
    tuple[hg.linalg.VerifiedSolution, hg.linalg.SolutionReport],
)
assert_type(hg.linalg.inv(unit), hg.linalg.VerifiedSolution)
assert_type(
    hg.linalg.solve(unit, unit, a_radius=0.1, b_radius=[[0.1, 0.0]]),
    hg.linalg.VerifiedSolution,
)
assert_type(hg.linalg.lstsq(unit, unit), hg.linalg.VerifiedSolution)
assert_type(
    hg.linalg.lstsq(unit, unit, return_report=True),
    tuple[hg.linalg.VerifiedSolution, hg.linalg.SolutionReport],
)
assert_type(hg.linalg.det(unit), hg.linalg.Determinant | hg.linalg.ComplexDeterminant)
assert_type(hg.linalg.slogdet(unit), hg.linalg.LogDeterminant)
assert_type(hg.linalg.eigvalsh(unit), hg.linalg.VerifiedValues)
assert_type(hg.linalg.svdvals(unit), hg.linalg.VerifiedValues)
assert_type(hg.linalg.cond(unit), hg.linalg.Condition)
if hg.linalg.is_positive_definite(unit):
    condition: float = hg.linalg.solve(unit, unit, return_report=True)[1].condition
try:
    hg.matmul(x, y, scheme="native", accuracy="fp64")
except (hg.AccuracyError, hg.PlanError) as error:
    refused: hg.HifigemmError = error
