"""Texts that graphs of exported programs hold in the place of accuracies and
schemes.
"""

from __future__ import annotations

import hifigemm as hg

ACCURACIES = {
    "fp64": "fp64",
    "correct": "correct",
    "1e-12": 1e-12,
    "Relative(1e-12)": hg.Relative(1e-12),
}


SCHEMES = {
    "auto": "auto",
    "ozaki2": "ozaki2",
    "Native(product='fp64')": hg.Native("fp64"),
    "DoubleDouble()": hg.DoubleDouble(),
    "Multiword(product='fp16', num_words=2, num_products=4, split_rounding='zero', accumulate='blocked', scale=True, "
    "block=32, scaling=None, spans=False)": hg.Multiword(
        "fp16", 2, 4, split_rounding="zero", accumulate="blocked", block=32
    ),
    "Corrected(product='tf32', accumulate='chained', scale=True, block=None, shift_low=False, "
    "split_rounding='nearest', scaling=None, spans=False)": hg.Corrected(
        "tf32", accumulate="chained", shift_low=False
    ),
    "Ozaki1(product='fp16', num_slices=3, mode=None, scaling=None)": hg.Ozaki1(
        "fp16", 3
    ),
    "Ozaki2(product='int8', num_moduli=9, scaling='fast')": hg.Ozaki2(
        num_moduli=9, scaling="fast"
    ),
}
"""Texts that graphs hold in the place of accuracies and schemes."""
