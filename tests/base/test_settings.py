"""Strict mode refuses what the library would give to the native product; the log has
one line for each decision.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base import settings, store
from hifigemm.base.formats import FP64
from hifigemm.engines import threads
from hifigemm.engines.core_sums import expected_seconds
from hifigemm.model.accuracy import level
from hifigemm.running import calls
from hifigemm.testing.reference import meets_promise
from tests.host_programs import ProgramEngine

DTYPES = ("float32", "float64", "complex64", "complex128")
PRODUCT = (
    "import numpy as np, hifigemm as hg; a = np.ones((3, 4)); b = np.ones((4, 2)); "
)


def run(code, **variables):
    """Standard error of a program in a fresh interpreter, as lines."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HIFIGEMM_")
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | variables)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("dtype", DTYPES)
def test_strict_mode_refuses_the_native_product_with_the_numbers(make_pair, dtype):
    a, b = make_pair("phi_1", 6, 20, 5, dtype)
    for call in (hg.matmul, hg.gemm, hg.make_plan):
        assert call(a, b) is not None
        with hg.strict(), pytest.raises(hg.AccuracyError) as error:
            call(a, b)
        terms = 40 if dtype.startswith("complex") else 20
        for part in (
            "strict mode",
            f"(6 x 20) @ (20 x 5) {dtype}",
            "|C - AB| <= ",
            "Native(product=None)",
            f"{terms} u = ",
        ):
            assert part in str(error.value), part


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_strict_mode_refuses_a_float64_product_at_the_level_of_float64(
    make_pair, dtype
):
    # Smaller products are sums of the compiled core.
    a, b = make_pair("phi_1", 120, 20, 100, dtype)
    with (
        hg.strict(),
        pytest.raises(hg.AccuracyError, match=r"Native\(product='fp64'\)"),
    ):
        hg.matmul(a, b, accuracy="fp64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", [1e-12, 1e-3, "fp32"])
def test_strict_mode_takes_a_native_product_whose_worst_case_meets_the_target(
    make_pair, assert_same_bits, dtype, accuracy
):
    # 4 u is more than k u / (1 - k u) to k = 3
    k = 1 if accuracy == "fp32" and dtype.endswith(("32", "x64")) else 20
    # Smaller products may be sums of the compiled core.
    a, b = make_pair("phi_1", 120, k, 100, dtype)
    want = hg.matmul(a, b, accuracy=accuracy)
    with hg.strict():
        plan = hg.make_plan(a, b, accuracy=accuracy)
        worst = plan.scheme.bound(plan.problem)
        assert plan.bound == plan.target.r >= worst
        for operands, options in (
            ((a, b), {"accuracy": accuracy}),
            ((a, b), {"plan": plan}),
            ((hg.prepare(a, "left", plan=plan), b), {}),
        ):
            for _ in range(2):  # the second one is repeated
                assert_same_bits(hg.matmul(*operands, **options), want)
            report = hg.gemm(*operands, return_report=True, **options)[1]
            assert report.native
            assert report.bound == worst


def test_strict_mode_says_what_would_have_cost_more(make_pair, monkeypatch):
    a, b = make_pair("phi_1", 30, 50, 20)
    engine = ProgramEngine(1.0)
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    assert hg.matmul(a, b, return_report=True)[1].native
    why = r"residue products of 1.5e\+04 ms in all, against 1e\+03 ms, are not quicker by a tenth"
    with hg.strict(), pytest.raises(hg.AccuracyError, match=why):
        hg.matmul(a, b)


