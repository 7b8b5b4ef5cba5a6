"""Put a built site beside those of other versions, and push them. Usage: python
tools/publish_docs.py SITE REF PAGES

SITE is what `make docs` built, REF the branch or tag that it was built from, PAGES a
folder that is made: a working tree of the branch gh-pages. The site of main is in dev/,
that of v1.2.3 in 1.2/, the newest release in stable/ too, and index.html lists them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

BRANCH = "gh-pages"


def version_of(ref: str) -> str:
    """The folder of a branch or tag."""
    if ref == "main":
        return "dev"
    found = re.fullmatch(r"v(\d+\.\d+)\.\d+\w*", ref)
    if found is None:
        raise ValueError(f"{ref!r}: expected main or a tag such as v1.2.3")
    return found[1]


def releases(pages: Path) -> list[str]:
    """The versions that lie there, the newest first."""
    names = [path.name for path in pages.iterdir() if path.is_dir()]
    numbers = [name for name in names if re.fullmatch(r"\d+\.\d+", name)]
    return sorted(numbers, key=lambda name: tuple(map(int, name.split("."))))[::-1]


def place(site: Path, version: str, pages: Path) -> None:
    """Replace the site of a version, and write what depends on all of them."""
    replace(site, pages / version)
    newest = releases(pages)[:1]
    if version in newest:
        replace(site, pages / "stable")
    names = [*(["stable"] if newest else []), "dev", *releases(pages)]
    links = [
        f'<li><a href="{name}/index.html">{name}</a></li>'
        for name in names
        if (pages / name).is_dir()
    ]
    head = (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>hifigemm</title>'
    )
    lines = [head, "<h1>hifigemm</h1>", "<ul>", *links, "</ul></html>", ""]
    (pages / "index.html").write_text("\n".join(lines), "utf-8")
    (pages / ".nojekyll").write_text("", "utf-8")


def replace(site: Path, folder: Path) -> None:
    """Copy the site to the place of another."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(site, folder)


def succeeds(*arguments: str, folder: Path | None = None) -> bool:
    """True if git does it."""
    return subprocess.run(["git", *arguments], cwd=folder).returncode == 0


def git(*arguments: str, folder: Path | None = None) -> str:
    """What git prints."""
    command = ["git", *arguments]
    done = subprocess.run(
        command, cwd=folder, check=True, input="", stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    """Fetch the pages, add the site, push."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for name in ("site", "ref", "pages"):
        parser.add_argument(name)
    options = parser.parse_args()
    pages = Path(options.pages)
    version = version_of(options.ref)

    # The pages so far, or an empty branch where there are none.
    if not succeeds("fetch", "origin", f"{BRANCH}:{BRANCH}"):
        git("branch", BRANCH, git("commit-tree", git("mktree"), "-m", "no pages yet"))
    git("worktree", "add", str(pages), BRANCH)

    place(Path(options.site), version, pages)
    git("add", "--all", folder=pages)
    if not succeeds("diff", "--cached", "--quiet", folder=pages):
        git("commit", "--message", f"docs of {options.ref}", folder=pages)
        git("push", "origin", BRANCH, folder=pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
