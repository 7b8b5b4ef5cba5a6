"""The handler of ``HIFIGEMM_LOG``: each line appears once, whoever else writes it."""

from __future__ import annotations

import logging

import pytest

from hifigemm.base.log_handler import HANDLER


@pytest.fixture
def log():
    """A logger with the handler and with nothing above it."""
    log = logging.Logger("alone")
    log.addHandler(HANDLER)
    return log


@pytest.fixture
def registered(monkeypatch, log):
    """The same logger, known to `logging` by its name."""
    monkeypatch.setitem(logging.Logger.manager.loggerDict, "alone", log)
    return log


def test_a_line_goes_to_what_is_the_standard_error_now(registered, capsys):
    registered.info("%d products", 3)
    assert capsys.readouterr().err == "alone: 3 products\n"


@pytest.mark.parametrize(
    ("level", "is_written"), [(logging.INFO, False), (logging.ERROR, True)]
)
def test_a_line_that_another_handler_takes_is_left_to_it(
    registered, capsys, level, is_written
):
    other = logging.Handler(level)
    other.emit = lambda record: None
    registered.addHandler(other)
    registered.info("a line")
    assert (capsys.readouterr().err == "alone: a line\n") == is_written


def test_a_handler_that_writes_nothing_takes_no_line(registered, capsys):
    registered.addHandler(logging.NullHandler())
    registered.info("a line")
    assert capsys.readouterr().err == "alone: a line\n"
