"""Schemes: one paper idea a file, each a frozen dataclass with the methods of `Scheme`.

`registry` knows all of them by name, and `auto` chooses one for a problem.
"""

from hifigemm.schemes.corrected import Corrected
from hifigemm.schemes.double_double import DoubleDouble
from hifigemm.schemes.multiword import Multiword
from hifigemm.schemes.native import Native
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.ozaki2 import Ozaki2
from hifigemm.schemes.registry import SCHEMES
from hifigemm.schemes.scheme import Scheme

__all__ = [
    "SCHEMES",
    "Corrected",
    "DoubleDouble",
    "Multiword",
    "Native",
    "Ozaki1",
    "Ozaki2",
    "Scheme",
]
