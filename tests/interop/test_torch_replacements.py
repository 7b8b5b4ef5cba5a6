"""Kernels in front of those that PyTorch has: beside kernels of others, and taken away
again.
"""

from __future__ import annotations

import gc
import types

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.differentiable import torch_private  # noqa: E402
from hifigemm.interop import torch_leaves  # noqa: E402
from tests.interop.scopes import exact  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def tables():
    names = ("mm", "mm.out", "bmm", "addmm", "addmm_", "dot", "baddbmm.out")
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in names]


def test_install_and_uninstall_leave_nothing_behind(random):
    before = tables()
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)
    for _ in range(20):
        hg.install("correct")
        assert torch.equal(a @ b, correct)
        hg.install(scheme="native")
        assert torch.equal(a @ b, native)
        hg.uninstall()
        assert torch.equal(a @ b, native)
    assert tables() == before
    gc.collect()
    functions = [
        x
        for x in gc.get_objects()
        if type(x) is types.FunctionType and x.__name__ == "kernel"
    ]
    own = [x for x in functions if x.__module__ == torch_leaves.__name__]
    leaves = sum(len(operation.overloads) for operation in torch_leaves._OPERATIONS)
    # PyTorch keeps the last kernel of each operator, of anybody's.
    assert len(own) <= leaves * len(torch_private.DEVICE_KEYS)
    hg.uninstall()


class Another:
    """A kernel of bmm that somebody else has put in its place, which counts its
    calls.
    """

    def __init__(self):
        self.calls = 0
        self.library = torch.library.Library("aten", "IMPL")
        previous = torch.library.get_kernel("aten::bmm", "CPU")

        def kernel(keys, *given):
            self.calls += 1
            return previous.call_boxed(keys, *given)

        self.library.impl("bmm", kernel, "CPU", with_keyset=True, allow_override=True)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_kernels_of_others_before_and_after():
    a, b = torch.randn(2, 5, 70), torch.randn(2, 70, 6)
    native, correct = torch.bmm(a, b), exact(a, b)
    before = Another()
    hg.install("correct")
    assert torch.equal(torch.bmm(a, b), correct)
    assert before.calls == 0
    with hg.emulate(scheme="native"):
        assert torch.equal(torch.bmm(a, b), native)
    assert before.calls == 1
    after = Another()
    assert torch.equal(torch.bmm(a, b), correct)
    assert after.calls == 1
    # which finds that it is no longer the first, and is again
    with hg.emulate("correct"):
        assert torch.equal(torch.bmm(a, b), correct)
    assert after.calls == 1
    after.library._destroy()
    before.library._destroy()
    # both are gone, and what they handed on to is found again
    with hg.emulate(scheme="native"):
        assert torch.equal(torch.bmm(a, b), native)
        assert torch.equal(torch.bmm(a, b, out=torch.empty_like(native)), native)
    assert torch.equal(torch.bmm(a, b), correct)


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
@pytest.mark.parametrize("name", ["mm", "bmm", "dot"])
def test_kernels_that_call_ours_may_stand_in_front(name):
    operands = {
        "mm": ((5, 70), (70, 6)),
        "bmm": ((2, 5, 70), (2, 70, 6)),
        "dot": ((70,), (70,)),
    }[name]
    a, b = (torch.randn(shape) for shape in operands)
    function = getattr(torch, name)
    native, correct = function(a, b), exact(a, b)
    with hg.emulate("correct"):
        assert torch.equal(function(a, b), correct)
    library = torch.library.Library("aten", "IMPL")
    previous = torch.library.get_kernel(f"aten::{name}", "CPU")
    kernel = lambda keys, *given: previous.call_boxed(keys, *given)  # noqa: E731
    library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
    for _ in range(2):
        with hg.emulate("correct"):
            assert torch.equal(function(a, b), correct)
        assert torch.equal(function(a, b), native)
        hg.install("correct")
        assert torch.equal(function(a, b), correct)
        hg.uninstall()
        assert torch.equal(function(a, b), native)
    library._destroy()
    assert torch.equal(function(a, b), native)
    hg.uninstall()
    assert not torch_leaves._REPLACEMENTS._libraries


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_kernels_that_do_not_call_ours_are_set_back():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    native, correct = a @ b, exact(a, b)
    raw = torch.library.get_kernel("aten::mm", "CPU")
    with hg.emulate("correct"):
        library = torch.library.Library("aten", "IMPL")
        library.impl(
            "mm",
            lambda keys, x, y: raw.call_boxed(keys, x, y),
            "CPU",
            with_keyset=True,
            allow_override=True,
        )
        assert torch.equal(a @ b, native)
        with hg.emulate("correct", summary=True) as products:
            assert torch.equal(a @ b, correct)
    assert [row.calls for row in products.rows] == [1]
    hg.uninstall()
    library._destroy()


@pytest.mark.gpu
def test_the_triton_kernel_of_bmm_that_pytorch_brings_lives_beside_the_drop_in():
    native = getattr(torch.backends, "python_native", None)
    if native is None:
        pytest.skip(f"PyTorch {torch.__version__} has no kernels of its own in Python")
    a = torch.randn(3, 200, 150, device="cuda")
    b = torch.randn(3, 150, 180, device="cuda")
    hg.install("correct")
    assert torch.equal(torch.bmm(a, b), exact(a, b))
    native.triton.enabled = True
    with hg.emulate("correct"):
        assert torch.equal(torch.bmm(a, b), exact(a, b))
