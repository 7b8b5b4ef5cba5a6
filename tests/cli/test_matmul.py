from __future__ import annotations

import os

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.testing.reference import correctly_rounded


def run(*argv):
    return main([str(word) for word in argv])


def test_result_is_what_matmul_gives(pair, tmp_path, assert_same_bits):
    a_file, b_file, a, b = pair
    for i, (argv, options) in enumerate(
        [
            ([], {}),
            (["--accuracy", "correct"], {"accuracy": "correct"}),
            (["--accuracy", "1e-20"], {"accuracy": 1e-20}),
            (
                ["--scheme", "ozaki1", "--num-slices", "3"],
                {"scheme": hg.Ozaki1(num_slices=3)},
            ),
            (["--scheme", "ozaki2", "--engine", "numpy"], {"scheme": "ozaki2"}),
            (["--accuracy", "correct", "--workspace", "8K"], {"accuracy": "correct"}),
        ]
    ):
        out = tmp_path / f"c{i}.npy"
        assert run("matmul", a_file, b_file, "-o", out, *argv) == 0
        assert_same_bits(np.load(out), hg.matmul(a, b, **options))


def test_correct_result_is_correctly_rounded(pair, tmp_path):
    a_file, b_file, a, b = pair
    assert (
        run("matmul", a_file, b_file, "-o", tmp_path / "c.npy", "--accuracy", "correct")
        == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), correctly_rounded(a, b))


@pytest.mark.parametrize("output", ["c.npz", "c.npz:result", "c.mtx"])
def test_formats_can_be_mixed(pair, tmp_path, output):
    a_file, b_file, a, b = pair
    assert run("matmul", a_file, b_file, "-o", tmp_path / output, "-q") == 0
    assert (
        run(
            "matmul",
            tmp_path / output,
            tmp_path / "eye.npy",
            "-o",
            tmp_path / "d.npy",
            "-q",
        )
        == 2
    )
    np.save(tmp_path / "eye.npy", np.eye(3))
    assert (
        run(
            "matmul",
            tmp_path / output,
            tmp_path / "eye.npy",
            "-o",
            tmp_path / "d.npy",
            "-q",
        )
        == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), hg.matmul(a, b))


def test_report_goes_to_stderr_unless_quiet(pair, tmp_path, capsys):
    a_file, b_file, a, b = pair
    report = hg.matmul(a, b, accuracy="correct", return_report=True)[1]
    assert (
        run("matmul", a_file, b_file, "-o", tmp_path / "c.npy", "--accuracy", "correct")
        == 0
    )
    out, err = capsys.readouterr()
    assert out == ""
    lines = str(report).splitlines()
    timed = [line for line in lines if line.startswith("  decision ")]
    assert len(timed) == 1
    assert set(lines) - set(timed) <= set(err.splitlines())
    assert err.count("  decision ") == 1
    assert "wrote" in err
    assert (
        run(
            "matmul",
            a_file,
            b_file,
            "-o",
            tmp_path / "c.npy",
            "--accuracy",
            "correct",
            "--quiet",
        )
        == 0
    )
    assert capsys.readouterr() == ("", "")


def test_result_joins_its_operands_in_their_archive(pair, tmp_path):
    _, _, a, b = pair
    z = tmp_path / "Z.npz"
    np.savez_compressed(z, A=a, B=b)
    for _ in range(2):
        assert (
            run(
                "matmul",
                f"{z}:A",
                f"{z}:B",
                "-o",
                f"{z}:C",
                "-q",
                "--accuracy",
                "correct",
            )
            == 0
        )
    with np.load(z) as found:
        assert list(found) == ["A", "B", "C"]
        for name, x in (("A", a), ("B", b), ("C", correctly_rounded(a, b))):
            np.testing.assert_array_equal(found[name], x)


def test_output_may_be_an_input(pair, tmp_path):
    a_file, b_file, a, b = pair
    assert run("matmul", a_file, b_file, "-o", a_file) == 0
    np.testing.assert_array_equal(np.load(a_file), hg.matmul(a, b))


def test_vectors_stacks_and_empty_operands(tmp_path):
    rng = np.random.default_rng(0)
    for shapes in [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 3, 4), (4, 5)),
        ((0, 4), (4, 3)),
        ((3, 0), (0, 2)),
    ]:
        a, b = (rng.standard_normal(shape) for shape in shapes)
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "b.npy", b)
        files = tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "c.npy"
        assert run("matmul", *files, "--accuracy", "correct") == 0
        np.testing.assert_array_equal(
            np.load(tmp_path / "c.npy"), correctly_rounded(a, b)
        )


def test_plan_prints_what_make_plan_says(pair, capsys):
    a_file, b_file, a, b = pair
    assert run("plan", a_file, b_file, "--scheme", "ozaki2", "--accuracy", "1e-15") == 0
    assert (
        capsys.readouterr().out
        == f"{hg.make_plan(a, b, scheme='ozaki2', accuracy=1e-15)}\n"
    )


