from __future__ import annotations

import bz2
import gzip
import io
import os
import warnings
import zipfile

import numpy as np
import pytest

from hifigemm.cli.files import as_floats, check_output, read_array, write_array
from hifigemm.workshop.errors import InputError

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]


def hard_matrix(dtype):
    """Values whose text form is easily spoilt: subnormals, the largest, signed zeros,
    third parts, Inf and NaN.
    """
    info = np.finfo(dtype)
    parts = [
        info.smallest_subnormal,
        info.max,
        -0.0,
        1 / 3,
        -info.tiny,
        np.inf,
        -np.inf,
        np.nan,
        0.1,
        1e-30,
        2.0,
        -7.0,
    ]
    x = np.array(parts, info.dtype).reshape(3, 4)
    if np.dtype(dtype).kind != "c":
        return x
    z = np.empty(x.shape, dtype)
    z.real, z.imag = x, x[::-1, ::-1]
    return z


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.npz:key", "X.NPY"])
def test_numpy_files_give_back_every_bit(tmp_path, dtype, name, assert_same_bits):
    x = hard_matrix(dtype)
    write_array(str(tmp_path / name), x)
    assert_same_bits(read_array(str(tmp_path / name)), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_market_gives_back_every_value(tmp_path, dtype):
    x = hard_matrix(dtype)
    write_array(str(tmp_path / "x.mtx"), x)
    y = read_array(str(tmp_path / "x.mtx"))
    np.testing.assert_array_equal(y, x)


def test_symmetric_sparse_and_compressed_matrix_market_becomes_dense(tmp_path):
    text = b"%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 3\n2 1 0.1\n"
    (tmp_path / "x.mtx").write_bytes(text)
    (tmp_path / "x.mtx.gz").write_bytes(gzip.compress(text))
    (tmp_path / "x.mtx.bz2").write_bytes(bz2.compress(text))
    for name in ("x.mtx", "x.mtx.gz", "x.mtx.bz2"):
        np.testing.assert_array_equal(
            read_array(str(tmp_path / name)), [[3.0, 0.1], [0.1, 0.0]]
        )


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.arange(6, dtype=np.int8), np.int8),
        (np.array([2**53 + 1, -(2**63)]), np.int64),
        (np.array([2**53 + 1, 3], ">i8"), np.int64),
        (np.array([2**64 - 1], np.uint64), np.uint64),
        (np.array([True, False]), np.bool_),
        (np.array([65504, 2**-24], np.float16), np.float32),
        (np.array([1.5, -0.1], ">f8"), np.float64),
        (np.array([1.5 + 2j], ">c8"), np.complex64),
        (np.array([1.5, np.nan], np.longdouble), np.float64),
        (np.zeros((0, 3), np.int64), np.int64),
    ],
)
def test_other_dtypes_keep_their_values(tmp_path, given, dtype):
    np.save(tmp_path / "x.npy", given)
    x = read_array(str(tmp_path / "x.npy"))
    assert x.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(x.astype(given.dtype), given)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "bool"])
def test_integers_become_floats_that_hold_them(dtype):
    limits = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    integers = {0, 1, *limits}
    for exponent in (31, 53, 62, 63):
        for d in (-1, 0, 1):
            integers |= {2**exponent + d, -(2**exponent) + d}
    for x in integers:
        if not limits[0] <= x <= limits[1]:
            continue
        array = np.array([x], dtype)
        if int(float(x)) == x:
            floats = as_floats(array, "x.npy")
            assert floats.dtype == np.float64
            assert int(floats[0]) == x
        else:
            with pytest.raises(InputError, match=f"x.npy: holds values of {dtype}"):
                as_floats(array, "x.npy")


@pytest.mark.parametrize(
    "given",
    [
        np.longdouble([1]) / 3,
        np.array([np.finfo(np.longdouble).max]),
    ],
)
def test_values_that_would_be_rounded_are_refused(tmp_path, given):
    if given.dtype == np.float64:
        pytest.skip("long double is float64 here")
    np.save(tmp_path / "x.npy", given)
    with pytest.raises(InputError, match="cannot hold"):
        read_array(str(tmp_path / "x.npy"))


def test_one_array_of_an_archive_is_named_by_its_key(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, first=np.ones(2), second=np.zeros(3))
    assert read_array(f"{path}:second").shape == (3,)
    with pytest.raises(InputError, match=r"holds 2 arrays.*first, second"):
        read_array(path)
    with pytest.raises(InputError, match="no array 'third'; it holds first, second"):
        read_array(f"{path}:third")


def bits_of(path):
    """Every member of an archive, in order: name, how it is compressed, date,
    content.
    """
    with zipfile.ZipFile(path) as archive:
        return [
            (x.filename, x.compress_type, x.date_time, archive.read(x))
            for x in archive.infolist()
        ]


