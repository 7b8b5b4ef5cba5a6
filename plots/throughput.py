"""Pictures of CSV files of the benchmarks: python plots/throughput.py FILE.csv [...]

Each picture lies beside its CSV file, under the same name. `hifigemm plot` does the same for a single file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hifigemm.study.plots import draw, find_drawing, read_rows, save


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} FILE.csv [...], files of `hifigemm bench --csv`")
    for data in map(Path, sys.argv[1:]):
        rows = read_rows(data)
        if find_drawing(rows) != "throughput":
            sys.exit(f"{data}: the columns are not those of a benchmark")
        picture = data.with_suffix(".png")
        with picture.open("wb") as file:
            save(draw("throughput", rows), file)
        print(picture)


if __name__ == "__main__":
    main()
