"""Check the documentation. Usage: python tools/check_docs.py [ROOT], or --site FOLDER
for the site that was built.

- Links of README, CONTRIBUTING, CHANGELOG and docs/ lead to existing files and
  headings; so do those to the repository.
- The ```python blocks of README and docs/ run, in order, one namespace a file;
  `<!-- skip -->` before a block skips it, `<!-- needs NAME -->` where that module cannot
  be imported. A ```text block behind one is what it prints, `...` standing for anything;
  with `<!-- about -->` between them figures may differ by a factor of ten.
- Keys such as [MOOI20], in these files and in docstrings and comments under src/, stand
  in docs/references.bib.
- Pages of the site load nothing from elsewhere, and every public name has an entry on one
  of them, with its signature and its parameters, and with its examples as code.
- Where Playwright and a browser are installed, no page is wider than a phone or a
  desktop, no letter is smaller than `LEAST_LETTERS`, every picture is shown, and the
  search finds a public name when the site is opened from its folder.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import doctest
import importlib.util
import io
import os
import re
import shutil
import sys
import tempfile
import textwrap
import tokenize
import traceback
from collections.abc import Iterator, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w+-]*)")
LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)|^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)|(?:src|href)=\"([^\"]+)\"",
    re.MULTILINE,
)
BRACKET = re.compile(r"(?<![\w\])])\[([^\[\]]{3,80})\]")  # not a subscript
# not [FP16] and its like
KEY = re.compile(r"(?!(?:BF|FP|TF)\d\d)[A-Z][A-Za-z]+\d\d[A-Za-z]?")
NEEDS = re.compile(r"<!-- needs (\w+) -->")
ABOUT = "<!-- about -->"
FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
FORMULA = re.compile(
    r"\$\$.*?\$\$|(?<![\\$\w])\$(?=[^\s$])(?:(?!\n\s*\n)[^$])*?(?<=[^\s\\])\$(?![\w$])",
    re.DOTALL,
)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
REPOSITORY = re.compile(
    r"https://(?:github\.com/hifigemm/hifigemm/(?:blob|tree)|raw\.githubusercontent\.com/hifigemm/hifigemm)/main/"
)
FROM_ELSEWHERE = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//[^\"]*|<link[^>]+rel=\"(?:stylesheet|preconnect)\"[^>]+//[^>]*"
)

WIDTHS = {"phone": (360, 740), "desktop": (1280, 900)}
LEAST_LETTERS = 10.5
"""CSS pixels of the smallest letters of text, and of those in drawings, which have 14
units of 480.
"""
SEARCH_MILLISECONDS = 20_000
ADDRESS = "http://site/"
BROWSERS = "chromium", "chromium-browser", "google-chrome"
_LAYOUT = """() => {
    const article = document.querySelector("article"), found = [];
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    if (wide > 0) found.push(`${wide} px wider than the window`);
    for (const image of article.querySelectorAll("img")) {
        const least = image.src.endsWith(".svg") ? 14 * image.clientWidth / 480 : LEAST;
        if (!image.naturalWidth) found.push(`no picture: ${image.src}`);
        else if (least < LEAST) found.push(`letters of ${least.toFixed(1)} px in ${image.src}`);
        if (!image.alt) found.push(`no words for ${image.src}`);
    }
    const walk = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const size = parseFloat(getComputedStyle(walk.currentNode.parentElement).fontSize);
        const words = walk.currentNode.textContent.trim();
        if (words && size < LEAST) found.push(`letters of ${size} px: ${words.slice(0, 40)}`);
    }
    return found;
}"""


class Block(NamedTuple):
    language: str
    line: int  # of the first line of code
    skip: bool
    code: str
    output: str | None  # the text block right behind it
    about: bool = False  # figures of the output are orders of magnitude


def split_markdown(text: str) -> tuple[str, list[Block]]:
    """Return the prose, with code and formulas blanked out so that line numbers stay, and
    the fenced blocks.
    """
    prose, blocks, code, fence, before, language = [], [], [], None, "", ""
    behind_code = False
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        prose.append("" if fence or mark else re.sub(r"`[^`]*`", "", line))
        if fence is None and mark:
            fence, language, code = mark[1], mark[2], []
        elif fence is None:
            before = line.strip() or before
            behind_code = behind_code and line.strip() in ("", ABOUT)
        elif mark and mark[1].startswith(fence) and not mark[2]:
            source = textwrap.dedent("\n".join(code))
            if language == "text" and behind_code:
                blocks[-1] = blocks[-1]._replace(output=source, about=before == ABOUT)
            else:
                blocks.append(
                    Block(
                        language,
                        number - len(code),
                        is_skipped(before),
                        source,
                        None,
                    )
                )
            fence, before, behind_code = None, "", language == "python"
        else:
            code.append(line)
    text_only = FORMULA.sub(lambda match: "\n" * match[0].count("\n"), "\n".join(prose))
    return text_only, blocks


def is_skipped(line: str) -> bool:
    """True if the line in front of a block says that it is not to run, or not here."""
    needed = NEEDS.fullmatch(line)
    if needed is not None:
        return importlib.util.find_spec(needed[1]) is None
    return line == "<!-- skip -->"


def is_output(stated: str, found: str, about: bool) -> bool:
    """True if that is what a block printed."""
    if about:
        pairs = list(zip(FIGURE.findall(stated), FIGURE.findall(found)))
        same_size = all(
            float(x) / 10 <= float(y) <= float(x) * 10 for x, y in pairs if "e" in x
        )
        stated, found = FIGURE.sub("#", stated), FIGURE.sub("#", found)
        return same_size and stated == found
    return doctest.OutputChecker().check_output(stated, found, doctest.ELLIPSIS)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: dict[str, int] = {}
    fenceless = re.sub(
        r"^\s*(`{3,}).*?^\s*\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL
    )
    for title in HEADING.findall(fenceless):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if i == 0 else f"{slug}-{i}"
        for slug, count in found.items()
        for i in range(count + 1)
    }


def broken_links(root: Path, path: Path, prose: str) -> Iterator[str]:
    for match in LINK.finditer(prose):
        target = next(filter(None, match.groups()))
        local, is_own = REPOSITORY.subn("", target)
        if not is_own and re.match(r"[a-z][a-z0-9+.-]*:|//", target):
            continue
        file, _, anchor = unquote(local).partition("#")
        page = (
            (root if is_own else path.parent) / file.partition("?")[0] if file else path
        )
        where = f"{path}:{prose.count(chr(10), 0, match.start()) + 1}"
        if not page.exists():
            yield f"{where}: no such file: {target}"
        elif (
            anchor
            and page.suffix == ".md"
            and anchor not in anchors(page.read_text("utf-8"))
        ):
            yield f"{where}: no such heading: {target}"


def failing_blocks(path: Path, blocks: list[Block]) -> Iterator[str]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.language != "python" or block.skip:
            continue
        printed = io.StringIO()
        try:
            code = compile(
                "\n" * (block.line - 1) + block.code,
                str(path),
                "exec",
                dont_inherit=True,
            )
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
        except (Exception, SystemExit) as error:
            own = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == str(path)
            ]
            line = (
                error.lineno
                if isinstance(error, SyntaxError)
                else [block.line, *own][-1]
            )
            yield f"{path}:{line}: python block fails: {type(error).__name__}: {error}"
            return  # the next blocks build on this one
        stated, found = (
            f"{text.rstrip()}\n" for text in (block.output or "", printed.getvalue())
        )
        if block.output is not None and not is_output(stated, found, block.about):
            yield f"{path}:{block.line}: python block prints\n{textwrap.indent(found, '    ')}"


def unknown_keys(
    path: Path, text: str, known: set[str], first: int = 1
) -> Iterator[str]:
    for match in BRACKET.finditer(text):
        for word in map(str.strip, re.split("[,;]", match[1])):
            if KEY.fullmatch(word) and word not in known:
                yield f"{path}:{first + text.count(chr(10), 0, match.start())}: [{word}] is not in docs/references.bib"


def docstrings_and_comments(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def check_sources(root: Path) -> int:
    """Print what is wrong with the pages and the keys; the exit code."""
    runnable = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    pages = [*runnable, root / "CONTRIBUTING.md", root / "CHANGELOG.md"]
    bib = root / "docs" / "references.bib"
    problems = [f"{path}: missing" for path in [*pages, bib] if not path.exists()]
    keys = (
        re.findall(r"^@\w+\{\s*([^,\s]+)", bib.read_text("utf-8"), re.MULTILINE)
        if bib.exists()
        else []
    )
    problems += [
        f"{bib}: {key} is defined twice"
        for key in sorted(set(keys))
        if keys.count(key) > 1
    ]
    for page in filter(Path.exists, pages):
        prose, blocks = split_markdown(page.read_text("utf-8"))
        problems += [
            *broken_links(root, page, prose),
            *unknown_keys(page, prose, set(keys)),
        ]
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)  # blocks may write files
            problems += failing_blocks(page, blocks if page in runnable else [])
            os.chdir(root)
    for module in sorted((root / "src").glob("**/*.py")):
        for line, text in docstrings_and_comments(module.read_text("utf-8")):
            problems += unknown_keys(module, text, set(keys), line)
    print(
        "\n".join(problems).replace(f"{root}/", "")
        or f"docs: {len(pages)} pages are in order"
    )
    return 1 if problems else 0


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A browser without a window; None where Playwright or every browser is missing."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        yield None
        return
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)), None)
        try:
            # for root, who has none
            found = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox"]
            )
        except Error:
            yield None
            return
        yield found
        found.close()


def seen_problems(page: Any, site: Path, path: str) -> Iterator[str]:
    """What a browser sees on a page of the site in a folder, which is served to it from
    there and nowhere else.
    """
    elsewhere: set[str] = set()

    def answer(route: Any) -> None:
        url = route.request.url.partition("?")[0]
        file = site / unquote(url.removeprefix(ADDRESS))
        if url.startswith(ADDRESS) and file.is_file():
            route.fulfill(path=file)
        else:
            elsewhere.add(url)
            route.abort()

    page.route("**/*", answer)
    for name, (width, height) in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        page.goto(ADDRESS + path)
        for problem in page.evaluate(_LAYOUT.replace("LEAST", str(LEAST_LETTERS))):
            yield f"{path}: {name}: {problem}"
    page.wait_for_load_state("networkidle")
    yield from (f"{path}: asks for {url}" for url in sorted(elsewhere))


def search_problems(page: Any, site: Path, name: str) -> Iterator[str]:
    """What a reader meets who opens the folder of the site and searches for a name."""
    from playwright.sync_api import TimeoutError

    for width, height in WIDTHS.values():
        page.set_viewport_size({"width": width, "height": height})
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")  # opens the search
        page.keyboard.type(name)
        entry = page.locator(f".md-search-result__link[href*='#{name}']").first
        try:
            entry.wait_for(state="attached", timeout=SEARCH_MILLISECONDS)
        except TimeoutError:
            yield f"search from a folder, {width} px: {name} is not found"


def public_names(root: Path) -> list[str]:
    """The public interface: names such as hifigemm.numpy.dot, and how each is called."""
    signatures = root / "tests" / "data" / "public_signatures.txt"
    return signatures.read_text("utf-8").splitlines()


def entries(html: str) -> dict[str, str]:
    """The part of an API page about each name, by its anchor.

    An anchor of a heading belongs to the entry of that heading, any other one to the
    entry behind it.
    """
    parts = re.split(r"(?=<div class=\"doc doc-object )", html)
    by_name = {}
    for part, behind in zip(parts, [*parts[1:], ""]):
        for tag, name in re.findall(r"<(\w+)[^>]*\bid=\"(hifigemm[^\"]*)\"", part):
            by_name[name] = part if tag.startswith("h") else behind
    return by_name


def text_of(html: str) -> str:
    """The text of a piece of a page, without blanks and with one kind of quotes."""
    text = unescape(re.sub(r"<[^>]*>", "", html))
    text = re.sub(r"<class 'numpy\.(\w+)'>", r"np.\1", text)
    return re.sub(r"\s", "", text).replace('"', "'").replace(",)", ")")


def entry_problems(entry: str, line: str) -> Iterator[str]:
    """What the entry of a public name lacks; `line` is how the name is called."""
    name, parenthesis, _ = line.partition("(")
    called = re.search(r"(?s)<div class=\"doc-signature.*?</div>", entry)
    if parenthesis:
        stated = text_of(escape(line.removeprefix(name.rpartition(".")[0] + ".")))
        if called is None or text_of(called[0]) != stated:
            yield f"{name}: the signature is not {stated}"
        described = re.findall(r"<b><code>([^<]*)</code></b>", entry)
        names = re.split(", ", ", ".join(described).replace("*", ""))
        for parameter in re.findall(r"[(,] ?\**(\w+)(?=[,=)])", line):
            if parameter not in names:
                yield f"{name}: no word on {parameter}"
    prose = re.sub(r"(?s)<pre>.*?</pre>", "", entry)
    if "<blockquote>" in prose or "&gt;&gt;&gt;" in prose:
        yield f"{name}: an example is not code"


def missing_names(site: Path, names: Sequence[str]) -> Iterator[str]:
    """The names that no page of the site has an entry for, and what entries lack."""
    found: dict[str, str] = {}
    for path in site.glob("**/*.html"):
        found |= entries(path.read_text("utf-8"))
    for line in names:
        name = line.partition("(")[0]
        if name in found:
            yield from (f"{site}: {x}" for x in entry_problems(found[name], line))
        else:
            yield f"{site}: no entry for {name}"


def check_site(site: Path, names: Sequence[str] = ()) -> int:
    """Print what is wrong with the site in a folder, which is to have an entry for each
    of these names, as `public_names` gives them; the exit code.
    """
    pages = sorted(site.glob("**/*.html"))
    problems = [] if pages else [f"{site}: no pages"]
    for path in pages:
        problems += [
            f"{path}: loads {found[0]}"
            for found in FROM_ELSEWHERE.finditer(path.read_text("utf-8"))
        ]
    problems += missing_names(site, names)
    with browser() as opened:
        if opened and names:
            with opened.new_page() as page:
                name = names[0].partition("(")[0]
                problems += search_problems(page, site, name)
        for path in pages if opened else []:
            is_redirect = 'http-equiv="refresh"' in path.read_text("utf-8")
            if path.name != "404.html" and not is_redirect:
                with opened.new_page() as page:
                    problems += seen_problems(
                        page, site, path.relative_to(site).as_posix()
                    )
        how = (
            f"seen at widths of {', '.join(str(w) for w, _ in WIDTHS.values())}"
            if opened
            else "no browser, not seen"
        )
    print("\n".join(problems) or f"site: {len(pages)} pages are in order; {how}")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--site", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    return (
        check_site(options.site.resolve(), public_names(options.root.resolve()))
        if options.site
        else check_sources(options.root.resolve())
    )


if __name__ == "__main__":
    sys.exit(main())
