"""Versions of the libraries that hifigemm is tested with; README, docs, Makefile and CI
say the same.

A test compares them, and `hifigemm.info()` prints them. Other versions from the oldest
one on are taken too.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """The oldest and the newest version of a library that the tests ran with."""

    oldest: str
    newest: str

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


TESTED = {
    "numpy": Range("2.0", "2.5.2"),
    "torch": Range("2.11.0", "2.15.0"),
    "triton": Range("3.6.0", "3.9.0"),
    "jax": Range("0.10.2", "0.11.2"),
}
