"""Executables: a certificate is read once, nothing of a call stays in them, and threads
and forked processes share them.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import FunctionType, ModuleType

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.store import forget
from hifigemm.engines import core
from hifigemm.model.executable import Outcome, RecordedDecision, Refusal, certify
from hifigemm.model.plan import Evidence, Verification
from tests.kinds_of_calls import (
    KINDS,
    K,
    M,
    N,
    arrays_of,
    as_first_call,
    kept_call,
    kept_calls,
    operands,
)

THREADS = 4


@pytest.fixture(autouse=True)
def nothing_kept():
    forget()
    yield
    forget()


def decision(**found):
    """A record that says this."""
    return RecordedDecision(True, hg.Native(), 0.25, 3, 7)._replace(**found)


@pytest.fixture
def entrywise():
    """A plan whose entries are to be certified."""
    plan = hg.make_plan(np.ones((2, 3)), np.ones((3, 2)), scheme="native")
    return replace(plan, verification=Verification.ENTRYWISE)


def test_the_bound_of_a_certified_outcome_is_that_of_its_record(entrywise):
    reads = []

    def read():
        reads.append(1)
        return decision(bound=0.25)

    outcome = certify(Outcome(None, 0.5, 1, decision=read), entrywise)
    assert outcome.bound == 0.25
    assert outcome.decision().bound == 0.25
    assert len(reads) == 1


def test_a_certificate_that_does_not_hold_leaves_its_evidence(entrywise):
    seen = Evidence(error_ratio=2.0)
    record = decision(holds=False, evidence=seen)
    refusal = certify(Outcome(None, 0.5, 1, decision=lambda: record), entrywise)
    assert isinstance(refusal, Refusal)
    assert refusal.evidence is seen


def test_only_plans_that_certify_entries_wait_for_a_record(entrywise):
    def read():
        pytest.fail("the record is read")

    outcome = Outcome(None, 0.5, 1, decision=read)
    for verification in set(Verification) - {Verification.ENTRYWISE}:
        plan = replace(entrywise, verification=verification)
        assert certify(outcome, plan) is outcome


def test_an_outcome_without_a_record_is_certified_already(entrywise):
    outcome = Outcome(None, 0.5, 1)
    assert certify(outcome, entrywise) is outcome


def arrays_behind(x):
    """The arrays that an object holds, however deeply, and not by its code."""
    arrays = []
    seen = {}
    others = [x]
    while others:
        y = others.pop()
        if id(y) in seen or isinstance(y, (type, ModuleType)):
            continue
        seen[id(y)] = y
        if isinstance(y, np.ndarray):
            arrays.append(y)
            others.append(y.base)
        elif isinstance(y, FunctionType):
            others.extend([y.__closure__, y.__defaults__, y.__kwdefaults__])
        else:
            others.extend(gc.get_referents(y))
    return arrays


SIZES = {M * K, K * N, M * N}


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_call_stays_in_its_executable(kind, dtype):
    for seed in range(2):
        given = operands(seed, dtype)
        result = KINDS[kind](*given)
        memory = [weakref.ref(x) for x in (*given, *arrays_of(result))]
        del given, result
        assert [x() for x in memory] == [None] * len(memory)
    assert not SIZES & {x.size for x in arrays_behind(kept_calls())}


@pytest.mark.parametrize("has_c", [False, True])
@pytest.mark.parametrize("accuracy", [None, "correct"])
def test_a_report_keeps_no_values(has_c, accuracy):
    a, b, c = operands()
    options = {"accuracy": accuracy, "return_report": True}
    for _ in range(2):
        if has_c:
            values, report = hg.gemm(a, b, c, alpha=0.3, beta=0.7, **options)
        else:
            values, report = hg.matmul(a, b, **options)
        assert values.size in SIZES
        # Whoever looks at the report makes its decision.
        for _ in range(2):
            assert not SIZES & {x.size for x in arrays_behind(report)}
            assert str(report)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_leave_an_executable_as_it_is(kind):
    KINDS[kind](*operands())
    call = kept_call()
    state = dict(vars(call.executable))
    for seed in range(1, 4):
        a, b, c = operands(seed)
        # The last one is refused, or goes another way.
        a[0, 0] = np.nan if seed == 3 else 1.0
        call(a, b, None, c, 0.5, 0.25)
    assert {name: id(x) for name, x in vars(call.executable).items()} == {
        name: id(x) for name, x in state.items()
    }


@pytest.mark.parametrize("kind", ["default", "correct", "ozaki1", "two roundings"])
def test_the_first_call_runs_what_later_calls_run(kind, monkeypatch):
    ran = []
    road = sys.modules["hifigemm.running.road"]
    run = road.run

    def note(plan, executable, *others):
        ran.append(executable)
        return run(plan, executable, *others)

    monkeypatch.setattr(road, "run", note)
    KINDS[kind](*operands())
    assert ran == [kept_call().executable]


def assert_threads_have_the_bits_of_one(call, assert_same_bits):
    """Threads that make the first calls of a kind at once, and many more."""
    given = [operands(seed) for seed in range(2 * THREADS)]
    want = [arrays_of(as_first_call(call, *each)) for each in given]
    forget()
    at_once = Barrier(THREADS)

    def calls(number):
        at_once.wait()
        seeds = [(number + i) % len(given) for i in range(25)]
        return [(seed, arrays_of(call(*given[seed]))) for seed in seeds]

    with ThreadPoolExecutor(THREADS) as pool:
        found = [x for each in pool.map(calls, range(THREADS)) for x in each]
    for seed, arrays in found:
        for x, y in zip(arrays, want[seed], strict=True):
            assert_same_bits(x, y)
    assert kept_call()


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_an_executable(kind, assert_same_bits):
    assert_threads_have_the_bits_of_one(KINDS[kind], assert_same_bits)


def test_threads_share_an_executable_of_a_machine_without_the_core(
    without_core, assert_same_bits
):
    assert_threads_have_the_bits_of_one(KINDS["correct"], assert_same_bits)


@pytest.mark.skipif(core.loaded()[0] is None, reason="the core is not built here")
def test_threads_of_the_caller_share_an_executable_with_threads_of_its_own(
    monkeypatch, assert_same_bits
):
    monkeypatch.setattr(core, "SHARE", 1.0)
    monkeypatch.setattr(core, "_UNSHARED", 0)
    monkeypatch.setattr(core.threads, "limit", lambda: 3)
    assert core.most_threads(1, M, N, K) > 1
    assert_threads_have_the_bits_of_one(KINDS["correct"], assert_same_bits)


IN_A_FORK = """
import os
from tests.kinds_of_calls import KINDS, arrays_of, kept_calls, operands

def results():
    return [
        [x.tobytes() for x in arrays_of(call(*operands(seed)))]
        for call in KINDS.values() for seed in range(2)
    ]

want = results()
num_kept = len(kept_calls())
child = os.fork()
same = results() == want and len(kept_calls()) == num_kept == len(KINDS)
if child == 0:
    os._exit(0 if same else 1)
print(same, os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_process_has_the_bits_of_its_parent():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FORK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["True", "0"], done.stderr
