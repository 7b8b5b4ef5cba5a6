"""The compiled core, hifigemm._core: optional, and of the stable ABI where there is one;
and on Linux the BLAS of core/blas, two libraries without Python.

Everything else stands in pyproject.toml. Where no C compiler is found, or it fails, the
package is installed without them, and `hifigemm info` and `hifigemm blas` say so.
"""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(str(path) for path in Path("core").glob("*.c"))
HEADERS = sorted(str(path) for path in Path("core").rglob("*.h"))

# What the BLAS takes of the core, and its own sources; it exports what it names.
BLAS_SOURCES = [
    f"core/{name}.c" for name in ("accumulator", "kernels", "product", "words")
]
BLAS_SOURCES += sorted(str(path) for path in Path("core/blas").glob("*.c"))
BLAS_FLAGS = ["-pthread"]
BLAS_LIBRARIES: dict[str, list[str]] = {
    "libhifigemm_blas": [],
    # The names of NumPy's and SciPy's wheels alone.
    "libhifigemm_blas_wheels": ["-Wl,--version-script=core/blas/wheels.map"],
}

# Sums and products have to be rounded one by one, in the order of the sources.
# Names stay inside: those of other libraries, such as `times` of libc, would take their place.
FLAGS = [
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fvisibility=hidden",
]
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
        flags = FLAGS_OF_MSVC if is_msvc else FLAGS
        extension.extra_compile_args = [*extension.extra_compile_args, *flags]
        super().build_extension(extension)

    def get_ext_filename(self, fullname: str) -> str:
        """Name the libraries of the BLAS as no module of Python."""
        *packages, name = fullname.split(".")
        if name in BLAS_LIBRARIES:
            return os.path.join(*packages, f"{name}.so")
        filename: str = super().get_ext_filename(fullname)
        return filename

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
    depends=HEADERS,
    define_macros=[("Py_LIMITED_API", "0x030A0000")] if HAS_STABLE_ABI else [],
    py_limited_api=HAS_STABLE_ABI,
    optional=True,
)

blas = [
    Extension(
        f"hifigemm.{name}",
        BLAS_SOURCES,
        libraries=["m"],
        depends=[*HEADERS, "core/blas/wheels.map"],
        extra_compile_args=BLAS_FLAGS,
        extra_link_args=["-pthread", *link_flags],
        optional=True,
    )
    for name, link_flags in BLAS_LIBRARIES.items()
]

setup(
    ext_modules=[core, *blas] if sys.platform == "linux" else [core],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if HAS_STABLE_ABI else {},
)
