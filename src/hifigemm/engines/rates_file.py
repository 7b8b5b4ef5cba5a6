"""Files of measured rates, which take the place of the library's own where ``HIFIGEMM_RATES`` names one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from hifigemm.engines.rates import SIZES, Rates
from hifigemm.exceptions import PlanError
from hifigemm.settings import rates_file

_CURVES = ("native_fp64", "native_fp32")


@lru_cache(maxsize=1)
def named_rates() -> Rates | None:
    """The rates of the file that ``HIFIGEMM_RATES`` names, as it is when they are first wanted; None without one.

    Raises PlanError: the file cannot be read or holds no rates.
    """
    path = rates_file()
    if path is None:
        return None
    try:
        return read_rates(path)
    except PlanError as error:
        raise PlanError(f"HIFIGEMM_RATES={error}") from error


def read_rates(path: Path) -> Rates:
    """The rates of a file with what `as_json` returns.

    Raises PlanError: a file that cannot be read, is no JSON, or lacks a positive number somewhere.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PlanError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PlanError(f"{path}: expected an object, such as `hifigemm bench --calibrate` writes")
    names = [field.name for field in fields(Rates) if field.name != "source"]
    if found.keys() != set(names):
        wrong = ", ".join(sorted(found.keys() ^ set(names)))
        raise PlanError(f"{path}: expected {', '.join(names)}; missing or unknown: {wrong}")
    values: dict[str, Any] = {}
    for name in names:
        value = found[name]
        if name == "gpu":
            right, expected = isinstance(value, str), "a string"
        elif name in _CURVES:
            right = isinstance(value, list) and len(value) == len(SIZES) and all(map(_is_rate, value))
            value, expected = tuple(value) if right else value, f"{len(SIZES)} positive numbers"
        elif name == "num_sms":
            right, expected = _is_rate(value) and isinstance(value, int), "a positive integer"
        else:
            right, expected = _is_rate(value), "a positive number"
        if not right:
            raise PlanError(f"{path}: {name} is {value!r}; expected {expected}")
        values[name] = value
    return Rates(**values, source=f"from {path}")


def as_json(rates: Rates) -> str:
    """The text of a file of rates."""
    return json.dumps({name: x for name, x in asdict(rates).items() if name != "source"}, indent=1) + "\n"


def _is_rate(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < math.inf
