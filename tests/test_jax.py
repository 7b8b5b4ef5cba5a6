"""hifigemm.jax: products and functions of arrays of JAX, in compiled programs too.

Operands hold small integers where every product and sum is exact: results have to be
equal. Arrays lie on the CPU, in tests that say so on a GPU too.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import hifigemm as hg

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import hifigemm.jax as hj  # noqa: E402
import hifigemm.numpy as hnp  # noqa: E402
from tests.jax_arrays import (  # noqa: E402
    DTYPES,
    ON_BOTH,
    PRODUCT,
    SHAPES,
    integers,
)

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("left", "right"), SHAPES.values(), ids=SHAPES)
def test_shapes_are_those_of_jax(assert_same_bits, left, right, dtype):
    a, b = integers(left, dtype), integers(right, dtype, 1)
    want = jnp.matmul(a, b)
    assert_same_bits(PRODUCT(a, b), want)
    assert_same_bits(jax.jit(PRODUCT)(a, b), want)


@ON_BOTH
@pytest.mark.parametrize("beta", [0.0, -0.5])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_scaled_products_have_the_bits_of_numpy(
    make_pair, assert_same_bits, dtype, beta
):
    a, b = make_pair("phi_1", 5, 6, 4, dtype)
    c = make_pair("phi_1", 5, 4, 1, dtype)[0]
    options = {
        "alpha": 2.0,
        "beta": beta,
        "trans_a": "C",
        "trans_b": "T",
        "accuracy": "correct",
    }
    left, right = np.ascontiguousarray(a.conj().T), np.ascontiguousarray(b.T)
    want = hg.gemm(left, right, c, **options)
    operands = [jnp.asarray(x) for x in (left, right, c)]
    for product in (hg.gemm, hj.gemm, jax.jit(partial(hj.gemm, **options))):
        extra = {} if product not in (hg.gemm, hj.gemm) else options
        assert_same_bits(product(*operands, **extra), want)


@ON_BOTH
def test_dtypes_promote_as_in_numpy(assert_same_bits):
    a, b = integers((3, 4)), integers((4, 2), seed=1)
    for left, right, dtype in (
        ("float32", "float64", "float64"),
        ("float32", "complex64", "complex64"),
        ("float64", "complex64", "complex128"),
        ("int32", "float32", "float64"),
        ("bfloat16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("int32", "int64", "int64"),
    ):
        want = np.asarray(a @ b).astype(dtype)
        assert_same_bits(hg.matmul(a.astype(left), b.astype(right)), want)
        assert_same_bits(jax.jit(hj.matmul)(a.astype(left), b.astype(right)), want)
    gradients = jax.grad(lambda a, b: hj.matmul(a, b).sum(), (0, 1))(
        a.astype("bfloat16"), b.astype("float32")
    )
    assert [x.dtype for x in gradients] == ["bfloat16", "float32"]
    by_integers = jax.grad(lambda a: hj.matmul(a, b.astype("int32")).sum())(a)
    assert_same_bits(by_integers, jax.grad(lambda a: jnp.matmul(a, b).sum())(a))


def test_operands_of_two_libraries_are_refused_and_those_of_numpy_are_constants(
    assert_same_bits,
):
    a, b = integers((3, 4)), integers((4, 2), seed=1)
    with pytest.raises(
        TypeError, match="a is of jax on cpu:0, b is of numpy; move one of them"
    ):
        hg.matmul(a, np.asarray(b))
    with pytest.raises(
        TypeError, match=r"a is a list; expected an array of JAX or NumPy"
    ):
        hj.matmul([1.0], b)
    with pytest.raises(
        TypeError, match=r"c is a list; expected an array of JAX or NumPy"
    ):
        hj.gemm(a, b, [1.0, 2.0], beta=1.0)
    assert_same_bits(hj.matmul(np.asarray(a), np.asarray(b)), a @ b)
    assert_same_bits(jax.jit(lambda b: hj.matmul(np.asarray(a), b))(b), a @ b)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
@pytest.mark.parametrize("c", [True, 3, 0.1, 2.0 - 1j], ids=str)
def test_an_addend_may_be_a_number(assert_same_bits, c, dtype):
    a, b = integers((3, 4), dtype), integers((4, 2), dtype, 1)
    want = hg.gemm(np.asarray(a), np.asarray(b), c, beta=0.5, accuracy="correct")
    options = {"beta": 0.5, "accuracy": "correct"}
    for product in (hg.gemm, hj.gemm, jax.jit(partial(hg.gemm, c=c, **options))):
        extra = {"c": c, **options} if product in (hg.gemm, hj.gemm) else {}
        assert_same_bits(product(a, b, **extra), want)


FUNCTIONS = {
    "einsum": (lambda f, x, y, z: f.einsum("ijk,kjl->il", x, y), 1),
    "einsum of three": (lambda f, x, y, z: f.einsum("ijk,kjl,lm->im", x, y, z), 2),
    "einsum of a diagonal": (
        lambda f, x, y, z: f.einsum("iij,j->ij", y[:4, :, :], z[:, 0]),
        1,
    ),
    "tensordot": (lambda f, x, y, z: f.tensordot(x, y, axes=([1, 2], [1, 0])), 1),
    "dot": (lambda f, x, y, z: f.dot(y, z), 1),
    "vdot": (lambda f, x, y, z: f.vdot(z, z), 1),
    "vecdot": (lambda f, x, y, z: f.vecdot(x, x), 1),
    "inner": (lambda f, x, y, z: f.inner(x, x), 1),
    "outer": (lambda f, x, y, z: f.outer(z, z), 1),
    "matvec": (lambda f, x, y, z: f.matvec(x, y[:, 0, 0]), 1),
    "vecmat": (lambda f, x, y, z: f.vecmat(z[0, :4], x), 1),
    "multi_dot": (lambda f, x, y, z: multi_dot_of(f)([x[0], y[:, 0], z]), 2),
    "matrix_power": (
        lambda f, x, y, z: getattr(f, "linalg", f).matrix_power(x[:, :3, :3], 3),
        2,
    ),
}


def multi_dot_of(f):
    return getattr(f, "linalg", f).multi_dot


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(("function", "order"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_numpy_serve_programs(function, order, dtype):
    arrays = [integers(s, dtype, 7) for s in ((3, 4, 5), (5, 4, 2), (2, 6))]
    given = [jnp.asarray(x) for x in arrays]
    own = partial(function, hj)
    want = function(np, *arrays)
    for found in (own(*given), jax.jit(own)(*given), function(hnp, *arrays)):
        np.testing.assert_array_equal(found, want)
    assert isinstance(own(*given), jax.Array)
    stacked = [jnp.stack([x, 2 * x]) for x in given]
    for twice, once in zip(
        jax.vmap(own)(*stacked),
        (own(*given), own(*(2 * x for x in given))),
        strict=True,
    ):
        np.testing.assert_array_equal(twice, once)
    if dtype == "float64":
        check_grads(own, [x / 8 for x in given], 2, modes=("fwd", "rev"))
    tangents = [x[::-1] for x in given]
    np.testing.assert_array_equal(
        *(jax.jvp(f, given, tangents)[1] for f in (own, partial(function, jnp)))
    )


@pytest.mark.parametrize(
    ("name", "of"), [("syrk", lambda x: x @ x.T), ("herk", lambda x: x @ x.conj().T)]
)
def test_symmetric_products_in_programs(name, of):
    x = jnp.asarray(integers((5, 7), "complex128", 3))
    product = partial(getattr(hj, name), accuracy="correct")
    for found in (product(x), jax.jit(product)(x)):
        np.testing.assert_array_equal(found, of(x))
        mirror = found.T if name == "syrk" else found.conj().T
        np.testing.assert_array_equal(found, mirror)


def test_reports_of_functions_outside_of_programs():
    a, b = jnp.asarray(integers((3, 4))), jnp.asarray(integers((4, 2)))
    c, report = hj.einsum("ij,jk->ik", a, b, accuracy="correct", return_report=True)
    assert report.correct
    np.testing.assert_array_equal(c, np.asarray(a) @ np.asarray(b))
    with pytest.raises(TypeError, match="is traced by JAX"):
        jax.jit(lambda x, y: hj.einsum("ij,jk->ik", x, y, return_report=True)[0])(a, b)
    with pytest.raises(TypeError, match="different libraries"):
        hj.einsum("ij,jk->ik", a, np.asarray(b))


def test_subnormal_numbers_of_narrower_dtypes_are_kept():
    """XLA flushes those that it converts."""
    least, large = jnp.full((1, 1), 1e-42, jnp.float32), jnp.full((1, 1), 2.0**200)
    want = np.float64(np.float32(1e-42)) * 2.0**200
    for product in (
        PRODUCT,
        jax.jit(PRODUCT),
        partial(hj.einsum, "ij,jk->ik"),
        jax.jit(partial(hj.einsum, "ij,jk->")),
    ):
        np.testing.assert_array_equal(np.asarray(product(least, large)).ravel(), [want])
    found = hj.gemm(0.0 * large, large, least, beta=2.0**200)
    np.testing.assert_array_equal(found, [[want]])
    for dtype, size in (("complex64", 1e-22), ("complex128", 1e-160)):
        x = jnp.full((2, 2), size * (1 + 1j), dtype)
        for product in (hj.herk, jax.jit(hj.herk)):
            np.testing.assert_array_equal(product(x), hnp.herk(np.asarray(x)))


def test_sums_stay_on_their_device():
    code = """
