"""The exact schemes give the same bits whatever the threads, the blocks, the memory
layout and the preparation.
"""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import hifigemm as hg

SCHEMES = (
    *(hg.Ozaki1(product=p) for p in ("int8", "fp16", "bf16", "tf32", "fp32", "fp64")),
    *(hg.Ozaki1(product=p, mode="dp") for p in ("int8", "fp16", "fp64")),
    hg.Ozaki1(mode="sp"),
    hg.Ozaki1(product="fp64", mode="correct"),
    hg.Ozaki1(num_slices=1),
    hg.Ozaki1(num_slices=4),
    hg.Ozaki1(product="bf16", num_slices=3),
    hg.Ozaki1(product="fp64", num_slices=2),
    hg.Ozaki2(),
    hg.Ozaki2(scaling="fast"),
    hg.Ozaki2(num_moduli=2),
    hg.Ozaki2(num_moduli=8),
    hg.Ozaki2(num_moduli=8, scaling="fast"),
    hg.Ozaki2(scaling="largest"),
    hg.Ozaki2(num_moduli=8, scaling="largest"),
)
DTYPES = ("float32", "float64", "complex64", "complex128")
NAMES = ("phi_1", "span_60", "empty_rows_and_columns")


def layouts(x):
    """The same matrix in other memory layouts."""
    rows, cols = x.shape
    wide = np.full((2 * rows, 3 * cols), np.nan, x.dtype)
    wide[::2, ::3] = x
    odd = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    odd[...] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    return {
        "fortran": np.asfortranarray(x),
        "strided": wide[::2, ::3],
        "negative": x[::-1, ::-1].copy()[::-1, ::-1],
        "reversed_fortran": np.asfortranarray(x[::-1])[::-1],
        "misaligned": odd,
        "read_only": frozen,
        "swapped_bytes": x.astype(x.dtype.newbyteorder()),
    }


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_layout(make_pair, assert_same_bits, scheme, dtype):
    for name in NAMES:
        a, b = make_pair(name, 7, 12, 5, dtype)
        c = hg.matmul(a, b, scheme=scheme)
        for x, y in zip(
            layouts(a).values(), reversed(layouts(b).values()), strict=True
        ):
            assert_same_bits(hg.matmul(x, y, scheme=scheme), c)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", [None, "correct", 1e-16])
def test_every_layout_is_accepted_by_auto(make_pair, assert_same_bits, dtype, accuracy):
    for name in (*NAMES, "zeros", "underflowing", "subnormal", "overflowing"):
        a, b = make_pair(name, 7, 12, 5, dtype)
        c = hg.matmul(a, b, accuracy=accuracy)
        for x, y in zip(layouts(a).values(), layouts(b).values(), strict=True):
            found = hg.matmul(x, y, accuracy=accuracy)
            if accuracy == "correct":
                assert_same_bits(found, c)
            else:
                assert found.shape == c.shape
                assert found.dtype == c.dtype


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_operands_give_the_bits_of_their_copies(
    make_pair, assert_same_bits, scheme, dtype
):
    a, b = make_pair("phi_2", 7, 12, 5, dtype)
    a, b = np.broadcast_to(a[:1], (7, 12)), np.broadcast_to(b[:, :1], (12, 5))
    assert_same_bits(
        hg.matmul(a, b, scheme=scheme), hg.matmul(a.copy(), b.copy(), scheme=scheme)
    )


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_the_workspace(
    make_pair, assert_same_bits, workspaces, scheme, dtype
):
    for name in NAMES[:2]:
        a, b = make_pair(name, 7, 14, 6, dtype)
        c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
        for workspace in (*workspaces(a, b, scheme=scheme), 10**12):
            try:
                d, other = hg.matmul(
                    a, b, scheme=scheme, workspace=workspace, return_report=True
                )
            except hg.PlanError:  # a escalated plan may take more
                assert not scheme.explicit
                assert workspace < report.workspace
                continue
            assert_same_bits(d, c)
            assert other.scheme == report.scheme


@pytest.mark.parametrize("scheme", ["auto", *SCHEMES], ids=str)
def test_bits_do_not_depend_on_the_workspace_within_a_stack(
    make_pair, assert_same_bits, workspaces, scheme
):
    pairs = [
        make_pair(name, 4, 9, 3)
        for name in ("uniform", "phi_4", "span_60", "zeros", "integers")
    ]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    options = {"scheme": scheme, "accuracy": "correct" if scheme == "auto" else None}
    plan = hg.make_plan(a, b, **options)
    between = workspaces(a, b, **options)[2]
    for x, y in ((a, b), (a[:1], b), (a, b[:1]), (a[0], b), (a, b[0])):
        c = hg.matmul(x, y, plan=plan)
        assert c.shape == np.matmul(x, y).shape
        assert_same_bits(hg.matmul(x, y, plan=plan, workspace=between), c)


