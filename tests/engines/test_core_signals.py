"""Ctrl-C ends calls of the compiled core, and leaves nothing behind.

Calls that would take minutes have operands and results with strides of zero, which take
no memory. A process that is not done in a minute has not stopped.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hifigemm.engines import core
from tests.thread_modes import MACHINE, MODES, control

MODULE, _ = core.loaded()
MINUTE = 60
pytestmark = pytest.mark.skipif(MODULE is None, reason="the core is not built")

START = """
import signal, sys, threading, time
import numpy as np
import hifigemm as hg
from hifigemm.engines import core
from numpy.lib.stride_tricks import as_strided

# A job in the background of a shell ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
multiply = core.loaded()[0].multiply
x = np.random.default_rng(1).standard_normal((64, 2000))

def many(count, x):
    return as_strided(x, (count, *x.shape), (0, *x.strides))

def soon(seconds=0.3):
    threading.Timer(seconds, signal.raise_signal, (signal.SIGINT,)).start()

def product(count, m, k, n, kind=0, check=None):
    first, second = np.empty((m, n)), np.empty((m, n))
    a, b = x[:m, :k], x[:n, :k].T
    multiply(many(count, a), many(count, b), None, many(count, first),
             many(count, second), 0, kind, check)
    return first
"""

# Each takes minutes and more.
LONG = {
    "tiny": "product(10**11, 1, 1, 1)",
    "small": "product(10**10, 4, 4, 4)",
    "tiles": "product(10**7, 64, 500, 64)",
    "pairs": "product(10**7, 64, 500, 64, 1)",
    "dots": "product(10**10, 2, 2000, 2)",
    "exact sums": "x *= 2.0 ** (np.arange(2000) % 1900 - 950); product(10**8, 8, 2000, 8, 1)",
    "magnitudes": (
        "v, y = np.ones((2000, 1)), np.empty(1); core.loaded()[0].magnitude_product("
        "many(10**8, x[0]), v, many(10**8, y))"
    ),
    "rows of an inverse": (
        "n = 10**6; columns, v, y = np.ones((n, 3)), np.ones((n, 1)), np.empty((n, 1)); "
        "core.BandFactors(0, 1, columns, columns, y.T).products(v, v, v)"
    ),
    "magnitudes by columns": (
        "v, y = np.ones((10**6, 8)), np.empty((64 * 2000, 8)); "
        "core.loaded()[0].magnitude_product(many(10**6, x.ravel()).T, v, y)"
    ),
}


def lines(code):
    """What a program writes that is done within a minute."""
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MINUTE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("call", LONG)
def test_ctrl_c_ends_each_long_call(call):
    code = f"soon()\ntry: {LONG[call]}\nexcept KeyboardInterrupt: print('ended')"
    assert lines(code) == ["ended"]


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.03, 0.1])
def test_a_signal_at_the_start_of_a_call_is_not_lost(seconds):
    # Before the first look, and so perhaps in Python's code that this look runs.
    call = "product(10**10, 4, 4, 4)"
    code = f"try:\n soon({seconds}); {call}\nexcept KeyboardInterrupt: print('ended')"
    assert lines(code) == ["ended"]


def test_an_enclosure_of_a_large_system_ends():
    code = """
n = 300_000
row = np.ones(n)
a = as_strided(row, (n, n), (0, 8))
column = np.ones((n, 1))
soon(1)
try: core.loaded()[0].enclose(a, column, a, np.zeros((n, 1)), column, column, 0.5, 1.0)
except KeyboardInterrupt: print("ended")
"""
    assert lines(code) == ["ended"]


def test_all_threads_of_a_product_end():
    code = """
core.threads.limit = lambda: 3
core.SHARED_BYTES = 2**40
a, b = many(10**7, x[:, :500]), many(10**7, x[:, :500].T)
c = many(10**7, np.empty((64, 64)))
soon()
try: core.multiply(a, b, None, c, None, 0, 0)
except KeyboardInterrupt: print("ended", threading.active_count())
"""
    assert lines(code) == ["ended 1"]


def test_a_handler_that_raises_nothing_lets_the_call_go_on():
    # The second signal, which the first handler asks for, is the one that ends it.
    code = """