@pytest.fixture
def archive(tmp_path):
    """A .npz of stored and compressed arrays, and of a member that is none; with a
    comment.
    """
    path = tmp_path / "x.npz"
    np.savez_compressed(path, A=np.zeros((50, 50)), B=np.arange(3.0), C=np.ones(4))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(
            zipfile.ZipInfo("D.npy", (2001, 2, 3, 4, 5, 6)), bits_of(path)[1][3]
        )
        file.writestr("notes.txt", "hello", zipfile.ZIP_BZIP2)
        file.comment = b"keep me"
    return path


@pytest.mark.parametrize(
    ("key", "place"), [("new", 5), (None, 5), ("A", 0), ("C", 2), ("notes.txt", 4)]
)
def test_other_members_of_an_archive_are_kept(archive, key, place, assert_same_bits):
    before, result = bits_of(archive), hard_matrix(np.complex128)
    spec = f"{archive}:{key}" if key else str(archive)
    check_output(spec, 2)
    assert bits_of(archive) == before
    write_array(spec, result)
    after = bits_of(archive)
    assert after[:place] + after[place + 1 :] == before[:place] + before[place + 1 :]
    assert after[place][0] == f"{key or 'c'}.npy"
    assert_same_bits(read_array(f"{archive}:{key or 'c'}"), result)
    with zipfile.ZipFile(archive) as file:
        assert file.comment == b"keep me"


def test_members_are_kept_behind_a_symbolic_link(archive, tmp_path):
    before, link = bits_of(archive), tmp_path / "link.npz"
    link.symlink_to(archive)
    write_array(f"{link}:new", np.ones(2))
    assert link.is_symlink()
    assert bits_of(archive)[:-1] == before


def test_empty_file_becomes_an_archive(tmp_path):
    (tmp_path / "x.npz").touch()
    check_output(str(tmp_path / "x.npz"), 1)
    write_array(str(tmp_path / "x.npz"), np.ones(2))
    np.testing.assert_array_equal(read_array(str(tmp_path / "x.npz")), np.ones(2))


def with_member(content, name):
    """The archive with one more member, by a writer that does not mind its name."""
    buffer = io.BytesIO(content)
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr(name, b"")
    return buffer.getvalue()


def with_byte(content, offset, byte):
    """The archive with another byte in the entry of its first member in the
    directory.
    """
    place = content.index(b"PK\1\2") + offset
    return content[:place] + byte + content[place + 1 :]


BROKEN_ARCHIVES = {
    "text": lambda content: b"dear diary",
    "truncated": lambda content: content[:-30],
    "damaged member": lambda content: content[:60] + b"\xff" * 20 + content[80:],
    "encrypted member": lambda content: with_byte(content, 8, b"\1"),
    "unknown compression": lambda content: with_byte(content, 10, b"\x63"),
    "two of a name": lambda content: with_member(content, "A.npy"),
    "key and key.npy": lambda content: with_member(content, "A"),
}


@pytest.mark.parametrize("name", BROKEN_ARCHIVES)
def test_archive_that_cannot_be_kept_whole_is_refused_before_the_product(archive, name):
    content = BROKEN_ARCHIVES[name](archive.read_bytes())
    assert content != archive.read_bytes()
    archive.write_bytes(content)
    for spec in (str(archive), f"{archive}:new"):
        with pytest.raises(InputError, match="can be added to it"):
            check_output(spec, 2)
        with pytest.raises(InputError, match="can be added to it"):
            write_array(spec, np.ones(2))
    assert archive.read_bytes() == content
    assert os.listdir(archive.parent) == ["x.npz"]


@pytest.mark.parametrize("key", ["k" * 70000, "\udcff"])
def test_key_that_no_archive_holds_is_refused_before_the_product(tmp_path, key):
    with pytest.raises(InputError, match="can be added to it"):
        check_output(f"{tmp_path / 'x.npz'}:{key}", 2)


def test_existing_folder_part_with_colon_is_no_key(tmp_path):
    folder = tmp_path / "run:1"
    folder.mkdir()
    write_array(str(folder / "x.npz"), np.ones((2, 2)))
    assert read_array(str(folder / "x.npz")).shape == (2, 2)


HEADER = b"%%MatrixMarket matrix array real general\n"
SPARSE = b"%%MatrixMarket matrix coordinate real general\n"

