"""Scopes whose products have the same bits for everyone."""

from __future__ import annotations

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("native_afterwards")

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
LEVEL = hg.Invariant()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("accuracy", [None, 1e-7, "correct", hg.Relative(1e-3)])
def test_a_row_has_the_same_bits_in_any_batch(dtype, accuracy, random):
    x = random(32, 70, dtype=dtype)
    weight, bias = random(9, 70, dtype=dtype), random(9, dtype=dtype)
    with hg.emulate(accuracy, invariant=True):
        whole = torch.nn.functional.linear(x, weight, bias)
        for batch in (x[:1], x[:7], x.flip(0)[-7:].flip(0)):
            part = torch.nn.functional.linear(batch, weight, bias)
            assert torch.equal(part, whole[: len(batch)])
        # As one of a stack, as a vector, and with its terms in another order.
        order = torch.randperm(70)
        stack = torch.stack([x[:5], 3 * x[5:10]])
        assert torch.equal((stack @ weight.mT)[0], (x @ weight.mT)[:5])
        assert torch.equal(weight @ x[0], (x @ weight.mT)[0])
        assert torch.equal(x[:, order] @ weight[:, order].mT, x @ weight.mT)
    assert torch.equal(
        whole, hg.matmul(x, weight.mT, accuracy=hg.Invariant(accuracy)) + bias
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("accuracy", [None, 1e-2, "correct"])
def test_so_does_a_row_of_sixteen_bits(dtype, accuracy, random):
    x = random(32, 70).to(dtype)
    weight, bias = random(9, 70).to(dtype), random(9).to(dtype)
    order = torch.randperm(70)
    with hg.emulate(accuracy, invariant=True):
        whole = torch.nn.functional.linear(x, weight, bias)
        product = x @ weight.mT
        assert whole.dtype == product.dtype == dtype
        for batch in (x[:1], x[:7]):
            part = torch.nn.functional.linear(batch, weight, bias)
            assert torch.equal(part, whole[: len(batch)])
        assert torch.equal(x[:, order] @ weight[:, order].mT, product)
    request = hg.Invariant(accuracy)
    assert torch.equal(
        product, hg.matmul(x, weight.mT, accuracy=request, out_dtype=dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_gradients_of_micro_batches_do_not_depend_on_other_rows(dtype, random):
    x, weight = random(12, 40, dtype=dtype), random(5, 40, dtype=dtype)
    gradients = []
    with hg.emulate(1e-7, invariant=True):
        for rows in (slice(0, 12), slice(3, 4), slice(2, 9)):
            leaf = x[rows].clone().requires_grad_()
            (leaf @ weight.mT).square().sum().backward()
            gradients.append(leaf.grad[3 - rows.start])
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_the_process_and_compiled_programs_have_the_bits_of_the_scope(random):
    x, y = random(8, 50), random(50, 6)
    want = hg.matmul(x, y, accuracy=hg.Invariant(1e-9))
    hg.install(1e-9, invariant=True)
    assert torch.equal(x @ y, want)
    assert torch.equal(x[2:3] @ y, want[2:3])
    hg.uninstall()
    with hg.emulate(hg.Invariant(1e-9)):
        assert torch.equal(x @ y, want)


def test_operators_carry_the_request(random):
    x, y = random(8, 50).requires_grad_(), random(50, 6)
    accuracy = hg.Invariant(1e-9)
    made = hg.matmul(x, y, accuracy=accuracy)
    assert torch.equal(made, hg.matmul(x.detach(), y, accuracy=accuracy))
    g = random(8, 6)
    made.backward(g)
    assert torch.equal(x.grad, hg.matmul(g, y.mT, accuracy=accuracy))
    text = "Invariant(1e-09)"
    again = torch.ops.hifigemm.matmul(x, y, accuracy=text)
    assert torch.equal(again, made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "native"}, "a library adds in an order"),
        ({"scheme": "corrected"}, "order of tiles"),
        ({"scheme": "ozaki2"}, "count rests on the operands"),
        ({"scheme": hg.Ozaki2(num_moduli=9)}, "other rows"),
        ({"scheme": hg.Ozaki2(num_moduli=9, scaling="fast")}, "blocks of 256"),
        ({"min_size": 64}, "min_size=64"),
        ({"accuracy": "fp16"}, "fp16"),
    ],
    ids=str,
)
def test_what_would_break_it_is_an_error_with_the_reason(options, message):
    for function in (hg.emulate, hg.install):
        with pytest.raises(hg.PlanError, match=message):
            function(**options, invariant=True)
    if "min_size" in options:
        with pytest.raises(hg.PlanError, match=message):
            hg.emulate(LEVEL, **options)


def test_products_that_pytorch_would_round_raise(random):
    x = random(5, 5, dtype=torch.float32)
    with hg.emulate(1e-6, invariant=True):
        y = x.to(torch.float8_e4m3fn)
        with pytest.raises(hg.PlanError, match="in an order that depends on"):
            y @ y
        with pytest.raises(hg.PlanError, match="mm in an invariant scope"):
            torch.mm(y, y)
        # Sums of integers have no order.
        i = torch.arange(6).reshape(2, 3)
        assert torch.equal(i @ i.T, torch.tensor([[5, 14], [14, 50]]))
    # Other scopes hand them on; PyTorch has this product on a CPU alone.
    y = y.cpu()
    with hg.emulate(1e-6):
        assert torch.mm(y, y).dtype is y.dtype


def test_the_summary_says_what_was_made(random):
    x = random(5, 5)
    with hg.emulate(1e-6, invariant=True, summary=True) as products:
        x @ x
    (row,) = products.rows
    assert "largest" in row.scheme
    assert "|a_i| |b_j|" in row.reason
