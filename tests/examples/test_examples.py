"""The programs of examples/ at tiny sizes, with correctly rounded products: their
errors stay below a-priori bounds.

The bounds hold for native products in any order of summation, a sum of n products errs
by n u times the sum of their magnitudes [Hig02, Sec. 3.1], and so for correctly rounded
ones, which err by u times the result.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "examples"
WAYS = "native", "emulated"
U32, U64 = 2.0**-24, 2.0**-53


@pytest.fixture
def program(monkeypatch):
    """program(name): the module of that name, and a call of its main on a CPU."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        module = importlib.import_module(name)
        return module, lambda *argv: module.main(
            ["--device", "cpu", "--accuracy", "correct", *argv]
        )

    return load


def test_gaussian_process_stays_within_the_backward_error_of_cholesky(program):
    """The factor is that of K + E: entries of E are below (n + 1) u [Hig02, Thm. 10.3]
    and errors of the kernel, 64 u.

    The inverse of K + E has norm 1 / NOISE, solutions for test points 1 / sqrt(NOISE),
    and y at most 2 sqrt(n). The inverse of a leaf L is one of L + E, where E is below n
    u |L| cond(L) in norm [Hig02, Sec. 14.2].
    """
    module, run = program("gaussian_process")
    n = 64
    rows = run("--size", str(n))["float64"]
    noise, y = module.NOISE, 2 * math.sqrt(n)
    change = (
        n * (n + 65) * U64 * (1 + noise) + 2 * n * U64 * (n + noise) ** 1.5 / noise**0.5
    )
    for way in WAYS:
        assert rows[way]["variance"] <= 2 * change / noise
        assert rows[way]["mean"] <= 2 * change * y / noise**1.5
        assert rows[way]["likelihood"] <= change * (n / noise + (y / noise) ** 2) / n


@pytest.mark.parametrize(("dtype", "u"), [("complex64", U32), ("complex128", U64)])
def test_circuit_stays_within_the_errors_of_all_gates(program, dtype, u):
    """A gate G errs by sqrt(2) (4 + 2) u ||G|| in norm at most, which is below 18 u:
    the norm of |G| is 2 at most.

    Two gates in one err by sqrt(2) (16 + 2) u in a norm of 4, and their entries by
    another 4 u, which is below 120 u. The states of all paths have the norm 1 in the
    left half and sqrt(paths) in the right one: a CZ gate divides the left states into
    two, and doubles the right ones. The reference is made of as many gates in
    complex128.
    """
    _, run = program("quantum_circuit")
    half = 4
    gates, paths = 2 * (half - 2) * (half - 1), 2 ** (half - 2)
    rows = run("--size", str(2 * half))[dtype]
    for way in WAYS:
        bound = (120 * gates + 2 * (paths + 2)) * u * math.sqrt(
            paths
        ) + 18 * gates * U64
        assert 0 < rows[way]["error"] <= bound * (1 + 100 * gates * u)


@pytest.mark.parametrize(("dtype", "u"), [("float32", U32), ("float64", U64)])
def test_newton_schulz_stays_within_the_errors_of_its_steps(program, dtype, u):
    """A step errs by (2 m + 2 n + 8) u n in the Frobenius norm: G by (m + 1) u
    |X^T||X|, and |X| has the norm sqrt(n).

    The last step decides on orthonormality, where errors count twice. The polar factor
    feels the errors of a step divided by the smallest singular value then, which no
    step makes smaller; there are fewer than 20 steps.
    """
    _, run = program("newton_schulz")
    m, n = 32, 16
    rows = run("--size", str(m))[dtype]
    matrix = torch.randn(m, n, generator=torch.Generator().manual_seed(0)).double()
    least = torch.linalg.svdvals(matrix / torch.linalg.norm(matrix)).min().item()
    step = (2 * m + 2 * n + 8) * u * math.sqrt(n)
    for way in WAYS:
        assert rows[way]["U^T U - I"] <= 2 * step
        assert rows[way]["U - SVD"] <= 20 * step / least


def test_density_fitting_stays_within_the_sum_of_magnitudes(program):
    """No sum has more than n**2 + 2 n + fitting + occupied BLOCK terms, over all
    products on the way to an entry.

    Cholesky's QR factorisation errs by 5 k**2 (n q + q (q + 1)) u for q columns
    (Yamamoto and others, ETNA 44, 2015), where the condition k is below 2, since the
    potential is small beside the gap.
    """
    module, run = program("density_fitting")
    n, occupied, fitting = 18, 6, 54
    rows = run("--size", str(n))["float64"]
    h, b = module.integrals(n, fitting, occupied, torch.device("cpu"))
    made, c = module.iterate(h, b, occupied)
    v = torch.linspace(-1, 1, n, dtype=torch.float64).sin()
    integrals, density = b.abs(), c.abs() @ c.abs().T
    coulomb = torch.einsum("Pmn,mn,Pkl->kl", integrals, density, integrals)
    exchange = torch.einsum("Pmk,kl,Pln->mn", integrals, density, integrals)
    magnitude = torch.linalg.norm(
        (2 * coulomb + exchange) @ v.abs()
    ) / torch.linalg.norm(made @ v)
    terms = n * n + 2 * n + fitting + occupied * module.BLOCK + 20
    for way in WAYS:
        assert rows[way]["V v"] <= 2 * terms * U64 * magnitude.item()
        assert (
            rows[way]["C^T C - I"]
            <= 20 * (n * occupied + occupied * (occupied + 1)) * U64
        )


def test_training_starts_from_the_same_loss_and_lowers_it(program):
    """Derivatives of the network are below the product of its weights' norms, g; they
    err by 2 L (w + 8) u g**2.

    L is the number of layers and w their width; the errors of tanh' = 1 - tanh**2 bring
    the second g.
    """
    module, run = program("train_fp64")
    width, layers = 16, 4
    rows = run("--size", str(width), "--steps", "4")["float64"]
    weights = [
        layer.weight
        for layer in module.network(width, torch.device("cpu"))
        if hasattr(layer, "weight")
    ]
    g = math.prod(
        max(1.0, torch.linalg.matrix_norm(weight, math.inf).item())
        for weight in weights
    )
    residual = (1 + module.SPEED) * g
    error = (1 + module.SPEED) * 2 * layers * (width + 8) * U64 * g**2
    assert abs(rows["native"]["first loss"] - rows["emulated"]["first loss"]) <= 2 * (
        4 * residual * error
    )
    for way in WAYS:
        assert rows[way]["last loss"] < rows[way]["first loss"]


def test_small_products_at_the_level_of_float64_are_handed_on(program, capsys):
    module, _ = program("gaussian_process")
    rows = module.main(
        ["--device", "cpu", "--size", "64", "--accuracy", "dtype", "--summary"]
    )["float64"]
    native, emulated = (
        {name: x for name, x in rows[way].items() if name != "seconds"} for way in WAYS
    )
    assert native == emulated
    assert "handed on" in capsys.readouterr().out
