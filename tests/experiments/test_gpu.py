"""The studies of a GPU, rehearsed: every line at a tiny size, on NumPy arrays and on
tensors of PyTorch.
"""

from __future__ import annotations

import functools
import json
import math
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import hifigemm as hg
from experiments.gpu import (
    answers,
    common,
    forward_errors,
    modes,
    residuals,
    schemes,
    spans,
    words,
)
from experiments.gpu.common import MODEL, Machine, Sample
from hifigemm.testing.reference import ExactProduct
from hifigemm.workshop.measuring.arrays import Arrays, CudaArrays, Workload
from hifigemm.workshop.measuring.cases import build
from hifigemm.workshop.measuring.timing import Clock
from plots.drawings import draw, find_drawing, read_rows
from plots.drawings.machines import pareto_front
from plots.drawings.names import case_name, family_name

ROOT = Path(__file__).parents[2]
STUDIES = {
    forward_errors: ("16", "24"),
    modes: ("24",),
    residuals: ("16", "64"),
    schemes: ("24",),
    spans: ("24",),
    words: ("24",),
}
H200 = "NVIDIA H200, as far as names go"


class Named(Arrays):
    """NumPy arrays under the name of a GPU whose peaks are known."""

    def describe(self):
        return {"device": H200}


class Tensors(CudaArrays):
    """Tensors of the CPU in place of those of a GPU."""

    device = "cpu"

    def clock(self):
        return Clock()

    def meter(self):
        return None

    def describe(self):
        return {"device": H200}


def name_of(study):
    return study.__name__.split(".")[-1]


@pytest.fixture
def rehearsed(tmp_path, monkeypatch):
    """Run a study; its exit code and lines."""

    def run(study, *options, arrays=Named):
        monkeypatch.setattr(common, "arrays_here", arrays)
        data = tmp_path / f"{name_of(study)}.csv"
        code = study.main([*options, "--output", str(data)])
        return code, read_rows(data), data

    return run


@pytest.fixture(scope="module")
def on_arrays(tmp_path_factory):
    """A study on NumPy arrays, which runs once: its exit code, lines and file, and what
    it printed.
    """

    @functools.cache
    def outcome(study):
        data = tmp_path_factory.mktemp("studies") / f"{name_of(study)}.csv"
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
            patch.setattr(common, "arrays_here", Named)
            code = study.main(["--sizes", *STUDIES[study], "--output", str(data)])
        return code, read_rows(data), data, out.getvalue()

    return outcome


def check_lines(study, code, rows, data, out):
    assert code == 0
    assert (
        json.loads(data.with_suffix(".env.json").read_text())["ended"]
        == "with all lines"
    )
    assert find_drawing(rows) == f"gpu_{name_of(study)}"
    assert {row.get("status", "timed") for row in rows} == {"timed"}
    assert {row["kept"] for row in rows if "kept" in row} <= {"True"}
    assert out.count("\n") == len(rows) + 1
    assert answers.ANSWERS[name_of(study)][1](rows).startswith("|")


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_every_line_runs_on_arrays(study, on_arrays):
    check_lines(study, *on_arrays(study))


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_every_line_runs_on_tensors(torch, study, rehearsed, capsys):
    outcome = rehearsed(study, "--sizes", *STUDIES[study], arrays=Tensors)
    check_lines(study, *outcome, capsys.readouterr().out)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_every_file_is_drawn(study, on_arrays):
    pytest.importorskip("matplotlib")
    energy = {"joules": "1.5", "gflops_per_watt": "80"}
    rows = [
        row | {key: value for key, value in energy.items() if key in row}
        for row in on_arrays(study)[1]
    ]
    figure = draw(f"gpu_{name_of(study)}", rows)
    assert all(axes.has_data() for axes in figure.axes)
    texts = [axes.get_xlabel() for axes in figure.axes] + [
        axes.get_ylabel() for axes in figure.axes
    ]
    assert any(texts)
    figure.canvas.draw()


