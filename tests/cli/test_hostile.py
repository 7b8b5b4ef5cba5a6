"""Command lines that no user should write and every user does: each ends with the right
code and in one line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from hifigemm.cli import main

BY_USER = r"""
--zzz
-x
''
INFO
info extra
info --engine numpy
matmul
matmul a.npy
matmul a.npy b.npy -o
matmul a.npy b.npy a.npy -o c.npy
matmul a.npy b.npy -o c.npy -o
matmul a.npy b.npy -o ''
matmul a.npy b.npy -o .
matmul a.npy b.npy -o ..
matmul a.npy b.npy -o c
matmul a.npy b.npy -o c.txt
matmul a.npy b.npy -o -
matmul a.npy b.npy -o /dev/full
matmul a.npy b.npy -o c.npy:key
matmul a.npy b.npy -o nowhere/c.npy
matmul a.npy b.npy -o a.npy/c.npy
matmul a.npy b.npy -o folder.npy
matmul a.npy b.npy -o folder.npz:key
matmul a.npy b.npy -o loop.npy
matmul a.npy b.npy -o device.npy
matmul a.npy b.npy -o read_only.npy
matmul a.npy b.npy -o read_only.npz:c
matmul a.npy b.npy -o locked/c.npy
matmul a.npy b.npy -o LONG.npy
matmul a.npy b.npy -o diary.npz
matmul a.npy b.npy -o diary.npz:c
matmul a.npy b.npy -o z.npz:LONGLONG
matmul stack.npy stack.npy -o c.mtx
matmul a.npy a.npy -o c.npy
matmul stack.npy three.npy -o c.npy
matmul vector.npy a.npy -o c.npy
matmul number.npy a.npy -o c.npy
matmul none.npy b.npy -o c.npy
matmul folder.npy b.npy -o c.npy
matmul loop.npy b.npy -o c.npy
matmul LONG.npy b.npy -o c.npy
matmul a.npy/x.npy b.npy -o c.npy
matmul '' b.npy -o c.npy
matmul - b.npy -o c.npy
matmul a.csv b.npy -o c.npy
matmul diary.npy b.npy -o c.npy
matmul empty.npy b.npy -o c.npy
matmul half.npy b.npy -o c.npy
matmul words.npy b.npy -o c.npy
matmul objects.npy b.npy -o c.npy
matmul whole.npy b.npy -o c.npy
matmul wide.npy b.npy -o c.npy
matmul boast.npy b.npy -o c.npy
matmul diary.npz b.npy -o c.npy
matmul diary.npz:A b.npy -o c.npy
matmul z.npz z.npz -o c.npy
matmul z.npz:C z.npz:A -o c.npy
matmul z.npz:A z.npz:A.npy -o c.npy
matmul diary.mtx b.npy -o c.npy
matmul short.mtx b.npy -o c.npy
matmul a.npy b.npy -o c.npy --accuracy nan
matmul a.npy b.npy -o c.npy --accuracy inf
matmul a.npy b.npy -o c.npy --accuracy=-1e-3
matmul a.npy b.npy -o c.npy --accuracy 1e-
matmul a.npy b.npy -o c.npy --accuracy ''
matmul a.npy b.npy -o c.npy --accuracy corect
matmul a.npy b.npy -o c.npy --accuracy=--
matmul a.npy b.npy -o c.npy --workspace 0
matmul a.npy b.npy -o c.npy --workspace=-1
matmul a.npy b.npy -o c.npy --workspace 1e3
matmul a.npy b.npy -o c.npy --workspace 5X
matmul a.npy b.npy -o c.npy --workspace 99999999999999999999T
matmul a.npy b.npy -o c.npy --workspace NINES
matmul a.npy b.npy -o c.npy --scheme strassen
matmul a.npy b.npy -o c.npy --scheme Ozaki1
matmul a.npy b.npy -o c.npy --engine abacus
matmul a.npy b.npy -o c.npy --engine ''
matmul a.npy b.npy -o c.npy --num-slices 3
matmul a.npy b.npy -o c.npy --scheme ozaki2 --num-slices 3
matmul a.npy b.npy -o c.npy --scheme ozaki1 --num-slices 0
matmul a.npy b.npy -o c.npy --scheme ozaki1 --num-slices 1000000000
matmul a.npy b.npy -o c.npy --scheme ozaki1 --num-slices NINES
matmul a.npy b.npy -o c.npy --scheme ozaki1 --num-slices=--
matmul a.npy b.npy -o c.npy --scheme ozaki1 --num-slices 1.5
matmul a.npy b.npy -o c.npy --scheme ozaki1 --product fp17
matmul a.npy b.npy -o c.npy --scheme ozaki1 --product ''
matmul a.npy b.npy -o c.npy --scheme ozaki1 --mode fast
matmul a.npy b.npy -o c.npy --scheme ozaki2 --num-moduli 1
matmul a.npy b.npy -o c.npy --scheme ozaki2 --num-moduli 50
matmul a.npy b.npy -o c.npy --scheme ozaki2 --scaling slow
matmul a.npy b.npy -o c.npy --scheme multiword --num-words 3
matmul a.npy b.npy -o c.npy --scheme multiword --split-rounding up
matmul a.npy b.npy -o c.npy --scheme corrected --scale maybe
matmul a.npy b.npy -o c.npy --scheme corrected --block 0
matmul a.npy b.npy -o c.npy --s ozaki1
plan
plan a.npy
plan a.npy a.npy
plan none.npy b.npy
plan a.npy b.npy -o c.npy
plan a.npy b.npy --accuracy nan
plan a.npy b.npy --scheme ozaki3
plan a.npy b.npy --engine simulated-h1000
plan number.npy number.npy
demo extra
demo --size 0
demo --size=-1
demo --size 2.5
demo --size ''
demo --size NINES
demo --size 536870913
demo --seed=-1
demo --seed 4294967296
demo --size 2 -o demo
demo --size 2 -o demo.txt
demo --size 2 -o ''
demo --size 2 -o nowhere/demo.png
demo --size 2 -o taken.png
demo --size 2 -o read_only.png
demo --size 2 -o locked/demo.png
bench extra
bench --sizes ''
bench --sizes 0
bench --sizes 4,,8
bench --sizes 1e3
bench --sizes NINES
bench --sizes 4 --shapes 4,4,4
bench --shapes 4,4
bench --shapes 4,4,4,4
bench --shapes 4,4,x
bench --batch 0
bench --dtype float16
bench --family phi
bench --family phi-1
bench --family type5
bench --schemes ''
bench --schemes auto:3
bench --schemes ozaki2:1
bench --schemes ozaki2:NINES
bench --schemes ozaki1:fp64:fp64
bench --schemes auto@nan
bench --schemes auto@best
bench --device tpu
bench --device cuda
bench --mode graph
bench --mode both
bench --mode slow
bench --runs 0
bench --seed x
bench --csv ''
bench --csv .
bench --csv folder.npy
bench --csv a.npy/b.csv
bench --csv locked/b.csv
bench --csv taken.csv
"""

BY_COMPUTATION = r"""
matmul a.npy b.npy -o c.npy --scheme native --accuracy correct
matmul tenth.npy tenth.npy -o c.npy --scheme ozaki1 --num-slices 1 --accuracy 1e-10
matmul a.npy b.npy -o c.npy --scheme multiword --accuracy 1e-30
matmul a.npy b.npy -o c.npy --scheme ozaki1 --workspace 8
matmul a.npy b.npy -o c.npy --scheme ozaki2 --engine simulated-v100 --accuracy 1e-20 --workspace 8
matmul a.npy b.npy -o c.npy --scheme multiword --product bf16 --engine simulated-v100
matmul tall.npy flat.npy -o c.npy
plan a.npy b.npy --scheme corrected --accuracy correct
plan a.npy b.npy --scheme ozaki1 --workspace 8
demo --size 536870912
bench --sizes 536870912
bench --sizes 100000000
bench --shapes 536870912,536870912,536870912 --batch 536870912
bench --sizes 1000 --batch 100000000
bench --sizes 4 --schemes native --family phi9999
bench --sizes 4 --schemes native --family phi9999 --dtype float32
"""

RIGHT = r"""
matmul old.npy old.npy -o c.npy --accuracy correct
matmul inf.npy inf.npy -o c.npy --accuracy correct
matmul largest.npy largest.npy -o c.npy --accuracy correct
matmul largest.npy smallest.npy -o c.npy
matmul half_precision.npy half_precision.npy -o c.npy
matmul nothing.npy a.npy -o c.npy
matmul a.npy b.npy -o c.npy --accuracy 1e-400
matmul a.npy b.npy -o c.npy --accuracy 0.999
bench --sizes 4 --schemes auto --family phi5
"""

WORDS = {"LONGLONG": "k" * 70000, "LONG": "x" * 300, "NINES": "9" * 5000}


def words(line):
    return [
        re.sub("LONGLONG|LONG|NINES", lambda found: WORDS[found[0]], word)
        for word in shlex.split(line)
    ]


def lines(text):
    return text.strip().splitlines()


def operands():
    """Arrays by the names of their files."""
    largest = np.finfo(np.float64).max
    return {
        "a": np.eye(3, 4),
        "b": np.ones((4, 2)),
        "stack": np.ones((2, 4, 4)),
        "three": np.ones((3, 4, 4)),
        "old": np.ones((2, 2)),
        "tenth": np.full((4, 4), 0.1),
        "vector": np.ones(4),
        "number": np.array(3.0),
        "words": np.array([["1", "2"]]),
        "whole": np.array([[2**53 + 1]]),
        "wide": np.array([[np.finfo(np.longdouble).max]])
        if np.finfo(np.longdouble).max > largest
        else np.array("1"),
        "inf": np.array([[np.inf, np.nan], [-np.inf, 0.0]]),
        "largest": np.array([[largest, -1.0], [largest, largest]]),
        "smallest": np.full((2, 2), 5e-324),
        "half_precision": np.array([[65504, np.inf], [np.nan, 6e-8]], np.float16),
        "nothing": np.zeros((0, 3)),
        "read_only": np.ones(2),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of every kind, most of them spoilt."""
    path = tmp_path_factory.mktemp("hostile")
    for name, x in operands().items():
        np.save(path / f"{name}.npy", x)
    # their product takes 128 TiB
    for name, shape in (("tall", (1 << 22, 1)), ("flat", (1, 1 << 22))):
        np.lib.format.open_memmap(path / f"{name}.npy", "w+", shape=shape)
    good = (path / "b.npy").read_bytes()
    spoilt = {
        "half.npy": good[:-8],
        "boast.npy": good.replace(b"(4, 2), }            ", b"(400000000, 20000000)"),
        "old.npy": (path / "old.npy")
        .read_bytes()
        .replace(b"(2, 2), }  ", b"(2L, 2L), }"),
        "objects.npy": b"\x93NUMPY\x01\x00\x36\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n",
        "empty.npy": b"",
        "short.mtx": b"%%MatrixMarket matrix array real general\n4 2\n1\n",
        "read_only.png": b"old",
        **dict.fromkeys(
            ("diary.npy", "diary.npz", "diary.mtx", "a.csv"), b"dear diary\n"
        ),
    }
    for name, content in spoilt.items():
        (path / name).write_bytes(content)
    np.savez(path / "z.npz", A=np.ones((2, 2)), B=np.ones((2, 2)))
    np.savez(path / "read_only.npz", A=np.ones(2))
    for name in ("folder.npy", "folder.npz", "locked", "taken.csv", "taken.env.json"):
        (path / name).mkdir()
    (path / "loop.npy").symlink_to("loop.npy")
    (path / "device.npy").symlink_to(os.devnull)
    for name in ("read_only.npy", "read_only.npz", "read_only.png"):
        (path / name).chmod(0o444)
    (path / "locked").chmod(0o555)
    yield path
    (path / "locked").chmod(0o755)


