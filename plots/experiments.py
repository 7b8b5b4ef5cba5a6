"""Pictures of the CSV files in results/: python plots/experiments.py [results/residuals.csv ...]; all that are there by
default.

Each picture lies beside its CSV file, under the same name. `hifigemm plot` does the same for a single file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hifigemm.study.plots import DRAWINGS, draw, find_drawing, read_rows, save


def main() -> None:
    known = [Path("results", f"{name}.csv") for name in DRAWINGS]
    files = [Path(name) for name in sys.argv[1:]] or [file for file in known if file.exists()]
    for data in files:
        rows = read_rows(data)
        name = find_drawing(rows)
        if name is None:
            sys.exit(f"{data}: the columns are those of no experiment: {', '.join(DRAWINGS)}")
        picture = data.with_suffix(".png")
        with picture.open("wb") as file:
            save(draw(name, rows), file)
        print(picture)


if __name__ == "__main__":
    main()
