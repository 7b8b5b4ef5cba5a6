"""Matrix Market files: every well-formed one is read as it is meant, every other one is
a ValueError.
"""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
from fractions import Fraction

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


DTYPES = {
    "complex": np.complex128,
    "integer": np.int64,
    "unsigned-integer": np.int64,
}


@pytest.mark.parametrize(
    "end", ["", "\n", " ", "\t", "\r", "\r\n", "\n\n", " \n \n", "\n% the end", "\v"]
)
@pytest.mark.parametrize("text", WELL_FORMED)
def test_well_formed_files_are_read_whatever_ends_them(text, end):
    expected = np.array(WELL_FORMED[text])
    for line_end in ("\n", "\r\n"):
        matrix = read((f"{BANNER} {text.rstrip()}".replace("\n", line_end)) + end)
        field = text.split()[1].lower()
        assert matrix.dtype == DTYPES.get(field, np.float64)
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
    f"{BANNER} array integer general\n1 1\n1_0\n": "underscore",
    f"{BANNER} array real general\n1 1\n1_0\n": "underscore",
    f"{BANNER} array real general\n1 1\n1.5D\n": "convert '1.5D'",
    f"{BANNER} array real general\n1 1\n1.5F3\n": "convert '1.5F3'",
    f"{BANNER} coordinate real general\n1 1 2\n1 1 1\n1 1 one\n": "convert 'one'",
    f"{BANNER} array integer general\n2 1\n1\n99999999999999999999\n": "row 2, column 1 holds the integer 9999999",
    f"{BANNER} array integer general\n2 1\n-1\n9223372036854775808\n": "row 2, column 1 holds the integer 9223372",
    f"{BANNER} coordinate integer general\n1 1 2\n1 1 -9223372036854775808\n1 1 -1\n": "integer -9223372036854775809",
    f"{BANNER} coordinate real general\n1 1 2\n1 1 1e99999\n1 1 3\n": "more than 10000 digits",
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


DECIMALS = st.builds(
    lambda sign, digits, point, exponent, style: style(
        f"{sign}{digits[:point]}.{digits[point:]}", exponent
    ),
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=40),
    st.integers(0, 40),
    st.sampled_from([0, 1, -1, 15, 16, 17, -20, 290, -300, -324, -340])
    | st.integers(-30, 30),
    st.sampled_from(
        [
            lambda mantissa, exponent: f"{mantissa}e{exponent}",
            lambda mantissa, exponent: f"{mantissa}E{exponent:+04}",
            lambda mantissa, exponent: f"{mantissa}D{exponent:+03}",
            lambda mantissa, exponent: f"{mantissa}d{exponent}",
            lambda mantissa, exponent: f"{mantissa}{exponent:+04}",
        ]
    ),
)
"""Decimal numbers of up to 40 digits as Python, C and Fortran write them."""


def exact(text):
    """The fraction that a decimal number is."""
    mantissa, _, exponent = re.fullmatch(
        r"([-+0-9.]*?[0-9.])([EeDd]?)([-+]?[0-9]+)?", text
    ).groups()
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def rounded(x):
    """The float64 number nearest to a fraction."""
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.copysign(math.inf, x)


@given(st.lists(DECIMALS, min_size=1, max_size=6))
def test_decimal_numbers_are_rounded_once(texts):
    matrix = read(f"{BANNER} array real general\n{len(texts)} 1\n" + "\n".join(texts))
    assert matrix.ravel().tolist() == [rounded(exact(text)) for text in texts]


PLACES = st.tuples(st.integers(1, 3), st.integers(1, 3))
MIRRORED = {
    "general": None,
    "symmetric": (1, 1),
    "skew-symmetric": (-1, -1),
    "hermitian": (1, -1),
}
"""Factors of the real and the imaginary part of the entry across the diagonal."""