class Stop(Exception): pass
seen = []
def handle(number, frame):
    seen.append(number)
    if len(seen) == 2: raise Stop("a handler's own error")
    soon()
signal.signal(signal.SIGINT, handle)
soon()
try: product(10**10, 4, 4, 4)
except Stop as error: print(len(seen), error)
"""
    assert lines(code) == ["2 a handler's own error"]


def test_a_handler_may_multiply():
    code = """
want = product(1, 40, 300, 40).copy()
results = []
def handle(number, frame):
    results.append(product(1, 40, 300, 40))
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handle)
soon()
try: product(10**7, 64, 500, 64)
except KeyboardInterrupt: print((results[0] == want).all())
"""
    assert lines(code) == ["True"]


def test_calls_of_other_threads_are_finished():
    # The other thread's call outlasts that of the main thread by its own check, which
    # ends it only when Ctrl-C has come and gone.
    code = """
class Stop(Exception): pass
ended = threading.Event()
calls = []
def check():
    if ended.is_set(): calls.append(1)
    if len(calls) == 3: raise Stop
def work():
    try: product(10**10, 4, 4, 4, 0, check)
    except Stop: print("other thread worked on")
thread = threading.Thread(target=work)
thread.start()
soon()
try: product(10**10, 4, 4, 4)
except KeyboardInterrupt: print("ended", flush=True)
ended.set()
thread.join()
print((product(1, 4, 4, 4) == hg.matmul(x[:4, :4], x[:4, :4].T, accuracy="correct")).all())
"""
    assert lines(code) == ["ended", "other thread worked on", "True"]


def test_the_next_calls_of_a_kind_have_the_same_bits():
    code = """
a = np.random.default_rng(2).standard_normal((2000, 2000))
few = {"accuracy": "correct"}, {"result": "pair"}
small = a[:60, :60]
want = [np.array(hg.matmul(small, small, **options)) for options in few]
out = np.empty_like(a)
for options in ({"accuracy": "correct", "out": out}, *few):
    soon(0.2)
    try: hg.matmul(a, a, **options)
    except KeyboardInterrupt as error:
        print("ended", *getattr(error, "__notes__", ()), sep=": ")
    got = [np.array(hg.matmul(small, small, **options)) for options in few]
    assert all((x.view(int) == y.view(int)).all() for x, y in zip(got, want))
"""
    note = ""
    if sys.version_info >= (3, 11):
        note = (
            ": out is incomplete: KeyboardInterrupt ended the call that was to fill it"
        )
    assert lines(code) == [f"ended{note}", "ended", "ended"]


class _Stop(Exception):
    pass


def _stopped_product(k=2**17):
    """End a product by its check, with some 50 MB of scratch memory."""

    def stop():
        raise _Stop

    a = np.ones((1, k))
    first = np.empty((1, 1, 4))
    stack = np.broadcast_to(a, (10**7, 40, k))
    results = np.lib.stride_tricks.as_strided(first, (10**7, 40, 4), (0, 0, 8))
    with pytest.raises(_Stop):
        MODULE.multiply(stack, np.ones((k, 4)), None, results, None, 0, 0, stop)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_scratch_memory_is_released():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1])

    _stopped_product()
    before = resident()
    for _ in range(10):
        _stopped_product()
    # Two calls' worth, in pages of 4 KiB, for ten calls.
    assert resident() - before < 100e6 / 4096


@pytest.mark.skipif(MACHINE not in MODES, reason="the register is not known here")
def test_the_mode_of_the_thread_is_its_own_in_a_check_and_afterwards():
    modes = []

    def stop():
        modes.append(control())
        raise _Stop

    stack = np.broadcast_to(np.ones((4, 4)), (10**9, 4, 4))
    results = np.lib.stride_tricks.as_strided(np.empty((4, 4)), stack.shape, (0, 32, 8))
    for flags in MODES[MACHINE]:
        control(flags)
        try:
            with pytest.raises(_Stop):
                MODULE.multiply(stack, stack, None, results, None, 0, 0, stop)
            assert control() == modes.pop() == flags
        finally:
            control(0)
