"""Engines with their devices, and versions, that can be used here."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

import numpy as np

from hifigemm.base.tested_versions import TESTED
from hifigemm.base.transforms import opaque
from hifigemm.base.version import __version__
from hifigemm.engines import available, engine_for
from hifigemm.engines.core import loaded


@dataclass(frozen=True, repr=False)
class Info:
    """Engines with their devices and products, versions, and the rates of GPUs.
    ``print`` shows them as lines.
    """

    versions: dict[str, str]
    engines: dict[str, str]
    gpus: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The printed text, for terminals and notebooks."""
        return str(self)

    def __str__(self) -> str:
        lines = [f"{name:<10} {text}" for name, text in self.versions.items()]
        lines.append("engines")
        lines += [f"  {name:<16} {text}" for name, text in self.engines.items()]
        if self.gpus:
            lines += ["GPUs", *self.gpus]
        return "\n".join(lines)


@opaque
def info() -> Info:
    """Engines, devices and versions, for a bug report or a notebook.

    Examples
    --------
    >>> import hifigemm as hg
    >>> hg.info()  # doctest: +ELLIPSIS
    hifigemm ...
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    versions = {
        "hifigemm": __version__,
        "python": f"{sys.version.split()[0]} on {platform.system()} {platform.machine()}",
        "numpy": f"{np.__version__} with {blas['name']} {blas['version']}",
        "cores": str(os.cpu_count()),
        "core": loaded()[1],
        "tested": ", ".join(
            f"{library} {tested}" for library, tested in TESTED.items()
        ),
    }
    texts: dict[str, str] = {}
    gpus: tuple[str, ...] = ()
    for name in available():
        engine = engine_for(name)
        formats = ", ".join(sorted(engine.products))
        texts[name] = f"{engine.device}: exact products of {formats}"
    if "torch" in texts:
        from hifigemm.engines.torch_engine import describe_gpus, describe_triton

        versions["triton"] = describe_triton()
        versions["torch"], gpus = describe_gpus()
    return Info(versions, texts, gpus)
