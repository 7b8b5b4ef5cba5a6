"""The drop-in: each product of PyTorch inside has the bits of `hifigemm.matmul`, and
all else is PyTorch's own.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import threading
import types
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.func import vmap  # noqa: E402

from hifigemm.interop import policy as policies  # noqa: E402
from hifigemm.interop import torch_leaves, torch_private  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
CORRECT = {"accuracy": "correct"}


@pytest.fixture(autouse=True)
def native_afterwards():
    yield
    hg.uninstall()


@pytest.fixture(params=DEVICES)
def random(request):
    """Random tensors, so many that native sums are not correctly rounded."""
    generator = torch.Generator(request.param).manual_seed(1)

    def make(*shape, dtype=torch.float64):
        return torch.randn(
            *shape, dtype=dtype, device=request.param, generator=generator
        )

    return make


@contextmanager
def scope_without_products(*policy, **options):
    """A scope at whose end it is said that PyTorch multiplied nothing."""
    message = "no product of PyTorch was seen in this scope; products of NumPy and JAX are not reached"
    with (
        pytest.warns(UserWarning, match=message),
        hg.emulate(*policy, **options) as products,
    ):
        yield products


def exact(a, b):
    return hg.matmul(a, b, **CORRECT)


def added(c, product, alpha, beta):
    return torch.add(c * beta, product, alpha=alpha)


def flat(a, b):
    """The factors of addbmm."""
    return a.transpose(0, 1).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2])


PRODUCTS = {
    "mm": (((5, 70), (70, 6)), lambda a, b: exact(a, b)),
    "bmm": (((3, 5, 70), (3, 70, 6)), lambda a, b: exact(a, b)),
    "mv": (((5, 70), (70,)), lambda a, b: exact(a, b)),
    "dot": (((70,), (70,)), lambda a, b: exact(a, b)),
    "vdot": (((70,), (70,)), lambda a, b: exact(a.conj(), b)),
}
SUMS = {
    "addmm": ((5, 6), ((5, 70), (70, 6)), exact),
    "baddbmm": ((3, 5, 6), ((3, 5, 70), (3, 70, 6)), exact),
    "addbmm": ((5, 6), ((3, 5, 30), (3, 30, 6)), lambda a, b: exact(*flat(a, b))),
    "addmv": ((5,), ((5, 70), (70,)), exact),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype, random):
    (shape, other), reference = PRODUCTS[name]
    a, b = random(*shape, dtype=dtype), random(*other, dtype=dtype)
    want = reference(a, b)
    function = getattr(torch, name)
    with hg.emulate("correct"):
        assert torch.equal(function(a, b), want)
        for out in (
            torch.empty_like(want),
            torch.empty(0, dtype=dtype, device=a.device),
        ):
            assert function(a, b, out=out) is out
            assert torch.equal(out, want)
        strided = torch.full((*want.shape, 2), 7, dtype=dtype, device=a.device)
        function(a, b, out=strided[..., 0])
    assert torch.equal(strided[..., 0], want)
    assert (strided[..., 1] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "scalars", [{}, {"alpha": -3}, {"beta": 0.3}, {"alpha": 0.5, "beta": -2}], ids=str
)
@pytest.mark.parametrize("name", SUMS)
def test_sums_round_the_product_first(name, scalars, dtype, random):
    shape, factors, reference = SUMS[name]
    c, (a, b) = random(*shape, dtype=dtype), (random(*x, dtype=dtype) for x in factors)
    alpha, beta = scalars.get("alpha", 1), scalars.get("beta", 1)
    want = added(c, reference(a, b), alpha, beta)
    with hg.emulate("correct"):
        assert torch.equal(getattr(torch, name)(c, a, b, **scalars), want)
        out = torch.empty_like(c)
        getattr(torch, name)(c, a, b, **scalars, out=out)
        assert torch.equal(out, want)
        assert getattr(c, f"{name}_")(a, b, **scalars) is c
    assert torch.equal(c, want)


def test_a_row_is_added_to_each_row_and_activated(random):
    a, b, c = random(5, 70), random(70, 6), random(6)
    want = exact(a, b) + c
    with hg.emulate("correct"):
        assert torch.equal(torch.nn.functional.linear(a, b.mT, c), want)
        assert torch.equal(torch._addmm_activation(c, a, b), want.relu())
        gelu = torch.nn.functional.gelu(
            want, approximate="tanh" if a.is_cuda else "none"
        )
        assert torch.equal(torch._addmm_activation(c, a, b, use_gelu=True), gelu)


def test_beta_zero_does_not_read_the_addend(random):
    a, b, c = (
        random(5, 70),
        random(70, 6),
        torch.full((5, 6), torch.nan, dtype=torch.float64),
    )
    c = c.to(a.device)
    with hg.emulate("correct"):
        assert torch.equal(torch.addmm(c, a, b, beta=0), exact(a, b))
        assert torch.equal(torch.addmm(c, a, b, beta=0, alpha=2), 2 * exact(a, b))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a.mT.mT @ b[:, ::2],
        lambda a, b: a.conj() @ b,
        lambda a, b: a @ b.mH.mT,
        lambda a, b: (a.conj().imag.to(a.dtype)) @ b,
        lambda a, b: torch.einsum("ik,kj->ji", a, b),
        lambda a, b: torch.tensordot(a, b, 1),
        lambda a, b: torch.linalg.multi_dot([a, b, b.mT]),
        lambda a, b: a.expand(2, 5, 70) @ b,
        lambda a, b: torch.inner(a, b.mT),
        lambda a, b: vmap(lambda x: x @ b)(a),
    ],
)
def test_programs_of_products_are_correctly_rounded_ones(function, random):
    """Lazy conjugates and signs, strides, and the functions that end in products: equal
    to the same in long doubles.
    """
    a, b = random(5, 70, dtype=torch.complex128), random(70, 6, dtype=torch.complex128)
    native = function(a, b)
    with hg.emulate("correct", summary=True) as products:
        got = function(a, b)
    assert sum(row.calls for row in products.rows if row.scheme != "handed on") >= 1
    assert got.shape == native.shape
    size = native.abs().max()
    assert (got - native).abs().max() <= 70**2 * 2.0**-52 * size


def test_conjugates_and_signs_that_wait_have_the_bits_of_those_that_do_not(random):
    a, b = random(5, 70, dtype=torch.complex128), random(70, 6, dtype=torch.complex128)
    with hg.emulate("correct"):
        assert torch.equal(
            a.conj() @ b.mH.mT, exact(a.conj().resolve_conj(), b.conj().resolve_conj())
        )
        x, y = a.conj().imag, b.conj().imag
        assert x.is_neg()
        assert torch.equal(x @ y, exact(x.resolve_neg(), y.resolve_neg()))


def test_gradients_of_any_order_are_products_of_the_scope(random):
    a, b, g = (
        random(5, 70).requires_grad_(),
        random(70, 6).requires_grad_(),
        random(5, 6),
    )
    with hg.emulate("correct"):
        (of_a, of_b) = torch.autograd.grad(a @ b, (a, b), g)
        (again,) = torch.autograd.grad(
            torch.autograd.grad(a @ b, a, g.requires_grad_(), create_graph=True)[
                0
            ].sum(),
            g,
        )
        tangent = torch.func.jvp(lambda x: x @ b, (a,), (b.mT[:5],))[1]
    assert torch.equal(of_a, exact(g, b.mT))
    assert torch.equal(of_b, exact(a.mT, g))
    assert torch.equal(again, exact(torch.ones_like(a), b))
    assert torch.equal(tangent, exact(b.mT[:5], b))


def test_a_backward_pass_after_the_scope_is_native_and_after_install_is_not(random):
    a, b, g = random(40, 70).requires_grad_(), random(70, 60), random(40, 60)
    native = g @ b.mT
    assert not torch.equal(native, exact(g, b.mT))
    with hg.emulate("correct"):
        c = a @ b
    assert torch.equal(torch.autograd.grad(c, a, g)[0], native)
    hg.install("correct")
    assert torch.equal(torch.autograd.grad(a @ b, a, g)[0], exact(g, b.mT))


@pytest.mark.parametrize(
    ("why", "options", "function"),
    [
        ("m n k = 60 < 4**3", {"min_size": 4}, lambda x: x(3, 5) @ x(5, 4)),
        (
            "m n k = 60 < 128**3",
            {"min_size": 128, "accuracy": "fp64"},
            lambda x: x(3, 5) @ x(5, 4),
        ),
        ("dtype bfloat16", CORRECT, lambda x: x(3, 5).bfloat16() @ x(5, 4).bfloat16()),
        ("nothing to multiply", CORRECT, lambda x: x(3, 0) @ x(0, 4)),
        (
            "nothing to multiply",
            CORRECT,
            lambda x: torch.addmm(x(3, 4), x(3, 5), x(5, 4), alpha=0),
        ),
    ],
)
def test_what_is_handed_on_has_the_bits_of_pytorch(why, options, function, random):
    state = torch.random.get_rng_state()

    def made():
        torch.random.set_rng_state(state)
        return function(
            lambda *shape: torch.randn(*shape, dtype=torch.float64).to(random(1).device)
        )

    native = made()
    with hg.emulate(**options, summary=True) as products:
        assert torch.equal(made(), native)
    (row,) = products.rows
    assert (row.scheme, row.reason, row.calls) == ("handed on", why, 1)
    assert why in str(products)


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2).double()),
        lambda: torch.addmm(torch.ones(3, 2, 2), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.ones(1, 2).addmm_(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.mm(
            torch.ones(2, 3), torch.ones(3, 2), out=torch.ones(2, 2).int()
        ),
        lambda: torch.dot(torch.ones(2), torch.ones(3)),
    ],
)
def test_wrong_calls_fail_as_they_do_in_pytorch(function):
    with pytest.raises(Exception) as native:  # noqa: PT011, whatever PyTorch raises
        function()
    with hg.emulate("correct"), pytest.raises(type(native.value)) as found:
        function()
    assert str(found.value) == str(native.value)


def test_sparse_meta_and_fake_tensors_are_those_of_pytorch():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.randn(5, 7), torch.randn(7, 4)
    sparse = a.to_sparse() @ b
    with scope_without_products("correct"):
        assert (a.to("meta") @ b.to("meta")).shape == (5, 4)
        assert torch.equal(a.to_sparse() @ b, sparse)
        with FakeTensorMode() as mode:
            assert (mode.from_tensor(a) @ mode.from_tensor(b)).shape == (5, 4)


def test_autocast_has_its_way_with_operators_and_not_with_emulated_products():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", summary=True) as products,
        torch.autocast("cpu", torch.bfloat16),
    ):
        assert (a @ b).dtype is torch.bfloat16
        assert torch.equal(hg.matmul(a, b, accuracy="correct"), exact(a, b))
    assert [row.reason for row in products.rows] == ["dtype bfloat16"]


def test_an_explicit_product_inside_is_what_was_asked_for(random):
    a, b = random(40, 70), random(70, 60)
    native = a @ b
    with scope_without_products("correct", summary=True) as products:
        assert torch.equal(hg.matmul(a, b, scheme="native"), native)
        assert torch.equal(hg.matmul(a, b, scheme=hg.Native()), native)
        words = hg.matmul(a, b, scheme=hg.Multiword("fp32", 2, 3))
    assert products.rows == []
    assert torch.equal(words, hg.matmul(a, b, scheme=hg.Multiword("fp32", 2, 3)))


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
        if a.is_cuda:
            # cuBLAS warns of threads that never called the runtime before
            torch.cuda.is_current_stream_capturing()
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


def test_compiled_functions_have_the_bits_of_those_that_are_not(random):
    torch.compiler.reset()
    a, b, c = random(40, 70), random(70, 60), random(40, 60)

    def function(a, b, c):
        return torch.relu(a @ b + c) @ b.mT

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    native = compiled(a, b, c)
    with hg.emulate("correct"):
        want = exact(torch.relu(exact(a, b) + c), b.mT)
        assert torch.equal(function(a, b, c), want)
        assert torch.equal(compiled(a, b, c), want)
    assert torch.equal(compiled(a, b, c), native)
    torch.compiler.reset()


COMPILED = """
import sys, torch, hifigemm as hg
torch.manual_seed(0)
a, b, c = (torch.randn(40, 40, dtype=torch.float64) for _ in range(3))
f = lambda a, b, c: torch.relu(a @ b + c) @ b.mT
if sys.argv[1] == "emulated":
    hg.install("correct")
