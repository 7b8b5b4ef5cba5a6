"""Pictures of the CSV files in results/: python -m plots.experiments
[results/residuals.csv ...]; by default of all experiments that are there, and of the
benchmarks that the documentation shows.

Each picture lies beside its CSV file, under the same name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hifigemm.workshop.plots import save
from plots.drawings import DRAWINGS, draw, find_drawing, read_rows

SHOWN = ("dgemm_h200.csv",)


def main() -> None:
    for data in [Path(name) for name in sys.argv[1:]] or known():
        rows = read_rows(data)
        name = find_drawing(rows)
        if name is None:
            sys.exit(
                f"{data}: the columns are those of no experiment: {', '.join(DRAWINGS)}"
            )
        picture = data.with_suffix(".png")
        with picture.open("wb") as file:
            save(draw(name, rows), file)
        print(picture)


def known() -> list[Path]:
    """What is drawn by default."""
    drawn = {
        file: find_drawing(read_rows(file))
        for file in sorted(Path("results").glob("*.csv"))
    }
    return [
        file
        for file, name in drawn.items()
        if file.name in SHOWN or name not in (None, "throughput")
    ]


if __name__ == "__main__":
    main()
