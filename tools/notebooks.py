"""The notebooks of docs/notebooks. Usage: python tools/notebooks.py [--write]

Each is executed, and what it prints is compared with what it holds, in which figures may
differ by a factor of ten. `--write` puts the new outputs there. The site has them as pages,
see `tools/site_hooks.py`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where it is run as a script

from tools.check_docs import is_output  # noqa: E402

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 120
"""Longest time of a cell."""

LINK = re.compile(r"(\]\([^)\s]+)\.ipynb(?=[)#])")


def executed(path: Path) -> Any:
    """The notebook with the outputs that the sources of this checkout give; a cell that
    fails raises.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=SECONDS, record_timing=False, coalesce_streams=True
    )
    sources = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    client.execute(env=os.environ | {"PYTHONPATH": sources})
    # What differs from machine to machine, and no reader needs.
    notebook.metadata.pop("language_info", None)
    return notebook


def printed(cell: Any) -> str:
    """The text that a cell has printed."""
    outputs = cell.get("outputs", ())
    return "".join(out.text for out in outputs if out.output_type == "stream")


def differences(path: Path, notebook: Any) -> Iterator[str]:
    """Cells that print something else than the file says."""
    stored = nbformat.read(path, as_version=4)
    for old, new in zip(stored.cells, notebook.cells, strict=True):
        if not is_output(printed(old), printed(new), about=True):
            yield f"{path.name}: a cell prints\n{printed(new)}and held\n{printed(old)}"


def page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    exporter = MarkdownExporter()
    resources = {"output_files_dir": ".", "unique_key": name}
    text, resources = exporter.from_notebook_node(notebook, resources)
    pictures = {Path(file).name: data for file, data in resources["outputs"].items()}
    return LINK.sub(r"\1.md", text), pictures


def main() -> int:
    """Print what differs, or write it; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="put the outputs there")
    is_writing = parser.parse_args().write
    problems = []
    for path in NOTEBOOKS:
        notebook = executed(path)
        if is_writing:
            nbformat.write(notebook, path)
        else:
            problems += differences(path, notebook)
    print("\n".join(problems) or f"notebooks: {len(NOTEBOOKS)} are in order")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