import jax, jax.numpy as jnp, hifigemm.jax as hj
x = jax.device_put(jnp.ones((3, 3)), jax.devices()[1])
assert hj.einsum("ij->", x) == 9 and hj.einsum("ij->", x).devices() == {jax.devices()[1]}
"""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_functions_name_the_options_that_programs_lack():
    a, b = integers((2, 3)), integers((3, 4))
    for options, named in (
        ({"out": np.zeros((2, 4))}, "out="),
        ({"engine": "numpy"}, "engine="),
    ):
        for subscripts, operands in (("ij,jk->ik", (a, b)), ("ij->ji", (a,))):
            with pytest.raises(TypeError, match=f"programs of JAX take no {named}"):
                jax.jit(
                    lambda *x, subscripts=subscripts, options=options: hj.einsum(
                        subscripts, *x, **options
                    )
                )(*operands)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_count_of_digits_is_no_accuracy(dtype):
    a = jnp.ones((2, 2), dtype)
    for call in (hj.matmul, jax.jit(partial(hj.matmul, accuracy=12)), hg.matmul):
        options = {} if hasattr(call, "lower") else {"accuracy": 12}
        with pytest.raises(
            hg.PlanError, match=r"accuracy=12: .* not a count of digits"
        ):
            call(a, a, **options)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_numbers_are_shared_among_the_products_of_a_chain(is_compiled):
    a = integers((3, 3)).astype("float32")
    for chain in (
        partial(hj.einsum, "ij,jk,kl->il"),
        lambda *x, **options: hj.multi_dot(x, **options),
        lambda x, *_, **options: hj.matrix_power(x, 3, **options),
    ):
        kept, rounded_once = (partial(chain, accuracy=r) for r in (1e-6, 1e-25))
        if is_compiled:
            kept = jax.jit(kept)
            with pytest.raises(TypeError, match="a is traced by JAX"):
                jax.jit(rounded_once)(a, a, a)
        else:
            np.testing.assert_array_equal(rounded_once(a, a, a), a @ a @ a)
        np.testing.assert_array_equal(kept(a, a, a), a @ a @ a)
    _, report = hj.multi_dot([a, a, a], accuracy=1e-6, return_report=True)
    assert report.bound <= 1e-6 + 2.0**-24


@pytest.mark.parametrize("name", [x for x in hj.__all__ if x not in ("matmul", "gemm")])
def test_functions_are_those_of_numpy_arrays(name):
    assert getattr(hj, name) is getattr(hnp, name)


@pytest.mark.parametrize("name", ["matmul", "gemm"])
def test_products_have_the_options_that_programs_have(name):
    ours = inspect.signature(getattr(hj, name)).parameters
    whole = inspect.signature(getattr(hg, name)).parameters
    lacking = {"out", "engine", "plan", "result", "return_report", "out_dtype"}
    assert set(ours) == set(whole) - lacking
    for parameter in ours.values():
        assert parameter.default == whole[parameter.name].default
