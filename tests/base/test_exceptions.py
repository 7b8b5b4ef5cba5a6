"""Errors: one family, caught as what they were, with messages that carry numbers."""

from __future__ import annotations

import importlib

import hifigemm as hg

ERRORS = {
    "HifigemmError": {"Exception"},
    "PlanError": {"HifigemmError", "ValueError"},
    "InexactProductError": {"HifigemmError", "ArithmeticError"},
    "AccuracyError": {"HifigemmError", "ArithmeticError"},
    "VerificationError": {"HifigemmError", "LinAlgError"},
}
"""Classes of hifigemm.base.exceptions, and what a program may catch them as."""


def test_errors_are_caught_as_what_they_were():
    errors = vars(importlib.import_module("hifigemm.base.exceptions"))
    bases = {
        name: {base.__name__ for base in kind.__bases__}
        for name, kind in errors.items()
        if isinstance(kind, type)
    }
    assert bases == ERRORS
    assert all(getattr(hg, name) is errors[name] for name in ERRORS)


def test_exceptions_form_one_family():
    for error in (hg.PlanError, hg.InexactProductError, hg.AccuracyError):
        assert issubclass(error, hg.HifigemmError)
    assert issubclass(hg.PlanError, ValueError)
