"""Files that appear whole or not at all, and CSV files of results with the environment
that they were found in.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from hifigemm.workshop.environment import write_csv
from hifigemm.workshop.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses while a file is written is an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}"
        ) from error


def check_writable(path: Path) -> None:
    """Raise InputError where `replacing` is bound to fail, so that no user waits for a
    result that cannot be stored.
    """
    existing = None
    with writing(path), suppress(FileNotFoundError):
        existing = path.stat()
    target = path.resolve()
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{path}: no folder {folder}")
    if existing is not None and not stat.S_ISREG(existing.st_mode):
        raise InputError(f"{path}: not a regular file")
    if not _is_writable(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: the folder {folder} is not writable")
    if existing is not None and not _is_writable(target, os.W_OK):
        raise InputError(f"{path}: is read-only")


def _is_writable(path: Path, access: int) -> bool:
    """True if permissions allow it. Root may write anywhere, but a mode that lets
    nobody write is meant.
    """
    if not os.access(path, access):
        return False
    return os.name != "posix" or bool(path.stat().st_mode & 0o222)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place when the block ends
    well, and is removed when not.

    What is there already stays whole until the new content is on the disk. A symbolic
    link keeps pointing where it does; the permissions are those of the file that is
    replaced.

    Raises
    ------
    InputError
        The file cannot be written: a missing folder, permissions, a full disk.
    """
    target = path.resolve()
    with writing(path):
        descriptor, name = tempfile.mkstemp(
            prefix=".hifigemm-", suffix=".tmp", dir=target.parent
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, _mode(target))
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    # makes the new name durable, where the system lets folders be opened
    with suppress(OSError):
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _mode(path: Path) -> int:
    """Permissions of an existing file, else those of a new one."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def check_results(path: Path) -> None:
    """Raise InputError where `write_results` is bound to fail."""
    check_writable(path)
    check_writable(path.with_suffix(".env.json"))


def write_results(path: Path, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """`write_csv`, which raises InputError."""
    with writing(path):
        write_csv(path, rows, **facts)
