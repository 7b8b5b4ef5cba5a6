from __future__ import annotations

import numpy as np

from hifigemm.base.exceptions import PlanError
from hifigemm.workshop.measuring.arrays import Workload
from hifigemm.workshop.measuring.runs import (
    CACHE_BYTES,
    operand_sets,
    run,
)
from tests.workshop.measuring.stand_ins import ARRAYS, METHOD, Steps, case_of


def test_small_operands_change_from_call_to_call():
    load = Workload(1024, 1024, 1024)
    assert len(operand_sets(ARRAYS, load)) * load.nbytes >= CACHE_BYTES
    assert len(operand_sets(ARRAYS, Workload(8, 8, 8))) == 16


def test_a_case_that_raises_fails_and_leaves_the_others_alone():
    load = Workload(20, 20, 20)
    good, reference, _ = case_of(
        load, "good", lambda a, b, out: np.matmul(a, b, out=out)
    )

    def refuse(a, b, out):
        raise PlanError("not today\nnor tomorrow")

    bad, _, _ = case_of(load, "bad", refuse)
    first, second = run([bad, good], [reference], Steps(), METHOD)
    assert first.status == "failed: not today"
    assert second.status == "timed"
