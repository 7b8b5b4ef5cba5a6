"""Calls of the BLAS with hostile data, and their results by fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tests.blas.routines import DTYPES, REALS, ROUTINES
from tests.conftest import PAIRS, SINGLES, real_pair
from tests.exact_values import as_fraction, exact_entries, rounded_once, times
from tests.hard_matrices import as_complex

FAMILIES = (*SINGLES, *PAIRS)
SCALARS = (0.0, 1.0, -1.0, 0.25, -8.0, 0.1, -1.7, 3.0, 1e-30, -1e30, 1e-200, 5e-324)


@dataclass
class Storage:
    """A matrix in padded memory, by columns or by rows; other numbers there are NaN.

    A vector is a column whose rows lie `ld` entries apart, backward if that is below 0.
    """

    values: np.ndarray
    ld: int
    memory: np.ndarray
    start: int

    @property
    def data(self) -> np.ndarray:
        """The memory from the first entry of the matrix on."""
        return self.memory[self.start :]


def stored(rng: Any, values: np.ndarray, order: str, is_read: Any = None) -> Storage:
    """A matrix in memory of its own, NaN where it is not read."""
    m, n = values.shape
    length = m if order == "columns" else n
    ld = max(length, 1) + int(rng.integers(0, 3))
    memory = np.full(max(ld * (n if order == "columns" else m), 1) + 2, np.nan)
    memory = memory.astype(values.dtype)
    view = _view(memory[1:], m, n, ld, order)
    view[...] = values if is_read is None else np.where(is_read, values, np.nan)
    return Storage(view, ld, memory, 1)


def _view(memory: np.ndarray, m: int, n: int, ld: int, order: str) -> np.ndarray:
    size = memory.itemsize
    strides = (size, ld * size) if order == "columns" else (ld * size, size)
    return np.lib.stride_tricks.as_strided(memory, (m, n), strides)


def stored_vector(rng: Any, values: np.ndarray) -> Storage:
    """A column in memory, with an increment."""
    n = len(values)
    increment = int(rng.choice([1, 1, -1, 2, -3]))
    memory = np.full(n * abs(increment) + 3, np.nan, values.dtype)
    view = memory[1 :: abs(increment)][:n]
    view = view[::-1] if increment < 0 else view
    view[...] = values[:, 0]
    return Storage(view[:, None], increment, memory, 1)


@dataclass
class Case:
    """A call, the storage that it writes to, and the matrix that is expected there."""

    p: str
    name: str
    order: str
    arguments: dict[str, Any]
    result: Storage
    expected: np.ndarray
    is_written: np.ndarray

    def fault(self) -> str | None:
        """What is wrong of the result after the call, or None."""
        memory = self.result.memory.copy()
        view = self.result.values
        wrong = (
            view[self.is_written].tobytes() != self.expected[self.is_written].tobytes()
        )
        if wrong:
            return f"{self.name}: {view[self.is_written]} is not {self.expected[self.is_written]}"
        view[self.is_written] = np.nan
        if np.isfinite(self.result.memory).any():
            return f"{self.name}: wrote beside its result"
        self.result.memory[...] = memory
        return None


def triangle(n: int, uplo: str) -> np.ndarray:
    """True for the entries of a triangle."""
    ones = np.ones((n, n), bool)
    return np.triu(ones) if uplo == "U" else np.tril(ones)


def op(x: np.ndarray, trans: str) -> np.ndarray:
    """x, its transpose or its conjugate transpose."""
    return {"N": x, "T": x.T, "C": x.conj().T}[trans]


def rounded_terms(
    products: list[tuple[complex, np.ndarray, np.ndarray]],
    beta: complex,
    c: np.ndarray | None,
    dtype: Any,
    shape: tuple[int, int],
    is_written: np.ndarray,
) -> np.ndarray:
    """The sum of s A B over all products, and beta C, rounded once where it is written."""
    real = np.empty(0, dtype).real.dtype
    result = np.zeros(shape, dtype)
    is_complex = result.dtype.kind == "c"
    width = 2 if is_complex else 1
    if (
        all(s == 0 for s, _, _ in products)
        and complex(beta).imag == 0
        and c is not None
    ):
        # Where there is no product, zeros of C keep their signs, times that of beta.
        with np.errstate(all="ignore"):
            parts = np.ascontiguousarray(c).view(real) * real.type(complex(beta).real)
        return parts.view(dtype) if beta else result
    entries = [exact_entries(a, b) for _, a, b in products]
    for number, at in enumerate(np.ndindex(shape)):
        if not is_written[at]:
            continue
        re = im = Fraction(0)
        for (s, _, _), values in zip(products, entries, strict=True):
            pair = (
                values[number * width],
                values[number * width + 1] if is_complex else Fraction(0),
            )
            x, y = times(s, pair)
            re, im = re + x, im + y
        if c is not None and beta != 0:
            x, y = times(beta, as_fraction(c[at]))
            re, im = re + x, im + y
        result.real[at] = rounded_once(re, real)
        if is_complex:
            result.imag[at] = rounded_once(im, real)
    return result


def pair_of(
    rng: Any, m: int, k: int, n: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray]:
    family = str(rng.choice(FAMILIES))
    real = np.dtype(np.empty(0, dtype).real.dtype)
    with np.errstate(all="ignore"):
        if np.dtype(dtype).kind == "c":
            a, b = as_complex(real_pair, rng, family, m, k, n, real)
        else:
            a, b = real_pair(rng, family, m, k, n, real)
    if a.shape != (m, k) or b.shape != (k, n):
        return pair_of(rng, m, k, n, dtype)  # some families need terms in twos
    return a.astype(dtype), b.astype(dtype)


def _scalar(rng: Any, dtype: Any) -> complex:
    scalar = complex(rng.choice(SCALARS))
    if np.dtype(dtype).kind == "c" and rng.random() < 0.5:
        scalar = complex(scalar.real, rng.choice(SCALARS))
    if rng.random() < 0.2:
        scalar = complex(rng.standard_normal(), scalar.imag)
    with np.errstate(all="ignore"):
        value = np.dtype(dtype).type(
            scalar if np.dtype(dtype).kind == "c" else scalar.real
        )
    return complex(value)


def _addend(rng: Any, product: np.ndarray, alpha: complex, beta: complex) -> np.ndarray:
    """C near -alpha A B / beta, so that the sum cancels, or any numbers."""
    shape, dtype = product.shape, product.dtype
    with np.errstate(all="ignore"):
        c = -alpha * product.astype(complex) / beta if beta else np.zeros(shape)
        if rng.random() < 0.5 or not np.isfinite(c).all():
            c = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        c = c if dtype.kind == "c" else c.real
        c = c.astype(dtype)
    return np.where(np.isfinite(c), c, dtype.type(1))


def draw(rng: Any, name: str, p: str, largest: int = 6) -> Case:
    """A call of a routine with any flags, shapes and scalars."""
    dtype, real = DTYPES[p], REALS[p]
    order = str(rng.choice(["columns", "rows"]))
    m, n = (int(x) for x in rng.integers(1, largest + 1, 2))
    k = int(2 ** rng.uniform(0, 6))
    alpha, beta = _scalar(rng, dtype), _scalar(rng, dtype)
    uplo, side = str(rng.choice(["U", "L"])), str(rng.choice(["L", "R"]))
    diag = str(rng.choice(["N", "U"]))
    trans, transa, transb = (str(x) for x in rng.choice(["N", "T", "C"], 3))
    arguments: dict[str, Any] = {
        "order": order,
        "uplo": uplo,
        "side": side,
        "diag": diag,
    }
    everything = np.ones((m, n), bool)

    if name in ("gemm", "gemmt"):
        m = n if name == "gemmt" else m
        a, b = pair_of(rng, m, k, n, dtype)
        is_written = np.ones((m, n), bool) if name == "gemm" else triangle(n, uplo)
        products = [(alpha, a, b)]
        A = stored(rng, op(a, transa), order)
        B = stored(rng, op(b, transb), order)
        arguments |= {
            "transa": transa,
            "transb": transb,
            "A": A,
            "B": B,
            "m": m,
            "n": n,
        }
        target = "C"
    elif name in ("symm", "hemm"):
        rows = m if side == "L" else n
        if side == "L":
            half, other = pair_of(rng, rows, rows, n, dtype)
        else:
            other, half = pair_of(rng, m, rows, rows, dtype)
        is_stored = triangle(rows, uplo)
        mirrored = half.conj().T if name == "hemm" else half.T
        full = np.where(is_stored, half, mirrored)
        if name == "hemm":
            np.fill_diagonal(full, full.diagonal().real)
        products = [(alpha, full, other) if side == "L" else (alpha, other, full)]
        is_written = everything
        arguments |= {
            "A": stored(rng, half, order, is_stored),
            "B": stored(rng, other, order),
        }
        arguments |= {"m": m, "n": n}
        target = "C"
    elif name in ("syrk", "herk"):
        trans = str(rng.choice(["N", "C"] if name == "herk" else ["N", "T"]))
        a, _ = pair_of(rng, n, k, n, dtype)
        right = a.conj().T if name == "herk" else a.T
        if name == "herk":
            alpha, beta = complex(_scalar(rng, real)), complex(_scalar(rng, real))
        products, is_written = [(alpha, a, right)], triangle(n, uplo)
        arguments |= {"trans": trans, "A": stored(rng, op(a, trans), order), "n": n}
        target = "C"
    elif name in ("syr2k", "her2k"):
        is_hermitian = name == "her2k"
        trans = str(rng.choice(["N", "C"] if is_hermitian else ["N", "T"]))
        a, b = pair_of(rng, n, k, n, dtype)
        b = b.T
        if is_hermitian:
            beta = complex(_scalar(rng, real))
            products = [(alpha, a, b.conj().T), (alpha.conjugate(), b, a.conj().T)]
        else:
            products = [(alpha, a, b.T), (alpha, b, a.T)]
        is_written = triangle(n, uplo)
        arguments |= {"trans": trans, "A": stored(rng, op(a, trans), order)}
        arguments |= {"B": stored(rng, op(b, trans), order), "n": n}
        target = "C"
    elif name in ("trmm", "trmv"):
        rows = m if side == "L" or name == "trmv" else n
        n = 1 if name == "trmv" else n
        flag = trans if name == "trmv" else transa
        if side == "L" or name == "trmv":
            half, other = pair_of(rng, rows, rows, n, dtype)
        else:
            other, half = pair_of(rng, m, rows, rows, dtype)
        is_stored = triangle(rows, uplo)
        if diag == "U":
            is_stored &= ~np.eye(rows, dtype=bool)
        full = np.where(is_stored, half, dtype(0))
        if diag == "U":
            np.fill_diagonal(full, 1)
        alpha = complex(1) if name == "trmv" else alpha
        is_left = side == "L" or name == "trmv"
        products = [
            (alpha, op(full, flag), other)
            if is_left
            else (alpha, other, op(full, flag))
        ]
        is_written = np.ones((m, n), bool)
        result = (
            stored_vector(rng, other) if name == "trmv" else stored(rng, other, order)
        )
        arguments |= {
            "A": stored(rng, half, order, is_stored),
            "m": m,
            "n": m if name == "trmv" else n,
        }
        arguments |= {"trans": trans, "transa": transa}
        target = "X" if name == "trmv" else "B"
        beta = complex(0)
    elif name == "gemv":
        a, x = pair_of(rng, m, k, 1, dtype)
        products, is_written = [(alpha, a, x)], np.ones((m, 1), bool)
        shape = op(a, trans).shape
        arguments |= {"trans": trans, "A": stored(rng, op(a, trans), order)}
        arguments |= {"X": stored_vector(rng, x), "m": shape[0], "n": shape[1]}
        target = "Y"
    elif name in ("symv", "hemv"):
        half, x = pair_of(rng, m, m, 1, dtype)
        is_stored = triangle(m, uplo)
        full = np.where(is_stored, half, half.conj().T if name == "hemv" else half.T)
        if name == "hemv":
            np.fill_diagonal(full, full.diagonal().real)
        products, is_written = [(alpha, full, x)], np.ones((m, 1), bool)
        arguments |= {
            "A": stored(rng, half, order, is_stored),
            "X": stored_vector(rng, x),
            "n": m,
        }
        target = "Y"
    else:
        x, y = pair_of(rng, m, 1, n, dtype)
        right = y.conj() if name == "gerc" else y
        products, is_written, beta = [(alpha, x, right)], everything, complex(1)
        arguments |= {
            "X": stored_vector(rng, x),
            "Y": stored_vector(rng, y.T),
            "m": m,
            "n": n,
        }
        target = "A"

    c = None
    if target in ("C", "Y") or name.startswith("ger"):
        with np.errstate(all="ignore"):
            product = sum(np.asarray(s * (a @ b)) for s, a, b in products) / (
                alpha or 1
            )
        product = np.asarray(
            product if np.dtype(dtype).kind == "c" else product.real, dtype
        )
        c = _addend(rng, product, alpha, beta)
        has_real_diagonal = name in ("herk", "her2k")
        if has_real_diagonal:
            c[np.diag_indices(n)] = (
                c.diagonal().real + 1j
            )  # an imaginary part that is ignored
        is_read = is_written if beta else np.zeros_like(is_written)
        if target == "Y":
            result = stored_vector(rng, c if beta else np.full_like(c, np.nan))
        else:
            result = stored(rng, c, order, is_read)
        if has_real_diagonal:
            c = c.copy()
            np.fill_diagonal(c, c.diagonal().real)
    expected = rounded_terms(products, beta, c, dtype, is_written.shape, is_written)
    if name in ("herk", "her2k"):
        # Where nothing changes nothing is written.
        is_unchanged = alpha == 0 and beta == 1
        expected.imag[np.diag_indices(n)] = float(is_unchanged)
    arguments |= {"k": k, "alpha": alpha, "beta": beta, target: result}
    return _case(name, p, order, arguments, target, result, expected, is_written)


def _case(
    name: str,
    p: str,
    order: str,
    arguments: dict[str, Any],
    target: str,
    result: Storage,
    expected: np.ndarray,
    is_written: np.ndarray,
) -> Case:
    """The case with memory for storages, and their leading dimensions."""
    passed: dict[str, Any] = {}
    for key in ROUTINES[name][1].split():
        key = key.lstrip("*%")
        if key.startswith(("ld", "inc")):
            prefix = "ld" if key.startswith("ld") else "inc"
            passed[key] = arguments[key.removeprefix(prefix).upper()].ld
        else:
            value = arguments[key]
            passed[key] = value.data if isinstance(value, Storage) else value
    return Case(p, name, order, passed, result, expected, is_written)
