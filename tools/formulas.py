"""A hook of MkDocs that turns formulas of pages into MathML when the site is built.

Pages write ``$...$`` within a line and ``$$...$$`` on lines of their own, which GitHub
renders. `pymdownx.arithmatex` finds them and leaves their LaTeX in elements of the class
"arithmatex". Browsers show MathML without a script, so the site loads nothing. A formula
that does not convert ends the build.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html import unescape
from typing import Any

FOUND = re.compile(
    r'<(span|div) class="arithmatex">\s*(?:\\\((.*?)\\\)|\\\[(.*?)\\\])\s*</\1>',
    re.DOTALL,
)
UNKNOWN = re.compile(r"<m[a-z]+>(\\[^<]*)<")  # a command that became a name
BAR = re.compile(r"<mo(?: [^>]*)?>(&#x0007C;|&#x02016;)</mo>")  # of a modulus or a norm

CHILDREN = {"mfrac": 2, "mroot": 2, "mover": 2, "munder": 2, "msub": 2, "msup": 2}
CHILDREN |= {"msubsup": 3, "munderover": 3}


def mathml(latex: str, display: bool = False) -> str:
    """The MathML of a formula; ValueError if it has an unknown command or is incomplete."""
    from latex2mathml.converter import convert

    latex = latex.strip()
    if latex.count("{") != latex.count("}"):
        raise ValueError(f"{latex}: braces do not match")
    try:
        math = convert(latex, display="block" if display else "inline")
    except Exception as error:  # the converter has no base class for its errors
        raise ValueError(f"{latex}: {type(error).__name__} {error}") from error
    unknown = UNKNOWN.search(math)
    if unknown:
        raise ValueError(f"{latex}: unknown command {unknown[1]}")
    for element in ET.fromstring(math).iter():
        name = element.tag.rpartition("}")[2]
        if len(element) != CHILDREN.get(name, len(element)):
            raise ValueError(f"{latex}: an argument of {name} is missing")
    # Between two letters a browser takes a bar for a relation, and puts space around it.
    math = BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', math)
    # The asterisk of ASCII is raised itself; that of operators is not.
    return math.replace("&#x0002A;", "&#x02217;")


def with_mathml(html: str) -> str:
    """A page with MathML in place of the LaTeX that arithmatex left."""

    def converted(match: re.Match[str]) -> str:
        latex = match[2] if match[3] is None else match[3]
        math = mathml(unescape(latex), display=match[3] is not None)
        return f'<{match[1]} class="formula">{math}</{match[1]}>'

    html = FOUND.sub(converted, html)
    if 'class="arithmatex"' in html:
        raise ValueError("a formula has another form than \\(...\\) or \\[...\\]")
    return html


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Called by MkDocs with the HTML of each page."""
    from mkdocs.exceptions import PluginError

    try:
        return with_mathml(html)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