assert torch.allclose(torch.compile(f)(a, b, c), f(a, b, c))
d = torch.compile(f)(a, b, c)
hg.uninstall()
product = (lambda x, y: hg.matmul(x, y, accuracy="correct")) if sys.argv[1] == "emulated" else torch.matmul
x = product(torch.relu(product(a, b) + c), b.mT)
print(bool(torch.equal(d, x)))
"""


@pytest.mark.slow
def test_processes_that_share_compiled_code_have_their_own_results(tmp_path):
    """Inductor's code and the cache of graphs on disk hold no product of the other
    process.
    """
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    for way in ("native", "emulated", "native", "emulated"):
        done = subprocess.run(
            [sys.executable, "-c", COMPILED, way],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        # native bits may differ: compiled code adds C inside of the library
        if way == "emulated":
            assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "fp63"},
        {"accuracy": -1},
        {"scheme": "ozaki3"},
        {"min_size": -1},
        {"min_size": 2.5},
        {"workspace": 0},
        {"workspace": "1 GB"},
    ],
    ids=str,
)
def test_wrong_policies_are_refused_at_once(options):
    with pytest.raises(hg.PlanError):
        hg.emulate(**options)
    with pytest.raises(hg.PlanError):
        hg.install(**options)
    assert policies.current_policy() is None


def test_errors_of_a_forced_scheme_come_through_an_operator_sign():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", scheme=hg.Native()),
        pytest.raises((hg.AccuracyError, hg.PlanError)),
    ):
        a @ b


def test_the_summary_counts_times_and_saves(tmp_path, random):
    a, b = random(40, 70), random(70, 60)
    with hg.emulate("correct", summary=True) as products:
        for _ in range(4):
            a @ b
        a.half() @ b.half()
    emulated, other = products.rows
    assert (emulated.operation, emulated.dtype, emulated.device) == (
        "mm",
        "float64",
        a.device.type,
    )
    assert (emulated.shapes, emulated.calls, emulated.timed_calls) == (
        ((40, 70), (70, 60)),
        4,
        4,
    )
    assert ("DoubleDouble" if a.device.type == "cpu" else "Ozaki") in emulated.scheme
    assert emulated.seconds > 0
    assert emulated.gain == pytest.approx(
        emulated.native_seconds * 4 / emulated.seconds
    )
    assert (other.calls, other.gain) == (1, None)
    products.save(tmp_path / "products.json")
    rows = json.loads((tmp_path / "products.json").read_text())["products"]
    assert [(row["operation"], row["calls"], row["reason"]) for row in rows] == [
        ("mm", 4, emulated.reason),
        ("mm", 1, "dtype float16"),
    ]
    table, remark = str(products).splitlines()[:-1], str(products).splitlines()[-1]
    assert len(table) == 3
    assert "speed-up" in table[0]
    assert remark.startswith("never counted")


def generator():
    yield 1


async def coroutine():
    return 1


class CalledAsGenerator:
    def __call__(self):
        yield 1


class CalledAsCoroutine:
    async def __call__(self):
        return 1


class CalledAsStatic:
    __call__ = staticmethod(coroutine)


@pytest.mark.parametrize(
    "later",
    [
        generator,
        coroutine,
        dict,
        CalledAsGenerator(),
        CalledAsCoroutine(),
        CalledAsStatic(),
        CalledAsCoroutine().__call__,
        functools.partial(generator),
    ],
)
def test_what_runs_after_its_call_cannot_be_decorated(later):
    with pytest.raises(TypeError, match="cannot decorate"):
        hg.emulate("correct")(later)


def test_objects_that_are_called_can_be_decorated():
    class Called:
        def __call__(self, x):
            return x

    a, b = torch.randn(4, 70), torch.randn(70, 5)
    assert torch.equal(hg.emulate("correct")(torch.matmul)(a, b), exact(a, b))
    assert hg.emulate("correct", min_size=0)(lambda x: (a @ b, x))(1)[1] == 1
    with pytest.warns(UserWarning, match="no product of PyTorch"):
        assert hg.emulate("correct")(Called())(3) == 3


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
    opened, ended, products = (
        threading.Barrier(2, timeout=60),
        threading.Barrier(2, timeout=60),
        [],
    )

    @hg.emulate("correct")
    def product(waits):
        opened.wait()
        if waits:
            ended.wait()
        products.append(a @ b)

    def run(waits):
        if a.is_cuda:
            torch.cuda.is_current_stream_capturing()
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


def test_a_scope_inside_a_compiled_function_ends_with_it(random):
    torch.compiler.reset()
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)

    def function(x, y):
        z = x * 1
        with hg.emulate("correct"):
            return z @ y

    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(a, b), correct)
        assert torch.equal(a @ b, native)
        with hg.emulate(scheme="native"):
            assert torch.equal(compiled(a, b), correct)
            assert torch.equal(a @ b, native)
    torch.compiler.reset()


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
    library, previous = (
        torch.library.Library("aten", "IMPL"),
        torch.library.get_kernel(f"aten::{name}", "CPU"),
    )
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
    assert not torch_leaves._REPLACEMENTS.is_registered


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


def test_scalars_as_pytorch_takes_them(random):
    a, b, c = random(5, 70), random(70, 6), random(5, 6)
    with hg.emulate("correct"):
        assert torch.equal(torch.addmm(c, a, b, alpha=True, beta=False), exact(a, b))
        assert torch.equal(
            torch.addmm(c, a, b, alpha=complex(2, 0)), c + 2 * exact(a, b)
        )
        with pytest.raises(RuntimeError):
            torch.addmm(c, a, b, alpha=1j)
        with pytest.raises(RuntimeError):
            torch.addmm(c.float(), a.float(), b.float(), beta=1e300)


def test_results_that_are_not_empty_are_resized_with_a_warning(random):
    a, b = random(5, 70), random(70, 6)
    with (
        hg.emulate("correct"),
        pytest.warns(UserWarning, match="output with one or more elements was resized"),
    ):
        assert torch.equal(torch.mm(a, b, out=a.new_zeros(3, 3)), exact(a, b))


def test_products_that_fail_are_not_counted():
    a, b = torch.randn(5, 70), torch.randn(70, 6)
    with (
        hg.emulate("correct", workspace=1, summary=True) as products,
        pytest.raises(hg.PlanError),
    ):
        a @ b
    assert [(row.calls, row.timed_calls) for row in products.rows] == [(0, 0)]


def convolution(x):
    return torch.nn.functional.conv2d(x(1, 2, 8, 8), x(3, 2, 3, 3))


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(
        x(1, 2, 8, 16), x(1, 2, 8, 16), x(1, 2, 8, 16)
    )


def solution(x):
    return torch.linalg.solve(x(4, 4) + 9 * torch.eye(4, dtype=torch.float64), x(4, 4))


UNREACHED = {
    "convolution": convolution,
    "scaled_dot_product_attention": attention,
    "linalg.solve": solution,
    "linalg.inv": lambda x: torch.linalg.inv(x(4, 4)),
    "linalg.det": lambda x: torch.linalg.det(x(4, 4)),
    "linalg.qr": lambda x: torch.linalg.qr(x(4, 4)).R,
    "linalg.svd": lambda x: torch.linalg.svdvals(x(4, 4)),
    "linalg.eigh": lambda x: torch.linalg.eigvalsh(x(4, 4)),
    # exact in any order
    "linalg.lstsq": lambda x: (
        torch.linalg.lstsq(2 * torch.eye(4), 4 * torch.eye(4)).solution
    ),
    "linalg.solve_triangular": lambda x: torch.linalg.solve_triangular(
        x(4, 4), x(4, 4), upper=True
    ),
    "linalg.cholesky": lambda x: torch.linalg.cholesky(
        torch.eye(4, dtype=torch.float64)
    ),
}


@pytest.fixture
def on_cpu():
    """Random tensors of the CPU, the same in each call of a test."""

    def make(*shape):
        return torch.randn(
            *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )

    return make


@pytest.mark.parametrize("operation", UNREACHED)
def test_operations_that_are_not_reached_are_counted_once_and_stay_native(
    operation, on_cpu
):
    native = UNREACHED[operation](on_cpu)
    with scope_without_products("correct", summary=True) as products:
        for _ in range(2):
            assert torch.equal(UNREACHED[operation](on_cpu), native)
    assert dict(products.sightings.unreached) == {operation: 2}
    assert f"not reached: {operation} 2" in str(products).splitlines()


@pytest.mark.parametrize("operation", UNREACHED)
def test_strict_scopes_raise_at_operations_that_are_not_reached(operation, on_cpu):
    native = UNREACHED[operation](on_cpu)
    with (
        pytest.raises(hg.AccuracyError, match=f"{operation} of shapes .*4"),
        hg.emulate("correct", strict=True),
    ):
        UNREACHED[operation](lambda *shape: on_cpu(*(4 for _ in shape)))
    hg.install("correct", strict=True)
    with pytest.raises(hg.AccuracyError, match=operation):
        UNREACHED[operation](on_cpu)
    with hg.emulate(scheme="native"):
        assert torch.equal(UNREACHED[operation](on_cpu), native)
    hg.uninstall()
    assert torch.equal(UNREACHED[operation](on_cpu), native)


def test_backward_passes_of_operations_that_are_not_reached_are_counted(on_cpu):
    x, w = on_cpu(1, 2, 8, 8), on_cpu(3, 2, 3, 3).requires_grad_()
    with hg.emulate("correct", summary=True) as products:
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))
        torch.nn.functional.conv2d(x, w).sum().backward()
    assert dict(products.sightings.unreached) == {
        "convolution": 1,
        "convolution_backward": 1,
    }
    with hg.emulate("correct", strict=True):
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))
        with hg.emulate(scheme="native"):
            y = torch.nn.functional.conv2d(x, w).sum()
        with pytest.raises(hg.AccuracyError, match="convolution_backward"):
            y.backward()


def test_operations_that_are_not_reached_in_other_dtypes_are_no_concern_of_a_strict_scope(
    on_cpu,
):
    x, w = on_cpu(1, 2, 8, 8).bfloat16(), on_cpu(3, 2, 3, 3).bfloat16()
    native = torch.nn.functional.conv2d(x, w)
    with hg.emulate("correct", strict=True):
        assert torch.equal(torch.nn.functional.conv2d(x, w), native)
        torch.mm(on_cpu(2, 3), on_cpu(3, 2))


def test_kernels_that_watch_stand_there_for_summaries_and_strict_scopes_alone(on_cpu):
    names = (
        "convolution",
        "_linalg_solve_ex",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    before = [torch._C._dispatch_dump_table(f"aten::{name}") for name in names]

    def is_watched():
        return [
            torch._C._dispatch_dump_table(f"aten::{name}") for name in names
        ] != before

    product = functools.partial(torch.mm, on_cpu(2, 3), on_cpu(3, 2))
    for options in ({"summary": True}, {"strict": True}):
        with hg.emulate("correct"):
            product()
            assert not is_watched()
            with hg.emulate("correct", **options):
                assert is_watched()
                with hg.emulate("fp64", **options):
                    product()
                assert is_watched()
            assert not is_watched()
        hg.install("correct", **options)
        assert is_watched()
        hg.install("correct")
        assert not is_watched()
        hg.install("correct", **options)
        hg.uninstall()
        assert not is_watched()


def test_scopes_in_which_pytorch_multiplies_nothing_warn():
    a = torch.ones(3, 3).numpy()
    message = "no product of PyTorch was seen in this scope; products of NumPy and JAX are not reached"
    with pytest.warns(UserWarning, match=message) as found, hg.emulate("correct"):
        a @ a
    assert found[0].filename == __file__
    decorated = hg.emulate("correct")(lambda: a @ a)
    with pytest.warns(UserWarning, match=message) as found:
        decorated()
    assert found[0].filename == __file__
    with scope_without_products("correct", summary=True) as products:
        a @ a
    assert message in str(products)
    assert "hifigemm.numpy" in str(products)
    with (
        pytest.raises(hg.AccuracyError, match=message),
        hg.emulate("correct", strict=True),
    ):
        a @ a


@pytest.mark.parametrize("strict", [False, True])
def test_scopes_do_not_complain_of_products_handed_on_of_inner_scopes_and_where_an_exception_leaves(
    strict,
):
    a = torch.ones(3, 3)
    with hg.emulate("fp32", strict=strict):  # on a CPU all of these are handed on
        a @ a
    with hg.emulate("correct", strict=strict):
        a.bfloat16() @ a.bfloat16()
    with (
        hg.emulate("correct", strict=strict),
        hg.emulate(scheme="native", strict=strict),
    ):
        a @ a
    with hg.emulate("correct", strict=strict), hg.emulate("fp32", strict=strict):
        a @ a
    with hg.emulate(scheme="native", strict=strict):
        pass
    with pytest.raises(ZeroDivisionError), hg.emulate("correct", strict=strict):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), hg.emulate("correct", strict=strict):
        torch.mm(a, a[:2])

    def inside():
        with hg.emulate("correct", strict=strict):
            yield

    steps = inside()
    next(steps)
    steps.close()


def test_sums_of_products_without_an_operator_are_named_in_each_summary():
    """inner, tensordot and einsum that PyTorch makes of mul and sum: native, and said
    to be.
    """
    strided, ones = (
        torch.tensor([1e16, 9, 1, 9, -1e16], dtype=torch.float64)[::2],
        torch.ones(3, dtype=torch.float64),
    )
    p, q = (
        torch.randn(3, 1, dtype=torch.complex128),
        torch.randn(1, 3, dtype=torch.complex128),
    )
    calls = [
        ("inner", torch.inner, (strided, ones)),
        ("tensordot", torch.tensordot, (strided, ones, 1)),
        ("einsum", torch.einsum, ("ij,jk->ik", p, q)),
        ("vecdot", torch.linalg.vecdot, (p, p)),
        ("kron", torch.kron, (p, q)),
        ("outer", torch.outer, (ones, ones)),
    ]
    for name, function, operands in calls:
        native = function(*operands)
        with scope_without_products("correct", summary=True) as products:
            assert torch.equal(function(*operands), native)
        assert products.rows == []
        assert name in str(products).splitlines()[-1]
    with hg.emulate("correct"):
        assert torch.dot(strided, ones) == torch.inner(strided.contiguous(), ones) == 1
        assert torch.equal(p @ q, exact(p, q))


WITHOUT_TORCH = """
import sys, hifigemm as hg
sys.modules["torch"] = None  # which Python takes for a module that is not there
for function in (hg.emulate, hg.install):
    try:
        function("correct")
    except ImportError as error:
        print(type(error).__name__, error)
