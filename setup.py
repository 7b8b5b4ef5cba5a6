"""The compiled core, hifigemm._core: optional, and of the stable ABI where there is one.

Everything else stands in pyproject.toml. Where no C compiler is found, or it fails, the
package is installed without the core, and `hifigemm info` says so.
"""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("core").glob("*.c"))

# Sums and products have to be rounded one by one, in the order of the sources.
FLAGS = {
    "unix": ["-std=c11", "-O3", "-ffp-contract=off", "-fno-fast-math"],
    "msvc": ["/std:c11", "/O2", "/fp:precise"],
}

# Free-threaded Pythons have no stable ABI: there the core is of one version of Python.
HAS_STABLE_ABI = sys.implementation.name == "cpython" and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)


class BuildCore(build_ext):
    """Adds the flags of the compiler in use."""

    def build_extension(self, extension: Extension) -> None:
        """Compile and link with these flags."""
        extension.extra_compile_args = FLAGS.get(self.compiler.compiler_type, [])
        super().build_extension(extension)


core = Extension(
    "hifigemm._core",
    SOURCES,
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
