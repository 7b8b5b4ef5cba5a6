import pytest

from hifigemm.bench.timing import Timing, WrongResultError, time_interleaved


class Machine:
    """A clock that only calls and waits move, and a record of what happened."""

    def __init__(self):
        self.now, self.events = 0.0, []

    def call(self, name, seconds, result):
        def run():
            self.events.append(name)
            self.now += seconds.pop(0) if isinstance(seconds, list) else seconds
            return result

        return run


def test_wrong_results_are_refused_before_anything_is_timed():
    machine = Machine()
    callables = {"right": machine.call("right", 1, 4), "wrong": machine.call("wrong", 1, 5)}

    def clock():
        raise AssertionError("the clock was read")

    with pytest.raises(WrongResultError, match="'wrong'"):
        time_interleaved(callables, check=lambda name, result: result == 4, clock=clock)
    assert machine.events == ["right", "wrong"]


def test_an_error_of_the_check_is_passed_on():
    def check(name, result):
        raise ArithmeticError(name)

    with pytest.raises(ArithmeticError, match="only"):
        time_interleaved({"only": lambda: 0}, check=check)


def test_percentiles_leave_out_check_and_warmup():
    machine = Machine()
    seconds = [100.0, 50.0, 1.0, 2.0, 3.0, 4.0, 10.0, 0.5]
    callables = {"a": machine.call("a", seconds, 0)}
    times = time_interleaved(callables, check=lambda *_: True, warmup=1, repeats=6, clock=lambda: machine.now)
    assert times == {"a": Timing(2.5, 1.0, 4.0, 6)}


def test_callables_take_turns_and_none_is_always_first():
    machine = Machine()
    callables = {name: machine.call(name, 1.0, 0) for name in "abc"}
    times = time_interleaved(callables, check=lambda *_: True, warmup=0, repeats=3, clock=lambda: machine.now)
    assert "".join(machine.events) == "abc" + "abc" + "bca" + "cab"
    assert all(timing == Timing(1.0, 1.0, 1.0, 3) for timing in times.values())


def test_the_device_is_waited_for_inside_the_measured_time():
    machine = Machine()
    pending = []

    def launch():
        pending.append(7.0)

    def synchronize():
        while pending:
            machine.now += pending.pop()

    times = time_interleaved(
        {"kernel": launch}, check=lambda *_: not pending, synchronize=synchronize, clock=lambda: machine.now
    )
    assert times["kernel"].median == 7.0


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats = 0"):
        time_interleaved({}, check=lambda *_: True, repeats=0)
