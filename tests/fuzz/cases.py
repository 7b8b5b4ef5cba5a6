"""Cases of the fuzzer: operands, options and the ways to call, all of them from (seed,
index).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import hifigemm as hg
from tests.conftest import PAIRS, SINGLES

__all__ = ["Case", "Way", "draw", "laid_out", "placed"]

DTYPES = ("float32", "float64", "complex64", "complex128")
WIDE = (
    "full_range",
    "far_nudged_ties",
    "overflowing",
    "phi_20",
    "subnormal_times_large",
)
"""Families whose exponents lie so far apart that a product takes many slices."""
FAMILIES = [
    name
    for name in (*SINGLES, *PAIRS)
    if name not in ("vandermonde", "far_nudged_ties", "single_nonzero")
]
HALF = (
    "uniform",
    "phi_1",
    "integers",
    "full_range",
    "subnormal",
    "sparse",
    "zeros",
    "largest",
    "smallest",
)
"""Families that float16 has room for."""
ADDENDS = ("phi_1", "phi_1", "full_range", "sparse", "zeros", "subnormal")
"""Families of C; scalars near the largest number meet entries where they multiply
little or nothing.
"""
WORDS = ("fp16", "bf16", "tf32")
ENGINES = (
    "torch",
    *(
        f"simulated-{name}"
        for name in ("v100", "a100", "h100", "b200", "ideal-nearest", "ideal-zero")
    ),
)


@dataclass(frozen=True)
class Way:
    """How the product of a case is asked for; the result must keep the same promise, by
    exact schemes the same bits.

    Attributes
    ----------
    seed : int or None
        Of the memory layouts; None for operands in C order.
    swapped : bool
        Arrays of foreign byte order.
    tensors : bool
        PyTorch tensors in place of arrays. Without PyTorch these are arrays, and engine
        "torch" is "numpy".
    engine : str or None
    workspace : float or None
        Between the smallest limit that is accepted, 0, and what is taken without one,
        1.
    planned : bool
        With a plan from `make_plan`.
    block : tuple of int or None
        Matrices, rows and columns in a block of that plan, or less.
    prepared : str
        The sides, of "LR", that are prepared by that plan.
    out : "", "own", "a", "b" or "c"
        Whether the result goes to an array of its own layout, or to that of an operand
        that it fits.
    again : bool
        Asked twice without a report.
    """

    seed: int | None = None
    swapped: bool = False
    tensors: bool = False
    engine: str | None = None
    workspace: float | None = None
    planned: bool = False
    block: tuple[int, int, int] | None = None
    prepared: str = ""
    out: str = ""
    again: bool = False


@dataclass(frozen=True)
class Case:
    """A product. `gemm` holds its further arguments, trans_a and trans_b among them;
    None for `matmul`.
    """

    at: tuple[int, int]
    family: str
    a: np.ndarray
    b: np.ndarray
    options: dict[str, Any]
    gemm: dict[str, Any] | None
    ways: list[Way]

    @property
    def label(self) -> str:
        """What the case is counted under."""
        return getattr(self.options["scheme"], "name", "auto")

    @property
    def dtype(self) -> np.dtype:
        """Of the result."""
        return np.result_type(self.a, self.b, np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return np.matmul(*(np.empty(x.shape, bool) for x in self.factors())).shape

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """op(A) and op(B)."""
        gemm = self.gemm or {"trans_a": "N", "trans_b": "N"}
        return _transposed(self.a, gemm["trans_a"]), _transposed(
            self.b, gemm["trans_b"]
        )

    def __str__(self) -> str:
        more = {
            name: x if np.ndim(x) == 0 else f"{x.dtype}{x.shape}"
            for name, x in (self.gemm or {}).items()
        }
        a, b = (f"{x.dtype}{x.shape}" for x in (self.a, self.b))
        call = ", ".join(
            [a, b, *(f"{name}={x!s}" for name, x in {**more, **self.options}.items())]
        )
        return f"{self.at[0]} {self.at[1]}: {'matmul' if self.gemm is None else 'gemm'}({call}) of {self.family}"


def draw(seed: int, index: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([seed, index])
    options = _options(rng)
    dtypes = [str(rng.choice(DTYPES))] * 2
    if (
        getattr(options["scheme"], "product", None) == "fp32"
        and options["scheme"].name == "multiword"
    ):
        dtypes = [str(rng.choice(DTYPES[1::2]))] * 2
    elif rng.random() < 0.2:
        dtypes = [str(rng.choice(("float16", *DTYPES))) for _ in range(2)]
    family = str(rng.choice(HALF if "float16" in dtypes else FAMILIES))
    a, b = _operands(rng, family, *dtypes)
    gemm = (
        _gemm(rng, a, b) if rng.random() < 0.3 and 1 not in (a.ndim, b.ndim) else None
    )
    if gemm is not None:
        a, b = _transposed(a, gemm["trans_a"]), _transposed(b, gemm["trans_b"])
    ways = [Way(engine=options.pop("engine"))]
    ways += [_way(rng, options["scheme"], ways[0].engine) for _ in range(5)]
    return Case((seed, index), family, a, b, options, gemm, ways)


def laid_out(
    rng: np.random.Generator, x: np.ndarray, ascending: bool = False
) -> np.ndarray:
    """x in another place of memory: axes in any order, entries apart, backwards unless
    ascending, not at the start.
    """
    if x.ndim == 0:
        return x.copy()
    order = rng.permutation(x.ndim)
    steps = [1 + (rng.random() < 0.2) for _ in order]
    if rng.random() < 0.7:
        steps[-1] = rng.choice(
            [
                1,
                2,
                3,
                5,
                *(max(nbytes // x.itemsize, 1) for nbytes in (16, 32, 64, 128)),
            ]
        )
    signs = [1 if ascending or rng.random() < 0.75 else -1 for _ in order]
    sizes = [x.shape[axis] * step for axis, step in zip(order, steps)]
    start = rng.integers(0, 4)
    between = np.nan if x.dtype.kind in "fc" else 1
    memory = np.full(start + np.prod(sizes, dtype=int), between, x.dtype)[
        start:
    ].reshape(sizes)
    view = memory[tuple(slice(None, None, step) for step in steps)][
        tuple(slice(None, None, sign) for sign in signs)
    ]
    view = view.transpose(np.argsort(order))
    view[...] = x
    return view


def placed(way: Way) -> Callable[[np.ndarray], np.ndarray]:
    """What lays arrays out in memory as a way has them, one after the other."""
    rng = np.random.default_rng(way.seed)

    def place(x: np.ndarray) -> np.ndarray:
        if way.swapped and not way.tensors:
            x = x.astype(x.dtype.newbyteorder())
        return (
            np.copy(x) if way.seed is None else laid_out(rng, x, ascending=way.tensors)
        )

    return place


def _options(rng: np.random.Generator) -> dict[str, Any]:
    """Scheme, engine and an accuracy that the scheme can promise as a rule."""
    kind = rng.choice(
        ["auto", "ozaki1", "ozaki2", "native", "words"], p=[0.27, 0.43, 0.12, 0.1, 0.08]
    )
    r = float(10.0 ** rng.uniform(-40, -2))
    accuracy = [None, "correct", "fp32", "fp64", r, 0.0][
        rng.choice(6, p=[0.25, 0.35, 0.08, 0.08, 0.2, 0.04])
    ]
    engine = None if rng.random() < 0.6 else str(rng.choice(ENGINES))
    scheme: Any = "auto"
    if kind == "native":
        scheme = hg.Native(product=[None, "fp64"][rng.integers(2)])
        accuracy = [None, 1e-2, 1e-4][rng.integers(3)]
    elif kind == "words":
        product, scale = str(rng.choice(WORDS)), bool(rng.random() < 0.7)
        engine = engine if engine == "torch" else str(rng.choice(ENGINES[2:]))
        accuracy = None if rng.random() < 0.9 else 1e-2
        if product != "bf16" and rng.random() < 0.5:
            scheme = hg.Corrected(
                product, str(rng.choice(["outside", "chained"])), scale
            )
        else:
            how = (
                str(rng.choice(["nearest", "zero"])),
                str(rng.choice(["chained", "separate", "blocked"])),
                scale,
            )
            product = "fp32" if rng.random() < 0.2 else product
            scheme = hg.Multiword(
                product, *[(1, 1), (2, 3), (2, 4)][rng.integers(3)], *how
            )
    elif kind == "ozaki1":
        product = str(
            rng.choice(
                ("int8", "fp64", "fp32", *(() if engine == "simulated-v100" else WORDS))
            )
        )
        count = rng.integers(1, 12) if rng.random() < 0.4 else None
        mode = rng.choice([None, "dp", "sp", "correct"], p=[0.7, 0.1, 0.1, 0.1])
        scheme = hg.Ozaki1(product, count, mode)
        accuracy = None if scheme.explicit or mode else accuracy
    elif kind == "ozaki2":
        scalings = ["accurate", "fast", "largest"]
        scheme = hg.Ozaki2(scaling=str(rng.choice(scalings)))
        if rng.random() < 0.4:
            scheme = replace(
                scheme, num_moduli=rng.integers(2, 50 if rng.random() < 0.2 else 20)
            )
            accuracy = None
    return {"scheme": scheme, "accuracy": accuracy, "engine": engine}


def _size(rng: np.random.Generator, limit: int) -> int:
    return 0 if rng.random() < 0.01 else int(limit ** rng.random() + 0.5)


def _operands(rng: np.random.Generator, family: str, *dtypes: str) -> list[np.ndarray]:
    """Two matrices, vectors or stacks, some of them with Inf and NaN or with vectors
    that are all alike.
    """
    limit = 5 if family in WIDE else 300 if rng.random() < 0.002 else 12
    m, k, n = _size(rng, limit), _size(rng, 2 * limit), _size(rng, limit)
    stacks: list[tuple[int, ...]] = [(), ()]
    if rng.random() < 0.2 and limit < 300:
        stacks = [[(), (1,), (3,), (2, 1), (2, 3)][rng.integers(5)] for _ in range(2)]
    narrow = min(
        (np.finfo(dtype).dtype for dtype in dtypes), key=lambda dtype: dtype.itemsize
    )
    count = max(np.prod(np.broadcast_shapes(*stacks), dtype=int), 1)
    pairs = [
        [real_pair(rng, family, m, k, n, narrow) for _ in range(2)]
        for _ in range(count)
    ]
    operands = []
    for side, (dtype, stack) in enumerate(zip(dtypes, stacks)):
        x = np.stack(
            [pair[0][side] for pair in pairs[: max(np.prod(stack, dtype=int), 1)]]
        ).astype(dtype)
        if x.dtype.kind == "c":
            x.imag = np.stack([pair[1][side] for pair in pairs[: len(x)]])
        operands.append(x.reshape(*stack, *x.shape[1:]))
    for side, x in enumerate(operands):
        if rng.random() < 0.07:
            for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
                where = rng.random(x.shape) < rng.choice([0.01, 0.1, 0.5])
                part[where] = rng.choice(
                    [np.inf, -np.inf, np.nan], np.count_nonzero(where)
                )
        if rng.random() < 0.03:
            operands[side] = np.broadcast_to(x[..., :1, :], x.shape)
        if x.ndim == 2 and x.shape[side] == 1 and rng.random() < 0.5:
            operands[side] = x[0] if side == 0 else x[:, 0]
    return operands


def real_pair(
    rng: np.random.Generator, family: str, m: int, k: int, n: int, dtype: Any
) -> tuple[Any, Any]:
    if family in PAIRS and min(m, k, n) > 0:
        return PAIRS[family](rng, m, k, n, dtype)
    make = SINGLES.get(family, SINGLES["uniform"])
    return make(rng, (m, k), dtype=dtype), make(rng, (k, n), dtype=dtype)


def _gemm(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Scalars, C and transposes. C is often near A B, so that little is left."""
    dtype = np.result_type(a, b, np.float32)
    with np.errstate(all="ignore"):
        product = np.matmul(a, b).astype(dtype)
    alpha, beta = (_scalar(rng, dtype) for _ in range(2))
    if rng.random() < 0.15:
        alpha, beta = (
            float(2.0 ** int(rng.uniform(-0.9, 0.9) * np.finfo(dtype).maxexp))
            for _ in range(2)
        )
    elif rng.random() < 0.3:
        alpha, beta = (
            _far_scalar(rng, dtype) if rng.random() < 0.6 else scalar
            for scalar in (alpha, beta)
        )
    if rng.random() < 0.4:
        c, beta = product, -alpha
    else:
        family = str(rng.choice(ADDENDS))
        c = SINGLES[family](rng, product.shape, dtype=np.finfo(dtype).dtype).astype(
            dtype
        )
        c = [c, c[..., :1, :], c[..., :1]][rng.integers(3)]
    if rng.random() < 0.3:
        c = np.where(rng.random(c.shape) < 0.5, dtype.type(0), c)
    if rng.random() < 0.1:
        c = np.where(
            rng.random(c.shape) < 0.1, dtype.type(rng.choice([np.inf, np.nan])), c
        )
    return {
        "c": c,
        "alpha": alpha,
        "beta": beta,
        **{f"trans_{x}": str(rng.choice(["N", "T", "C"])) for x in "ab"},
    }


