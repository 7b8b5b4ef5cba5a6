"""Number formats: significand length and exponent range of the words that matrix
engines multiply.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Format:
    """A binary format. Finite nonzero values are +-m * 2**(e - t + 1) with integer
    m < 2**t and emin <= e <= emax.
    """

    name: str  # lower-case name, as schemes spell it
    t: int  # significand bits with the hidden one
    # emin and emax: exponents of the smallest and the largest normal binade:
    # 2**emin <= |x| < 2**(emax + 1)
    emin: int
    emax: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or unpickled, a format of this module is itself: formats are told
        apart by `is`.
        """
        return (
            (_named, (self.name,))
            if FORMATS.get(self.name) is self
            else (Format, astuple(self))
        )

    @cached_property
    def u(self) -> float:
        """Unit roundoff, 2**-t."""
        return 2.0**-self.t

    @cached_property
    def min_exponent(self) -> int:
        """Exponent of the smallest subnormal, the unit of the fixed-point end of the
        format.
        """
        return self.emin - self.t + 1

    @cached_property
    def max_integer(self) -> int:
        """Every integer of at most this magnitude is exactly representable."""
        return 2 ** min(self.t, self.emax + 1)


FP64 = Format("fp64", 53, -1022, 1023)
FP32 = Format("fp32", 24, -126, 127)
TF32 = Format("tf32", 11, -126, 127)
FP16 = Format("fp16", 11, -14, 15)
BF16 = Format("bf16", 8, -126, 127)
FP8_E4M3 = Format("fp8_e4m3", 4, -6, 8)
FP8_E5M2 = Format("fp8_e5m2", 3, -14, 15)
INT8 = Format("int8", 7, 0, 6)
"""INT8 as a fixed-point format: integers of magnitude below 2**7 (and -2**7)."""

FORMATS = {f.name: f for f in (FP64, FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2, INT8)}


def _named(name: str) -> Format:
    return FORMATS[name]
