"""Settings of all products: strict mode and the log of decisions.

The first product that needs them reads three environment variables, once:

- ``HIFIGEMM_STRICT``: "1" turns strict mode on, "0" or nothing does not; see `strict`.
  Any other value raises `PlanError`: a typing error must not remove a guarantee.
- ``HIFIGEMM_LOG``: "1" or "info" writes one line for each decision to the standard
  error, and one before each long call; "debug" writes the whole report too; "0" or
  nothing leaves logging alone. Any other value is ignored with a warning: no product
  fails for a log.
- ``HIFIGEMM_CORE``: "0" turns the compiled core of the CPU off, "1" or nothing does
  not. Any other value raises `PlanError`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from hifigemm.base.exceptions import HifigemmError, PlanError

if TYPE_CHECKING:
    import logging

_strict: ContextVar[bool | None] = ContextVar("strict", default=None)
_LEVELS = {"1": "INFO", "info": "INFO", "debug": "DEBUG"}
"""Levels of the log by the value of ``HIFIGEMM_LOG`` that asks for one."""
_INFO = 20
"""logging.INFO: `logging` is not loaded before a log is wanted."""


@contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """A context that rejects native products whose worst case exceeds the accuracy.

    Outside of it, "fp32", "fp64" and None accept a native product even if its worst
    case exceeds their r. Within it, AccuracyError is raised if "auto" would take this
    product, or would leave over- and underflow to a GPU's library. The error names the
    problem, the accuracy, the worst case, and why "auto" took no other scheme.

    The context accepts a native product whose worst case meets the accuracy, such as
    ``accuracy=1e-12`` for float64, and a ``scheme="native"`` that you name.

    The setting applies to the current thread or asynchronous task. For all others set
    ``HIFIGEMM_STRICT=1`` in the environment. A JAX program keeps the setting with which
    it was traced.

    Parameters
    ----------
    enabled : bool
        False allows these native products again, whatever the environment says.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> with hg.strict():
    ...     c = hg.matmul(np.ones((2, 2)), np.ones((2, 2)), accuracy="correct")
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"strict({enabled!r}): expected True or False")
    token = _strict.set(enabled)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """True if strict mode is on in this thread or task.

    Raises PlanError: ``HIFIGEMM_STRICT`` is neither "0" nor "1".
    """
    of_context = _strict.get()
    return _strict_environment() if of_context is None else of_context


@lru_cache(maxsize=1)
def _strict_environment() -> bool:
    """True if ``HIFIGEMM_STRICT`` turns strict mode on."""
    value = os.environ.get("HIFIGEMM_STRICT", "").strip()
    if value not in ("", "0", "1"):
        raise PlanError(f'HIFIGEMM_STRICT={value!r}: expected "0" or "1"')
    return value == "1"


def wants_core() -> bool:
    """True unless ``HIFIGEMM_CORE`` is "0".

    Raises PlanError: it is neither "0" nor "1".
    """
    value = os.environ.get("HIFIGEMM_CORE", "").strip()
    if value not in ("", "0", "1"):
        raise PlanError(f'HIFIGEMM_CORE={value!r}: expected "0" or "1"')
    return value != "0"


@lru_cache(maxsize=1)
def decision_log() -> logging.Logger:
    """The logger "hifigemm", set up as ``HIFIGEMM_LOG`` asks."""
    import logging

    log = logging.getLogger("hifigemm")
    level = _level_of_environment()
    if level:
        from hifigemm.base.log_handler import HANDLER

        log.addHandler(HANDLER)
        if log.level == logging.NOTSET:
            log.setLevel(level)
    return log


@lru_cache(maxsize=1)
def _level_of_environment() -> str:
    """The level of the log that ``HIFIGEMM_LOG`` asks for; empty if it asks for none."""
    value = os.environ.get("HIFIGEMM_LOG", "").strip().lower()
    if value not in ("", "0", *_LEVELS):
        warnings.warn(
            f'HIFIGEMM_LOG={value!r} is ignored: expected "0", "1", "info" or "debug"',
            stacklevel=2,
        )
    return _LEVELS.get(value, "")


def logs_decisions() -> bool:
    """True if a log takes the lines of decisions.

    A program that has not loaded `logging` has set no level that takes them.
    """
    if "logging" not in sys.modules and not _level_of_environment():
        return False
    return decision_log().isEnabledFor(_INFO)


LONG = 2.0
"""Seconds from which on calls are announced."""


def announce(problem: object, scheme: object, seconds: float) -> None:
    """Write a line before a product of so many seconds, if that is long and a log takes
    it.
    """
    if seconds > LONG and logs_decisions():
        decision_log().info("%s: %s: about %.2g s expected", problem, scheme, seconds)


def mark_incomplete(error: BaseException, out: object) -> None:
    """Say of `out` that it is incomplete, as an error ended the call that wrote to it:
    in a line of the log and, from Python 3.11 on, in a note of the error.

    Not where the call was refused, by an error of the library or of operands that do not
    fit: `out` is as before then, or the error says what it lacks.
    """
    if out is None or isinstance(error, (HifigemmError, TypeError, ValueError)):
        return
    name = type(error).__name__
    text = f"out is incomplete: {name} ended the call that was to fill it"
    decision_log().warning("%s", text)
    if sys.version_info >= (3, 11):
        error.add_note(text)
