"""How fast are products at the accuracy of float64, next to the native one and to peers? Checked, then timed.

    python -m benchmarks.dgemm [--output FILE.csv] [options of `hifigemm bench`]

Square products of phi matrices with phi = 0.5; "ozaki2:14" and "ozaki2:15" are Ozaki scheme II with that many moduli.
The file is named after the device and the day unless it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import run

OPTIONS = ("--dtype", "float64", "--schemes", "native,auto,ozaki2:14,ozaki2:15,peers", "--stages")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; options that are given override the defaults."""
    return run("dgemm", OPTIONS, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
