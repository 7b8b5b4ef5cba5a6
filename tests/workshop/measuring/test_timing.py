from __future__ import annotations

import itertools

import pytest

from hifigemm.workshop.measuring.timing import (
    Clock,
    CudaClock,
    Method,
    Timing,
    time_bursts,
    time_variants,
)


class Device:
    """A queue of work on a device: calls return at once and add to it, marks are places
    in it.
    """

    def __init__(self):
        self.queued, self.host, self.events, self.ahead = 0.0, 0.0, [], []

    def call(self, name, seconds):
        """A callable that takes these seconds: a number, or one after the other, the
        last one for ever.
        """
        last = [seconds] if isinstance(seconds, float) else seconds
        following = itertools.chain(last, itertools.repeat(last[-1]))

        def launch():
            self.events.append(name)
            self.queued += next(following)

        return launch

    def mark(self):
        return self.queued

    def wait(self, mark):
        self.ahead.append(self.queued - mark)
        self.host = max(self.host, mark)

    def seconds(self, start, end):
        assert max(start, end) <= self.host, (
            "a mark that the device has not reached has no time"
        )
        return end - start

    def idle(self, seconds):
        self.events.append("idle")
        self.host = self.queued = max(self.queued, self.host) + seconds


def bursts_of(device):
    """Names of the calls of each burst."""
    groups = " ".join(device.events).split("idle")[1:]
    return [group.split() for group in groups]


def test_a_burst_is_a_pause_then_warm_calls_then_timed_ones():
    device = Device()
    estimate = [9.0, 9.0, 0.25, 0.25]
    launch = device.call(
        "a", [*estimate, 64.0, 64.0, 1.0, 2.0, 32.0, 16.0, 2.0, 4.0, 8.0]
    )
    method = Method(calls=(2, 2), warm=2, bursts=2)
    assert time_bursts({"a": launch}, device, method)["a"].median == (1.5 + 3.0) / 2
    assert bursts_of(device) == [["a"] * 4] * 2


@pytest.mark.parametrize(("seconds", "calls"), [(1e-5, 8), (1.0, 2), (2.0**-8, 4)])
def test_short_calls_are_timed_more_often(seconds, calls):
    device = Device()
    time_bursts({"a": device.call("a", seconds)}, device, Method(span=2.0**-6, warm=0))
    assert bursts_of(device) == [["a"] * calls] * 7


def test_variants_take_turns_and_none_is_always_first():
    device = Device()
    variants = {name: device.call(name, 1.0) for name in "abc"}
    times = time_bursts(variants, device, Method(bursts=3, warm=1))
    assert "".join(burst[0] for burst in bursts_of(device)) == "abc" + "bca" + "cab"
    assert set(times.values()) == {Timing(1.0, 1.0, 1.0, 3, 1.0)}


def test_sustained_is_the_second_half_of_a_run_that_slows_down():
    device = Device()
    method = Method(
        sustained=1.0, runs=1, bursts=1, warm=0, calls=(1, 1), chunk=2.0**-4
    )
    in_bursts = [2.0**-7] * 2
    launch = device.call("a", [*in_bursts, *[2.0**-7] * 32, 2.0**-6])
    times = time_variants({"a": launch}, device, method)["a"]
    assert times.burst.median == 2.0**-7
    assert times.sustained.median == 2.0**-6


def test_a_run_is_long_enough_and_never_lets_the_device_wait():
    device = Device()
    seconds = 2.0**-5
    method = Method(sustained=0.75, runs=2, chunk=2.0**-4)
    times = time_variants({"a": device.call("a", seconds)}, device, method)["a"]
    assert times.sustained == Timing(seconds, seconds, seconds, 2, seconds)
    runs = [burst for burst in bursts_of(device) if len(burst) > 4]
    assert min(len(run) for run in runs[-2:]) * seconds >= method.sustained
    # The first wait of a run is for the device to be done with what was before it, the
    # last three are its end.
    waits = device.ahead[-(len(device.ahead) - 8) // 2 :]
    assert all(ahead >= 2 * method.chunk for ahead in waits[1:-2])


def test_calls_longer_than_the_run_are_timed_too():
    device = Device()
    times = time_variants(
        {"a": device.call("a", 4.0)}, device, Method(sustained=0.5, runs=1)
    )["a"]
    assert times.sustained.median == 4.0


def test_bursts_alone_where_nothing_is_to_be_sustained():
    device = Device()
    assert (
        time_variants({"a": device.call("a", 1.0)}, device, Method(sustained=0))[
            "a"
        ].sustained
        is None
    )
    assert time_variants({}, device, Method()) == {}


def test_the_clock_of_the_host_runs_forwards():
    clock = Clock()
    start = clock.mark()
    clock.idle(0.0)
    clock.wait(start)
    assert clock.seconds(start, clock.mark()) >= 0


@pytest.mark.parametrize(
    "wrong", [{"bursts": 0}, {"calls": (0, 2)}, {"runs": 0}, {"pause": -1.0}]
)
def test_senseless_methods_are_refused(wrong):
    with pytest.raises(ValueError, match="counts start at 1"):
        Method(**wrong)


def test_a_call_on_the_host_stays_what_it_is():
    run = object()
    assert Clock().without_host(run) is run


@pytest.mark.gpu
def test_launches_are_replayed(torch):
    x = torch.zeros(1000, device="cuda")
    replay = CudaClock().without_host(lambda: x.add_(1.0))
    before = float(x[0])
    replay()
    assert float(x[0]) == before + 1.0
