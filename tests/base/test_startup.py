"""Ctrl-C while the command starts: the handler belongs to the command alone, and steps
aside where files are written.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from hifigemm.base import startup


@pytest.fixture
def handler():
    """The handler of Ctrl-C, as it was before once the test is over."""
    before = signal.getsignal(signal.SIGINT)
    yield before
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("original", "argv", "is_command"),
    [
        (["python", "/usr/bin/hifigemm", "info"], ["/usr/bin/hifigemm", "info"], True),
        (["python", "hifigemm.exe"], ["hifigemm.exe"], True),
        (["python", "-m", "hifigemm", "info"], ["-m", "info"], True),
        (["python", "-mhifigemm", "info"], ["-m", "info"], True),
        (["python", "-m", "pytest", "hifigemm"], ["-m", "hifigemm"], False),
        (["python", "-c", "import hifigemm"], ["-c"], False),
        (["python", "program.py", "hifigemm"], ["program.py", "hifigemm"], False),
        (["python"], [""], False),
        (["python"], ["a", "b"], False),
    ],
)
def test_the_command_is_known_by_the_word_before_its_arguments(
    monkeypatch, original, argv, is_command
):
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", argv)
    assert startup._is_command() == is_command


def test_a_program_that_imports_the_package_keeps_its_handler():
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT); import hifigemm; "
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("handler")
def test_interrupts_raise_within_the_context_and_end_the_process_after_it():
    signal.signal(signal.SIGINT, startup._end)
    with startup.raising_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), startup.raising_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is startup._end


@pytest.mark.usefixtures("handler")
def test_the_handler_of_a_program_stays_within_the_context():
    def handler(*_):
        """A program's own."""

    signal.signal(signal.SIGINT, handler)
    with startup.raising_interrupts():
        assert signal.getsignal(signal.SIGINT) is handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_handler_says_one_line_and_ends_with_130():
    code = (
        "import signal; from hifigemm.base import startup; "
        "signal.signal(signal.SIGINT, startup._end); "
        "signal.raise_signal(signal.SIGINT); print('went on')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (startup.INTERRUPTED, "")
    assert run.stderr == "hifigemm: error: interrupted\n"
