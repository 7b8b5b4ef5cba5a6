"""Lay out a wheel as a kernel of the Hugging Face Hub, for PyTorch on CPUs and NVIDIA GPUs.

    python -m pip wheel --no-deps --wheel-dir dist .
    python tools/hub_kernel.py dist/hifigemm-*.whl hub
    python -c "from pathlib import Path; from kernels import get_local_kernel
    print(get_local_kernel(Path('hub')).matmul)"

The kernel is the package itself: a variant of the layout has the files of the wheel, and a
module that imports hifigemm from there where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

VARIANTS = {"torch-cpu": "cpu", "torch-cuda": "cuda"}
"""Variants of all versions of PyTorch, with the backends that the metadata names."""

MODULE = '''"""Matrix products with proven error bounds: hifigemm as a kernel of the Hub."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("hifigemm") is None:
    sys.path.append(str(Path(__file__).parent))

import hifigemm
from hifigemm import *  # noqa: F403

__all__ = hifigemm.__all__
__version__ = hifigemm.__version__
'''


def lay_out(wheel: Path, folder: Path) -> list[Path]:
    """The folders of all variants, written from a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata_name,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        )
        package = [x for x in archive.namelist() if x.startswith("hifigemm/")]
        lines = archive.read(metadata_name).decode().splitlines()
        fields = dict(line.split(": ", 1) for line in reversed(lines) if ": " in line)
        version = fields["Version"]
        written = []
        for variant, backend in VARIANTS.items():
            target = folder / "build" / variant
            target.mkdir(parents=True)
            archive.extractall(target, package)
            (target / "__init__.py").write_text(MODULE)
            digits = version.replace(".", "_")
            metadata = {
                "name": "hifigemm",
                "id": f"_hifigemm_{backend}_{digits}",
                "version": 1,
                "license": fields.get("License-Expression", ""),
                "python-depends": [],
                "backend": {"type": backend},
            }
            text = json.dumps(metadata, indent=2)
            (target / "metadata.json").write_text(text + "\n")
            written.append(target)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Write the folder; it must not have variants yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    for path in lay_out(options.wheel, options.folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