@pytest.mark.parametrize("scheme", ["auto", hg.Ozaki2(scaling="fast")], ids=str)
@pytest.mark.parametrize("family", ["phi_0.1", "phi_8"])
def test_strict_mode_keeps_the_level_where_the_device_would_go_on_to_a_native_product(
    make_pair, monkeypatch, scheme, family
):
    a, b = make_pair(family, 30, 50, 20)
    engine = ProgramEngine()
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    store.forget()
    assert hg.matmul(a, b, scheme=scheme, return_report=True)[1].native is (
        family == "phi_8"
    )
    with hg.strict():
        for _ in range(2):
            c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
            assert not report.native
            assert report.bound <= level(FP64, 50)
            assert meets_promise(c, a, b, report.bound).all()
            assert meets_promise(
                hg.matmul(a, b, scheme=scheme), a, b, report.bound
            ).all()
    assert hg.matmul(a, b, scheme=scheme, return_report=True)[1].native is (
        family == "phi_8"
    )


def test_strict_mode_refuses_a_plan_whose_device_took_a_native_product(
    make_pair, monkeypatch
):
    easy, hard = (make_pair(family, 30, 50, 20) for family in ("phi_0.1", "phi_8"))
    engine = ProgramEngine()
    monkeypatch.setattr("hifigemm.running.plans.engine_for", lambda *args: engine)
    monkeypatch.setattr("hifigemm.running.road.engine_for", lambda *args: engine)
    plan = hg.make_plan(*easy)
    assert hg.matmul(*hard, plan=plan, return_report=True)[1].native
    with hg.strict():
        assert not hg.matmul(*easy, plan=plan, return_report=True)[1].native
        with pytest.raises(hg.AccuracyError, match="would fall back to Native"):
            hg.matmul(*hard, plan=plan)


@pytest.mark.parametrize(
    "scheme", ["native", hg.Native(), hg.Native(product="fp64")], ids=str
)
def test_strict_mode_obeys_a_forced_native_product(make_pair, assert_same_bits, scheme):
    a, b = make_pair("phi_1", 6, 20, 5)
    want = hg.matmul(a, b, scheme=scheme)
    with hg.strict():
        assert_same_bits(hg.matmul(a, b, scheme=scheme), want)
        plan = hg.make_plan(a, b, scheme=scheme)
        assert_same_bits(hg.matmul(a, b, plan=plan), want)


def test_strict_mode_refuses_a_native_plan_that_the_library_chose(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    plan = hg.make_plan(a, b)
    left = hg.prepare(a, "left", plan=plan)
    hg.matmul(left, b)
    with hg.strict():
        for operands, options in (((a, b), {"plan": plan}), ((left, b), {})):
            with pytest.raises(hg.AccuracyError, match="strict"):
                hg.matmul(*operands, **options)


@pytest.mark.parametrize(
    ("scheme", "accuracy"),
    [
        ("auto", "correct"),
        ("auto", 1e-20),
        ("ozaki1", None),
        ("ozaki2", "fp64"),
        (hg.Ozaki2(num_moduli=4), None),
    ],
    ids=str,
)
def test_strict_mode_changes_no_other_product(
    make_pair, assert_same_bits, scheme, accuracy
):
    a, b = make_pair("phi_1", 6, 20, 5)
    want, report = hg.matmul(a, b, scheme=scheme, accuracy=accuracy, return_report=True)
    with hg.strict():
        found, stated = hg.matmul(
            a, b, scheme=scheme, accuracy=accuracy, return_report=True
        )
    assert_same_bits(found, want)
    assert stated == report


def test_products_of_nothing_are_no_native_products():
    with hg.strict():
        for m, k, n in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
            c, report = hg.matmul(np.ones((m, k)), np.ones((k, n)), return_report=True)
            assert c.shape == (m, n)
            assert not report.native
            hg.make_plan(np.ones((m, k)), np.ones((k, n)))
        c = hg.gemm(
            np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), alpha=0.0, beta=2.0
        )
        assert (c == 2.0).all()


def test_strict_contexts_nest_and_end_with_an_exception():
    assert not settings.is_strict()
    with hg.strict():
        with hg.strict(False):
            assert not settings.is_strict()
            hg.matmul(np.ones((2, 2)), np.ones((2, 2)))
        assert settings.is_strict()
        with pytest.raises(KeyError), hg.strict():
            raise KeyError
        assert settings.is_strict()
    assert not settings.is_strict()

    @hg.strict()
    def decorated():
        return settings.is_strict()

    assert decorated()
    assert decorated()
    assert not settings.is_strict()


