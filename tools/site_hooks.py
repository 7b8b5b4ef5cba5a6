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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
BIBLIOGRAPHY = "bibliography.md"
DEVELOPERS = "Develop"
"""Title of the last tab of the site, whose pages the search leaves out."""

REDIRECTS = {
    "decisions/blocks-of-four.md": "decisions/words.md#blocks-of-four",
    "decisions/correct-waits.md": "decisions/choice-of-moduli.md#correct-waits",
    "decisions/device-chooses.md": "decisions/choice-of-moduli.md#the-device-chooses",
    "decisions/double-double-sums.md": "decisions/cpu-sums.md#double-double-sums",
    "decisions/error-ratio.md": "decisions/choice-of-moduli.md#error-ratio",
    "decisions/exact-product-as-last-rung.md": "decisions/choice-of-moduli.md#exact-product-as-the-last-rung",
    "decisions/five-products.md": "decisions/cpu-sums.md#five-products",
    "decisions/flushing-threads.md": "decisions/thread-modes.md#flushing-threads",
    "decisions/freed-memory.md": "decisions/cpu-sums.md#freed-memory",
    "decisions/guessing-ahead.md": "decisions/choice-of-moduli.md#correct-waits",
    "decisions/nearest-in-scheme-2.md": "decisions/residues.md#rounding-to-nearest",
    "decisions/norms-of-integers.md": "decisions/residues.md#norms-of-integers",
    "decisions/odd-fp64-products.md": "decisions/choice-of-moduli.md#odd-fp64-products",
    "decisions/one-rounding.md": "decisions/rounding-once.md#one-rounding",
    "decisions/outliers.md": "decisions/choice-of-moduli.md#outliers",
    "decisions/products-by-diagonal.md": "decisions/slices.md#products-by-diagonal",
    "decisions/promises-by-entry.md": "decisions/rounding-once.md#promises-by-entry",
    "decisions/residues-in-parts.md": "decisions/residues.md#residues-in-parts-on-a-cpu",
    "decisions/rounding-modes.md": "decisions/thread-modes.md#rounding-modes",
    "decisions/roundings-of-one-product.md": "decisions/rounding-once.md#pairs-and-c-on-gpus",
    "decisions/seven-products.md": "decisions/residues.md#seven-products",
    "decisions/short-float32-products.md": "decisions/choice-of-moduli.md#short-float32-products",
    "decisions/slices-by-rounding.md": "decisions/slices.md#slices-by-rounding",
    "decisions/three-words.md": "decisions/cpu-sums.md#three-words",
    "decisions/unary-functions.md": "decisions/thread-modes.md#unary-functions",
    "decisions/weaker-requests-on-a-cpu.md": "decisions/cpu-sums.md#weaker-requests",
    "decisions/word-scaling.md": "decisions/words.md#word-scaling",
    "decisions/zeros-of-tensor-cores.md": "decisions/words.md#zeros-of-tensor-cores",
    "decisions/residues-travel.md": "decisions/meshes.md#how-do-partial-sums-and-operands-travel",
    "decisions/counts-on-meshes.md": "decisions/meshes.md#how-do-the-ranks-choose-the-number-of-moduli",
    "decisions/copies-between-gpus.md": "decisions/meshes.md#how-do-panels-reach-the-ranks-that-need-them",
    "decisions/words-in-shared-memory.md": "decisions/meshes.md#how-do-ranks-of-one-host-exchange-small-messages",
    "decisions/emulated-placements.md": "decisions/meshes.md#how-do-scopes-multiply-stacks-and-vectors",
    "decisions/compiled-frames.md": "decisions/pytorch-and-jax.md#how-does-a-product-stay-out-of-compiled-frames",
    "decisions/wrapped-tensors.md": "decisions/pytorch-and-jax.md#what-happens-inside-transforms-of-torchfunc",
    "decisions/float32-precision.md": "decisions/pytorch-and-jax.md#how-is-pytorchs-fp32-precision-read",
    "decisions/unreached-operations.md": "decisions/pytorch-and-jax.md#how-does-a-scope-notice-other-operations",
    "decisions/jax-callbacks.md": "decisions/pytorch-and-jax.md#when-do-jax-callbacks-restore-the-threads-mode",
    "decisions/rooms.md": "decisions/house.md#where-does-a-module-go",
    "decisions/schemes-in-plans.md": "decisions/house.md#why-is-planscheme-of-type-any",
    "decisions/workshop.md": "decisions/house.md#what-may-the-workshop-import",
    "decisions/timing-on-one-card.md": "decisions/house.md#how-are-times-compared",
    "decisions/axis-order.md": "decisions/residue-kernels.md#order-of-the-axes",
    "decisions/eight-bit-slices.md": "decisions/slice-kernels.md#eight-bits-in-a-slice",
    "decisions/error-ratio-tiles.md": "decisions/inspecting-operands.md#error-ratio",
    "decisions/fp16-tile-end.md": "decisions/product-kernels.md#end-of-an-fp16-tile",
    "decisions/fp64-tiles.md": "decisions/product-kernels.md#fp64-tiles",
    "decisions/norms-ahead-of-residues.md": "decisions/residue-kernels.md#norms-and-residues-in-one-launch",
    "decisions/outer-extremes.md": "decisions/inspecting-operands.md#extremes-along-an-outer-axis",
    "decisions/reconstruction.md": "decisions/residue-kernels.md#reconstruction",
    "decisions/required-bits.md": "decisions/inspecting-operands.md#required-bits",
    "decisions/residue-arithmetic.md": "decisions/residue-kernels.md#arithmetic-of-a-residue",
    "decisions/residue-pitch.md": "decisions/residue-kernels.md#pitch",
    "decisions/residue-tiles.md": "decisions/residue-kernels.md#tiles",
    "decisions/slice-products.md": "decisions/slice-kernels.md#slices-in-the-residue-kernel",
    "decisions/slices-in-floating-point.md": "decisions/slice-kernels.md#floating-point-slices",
    "decisions/uniform-branches.md": "decisions/product-kernels.md#uniform-branches",
    "decisions/word-tiles.md": "decisions/product-kernels.md#tiles-of-words",
    "decisions/inverse-by-halves.md": "decisions/gpu-structure.md#large-inverses-by-halves",
    "decisions/plain-maths-on-tensors.md": "decisions/gpu-structure.md#plain-maths-on-tensors",
    "decisions/block-by-block.md": "decisions/gpu-structure.md#products-in-blocks",
    "decisions/launches-by-driver.md": "decisions/gpu-launches.md#launches-by-the-cuda-driver",
    "decisions/records-of-arguments.md": "decisions/gpu-launches.md#records-of-arguments",
    "decisions/few-kernels.md": "decisions/gpu-compilation.md#one-kernel-for-all-layouts",
    "decisions/compile-side-by-side.md": "decisions/gpu-compilation.md#kernels-are-compiled-in-parallel",
    "decisions/idle-launches.md": "decisions/gpu-launches.md#idle-launches",
    "decisions/one-kernel.md": "decisions/gpu-structure.md#one-kernel-for-each-step",
    "decisions/cutile.md": "decisions/gpu-structure.md#gluon-and-triton-not-cutile",
}
"""The new address of each page of docs/ that was removed: "old.md": "new.md#heading"."""

MOVED = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={address}">
<title>This page has moved</title>
</head>
<body><article><p>This page has moved: <a href="{address}">{address}</a></p></article></body>
</html>
"""
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


def notebooks_module() -> Any:
    """`tools.notebooks`; MkDocs loads this file by its path and restores sys.path."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tools import notebooks

    return notebooks


def redirect(old: str, new: str) -> tuple[str, str]:
    """The file at the address of a removed page, and its HTML, which leads to `new`."""
    page, mark, heading = new.partition("#")
    target = posixpath.relpath(page, posixpath.dirname(old) or ".")
    address = f"{target.removesuffix('.md')}.html{mark}{heading}"
    return f"{old.removesuffix('.md')}.html", MOVED.format(address=address)


def on_files(files: Files, config: Any) -> Files:
    """Add the bibliography, the notebooks, the pictures of results/ and the redirects."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    notebooks = notebooks_module()
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

    return notebooks_module().LINK.sub(r"\1.md", LINK.sub(leads, markdown))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Make links of citation keys, and one text of those that parameters share."""
    from mkdocs.utils import get_relative_url

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