hg.uninstall()
"""


def test_without_pytorch_a_scope_says_whose_products_it_makes():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(
            "ImportError emulate and install make the products of PyTorch, which is not installed"
        )
        assert "pip install torch" in line
        assert "hifigemm.numpy" in line


def test_the_page_on_pytorch_runs():
    page = Path(__file__).parents[2] / "docs" / "pytorch.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(page), "exec"), {})


RESIDUES = hg.Ozaki2(num_moduli=15, scaling="fast")


def words_of(a, b):
    return hg.matmul(a, b, scheme=RESIDUES)


@pytest.mark.gpu
# which PyTorch captures before its own
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("way", ["drop-in", "operator"])
def test_graphs_of_compiled_functions_hold_emulated_products(way):
    """mode="reduce-overhead": the first call warms up, the second records a CUDA graph,
    later ones replay it.
    """
    torch.compiler.reset()
    a, b, c = (
        torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(3)
    )
    product = torch.matmul if way == "drop-in" else words_of

    def function(a, b, c):
        return product(torch.relu(product(a, b) + c), b.mT)

    want = words_of(torch.relu(words_of(a, b) + c), b.mT)
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    with hg.emulate(scheme=RESIDUES) if way == "drop-in" else nullcontext():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(a, b, c), want)
        x, y, z = (
            torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(3)
        )
        want = words_of(torch.relu(words_of(x, y) + z), y.mT)
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(x, y, z), want)
    torch.compiler.reset()


@pytest.mark.gpu
def test_products_of_the_drop_in_are_captured():
    a, b = (torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(2))
    want = words_of(a, b)
    with hg.emulate(scheme=RESIDUES):
        assert torch.equal(a @ b, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = a @ b
    c.zero_()
    graph.replay()
    assert torch.equal(c, want)


@pytest.mark.gpu
def test_default_scopes_never_wait_for_the_device():
    a, b = (
        torch.randn(1024, 1024, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    with hg.emulate():
        a @ b
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the mode is a prototype
                torch.cuda.set_sync_debug_mode("error")
            a @ b
            (a + 0) @ (b + 0)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_the_triton_kernel_of_bmm_that_pytorch_brings_lives_beside_the_drop_in():
    native = getattr(torch.backends, "python_native", None)
    if native is None:
        pytest.skip(f"PyTorch {torch.__version__} has no kernels of its own in Python")
    a, b = (
        torch.randn(3, 200, 150, device="cuda"),
        torch.randn(3, 150, 180, device="cuda"),
    )
    hg.install("correct")
    assert torch.equal(torch.bmm(a, b), exact(a, b))
    native.triton.enabled = True
    with hg.emulate("correct"):
        assert torch.equal(torch.bmm(a, b), exact(a, b))


def test_a_count_of_digits_is_no_accuracy_of_a_scope():
    for call in (hg.emulate, hg.install):
        for accuracy in (1, 12, 15.0):
            with pytest.raises(
                hg.PlanError, match=f"accuracy={accuracy:g}: .* not a count of digits"
            ):
                call(accuracy)
