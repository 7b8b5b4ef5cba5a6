"""Names of PyTorch that stand in no documentation do what the operators take them
for.
"""

from __future__ import annotations

import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.func import grad, vmap  # noqa: E402

from hifigemm.differentiable import torch_private as private  # noqa: E402

KEY = "a test of hifigemm"


class Kept:
    """Something to be left for a thread."""


def test_what_is_given_to_a_thread_is_there_until_it_is_replaced():
    assert private.of_thread("a key that nobody uses") is None
    first, second = Kept(), Kept()
    private.give_thread(KEY, first)
    assert private.of_thread(KEY) is first
    private.give_thread(KEY, second)
    assert private.of_thread(KEY) is second
    private.give_thread(KEY, None)
    assert private.of_thread(KEY) is None


def test_a_new_thread_has_nothing_of_the_one_that_started_it():
    private.give_thread(KEY, Kept())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(private.of_thread(KEY)))
    thread.start()
    thread.join()
    private.give_thread(KEY, None)
    assert seen == [None]


def test_a_backward_pass_has_what_was_given_to_the_thread_that_started_it():
    seen = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(private.of_thread(KEY))
            return gradient

    kept = Kept()
    x = torch.ones(2, requires_grad=True)
    private.give_thread(KEY, kept)
    Looks.apply(x).sum().backward()
    private.give_thread(KEY, None)
    assert seen == [kept]


def test_references_to_what_is_given_are_counted_right():
    """PyTorch 2.11 takes a reference that it does not own; the object would be freed
    while it is in use.
    """
    kept = Kept()
    before = sys.getrefcount(kept)
    for _ in range(5):
        private.give_thread(KEY, kept)
        private.give_thread(KEY, None)
    assert sys.getrefcount(kept) >= before
    look = weakref.ref(kept)
    private.give_thread(KEY, kept)
    del kept
    assert private.of_thread(KEY) is look()
    assert look() is not None
    private.give_thread(KEY, None)


def test_autocast_is_off_inside():
    a = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype is torch.bfloat16
        with private.without_autocast():
            assert (a @ a).dtype is torch.float32
        assert (a @ a).dtype is torch.bfloat16


def test_transforms_are_seen_and_looked_through():
    seen = []

    def look(x):
        seen.append((private.in_functorch(), private.innermost(x).shape))
        return x.sum()

    x = torch.ones(3, 4)
    look(x)
    vmap(look)(x)
    vmap(grad(look))(x)
    assert seen == [(False, (3, 4)), (True, (3, 4)), (True, (3, 4))]
    assert private.innermost(x) is x


def test_tensors_of_a_graph_are_differentiated():
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    assert not private.is_differentiated(x, None)
    assert private.is_differentiated(x, y)
    with torch.no_grad():
        assert not private.is_differentiated(x, y)
    assert not private.in_forward_ad()
    with forward_ad.dual_level():
        assert private.in_forward_ad()
        assert private.is_differentiated(x)


def test_derivatives_outside_of_a_function_are_switched_on():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad(), private.differentiating_outside():
        assert (2 * x).requires_grad
    assert torch.is_grad_enabled()


def test_operators_and_their_kernels_are_known_by_name():
    assert private.is_operator("aten::mm.out")
    assert not private.is_operator("aten::mm.nowhere")
    assert private.has_kernel("aten::mm", "CPU")
    assert private.has_kernel("aten::mm.out", "CUDA") == torch.backends.cuda.is_built()
    assert not private.has_kernel("aten::_cudnn_rnn", "CPU")
    assert private.has_kernel("aten::new_full", "CPU")  # one kernel for all devices


def test_tensors_without_memory_or_numbers_are_told_apart():
    x = torch.ones(2)
    assert not private.is_zero_tensor(x)
    assert private.is_zero_tensor(torch._efficientzerotensor(2))
    assert not private.is_traced(x)
    with FakeTensorMode() as mode:
        assert private.is_traced(mode.from_tensor(x))


def test_a_kernel_stands_in_front_of_the_one_before_until_its_library_goes():
    a = torch.ones(2, 2)
    library = torch.library.Library("aten", "IMPL")
    previous = torch.library.get_kernel("aten::trace", "CPU").call_boxed
    assert not private.is_from(__file__, "aten::trace", "CPU")
    private.implement(library, "trace", lambda keys, x: previous(keys, x) + 1, "CPU")
    assert private.is_from("torch_private.py", "aten::trace", "CPU")
    assert torch.trace(a) == 3
    library._destroy()
    assert torch.trace(a) == 2


def test_an_operator_runs_below_its_derivatives():
    x = torch.ones(2, 2, requires_grad=True)
    library = torch.library.Library("hifigemm_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: 2 * x, "CPU")
    seen = []

    def of_autograd(keys, x):
        seen.append(private.reaches_device(keys))
        return private.below_autograd(torch.ops.hifigemm_test.twice.default, keys, x)

    library.impl("twice", of_autograd, "Autograd", with_keyset=True)
    product = torch.ops.hifigemm_test.twice(x)
    assert torch.equal(product, torch.full((2, 2), 2.0))
    assert not product.requires_grad
    assert seen == [True]
    library._destroy()
