"""NumPy's functions of vectors and matrices at random, in all memory layouts: one
product each, against the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import hifigemm.numpy as hnp
from tests.conftest import PAIRS, SINGLES
from tests.fuzz.cases import DTYPES, Way, placed
from tests.fuzz.judge import Exact, level

__all__ = ["FunctionCase", "draw"]

FAMILIES = (
    "phi_1",
    "phi_4",
    "full_range",
    "integers",
    "cancelling",
    "nearly_cancelling",
    "ties",
    "subnormal",
)
Factors = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
FUNCTIONS: dict[str, tuple[int, int, Any, Factors]] = {
    "dot": (1, 1, hnp.dot, lambda a, b: (a, b)),
    "dot of matrices": (2, 2, hnp.dot, lambda a, b: (a, b)),
    "vdot": (1, 1, hnp.vdot, lambda a, b: (a.conj(), b)),
    "inner": (1, 1, hnp.inner, lambda a, b: (a, b)),
    "inner of matrices": (
        2,
        2,
        lambda a, b, **options: hnp.inner(a, b.T, **options),
        lambda a, b: (a, b),
    ),
    "vecdot": (1, 1, hnp.vecdot, lambda a, b: (a.conj(), b)),
    "outer": (1, 1, hnp.outer, lambda a, b: (a[:, None], b[None])),
    "matvec": (2, 1, hnp.matvec, lambda a, b: (a, b)),
    "vecmat": (1, 2, hnp.vecmat, lambda a, b: (a.conj(), b)),
    "tensordot": (
        1,
        1,
        lambda a, b, **options: hnp.tensordot(a, b, 1, **options),
        lambda a, b: (a, b),
    ),
    "einsum of vectors": (
        1,
        1,
        lambda a, b, **options: hnp.einsum("i,i", a, b, **options),
        lambda a, b: (a, b),
    ),
    "einsum": (
        2,
        2,
        lambda a, b, **options: hnp.einsum("ij,jk->ik", a, b, **options),
        lambda a, b: (a, b),
    ),
    "einsum with a vector": (
        2,
        1,
        lambda a, b, **options: hnp.einsum("ij,j", a, b, **options),
        lambda a, b: (a, b),
    ),
}
"""Dimensions of both operands, the function, and the factors of the product that it
is.
"""


@dataclass(frozen=True)
class FunctionCase:
    """A function of two operands."""

    at: tuple[int, int]
    label: str
    family: str
    a: np.ndarray
    b: np.ndarray
    accuracy: Any
    ways: list[Way]

    @property
    def dtype(self) -> np.dtype:
        """Of the result."""
        return np.result_type(self.a, self.b)

    def __str__(self) -> str:
        a, b = (f"{x.dtype}{x.shape}" for x in (self.a, self.b))
        return f"{self.at[0]} {self.at[1]}: {self.label}({a}, {b}, accuracy={self.accuracy}) of {self.family}"

    def outcomes(self) -> Iterator[tuple[Way, str, str]]:
        """Each way with its outcome, "kept", "refused" or "wrong", and what is
        wrong.
        """
        *_, function, factors = FUNCTIONS[self.label]
        left, right = factors(self.a, self.b)
        exact = Exact(left, right, self.dtype, None)
        shape = np.matmul(np.empty(left.shape, bool), np.empty(right.shape, bool)).shape
        for way in self.ways:
            place = placed(way)
            try:
                values, report = function(
                    place(self.a),
                    place(self.b),
                    accuracy=self.accuracy,
                    return_report=True,
                )
            except Exception as error:
                yield way, "wrong", repr(error)
                continue
            values = np.asarray(values)
            if (values.shape, values.dtype) != (shape, self.dtype):
                yield way, "wrong", f"shape {values.shape} and dtype {values.dtype}"
                continue
            correct = self.accuracy == "correct"
            r = (
                level(self.accuracy, self.dtype, left.shape[-1])
                if self.accuracy is None
                else self.accuracy
            )
            r = (
                0.0
                if correct
                else report.bound
                if report.native
                else min(report.bound, r)
            )
            text = exact.fault(values, r, correct or report.correct)
            yield (
                way,
                "wrong" if text else "kept",
                text and f"{text}; {report.scheme}, {report.reason}",
            )


def draw(seed: int, index: int) -> FunctionCase:
    """The case of this number."""
    rng = np.random.default_rng([seed, index, 2])
    label = str(rng.choice(list(FUNCTIONS)))
    dims = FUNCTIONS[label][:2]
    family, dtype = str(rng.choice(FAMILIES)), np.dtype(str(rng.choice(DTYPES)))
    m, n = (int(x) for x in rng.integers(1, 7, 2))
    k = int(rng.integers(1, 400) if rng.random() < 0.1 else rng.integers(1, 20))
    pairs = [_pair(rng, family, m, k, n, np.finfo(dtype).dtype) for _ in range(2)]
    a, b = (pairs[0][side].astype(dtype) for side in (0, 1))
    if dtype.kind == "c":
        a.imag, b.imag = pairs[1]
    a, b = a[0] if dims[0] == 1 else a, b[:, 0] if dims[1] == 1 else b
    accuracy = [None, "correct", float(10.0 ** rng.uniform(-30, -3))][rng.integers(3)]
    ways = [
        Way(),
        *(
            Way(seed=int(rng.integers(2**32)), swapped=bool(rng.random() < 0.3))
            for _ in range(4)
        ),
    ]
    return FunctionCase((seed, index), label, family, a, b, accuracy, ways)


def _pair(
    rng: np.random.Generator, family: str, m: int, k: int, n: int, dtype: Any
) -> tuple[Any, Any]:
    if family in PAIRS:
        return PAIRS[family](rng, m, k, n, dtype)
    return SINGLES[family](rng, (m, k), dtype=dtype), SINGLES[family](
        rng, (k, n), dtype=dtype
    )
