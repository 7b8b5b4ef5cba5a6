"""Matrix Market files: every well-formed one is read as it is meant, every other one is
a ValueError.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hifigemm.cli.matrix_market import read_matrix, write_matrix

BANNER = "%%MatrixMarket matrix"


def read(text):
    return read_matrix(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


WELL_FORMED = {
    "array real general\n2 3\n1\n2\n3\n4\n5\n6\n": [[1, 3, 5], [2, 4, 6]],
    "array integer general\n% a comment\n\n  2 1\n-1\n\n 9007199254740992\n": [
        [-1],
        [2**53],
    ],
    "ARRAY Double General\n1 3\nnan\n-inf\n1e-400\n": [[np.nan, -np.inf, 0]],
    "array complex general\n1 2\n1 -2\n0.1 inf\n": [[1 - 2j, complex(0.1, np.inf)]],
    "array real symmetric\n3 3\n1\n2\n3\n4\n5\n6\n": [[1, 2, 3], [2, 4, 5], [3, 5, 6]],
    "array real skew-symmetric\n3 3\n1\n2\n3\n": [[0, -1, -2], [1, 0, -3], [2, 3, 0]],
    "array complex hermitian\n2 2\n1 0\n2 3\n4 0\n": [[1, 2 - 3j], [2 + 3j, 4]],
    "coordinate real general\n2 3 3\n1 3 0.5\n2 1 -1\n1 3 0.25\n": [
        [0, 0, 0.75],
        [-1, 0, 0],
    ],
    "coordinate pattern symmetric\n2 2 2\n2 1\n2 2\n": [[0, 1], [1, 1]],
    "coordinate unsigned-integer skew-symmetric\n2 2 1\n2 1 7\n": [[0, -7], [7, 0]],
    "coordinate complex hermitian\n2 2 1\n1 2 1 2\n": [[0, 1 + 2j], [1 - 2j, 0]],
    "coordinate real general\n2 2 0\n": [[0, 0], [0, 0]],
    "array real general\n0 2\n": np.zeros((0, 2)),
    "array real symmetric\n0 0\n": np.zeros((0, 0)),
    "coordinate integer general\n3 0 0\n": np.zeros((3, 0)),
}


@pytest.mark.parametrize(
    "end", ["", "\n", " ", "\t", "\r", "\r\n", "\n\n", " \n \n", "\n% the end", "\v"]
)
@pytest.mark.parametrize("text", WELL_FORMED)
def test_well_formed_files_are_read_whatever_ends_them(text, end):
    expected = np.array(WELL_FORMED[text])
    for line_end in ("\n", "\r\n"):
        matrix = read((f"{BANNER} {text.rstrip()}".replace("\n", line_end)) + end)
        assert matrix.dtype == (
            np.complex128 if expected.dtype.kind == "c" else np.float64
        )
        np.testing.assert_array_equal(matrix, expected)


MALFORMED = {
    "": "its first line",
    "%%MatrixMarket": "its first line",
    "%%MatrixMarket vector array real general\n1 1\n1\n": "its first line",
    f"{BANNER} array real": "its first line",
    f"{BANNER} list real general\n1 1\n1\n": "not known",
    f"{BANNER} array words general\n1 1\n1\n": "not known",
    f"{BANNER} array real skewed\n1 1\n1\n": "not known",
    f"{BANNER} array pattern general\n1 1\n": "not known",
    f"{BANNER} array real general\n": "ends before its sizes",
    f"{BANNER} array real general\n% 1 1\n": "ends before its sizes",
    f"{BANNER} array real general\n1\n1\n": "expected 2 numbers",
    f"{BANNER} coordinate real general\n1 1\n1 1 1\n": "expected 3 numbers",
    f"{BANNER} array real general\n-1 1\n1\n": "expected 2 numbers",
    f"{BANNER} array real general\n1_0 1\n1\n": "expected 2 numbers",
    f"{BANNER} array real general\n² 1\n1\n": "expected 2 numbers",
    f"{BANNER} array real general\n2 1\n1\n": "1 entries, its sizes ask for 2",
    f"{BANNER} array real general\n0 2\n1\n": "1 entries, its sizes ask for 0",
    f"{BANNER} array real symmetric\n1 2\n1\n1\n": "symmetric matrix of 1 x 2",
    f"{BANNER} array real skew-symmetric\n0 1\n": "skew-symmetric matrix of 0 x 1",
    f"{BANNER} array real general\n1 1\n1\0\n": "could not convert",
    f"{BANNER} array real general\n1 1\n1 2\n": "columns",
    f"{BANNER} array integer general\n1 1\n1.5\n": "integer|convert",
    f"{BANNER} array integer general\n1 1\n9007199254740993\n": "cannot hold",
    f"{BANNER} array unsigned-integer general\n1 1\n18446744073709551615\n": "cannot hold",
    f"{BANNER} array integer general\n1 1\n99999999999999999999\n": "convert",
    f"{BANNER} coordinate real general\n2 2 1\n0 1 1\n": "beyond 2 rows and 2 columns",
    f"{BANNER} coordinate real general\n2 2 1\n1 3 1\n": "beyond 2 rows and 2 columns",
    f"{BANNER} coordinate real general\n0 0 1\n1 1 1\n": "beyond 0 rows",
    f"{BANNER} coordinate real general\n2 2 1\n1 1 1 1\n": "columns",
    f"{BANNER} coordinate real general\n2 2 999999999999999999\n1 1 1\n": "1 entries, its sizes ask for 9",
    f"{BANNER} coordinate real general\n2 2 1\n1 99999999999999999999 1\n": "convert",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_files_are_value_errors(text):
    with pytest.raises(ValueError, match=MALFORMED[text]):
        read(text)


SEEDS = st.sampled_from([f"{BANNER} {text}".encode() for text in WELL_FORMED])


@given(
    SEEDS,
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 4), st.binary(max_size=3)),
        max_size=4,
    ),
)
def test_spoilt_files_are_read_or_value_errors(text, changes):
    data = bytearray(text)
    for at, count, new in changes:
        data[at : at + count] = new
    try:
        matrix = read(bytes(data))
    except (ValueError, MemoryError):
        return
    assert matrix.ndim == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 2), (2, 0)])
def test_what_is_written_is_read_with_every_bit(dtype, shape, assert_same_bits):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    if x.size > 1:
        x[0, 0], x[0, 1], x[1, 0], x[1, 1] = (
            -0.0,
            np.inf,
            np.finfo(dtype).smallest_subnormal,
            np.finfo(dtype).max,
        )
    if x.dtype.kind == "c":
        x.imag = x.real[::-1]
    file = io.BytesIO()
    write_matrix(file, x)
    assert_same_bits(read(file.getvalue()).astype(dtype), x)


@pytest.mark.parametrize(
    "text",
    [x for x in WELL_FORMED if not any(y in x for y in ("\n0 ", "3 0 0", "unsigned"))],
)
@pytest.mark.filterwarnings("ignore:The default value for `spmatrix`")
def test_scipy_reads_the_same(text):
    scipy_io = pytest.importorskip("scipy.io")
    matrix = scipy_io.mmread(io.BytesIO(f"{BANNER} {text}".encode()))
    matrix = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    np.testing.assert_array_equal(
        read(f"{BANNER} {text}"), matrix.astype(np.result_type(matrix, float))
    )


@pytest.mark.parametrize(
    "text",
    [
        "array real general\n2 2\n1\n2\n3\n4 ",
        "array real general\n2 2\n1\n2\n3\n4\r",
        "array real general\n0 2\n",
        "array real symmetric\n1 2\n1\n2\n",
    ],
)
def test_the_command_ends_with_a_result_or_one_line(tmp_path, text):
    """Readers in C end the interpreter for these."""
    (tmp_path / "x.mtx").write_text(f"{BANNER} {text}")
    command = [
        sys.executable,
        "-m",
        "hifigemm",
        "matmul",
        "x.mtx",
        "x.mtx",
        "-q",
        "-o",
        "out.npy",
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode in (0, 2), done.stderr
    assert len(done.stderr.splitlines()) == (done.returncode == 2), done.stderr
    assert (done.returncode == 0) == text.startswith("array real general\n2 2")
