"""Schemes: one paper idea a file, each a frozen dataclass with the methods of `Scheme`.

`registry` knows all of them by name, and `auto` chooses one for a problem. A scheme is
loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hifigemm.schemes.native import Native
from hifigemm.schemes.scheme import Scheme

if TYPE_CHECKING:
    from hifigemm.schemes.corrected import Corrected
    from hifigemm.schemes.double_double import DoubleDouble
    from hifigemm.schemes.multiword import Multiword
    from hifigemm.schemes.ozaki1 import Ozaki1
    from hifigemm.schemes.ozaki2 import Ozaki2
    from hifigemm.schemes.registry import SCHEMES

__all__ = [
    "SCHEMES",
    "Corrected",
    "DoubleDouble",
    "Multiword",
    "Native",
    "Ozaki1",
    "Ozaki2",
    "Scheme",
    "as_scheme",
]

_LOADED_ON_USE = {
    "SCHEMES": "registry",
    "Corrected": "corrected",
    "DoubleDouble": "double_double",
    "Multiword": "multiword",
    "Ozaki1": "ozaki1",
    "Ozaki2": "ozaki2",
}
"""Names by the module that they are loaded from."""


def __getattr__(name: str) -> object:
    """A scheme, or the table of all, which is imported when it is first asked for."""
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_LOADED_ON_USE[name]}")
    globals()[name] = getattr(home, name)
    return globals()[name]


def as_scheme(scheme: str | Scheme) -> Scheme | None:
    """The scheme of a name or dataclass; None for "auto".

    Raises PlanError: anything else.
    """
    if isinstance(scheme, Scheme):
        return scheme
    if isinstance(scheme, str) and scheme == "auto":
        return None
    from hifigemm.schemes.registry import scheme_of_name

    return scheme_of_name(scheme)
