"""A small GPT whose logits, tokens and gradients do not depend on the batch, on
micro-batches, or on the number of ranks.

    python examples/small_gpt.py [--device cpu|cuda] [--accuracy A] [--size N]
    python examples/small_gpt.py --compare-devices
    torchrun --nproc-per-node P examples/small_gpt.py

Each comparison is made twice: natively, and in a scope of `hg.emulate(...,
invariant=True)`, where a row of a product has the same bits whatever else is in the
batch, on every device. Invariant products do not make a network invariant, so the rest
of the network has to keep to three rules:

1. Norm, softmax and activation consist of +, -, *, / and sqrt, which IEEE 754 rounds
   correctly, one operation at a time, and of maxima, which have no order. `exp` is a
   polynomial. No tensor is divided by a number: PyTorch multiplies by 1 / x on a GPU.
   Roots are taken in float64: PyTorch's float32 roots on a CPU are not correctly rounded.
2. A sum along a row is a product with a column of ones, and a number goes to all places
   of a row by a product with a row of ones. Their derivatives are such products as well.
   PyTorch promises no order for its sums, which include gradients of broadcasts.
3. A sum over tokens, as in a gradient dW = dY^T X, is one product over the whole batch:
   sums of the micro-batches' gradients are rounded for each of them. So there are no
   gains and biases, and an embedding is a product with one-hot rows. The price is
   memory: X and dY of every layer are kept until the batch is complete.

The weights are random: the program shows which bits change, not a useful text.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import one_hot

import hifigemm as hg

LETTERS, CONTEXT, HEADS, LAYERS = 64, 32, 4, 2
SEQUENCES = 32
"""Sequences of the global batch."""
BATCHES = 1, 7, SEQUENCES
PROMPT, ANSWER = 8, 8
"""Tokens of each sequence that are read, and that are added to them."""
WAYS = "native", "invariant"

Scope = Callable[[], AbstractContextManager[Any]]


# Operations of a row


def row_sums(x: Tensor) -> Tensor:
    """A column of the sums of the rows of a matrix."""
    return x @ x.new_ones(x.shape[1], 1)


def spread(column: Tensor, count: int) -> Tensor:
    """So many copies of a column."""
    return column @ column.new_ones(1, count)


def exponential(x: Tensor) -> Tensor:
    """2^n times a Taylor polynomial of r, where x = n log 2 + r and |r| <= log(2) / 2;
    arguments beyond 80 are cut.
    """
    x = x.clamp(-80.0, 80.0)
    n = (x * 1.4426950408889634).round().detach()
    # log 2 in two parts; the first has 9 bits, so that n times it is exact.
    r = (x - n * 0.693359375) - n * -2.12194440054690583e-4

    polynomial = torch.full_like(r, 1.0 / 5040.0)
    for factorial in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        polynomial = polynomial * r + 1.0 / factorial
    power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    return polynomial * power


def norm(x: Tensor) -> Tensor:
    """Rows divided by the root of their mean square."""
    width = x.shape[1]
    mean_square = row_sums(x * x) * (1.0 / width)
    root = (mean_square + 1e-5).double().sqrt().float()
    return x / spread(root, width)


def softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Of each row of a matrix, over the entries for which the mask is 1."""
    largest = x.detach().masked_fill(mask == 0.0, -torch.inf).amax(1, keepdim=True)
    powers = exponential(x - largest) * mask
    return powers / spread(row_sums(powers), x.shape[1])


def gelu(x: Tensor) -> Tensor:
    """x / (1 + exp(-2 t)), with the t of GPT-2's tanh."""
    t = (x + x * x * x * 0.044715) * 0.7978845608028654
    return x / (exponential(t * -2.0) + 1.0)


# The network


