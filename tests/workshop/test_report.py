from __future__ import annotations

import base64
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.cli import main
from hifigemm.schemes import SCHEMES
from hifigemm.testing.primitives import Finding
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop import demo, page, report
from hifigemm.workshop.measuring.arrays import CudaArrays
from hifigemm.workshop.measuring.timing import Clock
from tests.cli.conftest import shorten

FINDINGS = [
    Finding("rint", "NumPy", 7),
    Finding("negative", "NumPy", 7, fault="entry 1", used=False),
]


@pytest.fixture
def small(monkeypatch, short):
    """The command with products of a few entries, and findings that are told."""
    return shrink(monkeypatch, short)


def shrink(monkeypatch, short):
    monkeypatch.setattr(report, "METHOD", replace(short, sustained=0))
    monkeypatch.setattr(report, "SIZES", {"cpu": (4, 8)})
    monkeypatch.setattr(report, "PHI_SIZE", 6)
    monkeypatch.setattr(report, "findings", lambda: iter(FINDINGS))
    return report


def run(path, *argv):
    return main(["report", "--output", str(path), *argv])


@pytest.fixture(scope="module")
def small_page(tmp_path_factory):
    """The page of such a command, for tests that read it."""
    path = tmp_path_factory.mktemp("report") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, shorten(patch))
        assert run(path) == 0
    return path


def read(path):
    """The page as a tree, so that it must be well-formed, and its words."""
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    return root, " ".join(" ".join(root.itertext()).split())


def lines_of(root, caption):
    """Cells of the table behind this summary."""
    (table,) = (
        each for each in root.iter("details") if each.find("summary").text == caption
    )
    return [
        ["".join(cell.itertext()) for cell in line]
        for line in list(table.iter("tr"))[1:]
    ]


def test_page_asks_for_nothing_and_fits_a_phone(small_page):
    root, _ = read(small_page)
    for element in root.iter():
        assert element.tag not in ("script", "link", "iframe", "object")
        assert not {"href", "srcset", "data"} & set(element.keys())
        assert element.tag == "img" or element.get("src") is None
    assert "url(" not in root.find("head/style").text
    assert "@import" not in root.find("head/style").text
    (viewport,) = (
        each.get("content")
        for each in root.iter("meta")
        if each.get("name") == "viewport"
    )
    assert "width=device-width" in viewport
    tables = set(root.iter("table"))
    assert tables == {
        table
        for box in root.iter("div")
        if box.get("class") == "wide"
        for table in box.iter("table")
    }


def pictures(root):
    """The trees of the pictures on a page, by what they show."""
    start = "data:image/svg+xml;base64,"
    images = {each.get("alt"): each.get("src") for each in root.iter("img")}
    assert all(source.startswith(start) for source in images.values())
    return {
        name: ET.fromstring(base64.b64decode(source.removeprefix(start)))
        for name, source in images.items()
    }


def test_pictures_are_part_of_the_page_and_ask_for_nothing(small_page):
    pytest.importorskip("matplotlib")
    root, _ = read(small_page)
    found = pictures(root)
    assert list(found) == [
        "Rate of float64 products over their size",
        "Rate of float32 products over their size",
        "Errors of float64 products",
        "Errors of float32 products",
    ]
    folded = {
        each.find("summary").text
        for each in root.iter("details")
        if not each.get("open")
    }
    assert folded == {
        f"{what} of {dtype} products in numbers"
        for what in ("Times", "Errors")
        for dtype in report.CASES
    }
    for picture in found.values():
        for element in picture.iter():
            for name, value in element.items():
                assert "url(" not in value.replace("url(#", "")
                assert not name.endswith("href") or value.startswith("#")