def _scalar(rng: np.random.Generator, dtype: np.dtype) -> complex:
    sign, power = rng.choice([-1.0, 1.0]), 2.0 ** rng.integers(-4, 5)
    z = (
        complex(rng.standard_normal(), rng.standard_normal())
        if dtype.kind == "c"
        else rng.standard_normal()
    )
    value = [sign, sign * power, rng.standard_normal(), z, 0.0][
        rng.choice(5, p=[0.3, 0.3, 0.2, 0.15, 0.05])
    ]
    return complex(value) if isinstance(value, complex) else float(value)


def _far_scalar(rng: np.random.Generator, dtype: np.dtype) -> complex:
    """A scalar of any magnitude that float64 has, often the largest ones; components
    are far apart too.
    """

    def part() -> float:
        exponent = int(
            rng.integers(990, 1024) if rng.random() < 0.4 else rng.integers(-1074, 1024)
        )
        return float(
            rng.choice([-1.0, 1.0])
            * np.ldexp(rng.choice([1.0, rng.uniform(1, 2)]), exponent)
        )

    re, im = part(), part()
    if dtype.kind == "c" and rng.random() < 0.5:
        return complex(re, im)
    return re


def _transposed(x: np.ndarray, how: str) -> np.ndarray:
    """op(x), and what op() makes x of."""
    x = x if how == "N" else np.swapaxes(x, -1, -2)
    return x.conj() if how == "C" else x


def _way(rng: np.random.Generator, scheme: Any, engine: str | None) -> Way:
    planned = bool(rng.random() < 0.4)
    if isinstance(scheme, hg.Ozaki1 | hg.Ozaki2) and getattr(scheme, "product", "") in (
        "int8",
        "fp32",
        "fp64",
    ):
        engine = engine if rng.random() < 0.8 else str(rng.choice(ENGINES))
    return Way(
        seed=int(rng.integers(2**32)) if rng.random() < 0.8 else None,
        swapped=bool(rng.random() < 0.2),
        tensors=bool(rng.random() < 0.2),
        engine=engine,
        workspace=float(rng.choice([0.0, rng.random(), 1.0]))
        if rng.random() < 0.3
        else None,
        planned=planned,
        block=tuple(int(x) for x in rng.choice([1, 2, 3, 400], 3))
        if planned and rng.random() < 0.5
        else None,
        prepared=str(rng.choice(["", "L", "R", "LR"])) if planned else "",
        out=str(rng.choice(["", "own", "a", "b", "c"])),
        again=not planned and bool(rng.random() < 0.2),
    )
