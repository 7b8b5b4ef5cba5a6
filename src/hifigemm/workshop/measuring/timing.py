"""Times of products: in bursts and sustained, variants in turns, on events where the
device has them.

A GPU that multiplies at full rate reaches its limit of power within a tenth of a second
and then lowers its clocks, so one figure does not describe it. A *burst* is a few calls
after a pause; *sustained* is the second half of a longer run without a pause. Both are
taken of all variants in turns, so that heat and neighbours hit all of them alike.

The control of the power swings: on H200s the rate of one product goes up and down by 4
to 6 % every 0.8 s, in a phase that depends on what ran before. The second half of a run
of 3.2 s has two such periods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .power import Meter, Readings, recording, summarize

Launch = Callable[[], object]


class Clock:
    """Marks in the work of a device, and the time between them: here the host, where a
    call is done when it returns.
    """

    def mark(self) -> Any:
        """A mark behind everything that was launched so far."""
        return time.perf_counter()

    def wait(self, mark: Any) -> None:
        """Return when the device has reached the mark."""

    def seconds(self, start: Any, end: Any) -> float:
        """Time of the device between two marks that it has reached."""
        return float(end - start)

    def idle(self, seconds: float) -> None:
        """Let the device rest when it is done with everything."""
        self.wait(self.mark())
        time.sleep(seconds)

    def without_host(self, run: Launch) -> Launch:
        """The call with as little of the host's time as there can be."""
        return run