def test_strict_mode_belongs_to_its_thread():
    inside, done = threading.Event(), threading.Event()

    def other():
        with hg.strict():
            inside.set()
            done.wait(10)
            return settings.is_strict()

    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(other)
        inside.wait(10)
        assert not settings.is_strict()
        done.set()
        assert future.result()
        with hg.strict():
            assert pool.submit(copy_context().run, settings.is_strict).result()


def test_strict_mode_belongs_to_its_task():
    async def task(enabled):
        with hg.strict(enabled):
            for _ in range(5):
                await asyncio.sleep(0)
                assert settings.is_strict() is enabled

    async def both():
        await asyncio.gather(*(task(bool(i % 2)) for i in range(6)))

    asyncio.run(both())
    assert not settings.is_strict()


def test_the_environment_turns_strict_mode_on_and_the_caller_off():
    ok, lines = run(PRODUCT + "hg.matmul(a, b)", HIFIGEMM_STRICT="1")
    assert ok != 0
    assert "AccuracyError: strict mode: (3 x 4) @ (4 x 2) float64" in lines[-1]
    for accuracy in ("'correct'", "1e-12"):
        assert run(
            PRODUCT + f"hg.matmul(a, b, accuracy={accuracy})", HIFIGEMM_STRICT="1"
        ) == (0, [])
    assert run(
        PRODUCT + "\nwith hg.strict(False): hg.matmul(a, b)", HIFIGEMM_STRICT="1"
    ) == (0, [])
    for value in ("", "0"):
        assert run(PRODUCT + "hg.matmul(a, b)", HIFIGEMM_STRICT=value) == (0, [])


def test_a_misspelt_strict_variable_is_an_error():
    ok, lines = run(PRODUCT + "hg.matmul(a, b)", HIFIGEMM_STRICT="yes")
    assert ok != 0
    assert "PlanError: HIFIGEMM_STRICT='yes': expected" in lines[-1]


def test_one_line_for_each_decision_without_any_set_up():
    code = (
        PRODUCT
        + "hg.matmul(a, b); hg.gemm(a, b, accuracy='correct'); hg.matmul(a[:0], b)"
    )
    for value in ("1", "info", " INFO "):
        ok, lines = run(code, HIFIGEMM_LOG=value)
        assert ok == 0
        assert len(lines) == 3
        assert lines[0].startswith(
            "hifigemm: (3 x 4) @ (4 x 2) float64: Native(product=None), native product"
        )
        assert "decided in" in lines[0]
        assert "DoubleDouble" in lines[1]
        assert "nothing to multiply" in lines[2]
    for value in ("", "0"):
        assert run(code, HIFIGEMM_LOG=value) == (0, [])


def test_debug_adds_the_report():
    ok, lines = run(PRODUCT + "hg.matmul(a, b)", HIFIGEMM_LOG="debug")
    assert ok == 0
    assert lines[1] == "hifigemm: Report"
    assert any(line.startswith("  decision") for line in lines)


