"""Hooks of MkDocs, by which pages that read well on GitHub become those of the site.

- Links from docs/ to files outside of it lead to the repository; pictures of results/
  become part of the site.
- Notebooks are executed and become pages; one that prints something else than it holds
  ends the build.
- Citation keys such as [OUI25], in pages and docstrings, lead to a page that is made of
  docs/references.bib.
- The address of a page that was removed leads to the page that has its contents.
- The tab for developers is not in the search.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs imports this file by its path

from tools import notebooks  # noqa: E402
from tools.redirects import REDIRECTS, redirect  # noqa: E402

BIBLIOGRAPHY = "bibliography.md"
DEVELOPERS = "Develop"
"""Title of the last tab of the site, whose pages the search leaves out."""

PICTURES = (".png", ".svg")
ENTRY = re.compile(r"^@(\w+)\{\s*([^,\s]+),(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*)\},?\s*$", re.MULTILINE)
LINK = re.compile(r"(\]\()(\.\./[^)\s#]+)(#[^)\s]*)?(?=\))")
ACCENTS = {r"{\'e}": "é", r"{\l}": "ł", r"\&": "&", "--": "\N{EN DASH}", "$": ""}
# elements in which a key stays as it is
SKIPPED = ("pre", "code", "a", "h1", "h2", "h3")
TAGS = re.compile(r"(<[^>]+>)")
CITATION = re.compile(r"\[([^\[\]]{3,80})\]")
KEY = re.compile(r"[A-Z][A-Za-z]+\d\d[a-z]?")
ITEM = r'<li class="doc-section-item field-body">\s*<b><code>'
SAME_TEXT = re.compile(
    rf"({ITEM})([\w, ]+)</code></b>((?:(?!<li ).)*?</li>)\s*{ITEM}(\w+)</code></b>\3",
    re.DOTALL,
)
"""Two parameters of a docstring that one text describes, "a, b : array", which the site
takes for two texts.
"""


def references(bib: str) -> dict[str, dict[str, str]]:
    """The fields of each entry by its key, without the marks of LaTeX."""
    return {
        key: {name: plain(value) for name, value in FIELD.findall(body)}
        for _, key, body in ENTRY.findall(bib)
    }


def plain(text: str) -> str:
    """LaTeX as plain text."""
    for mark, letter in ACCENTS.items():
        text = text.replace(mark, letter)
    return re.sub(r"[{}]", "", text)


def author(name: str) -> str:
    """A name with its given names first."""
    family, comma, given = name.partition(", ")
    return f"{given} {family}" if comma else name


def cited(key: str, fields: Mapping[str, str]) -> str:
    """One entry of the bibliography as a paragraph of Markdown."""
    names = [author(name) for name in fields["author"].split(" and ")]
    where = [
        fields[name]
        for name in ("journal", "booktitle", "series", "publisher")
        if name in fields
    ]
    volume = fields.get("volume", "") + (
        f"({fields['number']})" if "number" in fields else ""
    )
    where += [
        text for text in (volume, fields.get("pages", ""), fields["year"]) if text
    ]
    links = []
    if "doi" in fields:
        links.append(f"[doi:{fields['doi']}](https://doi.org/{fields['doi']})")
    number = fields.get("eprint") or fields.get("note", "").removeprefix("arXiv:")
    if number:
        links.append(f"[arXiv:{number}](https://arxiv.org/abs/{number})")
    text = f"**[{key}]** {', '.join(names)}: *{fields['title']}*. {', '.join(where)}. {', '.join(links)}"
    return f"{text}\n{{ #{key.lower()} }}"


def bibliography(bib: str) -> str:
    """The page of all references."""
    entries = [cited(key, fields) for key, fields in sorted(references(bib).items())]
    return "\n\n".join(
        [
            "# References",
            "The papers behind the library, by the keys that pages and docstrings cite.",
            *entries,
        ]
    )


def on_files(files: Files, config: Any) -> Files:
    """Add the bibliography, the notebooks, the pictures of results/ and the redirects."""
    bib = (ROOT / "docs" / "references.bib").read_text("utf-8")
    files.append(File.generated(config, BIBLIOGRAPHY, content=bibliography(bib)))
    for picture in sorted(
        p for p in (ROOT / "results").iterdir() if p.suffix in PICTURES
    ):
        name = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    for path in notebooks.NOTEBOOKS:
        notebook = notebooks.executed(path)
        problems = list(notebooks.differences(path, notebook))
        if problems:
            raise PluginError("\n".join(problems))
        text, figures = notebooks.page(notebook, path.stem)
        name = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, name, content=text))
        for file, data in figures.items():
            name = f"notebooks/{file}"
            files.append(File.generated(config, name, content=data))
    for old, new in REDIRECTS.items():
        name, html = redirect(old, new)
        files.append(File.generated(config, name, content=html))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the repository, those to pictures of results/ to their
    copies, and those to notebooks to their pages. Keep pages for developers out of the
    search.
    """
    if page.ancestors and page.ancestors[-1].title == DEVELOPERS:
        page.meta["search"] = {"exclude": True}
    folder = posixpath.dirname(page.file.src_uri)

    def leads(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join("docs", folder, target))
        if path.startswith("docs/"):
            return match[0]
        if path.startswith("results/") and path.endswith(PICTURES):
            return f"{opening}{posixpath.relpath(path, folder or '.')}"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{opening}{config.extra['repository']}/{kind}/main/{path}{anchor}"

    return notebooks.LINK.sub(r"\1.md", LINK.sub(leads, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Make links of citation keys, and one text of those that parameters share."""
    shared = 1
    while shared:
        html, shared = SAME_TEXT.subn(r"\1\2, \4</code></b>\3", html)
    known = references((ROOT / "docs" / "references.bib").read_text("utf-8"))
    target = get_relative_url(files.get_file_from_path(BIBLIOGRAPHY).url, page.url)
    if page.file.src_uri == BIBLIOGRAPHY:
        return html

    def leads(match: re.Match[str]) -> str:
        key = match[0]
        return f'<a href="{target}#{key.lower()}">{key}</a>' if key in known else key

    def cites(match: re.Match[str]) -> str:
        return KEY.sub(leads, match[0])

    pieces, inside = TAGS.split(html), []
    for i, piece in enumerate(pieces):
        tag = re.match(r"<(/?)(\w+)", piece)
        if tag and tag[2] in SKIPPED:
            inside = inside[:-1] if tag[1] else [*inside, tag[2]]
        elif not tag and not inside:
            pieces[i] = CITATION.sub(cites, piece)
    return "".join(pieces)
