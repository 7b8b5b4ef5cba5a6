"""Check the documentation: relative links, python blocks, citation keys. Usage: python tools/check_docs.py [ROOT].

- Relative links of README, CONTRIBUTING, CHANGELOG and docs/ lead to existing files.
- The ```python blocks of README and docs/ run, in order, one namespace a file; `<!-- skip -->` before a block skips it.
- Keys such as [MOOI20], in these files and in docstrings and comments under src/, stand in docs/references.bib.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
import tempfile
import textwrap
import tokenize
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w+-]*)")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE)
BRACKET = re.compile(r"(?<![\w\])])\[([^\[\]]{3,80})\]")  # not a subscript
KEY = re.compile(r"(?!(?:BF|FP|TF)\d\d)[A-Z][A-Za-z]+\d\d[A-Za-z]?")  # not [FP16] and its like


class Block(NamedTuple):
    language: str
    line: int  # of the first line of code
    skip: bool
    code: str


def split_markdown(text: str) -> tuple[str, list[Block]]:
    """Return the prose, with code blanked out so that line numbers stay, and the fenced blocks."""
    prose, blocks, code, fence, before = [], [], [], None, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        prose.append("" if fence or mark else re.sub(r"`[^`]*`", "", line))
        if fence is None and mark:
            fence, language, code = mark[1], mark[2], []
        elif fence is None:
            before = line.strip() or before
        elif mark and mark[1].startswith(fence) and not mark[2]:
            source = textwrap.dedent("\n".join(code))
            blocks.append(Block(language, number - len(code), before == "<!-- skip -->", source))
            fence, before = None, ""
        else:
            code.append(line)
    return "\n".join(prose), blocks


def broken_links(path: Path, prose: str) -> Iterator[str]:
    for match in LINK.finditer(prose):
        target = next(filter(None, match.groups()))
        file = unquote(re.split(r"[#?]", target)[0])
        if file and not re.match(r"[a-z][a-z0-9+.-]*:|//", file) and not (path.parent / file).exists():
            yield f"{path}:{prose.count(chr(10), 0, match.start()) + 1}: no such file: {target}"


def failing_blocks(path: Path, blocks: list[Block]) -> Iterator[str]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.language != "python" or block.skip:
            continue
        try:
            code = compile("\n" * (block.line - 1) + block.code, str(path), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)
        except (Exception, SystemExit) as error:
            own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            line = error.lineno if isinstance(error, SyntaxError) else [block.line, *own][-1]
            yield f"{path}:{line}: python block fails: {type(error).__name__}: {error}"
            return  # the next blocks build on this one


def unknown_keys(path: Path, text: str, known: set[str], first: int = 1) -> Iterator[str]:
    for match in BRACKET.finditer(text):
        for word in map(str.strip, re.split("[,;]", match[1])):
            if KEY.fullmatch(word) and word not in known:
                yield f"{path}:{first + text.count(chr(10), 0, match.start())}: [{word}] is not in docs/references.bib"


def docstrings_and_comments(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def main(root: Path) -> int:
    runnable = [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]
    pages = [*runnable, root / "CONTRIBUTING.md", root / "CHANGELOG.md"]
    bib = root / "docs" / "references.bib"
    problems = [f"{path}: missing" for path in [*pages, bib] if not path.exists()]
    keys = re.findall(r"^@\w+\{\s*([^,\s]+)", bib.read_text("utf-8"), re.MULTILINE) if bib.exists() else []
    problems += [f"{bib}: {key} is defined twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    for page in filter(Path.exists, pages):
        prose, blocks = split_markdown(page.read_text("utf-8"))
        problems += [*broken_links(page, prose), *unknown_keys(page, prose, set(keys))]
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)  # blocks may write files
            problems += failing_blocks(page, blocks if page in runnable else [])
            os.chdir(root)
    for module in sorted((root / "src").glob("**/*.py")):
        for line, text in docstrings_and_comments(module.read_text("utf-8")):
            problems += unknown_keys(module, text, set(keys), line)
    print("\n".join(problems).replace(f"{root}/", "") or f"docs: {len(pages)} pages are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()))