class Attention(nn.Module):
    """Causal attention, of the heads whose columns are on this rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_width = width // HEADS
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, length: int) -> Tensor:
        q = self.heads(self.query(x), length)
        k = self.heads(self.key(x), length)
        v = self.heads(self.value(x), length)

        scores = torch.bmm(q, k.mT) * self.head_width**-0.5
        mask = x.new_ones(length, length).tril().repeat(len(q), 1)
        weights = softmax(scores.flatten(0, 1), mask).view_as(scores)
        values = torch.bmm(weights, v)

        # From one matrix for each head to one row for each token.
        values = values.view(len(x) // length, -1, length, self.head_width)
        return self.project(values.transpose(1, 2).reshape(len(x), -1))

    def heads(self, x: Tensor, length: int) -> Tensor:
        """One matrix, tokens by columns, for each head of each sequence."""
        x = x.view(len(x) // length, length, -1, self.head_width)
        return x.transpose(1, 2).flatten(0, 1)


class Block(nn.Module):
    """Attention and two layers, each added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, length: int) -> Tensor:
        x = x + self.attention(norm(x), length)
        return x + self.contract(gelu(self.expand(norm(x))))


class GPT(nn.Module):
    """Logits for each token of some sequences, one row a token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(LETTERS + CONTEXT, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, LETTERS, bias=False)

        # The same weights on every device and for every number of ranks.
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in self.parameters():
                scale = weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=random) * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device).expand_as(tokens)
        letters = one_hot(tokens, LETTERS).flatten(0, 1)
        rows = torch.cat([letters, one_hot(places, CONTEXT).flatten(0, 1)], 1)
        x = self.embed(rows.float())
        for block in self.blocks:
            x = block(x, length)
        return self.head(norm(x))


def random_tokens(device: str) -> Tensor:
    """The global batch, with one token more for the targets."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(LETTERS, (SEQUENCES, CONTEXT + 1), generator=random)
    return tokens.to(device)


# What is compared


@torch.no_grad()
def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of the first sequence."""
    return model(tokens)[: tokens.shape[1]]


@torch.no_grad()
def greedy(model: nn.Module, tokens: Tensor) -> Tensor:
    """Tokens that follow the first sequence, the likeliest one each time."""
    prompt = tokens.shape[1]
    for _ in range(ANSWER):
        logits = model(tokens).view(*tokens.shape, LETTERS)[:, -1]
        tokens = torch.cat([tokens, logits.argmax(1, keepdim=True)], 1)
    return tokens[0, prompt:]


def usual_gradients(model: nn.Module, tokens: Tensor, rows: int) -> list[Tensor]:
    """Gradients of all weights, summed over micro-batches by PyTorch."""
    model.zero_grad()
    for part in tokens.split(rows):
        logits = model(part[:, :-1])
        logits.backward(loss_gradient(logits, part))
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def whole_gradients(
    model: nn.Module, tokens: Tensor, rows: int, mesh: DeviceMesh | None = None
) -> list[Tensor]:
    """Gradients of all weights as one product each, dW = dY^T X, over all tokens of all
    micro-batches, and of all ranks of a mesh.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    inputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
    gradients: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
    outputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        inputs[layer].append(arguments[0].detach())
        outputs[layer] = output

    # Autograd goes from the logits to the outputs of all layers, and not to weights.
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    for part in tokens.split(rows):
        logits = model(part[:, :-1])
        ends = [outputs[layer] for layer in layers]
        parts = torch.autograd.grad(logits, ends, loss_gradient(logits, part))
        for layer, gradient in zip(layers, parts, strict=True):
            gradients[layer].append(gradient)
    for hook in hooks:
        hook.remove()

    products = []
    for layer in layers:
        left, right = torch.cat(gradients[layer]).T, torch.cat(inputs[layer])
        if mesh is None:
            products.append(left @ right)
            continue
        # Each rank has the columns and rows of its own tokens.
        spread_left = DTensor.from_local(left, mesh, [Shard(1)])
        spread_right = DTensor.from_local(right, mesh, [Shard(0)])
        products.append((spread_left @ spread_right).full_tensor())
    return products


def loss_gradient(logits: Tensor, tokens: Tensor) -> Tensor:
    """Derivatives of the mean cross entropy of the global batch by the logits."""
    with torch.no_grad():
        chances = softmax(logits, torch.ones_like(logits))
        targets = one_hot(tokens[:, 1:].flatten(), LETTERS)
        return (chances - targets) * (1.0 / (SEQUENCES * CONTEXT))


