"""Functions without derivatives in programs of JAX: the answers of calls outside of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hifigemm import linalg

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from tests.jax_arrays import ON_BOTH, integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("place")

FUNCTIONS = {
    "det": linalg.det,
    "cond": linalg.cond,
    "is_positive_definite": linalg.is_positive_definite,
    "eigvalsh": linalg.eigvalsh,
    "svdvals": linalg.svdvals,
}
ALL = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def hermitian(*shape, dtype="float64"):
    a = integers(shape, dtype)
    return a + a.mT.conj()


def same(x, y):
    """Equal answers, of which the first one is of arrays of JAX."""
    leaves_of_x, leaves_of_y = map(jax.tree.leaves, (x, y))
    assert len(leaves_of_x) == len(leaves_of_y)
    for leaf_of_x, leaf_of_y in zip(leaves_of_x, leaves_of_y):
        assert isinstance(leaf_of_x, jax.Array)
        assert np.array_equal(leaf_of_x, leaf_of_y)


@ON_BOTH
@ALL
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
@pytest.mark.parametrize("stack", [(), (2,), (2, 1)])
def test_answers_in_programs_are_those_outside(function, dtype, stack):
    a = hermitian(*stack, 3, 3, dtype=dtype)
    inside = jax.jit(function)(a)
    same(inside, function(a))
    assert type(inside) is type(function(a)) or function is linalg.is_positive_definite
    dtypes = [x.dtype for x in jax.tree.leaves(inside)]
    assert dtypes == [x.dtype for x in jax.tree.leaves(jax.eval_shape(function, a))]


@ALL
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_is_one_more_dimension_of_the_stack(function, axis):
    a = hermitian(2, 4, 3, 3)
    batched = jnp.moveaxis(a, 0, axis)
    same(jax.vmap(function, axis)(batched), function(a))
    same(jax.jit(jax.vmap(jax.vmap(function)))(a), function(a))


def test_other_shapes():
    a = integers((2, 5, 3))
    same(jax.jit(linalg.svdvals)(a), linalg.svdvals(a))
    same(jax.jit(linalg.cond)(a), linalg.cond(a))
    empty = jnp.zeros((0, 0))
    same(jax.jit(linalg.det)(empty), linalg.det(empty))


@ALL
def test_derivatives_are_refused_by_name(function):
    name = function.__name__
    with pytest.raises(TypeError, match=f"{name} has no derivative") as caught:
        jax.grad(lambda a: jnp.sum(jax.tree.leaves(function(a))[0]))(jnp.eye(2))
    assert ("use slogdet" in str(caught.value)) == (name == "det")

    def loss(a):
        answer = function(jax.lax.stop_gradient(a))
        return a.sum() * jnp.sum(jax.tree.leaves(answer)[0])

    assert jax.grad(loss)(jnp.eye(2)).shape == (2, 2)


def test_errors():
    for function in FUNCTIONS.values():
        with pytest.raises(np.linalg.LinAlgError, match="expected"):
            jax.eval_shape(function, jnp.ones(2))
    with pytest.raises(np.linalg.LinAlgError, match="empty"):
        jax.eval_shape(linalg.cond, jnp.ones((0, 2)))
    # JAX raises the former in the first run of a program, the latter in others
    errors = jax.errors.JaxRuntimeError, ValueError
    for function, a, message in (
        (linalg.eigvalsh, integers((3, 3)), "conjugate transpose"),
        (linalg.cond, jnp.full((3, 3), jnp.nan), "Inf or NaN"),
    ):
        for _ in range(2):
            with pytest.raises(errors, match=message):
                jax.block_until_ready(jax.jit(function)(a))
            jax.block_until_ready(jax.jit(function)(jnp.eye(3)))


def test_without_64_bits():
    a = np.eye(2, dtype="float32")
    with jax.enable_x64(False):
        assert jax.jit(linalg.eigvalsh)(a).values.dtype == "float32"
        assert jax.jit(linalg.is_positive_definite)(a)
        for function in (linalg.det, linalg.cond):
            with pytest.raises(TypeError, match="64, which JAX has with"):
                jax.jit(function)(a)
        with pytest.raises(TypeError, match="float64, which JAX has with"):
            jax.jit(linalg.eigvalsh)(a.astype("int32"))


def test_results_of_calls_outside_are_trees():
    program = """
import jax, numpy as np
from hifigemm import linalg
a = np.eye(2)
for function in (linalg.det, linalg.slogdet, linalg.cond, linalg.eigvalsh, linalg.inv):
    print(len(jax.tree.leaves(function(a))))
print(len(jax.tree.leaves(linalg.det(a + 0j))))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["4", "4", "2", "2", "2", "3"]