@pytest.mark.parametrize(
    "setup",
    [
        "logging.basicConfig()",
        "logging.basicConfig(level=logging.INFO)",
        "logging.basicConfig(level=logging.ERROR)",
        "logging.getLogger('hifigemm').addHandler(logging.StreamHandler())",
        "logging.getLogger('hifigemm').addHandler(logging.NullHandler())",
        "h = logging.StreamHandler(); h.setLevel(logging.ERROR); logging.getLogger().addHandler(h)",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_logging_that_is_set_up_by_the_user_has_no_line_twice(setup, first):
    before, between = (setup, "pass") if first else ("pass", setup)
    code = f"import logging; {before}\n{PRODUCT}hg.matmul(a, b)\n{between}\nhg.matmul(a, b)"
    ok, lines = run(code, HIFIGEMM_LOG="1")
    assert ok == 0
    assert sum("(3 x 4) @ (4 x 2)" in line for line in lines) == len(lines) == 2


def test_a_level_of_the_user_is_kept():
    code = f"import logging; logging.getLogger('hifigemm').setLevel(logging.ERROR)\n{PRODUCT}hg.matmul(a, b)"
    assert run(code, HIFIGEMM_LOG="1") == (0, [])


def test_a_misspelt_level_is_ignored_with_a_warning():
    ok, lines = run(PRODUCT + "hg.matmul(a, b); hg.matmul(a, b)", HIFIGEMM_LOG="loud")
    assert ok == 0
    assert (
        len([line for line in lines if "HIFIGEMM_LOG='loud' is ignored" in line]) == 1
    )


def test_reports_say_how_long_the_decision_took(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    store.forget()
    for scheme in ("auto", "ozaki1", hg.Ozaki2(scaling="fast")):
        report = hg.matmul(a, b, scheme=scheme, return_report=True)[1]
        assert 0.0 < report.decision_seconds < 60.0
        assert f"{1e3 * report.decision_seconds:.3g} ms" in str(report)


@pytest.mark.parametrize("multiply", [hg.matmul, hg.gemm])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_out_is_said_to_be_incomplete(multiply, error, monkeypatch, caplog):
    def ended(*arguments, **options):
        raise error

    monkeypatch.setattr("hifigemm.running.road.run", ended)
    a = np.ones((3, 3))
    with pytest.raises(error) as raised:
        multiply(a, a, accuracy=2e-13)
    assert not caplog.records
    with pytest.raises(error) as raised:
        multiply(a, a, accuracy=2e-13, out=a.copy())
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("hifigemm", "WARNING")
    text = f"out is incomplete: {error.__name__} ended the call that was to fill it"
    assert record.getMessage() == text
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == [text]


def test_a_refusal_says_nothing_of_out(caplog):
    a = np.ones((3, 3))
    with pytest.raises(hg.PlanError):
        hg.matmul(a, a, scheme="none", out=a.copy())
    with pytest.raises(ValueError, match="shape"):
        hg.gemm(a, a[:2], out=a.copy())
    assert not caplog.records


@pytest.mark.parametrize("options", [{"accuracy": "correct"}, {"result": "pair"}])
def test_long_calls_are_announced_before_the_work(options, monkeypatch, caplog):
    monkeypatch.setattr(settings, "LONG", 0.0)
    monkeypatch.setattr(calls, "LONG", 0.0)
    caplog.set_level("INFO", "hifigemm")
    a = np.random.default_rng(1).standard_normal((23, 41))
    for _ in range(2):
        caplog.clear()
        hg.matmul(a, a.T, **options)
        first = caplog.records[0].getMessage()
        assert first.startswith("(23 x 41) @ (41 x 23) float64: ")
        assert first.endswith(" s expected")
        assert "expected" not in "".join(x.getMessage() for x in caplog.records[1:])


def test_short_calls_are_not_announced(caplog):
    caplog.set_level("INFO", "hifigemm")
    for _ in range(2):
        hg.matmul(np.ones((30, 30)), np.ones((30, 30)), accuracy="correct")
    assert "expected" not in caplog.text


def test_expected_times_grow_with_the_work_and_shrink_with_threads(monkeypatch):
    def seconds(n, dtype=float, **options):
        plan = hg.make_plan(np.ones((n, n), dtype), np.ones((n, n), dtype), **options)
        return expected_seconds(plan)

    monkeypatch.setattr(threads, "limit", lambda: 1)
    for options in ({}, {"accuracy": "correct"}, {"scheme": "ozaki2"}):
        of_small = seconds(200, **options)
        assert seconds(400, **options) == pytest.approx(8 * of_small)
        assert seconds(200, complex, **options) > 2 * of_small > 0
    assert seconds(400) < seconds(400, accuracy="correct")
    of_one = seconds(600)
    monkeypatch.setattr(threads, "limit", lambda: 2)
    assert seconds(600) == of_one / 2
