"""The programs of examples/ that need no PyTorch, against exact oracles."""

from __future__ import annotations

import importlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.testing.reference import correctly_rounded

FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    """module(name): the program of that name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_refinement_ends_within_the_last_place_and_not_with_the_residual_of_numpy(
    module,
):
    program = module("refinement")
    errors = program.main(size=40)
    assert errors["residual"][-1] <= 2.0**-52
    a, b = program.system(40, 0)
    x = np.linalg.solve(a, b)
    augmented = correctly_rounded(
        np.hstack([-a, np.eye(40)]), np.hstack([x, b])[:, None]
    )
    assert np.array_equal(program.residual(a, x, b), augmented[:, 0])


def test_sides_are_those_of_fractions(module):
    program = module("orientation")
    naive, signs = program.main(size=12)
    (qx, qy), (rx, ry) = (map(Fraction, point) for point in (program.Q, program.R))
    for p, sign in zip(program.grid(12).reshape(-1, 2), signs.ravel()):
        x, y = map(Fraction, p)
        exact = (qx - x) * (ry - y) - (qy - y) * (rx - x)
        assert sign == (exact > 0) - (exact < 0)
    assert (naive != signs).any()


def test_digests_of_correct_are_one_and_those_of_the_exact_product(module):
    program = module("reproducible_sums")
    found = program.main(size=12, terms=100)
    assert len({*found["correct"].values()}) == 1
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**40), 2**40, s) / 2**40 for s in ((12, 100), (100, 12)))
    (bits,) = {*found["correct"].values()}
    assert bits == program.digest(correctly_rounded(a, b))


def test_the_gallery_shows_what_does_not_depend_on_the_machine(module, capsys):
    page = (FOLDER.parent / "docs" / "gallery.md").read_text("utf-8")
    module("orientation").main()
    assert capsys.readouterr().out in page
    (bits,) = {*module("reproducible_sums").main()["correct"].values()}
    assert page.count(bits) == 7


def test_radii_of_hilbert_systems_hold(module):
    program = module("verified_systems")
    rows = program.main(sizes=(3, 6, 10))
    assert len(rows) == 3
    flint = pytest.importorskip("flint")
    a = program.hilbert(6)
    exact = flint.fmpq_mat(
        [[flint.fmpq(*x.as_integer_ratio()) for x in row] for row in a.tolist()]
    ).solve(flint.fmpq_mat(6, 1, [1] * 6))
    solution = hg.linalg.solve(a, np.ones(6))
    for i, (x, radius) in enumerate(zip(solution.x, solution.radius)):
        value = Fraction(int(exact[i, 0].p), int(exact[i, 0].q))
        assert abs(Fraction(x) - value) <= Fraction(radius)


def test_the_gradient_of_jax_is_the_strain_of_fractions(module):
    pytest.importorskip("jax")
    program = module("jax_sensitivity")
    gradients = program.main(n=4)
    rows, _, displacement = (np.asarray(x) for x in program.chain(4))
    strains = correctly_rounded(rows, displacement[:, None])[:, 0]
    assert np.array_equal(gradients["correct"], strains**2)
    assert not np.array_equal(gradients["jnp.matmul"], strains**2)