def test_mismatched_shapes_are_an_input_error(pair, tmp_path, fails):
    a_file, b_file, _, _ = pair
    text = fails(
        ["matmul", b_file, a_file, "-o", tmp_path / "c.npy"],
        2,
        "inner dimensions differ",
    )
    assert "b.npy and" in text
    fails(["plan", b_file, a_file], 2, "inner dimensions differ")


def test_scalar_is_an_input_error(pair, tmp_path, fails):
    np.save(tmp_path / "s.npy", 3.0)
    fails(["plan", tmp_path / "s.npy", pair[1]], 2, "single number")


def test_accuracy_that_a_scheme_cannot_keep_is_a_computation_error(
    pair, tmp_path, fails
):
    files = pair[:2]
    fails(
        [
            "matmul",
            *files,
            "-o",
            tmp_path / "c.npy",
            "--scheme",
            "native",
            "--accuracy",
            "correct",
        ],
        1,
        "native product",
    )
    fails(
        [
            "matmul",
            *files,
            "-o",
            tmp_path / "c.npy",
            "--scheme",
            "ozaki1",
            "--workspace",
            "8",
        ],
        1,
        "workspace of 8 bytes",
    )
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["-o", "{dir}/c.txt"], "unknown kind of file"),
        (["-o", "{dir}/missing/c.npy"], "no folder"),
        (["-o", "{dir}/read_only.npy"], "is read-only"),
        (["-o", "{dir}/diary.npz:c"], "can be added to it"),
        (["-o", "{dir}/c.npy", "--num-moduli", "3"], "--num-moduli needs --scheme"),
    ],
)
def test_usage_errors_come_before_any_work(
    pair, tmp_path, fails, monkeypatch, argv, text
):
    for name in ("read_only.npy", "diary.npz"):
        (tmp_path / name).write_text("dear diary")
    (tmp_path / "read_only.npy").chmod(0o444)
    monkeypatch.setattr(hg, "matmul", None)
    fails(["matmul", *pair[:2], *(word.format(dir=tmp_path) for word in argv)], 2, text)


def test_wrong_usage_is_refused(pair, fails):
    fails(["matmul", pair[0], "-o", "c.npy"], 2, "required: B")
    fails(["multiply"], 2, "invalid choice")


def test_bad_operand_files_are_input_errors(pair, tmp_path, fails):
    (tmp_path / "half.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    np.save(tmp_path / "words.npy", np.array([["1", "2"]]))
    for name, text in (
        ("half.npy", "truncated"),
        ("words.npy", "not numbers"),
        ("none.npy", "No such file"),
    ):
        fails(["matmul", tmp_path / name, pair[1], "-o", tmp_path / "c.npy"], 2, text)


def test_interrupted_write_leaves_the_old_result(pair, tmp_path, fails, monkeypatch):
    out = tmp_path / "c.npy"
    out.write_bytes(b"old")
    before = sorted(os.listdir(tmp_path))

    def write_half(file, array, **kwargs):
        file.write(b"\x93NUMPY and then")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", write_half)
    fails(["matmul", *pair[:2], "-o", out, "-q"], 2, "No space left")
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError("8 TiB"), 1, "--workspace"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_lack_of_memory_and_interrupts_have_codes(
    pair, tmp_path, fails, monkeypatch, error, code, text
):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(hg, "matmul", fail)
    fails(["matmul", *pair[:2], "-o", tmp_path / "c.npy"], code, text)
    assert not (tmp_path / "c.npy").exists()


def test_info_names_engines_and_versions(capsys):
    assert run("info") == 0
    assert capsys.readouterr().out == f"{hg.info()}\n"


def test_without_an_output_the_result_is_printed_and_the_report_beside_it(pair, capsys):
    a_file, b_file, a, b = pair
    assert run("matmul", a_file, b_file, "--accuracy", "correct") == 0
    out, err = capsys.readouterr()
    assert out == f"{hg.matmul(a, b, accuracy='correct')}\n"
    assert err.startswith("Report\n")
    assert "correctly rounded" in err
    assert "wrote" not in err
    assert run("matmul", a_file, b_file, "-q") == 0
    assert capsys.readouterr() == (f"{hg.matmul(a, b)}\n", "")


@pytest.mark.parametrize("dtype", [None, "float32", "complex128"])
def test_a_plan_needs_a_shape_alone(dtype, capsys):
    options = ["--dtype", dtype] if dtype else []
    assert run("plan", "--shape", "30,20,40", "--accuracy", "correct", *options) == 0
    out, err = capsys.readouterr()
    assert f"(30 x 40) @ (40 x 20) {dtype or 'float64'}" in out
    assert err == ""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plan", "expected two files, or --shape M,N,K"),
        ("plan a.npy", "expected two files, or --shape M,N,K"),
        ("plan a.npy b.npy --shape 2,2,2", "expected two files, or --shape M,N,K"),
        ("plan --shape 2,2", "'2,2': expected three sizes M,N,K"),
        (
            "plan --shape 2x2",
            "'2x2': expected three sizes M,N,K such as 1000,1000,1000",
        ),
        ("plan --shape 9", "'9': expected three sizes M,N,K"),
        ("plan --shape 2,2,2,2", "'2,2,2,2': expected three sizes M,N,K"),
        ("plan --shape 2,x,2", "'x' is not an integer from 1 to"),
        ("plan a.npy b.npy --dtype float32", "--dtype goes with --shape"),
    ],
)
def test_a_plan_is_of_files_or_of_a_shape(line, text, fails):
    fails(line.split(), 2, text)


