"""A gradient of JAX through a product that cancels: how does the energy of a stiff
chain of springs depend on each spring?

E = x^T B^T diag(s) B x; displacements x are large and nearly equal, so that the
strains B x cancel. `hifigemm.jax.matmul` makes them, and the products of the gradient,
to full accuracy inside of jit.

Usage: python examples/jax_sensitivity.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import hifigemm.jax as hj

jax.config.update("jax_enable_x64", True)  # else JAX makes float32 of every array


def chain(n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Strains by finite differences of fourth order, stiffnesses, displacements."""
    rows = np.zeros((n, n + 4))
    for i in range(n):
        rows[i, i : i + 5] = [1.0, -4.0, 6.0, -4.0, 1.0]
    rng = np.random.default_rng(0)
    stiffness = rng.uniform(1.0, 2.0, n)
    displacement = 1e8 + rng.standard_normal(n + 4) * 1e-6
    return jnp.array(rows), jnp.array(stiffness), jnp.array(displacement)


def energy(multiply, rows, stiffness, displacement):
    """The energy, with a function that multiplies."""
    strains = multiply(rows, displacement[:, None])[:, 0]
    return (stiffness * strains**2).sum()


def correct(a, b):
    """The exact product, rounded once."""
    return hj.matmul(a, b, accuracy="correct")


def main(n: int = 40) -> dict[str, np.ndarray]:
    """Print the energy, return the gradients by the stiffnesses."""
    rows, stiffness, displacement = chain(n)
    gradients = {}
    for name, multiply in (("jnp.matmul", jnp.matmul), ("correct", correct)):
        run = jax.jit(jax.value_and_grad(energy, 2), static_argnums=0)
        value, gradient = run(multiply, rows, stiffness, displacement)
        gradients[name] = np.asarray(gradient)
        print(f"{name:<12} energy {float(value):.6e}, gradient {gradient[0]:.6e}")
    return gradients


if __name__ == "__main__":
    main()