def state(folder):
    """What lies in the folder: names, sizes, times."""
    found = sorted(folder.rglob("*"))
    return [(path, path.lstat().st_size, path.lstat().st_mtime_ns) for path in found]


@pytest.fixture
def ends(folder, short, monkeypatch, capsys):
    """ends(line, code): that line fails with that code, in one line, and leaves the
    folder as it was.
    """
    monkeypatch.chdir(folder)

    def check(line, code):
        before = state(folder)
        assert main(words(line)) == code
        out, err = capsys.readouterr()
        assert out == "" or line.startswith("bench")
        *progress, last = err.splitlines()
        assert all(text.endswith(" ...") for text in progress)
        assert last.startswith("hifigemm: error: ")
        assert "Traceback" not in last
        assert "Warning" not in last
        assert state(folder) == before

    return check


@pytest.mark.skipif(os.name != "posix", reason="names and permissions of POSIX")
@pytest.mark.parametrize("line", lines(BY_USER))
def test_what_the_user_wrote_wrongly_ends_with_code_2(line, ends):
    ends(line, 2)


@pytest.mark.skipif(os.name != "posix", reason="names and permissions of POSIX")
@pytest.mark.parametrize("line", lines(BY_COMPUTATION))
def test_what_the_computation_refuses_ends_with_code_1(line, ends):
    ends(line + " --quick" * line.startswith("bench"), 1)


