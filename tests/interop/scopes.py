"""What tests of scopes share: a product as it should be, and a scope without any."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

import hifigemm as hg

CORRECT = {"accuracy": "correct"}


@contextmanager
def scope_without_products(*policy, **options):
    """A scope at whose end it is said that PyTorch multiplied nothing."""
    message = "no product of PyTorch was seen in this scope"
    with (
        pytest.warns(UserWarning, match=message),
        hg.emulate(*policy, **options) as products,
    ):
        yield products


def exact(a, b):
    return hg.matmul(a, b, **CORRECT)