def differing(first: Sequence[Tensor], second: Sequence[Tensor]) -> int:
    """Numbers that are not the same in two lists of tensors."""
    pairs = zip(first, second, strict=True)
    return sum(int((x.cpu() != y.cpu()).sum()) for x, y in pairs)


# The comparisons


class Comparison(NamedTuple):
    """How many of so many numbers differ, natively and in an invariant scope."""

    what: str
    counts: dict[str, int]
    total: int

    def __str__(self) -> str:
        cells = "".join(f"{self.counts[way]:>11}" for way in WAYS)
        return f"{self.what:<52}{self.total:>8}{cells}"


def scopes(accuracy: float | str | None) -> dict[str, Scope]:
    """The context in which each way runs."""
    return {
        "native": lambda: hg.emulate(scheme="native"),
        "invariant": lambda: hg.emulate(accuracy, invariant=True),
    }


def compare_batches(
    width: int, device: str, accuracy: float | str | None
) -> list[Comparison]:
    """One sequence in several batches, and one batch in several micro-batches."""
    model, tokens = GPT(width).to(device), random_tokens(device)
    prompts = tokens[:, :PROMPT]
    logits: dict[str, list[Tensor]] = {}
    answers: dict[str, list[Tensor]] = {}
    gradients: dict[str, list[list[Tensor]]] = {}
    for way, scope in scopes(accuracy).items():
        gradients_of = usual_gradients if way == "native" else whole_gradients
        with scope():
            logits[way] = [logits_of(model, prompts[:rows]) for rows in BATCHES]
            answers[way] = [greedy(model, prompts[:rows]) for rows in BATCHES]
            gradients[way] = [gradients_of(model, tokens, rows) for rows in BATCHES]

    rows = []
    for i, count in enumerate(BATCHES[1:], 1):
        pairs = {way: ([logits[way][0]], [logits[way][i]]) for way in WAYS}
        rows.append(comparison(f"logits, alone and among {count} sequences", pairs))
    for i, count in enumerate(BATCHES[1:], 1):
        pairs = {way: ([answers[way][0]], [answers[way][i]]) for way in WAYS}
        rows.append(comparison(f"tokens, alone and among {count} sequences", pairs))
    for i, count in enumerate(BATCHES[:-1]):
        lists = {way: (gradients[way][i], gradients[way][-1]) for way in WAYS}
        rows.append(comparison(f"gradients, by {count} and by {BATCHES[-1]}", lists))
    return rows


def compare_ranks(
    mesh: DeviceMesh, width: int, accuracy: float | str | None
) -> list[Comparison]:
    """One process against all ranks: the layers are spread in the forward pass (tensor
    parallelism), and the sequences for the gradients (data parallelism).
    """
    device, ranks = mesh.device_type, mesh.size()
    logits, answers, gradients = {}, {}, {}
    for way, scope in scopes(accuracy).items():
        with scope():
            model, tokens = GPT(width).to(device), random_tokens(device)
            prompt = tokens[:1, :PROMPT]
            alone = logits_of(model, tokens[:, :-1])
            answer = greedy(model, prompt)
            own = tokens.chunk(ranks)[mesh.get_local_rank()]
            whole = whole_gradients(model, tokens, SEQUENCES)
            parts = whole_gradients(model, own, len(own), mesh)
            gradients[way] = whole, parts

            parallelize_module(model, mesh, spread_layers())
            logits[way] = [alone], [logits_of(model, tokens[:, :-1])]
            answers[way] = [answer], [greedy(model, prompt)]
    return [
        comparison(f"logits, one process and {ranks} ranks", logits),
        comparison(f"tokens, one process and {ranks} ranks", answers),
        comparison(f"gradients, one process and {ranks} ranks", gradients),
    ]


def spread_layers() -> dict[str, Any]:
    """Heads and hidden columns by rank; the sums that follow are over ranks."""
    attention = "blocks.*.attention"
    columns = [f"{attention}.{name}" for name in ("query", "key", "value")]
    return {
        **{name: ColwiseParallel() for name in (*columns, "blocks.*.expand")},
        **{
            name: RowwiseParallel()
            for name in (f"{attention}.project", "blocks.*.contract")
        },
        "head": ColwiseParallel(output_layouts=Replicate()),
    }


