from __future__ import annotations

import io
import sys

from hifigemm.workshop.steps import BAR, Steps


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_steps_fill_a_bar_in_one_line_of_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    steps = Steps(4.0)
    for weight in (1.0, 2.0, 1.0):
        steps.start(
            "a step whose description is longer than what is left of a line of 80 characters"
        )
        steps.advance(weight)
    steps.close()
    *shown, blank, last = sys.stderr.getvalue().split("\r")[1:]
    assert [line.split("]")[1].split()[0] for line in shown] == ["0%", "25%", "75%"]
    assert [line.count("#") for line in shown] == [
        0,
        BAR // 4,
        3 * BAR // 4,
    ]
    assert all(len(line) <= len(blank) < 80 for line in shown)
    assert (blank.strip(), last) == ("", "")


def test_steps_are_lines_where_nobody_watches(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    steps = Steps(1.0)
    steps.start("a step")
    steps.advance(1.0)
    steps.close()
    assert sys.stderr.getvalue() == "a step ...\n"
