"""How fast are products at the accuracy of float32 or better, next to the native one and to peers? Checked, then timed.

    python -m benchmarks.sgemm [--output FILE.csv] [options of `hifigemm bench`]

Square products of phi matrices with phi = 0.5. The file is named after the device and the day unless it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.common import run

OPTIONS = ("--dtype", "float32", "--schemes", "native,auto,ozaki2:7,ozaki2:8,corrected,peers", "--stages")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; options that are given override the defaults."""
    return run("sgemm", OPTIONS, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
