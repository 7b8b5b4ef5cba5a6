"""Complaints of a command are lines of stderr, and the exit code says if there were any."""

from __future__ import annotations

from hifigemm.workshop.errors import COMPUTATION_ERROR, OK, USAGE_ERROR, complain


def test_exit_codes_differ_and_success_is_zero():
    assert OK == 0
    assert len({OK, COMPUTATION_ERROR, USAGE_ERROR}) == 3


def test_nothing_to_complain_of_is_success(capsys):
    assert complain([]) == OK
    assert capsys.readouterr() == ("", "")


def test_each_complaint_is_a_line_of_its_own(capsys):
    assert complain(["error 2 > 1", "no certificate"]) == COMPUTATION_ERROR
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "hifigemm: error: error 2 > 1\nhifigemm: error: no certificate\n"
    )
