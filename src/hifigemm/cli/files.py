"""Arrays in files: .npy, .npz (``file.npz:key``) and Matrix Market .mtx.

Nothing is ever unpickled. Matrix Market goes through scipy, which the extra [study] brings.
"""

from __future__ import annotations

import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hifigemm.cli.atomic import check_writable, replacing
from hifigemm.cli.errors import InputError

__all__ = ["FORMATS", "check_output", "read_array", "write_array"]

FORMATS = ".npy, .npz (FILE.npz:KEY names one array) or Matrix Market .mtx"
_NPZ = re.compile(r"(?P<path>.*\.npz)(?::(?P<key>.*))?", re.IGNORECASE | re.DOTALL)
_UNREADABLE = (
    *(ValueError, EOFError, OverflowError, SyntaxError, RuntimeError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy, zipfile and scipy raise for files that are not what they seem, encrypted archives included."""


def read_array(spec: str) -> NDArray[Any]:
    """Read the array behind FILE.npy, FILE.npz, FILE.npz:KEY or FILE.mtx (also .mtx.gz, .mtx.bz2).

    Integers and bools are converted to float64, float16 to float32, foreign byte order to the machine's. A sparse
    matrix becomes dense.

    Raises
    ------
    InputError
        Missing, unreadable, truncated, corrupt, pickled or non-numeric files; integers that float64 cannot hold.
    """
    path, key = _split(spec)
    read = _reader(path, key)
    try:
        return _as_floats(np.asarray(read()), spec)
    except OSError as error:
        raise InputError(f"{spec}: cannot be read: {error.strerror or _one_line(error)}") from error
    except MemoryError as error:
        raise InputError(f"{spec}: does not fit into memory: {_one_line(error)}") from error
    except _UNREADABLE as error:
        raise InputError(f"{spec}: {_explained(error)}") from error


def check_output(spec: str, ndim: int) -> None:
    """Raise InputError if a result of `ndim` dimensions cannot be written there, before it is computed."""
    path, _ = _split(spec)
    _kind(path, writing=True)
    if path.suffix.lower() == ".mtx":
        _scipy_io(path)
        if ndim != 2:
            raise InputError(f"{spec}: Matrix Market holds matrices, the result has {ndim} dimensions")
    check_writable(path)


def write_array(spec: str, array: NDArray[Any]) -> None:
    """Write an array to FILE.npy, FILE.npz (as "c"), FILE.npz:KEY or FILE.mtx; an existing file is replaced whole."""
    path, key = _split(spec)
    write: Callable[[BinaryIO], None] = {
        ".npy": lambda file: np.lib.format.write_array(file, array, allow_pickle=False),
        ".npz": lambda file: _write_npz(file, key or "c", array),
        ".mtx": lambda file: _scipy_io(path).mmwrite(file, array, symmetry="general"),
    }[_kind(path, writing=True)]
    with replacing(path) as file:
        write(file)


def _split(spec: str) -> tuple[Path, str | None]:
    """Path and, for .npz, the key that may follow it."""
    found = _NPZ.fullmatch(spec)
    return (Path(found["path"]), found["key"] or None) if found else (Path(spec), None)


def _kind(path: Path, writing: bool = False) -> str:
    suffix = path.suffix.lower()
    if not writing and suffix in (".gz", ".bz2") and Path(path.stem).suffix.lower() == ".mtx":
        return ".mtx"
    if suffix not in (".npy", ".npz", ".mtx"):
        raise InputError(f"{path}: unknown kind of file; expected {FORMATS}")
    return suffix


def _reader(path: Path, key: str | None) -> Callable[[], Any]:
    kind = _kind(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder")
    if kind == ".npy":
        return lambda: _read_npy(path)
    if kind == ".npz":
        return lambda: _read_npz(path, key)
    mmread = _scipy_io(path).mmread
    return lambda: _dense(_checked(path, mmread))


def _checked(path: Path, mmread: Callable[[str], Any]) -> Any:
    """What mmread makes of a file that can be opened: its own messages say less about why one cannot."""
    with path.open("rb"):
        pass
    return mmread(str(path))


def _dense(x: Any) -> Any:
    return x.toarray() if hasattr(x, "toarray") else x


def _scipy_io(path: Path) -> Any:
    try:
        import scipy.io
    except ImportError as error:
        raise InputError(f"{path}: Matrix Market files need scipy: pip install 'hifigemm[study]'") from error
    return scipy.io


def _read_npy(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_npz(path: Path, key: str | None) -> Any:
    with path.open("rb") as file, zipfile.ZipFile(file):
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            names = list(archive)
            if key is None and len(names) != 1:
                raise InputError(f"{path}: holds {len(names)} arrays, name one as {path}:KEY: {', '.join(names)}")
            if key is not None and key not in names:
                raise InputError(f"{path}: no array {key!r}; it holds {', '.join(names) or 'none'}")
            return archive[names[0] if key is None else key]


def _write_npz(file: BinaryIO, key: str, array: NDArray[Any]) -> None:
    with zipfile.ZipFile(file, "w") as archive, archive.open(f"{key}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


def _as_floats(x: NDArray[Any], spec: str) -> NDArray[Any]:
    """x itself where its dtype can be multiplied, else the same numbers in one that can."""
    if x.dtype.kind not in "fcbiu":
        raise InputError(f"{spec}: holds {x.dtype}, not numbers")
    if x.dtype.kind in "fc" and x.dtype.itemsize <= np.dtype(np.complex128 if x.dtype.kind == "c" else float).itemsize:
        return x.astype(np.float32 if x.dtype.itemsize == 2 else x.dtype.newbyteorder("="), copy=False)
    converted = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    if x.dtype.kind in "fc":
        exact = np.array_equal(converted.astype(x.dtype), x, equal_nan=True)
    else:
        exact = max(int(x.max(initial=0)), -int(x.min(initial=0))) <= 2**53
    if not exact:
        raise InputError(f"{spec}: holds values of {x.dtype} that {converted.dtype} cannot hold; round them first")
    return converted


def _explained(error: BaseException) -> str:
    text = _one_line(error)
    if "pickle" in text and "magic" not in text:
        return "holds Python objects, such as a ragged array; only plain numeric arrays are read"
    return f"truncated or not in the format that its name says: {text}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
