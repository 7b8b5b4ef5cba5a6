"""What `dir` and `help` show of a module."""

from __future__ import annotations

import inspect

from hifigemm.base.public import missing, shown, without_annotations


def product(
    a: int, /, b: str | None = None, *args: float, c: bool, **options: int
) -> int:
    return a


def test_only_public_names_are_listed():
    names = {"__all__": ["product", "b", "Class"], "b": 1, "other": 2}
    names |= {"product": product, "Class": int}
    assert shown(names)() == ["Class", "b", "product"]


def test_a_signature_has_names_and_defaults_alone():
    assert str(without_annotations(product)) == "(a, /, b=None, *args, c, **options)"


def test_help_has_that_signature():
    shown({"__all__": ["product"], "product": product})
    assert "'" not in str(inspect.signature(product))


def test_a_missing_name_has_a_hint_where_there_is_one():
    assert str(missing("m", "f")) == "module 'm' has no attribute 'f'"
    assert str(missing("m", "f", "n.f")).endswith("'f'; did you mean n.f?")
    assert "einsum('i->', x" in str(missing("m", "sum"))
