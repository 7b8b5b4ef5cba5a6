"""What checks the documentation notices: links, headings, outputs of snippets, pages
that load from elsewhere.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import hifigemm as hg
from plots import diagrams
from tools import check_docs, figures, redirects

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"


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


def test_figures_about_which_a_page_speaks_may_differ_by_a_factor_of_ten(tmp_path):
    page = "```python\nprint('b {}')\n```\n\n<!-- about -->\n\n```text\nb 3e-06\n```\n"
    for figure in ("3e-06", "9e-07", "2e-05"):
        assert not problems_of(tmp_path / "a.md", page.format(figure))
    for figure in ("4e-05", "2e-07", "3e-06 c", "nan"):
        assert problems_of(tmp_path / "a.md", page.format(figure))


def test_blocks_that_need_a_library_run_where_it_is(tmp_path):
    page = "<!-- needs {} -->\n```python\n1 / 0\n```\n"
    assert not problems_of(tmp_path / "a.md", page.format("no_such_library"))
    assert problems_of(tmp_path / "a.md", page.format("numpy"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "library"),
    [
        ("pytorch.md", "torch"),
        ("jax.md", "jax"),
        ("linalg.md", "torch"),
        ("linalg.md", "jax"),
    ],
)
def test_snippets_of_a_library_print_what_their_page_says(
    tmp_path, monkeypatch, page, library
):
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    path = PICTURES.parent / page
    _, blocks = check_docs.split_markdown(path.read_text("utf-8"))
    assert [block.skip for block in blocks if block.language == "python"].count(False)
    assert list(check_docs.failing_blocks(path, blocks)) == []


def test_tables_have_the_figures_of_the_results():
    for name in figures.PAGES:
        path = PICTURES.parents[1] / name
        text = path.read_text("utf-8")
        assert figures.MARK.search(text)
        assert figures.with_figures(text) == text


@pytest.mark.parametrize("name", ["README.md", "paper/paper.md"])
def test_pages_say_when_their_figures_were_measured(name):
    text = (ROOT / name).read_text("utf-8")
    for file in ("headline_cpu", "headline_h200"):
        assert figures.described(file)["date"][:10] in text


@pytest.mark.parametrize("name", ["README.md", "paper/paper.md"])
def test_tables_of_figures_come_from_results(name):
    text = figures.MARK.sub("", (ROOT / name).read_text("utf-8"))
    assert not re.findall(r"^\|.*\|\s*\d[\d.]*\s*\|", text, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["performance.md", "performance-tables.md", "peers.md"]
)
def test_sections_with_figures_name_their_results_or_their_day(name):
    text = (ROOT / "docs" / name).read_text("utf-8")
    for section in re.split(r"^(?=##+ )", text, flags=re.MULTILINE):
        if re.search(r"^\|.*\|\s*\d[\d.]*\s*\|", section, re.MULTILINE):
            assert re.search(r"results/\w+\.csv|2026-\d\d-\d\d", section), section


def test_results_say_when_they_were_measured():
    for path in (ROOT / "results").glob("*.csv"):
        assert figures.described(path.stem)["date"], path


def test_results_behind_the_tables_are_of_this_version():
    names = figures.measured_again()
    assert {"headline_cpu", "client_patches"} <= {*names}
    assert "dgemm_h200" not in names
    for name in names:
        assert figures.described(name)["hifigemm"] == hg.__version__


def test_code_that_is_newer_than_its_figures_is_noticed(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit(name, subject):
        (tmp_path / name).write_text(subject, "utf-8")
        git("add", name)
        git("commit", "-m", subject)
        return git("rev-parse", "HEAD")

    git("init")
    measured = commit("core", "the code")
    (tmp_path / "results").mkdir()
    file = tmp_path / "results" / "times.env.json"
    file.write_text(json.dumps({"commit": measured + "+"}), "utf-8")
    monkeypatch.setattr(figures, "ROOT", tmp_path)

    commit("README.md", "a page")
    assert figures.changes_since("times") == []
    commit("core", "a quicker way")
    (change,) = figures.changes_since("times")
    assert change.startswith("results/times.csv: ")
    assert change.endswith("a quicker way")
    for unknown in ("0" * 40, None):
        file.write_text(json.dumps({"commit": unknown}), "utf-8")
        assert figures.changes_since("times")


def test_every_table_is_on_a_page():
    pages = (ROOT / name for name in figures.PAGES)
    texts = [path.read_text("utf-8") for path in pages]
    marks = {mark[1] for text in texts for mark in figures.MARK.finditer(text)}
    assert marks == {*figures.TABLES}
    assert marks >= figures.MEASURED_ONCE


def test_a_table_with_another_figure_is_noticed():
    text = f"<!-- figures: products -->\n\n{figures.products()}"
    assert figures.with_figures(text) == text
    figure = re.search(r"\| (\d[\d.]+) \|\n", text)[1]
    changed = text.replace(f"| {figure} |", f"| {figure}1 |")
    assert figures.with_figures(changed) == text


def test_links_lead_to_headings(tmp_path):
    (tmp_path / "b.md").write_text(
        '# One `two`, "three"\n\n## Same\n\n## Same\n\n```\n# code\n```\n', "utf-8"
    )
    for anchor in ("one-two-three", "same", "same-1"):
        assert not problems_of(tmp_path / "a.md", f"[b](b.md#{anchor})")
    for target in ("b.md#same-2", "b.md#code", "#none", "c.md"):
        (problem,) = problems_of(tmp_path / "a.md", f"[b]({target})")
        assert problem.endswith(f": {target}")


def test_a_removed_page_leads_to_the_page_that_has_its_contents():
    name, html = redirects.redirect("decisions/a.md", "decisions/b.md#one-two")
    assert name == "decisions/a.html"
    assert 'content="0; url=b.html#one-two"' in html
    assert '<a href="b.html#one-two">' in html
    _, html = redirects.redirect("decisions/a.md", "theory/words.md")
    assert '<a href="../theory/words.html">' in html
    _, html = redirects.redirect("a.md", "theory/words.md")
    assert '<a href="theory/words.html">' in html


def test_redirects_lead_from_removed_pages_to_headings():
    docs = ROOT / "docs"
    assert not [old for old in redirects.REDIRECTS if (docs / old).exists()]
    links = "\n".join(f"[a]({new})" for new in redirects.REDIRECTS.values())
    assert list(check_docs.broken_links(ROOT, docs / "index.md", links)) == []


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


ENTRY = """<div class="doc doc-object doc-function">
<h2 id="{name}" class="doc doc-heading">{name}</h2>
<div class="doc-signature highlight"><pre><code>two(<b>a</b>, *, <b>r</b>=<i>"x"</i>,)</code></pre></div>
<ul><li><b><code>a</code></b> an array</li><li><b><code>r</code></b> a number</li></ul>
<pre><span></span><code>&gt;&gt;&gt; two(a)</code></pre></div>"""
"""What the site has of a function `two`."""


def test_a_public_name_without_an_entry_is_named(tmp_path):
    names = [line.partition("(")[0] for line in check_docs.public_names(ROOT)]
    assert {"hifigemm.matmul", "hifigemm.jax.dot"} <= {*names}
    (tmp_path / "index.html").write_text(ENTRY.format(name="hifigemm.two"), "utf-8")
    assert list(check_docs.missing_names(tmp_path, ["hifigemm.two(a, *, r='x')"])) == []
    (problem,) = check_docs.missing_names(tmp_path, ["hifigemm.one"])
    assert problem.endswith("no entry for hifigemm.one")


def test_an_anchor_before_an_entry_is_its_name():
    page = '<p><a id="hifigemm.two"></a></p>' + ENTRY.format(name="hifigemm.b.two")
    entry = check_docs.entries(page)["hifigemm.two"]
    assert list(check_docs.entry_problems(entry, "hifigemm.two(a, *, r='x')")) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("*, ", "", "the signature is not two(a,*,r='x')"),
        ('<i>"x"</i>', "None", "the signature is not two(a,*,r='x')"),
        ("doc-signature", "doc-source", "the signature is not two(a,*,r='x')"),
        ("<code>r</code>", "r", "no word on r"),
        ("<pre><span></span><code>", "<p><code>", "an example is not code"),
        ("an array", "<blockquote>two(a)</blockquote>", "an example is not code"),
    ],
)
def test_what_an_entry_lacks_is_named(before, after, problem):
    entry = ENTRY.format(name="hifigemm.two")
    assert before in entry
    found = check_docs.entry_problems(
        entry.replace(before, after), "hifigemm.two(a, *, r='x')"
    )
    assert list(found) == [f"hifigemm.two: {problem}"]


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


MAP = ROOT / "docs" / "life-of-a-product.md"
NAMED = re.compile(r"`([\w/]+\.(?:py|c))` \(((?:`[\w.]+`(?:, )?)+)")
"""A file, and behind it the functions and classes in it."""


def files_called(name):
    """The sources that the map may mean: it leaves out folders that its text names."""
    package = Path(hg.__file__).parent
    folders = package, package / "engines" / "cuda"
    return [path for folder in (ROOT, *folders) if (path := folder / name).exists()]


def test_the_map_names_functions_where_they_are():
    named = NAMED.findall(MAP.read_text("utf-8"))
    assert len(named) > 50
    missing = []
    for file, texts in named:
        sources = [path.read_text("utf-8") for path in files_called(file)]
        for name in re.findall(r"[\w.]+", texts):
            word = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b")
            if not any(word.search(source) for source in sources):
                missing.append(f"{file} ({name})")
    assert missing == []