def test_a_study_ends_where_its_time_does(rehearsed):
    code, rows, data = rehearsed(words, "--sizes", "24", "--seconds", "0")
    assert (code, len(rows)) == (0, 1)
    assert json.loads(data.with_suffix(".env.json").read_text())["ended"] == "after 0 s"


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_the_start_of_a_file_is_answered_and_drawn(study, on_arrays):
    pytest.importorskip("matplotlib")
    rows = on_arrays(study)[1]
    for count in range(1, len(rows)):
        assert isinstance(answers.ANSWERS[name_of(study)][1](rows[:count]), str)
    for count in (1, 2, len(rows) // 2):
        draw(f"gpu_{name_of(study)}", rows[:count])


def test_correct_modes_have_no_error_and_stages_sum_to_the_whole(on_arrays):
    for row in on_arrays(modes)[1]:
        if row["case"].endswith("correct"):
            assert (
                row["relative_error"],
                row["share_correct"],
                row["share_equal"],
            ) == ("0.0", "1.0", "1.0")
        if row["case"].startswith("ozaki1"):
            stages = [float(row[f"seconds_{name}"]) for name in (*modes.STAGES, "rest")]
            assert min(stages) >= 0
            assert math.fsum(stages) == pytest.approx(
                float(row["seconds_total"]), rel=1e-12
            )
            work = float(row["products_tflops"]) * float(row["seconds_products"]) * 1e12
            assert work == pytest.approx(
                2 * 24**3 * int(row["num_products"]), rel=1e-12
            )
            assert 1 < int(row["num_slices"]) <= int(row["num_products"])
        else:
            assert row["seconds_total"] == ""


@pytest.mark.parametrize(
    ("module", "stage"),
    [
        ("slice_counts", "count"),
        ("slices", "slices"),
        ("slice_gemm", "products"),
        ("int8_product", "products"),
        ("int8_product_hopper", "products"),
        ("slice_product", "sums"),
        ("slice_rounding", "sums"),
        ("epilogue", "passes"),
    ],
)
def test_each_kernel_has_its_stage(module, stage):
    """All kernels that a module launches, by the text of the module."""
    (path,) = (ROOT / "src/hifigemm/kernels").rglob(f"{module}.py")
    kernels = re.findall(r"= Launch\((\w+)\)", path.read_text("utf-8"))
    assert kernels
    assert {modes.stage_of(kernel) for kernel in kernels} == {stage}


def test_sums_of_products_over_parts_of_k_are_no_products():
    path = ROOT / "src/hifigemm/kernels/products/residue_gemm.py"
    kernels = re.findall(r"= Launch\((\w+)\)", path.read_text("utf-8"))
    stages = {kernel: modes.stage_of(kernel) for kernel in kernels}
    assert stages == {"_add_spans_kernel": "sums"}


def test_a_wrong_result_gets_no_time(rehearsed, monkeypatch):
    def broken(name, *given, **options):
        [case] = build(name, *given, **options)
        run, out = case.runs[0], case.outputs[0]

        def wrong():
            run()
            out[0, 0] += 1.0

        return [
            case if name == "native" else type(case)(**{**vars(case), "runs": (wrong,)})
        ]

    monkeypatch.setattr(common, "build", broken)
    code, rows, _ = rehearsed(words, "--sizes", "24")
    assert code == 1
    for row in rows:
        is_native = row["case"] == "native"
        assert row["status"].startswith("timed" if is_native else "refused")
        assert (row["burst_tflops"] != "") == is_native


def test_a_case_that_cannot_run_is_a_line(rehearsed, monkeypatch):
    monkeypatch.setitem(words.NAMES, "float32", ("native", "multiword:fp32:2:3"))
    code, rows, _ = rehearsed(words, "--sizes", "24")
    assert code == 0
    assert [
        row["status"].split(":")[0] for row in rows if row["dtype"] == "float32"
    ] == ["timed", "failed"]


def test_a_slow_case_is_repeated_for_a_second_at_most():
    class Slow(Clock):
        def __init__(self):
            self.now = 0.0

        def mark(self):
            self.now += 0.4
            return self.now

    machine, calls = Machine(), []
    machine.is_gpu, machine.clock, machine.method = True, Slow(), common.METHOD
    times = machine.times(lambda: calls.append(1))
    assert len(calls) == times.burst.repeats == 3
    assert times.burst.median == pytest.approx(0.4)
    assert times.sustained is None


@pytest.mark.parametrize(
    "name", ["ozaki2:9", "ozaki1:4", "multiword:tf32:1:1", "multiword:fp32:1:1"]
)
def test_the_bound_of_a_sample_is_kept_by_the_sample(name):
    """gamma_k of float64 is far below the errors of so few moduli, slices and words."""
    load = Workload(40, 40, 64, dtype="float32" if "tf32" in name else "float64")
    a, b = Arrays().operands(load, 0)
    sample = Sample(a, b)
    c = hg.matmul(a, b, engine=MODEL, **common.scheme_options(name))
    assert sample.judge(c, sample.bound(load, name))["kept"]
    assert not sample.judge(c * 2, sample.bound(load, name))["kept"]


def test_a_sample_is_judged_by_exact_products():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((9, 30)), rng.standard_normal((30, 7))
    exact, found = ExactProduct(a, b), Sample(a, b).judge(a @ b, math.inf)
    assert found["sample_error"] == exact.error(a @ b)
    assert found["share_correct"] == np.mean(a @ b == exact.rounded)
    assert Sample(a, b).judge(exact.rounded, 0.0) | {"sample_error": 0} == {
        **{"sample_error": 0, "relative_error": 0.0},
        **{"share_correct": 1.0, "kept": True},
    }


def test_the_correct_product_of_the_norms_is_checked(monkeypatch):
    machine = Machine()
    a, b = forward_errors.operands(machine, 12)
    assert np.array_equal(
        forward_errors.correct_product(machine, a, b), ExactProduct(a, b).rounded
    )
    monkeypatch.setattr(hg, "matmul", lambda a, b, **options: a @ b)
    with pytest.raises(
        RuntimeError, match=r"\d+ of 144 sampled entries are not correctly rounded"
    ):
        forward_errors.correct_product(machine, a, b)


def test_operands_of_the_norms_are_means_of_two_uniforms():
    a, _ = forward_errors.operands(Machine(), 400)
    assert abs(a).max() <= 0.5
    # The variance of such a mean is 1 / 24; that of 160,000 squares, each of variance
    # 1/960, is tight.
    assert abs(np.mean(a * a) - 1 / 24) <= 6 * math.sqrt(1 / 960 / a.size)


def test_no_point_of_the_front_is_beaten():
    rng = np.random.default_rng(3)
    points = [
        (float(error), float(speed)) for error, speed in rng.integers(0, 12, (60, 2))
    ]
    front = pareto_front(points)

    def beaten(point):
        return any(q != point and q[0] <= point[0] and q[1] >= point[1] for q in points)

    assert sorted(set(front)) == sorted(
        {point for point in points if not beaten(point)}
    )


def test_cases_have_words():
    known = {
        case
        for study in (
            modes.DOUBLE,
            modes.SINGLE,
            *words.NAMES.values(),
            *schemes.NAMES.values(),
        )
        for case in study
    }
    assert {
        case
        for case in known - {"peers"}
        if ":" in case_name(case) or "@" in case_name(case)
    } == set()
    assert (case_name("ozaki2:14"), case_name("ozaki1:fp16:dp")) == (
        "14 moduli",
        "DP mode, FP16 slices",
    )
    assert case_name("something:else") == "something:else"
    assert (family_name("phi0.5"), family_name("type1")) == ("φ = 0.5", "type1")


def test_answers_of_the_page_are_those_of_the_files():
    text = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    assert {answers.study_of(stem) for stem in answers.stems(text)} == set(
        answers.ANSWERS
    )
    assert answers.filled_in(text, ROOT / "results") == text


def test_answers_without_files_say_so(tmp_path):
    text = "before\n<!-- answers: words_h200 -->\nold\n<!-- end -->\nafter\n"
    found = answers.filled_in(text, tmp_path)
    assert found == text.replace("old", answers.MISSING)
    assert answers.filled_in(found, tmp_path) == found


def test_answers_state_where_they_were_measured(rehearsed, tmp_path):
    text = "<!-- answers: words_h200 -->\n<!-- end -->\n"
    _, _, data = rehearsed(words, "--sizes", "24", "--seconds", "0")
    data.rename(tmp_path / "words_h200.csv")
    data.with_suffix(".env.json").rename(tmp_path / "words_h200.env.json")
    found = answers.filled_in(text, tmp_path)
    assert f"[Data](../results/words_h200.csv): {H200}, " in found
    assert "The run ended after 0 s, before all its lines." in found
    assert answers.filled_in(found, tmp_path) == found


def test_a_wrong_entry_of_the_correct_mode_is_seen():
    row = {
        "case": "ozaki1:fp16:correct",
        "dtype": "float64",
        "relative_error": "0.0",
        "share_equal": "1.0",
    }
    for changed, holds in (
        ({}, True),
        ({"relative_error": "1e-16"}, False),
        ({"share_equal": "0.9"}, False),
    ):
        [(_, found, _)] = answers.correct_mode([row, row | changed])
        assert found == holds
    assert not answers.correct_mode(
        [row | {"share_equal": "", "status": "refused: wrong"}]
    )[0][1]


def test_lines_without_a_time_are_named():
    row = {"case": "ozaki2:14", "dtype": "float64", "n": "64", "status": "timed"}
    assert answers.untimed([row, {"k": "3"}]) == ""
    found = answers.untimed([row, row | {"status": "failed: no memory"}])
    assert found == " Without a time: 14 moduli of float64, n = 64: failed: no memory."


def test_claims_are_judged_by_all_their_figures():
    assert answers.claim("c", [0.5, 1.0], answers.at_most_one, "ratio") == [
        ("c", True, "ratio 0.5 to 1")
    ]
    assert answers.claim("c", [0.5, 1.1], answers.at_most_one, "ratio") == [
        ("c", False, "ratio 0.5 to 1.1")
    ]
    assert answers.claim("c", [], answers.above_one, "ratio") == []
    assert answers.ratios(
        [
            {"case": "x", "n": "1", "v": "6"},
            {"case": "y", "n": "1", "v": "3"},
            {"case": "x", "n": "2", "v": "6"},
        ],
        *("case", "v", "x", "y", "n"),
    ) == [2.0]
