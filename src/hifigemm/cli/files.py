"""Arrays in files: .npy, .npz (``file.npz:key``) and Matrix Market .mtx.

Nothing is ever unpickled.
"""

from __future__ import annotations

import bz2
import gzip
import io
import re
import shutil
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hifigemm.cli.matrix_market import read_matrix, write_matrix
from hifigemm.operands.operands import converted
from hifigemm.workshop.atomic import check_writable, replacing
from hifigemm.workshop.errors import InputError

FORMATS = ".npy, .npz (FILE.npz:KEY names one array) or Matrix Market .mtx"
_NPZ = re.compile(r"(?P<path>.*\.npz)(?::(?P<key>.*))?", re.IGNORECASE | re.DOTALL)
_UNREADABLE = (
    *(ValueError, TypeError, EOFError, OverflowError, SyntaxError, RuntimeError),
    *(struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy and zipfile raise for files that are not what they seem, encrypted
archives included.
"""


def read_array(spec: str) -> NDArray[Any]:
    """Read the array behind FILE.npy, FILE.npz, FILE.npz:KEY or FILE.mtx (also .mtx.gz,
    .mtx.bz2).

    Integers and bools stay what they are, float16 becomes float32, foreign byte order
    the machine's. A sparse matrix becomes dense.

    Raises
    ------
    InputError
        Missing, unreadable, truncated, corrupt, pickled or non-numeric files; numbers
        of extended precision that float64 or complex128 cannot hold.
    """
    try:
        with warnings.catch_warnings():
            # NumPy complains of headers that Python 2 wrote, and reads them rightly
            warnings.simplefilter("ignore")
            x = np.asarray(_read(*_split(spec)))
        return _as_operand(x, spec)
    except OSError as error:
        raise InputError(f"{spec}: cannot be read: {_one_line(error)}") from error
    except MemoryError as error:
        raise InputError(
            f"{spec}: does not fit into memory: {_one_line(error)}"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"{spec}: {_explained(error)}") from error


def check_output(spec: str, ndim: int, *, holds_objects: bool = False) -> None:
    """Raise InputError if a result of `ndim` dimensions cannot be written there, before
    it is computed.

    Objects, integers of any size, go into Matrix Market files alone.
    """
    path, key = _split(spec)
    kind = _kind(path, writing=True)
    if holds_objects and kind != ".mtx":
        raise InputError(
            f"{spec}: {kind} files cannot hold integers of arbitrary size; write them to a .mtx file, or print them"
        )
    if kind == ".mtx" and ndim != 2:
        raise InputError(
            f"{spec}: Matrix Market holds matrices, the result has {ndim} dimensions"
        )
    check_writable(path)
    if kind == ".npz":
        _write_npz(_Nowhere(), path, key, np.empty(0))


def write_array(spec: str, array: NDArray[Any]) -> None:
    """Write an array to FILE.npy, FILE.npz (as "c"), FILE.npz:KEY or FILE.mtx.

    An existing file is replaced in one step. The other arrays of an archive stay in it.
    """
    path, key = _split(spec)
    write: Callable[[BinaryIO], None] = {
        ".npy": lambda file: np.lib.format.write_array(file, array, allow_pickle=False),
        ".npz": lambda file: _write_npz(file, path, key, array),
        ".mtx": lambda file: write_matrix(file, array),
    }[_kind(path, writing=True)]
    with replacing(path) as file:
        write(file)


def _split(spec: str) -> tuple[Path, str | None]:
    """Path and, for .npz, the key that may follow it."""
    found = _NPZ.fullmatch(spec)
    return (Path(found["path"]), found["key"] or None) if found else (Path(spec), None)


def _kind(path: Path, writing: bool = False) -> str:
    suffix = path.suffix.lower()
    if (
        not writing
        and suffix in (".gz", ".bz2")
        and Path(path.stem).suffix.lower() == ".mtx"
    ):
        return ".mtx"
    if suffix not in (".npy", ".npz", ".mtx"):
        raise InputError(f"{path}: unknown kind of file; expected {FORMATS}")
    return suffix


def _read(path: Path, key: str | None) -> Any:
    kind = _kind(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder")
    if kind == ".mtx":
        opening: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
        with opening.get(path.suffix.lower(), open)(path, "rb") as file:
            return read_matrix(file)
    with path.open("rb") as file:
        return (
            np.lib.format.read_array(file, allow_pickle=False)
            if kind == ".npy"
            else _read_npz(file, path, key)
        )


def _read_npz(file: BinaryIO, path: Path, key: str | None) -> Any:
    with zipfile.ZipFile(file):
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            names = list(archive)
            if key is None and len(names) != 1:
                raise InputError(
                    f"{path}: holds {len(names)} arrays, name one as {path}:KEY: {', '.join(names)}"
                )
            if key is not None and key not in names:
                raise InputError(
                    f"{path}: no array {key!r}; it holds {', '.join(names) or 'none'}"
                )
            return archive[names[0] if key is None else key]


class _Nowhere(io.RawIOBase):
    """A file that keeps nothing, for a rehearsal."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _write_npz(file: Any, path: Path, key: str | None, array: NDArray[Any]) -> None:
    """Write the archive at `path`, if there is one, with the array in place of that key
    and all else as it was.
    """
    key = key or "c"
    try:
        is_there = path.exists() and path.stat().st_size > 0
        old_file = (
            zipfile.ZipFile(path) if is_there else zipfile.ZipFile(io.BytesIO(), "w")
        )
        with old_file as old, zipfile.ZipFile(file, "w") as new:
            # by the keys of NumPy
            members = {
                info.filename.removesuffix(".npy"): info for info in old.infolist()
            }
            if len(members) < len(old.infolist()):
                raise zipfile.BadZipFile("two of its members have one name")
            new.comment = old.comment
            for name, info in (members | {key: zipfile.ZipInfo(f"{key}.npy")}).items():
                with new.open(copy(info), "w", force_zip64=name == key) as member:
                    if name == key:
                        np.lib.format.write_array(member, array, allow_pickle=False)
                    else:
                        with old.open(info) as source:
                            shutil.copyfileobj(source, member, 1 << 20)
    except (OSError, *_UNREADABLE) as error:
        raise InputError(
            f"{path}: no array {key!r} can be added to it: {_one_line(error)}"
        ) from error


def as_floats(x: NDArray[Any], spec: str) -> NDArray[Any]:
    """The integers of a file in float64.

    Raises InputError: integers that float64 cannot hold.
    """
    try:
        return converted(x, np.dtype(np.float64))
    except ValueError as error:
        raise InputError(
            f"{spec}: holds values of {x.dtype} that float64 cannot hold; round them first"
        ) from error


def _as_operand(x: NDArray[Any], spec: str) -> NDArray[Any]:
    """x itself where its dtype can be multiplied, else the same numbers in one that
    can.
    """
    if x.dtype.kind not in "fcbiu":
        raise InputError(f"{spec}: holds {x.dtype}, not numbers")
    if x.dtype == np.float16:
        return x.astype(np.float32)
    widest = np.dtype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if x.dtype.kind in "biu" or x.dtype.itemsize <= widest.itemsize:
        return x.astype(x.dtype.newbyteorder("="), copy=False)
    with np.errstate(all="ignore"):  # what is lost is found below
        narrow = x.astype(widest)
    if not np.array_equal(narrow.astype(x.dtype), x, equal_nan=True):
        raise InputError(
            f"{spec}: holds values of {x.dtype} that {widest} cannot hold; round them first"
        )
    return narrow


def _explained(error: BaseException) -> str:
    text = _one_line(error)
    if "pickle" in text and "magic" not in text:
        return "holds Python objects, such as a ragged array; only plain numeric arrays are read"
    return f"truncated or not in the format that its name says: {text}"


def _one_line(error: BaseException) -> str:
    return (
        getattr(error, "strerror", None)
        or " ".join(str(error).split())
        or type(error).__name__
    )