@pytest.mark.skipif(os.name != "posix", reason="names and permissions of POSIX")
@pytest.mark.parametrize("line", lines(RIGHT))
def test_strange_operands_are_multiplied_without_a_warning(
    line, folder, short, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    quick = " --quick" * line.startswith("bench")
    assert (
        main(
            [
                str(tmp_path / word) if word == "c.npy" else word
                for word in words(line + quick)
            ]
        )
        == 0
    )
    assert "error" not in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="names and permissions of POSIX")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("matmul a.npy b.npy -o read_only.npy", 2),
        ("matmul z.npz:A z.npz:C -o z.npz:B", 2),
        ("matmul tall.npy flat.npy -o c.npy", 1),
        ("matmul a.npy b.npy -o c.npy --engine abacus", 2),
        ("bench --schemes auto@nan", 2),
        ("demo --size 536870912", 1),
    ],
)
def test_a_process_of_its_own_says_no_more(line, code, folder):
    before = state(folder)
    done = subprocess.run(
        [sys.executable, "-m", "hifigemm", *words(line)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    *progress, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert all(text.endswith(" ...") for text in progress)
    assert last.startswith("hifigemm: error: ")
    assert state(folder) == before


def test_no_hint_names_a_package_that_no_index_has():
    """hifigemm is not published: what brings its extras is a checkout, and what works
    everywhere names the library. The two pages that say how to install it from the
    index say that there is no release yet.
    """
    said = {
        "README.md": "There is no release yet",
        "index.md": "there is no release yet",
    }
    root = os.path.join(os.path.dirname(__file__), "..", "..")
    for top in ("src", "docs", "README.md", "CONTRIBUTING.md"):
        path = os.path.join(root, top)
        files = (
            [path]
            if os.path.isfile(path)
            else [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        )
        for name in files:
            if name.endswith((".py", ".md")):
                with open(name, encoding="utf-8") as file:
                    text = file.read()
                if re.search(r"pip install[^\n]*hifigemm", text):
                    assert said[os.path.basename(name)] in text
