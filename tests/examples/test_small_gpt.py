"""The small GPT: the same bits in every batch, and the network that its text describes."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import hifigemm as hg  # noqa: E402

FOLDER = Path(__file__).parents[2] / "examples"
WIDTH = 16
U32 = 2.0**-24


@pytest.fixture
def program(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("small_gpt")


@pytest.mark.parametrize("accuracy", ["fp32", "correct"])
def test_bits_do_not_depend_on_the_batch(program, monkeypatch, accuracy, capsys):
    # One block has every operation.
    monkeypatch.setattr(program, "LAYERS", 1)
    rows = program.main(["--size", str(WIDTH), "--accuracy", accuracy])
    assert [row.counts["invariant"] for row in rows] == [0] * 6
    # Sums of micro-batches are rounded for each of them.
    assert all(row.counts["native"] > 0 for row in rows if "gradients" in row.what)
    printed = capsys.readouterr().out
    assert "gradients, by 7 and by 32" in printed
    assert "invariant  forward" in printed


@pytest.mark.gpu
@pytest.mark.parametrize("accuracy", ["fp32", "correct"])
def test_bits_are_those_of_a_gpu(program, accuracy):
    rows = program.compare_devices(64, ("cpu", "cuda"), accuracy)
    assert [row.counts["invariant"] for row in rows] == [0, 0]


def test_numbers_that_differ_are_counted(program):
    x, y = torch.arange(6.0).view(2, 3), torch.tensor([1.0])
    assert program.differing([x, y], [x.clone(), y]) == 0
    assert program.differing([x, y], [x.flip(0), y + 2.0**-23]) == 7


def test_exponential_errs_by_a_few_units(program):
    """The last step of the polynomial errs by u, its product by 0.41 (u + 1.5 u), where
    1.5 u are those of the steps before; r errs by 0.3 u, and the remainder of the series
    is 0.12 u. The difference of x and n times the first part of log 2 is exact.
    """
    x = torch.linspace(-80.0, 80.0, 100_001)
    exact = x.double().exp()
    error = (program.exponential(x).double() - exact).abs() / exact
    assert error.max() <= 3 * U32
    ends = torch.tensor([-torch.inf, -81.0, 0.0, 81.0, torch.inf])
    values = program.exponential(ends)
    assert values[0] == values[1] > 0 < values[3] == values[4] < torch.inf
    assert values[2] == 1.0


def described(program, model, tokens, dtype):
    """Logits and gradients of the same network, from functions of PyTorch."""
    weights = {
        name: weight.detach().to(dtype).requires_grad_()
        for name, weight in model.named_parameters()
    }
    text, targets = tokens[:, :-1], tokens[:, 1:]
    letters, places = weights["embed.weight"].T.split((64, program.CONTEXT))
    x = letters[text] + places[: text.shape[1]]
    width = x.shape[-1]
    for i in range(program.LAYERS):
        block = f"blocks.{i}"
        y = F.rms_norm(x, (width,), eps=1e-5)
        q, k, v = (
            F.linear(y, weights[f"{block}.attention.{name}.weight"])
            .unflatten(2, (program.HEADS, -1))
            .transpose(1, 2)
            for name in ("query", "key", "value")
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        x = x + F.linear(y, weights[f"{block}.attention.project.weight"])
        y = F.rms_norm(x, (width,), eps=1e-5)
        y = F.gelu(F.linear(y, weights[f"{block}.expand.weight"]), approximate="tanh")
        x = x + F.linear(y, weights[f"{block}.contract.weight"])
    logits = F.linear(F.rms_norm(x, (width,), eps=1e-5), weights["head.weight"])
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: weight.grad for name, weight in weights.items()}
    return logits.detach().flatten(0, 1), gradients


def test_network_and_gradients_are_those_of_a_gpt(program):
    """Errors are at most four times those of PyTorch's own float32."""
    model, tokens = program.GPT(WIDTH), program.random_tokens("cpu")
    exact_logits, exact = described(program, model, tokens, torch.float64)
    plain_logits, plain = described(program, model, tokens, torch.float32)

    def distance(x, y):
        return torch.linalg.norm(x.double() - y)

    with hg.emulate("fp32", invariant=True), torch.no_grad():
        logits = model(tokens[:, :-1])
    assert distance(logits, exact_logits) <= 4 * distance(plain_logits, exact_logits)

    with hg.emulate("fp32", invariant=True):
        by_parts = program.whole_gradients(model, tokens, 7)
    layers = [name for name, layer in model.named_modules() if hasattr(layer, "weight")]
    names = [f"{layer}.weight" for layer in layers]
    usual = dict(zip(exact, program.usual_gradients(model, tokens, 32)))
    for name, gradient in zip(names, by_parts, strict=True):
        most = 4 * distance(plain[name], exact[name])
        assert distance(gradient, exact[name]) <= most
        assert distance(usual[name], exact[name]) <= most


def test_layers_of_all_blocks_are_spread_over_ranks(program):
    model = program.GPT(WIDTH)
    layers = {name for name, layer in model.named_modules() if hasattr(layer, "weight")}
    patterns = program.spread_layers()
    blocks = range(program.LAYERS)
    names = {name.replace("*", str(i)) for name, i in product(patterns, blocks)}
    assert names == layers - {"embed"}


def test_a_width_that_heads_cannot_share_is_named(program, capsys):
    with pytest.raises(SystemExit):
        program.main(["--size", "18"])
    assert "--size 18: no multiple of 4 heads" in capsys.readouterr().err
