"""Pictures of what GPUs do at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hifigemm.workshop.plots.style import COLOURS, Row, choose, new_figure, unique

_KINDS = {
    "copies": ("copies between GPUs", "orange"),
    "own copies": ("copies within a GPU", "pink"),
    "product": ("INT8 products", "blue"),
    "other": ("residues and reconstruction", "sky"),
}
_HEIGHT = 0.38


def mesh_timeline(rows: Sequence[Row]) -> Any:
    """A line of products above one of copies for each GPU."""
    title = "Do copies run beside products?\nRows of A and of B on a mesh of GPUs, products one after the other"
    gpus = unique(rows, "gpu")
    figure, ((axes,),) = new_figure(1, 1, (11, 1.2 + 0.9 * len(gpus)), title)
    labelled = set()
    for place, gpu in enumerate(gpus):
        for row in choose(rows, gpu=gpu):
            kind = _kind(row)
            name, colour = _KINDS[kind]
            start, stop = (float(row[x]) / 1e3 for x in ("start_us", "stop_us"))
            y = place + (_HEIGHT if row["lane"] == "copies" else 0)
            axes.barh(
                y,
                stop - start,
                _HEIGHT,
                left=start,
                align="edge",
                color=COLOURS[colour],
                label=None if kind in labelled else name,
            )
            labelled.add(kind)
    axes.set_yticks([x + _HEIGHT for x in range(len(gpus))], [f"GPU {x}" for x in gpus])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, frameon=False)
    return figure


def _kind(row: Row) -> str:
    """What a kernel or a copy is drawn as."""
    if row["lane"] == "copies":
        return "own copies" if "DtoD" in row["name"] else "copies"
    return "product" if "int8_product" in row["name"] else "other"
