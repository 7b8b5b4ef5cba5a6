"""The paper: its claims are those that are checked, its citations those of the
documentation, its length that of the journal.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tools import figures, paper_check

ROOT = Path(__file__).parents[1]
PAPER = (ROOT / "paper" / "paper.md").read_text("utf-8")
WORDS = " ".join(PAPER.split())


@pytest.mark.parametrize("claim", paper_check.CLAIMS, ids=lambda claim: claim.stated)
def test_claims_that_are_checked_stand_in_the_paper(claim):
    assert claim.stated in WORDS


def test_every_claim_of_the_list_is_checked():
    _, _, section = PAPER.partition("# Claims that can be reproduced")
    items = section.partition("\n# ")[0].count("\n- ")
    assert items == len(paper_check.CLAIMS) + 1  # the last one is that of a GPU


@pytest.mark.parametrize("index", [0, 1, 2, 4])
def test_claims_that_take_no_time_hold(index):
    holds, found = paper_check.CLAIMS[index].check()
    assert holds, found


def test_citations_are_those_of_the_documentation():
    def entries(path):
        text = path.read_text("utf-8")
        pattern = r"^@\w+\{(\w+),.*?^\}"
        return {
            m[1]: m[0] for m in re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
        }

    documentation = entries(ROOT / "docs" / "references.bib")
    bibliography = entries(ROOT / "paper" / "paper.bib")
    cited = {*re.findall(r"[\[ ]@(\w+)", PAPER)}
    assert cited == bibliography.keys()
    assert bibliography == {key: documentation[key] for key in cited}


def test_the_counts_of_systems_are_those_of_the_results():
    path = ROOT / "results" / "linalg_enclosures.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    systems, missed = (
        sum(int(r[name]) for r in rows) for name in ("systems", "missed")
    )
    judged = f"{systems} systems of {len(rows)} families were judged"
    assert f"{judged} against exact solutions, and {missed} enclosures missed" in WORDS


def test_the_gains_of_other_packages_are_those_of_the_results():
    def errors(problem):
        rows = figures.rows_of("client_patches", problem=problem)
        return [float(row["error"]) for row in rows]

    default, _, verified = errors("cubic trend, 1950 to 2009")
    assert default >= 1
    assert verified < 2.0**-52
    inverse, pseudo_inverse, verified = errors("200 points, Gaussian variogram")
    stated = f"is off by {inverse:.0f} by default, by {pseudo_inverse:.4f} with a"
    assert stated in WORDS
    assert f"and by {verified:.6f} with verified weights" in WORDS


def test_the_paper_has_the_sections_that_the_journal_asks_for():
    headings = re.findall(r"^# (.*)$", PAPER, re.MULTILINE)
    assert {
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Research impact statement",
        "AI usage disclosure",
        "Acknowledgements",
        "References",
    } <= {*headings}


def test_the_paper_has_the_length_that_the_journal_asks_for():
    body = re.sub(r"^---.*?^---$", "", PAPER, count=1, flags=re.MULTILINE | re.DOTALL)
    assert 750 <= len(body.split()) <= 1750
