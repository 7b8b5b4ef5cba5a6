"""What checks of the wheel and the sdist notice."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import hifigemm as hg
from tools import check_dist, conda_recipe

ROOT = Path(__file__).parents[1]


def test_a_file_that_an_sdist_lacks_is_named(tmp_path):
    sdist = tmp_path / "hifigemm-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in (("README.md", "# Title\n"), ("src/a.py", "")):
            info = tarfile.TarInfo(f"hifigemm-1/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    assert check_dist.missing_files(sdist, {"README.md", "src/a.py"}) == []
    (problem,) = check_dist.missing_files(sdist, {"README.md", "examples/b.py"})
    assert problem == "hifigemm-1.tar.gz: examples/b.py is missing"
    assert check_dist.readme_of(sdist) == "# Title\n"


def test_changelog_has_a_heading_for_the_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[{re.escape(hg.__version__)}\] - ", text, re.MULTILINE)


def test_readme_has_links_that_lead_somewhere_from_a_package_index():
    text = (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(\s*([^)\s]+)", text)
    assert targets
    assert all(target.startswith(("https://", "#")) for target in targets)


def test_recipe_of_conda_has_version_and_requirements_of_the_package(tmp_path):
    recipe = conda_recipe.RECIPE.read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'version: "{hg.__version__}"' in recipe
    for requirement in (
        *re.findall(r'^dependencies = \["numpy(.*)"\]', project, re.MULTILINE),
        *re.findall(r'^requires-python = "(.*)"', project, re.MULTILINE),
    ):
        assert re.search(rf"- (python|numpy) {requirement}\n", recipe)

    sdist = tmp_path / "hifigemm-9.8.7.tar.gz"
    sdist.write_bytes(b"")
    text = conda_recipe.filled(recipe, sdist, "file:///sdist")
    assert 'version: "9.8.7"' in text
    assert "sha256: " + '"e3b0c44298fc1c149afbf4c8996fb924' in text
    assert "url: file:///sdist\n" in text
