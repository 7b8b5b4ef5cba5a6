"""PyTorch's own samples for its operators, natively and with the drop-in on: the same
results, gradients and errors.

Emulated products are correctly rounded, so that the two differ by the roundings of
native ones.
"""

from __future__ import annotations

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which torch.testing._internal imports
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

NAMES = {
    *(
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "matmul",
        "__rmatmul__",
        "einsum",
    ),
    *("inner", "tensordot", "cdist", "nn.functional.linear", "linalg.multi_dot"),
    *("linalg.matrix_power", "linalg.vecdot"),
}
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
CONDITION = 2**8
"""Roundings in a native result, relative to its largest entry: sums have up to 70 terms
of one size.
"""
pytestmark = [
    # PyTorch's own of samples: outputs that are resized
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(
    scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    yield request.param
    hg.uninstall()


@pytest.fixture(scope="module")
def operators():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found = {}
    for op in op_db:
        if op.name in NAMES:
            found.setdefault(op.name, []).append(op)
    return found


def outcome(function):
    """The tensors that a function gives, or the kind of its error."""
    try:
        return [x for x in tree_leaves(function()) if isinstance(x, torch.Tensor)]
    except Exception as error:
        return type(error)


def compare(function, what):
    """A function gives the same natively and emulated; returns how many products were
    emulated.
    """
    want = outcome(function)
    with hg.emulate("correct", min_size=0, summary=True) as products:
        got = outcome(function)
    if isinstance(want, type):
        assert isinstance(got, type), what
        return 0
    assert not isinstance(got, type), (what, got)
    assert len(got) == len(want), what
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape), what
        size = torch.nan_to_num(y).abs().max().item() if y.numel() else 0.0
        tolerance = CONDITION * torch.finfo(y.dtype).eps * size if is_inexact(y) else 0
        torch.testing.assert_close(
            x,
            y,
            rtol=0,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text: f"{what}: {text}",
        )
    return sum(row.calls for row in products.rows if row.scheme != "handed on")


def is_inexact(x):
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def real(x):
    return (x * x.conj()).real.sum() if x.is_complex() else (x * x).sum()


def gradients(op, sample, *, twice):
    """Of the sum of squares of the result, or of those of its gradients."""
    leaves = []

    def leaf(x):
        if not is_inexact(x):
            return x
        leaves.append(x.detach().clone().requires_grad_())
        return leaves[-1]

    args, kwargs = tree_map(leaf, ((sample.input, *sample.args), sample.kwargs))
    result = tree_leaves(op.op(*args, **kwargs))[0]
    found = torch.autograd.grad(
        real(result), leaves, create_graph=twice, allow_unused=True
    )
    if twice:
        total = sum(real(x) for x in found if x is not None)
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [x for x in found if x is not None]


def tangents(op, sample):
    with forward_ad.dual_level():
        dual = lambda x: forward_ad.make_dual(x, x + 0.5) if is_inexact(x) else x  # noqa: E731
        args, kwargs = tree_map(dual, ((sample.input, *sample.args), sample.kwargs))
        return forward_ad.unpack_dual(tree_leaves(op.op(*args, **kwargs))[0])


def given_out(op, sample, kind):
    """The result in an `out` of the right shape, of none, and with strides."""
    args = sample.input, *sample.args
    like = op.op(*args, **sample.kwargs)
    out = torch.empty_like(like)
    if kind == "empty":
        out = like.new_empty(0)
    elif kind == "strided":
        out = like.new_empty((*like.shape, 2))[..., 0]
    assert op.op(*args, **sample.kwargs, out=out) is out
    return out


def in_place(op, sample):
    x = sample.input.clone()
    assert op.inplace_variant(x, *sample.args, **sample.kwargs) is x
    return x


@pytest.mark.thinned(9)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(NAMES))
def test_samples(name, dtype, device, operators):
    made = 0
    for op in operators[name]:
        if dtype not in op.supported_dtypes(device):
            pytest.skip(f"{name} does not take {dtype}")
        for sample in op.sample_inputs(device, dtype):
            what = f"{name}, {dtype}: {sample}"

            def forward(s=sample, op=op):
                torch.manual_seed(0)
                return op.op(s.input, *s.args, **s.kwargs)

            made += compare(forward, what)
            is_double = dtype in (torch.float64, torch.complex128)
            if isinstance(outcome(forward), type):
                continue
            if op.supports_out:
                for kind in ("same", "empty", "strided"):
                    compare(
                        lambda s=sample, op=op, kind=kind: given_out(op, s, kind),
                        f"{what}, out {kind}",
                    )
            if op.inplace_variant is not None:
                compare(lambda s=sample, op=op: in_place(op, s), f"{what}, in place")
            if op.supports_autograd and is_double and forward().numel():
                compare(
                    lambda s=sample, op=op: gradients(op, s, twice=False),
                    f"{what}, gradients",
                )
                if op.supports_gradgrad:
                    compare(
                        lambda s=sample, op=op: gradients(op, s, twice=True),
                        f"{what}, second derivatives",
                    )
                if op.supports_forward_ad:
                    compare(
                        lambda s=sample, op=op: tangents(op, s), f"{what}, tangents"
                    )
    assert made or name in ("linalg.vecdot",)


def test_all_operators_have_samples(operators):
    assert set(operators) == NAMES
