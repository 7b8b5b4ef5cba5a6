"""Plans and reports as text, JSON and a table of a notebook."""

from __future__ import annotations

import math
from typing import Any


class Shown:
    """A record that prints itself line by line; classes give `_lines`, `_line` and
    `to_dict`.
    """

    def _line(self) -> str:
        """All that matters in one line, which a terminal shows."""
        raise NotImplementedError

    def _lines(self) -> list[tuple[str, str]]:
        """Name and text of each line."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The public attributes as numbers, texts, lists and dicts."""
        raise NotImplementedError

    def to_json(self) -> str:
        """`to_dict` as JSON. An infinite bound, which promises nothing, is null there:
        JSON has no infinity.
        """
        import json

        return json.dumps(_finite(self.to_dict()), allow_nan=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._line()}>"

    def __str__(self) -> str:
        lines = self._lines()
        width = max(len(name) for name, _ in lines)
        rows = [f"  {name:<{width}}  {text}" for name, text in lines]
        return "\n".join([type(self).__name__, *rows])

    def _repr_html_(self) -> str:
        """A table, which notebooks show instead of the text."""
        from html import escape

        rows = [
            f'<tr><th style="text-align: left">{escape(name)}</th>'
            f'<td style="text-align: left">{escape(text)}</td></tr>'
            for name, text in self._lines()
        ]
        title = f'<caption style="text-align: left">{type(self).__name__}</caption>'
        return "\n".join(["<table>", title, *rows, "</table>"])


def _finite(value: Any) -> Any:
    """The value with None for every number that JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(x) for name, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
