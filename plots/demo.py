"""The picture of `hifigemm demo` from its CSV file: python plots/demo.py hifigemm-demo.csv hifigemm-demo.png"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from hifigemm.cli.picture import NUMBERS, SUFFIXES, draw


def main() -> None:
    if len(sys.argv) != 3 or Path(sys.argv[2]).suffix not in SUFFIXES:
        sys.exit(f"usage: {sys.argv[0]} DATA.csv PICTURE, a picture ending in {', '.join(SUFFIXES)}")
    data, picture = map(Path, sys.argv[1:])
    with data.open(newline="", encoding="utf-8") as file:
        rows = [
            {key: float(text) if key in NUMBERS else text for key, text in row.items()} for row in csv.DictReader(file)
        ]
    with picture.open("wb") as file:
        draw(rows, file, picture.suffix)


if __name__ == "__main__":
    main()
