"""Solutions and logarithms of determinants in programs of JAX: the bits of calls outside of
them, derivatives that are those of jax.numpy.linalg, batches, and errors.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from hifigemm import linalg
from tests.linalg.worst_arithmetic import fractions

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from tests.jax_arrays import ON_A_GPU, ON_BOTH  # noqa: E402

pytestmark = pytest.mark.usefixtures("place")

KINDS = pytest.mark.parametrize("dtype", ["float64", "complex128"])


def drawn(*shape, dtype="float64", seed=0):
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return jnp.asarray(x, dtype)


def x_of(a, b):
    return linalg.solve(a, b).x


def least_squares_of(a, b):
    return linalg.lstsq(a, b).x


def by_pseudoinverse(a, b):
    return jnp.linalg.pinv(a) @ b


def by_inverse(a, b):
    return jnp.linalg.inv(a) @ b


def same(x, y):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), x, y)


SQUARES = {
    "vector": ((4, 4), (4,)),
    "matrix": ((4, 4), (4, 2)),
    "stack": ((3, 4, 4), (3, 4, 2)),
    "one matrix": ((4, 4), (3, 4, 2)),
    "one side": ((3, 4, 4), (4,)),
}
RECTANGLES = {
    "tall, vector": ((4, 2), (4,)),
    "tall, stack": ((2, 4, 2), (2, 4, 3)),
    "tall, one matrix": ((4, 2), (2, 4, 1)),
    "tall, one side": ((2, 4, 2), (4,)),
    "wide, vector": ((2, 4), (2,)),
    "wide, stack": ((2, 2, 4), (2, 2, 2)),
    "wide, one side": ((2, 2, 4), (2,)),
    "square": ((3, 3), (3, 2)),
}
CASES = [(x_of, by_inverse, shapes) for shapes in SQUARES.values()]
CASES += [
    (least_squares_of, by_pseudoinverse, shapes) for shapes in RECTANGLES.values()
]
NAMES = [*SQUARES, *RECTANGLES]
FUNCTIONS = {x_of: linalg.solve, least_squares_of: linalg.lstsq}


@ON_BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("x_of_function", "_", "shapes"), CASES, ids=NAMES)
def test_solutions_in_programs_have_the_bits_of_those_outside(
    assert_same_bits, x_of_function, _, shapes, dtype
):
    function = FUNCTIONS[x_of_function]
    a, b = (drawn(*shape, dtype=dtype) for shape in shapes)
    outside = function(a, b)
    inside = jax.jit(function)(a, b)
    assert isinstance(inside, linalg.VerifiedSolution)
    assert_same_bits(inside.x, outside.x)
    assert_same_bits(inside.radius, outside.radius)


@ON_BOTH
def test_other_results_in_programs_have_the_bits_of_those_outside(assert_same_bits):
    a = drawn(4, 4)
    for x in (a, a.astype("float32"), drawn(2, 3, 3, dtype="complex128")):
        inverse = jax.jit(linalg.inv)(x)
        assert_same_bits(inverse.x, linalg.inv(x).x)
        assert_same_bits(inverse.radius, linalg.inv(x).radius)
        d, outside = jax.jit(linalg.slogdet)(x), linalg.slogdet(x)
        assert np.array_equal(d.sign, outside.sign)
        for name in ("logabsdet", "radius", "sign_radius"):
            assert_same_bits(getattr(d, name), getattr(outside, name))
    correct = partial(linalg.solve, accuracy="correct")
    b = drawn(4)
    assert_same_bits(jax.jit(correct)(a, b).x, correct(a, b).x)


def test_integers_count_as_float64(assert_same_bits):
    a, b = jnp.asarray([[2, 1], [0, 4]]), jnp.asarray([1, 2], "int32")
    assert_same_bits(jax.jit(x_of)(a, b), np.array([0.25, 0.5]))
    assert_same_bits(jax.jit(linalg.inv)(a).x, np.array([[0.5, -0.125], [0.0, 0.25]]))


def test_constants_of_programs_may_be_of_numpy(assert_same_bits):
    a = drawn(2, 2)
    outside = x_of(a, jnp.asarray([1.0, 2.0]))
    for b in (np.array([1.0, 2.0]), [1.0, 2.0], jnp.asarray([1.0, 2.0])):
        assert_same_bits(jax.jit(lambda a, b=b: x_of(a, b))(a), outside)


@KINDS
@pytest.mark.parametrize(("ours", "theirs", "shapes"), CASES, ids=NAMES)
def test_gradients_are_those_of_jax(ours, theirs, shapes, dtype):
    a, b = (drawn(*shape, dtype=dtype) for shape in shapes)

    def loss(function, a, b):
        x = function(a, b) if b.ndim > 1 else function(a, b[:, None])
        return jnp.abs(x * drawn(*x.shape, dtype=dtype, seed=1)).sum()

    def gradients(function):
        return jax.jit(jax.grad(partial(loss, function), (0, 1)))(a, b)

    same(gradients(ours), gradients(theirs))


@KINDS
def test_gradients_of_logarithms_are_those_of_jax(dtype):
    a = drawn(3, 4, 4, dtype=dtype)

    def loss(function, a):
        sign, logarithm, *_ = jax.tree.leaves(function(a))
        return ((sign * drawn(3, dtype=dtype)).real + 3.0 * logarithm).sum()

    pair = linalg.slogdet, jnp.linalg.slogdet
    ours, theirs = (jax.jit(jax.grad(partial(loss, f)))(a) for f in pair)
    same(ours, theirs)


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(("function", "_", "shapes"), CASES, ids=NAMES)
def test_derivatives_of_second_order(function, _, shapes, dtype):
    operands = tuple(drawn(*shape, dtype=dtype) for shape in shapes)
    check_grads(function, operands, order=2)


@pytest.mark.slow
@KINDS
def test_derivatives_of_logarithms_of_second_order(dtype):
    @jax.jit
    def parts(a):
        d = linalg.slogdet(a)
        return d.sign, d.logabsdet

    check_grads(parts, (drawn(2, 3, 3, dtype=dtype),), order=2)


@pytest.mark.parametrize("condition", [1e3, 1e11, 1e19])
@pytest.mark.parametrize("is_wide", [False, True])
def test_gradients_of_least_squares_lose_no_digits_to_the_condition(is_wide, condition):
    # Against the formulas in fractions, with a residual as large as b
    exact = pytest.importorskip("tests.linalg.exact_least_squares")
    rng = np.random.default_rng(5)
    a = exact.nearly_dependent(rng, 8, 3, condition)
    b, g = rng.standard_normal((8, 1)), rng.standard_normal((3, 1))
    if is_wide:
        a, b, g = np.ascontiguousarray(a.T), g, b
    _, backward = jax.vjp(least_squares_of, jnp.asarray(a), jnp.asarray(b))
    gradient, _ = backward(jnp.asarray(g))

    a, b, g = (np.array(fractions(x)) for x in (a, b, g))
    exact_gradient, bound = exact.gradient_of_least_squares(a, b, g)
    error = np.array(fractions(np.asarray(gradient))) - exact_gradient
    assert (abs(error) <= bound).all()


def test_gradients_of_narrow_arrays_are_rounded_from_wide_ones(assert_same_bits):
    a = drawn(3, 3, dtype="float32")
    gradient = jax.grad(lambda a: linalg.slogdet(a).logabsdet)(a)
    inverse = linalg.inv(a.astype("float64")).x
    assert_same_bits(gradient, inverse.T.astype("float32"))


def test_gradients_of_subnormal_numbers_are_those_of_the_numbers(assert_same_bits):
    a = jnp.asarray(np.diag([1.0, 2.0**-127]), "float32")
    gradient = jax.jit(jax.grad(lambda a: linalg.slogdet(a).logabsdet))(a)
    assert_same_bits(gradient, np.diag([1.0, 2.0**127]).astype("float32"))


def test_real_operands_of_complex_systems_have_real_gradients():
    for m, n in ((3, 3), (4, 2), (2, 4)):
        a, b = drawn(m, n), drawn(m, 1, dtype="complex128")
        for operands in ((a, b), (drawn(m, n, dtype="complex128"), b.real)):
            pairs = []
            for function in (least_squares_of, by_pseudoinverse):
                loss = partial(lambda f, a, b: jnp.abs(f(a, b)).sum(), function)
                pairs.append(jax.grad(loss, (0, 1))(*operands))
            same(*pairs)
            assert [x.dtype for x in pairs[0]] == [x.dtype for x in operands]


def test_radii_have_the_derivative_zero():
    gradient = jax.grad(lambda a: linalg.inv(a).radius.sum())(drawn(3, 3))
    assert not np.asarray(gradient).any()


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (2, 1), (None, 1)])
@pytest.mark.parametrize("is_vector", [False, True])
def test_vmap(axes, is_vector):
    shape = {0: (3, 4), 1: (4, 3), None: (4,)}[axes[1]]
    if not is_vector:
        shape = (*shape, 2)
    a = drawn(*{0: (3, 4, 4), 2: (4, 4, 3), None: (4, 4)}[axes[0]])
    b = drawn(*shape)
    same(jax.vmap(x_of, axes)(a, b), jax.vmap(by_inverse, axes)(a, b))
    tall = a[..., :2] if axes[0] == 0 else a[:, :2]
    ours = jax.jit(jax.vmap(least_squares_of, axes))(tall, b)
    same(ours, jax.vmap(by_pseudoinverse, axes)(tall, b))


def test_vmap_of_stacks():
    a, b = drawn(3, 2, 4, 4), drawn(5, 2, 4, 2)
    many = jax.vmap(jax.vmap(x_of, (None, 0)), (0, None))
    same(many(a, b), jax.vmap(jax.vmap(by_inverse, (None, 0)), (0, None))(a, b))
    same(jax.vmap(x_of, (None, 0))(a[0, 0], b), by_inverse(a[0, 0], b))


def test_right_sides_of_one_matrix_are_solved_beside_each_other(monkeypatch):
    a, b = drawn(4, 4), drawn(4)
    program = jax.make_jaxpr(jax.jacrev(x_of, 1))(a, b)
    calls = [x for x in program.jaxpr.eqns if x.primitive.name == "hifigemm_solve"]
    assert [x.invars[1].aval.shape for x in calls] == [(4, 1), (4, 4)]


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_transforms_of_transforms(shape):
    a, b = drawn(*shape), drawn(shape[0])

    def loss(function, a):
        return (function(a, b) ** 2).sum()

    pairs = [(least_squares_of, by_pseudoinverse)]
    if shape[0] == shape[1]:
        pairs.append((x_of, by_inverse))
        logarithms = linalg.slogdet, jnp.linalg.slogdet
        pairs.append([lambda a, _, f=f: jax.tree.leaves(f(a))[1] for f in logarithms])
    for pair in pairs:
        losses = [partial(loss, function) for function in pair]
        for transform in (jax.jacfwd, jax.hessian, lambda f: jax.jacfwd(jax.jacrev(f))):
            ours, theirs = (jax.jit(transform(f))(a) for f in losses)
            same(ours, theirs)
        stack = jnp.stack([a, 2.0 * a + 1.0])
        ours, theirs = (jax.vmap(jax.grad(f))(stack) for f in losses)
        same(ours, theirs)
        ours, theirs = (
            jax.grad(lambda s, f=f: jax.vmap(f)(s).sum())(stack) for f in losses
        )
        same(ours, theirs)


def test_programs_take_and_return_solutions():
    a, b = drawn(3, 3), drawn(3)
    solution = linalg.solve(a, b)
    upper = jax.jit(lambda s: s.x + s.radius)(solution)
    assert np.array_equal(upper, solution.x + solution.radius)

    def step(x, _):
        return linalg.solve(a, x).x, linalg.solve(a, x)

    _, solutions = jax.lax.scan(step, b, length=2)
    assert solutions.x.shape == solutions.radius.shape == (2, 3)
    assert np.array_equal(solutions.x[0], solution.x)


def test_a_mesh_of_one_device(place, assert_same_bits):
    a, b = drawn(2, 3, 3), drawn(2, 3, 1)
    spec = PartitionSpec("i")
    mesh = Mesh(np.array([place]), ("i",))
    program = jax.shard_map(x_of, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    assert_same_bits(jax.jit(program)(a, b), x_of(a, b))
    signs = jax.shard_map(
        lambda a: linalg.slogdet(a).sign, mesh=mesh, in_specs=spec, out_specs=spec
    )
    assert np.array_equal(jax.jit(signs)(a), linalg.slogdet(a).sign)


@ON_BOTH
def test_what_cannot_be_proven_is_said_when_the_program_runs():
    # JAX raises the former in the first run of a program, the latter in others
    errors = jax.errors.JaxRuntimeError, ValueError
    ones = jnp.ones((2, 2))
    with pytest.raises(errors, match="nonsingular"):
        jax.block_until_ready(jax.jit(linalg.solve)(ones, ones))
    stack = jnp.stack([jnp.eye(2), ones])
    with pytest.raises(errors, match="1 of 2 systems failed"):
        jax.block_until_ready(jax.jit(linalg.inv)(stack))


def test_gradients_are_verified_or_raise():
    ones = jnp.ones((2, 2))
    d = jax.jit(linalg.slogdet)(ones)
    assert d.sign == 0.0
    assert d.logabsdet == -np.inf
    with pytest.raises(linalg.VerificationError, match="singular"):
        jax.grad(lambda a: linalg.slogdet(a).logabsdet)(ones)
    # A can be inverted in two words; its right side for the gradient overflows there
    a = jnp.diag(jnp.asarray([1.0, 1e-200]))
    _, backward = jax.vjp(lambda a: x_of(a, jnp.asarray([1.0, 0.0])), a)
    with pytest.raises(linalg.VerificationError, match="beyond the range"):
        backward(jnp.asarray([0.0, 1e200]))


@pytest.mark.parametrize(
    ("error", "message", "function", "shapes"),
    [
        (np.linalg.LinAlgError, "square", linalg.solve, [(2, 3), (2,)]),
        (np.linalg.LinAlgError, "square", linalg.inv, [(2, 3)]),
        (np.linalg.LinAlgError, "square", linalg.slogdet, [(2,)]),
        (np.linalg.LinAlgError, "expected matrices", linalg.lstsq, [(2,), (2,)]),
        (ValueError, "b has 3 rows; expected 2", linalg.solve, [(2, 2), (3,)]),
        (ValueError, "b has 3 rows; expected 4", linalg.lstsq, [(4, 2), (3, 1)]),
        (ValueError, "b is a scalar", linalg.solve, [(2, 2), ()]),
        (ValueError, "broadcast", linalg.solve, [(2, 3, 3), (4, 3, 1)]),
    ],
)
def test_errors_of_shapes_are_raised_where_the_program_is_traced(
    error, message, function, shapes
):
    operands = [jnp.ones(shape) for shape in shapes]
    with pytest.raises(error, match=message):
        jax.eval_shape(function, *operands)


@pytest.mark.parametrize(
    ("option", "call"),
    [
        ("return_report", lambda a: linalg.solve(a, a, return_report=True)),
        ("return_report", lambda a: linalg.inv(a, return_report=True)),
        ("return_report", lambda a: linalg.lstsq(a, a, return_report=True)),
        ("a_radius", lambda a: linalg.solve(a, a, a_radius=1e-3)),
        ("b_radius", lambda a: linalg.solve(np.eye(2), np.eye(2), b_radius=a)),
        ("a_radius", lambda a: linalg.inv(np.eye(2), a_radius=a)),
    ],
)
def test_options_that_programs_lack_are_named(option, call):
    with pytest.raises(TypeError, match=f"programs of JAX take no {option}="):
        jax.jit(call)(jnp.eye(2))


def test_without_64_bits(assert_same_bits):
    a = np.array([[2.0, 1.0], [1.0, 3.0]], "float32")
    with jax.enable_x64(False):
        solution = jax.jit(linalg.solve)(a, a)
        assert_same_bits(solution.x, np.eye(2, dtype="float32"))
        assert solution.radius.dtype == "float32"
        gradient = jax.grad(lambda a: linalg.inv(a).x.sum())(jnp.asarray(a))
        same(gradient, jax.grad(lambda a: jnp.linalg.inv(a).sum())(jnp.asarray(a)))
        for function in (linalg.slogdet, lambda a: linalg.inv(a.astype(int))):
            with pytest.raises(TypeError, match="jax_enable_x64"):
                jax.jit(function)(a)
        with pytest.raises(TypeError, match="b has dtype float64"):
            jax.jit(lambda a: linalg.solve(a, np.ones(2)))(a)


@ON_A_GPU
def test_systems_of_a_gpu_are_solved_there(place):
    a, b = drawn(300, 300), drawn(300)
    program = jax.jit(lambda a, b: linalg.solve(a + a.T, b))
    solution = program(a, b)
    assert solution.x.devices() == {place}
    expected = linalg.solve(np.asarray(a + a.T), np.asarray(b))
    error = abs(np.asarray(solution.x) - expected.x)
    assert (error <= np.asarray(solution.radius) + expected.radius).all()
