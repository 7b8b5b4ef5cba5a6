"""Products at random in a dtype that is asked for, of 16 bits as a rule: rounded once,
or within the bound of two roundings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.base.formats import BF16, FP16, FP32, FP64, Format
from hifigemm.numerics.rounding_formats import round_to_format
from tests.exact_values import rounded_to_format
from tests.fuzz import cases
from tests.fuzz.cases import Way, placed
from tests.fuzz.judge import Dyadic, Exact

__all__ = ["NarrowCase", "draw"]

DTYPES = {"float16": FP16, "bfloat16": BF16, "float32": FP32, "float64": FP64}
HAS_TORCH = find_spec("torch") is not None


@dataclass(frozen=True)
class NarrowCase:
    """A product of real operands and the dtype of its result; `gemm` is as in
    `cases.Case`, with op() applied. `dtypes` are those of A and B.
    """

    at: tuple[int, int]
    a: np.ndarray
    b: np.ndarray
    dtypes: tuple[str, str]
    options: dict[str, Any]
    gemm: dict[str, Any] | None
    ways: list[Way]
    label = "out_dtype"

    @property
    def dtype(self) -> str:
        """Of the result."""
        return str(self.options["out_dtype"])

    def __str__(self) -> str:
        shapes = f"{self.dtypes[0]}{self.a.shape}, {self.dtypes[1]}{self.b.shape}"
        return f"{self.at[0]} {self.at[1]}: {shapes}, {self.options}, {self.gemm}"

    def outcomes(self) -> Iterator[tuple[Way, str, str]]:
        """Each way with its outcome, "kept" or "wrong", and what is wrong."""
        wide = np.result_type(self.a, self.b, np.float32)
        with np.errstate(all="ignore"):
            exact = Exact(self.a, self.b, wide, self.gemm)
        for way in self.ways:
            try:
                values, report = self._product(way, return_report=True)
                again = self._product(way, return_report=False)
            except Exception as error:
                yield way, "wrong", repr(error)
                continue
            text = self._fault(exact, values, report, wide)
            if not np.array_equal(again, values, equal_nan=True):
                text = "other values where it is repeated"
            yield way, "wrong" if text else "kept", text

    def _product(self, way: Way, *, return_report: bool) -> Any:
        """The result in float64, which has all of its numbers, and the report."""
        place = placed(way)
        arrays = [self.a, self.b]
        gemm = dict(self.gemm or {})
        if gemm:
            arrays.append(gemm.pop("c"))
        arrays = [place(x) for x in arrays]
        operands: list[Any] = list(arrays)
        if way.tensors:
            import torch

            names = (*self.dtypes, None)
            tensors = [torch.from_numpy(x) for x in arrays]
            operands = [
                x if name is None else x.to(getattr(torch, name))
                for x, name in zip(tensors, names, strict=False)
            ]
        function: Any = hg.gemm if self.gemm else hg.matmul
        options = {**self.options, **gemm, "return_report": return_report}
        result = function(*operands, **options)
        values, report = result if return_report else (result, None)
        numbers = values.double().numpy() if way.tensors else np.float64(values)
        return (numbers, report) if return_report else numbers

    def _fault(
        self, exact: Exact, values: np.ndarray, report: hg.Report, wide: np.dtype
    ) -> str:
        """What is wrong with a result, or ""."""
        accuracy = self.options["accuracy"]
        if accuracy in ("correct", 0.0) and not report.correct:
            return "the report does not say that it is correct"
        if isinstance(accuracy, float) and report.bound > accuracy:
            return f"the report says {report.bound:.3g}"
        fmt = DTYPES[self.dtype]
        first = FP64 if wide == np.float64 else FP32
        values = values.reshape(exact.shape)
        special = exact.special[0]
        error, may_overflow = exact._error_of_sum(0, report.bound, wide)
        least = Fraction(2) ** (fmt.min_exponent - 1)
        least += Fraction(2) ** (first.min_exponent - 1)
        for at in np.ndindex(values.shape):
            x = values[at]
            if exact.open[at]:
                continue
            if special[at] != 0:
                if not (x == special[at] or (np.isnan(x) and np.isnan(special[at]))):
                    return f"{at} is {x}, not {special[at]}"
                continue
            value = _fraction(exact.values[0], at)
            rounded = rounded_to_format(value, fmt.t, fmt.emin, fmt.emax)
            if value == 0:
                rounded = exact.zeros[0][at]
            if report.correct:
                if x != rounded or np.signbit(x) != np.signbit(rounded):
                    return f"{at} is {x!r}, rounded once it is {rounded!r}"
            elif x != rounded and not may_overflow[at]:
                if not np.isfinite(x):
                    return f"{at} is {x!r}, not {rounded!r}"
                bound = _fraction(error, at) + Fraction(fmt.u) * abs(value) + least
                if abs(Fraction(float(x)) - value) > bound:
                    return f"{at} is {x!r}, {rounded!r} rounded once"
        return ""


def _fraction(x: Dyadic, at: tuple[int, ...]) -> Fraction:
    return Fraction(int(x.integers[at])) * Fraction(2) ** int(x.exponent[at])


def draw(seed: int, index: int) -> NarrowCase:
    """The case of this number: the operands of `cases.draw`, their real parts."""
    case = cases.draw(seed, index)
    rng = np.random.default_rng([seed, index, 5])
    has_tensors = HAS_TORCH and bool(rng.random() < 0.6)
    names = list(DTYPES) if has_tensors else [x for x in DTYPES if x != "bfloat16"]
    dtypes = str(rng.choice(names)), str(rng.choice(names))
    if rng.random() < 0.5:
        dtypes = dtypes[0], dtypes[0]
    out_dtype = str(rng.choice(names))
    factors = [x.real.astype(np.float64) for x in case.factors()]
    are_matrices = all(x.ndim == 2 for x in factors) and factors[1].shape[0] > 1
    if rng.random() < 0.4 and are_matrices:
        _near_midpoints(rng, *factors, DTYPES[out_dtype])
    with np.errstate(all="ignore"):
        operands = [
            round_to_format(x, DTYPES[name]).astype(
                "float32" if name == "bfloat16" else name
            )
            for x, name in zip(factors, dtypes, strict=True)
        ]
    a, b = operands
    gemm = None
    if case.gemm is not None:
        with np.errstate(all="ignore"):
            c = case.gemm["c"].real.astype(np.result_type(a, b, np.float32))
        alpha, beta = (complex(case.gemm[x]).real for x in ("alpha", "beta"))
        gemm = {"c": c, "alpha": alpha, "beta": beta}
    r = float(10.0 ** rng.uniform(-20, -2))
    accuracy = ["correct", None, "fp32", r, 0.0][
        rng.choice(5, p=[0.5, 0.1, 0.1, 0.2, 0.1])
    ]
    options = {"accuracy": accuracy, "out_dtype": out_dtype}
    seeds = [int(x) for x in rng.integers(2**32, size=3)]
    ways = [Way(seed=x, tensors=has_tensors) for x in seeds]
    return NarrowCase((seed, index), a, b, dtypes, options, gemm, ways)


def _near_midpoints(
    rng: np.random.Generator, a: np.ndarray, b: np.ndarray, fmt: Format
) -> None:
    """Make A B midpoints of a format, and numbers next to them."""
    t = fmt.t
    bits = rng.integers(2**t, 2 ** (t + 1), len(a)) | 1
    powers = rng.choice([fmt.emin - t, fmt.emin, 0, fmt.emax - t], len(a))
    distance = rng.integers(20, 120, len(a))
    a[...] = 0.0
    b[...] = 0.0
    a[:, 0] = np.ldexp(bits.astype(np.float64), powers)
    a[:, -1] = np.ldexp(rng.choice([-1.0, 0.0, 1.0], len(a)), powers - distance)
    b[0] = rng.choice([1.0, -1.0], b.shape[1])
    b[-1] = 1.0
