"""What PyTorch does with a program besides running it: products go along, and what one
would drop is refused.

What comes of products that go along is tested in interop/test_torch_operators.py.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.transforms import is_followed, is_wrapped
from hifigemm.running import keys

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, linearize, vjp, vmap  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Attempted to insert a get_attr Node:UserWarning"
)  # of what torch itself does

A, B = (
    torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for seed in range(2)
)
PLAN = hg.make_plan(A, B, scheme="ozaki1")
RIGHT = hg.prepare(B, "right", plan=PLAN)
CALLS = {
    "prepared": lambda a: hg.matmul(a, RIGHT),
    "out": lambda out: hg.matmul(A, B, out=out),
    "report": lambda a: hg.matmul(a, B, return_report=True)[0],
    "alpha": lambda alpha: hg.gemm(A, B, alpha=alpha[0, 0]),
    "beta": lambda beta: hg.gemm(A, B, A, beta=beta[0, 0]),
    "alpha of arrays": lambda alpha: hg.gemm(np.eye(2), np.eye(2), alpha=alpha[0, 0]),
    "make_plan": lambda a: hg.make_plan(a, B),
    "prepare": lambda a: hg.prepare(a, "left", plan=PLAN),
}
NAMES = {
    "out": "out",
    "beta": "beta",
    "alpha": "alpha",
    "alpha of arrays": "alpha",
}


def on_duals(call):
    with forward_ad.dual_level():
        return call(forward_ad.make_dual(A.clone(), B))


def on_duals_without_gradients(call):
    with forward_ad.dual_level(), torch.no_grad():
        return call(forward_ad.make_dual(A.clone(), B))


def exported(call):
    class Module(torch.nn.Module):
        def forward(self, x):
            return call(x)

    return torch.export.export(Module(), (A.clone(),))


def with_fake_tensors(call):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        return call(mode.from_tensor(A))


def under_a_mode_of_fake_tensors(call):
    from torch._subclasses import FakeTensorMode

    x = A.clone()
    with FakeTensorMode(allow_non_fake_inputs=True):
        return call(x)


WAYS_OF_A_TENSOR = {
    "requires_grad": lambda call: call(A.clone().requires_grad_()),
    "dual": on_duals,
    "dual under no_grad": on_duals_without_gradients,
    "meta": lambda call: call(A.to("meta")),
}
WAYS_OF_A_PROGRAM = {
    "jvp": lambda call: jvp(call, (A.clone(),), (B,)),
    "vjp": lambda call: vjp(call, A.clone()),
    "grad": lambda call: grad(lambda x: call(x).sum())(A.clone()),
    "jacrev": lambda call: jacrev(call)(A.clone()),
    "jacfwd": lambda call: jacfwd(call)(A.clone()),
    "linearize": lambda call: linearize(call, A.clone()),
    "vmap": lambda call: vmap(call)(torch.stack([A, B])),
    "functionalize": lambda call: functionalize(call)(A.clone()),
    "make_fx": lambda call: make_fx(call)(A.clone()),
    "make_fx before dispatch": lambda call: make_fx(call, pre_dispatch=True)(A.clone()),
    "make_fx with fake tensors": lambda call: make_fx(call, tracing_mode="fake")(
        A.clone()
    ),
    "export": exported,
    "fake tensors": with_fake_tensors,
    "a mode of fake tensors": under_a_mode_of_fake_tensors,
    "jit.trace": lambda call: torch.jit.trace(call, (A.clone(),)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", WAYS_OF_A_TENSOR)
def test_what_a_tensor_stands_for_besides_its_entries_is_not_dropped(way, call):
    with pytest.raises(
        TypeError,
        match=rf"^{NAMES.get(call, 'a')} (requires|has|is|=) .*(pass .*detach|expected)",
    ):
        WAYS_OF_A_TENSOR[way](CALLS[call])


@pytest.mark.thinned(7)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", WAYS_OF_A_PROGRAM)
def test_what_torch_does_with_a_program_does_not_stop_at_a_product(way, call):
    with pytest.raises(
        TypeError,
        match=r"^(a|b|c|out|alpha|beta) (is|has) .*(multiply outside it|detach)",
    ):
        WAYS_OF_A_PROGRAM[way](CALLS[call])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "way", [*sorted(set(WAYS_OF_A_TENSOR) - {"meta"}), *WAYS_OF_A_PROGRAM]
)
def test_products_of_two_tensors_go_where_those_of_torch_go(way, side):
    """Fake tensors beside tensors that have numbers are refused by both."""

    def goes(product):
        call = (
            (lambda x: product(x, B)) if side == "left" else (lambda x: product(A, x))
        )
        try:
            (WAYS_OF_A_TENSOR | WAYS_OF_A_PROGRAM)[way](call)
        except AssertionError as said:
            assert "FakeTensor" in str(said)  # noqa: PT017 - the words of torch
            return False
        return True

    assert (
        goes(partial(hg.matmul, accuracy="correct"))
        == goes(hg.matmul)
        == goes(torch.matmul)
    )


class Product(torch.autograd.Function):
    """The rules of a product, as a user would write them."""

    @staticmethod
    def forward(a, b):
        return hg.matmul(a, b, accuracy="correct")

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return Product.apply(g, b.mT), Product.apply(a.mT, g)

    @staticmethod
    def jvp(ctx, da, db):
        a, b = ctx.saved_tensors
        return Product.apply(da, b) + Product.apply(a, db)

    @staticmethod
    def vmap(info, in_dims, a, b):
        assert in_dims == (0, 0)
        return Product.apply(a, b), 0


def test_an_autograd_function_is_a_way_through_all_of_them():
    zeros, ones = torch.zeros_like(B), torch.ones_like(B)
    product, gradient = (
        hg.matmul(x, y, accuracy="correct") for x, y in ((A, B), (ones, B.mT))
    )
    a = A.clone().requires_grad_()
    Product.apply(a, B).sum().backward()
    assert torch.equal(a.grad, gradient)
    assert torch.equal(grad(lambda x: Product.apply(x, B).sum())(A), gradient)
    assert all(
        torch.equal(x, product) for x in jvp(lambda x: Product.apply(x, B), (A,), (A,))
    )
    assert torch.equal(
        vmap(Product.apply)(torch.stack([A, zeros]), torch.stack([B, B]))[0], product
    )
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(
            Product.apply(forward_ad.make_dual(A.clone(), A), B)
        )
        assert torch.equal(found.primal, product)
        assert torch.equal(found.tangent, product)


def test_a_custom_operator_is_a_way_through_traces():
    @torch.library.custom_op("hifigemm_test::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return hg.matmul(a, b, accuracy="correct")

    product.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))
    for pre_dispatch in (False, True):
        graph = make_fx(lambda x: product(x, B), pre_dispatch=pre_dispatch)(A)
        assert torch.equal(graph(B), hg.matmul(B, B, accuracy="correct"))


def test_tensors_that_nothing_follows_are_multiplied_anywhere():
    want = hg.matmul(A, B, accuracy="correct")
    with forward_ad.dual_level():
        assert torch.equal(hg.matmul(A, B, accuracy="correct"), want)
    with torch.inference_mode():
        assert torch.equal(hg.matmul(A * 1, B, accuracy="correct"), want)
    parameter = torch.nn.Parameter(A.clone())
    with torch.no_grad():
        assert torch.equal(hg.matmul(parameter, B, accuracy="correct"), want)
    assert torch.equal(hg.matmul(parameter.detach(), B, accuracy="correct"), want)
    assert torch.equal(
        hg.matmul(torch.nn.Buffer(A.clone()), B, accuracy="correct"), want
    )
    with pytest.raises(TypeError, match=r"a requires a gradient.*a\.detach\(\)"):
        hg.matmul(parameter, B, return_report=True)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("return_report=True", {"return_report": True}),
        ("out=", {"out": torch.empty(4, 4, dtype=torch.float64)}),
        ("engine=", {"engine": "torch"}),
        ("plan= and return_report=True", {"plan": PLAN, "return_report": True}),
        ("result=", {"result": "pair"}),
    ],
    ids=["report", "out", "engine", "plan and report", "pair"],
)
def test_options_without_gradients_are_named_where_a_gradient_is_needed(words, options):
    them = "them" if " and " in words else "it"
    b = B.clone().requires_grad_()
    with pytest.raises(
        TypeError,
        match=rf"b requires a gradient.*products with {words} have none\. Leave {them} out",
    ):
        hg.matmul(A, b, **options)
    with torch.no_grad():
        hg.matmul(A, b, **options)
    if "result" not in options:
        with pytest.raises(
            TypeError, match=rf"c requires a gradient.*products with {words} have none"
        ):
            hg.gemm(A, A, b, beta=1.0, **options)


def test_modes_that_watch_change_nothing():
    from torch.utils.flop_counter import FlopCounterMode

    want = hg.matmul(A, B, accuracy="correct")
    with FlopCounterMode(display=False), torch.device("meta"):
        assert torch.equal(hg.matmul(A, B, accuracy="correct"), want)


def test_tensors_of_a_class_of_their_own_are_refused():
    class Named(torch.Tensor):
        pass

    from torch.testing._internal.two_tensor import TwoTensor

    for x in (A.as_subclass(Named), torch.nn.UninitializedParameter()):
        with (
            torch.no_grad(),
            pytest.raises(
                TypeError, match=rf"a is a .*{type(x).__name__}.*as_subclass"
            ),
        ):
            hg.matmul(x, B)
    with pytest.raises(TypeError, match=r"a is a .*TwoTensor.*as_subclass"):
        hg.matmul(TwoTensor(A, B), B, return_report=True)
    # its class takes operators apart
    found = hg.matmul(TwoTensor(A, B), TwoTensor(B, A))
    assert torch.equal(found.a, hg.matmul(A, B))
    assert torch.equal(found.b, hg.matmul(B, A))
    plain = A.as_subclass(Named).as_subclass(torch.Tensor)
    assert torch.equal(hg.matmul(plain, B), hg.matmul(A, B))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_their_entries_in_memory_are_refused():
    for x in (
        torch.nested.nested_tensor([A, B]),
        torch._efficientzerotensor((4, 4)),
        A.to_sparse(),
    ):
        with pytest.raises(TypeError, match="dense memory"):
            hg.gemm(B, B, x, beta=1.0)


def test_scalars_of_tensors_are_numbers_or_refused():
    want = hg.gemm(A, B, alpha=2.0)
    assert torch.equal(hg.gemm(A, B, alpha=torch.tensor(2.0)), want)
    with torch.no_grad():
        assert torch.equal(
            hg.gemm(A, B, alpha=torch.tensor(2.0, requires_grad=True)), want
        )
    for alpha in (torch.ones(2), torch.ones(0)):
        with pytest.raises(TypeError, match=r"alpha = tensor.*expected a number"):
            hg.gemm(A, B, alpha=alpha)


def test_calls_that_are_followed_are_never_repeated_from_memory(monkeypatch):
    x, seen = A.clone(), {}
    assert not is_followed()

    def look(name):
        def note(x):
            # torch.jit runs it again, without a trace
            seen.setdefault(name, (is_followed(), is_wrapped(x)))
            return x * 1

        return note

    WAYS_OF_A_TENSOR["dual"](look("dual"))
    for name in set(WAYS_OF_A_PROGRAM) - {"linearize"}:  # a dual while make_fx traces
        WAYS_OF_A_PROGRAM[name](look(name))
    assert all(followed for followed, _ in seen.values()), seen
    assert seen["vmap"] == seen["jvp"] == (True, True)
    assert not is_followed()
    assert not is_wrapped(x)
    left = []
    vmap(lambda x: (left.append(x), x)[1])(A)
    assert is_wrapped(left[0])  # one that left its transform
    assert not keys._is_plain(torch, left[0], A.device)
    assert keys._is_plain(torch, A, A.device)


@pytest.fixture
def compiled():
    """torch.compile, with nothing left of it afterwards."""
    yield torch.compile
    torch._dynamo.reset()


SCHEMES = (
    {"accuracy": "correct"},
    {"scheme": hg.Ozaki2(num_moduli=15, scaling="fast")},
    {"scheme": hg.Ozaki1()},
)


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_programs_have_the_bits_of_eager_ones(compiled, backend):
    for options in SCHEMES:

        def program(x, y, options=options):
            return hg.matmul(2 * x, y, **options) + 1

        # Later calls of NumPy arrays run what this one has run; no frame of it is compiled.
        expected = program(A.numpy(), B.numpy())
        found = compiled(program, backend=backend)
        for n in (3, 4):
            assert torch.equal(found(A[:n], B), program(A[:n], B))
        assert np.array_equal(found(A.numpy(), B.numpy()), expected)


def test_every_public_function_can_stand_in_a_compiled_program(compiled):
    def program(x, y):
        with hg.strict():
            plan = hg.make_plan(x, y, scheme=hg.Ozaki1(num_slices=3))
            left = hg.prepare(x, "left", plan=plan)
            c, report = hg.gemm(left, y, alpha=2.0, return_report=True)
        return c + 1, report.bound, hg.engines()

    (c, *rest), (want, *others) = (
        compiled(program, backend="eager")(A, B),
        program(A, B),
    )
    assert torch.equal(c, want)
    assert rest == others
    assert torch.equal(compiled(hg.matmul, backend="eager")(A, B), hg.matmul(A, B))


def test_a_product_is_one_node_of_a_compiled_program(compiled):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    found = compiled(
        lambda x, y: hg.matmul(2 * x, y, accuracy="correct") + 1,
        backend=backend,
        fullgraph=True,
    )
    for n in range(1, 20):  # more kinds of calls than are compiled of any function
        x = torch.rand(n, n, dtype=torch.float64)
        assert torch.equal(found(x, x), hg.matmul(2 * x, x, accuracy="correct") + 1)
    assert len(graphs) <= 3  # of one row, of two or more, of any number
    for graph in graphs:
        nodes = [
            str(node.target) for node in graph.graph.nodes if node.op == "call_function"
        ]
        assert sum("hifigemm" in node for node in nodes) == 1


def test_what_is_no_operator_is_refused_in_a_whole_graph_in_the_words_of_torch(
    compiled,
):
    with pytest.raises(
        torch._dynamo.exc.Unsupported,
        match="hifigemm multiplies outside of compiled graphs",
    ):
        compiled(
            lambda x, y: hg.matmul(x, y, return_report=True)[0] + 1,
            backend="eager",
            fullgraph=True,
        )(A, B)


def test_gradients_pass_through_compiled_programs(compiled):
    def program(x, y):
        return hg.matmul(2 * x, y, accuracy="correct") + 1

    found, x = compiled(program, backend="aot_eager"), A.clone().requires_grad_()
    assert torch.equal(found(x, B), program(A, B))
    assert torch.equal(
        *(torch.autograd.grad(f(x, B).sum(), x)[0] for f in (found, program))
    )
    with pytest.raises(TypeError, match="a requires a gradient"):
        compiled(lambda x: hg.matmul(x, RIGHT) + 1, backend="eager")(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    ["import hifigemm as hg, torch", "import torch, torch._dynamo, hifigemm as hg"],
)
def test_programs_are_compiled_whichever_is_imported_first(order):
    program = f"""
{order}
a = torch.rand(4, 4, dtype=torch.float64)
found = torch.compile(lambda x: hg.matmul(2 * x, x, accuracy="correct") + 1, backend="eager")(a)
assert torch.equal(found, hg.matmul(2 * a, a, accuracy="correct") + 1)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
