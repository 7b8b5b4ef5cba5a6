"""CUDA tensors in programs that PyTorch differentiates, batches, traces, compiles, or
multiplies in less precision.
"""

from __future__ import annotations

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

# of torch itself
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FAST = hg.Ozaki2(num_moduli=14, scaling="fast")


@pytest.mark.parametrize("scheme", ["native", FAST], ids=str)
def test_what_torch_follows_is_followed_in_first_calls_and_in_repeated_ones(scheme):
    a, b = (torch.rand(30, 30, dtype=torch.float64, device="cuda") for _ in range(2))

    def product(x):
        return hg.matmul(x, b, scheme=scheme)

    def check(found, x, y):
        """The bits of the product by moduli; twice the bound of a native one, whose
        order of sums may differ.
        """
        want = hg.matmul(x, y, scheme=scheme, return_report=True)[0]
        assert (
            (found - want).abs()
            <= (2 * 30 * 2.0**-53 * (x.abs() @ y.abs()) if scheme == "native" else 0)
        ).all()

    for _ in range(3):
        leaf = a.clone().requires_grad_()
        found = product(leaf)
        check(found, a, b)
        check(torch.autograd.grad(found.sum(), leaf)[0], torch.ones_like(a), b.mT)
        with torch.autograd.forward_ad.dual_level():
            dual = product(torch.autograd.forward_ad.make_dual(a, b))
            check(torch.autograd.forward_ad.unpack_dual(dual).tangent, b, b)
        check(torch.func.vmap(product)(torch.stack([a, b]))[0], a, b)
        check(make_fx(product)(a)(a), a, b)
        check(product(a), a, b)


def test_compiled_programs_have_the_bits_of_eager_ones():
    a, b = (torch.rand(64, 64, dtype=torch.float64, device="cuda") for _ in range(2))
    for options in (
        {"accuracy": "correct"},
        {"scheme": FAST},
        {"scheme": "ozaki1"},
        {},
    ):

        def program(x, y, options=options):
            return hg.matmul(2 * x, y, **options) + 1

        found = torch.compile(program, backend="eager")
        for _ in range(2):
            assert torch.equal(found(a, b), program(a, b))
    torch._dynamo.reset()


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_the_precision_of_products_is_neither_followed_nor_changed(setting):
    a, b = (torch.rand(300, 300, device="cuda") for _ in range(2))
    schemes = (
        "native",
        hg.Multiword("tf32", 1, 1, accumulate="blocked", block=32),
        hg.Corrected("fp16"),
    )
    want = [hg.matmul(a, b, scheme=scheme) for scheme in schemes]
    torch.set_float32_matmul_precision(setting)
    try:
        held = torch.backends.cuda.matmul.fp32_precision
        for _ in range(3):
            assert all(
                torch.equal(hg.matmul(a, b, scheme=s), c)
                for s, c in zip(schemes, want, strict=True)
            )
        assert torch.backends.cuda.matmul.fp32_precision == held
        assert torch.get_float32_matmul_precision() == setting
        torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision("highest")
