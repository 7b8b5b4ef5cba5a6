"""Check what is going to be published. Usage: python tools/check_dist.py [FOLDER], with
one wheel and one sdist in it, or --wheel FILE.

- The sdist holds every file of the checkout that `FOLDERS` and `FILES` name.
- The wheel, installed into an empty environment with what it requires, runs the first
  snippet of the README that the sdist holds, prints what the README says, and
  `hifigemm info` runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # where it is run as a script

from tools.check_docs import split_markdown  # noqa: E402

FOLDERS = (
    "core",
    "src",
    "tests",
    "docs",
    "tools",
    "benchmarks",
    "examples",
    "experiments",
    "paper",
    "plots",
    "recipe",
    "results",
)
FILES = (
    "Makefile",
    "mkdocs.yml",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
)
FILES += ("CITATION.cff", "CODE_OF_CONDUCT.md", "GOVERNANCE.md", "SECURITY.md")


def wanted(root: Path) -> set[str]:
    """The files of a checkout that belong into its sdist."""
    command = ["git", "ls-files", "-z", *FOLDERS, *FILES]
    return set(
        subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True
        ).stdout.split("\0")
    ) - {""}


def members(sdist: Path) -> dict[str, str]:
    """Names in an sdist, without the folder that it unpacks to and with it."""
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2]: name for name in archive.getnames()}


def missing_files(sdist: Path, names: set[str]) -> list[str]:
    """What an sdist lacks of these files."""
    return [
        f"{sdist.name}: {name} is missing"
        for name in sorted(names - members(sdist).keys())
    ]


def readme_of(sdist: Path) -> str:
    """The README in an sdist."""
    with tarfile.open(sdist) as archive:
        file = archive.extractfile(members(sdist)["README.md"])
        assert file is not None
        return file.read().decode()


def failing_install(wheel: Path, readme: str) -> Iterator[str]:
    """Install a wheel where nothing is, and run the first snippet of the README
    there.
    """
    _, blocks = split_markdown(readme)
    snippet = next(block for block in blocks if block.language == "python")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "Scripts" if os.name == "nt" else "bin", "python")
        run = [str(python), "-I"]  # neither the checkout nor PYTHONPATH
        subprocess.run(
            [*run, "-m", "pip", "install", "--quiet", str(wheel.resolve())], check=True
        )
        for arguments, stated in (
            (["-c", snippet.code], snippet.output),
            (["-m", "hifigemm", "info"], None),
        ):
            done = subprocess.run(
                [*run, *arguments], cwd=folder, capture_output=True, text=True
            )
            if done.returncode:
                yield f"{wheel.name}: {arguments[0]} ends with {done.returncode}: {done.stderr}"
            elif stated is not None and done.stdout.rstrip() != stated.rstrip():
                yield f"{wheel.name}: the first snippet prints\n{done.stdout}and the README says\n{stated}"


def main() -> int:
    """Print what is wrong; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    text = "this wheel alone, with the README of the checkout"
    parser.add_argument("--wheel", type=Path, help=text)
    options = parser.parse_args()
    if options.wheel is not None:
        readme = (ROOT / "README.md").read_text("utf-8")
        problems = list(failing_install(options.wheel, readme))
        print("\n".join(problems) or f"{options.wheel.name}: the first snippet runs")
        return int(bool(problems))

    folder = options.folder
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if (len(wheels), len(sdists)) != (1, 1):
        print(
            f"{folder}: {len(wheels)} wheels and {len(sdists)} sdists, expected one of each"
        )
        return 1
    problems = [
        *missing_files(sdists[0], wanted(ROOT)),
        *failing_install(wheels[0], readme_of(sdists[0])),
    ]
    print(
        "\n".join(problems)
        or f"{wheels[0].name}, {sdists[0].name}: complete, and the first snippet runs"
    )
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
