"""The compiled core, hifigemm._core: optional, and of the stable ABI where there is one.

Everything else stands in pyproject.toml. Where no C compiler is found, or it fails, the
package is installed without the core, and `hifigemm info` says so.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("core").glob("*.c"))

# Sums and products have to be rounded one by one, in the order of the sources.
FLAGS = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-fast-math"]
FLAGS_OF_MSVC = ["/std:c11", "/O2", "/fp:precise"]

# Free-threaded Pythons have no stable ABI: there the core is of one version of Python.
HAS_STABLE_ABI = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)


class BuildCore(build_ext):
    """Adds the flags of the compiler in use."""

    def build_extension(self, extension: Extension) -> None:
        """Compile and link with these flags."""
        is_msvc = self.compiler.compiler_type == "msvc"
        extension.extra_compile_args = FLAGS_OF_MSVC if is_msvc else FLAGS
        super().build_extension(extension)

    def copy_file(self, infile: str, outfile: str, *args: Any, **options: Any) -> Any:
        """Replace the file at once, as processes of another environment may load it."""
        new = f"{outfile}.new"
        _, is_copied = super().copy_file(infile, new, *args, **options)
        os.replace(new, outfile)
        return outfile, is_copied


core = Extension(
    "hifigemm._core",
    SOURCES,
    libraries=["m"] if os.name == "posix" else [],
    depends=sorted(str(path) for path in Path("core").glob("*.h")),
    define_macros=[("Py_LIMITED_API", "0x030A0000")] if HAS_STABLE_ABI else [],
    py_limited_api=HAS_STABLE_ABI,
    optional=True,
)

setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if HAS_STABLE_ABI else {},
)