def test_without_matplotlib_the_page_has_open_tables_and_says_so(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    assert run(tmp_path / "page.html") == 0
    root, words = read(tmp_path / "page.html")
    assert "pictures need matplotlib, which is not installed here" in words
    assert not list(root.iter("img"))
    tables = list(root.iter("details"))
    assert all(each.get("open") for each in tables)
    captions = {each.find("summary").text for each in tables}
    for dtype in report.CASES:
        assert f"Times of {dtype} products in numbers" in captions
        assert f"Errors of {dtype} products in numbers" in captions


def test_page_says_what_was_measured(small_page):
    root, words = read(small_page)
    assert f"hifigemm {hg.__version__} on" in words
    assert f"numpy {np.__version__}" in words
    assert all(engine in words for engine in hg.engines())
    for dtype, names in report.CASES.items():
        timed = lines_of(root, f"Times of {dtype} products in numbers")
        assert {(line[0], line[1]) for line in timed} >= {
            (name, n) for name in names[:-1] for n in ("4", "8")
        }
        compared = {
            (line[0], line[1])
            for line in lines_of(root, f"Errors of {dtype} products in numbers")
        }
        impossible = set(re.findall(rf"(\S+), {dtype}:", words))
        assert {name for name, _ in compared} | impossible == set(report.WAYS)
        assert {problem for _, problem in compared} == {"random", "cancelling"}
    assert (
        "1 functions of other libraries, on which exactness rests, work as they should"
        in words
    )
    assert "Errors: 6 x 6 matrices" in words


def test_every_error_on_the_page_is_within_what_was_guaranteed(small_page):
    root, _ = read(small_page)
    for dtype in report.CASES:
        for way, _, error, guaranteed, _, share, *_ in lines_of(
            root, f"Errors of {dtype} products in numbers"
        ):
            assert float(error) <= float(guaranteed), way
            assert way != "correct" or share == "100 %"


def test_impossible_outputs_are_refused_before_anything_is_measured(
    small, tmp_path, fails, monkeypatch
):
    monkeypatch.setattr(report, "_Measuring", None)
    fails(["report", "-o", tmp_path / "page.txt"], 2, "a report ends in .html or .htm")
    fails(["report", "-o", tmp_path / "missing" / "page.html"], 2, "no folder")
    (tmp_path / "folder.html").mkdir()
    fails(["report", "-o", tmp_path / "folder.html"], 2, "not a regular file")
    (tmp_path / "old.html").write_text("old")
    (tmp_path / "old.html").chmod(0o444)
    fails(["report", "-o", tmp_path / "old.html"], 2, "is read-only")
    fails(
        ["report", "--device", "cuda"], 2, "--device cuda needs torch and a CUDA device"
    )
    fails(["report", "--seed", "-1"], 2, "is not an integer from")
    assert (tmp_path / "old.html").read_text() == "old"


def test_page_that_is_there_is_replaced_as_a_whole_or_stays(
    small, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "page.html"
    path.write_text("old")

    def interrupted(found):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report, "page", interrupted)
        assert run(path) == 130
    assert path.read_text() == "old"
    assert run(path) == 0
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert os.listdir(tmp_path) == ["page.html"]
    out, err = capsys.readouterr()
    assert out == f"{path}\n"
    assert "times of float32 products, n = 8 ..." in err.splitlines()
    assert all(
        line.endswith(" ...") or "interrupted" in line for line in err.splitlines()
    )


@pytest.mark.slow
def test_broken_promise_and_fault_stand_on_top(small, tmp_path, capsys, monkeypatch):
    matmul = hg.matmul

    def boast(a, b, **options):
        result = matmul(a, b, **options)
        if not options.get("return_report"):
            return result
        c, said = result
        return c, said.changed(lambda d: replace(d, bound=0.0)) if said.native else said

    monkeypatch.setattr(hg, "matmul", boast)
    monkeypatch.setattr(
        report,
        "findings",
        lambda: iter([Finding("rint", "NumPy", 7, fault="entry <1> is 2.0")]),
    )
    assert run(tmp_path / "page.html") == 1
    root, words = read(tmp_path / "page.html")
    assert "breaks the reported bound" in capsys.readouterr().err
    (box,) = (each for each in root.iter("div") if each.get("class") == "wrong")
    inside = " ".join(box.itertext())
    assert "Something is wrong" in inside
    assert "entry <1> is 2.0" in inside
    assert "kept the error" not in words


def test_no_product_is_compared_with_a_native_one_of_a_busy_machine(
    small, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(report, "CASES", {"float64": ("auto", "auto@correct")})
    monkeypatch.setattr(report, "WAYS", {"correct": {"accuracy": "correct"}})
    monkeypatch.setattr("hifigemm.workshop.measuring.ceilings._LEAST_BUSY", {"cpu": 8})
    monkeypatch.setattr(
        report, "measured_ceilings", lambda *_: {"copy": 1e9, "fp64": 1e15}
    )
    assert run(tmp_path / "page.html") == 0
    root, words = read(tmp_path / "page.html")
    text = "float64: this machine is busy: the native product of 8 x 8 x 8 ran at"
    assert f"hifigemm: warning: {text}" in capsys.readouterr().err
    assert text in words
    assert "Nothing is compared with it, as the machine was busy." in words
    assert "no time, as the machine was busy" in words
    assert "times as long" not in words
    assert "is quicker than it" not in words
    lines = lines_of(root, "Times of float64 products in numbers")
    assert {line[1] for line in lines if line[4]} == {"4"}


@pytest.mark.slow
def test_sizes_that_would_take_too_long_are_named(small, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "GROWTH", {"cpu": 1e9})
    assert run(tmp_path / "page.html") == 0
    _, words = read(tmp_path / "page.html")
    assert (
        "Left out, as they would have taken too long: float64, n = 8; float32, n = 8."
        in words
    )


@pytest.mark.slow
def test_same_seed_gives_the_same_errors(small, small_page, tmp_path):
    pages = [small_page]
    for seed in ("0", "4"):
        pages.append(tmp_path / f"{seed}.html")
        assert run(pages[-1], "--seed", seed) == 0
    errors = [
        lines_of(read(page)[0], "Errors of float64 products in numbers")
        for page in pages
    ]
    assert errors[0] == errors[1] != errors[2]


def test_tensors_are_held_against_the_exact_product_too(torch):
    class Tensors(CudaArrays):
        """Those of the CPU, as there may be no CUDA device."""

        device = "cpu"

        def clock(self):
            return Clock()

    rng = np.random.default_rng(0)
    exact = ExactProduct(rng.standard_normal((5, 7)), rng.standard_normal((7, 3)))
    ways = {"correct": report.WAYS["correct"], "ozaki2": report.WAYS["ozaki2"]}
    rows, broken = demo.against_exact("random", exact, ways, Tensors())
    assert not broken
    assert [row["promise_kept"] for row in rows] == [True, True]
    assert rows[0]["share_correct"] == 1.0


def test_every_scheme_is_compared_with_the_exact_product():
    assert {"correct", "auto", *SCHEMES} == set(report.WAYS)
