from __future__ import annotations

import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.workshop import demo

COMMAND = [sys.executable, "-W", "error", "-m", "hifigemm"]


def run(*argv, **kwargs):
    return subprocess.run(
        [*COMMAND, *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=120,
        **kwargs,
    )


def test_module_multiplies_files_and_reports(pair, tmp_path):
    a_file, b_file, a, b = pair
    done = run(
        "matmul", a_file, b_file, "-o", "c.npy", "--accuracy", "correct", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "correctly rounded" in done.stderr
    np.testing.assert_array_equal(
        np.load(tmp_path / "c.npy"), hg.matmul(a, b, accuracy="correct")
    )


def test_errors_are_one_line_without_traceback(pair, tmp_path):
    done = run("matmul", pair[0], tmp_path / "none.npy", "-o", tmp_path / "c.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"hifigemm: error: {tmp_path / 'none.npy'}: cannot be read: No such file or directory\n"
    )
    done = run(
        "matmul",
        *pair[:2],
        "-o",
        tmp_path / "c.npy",
        "--scheme",
        "native",
        "--accuracy",
        "correct",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("hifigemm: error: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def there(pair, tmp_path, monkeypatch, short):
    """The working directory holds the operands of `pair`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "find_spec", lambda name: None)


PRINTING = [
    "--help",
    "--version",
    "info",
    "plan --help",
    "plan a.npy b.npy",
    "bench --quick --sizes 4 --schemes native",
    "demo --size 2",
]


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("buffering", [-1, 1])
@pytest.mark.parametrize("line", PRINTING)
@pytest.mark.usefixtures("there")
def test_full_device_ends_in_one_line(line, buffering, monkeypatch, capsys):
    with open("/dev/full", "w", buffering) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(line.split()) == 2
    message = (
        "hifigemm: error: standard output: cannot be written: No space left on device\n"
    )
    *progress, last = capsys.readouterr().err.splitlines(keepends=True)
    assert last == message
    assert all(text.endswith(" ...\n") for text in progress)


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("buffering", [-1, 1])
@pytest.mark.parametrize("line", PRINTING)
@pytest.mark.usefixtures("there")
def test_closed_pipe_is_silent(line, buffering, monkeypatch, capsys):
    with open(broken_pipe(), "w", buffering) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(line.split()) == 1
    assert all(text.endswith(" ...") for text in capsys.readouterr().err.splitlines())


@pytest.mark.skipif(os.name != "posix", reason="devices of POSIX")
@pytest.mark.parametrize(
    ("line", "unbuffered"), [("info", ""), ("info", "1"), ("plan --help", "1")]
)
def test_interpreter_adds_nothing_when_it_flushes(line, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full, os.fdopen(broken_pipe(), "w") as closed:
        for stream, code, error in (
            (full, 2, "No space left on device\n"),
            (closed, 1, ""),
        ):
            done = subprocess.run(
                [*COMMAND, *line.split()],
                stdout=stream,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            assert done.returncode == code
            assert done.stderr.endswith(error)
            assert done.stderr.count("\n") == len(error.splitlines())
        assert (
            subprocess.run(
                [*COMMAND, "multiply"], stderr=full, env=environment
            ).returncode
            == 2
        )


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(pair, tmp_path, closed):
    command = [*COMMAND, "matmul", *pair[:2], "-o", str(tmp_path / "c.npy")]
    assert (
        subprocess.run(
            f"{shlex.join(command)} {closed}", shell=True, capture_output=True
        ).returncode
        == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), hg.matmul(*pair[2:]))


INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SCRIPT = "import sys\nfrom hifigemm.cli import main\nsys.exit(main())\n"
INTERRUPTED_WRITER = f"""
from hifigemm.cli import files
def write_matrix(file, x):
    file.write(b"half")
    file.flush()
    exec({INTERRUPT!r})
files.write_matrix = write_matrix
"""


def with_module(folder, name, text):
    """The environment in which a module of that name is found in the folder first."""
    path = folder / "first" / name / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder / "first"), *sys.path])
    }


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    "start", [["-m", "hifigemm"], ["-mhifigemm"], ["bin/hifigemm"]]
)
def test_interrupt_while_numpy_is_imported_ends_in_one_line(tmp_path, start):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hifigemm").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *start, "info"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=with_module(tmp_path, "numpy", INTERRUPT),
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        "hifigemm: error: interrupted\n",
    )


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_interrupt_while_a_result_is_written_leaves_nothing(pair, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hifigemm").write_text(INTERRUPTED_WRITER + SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    before = sorted(tmp_path.rglob("*.*"))
    done = subprocess.run(
        [sys.executable, "bin/hifigemm", "matmul", *pair[:2], "-o", "c.mtx"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        "hifigemm: error: interrupted\n",
    )
    assert sorted(tmp_path.rglob("*.*")) == before


def test_other_programs_keep_their_handler_of_interrupts():
    code = "import signal, hifigemm.cli; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code, "hifigemm"], check=True)


def test_variables_of_the_environment_that_ask_for_nothing_known(pair, tmp_path):
    line = ["matmul", *pair[:2], "-q", "-o", tmp_path / "c.npy"]
    done = run(*line, env=os.environ | {"HIFIGEMM_STRICT": "yes"})
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == 'hifigemm: error: HIFIGEMM_STRICT=\'yes\': expected "0" or "1"\n'
    )
    assert not (tmp_path / "c.npy").exists()
    command = [sys.executable, *COMMAND[3:], *map(str, line)]
    environment = os.environ | {"HIFIGEMM_LOG": "loud"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("hifigemm: warning: HIFIGEMM_LOG='loud' is ignored: ")
    assert done.stderr.count("\n") == 1


def test_version_is_printed():
    assert run("--version").stdout == f"hifigemm {hg.__version__}\n"


def test_import_and_matmul_load_nothing_heavy(tmp_path):
    heavy = "{'torch', 'scipy', 'matplotlib', 'rich', 'flint', 'hifigemm.testing', 'hifigemm.workshop.measuring'}"
    np.save(tmp_path / "a.npy", np.eye(2))
    for code in (
        "import hifigemm",
        "from hifigemm.cli import main; main(['matmul', 'a.npy', 'a.npy', '-o', 'c.npy', '--accuracy', 'correct'])",
    ):
        program = (
            f"{code}; import sys; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert (out.startswith("usage: hifigemm "), err) == (True, "")
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == out
