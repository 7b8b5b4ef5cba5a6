"""What checks the documentation notices: links, headings, outputs of snippets, pages
that load from elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from plots import diagrams
from tools import check_docs

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def problems_of(page, text):
    page.write_text(text, "utf-8")
    prose, blocks = check_docs.split_markdown(text)
    return [
        *check_docs.broken_links(page.parent, page, prose),
        *check_docs.failing_blocks(page, blocks),
    ]


@pytest.mark.parametrize("draw", diagrams.PICTURES, ids=lambda draw: draw.__name__)
def test_drawings_are_those_of_the_script(draw):
    assert (PICTURES / f"{draw.__name__.replace('_', '-')}.svg").read_text(
        "utf-8"
    ) == str(draw())


def test_a_text_block_behind_a_snippet_is_what_it_prints(tmp_path):
    snippet = "```python\nprint('one 2.5 ms')\n```\n\n```text\n{}\n```\n"
    assert not problems_of(tmp_path / "a.md", snippet.format("one ... ms"))
    assert not problems_of(
        tmp_path / "a.md",
        snippet.format("two").replace("\n\n```text", "\n\nElsewhere:\n\n```text"),
    )
    (problem,) = problems_of(tmp_path / "a.md", snippet.format("two"))
    assert problem.endswith("a.md:2: python block prints\n    one 2.5 ms\n")


def test_links_lead_to_headings(tmp_path):
    (tmp_path / "b.md").write_text(
        '# One `two`, "three"\n\n## Same\n\n## Same\n\n```\n# code\n```\n', "utf-8"
    )
    for anchor in ("one-two-three", "same", "same-1"):
        assert not problems_of(tmp_path / "a.md", f"[b](b.md#{anchor})")
    for target in ("b.md#same-2", "b.md#code", "#none", "c.md"):
        (problem,) = problems_of(tmp_path / "a.md", f"[b]({target})")
        assert problem.endswith(f": {target}")


def test_links_to_the_repository_are_links_to_its_files(tmp_path):
    own = "https://github.com/hifigemm/hifigemm/blob/main/"
    assert not problems_of(
        tmp_path / "a.md",
        f"[a]({own}a.md) [b](https://github.com/another/blob/main/b.md)",
    )
    (problem,) = problems_of(tmp_path / "a.md", f"[b]({own}b.md)")
    assert problem.endswith("b.md")


def test_a_site_that_loads_from_elsewhere_is_refused(tmp_path, capsys):
    page = "<html><body><article>{}</article></body></html>"
    (tmp_path / "index.html").write_text(
        page.format('<a href="https://example.org">elsewhere</a>'), "utf-8"
    )
    assert check_docs.check_site(tmp_path) == 0
    (tmp_path / "index.html").write_text(
        page.format('<script src="https://example.org/x.js"></script>'), "utf-8"
    )
    assert check_docs.check_site(tmp_path) == 1
    assert "loads <script" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('<p style="width: 500px">wide</p>', "wider than the window"),
        ('<p style="font-size: 9px">small</p>', "letters of 9 px"),
        ('<img src="none.png" alt="nothing">', "no picture"),
        (
            "<script>fetch('https://example.org/stars')</script>",
            "asks for https://example.org/stars",
        ),
    ],
)
def test_a_page_that_is_hard_to_read_is_refused(tmp_path, capsys, body, found):
    with check_docs.browser() as opened:
        if opened is None:
            pytest.skip("no browser")
    head = '<meta name="viewport" content="width=device-width">'
    (tmp_path / "index.html").write_text(
        f"<html><head>{head}</head><body><article>{body}</article></body></html>",
        "utf-8",
    )
    assert check_docs.check_site(tmp_path) == 1
    assert found in capsys.readouterr().out
