"""Accuracies and schemes as text, as operators of other libraries take their
arguments.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import Any, cast

from hifigemm.base.exceptions import PlanError
from hifigemm.model.accuracy import Accuracy, Invariant, Relative
from hifigemm.schemes import Scheme
from hifigemm.schemes.registry import SCHEMES

_RELATIVE = re.compile(r"(?:(?:hifigemm|hg)\.)?Relative\((?:r=)?(?P<r>[^()]*)\)")
"""As in a program, whatever the package is called there, and as Python shows it."""
_INVARIANT = re.compile(
    r"(?:(?:hifigemm|hg)\.)?Invariant\((?:accuracy=)?(?P<inner>.*)\)"
)
"""Inside it is an accuracy as Python shows it, or nothing."""
_CLASSES = {cls.__name__: cls for cls in SCHEMES.values()}


def accuracy_text(accuracy: Accuracy) -> str | None:
    """The text of an accuracy; None stays None."""
    if accuracy is None or isinstance(accuracy, str):
        return accuracy
    if isinstance(accuracy, Relative):
        return f"Relative({accuracy.r!r})"
    if isinstance(accuracy, Invariant):
        inner = accuracy_text(accuracy.accuracy)
        return "Invariant()" if inner is None else f"Invariant({inner})"
    return repr(float(accuracy))


@lru_cache
def accuracy_from(text: str | None) -> Accuracy:
    """The accuracy that a text stands for; a text that stands for none as it is.

    Raises PlanError: a relative error that is not between 0 and 1.
    """
    if text is None:
        return None
    invariant = _INVARIANT.fullmatch(text.strip())
    if invariant is not None:
        inner = invariant["inner"].strip("\"' ")
        is_none = inner in ("", "None")
        asked: Any = None if is_none else accuracy_from(inner)
        return Invariant(asked)
    relative = _RELATIVE.fullmatch(text.strip())
    try:
        r = float(text if relative is None else relative["r"])
    except ValueError:
        return cast(Accuracy, text)
    return r if relative is None else Relative(r)


def scheme_text(scheme: str | Scheme) -> str:
    """The text of a scheme: a name, or what Python writes for the dataclass;
    torch.compile traces this, but no repr.
    """
    if isinstance(scheme, str):
        return scheme
    kind: Any = type(scheme)
    fields = [f"{name}={getattr(scheme, name)!r}" for name in kind.__match_args__]
    return f"{kind.__name__}({', '.join(fields)})"


@lru_cache
def scheme_from(text: str) -> str | Scheme:
    """The scheme that a text stands for, such as ``ozaki2`` or ``Ozaki2(num_moduli=14,
    scaling='fast')``, with ``hg.`` or ``hifigemm.`` before it or not.

    Raises PlanError: the text is neither a name nor a call of a scheme's class with
    plain numbers and strings.
    """
    if "(" not in text:
        return text
    try:
        name = text.strip().removeprefix("hifigemm.").removeprefix("hg.")
        call = ast.parse(name, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        positional = [ast.literal_eval(x) for x in call.args]
        named = {x.arg or "": ast.literal_eval(x.value) for x in call.keywords}
        return _CLASSES[call.func.id](*positional, **named)
    except (KeyError, SyntaxError, TypeError, ValueError) as error:
        names = ", ".join(_CLASSES)
        raise PlanError(
            f"scheme={text!r}: expected a name or a call of one of {names}: {error}"
        ) from None
