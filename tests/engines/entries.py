"""Entries and small arrays of all dtypes, special values among them, for Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

FLOATS = [np.float16, np.float32, np.float64]


INTEGERS = [np.int8, np.int32, np.int64]


REAL = [bool, *INTEGERS, *FLOATS]


def entries(
    dtype: Any, least: int | None = None, most: int | None = None
) -> st.SearchStrategy[Any]:
    """Entries of a dtype; for floats the special values as well."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind == "i":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return st.integers(
            low if least is None else least, high if most is None else most
        )
    if dtype.kind == "c":
        part = entries(np.float32)
        return st.builds(complex, part, part)
    values = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -3.5,
        np.inf,
        -np.inf,
        np.nan,
        float(np.finfo(dtype).max),
    ]
    values += [float(np.finfo(dtype).smallest_subnormal), float(np.finfo(dtype).tiny)]
    return st.one_of(st.sampled_from(values), st.floats(width=8 * dtype.itemsize))


def arrays(dtypes: list[Any], **limits: int) -> st.SearchStrategy[np.ndarray]:
    def of(dtype: Any) -> st.SearchStrategy[np.ndarray]:
        return st.lists(entries(dtype, **limits), min_size=6, max_size=6).map(
            lambda v: np.array(v, dtype).reshape(2, 3)
        )

    return st.sampled_from(dtypes).flatmap(of)
