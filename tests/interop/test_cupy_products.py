"""CuPy's own products in a scope: made here, or left to CuPy, and as before once the
scope has ended.

Where no GPU is needed, CuPy's arrays point to memory that nobody reads, and products
are watched alone.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.base.exceptions import PlanError

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
import hifigemm.cupy as hc  # noqa: E402
from hifigemm.interop import cupy_products  # noqa: E402
from tests.cupy_arrays import (  # noqa: E402
    CALLS,
    CORRECT,
    DTYPES,
    Correct,
    check_same_bits,
    on_device,
    operands,
    unread,
)

PLACES = (
    (cupy.ndarray, "__matmul__"),
    (cupy._core, "matmul"),
    (cupy.ndarray, "dot"),
    (cupy._core, "tensordot_core"),
)


def in_place():
    return [vars(place).get(name) for place, name in PLACES]


@pytest.fixture
def watched(monkeypatch):
    """The factors' shapes and options of products that are made here, and names of
    functions of CuPy that are called.

    The latter stand in the places of CuPy's own while the test runs.
    """
    seen = []

    def product(a, b, **options):
        seen.append(("here", a.shape, b.shape, options))
        return unread(np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape, a.dtype)

    def of_cupy(name):
        def function(*args, **kwargs):
            seen.append(name)

        return function

    monkeypatch.setattr(cupy_products, "product_of_numbers", product)
    for place, name in PLACES:
        monkeypatch.setattr(place, name, of_cupy(name), raising=False)
    return seen


@pytest.mark.filterwarnings("ignore:no product of CuPy was seen:UserWarning")
def test_scopes_restore_what_was_there():
    before = in_place()
    assert before[0] is None
    assert before[2] is None
    with hc.emulate("correct"):
        inside = in_place()
        assert all(x is not y for x, y in zip(inside, before, strict=True))
        with pytest.raises(ZeroDivisionError), hc.emulate(scheme="native"):
            raise ZeroDivisionError
        assert in_place() == inside
    assert in_place() == before
    with pytest.raises(ZeroDivisionError), hc.emulate("correct"):
        raise ZeroDivisionError
    assert in_place() == before


def test_what_is_no_policy_is_refused_before_anything_is_replaced():
    before = in_place()
    for options in (
        {"accuracy": "exact"},
        {"scheme": "ozaki3"},
        {"min_size": -1},
        {"workspace": 0},
    ):
        with pytest.raises(PlanError):
            hc.emulate(**options)

    def generator():
        yield

    with pytest.raises(TypeError, match="runs after the call"):
        hc.emulate("correct")(generator)
    assert in_place() == before


ROUTES = {
    "@": (lambda a, b: a @ b, (4, 6), (6, 5), [((4, 6), (6, 5))]),
    "@ of stacks": (lambda a, b: a @ b, (2, 4, 6), (6, 5), [((2, 4, 6), (6, 5))]),
    "@ of vectors": (lambda a, b: a @ b, (6,), (6,), [((6,), (6,))]),
    "matmul": (lambda a, b: cupy.matmul(a, b), (4, 6), (6, 5), [((4, 6), (6, 5))]),
    "linalg.matmul": (
        lambda a, b: cupy.linalg.matmul(a, b),
        (4, 6),
        (6, 5),
        [((4, 6), (6, 5))],
    ),
    "numpy.matmul": (lambda a, b: np.matmul(a, b), (4, 6), (6, 5), [((4, 6), (6, 5))]),
    "dot": (lambda a, b: cupy.dot(a, b), (4, 6), (6, 5), [((4, 6), (6, 5))]),
    "ndarray.dot": (lambda a, b: a.dot(b), (4, 6), (6,), [((4, 6), (6, 1))]),
    "dot by name": (lambda a, b: a.dot(b=b), (4, 6), (6,), [((4, 6), (6, 1))]),
    "dot of vectors": (lambda a, b: a.dot(b), (6,), (6,), [((1, 6), (6, 1))]),
    "inner": (lambda a, b: cupy.inner(a, b), (4, 6), (5, 6), [((4, 6), (6, 5))]),
    "vdot": (lambda a, b: cupy.vdot(a, b), (4, 6), (8, 3), [((1, 24), (24, 1))]),
    "tensordot": (
        lambda a, b: cupy.tensordot(a, b, 1),
        (2, 4, 6),
        (6, 5),
        [((8, 6), (6, 5))],
    ),
    "matrix_power": (
        lambda a, b: cupy.linalg.matrix_power(a, 3),
        (4, 4),
        (1,),
        [((4, 4), (4, 4))] * 2,
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_products_of_cupy_are_made_here(monkeypatch, route):
    call, left, right, expected = ROUTES[route]
    seen = []

    def product(a, b, **options):
        seen.append((a.shape, b.shape, options))
        return unread(np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape, a.dtype)

    monkeypatch.setattr(cupy_products, "product_of_numbers", product)
    options = {"accuracy": "correct", "scheme": "auto", "workspace": 2**30}
    with hc.emulate("correct", workspace=2**30):
        call(unread(left), unread(right))
    assert seen == [(*shapes, options) for shapes in expected]


def test_scopes_nest_and_the_inner_one_holds(watched):
    a = unread((4, 4))
    with hc.emulate("correct"):
        a @ a
        with hc.emulate(scheme="ozaki2"):
            a @ a
            with hc.emulate(scheme="native"):
                a @ a
            a @ a
        a @ a
    asked = [x if isinstance(x, str) else x[3]["scheme"] for x in watched]
    assert asked == ["auto", "ozaki2", "__matmul__", "ozaki2", "auto"]


def test_a_scope_may_be_a_decorator_that_calls_itself(watched):
    a = unread((4, 4))

    @hc.emulate("correct")
    def power(n):
        if n:
            power(n - 1)
        a @ a

    before = in_place()
    power(2)
    a @ a
    assert [x if isinstance(x, str) else "here" for x in watched] == ["here"] * 3 + [
        "__matmul__"
    ]
    assert in_place() == before


def test_a_scope_holds_in_its_thread(watched):
    a, before = unread((4, 4)), in_place()
    opened, looked = threading.Event(), threading.Event()

    def other():
        with hc.emulate("correct"):
            opened.set()
            looked.wait(30)
            a @ a

    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(30)
    a @ a
    with hc.emulate(scheme="ozaki2"):
        a @ a
    a @ a
    looked.set()
    thread.join()
    asked = [
        x if isinstance(x, str) else (x[3]["accuracy"], x[3]["scheme"]) for x in watched
    ]
    assert asked == ["__matmul__", (None, "ozaki2"), "__matmul__", ("correct", "auto")]
    assert in_place() == before


def test_scopes_of_generators_that_end_later_leave_the_others(watched):
    a, before = unread((4, 4)), in_place()

    def steps():
        with hc.emulate(scheme="ozaki1"):
            yield
            yield

    first = steps()
    next(first)
    with hc.emulate(scheme="ozaki2"):
        first.close()
        a @ a
    a @ a
    assert [x if isinstance(x, str) else x[3]["scheme"] for x in watched] == [
        "ozaki2",
        "__matmul__",
    ]
    assert in_place() == before


@pytest.mark.parametrize(
    "call",
    [
        lambda: unread((4, 4), "int64") @ unread((4, 4), "int64"),
        lambda: unread((4, 4), "float16") @ unread((4, 4), "float16"),
        lambda: unread((4, 4)) @ unread((4, 4), "int8"),
        lambda: unread((4, 0)) @ unread((0, 4)),
        lambda: unread((4, 3)) @ unread((4, 3)),
        lambda: unread((4, 4)).view(type("Own", (cupy.ndarray,), {})) @ unread((4, 4)),
    ],
    ids=["int64", "float16", "mixed", "empty", "shapes", "subclass"],
)
def test_what_is_not_taken_goes_to_cupy(watched, call):
    with hc.emulate("correct"):
        call()
    assert watched == ["__matmul__"]


def test_small_products_at_the_level_go_to_cupy(watched):
    small, large = unread((127, 128)), unread((128, 128))
    small32, large32 = unread((127, 128), "float32"), unread((128, 128), "float32")
    expected = []
    for options, kept in (
        ({}, [False, True, False, True]),
        ({"accuracy": "fp64"}, [False, True, True, True]),
        ({"accuracy": "correct"}, [True] * 4),
        ({"scheme": "ozaki2"}, [True] * 4),
        ({"min_size": 128}, [False, True, False, True]),
        ({"accuracy": "correct", "min_size": 129}, [False] * 4),
    ):
        with hc.emulate(**options):
            for a, b in (
                (small, large),
                (large, large),
                (small32, large32),
                (large32, large32),
            ):
                a @ b
        expected += kept
    assert [not isinstance(x, str) for x in watched] == expected


def test_foreign_operands_go_to_cupy(watched):
    with hc.emulate("correct"):
        cupy.matmul(np.ones((4, 4)), unread((4, 4)))
        cupy.dot(unread((4, 4)), 2.0)
    assert watched == ["matmul", "dot"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_products_of_cupy_in_a_scope_are_correctly_rounded(make_pair, call, dtype):
    arrays = operands(make_pair, dtype)
    with hc.emulate("correct"):
        made = call(cupy, *on_device(*arrays))
    check_same_bits(made, call(Correct(), *arrays))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_and_methods_in_a_scope_are_correctly_rounded(make_pair, dtype):
    a, b, v = operands(make_pair, dtype)
    x, y, w = on_device(a, b, v)
    out = cupy.empty((4, 4), dtype)
    strided = cupy.empty((4, 4), dtype, order="F")
    with hc.emulate("correct"):
        made = [
            x @ y,
            x.dot(y),
            x @ w,
            cupy.matmul(x, y, out=strided),
            x.dot(y, out),
            np.matmul(x, y),
            x[::-1] @ y,
        ]
        power = cupy.linalg.matrix_power(x[:, :4], 2)
    assert made[3] is strided
    assert made[4] is out
    product = hg.matmul(a, b, **CORRECT)
    expected = [
        product,
        product,
        hg.matmul(a, v, **CORRECT),
        product,
        product,
        product,
        product[::-1],
    ]
    for one, other in zip(made, expected, strict=True):
        check_same_bits(one, other)
    check_same_bits(power, hg.matmul(a[:, :4], a[:, :4], **CORRECT))


@pytest.mark.gpu
def test_integers_and_errors_in_a_scope_are_those_of_cupy():
    a, b = on_device(np.arange(12).reshape(3, 4), np.arange(8).reshape(4, 2))
    with hc.emulate("correct"):
        check_same_bits(a @ b, np.arange(12).reshape(3, 4) @ np.arange(8).reshape(4, 2))
        for call in (
            lambda: a.astype(float) @ a.astype(float),
            lambda: a.astype(float).dot(a.astype(float)),
        ):
            with pytest.raises(ValueError, match=r"mismatch|aligned"):
                call()
        with pytest.raises(ValueError, match="C-contiguous"):
            a.astype(float).dot(b.astype(float), cupy.empty((3, 2), order="F"))
        assert (a.astype(float) * 2.0 @ b.astype(float)).dtype == float


def test_an_accuracy_that_fails_raises_and_leaves_the_scope(monkeypatch):
    def product(*_, **__):
        raise hg.AccuracyError("asked for more than there is")

    before = in_place()
    monkeypatch.setattr(cupy_products, "product_of_numbers", product)
    with pytest.raises(hg.AccuracyError), hc.emulate("correct"):
        unread((4, 4)) @ unread((4, 4))
    assert in_place() == before
    assert cupy_products._open_scopes() == ()
