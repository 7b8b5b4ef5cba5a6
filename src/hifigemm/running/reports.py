"""The report of an outcome, and the line of the log."""

from __future__ import annotations

import math

from hifigemm.base.settings import decision_log, logs_decisions
from hifigemm.model.engine import Engine, report_of
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Choice, Decision, Plan, Report, dependence_of_plan
from hifigemm.model.problem import Problem


def report_on(
    plan: Plan,
    outcome: Outcome,
    engine: Engine,
    decision_seconds: float,
    is_final: bool = True,
) -> Report:
    """The report of an outcome. Where a device decides, its record is read when
    the report is read.

    Where alpha and beta are applied to the product, the result is not final: the bound
    then has room for the rounding of A B, of which that of the sum is the second.
    """
    # Functions must not hold the outcome, and with it the memory of its values.
    scheme: Choice = plan.scheme
    num_products = outcome.num_products
    bound = outcome.bound
    k_block = plan.k_block
    recorded = outcome.decision
    reasons = [plan.reason, *outcome.notes]

    def decide() -> Decision:
        nonlocal scheme, num_products, bound, k_block
        if recorded is not None:
            record = recorded()
            scheme = record.scheme
            num_products = record.num_products
            bound = record.bound
            k_block = record.k_block
            if plan.alternatives:
                reasons.append(f"{scheme} taken")
            reasons.extend(record.notes)
        is_correct = bound == 0.0 and is_final
        if not is_final:
            reasons.append("alpha, beta applied")
            bound += 2.0 * plan.problem.fmt.u
        return Decision(
            scheme=scheme,
            num_products=math.ceil(num_products - 1e-9),
            bound=bound,
            correct=is_correct,
            k_block=k_block,
            native=scheme.is_native and num_products > 0,
            reason="; ".join(reasons),
            relative=plan.target.relative,
            normwise=plan.target.normwise,
            dependence=dependence_of_plan(plan),
        )

    return report_of(engine, decide, plan.workspace, decision_seconds)


def log_decision(problem: Problem, report: Report) -> None:
    """Write a line for the decision, if a log takes it; that waits for a device that
    decides.
    """
    if logs_decisions():
        log = decision_log()
        milliseconds = 1e3 * report.decision_seconds
        log.info(
            "%s: %s, %s; decided in %.3g ms",
            problem,
            report.scheme,
            report.reason,
            milliseconds,
        )
        log.debug("%s", report)
