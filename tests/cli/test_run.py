"""`hifigemm run`: programs run as Python runs them, and their products are those that
were asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import sys
import torch
import beside
a = torch.linspace(0, 1, 3600, dtype=torch.float64).reshape(60, 60).sin()
exact = sys.modules["hifigemm"].matmul(a, a, accuracy="correct") if "hifigemm" in sys.modules else None
print(__name__, sys.argv[1:], beside.NAME, exact is not None and torch.equal(a @ a, exact))
if sys.argv[1:] == ["raise"]:
    raise KeyError("of the program")
if __name__ == "__main__":
    sys.exit(7)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "program.py").write_text(PROGRAM)
    (tmp_path / "there" / "beside.py").write_text("NAME = 'a neighbour'\n")

    def start(*argv, **env):
        command = [sys.executable, "-m", "hifigemm", "run", *argv]
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("HIFIGEMM")
        } | env
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )

    return start


def test_a_program_has_its_arguments_neighbours_and_exit_code(run, tmp_path):
    done = run(
        "--manifest",
        "m.json",
        "there/program.py",
        "-x",
        "--accuracy",
        "1",
        HIFIGEMM="correct",
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "__main__ ['-x', '--accuracy', '1'] a neighbour True\n"
    (row,) = json.loads((tmp_path / "m.json").read_text())["products"]
    assert (row["operation"], row["shapes"], row["calls"]) == (
        "mm",
        [[60, 60], [60, 60]],
        1,
    )


def test_products_at_their_level_are_native_and_the_summary_says_so(run):
    done = run("--summary", "there/program.py")
    assert done.returncode == 7
    assert done.stdout.endswith("False\n")
    assert "handed on" in done.stderr
    assert "no scheme is faster on a CPU" in done.stderr


def test_modules_run_with_the_summary_of_the_process(run, tmp_path):
    done = run(
        "-m",
        "there.program",
        HIFIGEMM="correct",
        PYTHONPATH=os.pathsep.join([str(tmp_path / "there"), *sys.path]),
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "__main__ [] a neighbour True\n"


def test_errors_of_a_program_are_its_own(run):
    done = run("--accuracy", "correct", "there/program.py", "raise")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("KeyError: 'of the program'\n")


OF_NUMPY = """
import sys
import numpy as np
print((np.array([[1e16, 1.0, -1e16]]) @ np.ones((3, 1))).tolist(), flush=True)
exec(sys.argv[1])
"""
WARNING = (
    "hifigemm: warning: no product of PyTorch was seen in this process; "
    "products of NumPy and JAX are not reached: write hifigemm.numpy or hifigemm.jax\n"
)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("end", "code", "stderr"),
    [
        ("", 0, WARNING),
        ("sys.exit(5)", 5, WARNING),
        slow("sys.exit()", 0, WARNING),
        slow("sys.exit('too bad')", 1, f"{WARNING}too bad\n"),
        ("sys.stderr.close(); sys.exit(3)", 3, ""),
        slow("sys.stderr = None", 0, ""),
        ("import torch; torch.ones(3, 3) @ torch.ones(3, 3)", 0, ""),
        slow("import torch; torch.ones(3, 3).int() @ torch.ones(3, 3).int()", 0, ""),
    ],
)
def test_a_program_of_numpy_is_told_so_and_keeps_its_exit_code(
    run, tmp_path, end, code, stderr
):
    (tmp_path / "numpy_program.py").write_text(OF_NUMPY)
    done = run("--accuracy", "correct", "numpy_program.py", end)
    assert (done.returncode, done.stderr) == (code, stderr)
    assert done.stdout == "[[0.0]]\n"


@pytest.mark.parametrize(
    "end", ["1 / 0", slow("raise KeyboardInterrupt"), slow("os._exit(4)")]
)
def test_a_program_of_numpy_fails_as_python_says(run, tmp_path, end):
    (tmp_path / "numpy_program.py").write_text(f"import os\n{OF_NUMPY}")
    done = run("--accuracy", "correct", "numpy_program.py", end)
    plain = subprocess.run(
        [sys.executable, "numpy_program.py", end],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert "no product of PyTorch" not in done.stderr


@pytest.mark.slow
def test_the_summary_of_a_program_of_numpy_says_so_once(run, tmp_path):
    (tmp_path / "numpy_program.py").write_text(OF_NUMPY)
    done = run("--summary", "--accuracy", "correct", "numpy_program.py", "sys.exit(2)")
    assert done.returncode == 2
    assert done.stderr.count("no product of PyTorch was seen in this process") == 1


SPAWNING = """
import atexit, multiprocessing, os, pickle
class Own:
    pass
def work(x):
    return Own()
if __name__ == "__main__":
    atexit.register(lambda: print(len(pickle.dumps(Own())) > 0))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(type(pool.map(work, [1])[0]).__name__, flush=True)
    os.chdir("/")
    print(os.path.exists(__file__))
"""


def test_classes_of_the_program_travel_between_processes(run, tmp_path):
    (tmp_path / "spawning.py").write_text(SPAWNING)
    done = run("--manifest", "m.json", "spawning.py")
    assert done.returncode == 0
    assert "no product of PyTorch was seen" in done.stderr
    assert done.stdout == "Own\nTrue\nTrue\n"
    assert json.loads((tmp_path / "m.json").read_text()) == {
        "products": [],
        "not_reached": {},
    }


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["none.py"], {}, "none.py: no such file"),
        (
            ["there/program.py"],
            {"HIFIGEMM": "fp63"},
            "HIFIGEMM='fp63': accuracy='fp63'",
        ),
        (["--scheme", "Ozaki3()", "there/program.py"], {}, "Ozaki3"),
        (["--min-size", "-1", "there/program.py"], {}, "--min-size"),
        ([], {}, "PROGRAM"),
        (
            ["--manifest", "nowhere/m.json", "there/program.py"],
            {},
            "nowhere/m.json: no such directory",
        ),
    ],
)
def test_wrong_usage_is_one_line(argv, env, message, run):
    done = run(*argv, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
