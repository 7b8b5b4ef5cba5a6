"""Products of integers and bools at random: those of NumPy, or exact in Python's
integers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import hifigemm as hg
from tests.fuzz.cases import Way, placed

__all__ = ["IntegerCase", "draw"]

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
)


@dataclass(frozen=True)
class IntegerCase:
    """A product of integers; `out_dtype` is that of an array for the result, or ""."""

    at: tuple[int, int]
    a: np.ndarray
    b: np.ndarray
    options: dict[str, Any]
    out_dtype: str
    ways: list[Way]
    label = "integers"

    @property
    def dtype(self) -> np.dtype:
        """To which NumPy promotes both dtypes."""
        return np.result_type(self.a, self.b)

    def __str__(self) -> str:
        a, b = (f"{x.dtype}{x.shape}" for x in (self.a, self.b))
        return f"{self.at[0]} {self.at[1]}: matmul({a}, {b}, {self.options}, out of {self.out_dtype or 'its own'})"

    def outcomes(self) -> Iterator[tuple[Way, str, str]]:
        """Each way with its outcome, "kept", "refused" or "wrong", and what is
        wrong.
        """
        exact = self.a.astype(object) * 1 @ (self.b.astype(object) * 1)
        for way in self.ways:
            place = placed(way)
            a, b, options = place(self.a), place(self.b), dict(self.options)
            if self.out_dtype:
                options["out"] = place(np.zeros(exact.shape, self.out_dtype))
            try:
                values = hg.matmul(a, b, **options)
            except Exception as error:
                is_right, text = self._may_refuse(error, exact), repr(error)
                yield way, "refused" if is_right else "wrong", text
                continue
            text = self._fault(np.asarray(values), exact)
            yield way, "wrong" if text else "kept", text

    def _is_exact(self) -> bool:
        return bool(self.options)

    def _target(self) -> np.dtype:
        """The dtype in which the product is made."""
        result = self.options.get("result")
        target = self.dtype if result is None else np.dtype(result)
        return (
            np.dtype(self.out_dtype) if self.out_dtype and self._is_exact() else target
        )

    def _may_refuse(self, error: Exception, exact: np.ndarray) -> bool:
        """True if an entry lies beyond the dtype, and the message names the first one
        with its value.
        """
        limits = None if self._target().kind in "bO" else np.iinfo(self._target())
        if (
            not self._is_exact()
            or limits is None
            or not isinstance(error, hg.AccuracyError)
        ):
            return False
        beyond = np.argwhere((exact < limits.min) | (exact > limits.max))
        named = re.search(r"entry (\(.*?\)) = (-?\d+):", str(error))
        if not len(beyond) or named is None:
            return False
        first = tuple(map(int, beyond[0]))
        return named[1] == str(first) and int(named[2]) == exact[first]

    def _fault(self, values: np.ndarray, exact: np.ndarray) -> str:
        if not self._is_exact():
            expected = np.matmul(self.a, self.b)
        elif self._target().kind == "b":
            expected = exact > 0
        else:
            limits = None if self._target().kind == "O" else np.iinfo(self._target())
            if (
                limits is not None
                and ((exact < limits.min) | (exact > limits.max)).any()
            ):
                return "an entry lies beyond the dtype, and there was no error"
            expected = exact
        wrong = values != expected
        if wrong.any():
            place = tuple(map(int, np.argwhere(wrong)[0]))
            return f"{wrong.sum()} of {wrong.size} entries, {place} is {values[place]}, not {expected[place]}"
        return ""


def draw(seed: int, index: int) -> IntegerCase:
    """The case of this number."""
    rng = np.random.default_rng([seed, index, 1])
    m, n = rng.integers(1, 8, 2)
    k = int(rng.integers(1, 3000) if rng.random() < 0.1 else rng.integers(1, 20))
    first, second = (str(rng.choice(DTYPES)) for _ in range(2))
    a, b = _entries(rng, (m, k), first), _entries(rng, (k, n), second)
    choices: list[dict[str, Any]] = [
        {"accuracy": "correct"},
        {"accuracy": 1e-9},
        {"result": "int64"},
    ]
    choices += [{"result": "object"}, {}]
    if np.result_type(a, b).kind == "f":
        choices = choices[2:4]
    options = choices[rng.integers(len(choices))]
    out_dtype = ""
    if options and options != {"result": "object"} and rng.random() < 0.4:
        out_dtype = str(rng.choice(DTYPES[1:]))
    ways = [Way(), *(_way(rng) for _ in range(4))]
    return IntegerCase((seed, index), a, b, options, out_dtype, ways)


def _way(rng: np.random.Generator) -> Way:
    return Way(
        seed=int(rng.integers(2**32)) if rng.random() < 0.8 else None,
        swapped=bool(rng.random() < 0.5),
    )


def _entries(
    rng: np.random.Generator, shape: tuple[int, int], dtype: str
) -> np.ndarray:
    """Entries of the whole range, small ones, or those at its ends, zeros among
    them.
    """
    if dtype == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(dtype)
    kind = rng.integers(3)
    if kind == 0:
        x = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    elif kind == 1:
        x = rng.integers(max(limits.min, -3), 4, shape, dtype)
    else:
        x = rng.choice(
            np.array(
                [limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], dtype
            ),
            shape,
        )
    return np.where(rng.random(shape) < rng.choice([0.0, 0.5]), np.zeros(1, dtype), x)
