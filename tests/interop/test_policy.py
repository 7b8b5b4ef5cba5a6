"""Policies of scopes and of the process: which one holds, in which thread, until
when.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.interop import policy as policies  # noqa: E402
from tests.interop.scopes import exact  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def test_a_backward_pass_after_the_scope_is_native_and_after_install_is_not(random):
    a, b, g = random(40, 70).requires_grad_(), random(70, 60), random(40, 60)
    native = g @ b.mT
    assert not torch.equal(native, exact(g, b.mT))
    with hg.emulate("correct"):
        c = a @ b
    assert torch.equal(torch.autograd.grad(c, a, g)[0], native)
    hg.install("correct")
    assert torch.equal(torch.autograd.grad(a @ b, a, g)[0], exact(g, b.mT))


def test_scopes_nest_and_end_with_exceptions(random):
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)
    assert not torch.equal(native, correct)
    with hg.emulate("correct"):
        with hg.emulate(scheme="native"):
            assert torch.equal(a @ b, native)
            with pytest.raises(ZeroDivisionError), hg.emulate("correct"):
                raise ZeroDivisionError
            assert torch.equal(a @ b, native)
        assert torch.equal(a @ b, correct)
    assert torch.equal(a @ b, native)
    assert policies.current_policy() is None


def test_a_decorated_function_may_call_itself(random):
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)

    @hg.emulate("correct")
    def nested(depth):
        if depth:
            nested(depth - 1)
        return a @ b

    assert torch.equal(nested(2), correct)
    assert torch.equal(a @ b, native)


def test_a_scope_holds_in_its_thread_and_install_in_all(random):
    a, b = random(40, 70), random(70, 60)
    native, correct, found = a @ b, exact(a, b), []

    def work():
        found.append(a @ b)

    def in_thread():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found.pop()

    with hg.emulate("correct"):
        assert torch.equal(in_thread(), native)
        assert torch.equal(a @ b, correct)
    hg.install("correct")
    assert torch.equal(in_thread(), correct)
    with hg.emulate(scheme="native"):
        assert torch.equal(a @ b, native)
        assert torch.equal(in_thread(), correct)


def test_a_generator_that_ends_in_another_thread_closes_its_scope(random):
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)

    def inside():
        with hg.emulate("correct"):
            yield a @ b
            yield a @ b

    def close_elsewhere(steps):
        thread = threading.Thread(target=steps.close)
        thread.start()
        thread.join()

    for outer in (nullcontext(), hg.emulate(scheme="native")):
        with outer:
            steps = inside()
            assert torch.equal(next(steps), correct)
            close_elsewhere(steps)
            assert torch.equal(a @ b, native)
            steps = inside()
            next(steps)
            with hg.emulate(hg.Relative(1e-12)):
                assert torch.equal(a @ b, hg.matmul(a, b, accuracy=hg.Relative(1e-12)))
                close_elsewhere(steps)
                assert policies.current_policy().accuracy == hg.Relative(1e-12)
            assert torch.equal(a @ b, native)
    assert policies.current_policy() is None


def test_threads_that_share_a_decorated_function_close_their_own_scopes(random):
    a, b = random(40, 70), random(70, 60)
    correct = exact(a, b)
    opened = threading.Barrier(2, timeout=60)
    ended = threading.Barrier(2, timeout=60)
    products = []

    @hg.emulate("correct")
    def product(waits):
        opened.wait()
        if waits:
            ended.wait()
        products.append(a @ b)

    def run(waits):
        product(waits)
        if not waits:
            ended.wait()

    threads = [threading.Thread(target=run, args=(waits,)) for waits in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(products) == 2
    assert all(torch.equal(x, correct) for x in products)


def test_scopes_that_end_in_another_order(random):
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)

    def inside():
        with hg.emulate(scheme="native"):
            yield a @ b

    started = inside()
    assert torch.equal(next(started), native)
    with hg.emulate("correct"):
        assert list(started) == []
        assert torch.equal(a @ b, correct)
    one, other = hg.emulate("correct"), hg.emulate(scheme="native")
    one.__enter__()
    a @ b
    other.__enter__()
    one.__exit__()
    assert torch.equal(a @ b, native)
    other.__exit__()
    other.__exit__()
    assert policies.current_policy() is None