@pytest.mark.parametrize(
    "scheme",
    ["auto", *(s for s in SCHEMES if getattr(s, "scaling", "") != "accurate")],
    ids=str,
)
def test_a_stack_is_its_products_one_by_one_under_one_plan(
    make_pair, assert_same_bits, scheme
):
    pairs = [
        make_pair(name, 4, 9, 3)
        for name in ("uniform", "phi_4", "span_60", "zeros", "integers")
    ]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    plan = hg.make_plan(
        a, b, scheme=scheme, accuracy="correct" if scheme == "auto" else None
    )
    if isinstance(scheme, hg.Ozaki2) and not scheme.explicit:
        pytest.skip("its escalation scales what is left of the stack")
    c = hg.matmul(a, b, plan=plan)
    for z in range(len(a)):
        assert_same_bits(hg.matmul(a[z], b[z], plan=plan), c[z])


@pytest.mark.parametrize("scheme", ["ozaki1", "ozaki2", "auto"])
def test_correct_stacks_are_their_products_one_by_one(
    make_pair, assert_same_bits, scheme
):
    pairs = [
        make_pair(name, 4, 9, 3, "complex64")
        for name in ("uniform", "phi_2", "span_60", "zeros", "integers")
    ]
    a, b = (np.stack(x) for x in zip(*pairs, strict=True))
    c = hg.matmul(a, b, accuracy="correct", scheme=scheme)
    for z in range(len(a)):
        assert_same_bits(hg.matmul(a[z], b[z], accuracy="correct", scheme=scheme), c[z])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_bits_do_not_depend_on_the_number_of_threads(
    make_pair, assert_same_bits, scheme, dtype
):
    # large enough that OpenBLAS takes two threads
    a, b = make_pair("phi_2", 66, 171, 58, dtype)
    with threadpool_limits(1, user_api="blas"):
        one = hg.matmul(a, b, scheme=scheme)
    with threadpool_limits(2, user_api="blas"):
        two = hg.matmul(a, b, scheme=scheme)
    assert_same_bits(one, two)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", [SCHEMES[0], SCHEMES[5], hg.Ozaki1(mode="dp"), hg.Ozaki2()], ids=str
)
def test_large_products_do_not_depend_on_threads_and_blocks(
    make_pair, assert_same_bits, workspaces, scheme
):
    a, b = make_pair("phi_2", 509, 1021, 503)
    with threadpool_limits(1, user_api="blas"):
        one = hg.matmul(a, b, scheme=scheme)
    with threadpool_limits(2, user_api="blas"):
        assert_same_bits(hg.matmul(a, b, scheme=scheme), one)
        assert_same_bits(
            hg.matmul(
                a, b, scheme=scheme, workspace=workspaces(a, b, scheme=scheme)[1]
            ),
            one,
        )


@pytest.mark.parametrize(
    "scheme",
    [s for s in SCHEMES if not isinstance(s, hg.Ozaki2) or s.scaling == "fast"],
    ids=str,
)
def test_a_part_of_the_result_has_the_bits_of_the_whole_under_one_plan(
    make_pair, assert_same_bits, scheme
):
    a, b = make_pair("phi_1", 9, 14, 8)
    plan = hg.make_plan(a, b, scheme=scheme)
    if not scheme.explicit and isinstance(scheme, hg.Ozaki2):
        pytest.skip("its escalation scales what is left of the operands")
    c = hg.matmul(a, b, plan=plan)
    assert_same_bits(hg.matmul(a[2:7], b[:, 1:4], plan=plan), c[2:7, 1:4])
    assert_same_bits(hg.matmul(a[3], b[:, 2], plan=plan), c[3, 2])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_operands_are_left_as_they_were(make_pair, assert_same_bits, scheme):
    for dtype in DTYPES:
        a, b = make_pair("phi_2", 6, 7, 5, dtype)
        a[1, 2] = np.inf
        before = a.copy(), b.copy()
        hg.matmul(a, b, scheme=scheme)
        assert_same_bits(a, before[0])
        assert_same_bits(b, before[1])
