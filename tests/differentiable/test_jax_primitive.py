"""JAX arrays: products outside of programs, and in those that JAX differentiates,
batches, compiles and shards.

Operands hold small integers where every product and sum is exact: results have to be
equal. Where bits are compared, the scheme is exact, and its bits are those of NumPy
arrays. Arrays lie on the CPU, in tests that say so on a GPU too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import hifigemm as hg

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import hifigemm.jax as hj  # noqa: E402
from hifigemm.base import store  # noqa: E402
from hifigemm.differentiable import jax_primitive  # noqa: E402
from hifigemm.running import road  # noqa: E402
from tests.jax_arrays import (  # noqa: E402
    DTYPES,
    ON_A_GPU,
    ON_BOTH,
    PRODUCT,
    SHAPES,
    integers,
)

pytestmark = pytest.mark.usefixtures("place")

EXACT = {
    "correct": {"accuracy": "correct"},
    "fixed": {"scheme": hg.Ozaki2(num_moduli=14, scaling="fast")},
}


@ON_BOTH
@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["phi_2", "subnormal_times_large", "smallest", "near_ties"]
)
def test_bits_are_those_of_numpy_compiled_or_not(
    make_pair, assert_same_bits, name, dtype, options
):
    a, b = make_pair(name, 5, 7, 6, dtype)
    want = hg.matmul(a, b, **options)
    x, y = jnp.asarray(a), jnp.asarray(b)
    for product in (
        hg.matmul,
        hj.matmul,
        jax.jit(hj.matmul, static_argnames=("accuracy", "scheme")),
    ):
        found = product(x, y, **options)
        assert isinstance(found, jax.Array)
        assert_same_bits(found, want)


@ON_BOTH
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("left", "right"), SHAPES.values(), ids=SHAPES)
def test_gradients_are_those_of_jax(assert_same_bits, left, right, dtype):
    a, b = integers(left, dtype), integers(right, dtype, 1)

    def loss(product, a, b):
        c = product(a, b)
        return (c * c).real.sum() + (3 * c).imag.sum()

    tangents = integers(left, dtype, 2), integers(right, dtype, 3)

    @partial(jax.jit, static_argnums=0)
    def derivatives(product, a, b):
        return jax.grad(partial(loss, product), (0, 1))(a, b), jax.jvp(
            product, (a, b), tangents
        )

    for x, y in zip(
        *(jax.tree.leaves(derivatives(f, a, b)) for f in (PRODUCT, jnp.matmul)),
        strict=True,
    ):
        assert np.array_equal(x, y)


@ON_BOTH
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_second_order(dtype):
    a = integers((3, 4), dtype)
    b = integers((2, 4, 2), dtype, 1)
    c = integers((2,), dtype, 2)
    check_grads(PRODUCT, (a, b), order=2, modes=("fwd", "rev"))
    scaled = partial(hj.gemm, alpha=2.0, beta=-0.5, accuracy="correct")
    check_grads(scaled, (a, b, c), order=2, modes=("fwd", "rev"))


def test_a_gradient_over_a_stack_is_rounded_once(assert_same_bits):
    a = jnp.asarray([2.0**60, 1.0, -(2.0**60)]).reshape(3, 1, 1)
    gradient = jax.grad(lambda b: PRODUCT(a, b).sum())(jnp.ones((1, 1)))
    assert_same_bits(gradient, np.ones((1, 1)))
    batched = jax.grad(lambda b: jax.vmap(PRODUCT, (0, None))(a, b).sum())(
        jnp.ones((1, 1))
    )
    assert_same_bits(batched, np.ones((1, 1)))


def test_every_product_of_a_derivative_has_the_options():
    scheme = hg.Ozaki2(num_moduli=9, scaling="fast")
    f = jax.grad(lambda a, b: (hj.matmul(a, b, scheme=scheme) ** 2).sum(), (0, 1))
    equations = jax.make_jaxpr(f)(jnp.ones((3, 4)), jnp.ones((4, 2))).eqns
    products = [x for x in equations if x.primitive.name == "hifigemm_matmul"]
    assert len(products) == 3
    assert all(x.params["scheme"] == scheme for x in products)
    assert not any("dot_general" in x.primitive.name for x in equations)


def test_a_product_of_matrices_is_one_primitive():
    program = jax.make_jaxpr(PRODUCT)(jnp.ones((3, 4)), jnp.ones((4, 2)))
    assert [x.primitive.name for x in program.eqns] == ["hifigemm_matmul"]


AXES = [(0, 0), (0, None), (None, 0), (1, 0), (-1, 1), (2, None), (None, 2)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize(
    "cores",
    [((3, 4), (4, 2)), ((4,), (4,)), ((5, 3, 4), (4, 2)), ((3, 4), (5, 4, 2))],
    ids=str,
)
def test_vmap_is_that_of_jax(assert_same_bits, cores, axes):
    shapes = []
    for core, at in zip(cores, axes, strict=True):
        at = at if at is None or len(core) >= abs(at) else 0
        place = at if at is None or at >= 0 else len(core) + 1 + at
        shapes.append((core if at is None else (*core[:place], 6, *core[place:]), at))
    (left, at_a), (right, at_b) = shapes
    a, b = integers(left), integers(right, seed=1)
    want = jax.vmap(jnp.matmul, (at_a, at_b))(a, b)
    assert_same_bits(jax.vmap(PRODUCT, (at_a, at_b))(a, b), want)
    assert_same_bits(
        jax.jit(jax.vmap(PRODUCT, (at_a, at_b), out_axes=-1))(a, b),
        jnp.moveaxis(want, 0, -1),
    )


@ON_BOTH
def test_vmap_of_a_product_with_an_addend():
    scaled = partial(hj.gemm, alpha=2.0, beta=3.0, accuracy="correct")

    def reference(a, b, c):
        return 2 * jnp.matmul(a, b) + 3 * c

    a, b, c = integers((6, 3, 4)), integers((4, 6, 2), seed=1), integers((2, 6), seed=2)
    for axes in (
        (0, 1, 1),
        (0, None, None),
        (None, 1, None),
        (None, None, 1),
        (0, None, 1),
    ):
        operands = [
            x if at is not None else jnp.take(x, 0, own)
            for x, at, own in zip((a, b, c), axes, (0, 1, 1))
        ]
        np.testing.assert_array_equal(
            jax.vmap(scaled, axes)(*operands), jax.vmap(reference, axes)(*operands)
        )
    stack = integers((5, 4, 2), seed=3)
    np.testing.assert_array_equal(
        jax.vmap(scaled, (0, None, None))(a, stack, c[:, 0]),
        reference(a[:, None], stack, c[:, 0]),
    )


@ON_BOTH
def test_derivatives_and_batches_nest():
    a, b = integers((6, 3, 4)), integers((5, 4, 2), seed=1)

    def per_example(product):
        gradient = jax.grad(lambda a, b: (product(a, b) ** 2).sum(), (0, 1))
        return jax.vmap(jax.vmap(gradient, (None, 0)), (0, None))

    for x, y in zip(
        *(jax.jit(per_example(f))(a, b) for f in (PRODUCT, jnp.matmul)), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    hessians = [
        jax.jit(jax.hessian(lambda a, f=f: (f(a, b[0]) ** 2).sum()))(a[0])
        for f in (PRODUCT, jnp.matmul)
    ]
    np.testing.assert_array_equal(*hessians)
    jacobians = [
        jax.jit(jax.jacfwd(jax.jacrev(lambda a, f=f: f(a, a.T))))(a[0])
        for f in (PRODUCT, jnp.matmul)
    ]
    np.testing.assert_array_equal(*jacobians)


@ON_BOTH
def test_loops_branches_and_checkpoints():
    a, x = integers((4, 4)) // 4, integers((4, 2), seed=1)

    def loss(product, remember, a, x):
        step = (
            (lambda y, _: (product(a, y), None))
            if remember
            else jax.checkpoint(lambda y, _: (product(a, y), None))
        )
        y, _ = jax.lax.scan(step, x, length=3)
        y = jax.lax.cond(
            y.sum() > 0, lambda y: product(a, y), lambda y: product(a.T, y), y
        )
        return jax.lax.fori_loop(0, 2, lambda _, y: product(a, y), y).sum()

    for remember in (True, False):
        want = jax.value_and_grad(partial(loss, jnp.matmul, remember), (0, 1))(a, x)
        found = jax.jit(jax.value_and_grad(partial(loss, PRODUCT, remember), (0, 1)))(
            a, x
        )
        for p, q in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(p, q)


def test_a_program_is_traced_once():
    traces = []

    @jax.jit
    def f(a, b):
        traces.append(a.shape)
        return hj.matmul(a, b, accuracy="correct", scheme=hg.Ozaki1(product="fp64"))

    for seed in range(3):
        f(integers((3, 4), seed=seed), integers((4, 2)))
    assert traces == [(3, 4)]
    assert f._cache_size() == 1


@ON_BOTH
def test_donated_buffers(assert_same_bits):
    a, b = integers((8, 8)), integers((8, 8), seed=1)
    want = np.asarray(jnp.matmul(a + 1, b))
    f = jax.jit(lambda a, b: PRODUCT(a + 1, b), donate_argnums=0)
    for _ in range(3):
        assert_same_bits(f(jnp.array(a), b), want)


@ON_BOTH
def test_threads_run_programs_side_by_side(assert_same_bits):
    f = jax.jit(lambda a, b: PRODUCT(PRODUCT(a, b), b))
    pairs = [
        (integers((64, 64), seed=i), integers((64, 64), seed=i + 1)) for i in range(16)
    ]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: f(*pair), pairs))
    for (a, b), c in zip(pairs, found, strict=True):
        assert_same_bits(c, a @ b @ b)


@pytest.fixture
def plans(monkeypatch):
    """The problems of the plans that products make; none was made before."""
    problems = []

    def counting(problem, *arguments):
        problems.append(problem)
        return make(problem, *arguments)

    make = road.make
    monkeypatch.setattr(road, "make", counting)
    store.forget()
    return problems


def in_a_loop(a, b):
    return jax.lax.fori_loop(0, 3, lambda _, c: PRODUCT(a, c), b)


def in_a_scan(a, b):
    return jax.lax.scan(lambda c, x: (PRODUCT(a + x, c), None), b, jnp.arange(3.0))[0]


REPEATED = {
    "eager": lambda a, b: hg.matmul(a, b, accuracy="correct"),
    "jit": jax.jit(PRODUCT),
    "jit at the level": jax.jit(hj.matmul),
    "jit in float32": jax.jit(
        lambda a, b: PRODUCT(a.astype("float32"), b.astype("float32"))
    ),
    "while": jax.jit(in_a_loop),
    "scan": jax.jit(in_a_scan),
    "vmap": jax.jit(jax.vmap(PRODUCT, (0, None))),
    "gradients": jax.jit(jax.grad(lambda a, b: PRODUCT(a, b).sum(), (0, 1))),
}


@pytest.mark.parametrize("name", REPEATED)
def test_the_second_call_makes_no_plan(plans, name):
    # No entry of a product is zero: native ones are looked at again where one is.
    a = abs(integers((2, 4, 4) if name == "vmap" else (4, 4))) + 1
    b = abs(integers((4, 4), seed=1)) + 1
    product = REPEATED[name]
    jax.block_until_ready(product(a, b))
    assert plans
    plans.clear()
    for _ in range(3):
        jax.block_until_ready(product(a, b))
    assert plans == []


def test_programs_and_products_outside_of_them_share_plans_in_all_threads(
    plans, assert_same_bits
):
    a, b = integers((4, 4)), integers((4, 4), seed=1)
    want = PRODUCT(np.asarray(a), np.asarray(b))
    plans.clear()
    f = jax.jit(PRODUCT)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: f(a, b), range(16)))
    assert_same_bits(hg.matmul(a, b, accuracy="correct"), want)
    assert_same_bits(hg.matmul(np.asarray(a), np.asarray(b), accuracy="correct"), want)
    for result in results:
        assert_same_bits(result, want)
    assert plans == []


def test_repeated_products_of_subnormal_numbers_have_the_bits_of_numpy(
    plans, make_pair, assert_same_bits
):
    """Threads of XLA flush them; the second call takes another way than the first
    one.
    """
    f = jax.jit(hj.matmul, static_argnames="accuracy")
    for accuracy in (None, "correct"):
        ordinary = make_pair("phi_1", 5, 7, 6)
        tiny = make_pair("subnormal_times_large", 5, 7, 6)
        want = hg.matmul(*tiny, accuracy=accuracy, return_report=True)[0]
        for a, b in (ordinary, tiny, tiny):
            result = f(jnp.asarray(a), jnp.asarray(b), accuracy=accuracy)
        assert_same_bits(result, want)


@ON_BOTH
def test_many_programs_are_under_way_at_once(assert_same_bits):
    """Dispatch is asynchronous: callbacks of large operands must not wait for the
    programs before them.
    """
    f = jax.jit(lambda a, b: hj.matmul(a, b, scheme="ozaki1") + 1)
    a, c = jnp.ones((512, 512)), jnp.ones((512, 512))
    for _ in range(20):
        c = f(a, c) / 512
    assert np.isfinite(np.asarray(c)).all()


def test_outside_of_programs_no_operand_is_copied(monkeypatch):
    a, b = integers((3, 4)), integers((4, 2))
    seen = []
    monkeypatch.setattr(
        jax_primitive,
        "product_of_numbers",
        lambda a, b, **_: seen.extend((a, b)) or np.zeros((3, 2)),
    )
    hj.matmul(a, b)
    assert [x.ctypes.data for x in seen] == [
        a.unsafe_buffer_pointer(),
        b.unsafe_buffer_pointer(),
    ]


def test_a_report_a_plan_and_prepared_operands(assert_same_bits):
    a, b = integers((3, 4)), integers((4, 2), seed=1)
    found, report = hg.matmul(a, b, accuracy="correct", return_report=True)
    assert isinstance(found, jax.Array)
    assert report.correct
    assert_same_bits(found, a @ b)
    plan = hg.make_plan(a, b, scheme="ozaki1")
    assert_same_bits(hg.matmul(hg.prepare(a, "left", plan=plan), b), a @ b)
    assert_same_bits(
        hg.gemm(a, b, integers((3, 2)), beta=1.0, engine="numpy"),
        a @ b + integers((3, 2)),
    )
    for options, named in (
        ({"plan": plan}, "plan="),
        ({"engine": "numpy", "return_report": True}, "engine= and no return_report="),
        ({"out": np.zeros((3, 2))}, "out="),
        ({"result": "pair"}, "result="),
    ):
        with pytest.raises(
            TypeError,
            match=rf"b is traced by JAX \(float64\[4,2\]\), and .* take no {named}: leave",
        ):
            jax.jit(lambda b, options=options: hg.matmul(a, b, **options))(b)
    with pytest.raises(
        TypeError, match=r"c is traced by JAX .* take no return_report="
    ):
        jax.jit(lambda c: hg.gemm(a, b, c, beta=1.0, return_report=True))(
            integers((3, 2))
        )
    with pytest.raises(
        TypeError, match=r"b is traced by JAX .* only products of JAX arrays"
    ):
        jax.jit(lambda b: hg.matmul(np.asarray(a), b))(b)
    with pytest.raises(
        TypeError, match=r"out is a jax\.Array, which nothing can be written to"
    ):
        hg.matmul(a, b, out=jnp.zeros((3, 2)))


def test_without_64_bits(assert_same_bits):
    with jax.enable_x64(False):
        a, b = jnp.asarray(np.eye(3) * 0.1), jnp.asarray(np.ones((3, 3)))
        found = jax.jit(PRODUCT)(a, b)
        assert_same_bits(found, np.full((3, 3), 0.1, np.float32))
        assert_same_bits(hg.matmul(a, b, accuracy="correct"), found)
        gradient = jax.grad(lambda a: PRODUCT(a, b).sum())(a)
        assert gradient.dtype == np.float32
        for product in (hg.matmul, jax.jit(hj.matmul)):
            with pytest.raises(
                TypeError, match=r"int32, float32 promote to float64.*jax_enable_x64"
            ):
                product(jnp.ones((3, 3), "int32"), b)
        with pytest.raises(TypeError, match=r"a has dtype float64.*jax_enable_x64"):
            hj.matmul(np.ones((3, 3)), b)
        with pytest.raises(
            TypeError, match="float64, which JAX has with jax_enable_x64"
        ):
            hg.matmul(jnp.ones((3, 3), "int32"), b, return_report=True)


ERRORS = {
    "inner dimensions": (
        ValueError,
        r"a has shape \(3, 4\) with k = 4, b has shape \(3, 4\)",
        ((3, 4), (3, 4)),
        {},
    ),
    "stacks": (
        ValueError,
        r"stacks \(2,\) of a and \(3,\)",
        ((2, 3, 4), (3, 4, 2)),
        {},
    ),
    "scalar": (ValueError, "b is a scalar", ((3, 4), ()), {}),
    "accuracy": (
        hg.PlanError,
        "accuracy='right'",
        ((3, 4), (4, 2)),
        {"accuracy": "right"},
    ),
    "traced accuracy": (
        hg.PlanError,
        "accuracy=.*expected",
        ((3, 4), (4, 2)),
        {"accuracy": jnp},
    ),
    "scheme": (hg.PlanError, "scheme='best'", ((3, 4), (4, 2)), {"scheme": "best"}),
}


@pytest.mark.parametrize(
    ("error", "message", "shapes", "options"), ERRORS.values(), ids=ERRORS
)
def test_errors_are_raised_where_the_program_is_traced(error, message, shapes, options):
    with pytest.raises(error, match=message):
        jax.make_jaxpr(partial(hj.matmul, **options))(*map(jnp.ones, shapes))


def test_errors_of_gemm_are_raised_where_the_program_is_traced():
    a = jnp.ones((3, 3))
    for error, message, c, options in (
        (
            ValueError,
            r"c has shape \(4,\); the result has shape \(3, 3\)",
            jnp.ones(4),
            {"beta": 1.0},
        ),
        (ValueError, "beta = 1.0 needs c", None, {"beta": 1.0}),
        (
            TypeError,
            "alpha = 1j is complex, and the result has dtype float64",
            None,
            {"alpha": 1j},
        ),
        (hg.PlanError, "trans_a='H'", None, {"trans_a": "H"}),
    ):
        with pytest.raises(error, match=message):
            jax.make_jaxpr(lambda a, c=c, options=options: hj.gemm(a, a, c, **options))(
                a
            )


def test_relative_errors_below_the_rounding_of_a_dtype_are_refused_where_the_program_is_traced():
    a = jnp.ones((2, 2), "float32")
    for product in (hj.matmul, partial(hj.gemm, c=a, beta=1.0)):
        with pytest.raises(
            hg.PlanError, match=r"Relative\(1e-10\): rounding to fp32 alone errs"
        ):
            jax.make_jaxpr(partial(product, accuracy=hg.Relative(1e-10)))(a, a)
    jax.make_jaxpr(partial(hj.matmul, accuracy=hg.Relative(1e-10)))(a, jnp.ones((2, 2)))


def test_strict_mode_is_that_of_the_trace():
    """The worst case of many terms in a product of the BLAS exceeds the level of
    float64.
    """
    a = jnp.ones((1, 4096))
    with hg.strict(), pytest.raises(jax.errors.JaxRuntimeError, match="AccuracyError"):
        jax.block_until_ready(jax.jit(lambda a: hj.matmul(a, a.T))(a))
    found = jax.jit(lambda a: hj.matmul(a, a.T))(a)
    with hg.strict():
        assert found.item() == 4096.0


def test_dtypes_without_products_are_named():
    with pytest.raises(TypeError, match="float8"):
        jax.jit(hj.matmul)(
            jnp.ones((2, 2), "float8_e4m3fn"), jnp.ones((2, 2), "float8_e4m3fn")
        )


@ON_BOTH
def test_what_the_entries_forbid_is_said_when_the_program_runs(place):
    a = jnp.asarray([[1.0, 2.0**200]])
    options = {"scheme": hg.Ozaki1(num_slices=2), "accuracy": 1e-30}
    outside = (
        hg.AccuracyError if place.platform == "cpu" else jax.errors.JaxRuntimeError
    )
    with pytest.raises(outside):
        jax.block_until_ready(hj.matmul(a, a.T, **options))
    with pytest.raises(jax.errors.JaxRuntimeError, match="AccuracyError"):
        jax.block_until_ready(jax.jit(partial(hj.matmul, **options))(a, a.T))


@ON_A_GPU
def test_buffers_on_a_gpu_are_read_and_written_in_place(monkeypatch, torch):
    a, b = integers((3, 4)), integers((4, 2))
    seen = []

    def product(a, b, *, out, **_):
        seen.extend(
            (
                a.data_ptr(),
                b.data_ptr(),
                out.data_ptr(),
                torch.cuda.current_stream().cuda_stream,
            )
        )
        out.fill_(7)

    monkeypatch.setattr(jax_primitive, "product_of_numbers", product)
    c = hj.matmul(a, b)
    assert np.array_equal(c, np.full((3, 2), 7.0))
    assert seen[:3] == [x.unsafe_buffer_pointer() for x in (a, b, c)]
    assert seen[3] not in (0, torch.cuda.current_stream().cuda_stream)


@ON_A_GPU
def test_products_keep_their_place_among_other_work_on_a_gpu():
    """Programs are under way at once, and nothing waits for one of them; every step
    changes what the next one reads.
    """

    def chain(product, a, b):
        for i in range(20):
            b = product(a, jnp.mod(b + i, 7) - 3)
            a = jnp.mod(3 * a + b[:, :1], 5) - 2
        return a, b

    found, wanted = (
        jax.jit(partial(chain, product)) for product in (PRODUCT, jnp.matmul)
    )
    starts = [
        (integers((256, 256), seed=i), integers((256, 64), seed=-i % 9))
        for i in range(8)
    ]
    results = [found(a + 1, b) for a, b in starts]
    outside = [hg.matmul(a, b, accuracy="correct") for a, b in results]
    for (a, b), result, product in zip(starts, results, outside, strict=True):
        want = wanted(a + 1, b)
        assert all(np.array_equal(x, y) for x, y in zip(result, want, strict=True))
        assert np.array_equal(product, jnp.matmul(*want))


@ON_A_GPU
@pytest.mark.parametrize("return_report", [False, True])
def test_memory_of_operands_on_a_gpu_is_read_before_it_is_used_again(return_report):
    b, found = jnp.ones((1024, 1024)), []
    for i in range(20):
        a = jnp.full((1024, 1024), float(i))
        made = hg.matmul(a, b, return_report=return_report)
        del a
        jnp.full((1024, 1024), -1.0)
        found.append((made[0] if return_report else made).max())
    assert [float(x) for x in found] == [1024.0 * i for i in range(20)]


@ON_A_GPU
def test_nothing_but_a_few_numbers_crosses_to_the_host(torch, tmp_path):
    """A level of accuracy reads nothing back, correct rounding how many bits the
    operands need.
    """
    a, b = integers((256, 256)), integers((256, 256), seed=1)
    f = jax.jit(lambda a, b: PRODUCT(hj.matmul(a, b) + 1, b))
    want = jax.block_until_ready(f(a, b))
    with (
        jax.transfer_guard("disallow"),
        torch.profiler.profile(acc_events=True) as profile,
    ):
        found = jax.block_until_ready(f(a, b))
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(x.get("cat") == "kernel" for x in events)
    copies = [
        x["args"]["bytes"]
        for x in events
        if x.get("cat") == "gpu_memcpy" and "DtoD" not in x["name"]
    ]
    assert max(copies, default=0) <= 1024
    assert np.array_equal(found, want)


@ON_BOTH
def test_a_mesh_of_one_device(place, assert_same_bits):
    mesh = Mesh(np.array([place]), ("rows",))
    a, b = integers((4, 4)), integers((4, 4), seed=1)
    check_mesh(mesh, a, b, assert_same_bits)


@pytest.mark.multigpu
@ON_A_GPU
def test_a_mesh_of_two_gpus(assert_same_bits):
    if len(devices := jax.devices("cuda")) < 2:
        pytest.skip(f"needs two CUDA devices, JAX finds {len(devices)}")
    mesh = Mesh(np.array(devices[:2]), ("rows",))
    check_mesh(mesh, integers((4, 4)), integers((4, 4), seed=1), assert_same_bits)
    there = jax.device_put(integers((4, 4)), devices[1])
    for found in (
        hg.matmul(there, there),
        hg.matmul(there, there, return_report=True)[0],
    ):
        assert found.devices() == {devices[1]}
        assert_same_bits(found, there @ there)


def check_mesh(mesh, a, b, same):
    """Products, gradients and an addend, of rows that are spread over a mesh and
    columns that every device has.
    """
    rows, whole = PartitionSpec("rows"), PartitionSpec()
    product = jax.shard_map(PRODUCT, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    same(product(a, b), a @ b)
    same(jax.jit(product)(a, b), a @ b)
    for found, want in zip(
        jax.jit(jax.grad(lambda a, b: (product(a, b) ** 2).sum(), (0, 1)))(a, b),
        jax.grad(lambda a, b: (jnp.matmul(a, b) ** 2).sum(), (0, 1))(a, b),
        strict=True,
    ):
        same(found, want)
    scaled = partial(hj.gemm, beta=2.0, accuracy="correct")
    spread = jax.shard_map(
        scaled, mesh=mesh, in_specs=(rows, whole, rows), out_specs=rows
    )
    same(jax.jit(spread)(a, b, a), a @ b + 2 * a)


def test_two_devices():
    """Two devices of the CPU have to be asked for before JAX starts."""
    program = (
        "from tests.differentiable.test_jax_primitive import two_devices; two_devices()"
    )
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def two_devices():
    """What `test_two_devices` runs."""

    def same(x, y):
        assert np.array_equal(np.asarray(x), np.asarray(y))

    first, second = jax.devices()
    a, b = integers((4, 4)), integers((4, 4), seed=1)
    mesh = Mesh(np.array([first, second]), ("rows",))
    check_mesh(mesh, a, b, same)
    spread = jax.device_put(a, jax.NamedSharding(mesh, PartitionSpec("rows")))
    same(jax.jit(PRODUCT)(spread, b), a @ b)
    with pytest.raises(ValueError, match="a is spread over 2 devices"):
        hg.matmul(spread, spread)
    explicit = jax.make_mesh(
        (2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    with jax.set_mesh(explicit):
        rows = jax.device_put(a, jax.NamedSharding(explicit, PartitionSpec("rows")))
        with pytest.raises(TypeError, match="over explicit axes of a mesh"):
            jax.jit(PRODUCT)(rows, rows)
        same(
            jax.jit(
                jax.shard_map(
                    PRODUCT,
                    in_specs=(PartitionSpec("rows"), PartitionSpec()),
                    out_specs=PartitionSpec("rows"),
                )
            )(rows, b),
            a @ b,
        )
    there = jax.device_put(a, second)
    assert hg.matmul(there, there).devices() == {second}
    assert jax.jit(PRODUCT)(there, there).devices() == {second}
    with pytest.raises(
        ValueError,
        match="a is of jax on cpu:1, b is of jax on cpu:0; move one of them",
    ):
        hg.matmul(there, b)
    same(hg.matmul(a, b), a @ b)


def test_gradients_of_mixed_operands_have_their_dtypes():
    a = jnp.asarray(integers((3, 4), "float32"))
    b = jnp.asarray(integers((4, 2), "complex128"))
    da, db = jax.grad(lambda x, y: hj.matmul(x, y).real.sum(), (0, 1))(a, b)
    want = jax.grad(lambda x, y: (x.astype(complex) @ y).real.sum(), (0, 1))(a, b)
    assert (da.dtype, db.dtype) == (a.dtype, b.dtype)
    np.testing.assert_array_equal(da, want[0])
    np.testing.assert_array_equal(db, want[1])


FORMS_OF_GEMM = {
    "vector vector": ((5,), (5,), ()),
    "vector matrix": ((5,), (5, 3), (3,)),
    "matrix vector": ((4, 5), (5,), (4,)),
    "stack vector": ((2, 4, 5), (5,), (2, 1)),
    "matrix stack": ((4, 5), (2, 5, 3), (4, 1)),
}
SCALARS = {
    "int": -3,
    "bool": True,
    "zero": 0,
    "complex": 2 - 1j,
    "float32": np.float32(1.5),
    "int64": np.int64(7),
    "complex64": np.complex64(1 + 3j),
    "array of JAX": jnp.asarray(-2.0),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("form", FORMS_OF_GEMM)
def test_gemm_of_vectors_and_scalars_of_every_type(place, form, name):
    scalar = SCALARS[name]
    rng = np.random.default_rng([3, *name.encode()])
    operands = []
    for shape in FORMS_OF_GEMM[form]:
        x = rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape)
        operands.append(jnp.asarray(x))

    def gemm(a, b, c):
        return hj.gemm(a, b, c, alpha=scalar, beta=scalar, accuracy="correct")

    def reference(a, b, c):
        number = scalar.item() if hasattr(scalar, "item") else scalar
        return number * jnp.matmul(a, b) + number * c

    def gradients(f):
        def number(*x):
            y = f(*x)
            return (y * y).real.sum()

        return jax.grad(number, argnums=(0, 1, 2))(*operands)

    def same(one, other):
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert (x == y).all()

    same(jax.jit(gemm)(*operands), reference(*operands))
    same(gradients(gemm), gradients(reference))
    same(jax.jvp(gemm, operands, operands), jax.jvp(reference, operands, operands))
    pairs = [jnp.stack([x, x + 1]) for x in operands]
    same(jax.vmap(gemm)(*pairs), jax.vmap(reference)(*pairs))


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_alpha_and_beta_that_are_traced_are_refused(place, name):
    a = jnp.ones((2, 2))

    def gemm(x):
        return hj.gemm(a, a, a, **({"alpha": 2.0, "beta": 1.0} | {name: x})).sum()

    for program in (jax.jit(gemm), jax.grad(gemm)):
        with pytest.raises(TypeError, match=rf"{name} is traced by JAX .*constants"):
            program(2.0)
