"""Formulas of pages become MathML, or end the build."""

from __future__ import annotations

import re

import pytest

from tools import check_docs, formulas


def test_formulas_of_pages_become_mathml():
    pytest.importorskip("latex2mathml")
    page = (
        r'<p>a <span class="arithmatex">\(x &lt; \gamma_k\)</span></p>'
        '\n<div class="arithmatex">\\[\n\\sum_h a_h\n\\]</div>'
    )
    html = formulas.with_mathml(page)
    assert html.count("<math ") == 2
    assert 'display="inline"' in html
    assert 'display="block"' in html
    assert "arithmatex" not in html
    assert "\\" not in html


@pytest.mark.parametrize("latex", [r"y \ge |R q|", r"c = \lVert R \rVert"])
def test_bars_have_no_space_around_them(latex):
    pytest.importorskip("latex2mathml")
    math = formulas.mathml(latex)
    assert math.count('lspace="0" rspace="0"') == 2


def test_asterisks_of_superscripts_are_raised_once():
    pytest.importorskip("latex2mathml")
    assert "<msup><mi>x</mi><mo>&#x02217;</mo></msup>" in formulas.mathml(r"x^\ast - x")


@pytest.mark.parametrize("latex", [r"\nosuchcommand{x}", r"x^{", r"\frac{a}"])
def test_a_formula_that_does_not_convert_raises(latex):
    pytest.importorskip("latex2mathml")
    with pytest.raises(ValueError, match=re.escape(latex)):
        formulas.mathml(latex)


def test_formulas_hold_neither_links_nor_citations(tmp_path):
    text = "$A[i](j)$ and $$\n\\max [ABC99]\n$$\n\n5 $ and [a](none.md) $ more\n"
    prose, _ = check_docs.split_markdown(text)
    assert prose.count("\n") == text.count("\n") - 1
    page = tmp_path / "a.md"
    page.write_text(text, "utf-8")
    (problem,) = check_docs.broken_links(tmp_path, page, prose)
    assert problem.endswith("a.md:5: no such file: none.md")
    assert list(check_docs.unknown_keys(page, prose, set())) == []
