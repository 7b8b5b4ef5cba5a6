"""A case carried out: every way to call, every promise held against the judge."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import hifigemm as hg
from tests.fuzz import functions, integers, narrow
from tests.fuzz.cases import Case, Way, draw, placed
from tests.fuzz.judge import Exact, level

__all__ = ["case_of", "fuzz", "outcomes"]

Counts = Counter[tuple[str, str, str, str]]
HAS_TORCH = find_spec("torch") is not None


def fuzz(
    seed: int, indices: Iterable[int], on_fault: Callable[[str], object]
) -> Counts:
    """Products by scheme, dtype, engine and outcome: "kept", "refused" or "wrong"."""
    counts: Counts = Counter()
    for index in indices:
        case = case_of(seed, index)
        for way, outcome, text in outcomes(case):
            engine = way.engine or ("torch" if way.tensors else "numpy")
            counts[case.label, str(case.dtype), engine, outcome] += 1
            if outcome == "wrong":
                on_fault(f"{case}\n  {way}\n  {text}")
    return counts


def case_of(seed: int, index: int) -> Any:
    """The case of this number: a product, every eighth one in a dtype that is asked for,
    of integers, or by another function.
    """
    drawn = {5: narrow.draw, 6: integers.draw, 7: functions.draw}.get(index % 8, draw)
    return drawn(seed, index)


def outcomes(case: Any) -> Iterator[tuple[Way, str, str]]:
    """Each way of a case with its outcome, and what is to be said of it."""
    if not isinstance(case, Case):
        yield from case.outcomes()
        return
    checks = _Checks(case)
    for way in case.ways:
        if not HAS_TORCH:
            way = replace(
                way, tensors=False, engine=None if way.engine == "torch" else way.engine
            )
        try:
            values, report = _product(case, way)
        except Exception as error:
            yield (
                way,
                "refused" if _may_refuse(case, way, error) else "wrong",
                repr(error),
            )
            continue
        text = checks.fault(way, values, report)
        yield way, "wrong" if text else "kept", text


def _product(case: Case, way: Way) -> tuple[np.ndarray, hg.Report | None]:
    """The result, and the report where one was asked for."""
    place = placed(way)
    gemm, options = dict(case.gemm or {}), {**case.options, "engine": way.engine}
    arrays = dict(zip("ab", case.factors() if way.planned else (case.a, case.b)))
    if gemm:
        arrays["c"] = gemm.pop("c")
    arrays["own"] = np.zeros(case.shape, case.dtype)
    arrays = {name: place(x) for name, x in arrays.items()}
    if way.tensors:
        import torch

        arrays = {name: torch.from_numpy(x) for name, x in arrays.items()}
    a, b, out = arrays["a"], arrays["b"], arrays.get(way.out)
    if out is not None and (
        tuple(out.shape) != case.shape or out.dtype != arrays["own"].dtype
    ):
        out = None
    limit = None if way.workspace is None else _limit(way.workspace, case, options)
    if way.planned:
        gemm |= {name: "N" for name in gemm if name.startswith("trans")}
        plan = hg.make_plan(a, b, **options)
        if way.block is not None:
            blocking = replace(
                plan.blocking, shape=_few_blocks(plan.problem, list(way.block))
            )
            plan = replace(plan, blocking=blocking)
        a = hg.prepare(a, "left", plan=plan) if "L" in way.prepared else a
        b = hg.prepare(b, "right", plan=plan) if "R" in way.prepared else b
        options = {"plan": plan}
    multiply = partial(
        hg.matmul if case.gemm is None else hg.gemm,
        a,
        b,
        **gemm,
        **options,
        workspace=limit,
        out=out,
    )
    if case.gemm is not None:
        multiply = partial(multiply, c=arrays["c"])
    if way.again and way.out not in ("a", "b", "c"):
        multiply()
    values, report = (multiply(), None) if way.again else multiply(return_report=True)
    if out is not None and values is not out:
        raise AssertionError("out is not what was returned")
    values = np.asarray(values)
    return values.astype(values.dtype.newbyteorder("="), copy=False), report


def _few_blocks(problem: Any, block: list[int]) -> tuple[int, ...]:
    """The block, or a larger one, so that there are no more than eight."""
    sizes = problem.batch, problem.m, problem.n
    while (
        math.prod(counts := [-(-size // step) for size, step in zip(sizes, block)]) > 8
    ):
        block[counts.index(max(counts))] *= 2
    return tuple(block)


def _limit(share: float, case: Case, options: dict[str, Any]) -> int:
    """Bytes between what one entry takes, for 0, and what all take at once; more for 0
    where entries are many.
    """
    if math.prod(case.shape) > 8:
        share = max(share, 0.3)
    try:
        hg.make_plan(*case.factors(), workspace=1, **options)
    except hg.PlanError as error:
        if found := re.search(r"takes (\d+)$", str(error)):
            smallest = int(found[1])
            full = hg.make_plan(*case.factors(), **options).workspace
            return smallest + int(share * (full - smallest))
        raise
    return 1


def _may_refuse(case: Case, way: Way, error: Exception) -> bool:
    """Whether a refusal keeps to the rules: a small workspace, or a scheme that has no
    more to give.
    """
    if isinstance(error, hg.PlanError):
        return way.workspace is not None and "workspace" in str(error)
    return isinstance(error, hg.AccuracyError) and isinstance(
        case.options["scheme"], hg.Native | hg.Ozaki2 | hg.Multiword | hg.Corrected
    )


class _Checks:
    """What is known of a case: its exact value, the report, which bits were judged, the
    bits of exact schemes.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.exact = case, Exact(*case.factors(), case.dtype, case.gemm)
        self.usual: Any = None
        self.judged: dict[tuple[bytes, bool], float] = {}
        self.bits: dict[tuple[bool, bool], bytes] = {}

    def fault(self, way: Way, values: np.ndarray, report: hg.Report | None) -> str:
        """What is wrong with a result, or ""."""
        if (values.shape, values.dtype) != (self.case.shape, self.case.dtype):
            return f"shape {values.shape} and dtype {values.dtype}"
        has_report = report is not None
        self.usual = report = report or self.usual
        if report is None:  # nothing but refusals before
            return ""
        promised, correct = self._promise(way, report)
        breaks_promise = report.bound > promised or (correct and not report.correct)
        if has_report and breaks_promise:
            return f"the report says {report.bound:.3g}, correct: {report.correct}"
        parts = (
            np.ascontiguousarray(values).reshape(-1).view(np.finfo(values.dtype).dtype)
        )
        found = np.where(np.isnan(parts), parts.dtype.type(np.nan), parts).tobytes()
        r = min(report.bound, promised)
        correct = correct or report.correct
        if not self.judged.get((found, correct), math.inf) <= r:
            if text := self.exact.fault(values, r, correct):
                return f"{text}; {report.scheme}, {report.reason}"
            self.judged[found, correct] = r
        # Where A is prepared, gemm changes the sign of B, whose slices in two's
        # complement are others then.
        like = way.planned, self.case.gemm is not None and "L" in way.prepared
        is_exact = report.scheme.name.startswith("ozaki") and not report.native
        if is_exact and self.bits.setdefault(like, found) != found:
            return f"other bits than before; {report.scheme}"
        return ""

    def _promise(self, way: Way, report: hg.Report) -> tuple[float, bool]:
        """The r that was asked for, and whether the result is to be rounded once."""
        scheme, accuracy = self.case.options["scheme"], self.case.options["accuracy"]
        gemm = self.case.gemm
        if accuracy in ("correct", 0.0) or getattr(scheme, "mode", None) == "correct":
            return 0.0, True
        # alpha and beta are applied to a product that is rounded already.
        rounding = 0.0 if gemm is None else float(np.finfo(self.case.dtype).eps)
        if isinstance(accuracy, float):
            # A plan speaks of the product.
            is_of_product = way.planned or way.prepared
            return accuracy + rounding * bool(is_of_product), False
        is_level = accuracy is not None or scheme == "auto" or not scheme.explicit
        if report.native or not is_level:
            return math.inf, False
        k = self.case.factors()[0].shape[-1]
        return level(accuracy, self.case.dtype, k) + rounding, False
