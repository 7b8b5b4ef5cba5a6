from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import hifigemm as hg

COMMAND = [sys.executable, "-W", "error", "-m", "hifigemm"]


def run(*argv, **kwargs):
    return subprocess.run([*COMMAND, *map(str, argv)], capture_output=True, text=True, timeout=120, **kwargs)


def test_module_multiplies_files_and_reports(pair, tmp_path):
    a_file, b_file, a, b = pair
    done = run("matmul", a_file, b_file, "-o", "c.npy", "--accuracy", "correct", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "correctly rounded" in done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), hg.matmul(a, b, accuracy="correct"))


def test_errors_are_one_line_without_traceback(pair, tmp_path):
    done = run("matmul", pair[0], tmp_path / "none.npy", "-o", tmp_path / "c.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"hifigemm: error: {tmp_path / 'none.npy'}: cannot be read: No such file or directory\n"
    done = run("matmul", *pair[:2], "-o", tmp_path / "c.npy", "--scheme", "native", "--accuracy", "correct")
    assert done.returncode == 1
    assert done.stderr.startswith("hifigemm: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_closed_pipe_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run([*COMMAND, "info"], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")


def test_version_is_printed():
    assert run("--version").stdout == f"hifigemm {hg.__version__}\n"


def test_import_and_matmul_load_nothing_heavy(tmp_path):
    heavy = "{'torch', 'scipy', 'matplotlib', 'rich', 'flint'}"
    np.save(tmp_path / "a.npy", np.eye(2))
    for code in (
        "import hifigemm",
        "from hifigemm.cli import main; main(['matmul', 'a.npy', 'a.npy', '-o', 'c.npy', '--accuracy', 'correct'])",
    ):
        program = f"{code}; import sys; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
