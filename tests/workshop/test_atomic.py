from __future__ import annotations

import errno
import os
import stat

import pytest

from hifigemm.workshop.atomic import check_writable, replacing
from hifigemm.workshop.errors import InputError


def disk_full(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_failure_of_any_step_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, step
):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, step, disk_full)
    with (
        pytest.raises(InputError, match="cannot be written: No space left"),
        replacing(path) as file,
    ):
        file.write(b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_error_in_the_block_leaves_the_old_file_and_passes_on(tmp_path, error):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as file:
            file.write(b"half of the n")
            file.flush()
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.npy"]


def test_old_content_is_there_until_the_block_ends(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_are_those_of_the_old_file_or_the_umask(tmp_path):
    old = tmp_path / "old"
    old.write_bytes(b"")
    old.chmod(0o640)
    mask = os.umask(0o027)
    try:
        for path in (old, tmp_path / "new"):
            with replacing(path) as file:
                file.write(b"new")
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(mask)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links of POSIX")
def test_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    check_writable(link)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "there") == ["target"]


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="devices of POSIX")
def test_devices_are_not_replaced(tmp_path):
    link = tmp_path / "x.npy"
    link.symlink_to("/dev/null")
    with pytest.raises(InputError, match="not a regular file"):
        check_writable(link)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_folder_without_permission_is_refused_even_to_root(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="is not writable"):
        check_writable(tmp_path / "x.npy")
    tmp_path.chmod(0o700)
    check_writable(tmp_path / "x.npy")


def test_read_only_file_is_refused_even_to_root(tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(b"old")
    check_writable(path)
    path.chmod(0o444)
    with pytest.raises(InputError, match="is read-only"):
        check_writable(path)
    path.chmod(0o644)


@pytest.mark.parametrize(
    ("name", "text"), [("x.npy", "is read-only"), ("new.npy", "is not writable")]
)
def test_what_the_system_protects_is_refused(tmp_path, monkeypatch, name, text):
    """Files of others, immutable files and file systems that are mounted read-only,
    whatever their modes say.
    """
    (tmp_path / "x.npy").write_bytes(b"old")
    protected = tmp_path / "x.npy" if name == "x.npy" else tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: path != protected)
    with pytest.raises(InputError, match=text):
        check_writable(tmp_path / name)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links of POSIX")
def test_names_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for path in (tmp_path / "loop", tmp_path / ("x" * 300), tmp_path / "file" / "x"):
        with pytest.raises(InputError, match="cannot be written"):
            check_writable(path)


def test_longest_name_of_a_folder_can_be_written(tmp_path):
    path = tmp_path / (
        "x" * os.pathconf(tmp_path, "PC_NAME_MAX") if hasattr(os, "pathconf") else "x"
    )
    check_writable(path)
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_missing_folder_is_refused(tmp_path):
    with (
        pytest.raises(InputError, match="cannot be written"),
        replacing(tmp_path / "missing" / "x"),
    ):
        pass