def compare_devices(
    width: int, devices: tuple[str, str], accuracy: float | str | None
) -> list[Comparison]:
    """The same network and batch on two devices."""
    logits, gradients = {}, {}
    for way, scope in scopes(accuracy).items():
        with scope():
            models = [GPT(width).to(device) for device in devices]
            batches = [random_tokens(device) for device in devices]
            calls = list(zip(models, batches, strict=True))
            first, second = (logits_of(model, x[:, :-1]) for model, x in calls)
            logits[way] = [first], [second]
            left, right = (whole_gradients(model, x, SEQUENCES) for model, x in calls)
            gradients[way] = left, right
    names = " and ".join(devices)
    return [
        comparison(f"logits, {names}", logits),
        comparison(f"gradients, {names}", gradients),
    ]


def comparison(
    what: str, pairs: dict[str, tuple[Sequence[Tensor], Sequence[Tensor]]]
) -> Comparison:
    """How many numbers differ in the pairs of both ways."""
    counts = {way: differing(*pair) for way, pair in pairs.items()}
    total = sum(x.numel() for x in pairs["invariant"][0])
    return Comparison(what, counts, total)


def prices(
    width: int, device: str, accuracy: float | str | None
) -> dict[str, tuple[float, float]]:
    """Seconds of a forward pass and of the gradients of the global batch, in one
    micro-batch: the least of three, after one that is not timed.
    """
    model, tokens = GPT(width).to(device), random_tokens(device)
    seconds = {}
    for way, scope in scopes(accuracy).items():
        gradients_of = usual_gradients if way == "native" else whole_gradients
        calls: list[Callable[[], Any]] = [
            lambda: logits_of(model, tokens[:, :-1]),
            lambda work=gradients_of: work(model, tokens, SEQUENCES),
        ]
        with scope():
            forward, gradients = (least_seconds(call, device) for call in calls)
        seconds[way] = forward, gradients
    return seconds


def least_seconds(call: Callable[[], Any], device: str) -> float:
    """The least time of three calls, in seconds."""
    times = []
    for _ in range(4):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def print_table(title: str, rows: Sequence[Comparison]) -> None:
    """A line for each comparison."""
    print(title)
    print(f"{'numbers that differ':<52}{'of':>8}" + "".join(f"{x:>11}" for x in WAYS))
    for row in rows:
        print(row)


def main(argv: Sequence[str] | None = None) -> list[Comparison]:
    """Run the program and return the comparisons."""
    options = parse(argv)
    width, device, accuracy = options.size, options.device, options.accuracy
    title = f"Small GPT: {LAYERS} layers, width {width}, {device}, accuracy {accuracy}"
    if "WORLD_SIZE" in os.environ:
        # A process of torchrun.
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
        rows = compare_ranks(mesh, width, accuracy)
        if dist.get_rank() == 0:
            print_table(title, rows)
        dist.destroy_process_group()
        return rows
    if options.compare_devices:
        rows = compare_devices(width, ("cpu", "cuda"), accuracy)
        print_table(title, rows)
        return rows

    rows = compare_batches(width, device, accuracy)
    print_table(title, rows)
    for way, (forward, gradients) in prices(width, device, accuracy).items():
        print(f"{way:<9}  forward {forward:.3g} s, gradients {gradients:.3g} s")
    return rows


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=64, metavar="N", help="width")
    parser.add_argument("--device", default="cpu", help="default: %(default)s")
    parser.add_argument("--accuracy", default="fp32", help="default: %(default)s")
    parser.add_argument("--compare-devices", action="store_true")
    options = parser.parse_args(argv)
    if options.size < 1 or options.size % HEADS:
        parser.error(f"--size {options.size}: no multiple of {HEADS} heads")
    if options.accuracy not in ("fp32", "fp64", "correct"):
        options.accuracy = float(options.accuracy)
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
