"""Sites of several versions side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import publish_docs


def placed(tmp_path, ref, text):
    site, pages = tmp_path / "site", tmp_path / "pages"
    site.mkdir(exist_ok=True)
    pages.mkdir(exist_ok=True)
    (site / "index.html").write_text(text, "utf-8")
    publish_docs.place(site, publish_docs.version_of(ref), pages)
    return pages


def test_each_version_has_a_folder_and_the_newest_is_stable_too(tmp_path):
    for ref in ("main", "v0.9.0", "v0.10.0", "v0.9.1"):
        pages = placed(tmp_path, ref, ref)
    texts = {path.parent.name: path.read_text() for path in pages.glob("*/index.html")}
    assert texts == {
        "dev": "main",
        "0.9": "v0.9.1",
        "0.10": "v0.10.0",
        "stable": "v0.10.0",
    }
    index = (pages / "index.html").read_text()
    assert [index.index(f'"{name}/') for name in ("stable", "dev", "0.10", "0.9")] == (
        sorted(index.index(f'"{name}/') for name in texts)
    )


@pytest.mark.parametrize("ref", ["feature", "v1", "1.2.3", "v1.2.3/.."])
def test_other_refs_raise(ref):
    with pytest.raises(ValueError, match="expected main or a tag"):
        publish_docs.version_of(ref)


def test_pages_are_pushed_to_a_branch_that_is_made_where_it_is_missing(tmp_path):
    def git(*arguments, folder):
        name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", *name, *arguments],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    for folder in ("origin", "clone"):
        (tmp_path / folder).mkdir()
    git("init", "--quiet", "--bare", folder=tmp_path / "origin")
    clone = tmp_path / "clone"
    git("init", "--quiet", "-b", "main", folder=clone)
    git("config", "user.name", "a", folder=clone)
    git("config", "user.email", "a@b.c", folder=clone)
    git("remote", "add", "origin", str(tmp_path / "origin"), folder=clone)
    git("commit", "--quiet", "--allow-empty", "-m", "first", folder=clone)
    (clone / "site").mkdir()
    (clone / "site" / "index.html").write_text("page", "utf-8")
    for ref, pages in (("main", "one"), ("v1.2.3", "two")):
        script = Path(publish_docs.__file__)
        command = [sys.executable, str(script), "site", ref, pages]
        subprocess.run(command, cwd=clone, check=True, capture_output=True)
        git("worktree", "remove", "--force", pages, folder=clone)
    listed = git("ls-tree", "-r", "--name-only", "gh-pages", folder=tmp_path / "origin")
    assert listed.split() == [
        ".nojekyll",
        "1.2/index.html",
        "dev/index.html",
        "index.html",
        "stable/index.html",
    ]
