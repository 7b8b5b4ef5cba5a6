"""The schemes by name, as users ask for them."""

from __future__ import annotations

from hifigemm.base.exceptions import PlanError
from hifigemm.schemes.corrected import Corrected
from hifigemm.schemes.double_double import DoubleDouble
from hifigemm.schemes.multiword import Multiword
from hifigemm.schemes.native import Native
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.ozaki2 import Ozaki2
from hifigemm.schemes.scheme import Scheme

_ALL: tuple[type[Scheme], ...] = (
    Native,
    Multiword,
    Corrected,
    Ozaki1,
    Ozaki2,
    DoubleDouble,
)
SCHEMES: dict[str, type[Scheme]] = {cls.name: cls for cls in _ALL}
"""Classes of schemes by the name that the argument `scheme` takes."""


def scheme_of_name(scheme: object) -> Scheme:
    """The scheme of that name, with its defaults.

    Raises PlanError: anything else.
    """
    if isinstance(scheme, type) and issubclass(scheme, Scheme):
        raise PlanError(
            f"scheme={scheme!r} is a class; expected an instance, such as hifigemm.{scheme.__name__}()"
        )
    if isinstance(scheme, str) and "(" in scheme:
        call = scheme.strip().removeprefix("hifigemm.").removeprefix("hg.")
        if call.partition("(")[0] in (cls.__name__ for cls in _ALL):
            raise PlanError(
                f"scheme={scheme!r} is text; expected the scheme, scheme=hg.{call} without quotes"
            )
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        names = ", ".join(f'"{name}"' for name in ("auto", *SCHEMES))
        raise PlanError(
            f"scheme={scheme!r}: expected {names} or one of the scheme dataclasses"
        )
    return SCHEMES[scheme]()