@given(
    st.lists(st.tuples(PLACES, DECIMALS, DECIMALS, st.booleans()), max_size=12),
    st.sampled_from(["real", "complex"]),
    st.sampled_from(sorted(MIRRORED)),
)
def test_entries_of_one_place_are_added_exactly_and_rounded_once(
    entries, field, symmetry
):
    lines = []
    sums = {
        (i, j): [Fraction(0), Fraction(0)] for i in range(1, 4) for j in range(1, 4)
    }
    for (i, j), *parts, is_cancelled in entries:
        # Some numbers come once more with the other sign, so that sums cancel.
        for sign in (1, -1) if is_cancelled else (1,):
            words = [part if sign == 1 else with_other_sign(part) for part in parts]
            numbers = [exact(word) for word in words]
            lines.append(f"{i} {j} {' '.join(words[: 1 + (field == 'complex')])}\n")
            images = [((i, j), (1, 1)), ((j, i), MIRRORED[symmetry])]
            for place, factors in images if i != j and images[1][1] else images[:1]:
                for part in range(2):
                    sums[place][part] += factors[part] * numbers[part]
    head = f"{BANNER} coordinate {field} {symmetry}\n3 3 {len(lines)}\n"
    matrix = read(head + "".join(lines))
    for (i, j), (real, imag) in sums.items():
        assert matrix[i - 1, j - 1].real == rounded(real)
        assert field == "real" or matrix[i - 1, j - 1].imag == rounded(imag)


def with_other_sign(text):
    return text[1:] if text.startswith("-") else "-" + text.removeprefix("+")


@given(st.permutations(["1e16", "1", "-1e16", "2.5e-20", "-2.5E-20"]))
def test_sums_do_not_depend_on_the_order_of_their_entries(texts):
    lines = "".join(f"1 1 {text}\n" for text in texts)
    assert read(f"{BANNER} coordinate real general\n1 1 5\n{lines}") == 1


INTEGERS = st.builds(
    lambda power, offset, sign: sign * (2**power + offset),
    st.sampled_from([0, 31, 52, 53, 54, 62, 63, 64]),
    st.integers(-3, 3),
    st.sampled_from([1, -1]),
)


@given(
    st.lists(st.tuples(PLACES, INTEGERS), min_size=1, max_size=8),
    st.sampled_from(["general", "symmetric", "skew-symmetric"]),
    st.sampled_from(["integer", "unsigned-integer"]),
)
def test_integers_are_kept_or_the_first_one_beyond_64_bits_is_named(
    entries, symmetry, field
):
    sums = {}
    for (i, j), value in entries:
        sums[i, j] = sums.get((i, j), 0) + value
        if i != j and symmetry != "general":
            image = value if symmetry == "symmetric" else -value
            sums[j, i] = sums.get((j, i), 0) + image
    lines = "".join(f"{i} {j} {value}\n" for (i, j), value in entries)
    text = f"{BANNER} coordinate {field} {symmetry}\n3 3 {len(entries)}\n{lines}"
    values = sums.values()
    if min(values) >= -(2**63) and max(values) < 2**63:
        dtype = np.int64
    elif min(values) >= 0 and max(values) < 2**64:
        dtype = np.uint64
    else:
        with pytest.raises(ValueError, match=r"row \d, column \d holds the integer"):
            read(text)
        return
    matrix = read(text)
    assert matrix.dtype == dtype
    expected = [[sums.get((i, j), 0) for j in range(1, 4)] for i in range(1, 4)]
    assert matrix.tolist() == expected


@given(
    st.sampled_from(["int8", "int64", "uint64", "bool"]),
    st.integers(0, 2**64 - 1),
)
def test_integers_that_are_written_are_read_as_they_are(dtype, bits):
    x = np.array([[bits]], np.uint64).astype(dtype)
    file = io.BytesIO()
    write_matrix(file, x)
    assert (
        read(file.getvalue()).tolist()
        == x.astype(int if dtype != "uint64" else dtype).tolist()
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("inf", "1"), "inf"),
        (("inf", "-inf"), "nan"),
        (("nan", "1"), "nan"),
        (("1", "-Infinity"), "-inf"),
        (("1e400", "-1e400"), "0.0"),
        (("1e400", "3"), "inf"),
        (("-1e-400", "-1e-400"), "-0.0"),
        (("1e-400", "-1e-400"), "0.0"),
        (("-0.0", "-0.0"), "0.0"),
        (("-0.0",), "-0.0"),
        (("0.1", "0.2"), "0.3"),
        (("9007199254740993", "1e-300"), "9007199254740994.0"),
    ],
)
def test_sums_at_the_ends_of_the_range(texts, expected):
    lines = "".join(f"1 1 {text}\n" for text in texts)
    matrix = read(f"{BANNER} coordinate real general\n1 1 {len(texts)}\n{lines}")
    assert repr(matrix.item()) == expected


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
