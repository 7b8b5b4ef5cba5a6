"""Is a product right? Asked of every result before it is timed.

For float64 and complex128 some rows and columns are held against the exact product, correct to twice the precision,
over all of k, and the whole result against the library's own product, whose a-priori error k u |A||B| allows for. For
float32 and complex64 the whole result is held against the product in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hifigemm as hg

from .arrays import Arrays
from .operands import Workload

__all__ = ["Reference", "Verdict", "native_bound"]

SAMPLE = 64
"""Rows and columns that are compared with the exact product."""

_AT_ONCE = 1 << 25
"""Entries of a result that are compared at a time."""


@dataclass(frozen=True)
class Verdict:
    """What was seen of a result.

    Attributes
    ----------
    error : float
        Largest |C - AB| / (|A||B|) of a real component.
    wrong : str
        What is wrong with it, if anything.
    normwise : float
        ||C - AB||_F / ||AB||_F over the entries that were compared with an accurate product.
    """

    error: float
    wrong: str = ""
    normwise: float = math.nan


def native_bound(load: Workload) -> float:
    """gamma_k = k u / (1 - k u): the worst case of a product whose sums are rounded in the format of the result."""
    return load.terms * load.u / (1 - load.terms * load.u)


class Reference:
    """What the product of two operands should be.

    Parameters
    ----------
    arrays : Arrays
    load : Workload
    a, b : arrays of that workload
    sample : int
        Rows and columns of a matrix that are compared with the exact product, the first and the last among them; of a
        stack the first matrix, the last and some others.
    """

    def __init__(self, arrays: Arrays, load: Workload, a: Any, b: Any, sample: int = SAMPLE) -> None:
        self._arrays, self._load = arrays, load
        self._wide = load.real == "float64"
        self._a, self._b = (x.reshape(load.batch, *x.shape[-2:]) for x in (a, b))
        self._values = self._native()
        self._samples = self._exact_samples(sample) if self._wide else []

    def judge(self, c: Any, bound: float) -> Verdict:
        """Hold a result against the promise |C - AB| <= bound |A||B| + u |AB|.

        A bound that is not finite promises nothing: then the worst case of a native product is asked for.
        """
        load = self._load
        bound = bound if math.isfinite(bound) else native_bound(load)
        slack = 1 + 4 * load.terms * 2.0**-53
        limit = (bound + load.u) * slack
        # The second operand of the comparison errs too: the native product, or the product in float64.
        base = native_bound(load) if self._wide else 2 * load.terms * 2.0**-53
        c = c.reshape(load.batch, load.m, load.n)
        error, normwise, broken, missing = self._compare_all(c, limit + base * slack)
        if missing:
            return Verdict(
                math.inf, f"{missing} of {load.batch * load.m * load.n} entries are not finite or not written"
            )
        if self._wide:
            error, normwise = self._compare_samples(c)
        if error > (limit if self._wide else limit + base * slack):
            return Verdict(error, f"an error of {error:.3g} |A||B| breaks the bound of {bound:.3g}", normwise)
        if broken:
            return Verdict(
                error, f"{broken} entries differ from the native product by more than both may err", normwise
            )
        return Verdict(error, "", normwise)

    def _native(self) -> Any:
        """The library's product; in float64 for operands in single precision."""
        a, b = self._a, self._b
        if self._load.is_complex:
            return list(self._components(a, b))
        return [self._arrays.widened(a) @ self._arrays.widened(b)]

    def _components(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Re and im of the product from real products in float64."""
        (ar, ai), (br, bi) = ([self._arrays.widened(part) for part in (x.real, x.imag)] for x in (a, b))
        return ar @ br - ai @ bi, ar @ bi + ai @ br

    def _sizes(self, rows: slice, z: int) -> list[Any]:
        """|A||B| of the real embedding, for some rows of one matrix."""
        a, b = self._a[z, rows], self._b[z]
        wide = self._arrays.widened
        if not self._load.is_complex:
            return [wide(abs(a)) @ wide(abs(b))]
        (ar, ai), (br, bi) = ([wide(abs(part)) for part in (x.real, x.imag)] for x in (a, b))
        return [ar @ br + ai @ bi, ar @ bi + ai @ br]

    def _compare_all(self, c: Any, tolerance: float) -> tuple[float, float, int, int]:
        """Largest and normwise error against the product at hand, entries beyond the tolerance, and not finite ones."""
        load, error, broken, missing = self._load, 0.0, 0, 0
        norms = [0.0, 0.0]
        tiny = float(np.finfo(load.real).smallest_subnormal)
        step = max(_AT_ONCE // load.n, 1)
        for z in range(load.batch):
            for start in range(0, load.m, step):
                rows = slice(start, min(start + step, load.m))
                values = [c.real, c.imag] if load.is_complex else [c]
                for value, expected, size in zip(values, self._values, self._sizes(rows, z), strict=True):
                    difference = abs(self._arrays.widened(value[z, rows]) - expected[z, rows])
                    finite = difference < math.inf
                    missing += int((~finite).sum())
                    # Half the smallest subnormal is what the last rounding may cost in any case.
                    broken += int((difference > tolerance * size + tiny).sum())
                    where = finite & (difference > tiny) & (size > 0)
                    ratio = difference[where] / size[where]
                    error = max(error, float(ratio.max()) if len(ratio) else 0.0)
                    norms = [math.hypot(*pair) for pair in zip(norms, map(_norm, (difference, expected[z, rows])))]
        return error, _quotient(*norms), broken, missing

    def _exact_samples(self, sample: int) -> list[tuple[Any, ...]]:
        """Indices of some matrices, rows and columns; their product in two words; |A||B|."""
        load, rng = self._load, np.random.default_rng([self._load.seed, 64])
        samples = []
        for z in _choose(rng, load.batch, 4):
            rows, columns = _choose(rng, load.m, sample), _choose(rng, load.n, sample)
            a, b = self._arrays.to_host(self._a[z][rows]), self._arrays.to_host(self._b[z][:, columns])
            high = hg.matmul(a, b, accuracy="correct", engine="numpy")
            minus = -np.eye(len(columns), dtype=b.dtype)
            low = hg.matmul(np.hstack([a, high]), np.vstack([b, minus]), accuracy="correct", engine="numpy")
            samples.append((z, rows, columns, _parts(high), _parts(low), _embedded_size(a, b)))
        return samples

    def _compare_samples(self, c: Any) -> tuple[float, float]:
        """Largest and normwise error of the sampled entries: (C - high) - low, high and low the words of AB."""
        error, norms = 0.0, [0.0, 0.0]
        for z, rows, columns, high, low, size in self._samples:
            values = _parts(self._arrays.to_host(c[z][rows][:, columns]))
            difference = abs((values - high) - low)
            with np.errstate(divide="ignore", invalid="ignore"):
                error = max(error, float(np.where(difference == 0, 0, difference / size).max()))
            norms = [math.hypot(*pair) for pair in zip(norms, map(_norm, (difference, high)))]
        return error, _quotient(*norms)


def _norm(x: Any) -> float:
    """Frobenius norm of a real array, scaled by its largest entry."""
    largest = float(abs(x).max())
    return largest * math.sqrt(float(((x / largest) ** 2).sum())) if 0.0 < largest < math.inf else largest


def _quotient(error: float, size: float) -> float:
    return error / size if error else 0.0


def _choose(rng: np.random.Generator, size: int, most: int) -> list[int]:
    """At most so many indices below size, the first and the last among them."""
    if size <= most:
        return list(range(size))
    inner = rng.choice(np.arange(1, size - 1), max(most - 2, 0), replace=False)
    return sorted({0, size - 1, *(int(i) for i in inner)})


def _parts(x: NDArray[Any]) -> NDArray[np.float64]:
    """Real components, stacked."""
    return np.stack([x.real, x.imag]) if x.dtype.kind == "c" else x[None]


def _embedded_size(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """|A||B| of the real embedding."""
    if a.dtype.kind != "c":
        return np.asarray(abs(a) @ abs(b))[None]
    (ar, ai), (br, bi) = ((abs(x.real), abs(x.imag)) for x in (a, b))
    return np.stack([ar @ br + ai @ bi, ar @ bi + ai @ br])
