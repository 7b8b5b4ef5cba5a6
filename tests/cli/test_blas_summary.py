"""`hifigemm run --blas correct --summary`: calls of the BLAS as a table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hifigemm as hg
from hifigemm.cli import blas_summary
from tests.cli.test_blas import run

ROOT = Path(__file__).parents[2]

LIBRARY = Path(hg.__file__).with_name("libhifigemm_blas.so")

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the BLAS is not built")

HEAD = f"""
import os, signal, sys, threading
import ctypes
import numpy as np
from tests.blas.routines import INTERFACES, Interface, call, is_exported, reduce
library = ctypes.CDLL({str(LIBRARY)!r})
DEFAULT = Interface(False, 32, False)
def gemm(m, n, k, p="d", interface=DEFAULT):
    dtype = {{"s": "f4", "d": "f8", "c": "c8", "z": "c16"}}[p]
    a, b, c = (np.ones(shape, dtype) for shape in (m * k, k * n, m * n))
    arguments = dict(transa="N", transb="N", m=m, n=n, k=k, alpha=1.0, A=a, lda=max(m, 1))
    arguments |= dict(B=b, ldb=max(k, 1), beta=0.0, C=c, ldc=max(m, 1))
    call(library, interface, p, "gemm", "columns", arguments)
"""


def table_of(source, *, code=0):
    """Cells of each row of the table of a program in Python, by routine."""
    process = run(
        *("run", "--blas", "correct", "--summary", sys.executable, "-c", HEAD + source),
        PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    )
    assert process.returncode == code, process.stderr
    lines = process.stderr.splitlines()
    assert lines.pop() == blas_summary.NOT_SEEN
    while not lines[0].startswith("calls"):
        del lines[0]
    assert tuple(lines.pop(0).split()) == blas_summary.HEAD
    cells = (line.split(maxsplit=2) for line in lines)
    rows = {}
    for calls, routine, others in cells:
        *shapes, seconds, products = others.split()
        assert 0 < float(seconds) < 60
        rows[routine] = (int(calls), " ".join(shapes), float(products))
    return rows


def test_calls_have_their_number_their_largest_shape_and_their_products():
    rows = table_of(
        "gemm(2, 3, 4)\ngemm(20, 3, 5)\ngemm(1, 1, 7)\ngemm(2, 3, 4, 'z')\ngemm(0, 3, 4, 's')\n"
    )
    assert rows["dgemm"] == (3, "20x5 by 5x3", 24 + 300 + 7)
    assert rows["zgemm"] == (1, "2x4 by 4x3", 96)
    assert rows["sgemm"] == (1, "0x0 by 0x0", 0)


def test_a_triangle_has_the_products_of_its_entries():
    rows = table_of(
        "a = np.ones((4, 4))\n"
        "call(library, DEFAULT, 'd', 'syrk', 'columns', dict(uplo='U', trans='N', n=3, k=4,"
        " alpha=1.0, A=a, lda=4, beta=0.0, C=a.copy(), ldc=4))\n"
        "call(library, DEFAULT, 'd', 'trmm', 'columns', dict(side='L', uplo='U', transa='N',"
        " diag='N', m=3, n=2, alpha=1.0, A=a, lda=4, B=a.copy(), ldb=4))\n"
    )
    assert rows["dsyrk"] == (1, "3x4 by 4x3", 6 * 4)
    assert rows["dtrmm"] == (1, "3x3 by 3x2", 6 * 2)


def test_all_names_of_a_routine_are_one_row():
    rows = table_of(
        "x = np.ones(8, 'c16')\n"
        "for interface in INTERFACES:\n"
        "    gemm(2, 2, 2, interface=interface)\n"
        "    for name, count in (('zdotc', 2), ('sdsdot', 2), ('dsdot', 2), ('dznrm2', 1)):\n"
        "        if is_exported(interface, name):\n"
        "            reduce(library, interface, name, 4, [(x, 1)] * count)\n"
    )
    assert rows["dgemm"] == (8, "2x2 by 2x2", 64)
    assert rows["zdotc"] == (7, "1x4 by 4x1", 7 * 16)
    assert rows["dznrm2"] == (8, "1x8 by 8x1", 64)
    assert rows["sdsdot"] == rows["dsdot"] == (8, "1x4 by 4x1", 32)


def test_calls_of_children_count_however_they_end():
    rows = table_of(
        "gemm(2, 2, 2)\n"
        "if os.fork() == 0:\n    gemm(3, 3, 3)\n    os._exit(0)\n"
        "os.wait()\n"
        "if os.fork() == 0:\n    gemm(4, 4, 4)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.wait()\n"
        "if len(sys.argv) == 1:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], 'again'])\n"
    )
    assert rows["dgemm"] == (6, "4x4 by 4x4", 2 * (8 + 27 + 64))


def test_calls_of_threads_are_not_lost():
    rows = table_of(
        "def multiply():\n    for _ in range(500):\n        gemm(2, 2, 2)\n"
        "threads = [threading.Thread(target=multiply) for _ in range(4)]\n"
        "for thread in threads:\n    thread.start()\n"
        "for thread in threads:\n    thread.join()\n"
    )
    assert rows["dgemm"] == (2000, "2x2 by 2x2", 16000)


def test_a_call_with_wrong_arguments_does_not_count():
    rows = table_of("gemm(2, 2, 2, 's')\ngemm(-1, 2, 2)\n", code=1)
    assert rows["sgemm"][0] == 1
    assert "dgemm" not in rows


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_code_is_that_of_the_program(script, code):
    process = run("run", "--blas", "correct", "--summary", "sh", "-c", script)
    assert process.returncode == code
    assert process.stderr == f"{blas_summary.text_of([])}\n"
    assert process.stderr.startswith("no call of the BLAS was seen")


def test_a_request_to_end_reaches_the_program():
    script = "trap 'echo ended; exit 5' TERM; echo started; while :; do sleep 0.1; done"
    command = [
        sys.executable,
        "-m",
        "hifigemm",
        "run",
        "--blas",
        "correct",
        "--summary",
    ]
    with subprocess.Popen(
        [*command, "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "ended\n")


def count(path):
    """Call ddot in a process that counts its calls in a file."""
    source = (
        f"import ctypes; library = ctypes.CDLL({str(LIBRARY)!r}); "
        "library.cblas_ddot(0, None, 1, None, 1)"
    )
    environment = os.environ | {blas_summary.VARIABLE: str(path)}
    subprocess.run([sys.executable, "-c", source], env=environment, check=True)


def test_a_row_whose_process_was_killed_in_it_is_used_on(tmp_path):
    row = blas_summary.ROW.pack(b"ddot", 1, 7, 9, 0, 0, 0, 0)
    path = tmp_path / "calls"
    path.write_bytes(row.ljust(blas_summary.ROW.size * blas_summary.NUM_ROWS, b"\0"))
    count(path)
    [row] = blas_summary.rows_of(path.read_bytes())
    assert (row.routine, row.calls) == ("ddot", 8)


def test_a_file_of_another_size_stays_what_it_is(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"data")
    count(path)
    assert path.read_bytes() == b"data"


def test_rows_come_by_their_time():
    rows = [(b"ddot", 5, 1_000), (b"dgemm", 2, 3_000_000_000), (b"", 0, 0)]
    content = b"".join(
        blas_summary.ROW.pack(name, 0, calls, time, 12, 2, 3, 1)
        for name, calls, time in rows
    )
    assert blas_summary.text_of(blas_summary.rows_of(content)).splitlines()[:-1] == [
        "calls  routine  largest     seconds  products",
        "2      dgemm    2x1 by 1x3  3        12",
        "5      ddot     2x1 by 1x3  1e-06    12",
    ]