class CudaClock(Clock):
    """The current stream of the current CUDA device, through events of torch."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda

    def mark(self) -> Any:
        """An event, recorded."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Synchronize with the event."""
        mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two events."""
        return float(start.elapsed_time(end)) * 1e-3

    def without_host(self, run: Launch) -> Launch:
        """The replay of a graph; see `capture`."""
        return capture(run)


@dataclass(frozen=True)
class Method:
    """How often and how long; times are in seconds."""

    pause: float = 0.15  # rest before a burst or a sustained run
    warm: int = 2  # calls of a burst that are not timed
    calls: tuple[int, int] = (2, 8)  # fewest and most timed calls of a burst
    # what the timed calls of a burst take together, as far as `calls` allows
    span: float = 0.02
    bursts: int = 7  # of each variant; their median counts
    # a run without a pause at least; its second half is timed; 0 leaves it out
    sustained: float = 3.2
    runs: int = 1  # such runs of each variant
    chunk: float = 0.05  # between the marks of a run

    def __post_init__(self) -> None:
        smallest_time = min(self.warm, self.pause, self.sustained)
        smallest_count = min(self.bursts, self.runs, *self.calls)
        if smallest_time < 0 or smallest_count < 1:
            raise ValueError(f"{self}: counts start at 1, times at 0")


QUICK = Method(pause=0.02, bursts=3, sustained=0.1, chunk=0.01)
"""For a first look: the clocks of a GPU have not settled in this time."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, 20th and 80th percentile over so many readings, and
    the least of them.
    """

    median: float
    low: float
    high: float
    repeats: int
    least: float


@dataclass(frozen=True)
class Times:
    """Seconds of one call in bursts and sustained, and what the device said during the
    sustained runs.
    """

    burst: Timing
    sustained: Timing | None = None
    readings: Readings = field(default_factory=Readings)


def time_variants(
    variants: Mapping[str, Launch],
    clock: Clock,
    method: Method,
    meter: Meter | None = None,
) -> dict[str, Times]:
    """Time every variant in bursts, then sustained, in turns; each round starts with
    another variant.

    Results are taken on trust: check them before.
    """
    bursts = time_bursts(variants, clock, method)
    if method.sustained == 0:
        return {name: Times(burst) for name, burst in bursts.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    readings: dict[str, list[Readings]] = {name: [] for name in variants}
    for turn in range(method.runs):
        for name in _turned(variants, turn):
            # what the variant before it left of clocks and power
            clock.idle(method.pause)
            estimate = bursts[name].median
            run = _sustained(variants[name], clock, method, estimate, meter)
            seconds[name].append(run[0])
            readings[name].append(run[1])
    times = {}
    for name, burst in bursts.items():
        sustained = _timing(seconds[name])
        times[name] = Times(burst, sustained, _median_readings(readings[name]))
    return times


def time_bursts(
    variants: Mapping[str, Launch], clock: Clock, method: Method
) -> dict[str, Timing]:
    """Time every variant in bursts alone."""
    calls = {}
    for name, launch in variants.items():
        calls[name] = _calls_of_burst(launch, clock, method)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(method.bursts):
        for name in _turned(variants, turn):
            clock.idle(method.pause)
            burst = _burst(variants[name], clock, method.warm, calls[name])
            seconds[name].append(burst)
    return {name: _timing(bursts) for name, bursts in seconds.items()}


def _calls_of_burst(launch: Launch, clock: Clock, method: Method) -> int:
    """So many timed calls that they take the span of the method, within its limits."""
    fewest, most = method.calls
    estimate = _burst(launch, clock, method.warm, fewest)
    if estimate <= 0:
        return fewest
    return min(max(math.ceil(method.span / estimate), fewest), most)


def time_course(
    launch: Launch, clock: Clock, calls: int, seconds: float
) -> tuple[list[float], list[float]]:
    """A run without a pause of so many seconds at least: times of the device and of the
    host after every `calls` calls.

    Both start with the time before the first call. The device never waits: two lots of
    calls are always queued behind the one that is waited for.
    """
    marks = [clock.mark()]
    clock.wait(marks[0])
    reached = [time.perf_counter()]
    while clock.seconds(marks[0], marks[len(reached) - 1]) < seconds:
        for _ in range(calls):
            launch()
        marks.append(clock.mark())
        if len(marks) > len(reached) + 2:
            clock.wait(marks[len(reached)])
            reached.append(time.perf_counter())
    for mark in marks[len(reached) :]:
        clock.wait(mark)
        reached.append(time.perf_counter())
    return [clock.seconds(marks[0], mark) for mark in marks], reached


def capture(run: Launch) -> Launch:
    """Replay of a CUDA graph that holds what the call launches.

    Raises
    ------
    RuntimeError
        The call cannot be captured: it waits for the device, or allocates where it must
        not.
    """
    import torch

    main = torch.cuda.current_stream()
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    main.wait_stream(side)
    with torch.cuda.graph(graph):
        run()
    replay: Launch = graph.replay
    return replay


def _burst(launch: Launch, clock: Clock, warm: int, calls: int) -> float:
    """Seconds of one of `calls` calls behind `warm` others."""
    for _ in range(warm):
        launch()
    start = clock.mark()
    for _ in range(calls):
        launch()
    end = clock.mark()
    clock.wait(end)
    return clock.seconds(start, end) / calls


def _sustained(
    launch: Launch, clock: Clock, method: Method, estimate: float, meter: Meter | None
) -> tuple[float, Readings]:
    """Seconds of one call, and the readings, in the second half of a run."""
    calls = max(round(method.chunk / estimate), 1) if estimate > 0 else 1
    with recording(meter) as samples:
        elapsed, reached = time_course(launch, clock, calls, method.sustained)
    half = next(i for i, seconds in enumerate(elapsed) if seconds >= elapsed[-1] / 2)
    half = min(half, len(elapsed) - 2)
    seconds = (elapsed[-1] - elapsed[half]) / (calls * (len(elapsed) - 1 - half))
    return seconds, summarize(samples, reached[half], reached[-1])


def _turned(variants: Mapping[str, Launch], turn: int) -> list[str]:
    """The names, another one first in each turn."""
    names = list(variants)
    start = turn % max(len(names), 1)
    return names[start:] + names[:start]


def _timing(seconds: list[float]) -> Timing:
    low, median, high = (float(x) for x in np.quantile(seconds, [0.2, 0.5, 0.8]))
    return Timing(median, low, high, len(seconds), min(seconds))


def _median_readings(readings: list[Readings]) -> Readings:
    """Median of each reading over the runs that have it."""
    medians = {}
    for field_of_readings in fields(Readings):
        name = field_of_readings.name
        values = [getattr(run, name) for run in readings]
        values = [x for x in values if x is not None]
        if values:
            medians[name] = float(np.median(values))
    return Readings(**medians)