DTYPES_OF_INTEGERS = ("bool", "int8", "uint8", "int32", "int64", "uint64")


@pytest.mark.parametrize("first", DTYPES_OF_INTEGERS)
@pytest.mark.parametrize("second", DTYPES_OF_INTEGERS)
def test_integers_are_multiplied_exactly_or_the_first_beyond_is_named(
    first, second, tmp_path, capsys
):
    rng = np.random.default_rng(3)
    files = tmp_path / "a.npy", tmp_path / "b.npy"
    for trial in range(6):
        arrays = []
        for file, dtype in zip(files, (first, second), strict=True):
            kind = np.dtype(dtype).kind
            limits = (
                (0, 1) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            )
            near = rng.choice([0, 2**31, 2**53, 2**62, 2**63], (2, 2)).astype(object)
            if trial % 3 == 0:
                near = near * 0
            x = near * rng.choice([-1, 1], (2, 2)) + rng.integers(-2, 3, (2, 2))
            arrays.append(np.clip(x, *limits).astype(dtype))
            np.save(file, arrays[-1])
        a, b = (np.array([[int(y) for y in row] for row in x], object) for x in arrays)
        exact = a @ b
        promoted = np.result_type(first, second)
        default = np.uint64 if promoted == np.uint64 else np.int64
        for result, dtype in (
            (None, default),
            ("int64", np.int64),
            ("array", promoted),
        ):
            if result == "array" and promoted.kind in "bf":
                continue
            argv = [] if result is None else ["--result", result]
            accuracy = ([], ["--accuracy", "correct"], ["--accuracy", "1e-12"])[
                trial % 3
            ]
            code = run("matmul", *files, "-o", tmp_path / "c.npy", *argv, *accuracy)
            error = capsys.readouterr().err
            limits = np.iinfo(dtype)
            beyond = [
                f"entry {i} = {exact[i]}:"
                for i in np.ndindex(2, 2)
                if not limits.min <= exact[i] <= limits.max
            ]
            assert code == (1 if beyond else 0)
            if beyond:
                assert f"the first is {beyond[0]}" in error
            else:
                c = np.load(tmp_path / "c.npy")
                assert (c.dtype, c.tolist()) == (dtype, exact.tolist())
        assert run("matmul", *files, "--result", "object", "-q") == 0
        assert capsys.readouterr().out == f"{exact}\n"


def test_integers_beside_floats_and_other_wrong_combinations(pair, tmp_path, fails):
    large, floats = tmp_path / "i.npy", tmp_path / "f.npy"
    np.save(large, np.array([[2**62]]))
    np.save(floats, np.array([[0.5]], np.float32))
    assert run("matmul", large, floats, "-q", "-o", tmp_path / "c.npy") == 0
    c = np.load(tmp_path / "c.npy")
    assert (c.dtype, c[0, 0]) == (np.float64, 2.0**61)
    fails(["matmul", large, large], 1, f"the first is entry (0, 0) = {2**124}")
    fails(["matmul", large, floats, "--result", "int64"], 1, "the operands are float64")
    fails(["matmul", large, large, "--scheme", "ozaki2"], 1, "the operands are int64")
    fails(["plan", large, large], 2, "products of integers are exact and have no plan")
    for name in ("c.npy", "c.npz"):
        argv = ["matmul", large, large, "--result", "object", "-o", tmp_path / name]
        fails(argv, 2, "cannot hold integers of arbitrary size")
    np.save(large, np.array([[2**53 + 1]]))
    fails(["matmul", large, floats], 2, "i.npy: holds values of int64 that float64")


def test_integers_of_any_size_go_into_matrix_market_files(tmp_path):
    np.save(tmp_path / "i.npy", np.array([[2**62, -3], [5, 7]]))
    argv = "matmul", tmp_path / "i.npy", tmp_path / "i.npy", "--result", "object"
    assert run(*argv, "-o", tmp_path / "c.mtx") == 0
    lines = (tmp_path / "c.mtx").read_text().splitlines()
    x = [[2**62, -3], [5, 7]]
    exact = np.array(x, object) @ np.array(x, object)
    assert [int(line) for line in lines[2:]] == exact.T.ravel().tolist()
