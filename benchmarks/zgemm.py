"""How fast are complex products at the accuracy of float64, next to the native one? Checked, then timed.

    python -m benchmarks.zgemm [--output FILE.csv] [options of `hifigemm bench`]

Square products of complex phi matrices with phi = 0.5; "ozaki2:14" and "ozaki2:15" are Ozaki scheme II with that many
moduli, each of which takes two real products. `--dtype complex64` times CGEMM. The file is named after the device and
the day unless it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import run

OPTIONS = ("--dtype", "complex128", "--schemes", "native,auto,ozaki2:14,ozaki2:15", "--stages")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; options that are given override the defaults."""
    return run("zgemm", OPTIONS, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
