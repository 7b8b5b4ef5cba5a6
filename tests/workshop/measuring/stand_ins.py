"""Operands, a method and a clock for measurements of an instant."""

from __future__ import annotations

import numpy as np

from hifigemm.workshop.measuring.arrays import Arrays
from hifigemm.workshop.measuring.checks import Reference, native_bound
from hifigemm.workshop.measuring.runs import Case
from hifigemm.workshop.measuring.timing import Method

ARRAYS = Arrays()


METHOD = Method(pause=0.0, warm=0, calls=(1, 1), bursts=1, sustained=0.0)


class Steps:
    """A clock that moves by a second with every mark."""

    def __init__(self):
        self.time = 0
        self.bare = []

    def without_host(self, run):
        self.bare.append(run)
        return run

    def mark(self):
        self.time += 1
        return self.time

    def wait(self, mark):
        pass

    def seconds(self, start, end):
        return float(end - start)

    def idle(self, seconds):
        pass


def case_of(load, name, write):
    """A case that calls write(a, b, out) on one pair of operands, with the reference
    for it and the calls made.
    """
    a, b = ARRAYS.operands(load, 0)
    out, calls = ARRAYS.empty(load), []

    def once():
        calls.append(name)
        write(a, b, out)

    return Case(name, (once,), (out,), native_bound(load)), Reference(load, a, b), calls


def wrong_by(value, index):
    def write(a, b, out):
        np.matmul(a, b, out=out)
        out[index] += value

    return write
