"""Fresh processes take the library from the checkout that is named, and say so."""

from __future__ import annotations

import subprocess
import sys
import time
from textwrap import dedent

import pytest

from benchmarks import processes
from benchmarks.processes import ProcessorClock, lines_of


def test_lines_come_from_the_library_of_the_tree(tmp_path, monkeypatch):
    # A module beside the benchmarks that says where it found the library.
    script = dedent("""
        import hifigemm, json, os, sys
        for word in (hifigemm.WORD, os.environ["X"], *sys.argv[1:]):
            print(json.dumps({"word": word}))
    """)
    (tmp_path / "says.py").write_text(script, encoding="utf-8")
    package = tmp_path / "tree" / "src" / "hifigemm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WORD = 'fake'\n", encoding="utf-8")
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    lines = lines_of("says", ["b"], tree=tmp_path / "tree", variables={"X": "c"})
    assert [line["word"] for line in lines] == ["fake", "c", "b"]


def test_a_processor_does_not_count_what_a_process_waits_for():
    clock = ProcessorClock()
    start = clock.mark()
    time.sleep(0.3)
    assert clock.seconds(start, clock.mark()) < 0.2


def test_a_processor_counts_processes_that_have_ended():
    pytest.importorskip("resource")
    clock = ProcessorClock()
    script = "import time\nwhile time.process_time() < 0.3: pass"
    start = clock.mark()
    subprocess.run([sys.executable, "-c", script], check=True)
    assert clock.seconds(start, clock.mark()) >= 0.3