SPOILT = {
    "truncated.npy": lambda npy, npz: npy[:-100],
    "half_header.npy": lambda npy, npz: npy[:40],
    "empty.npy": lambda npy, npz: b"",
    "text.npy": lambda npy, npz: b"1 2 3\n4 5 6\n",
    "garbled_header.npy": lambda npy, npz: npy[:20] + b"((((" + npy[24:],
    "true_shape.npy": lambda npy, npz: npy.replace(b"(50, 50), }  ", b"(True, 50), }"),
    "word_shape.npy": lambda npy, npz: npy.replace(
        b"(50, 50), }    ", b"('5', '50'), }"
    ),
    "half_shape.npy": lambda npy, npz: npy.replace(b"(50, 50), }", b"(50, .5), }"),
    "boastful.npy": lambda npy, npz: npy.replace(
        b"(50, 50), }    ", b"(500000, 50), }"
    ),
    "truncated.npz": lambda npy, npz: npz[:-100],
    "corrupt.npz": lambda npy, npz: npz[:500] + b"\xff" * 40 + npz[540:],
    "npy.npz": lambda npy, npz: npy,
    "empty.npz": lambda npy, npz: b"",
    "truncated.mtx": lambda npy, npz: HEADER + b"2 2\n1\n2\n3\n",
    "ragged.mtx": lambda npy, npz: HEADER + b"2 2\n1 2\n3\n",
    "long.mtx": lambda npy, npz: HEADER + b"2 2\n1\n2\n3\n4\n5\n",
    "words.mtx": lambda npy, npz: HEADER + b"2 2\n1\nx\n3\n4\n",
    "outside.mtx": lambda npy, npz: SPARSE + b"2 2 1\n3 3 1.0\n",
    "no_header.mtx": lambda npy, npz: b"1 2\n3 4\n",
    "empty.mtx": lambda npy, npz: b"",
    "garbled.mtx.gz": lambda npy, npz: b"\x1f\x8b" + b"\xff" * 40,
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_files_give_one_line_with_their_name(tmp_path, name):
    np.save(tmp_path / "good.npy", np.ones((50, 50)))
    np.savez(tmp_path / "good.npz", x=np.arange(1000.0))
    good = (tmp_path / "good.npy").read_bytes(), (tmp_path / "good.npz").read_bytes()
    (tmp_path / name).write_bytes(SPOILT[name](*good))
    with pytest.raises(InputError, match=r"truncated or not|cannot be read") as caught:
        read_array(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_huge_arrays_are_refused(tmp_path):
    np.save(tmp_path / "good.npy", np.ones((50, 50)))
    header = (tmp_path / "good.npy").read_bytes()
    longer = b"(300000000, 300000000), }"
    (tmp_path / "huge.npy").write_bytes(
        header.replace(b"(50, 50), }".ljust(len(longer)), longer)
    )
    with pytest.raises(InputError, match="does not fit into memory"):
        read_array(str(tmp_path / "huge.npy"))
    (tmp_path / "huge.mtx").write_bytes(SPARSE + b"100000000 100000000 1\n3 3 1.0\n")
    with pytest.raises(InputError, match="does not fit into memory"):
        read_array(str(tmp_path / "huge.mtx"))


def test_header_of_python_2_is_read_without_a_warning(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    old = (tmp_path / "x.npy").read_bytes().replace(b"(2, 2), }  ", b"(2L, 2L), }")
    (tmp_path / "x.npy").write_bytes(old)
    np.testing.assert_array_equal(read_array(str(tmp_path / "x.npy")), np.ones((2, 2)))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.VisibleDeprecationWarning")
def test_pickled_ragged_arrays_are_refused_unread(tmp_path):
    ragged = np.array([[1.0], [1.0, 2.0]], dtype=object)
    np.save(tmp_path / "x.npy", ragged, allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=ragged)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(InputError, match="Python objects, such as a ragged array"):
            read_array(str(tmp_path / name))


@pytest.mark.parametrize(
    "given", [np.array(["1", "2"]), np.zeros(2, "M8[s]"), np.zeros(2, [("x", float)])]
)
def test_non_numeric_arrays_are_refused(tmp_path, given):
    np.save(tmp_path / "x.npy", given)
    with pytest.raises(InputError, match="not numbers"):
        read_array(str(tmp_path / "x.npy"))


def test_archive_member_that_is_no_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match=r"x\.npz"):
        read_array(str(tmp_path / "x.npz"))


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.mtx"])
def test_missing_files_and_folders_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="No such file"):
        read_array(str(tmp_path / name))
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_array(str(tmp_path / name))
    with pytest.raises(InputError, match="not a regular file"):
        check_output(str(tmp_path / name), 2)


def test_unknown_kinds_of_files_are_refused(tmp_path):
    for call in (lambda spec: read_array(spec), lambda spec: check_output(spec, 2)):
        with pytest.raises(InputError, match="unknown kind of file"):
            call(str(tmp_path / "x.csv"))
    with pytest.raises(InputError, match="unknown kind of file"):
        check_output(str(tmp_path / "x.mtx.gz"), 2)


def test_output_that_cannot_be_is_refused_early(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        check_output(str(tmp_path / "missing" / "x.npy"), 2)
    with pytest.raises(InputError, match="the result has 3 dimensions"):
        check_output(str(tmp_path / "x.mtx"), 3)
