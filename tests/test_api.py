"""The contract of matmul, make_plan, engines and info: shapes, dtypes, out, plans,
reports, errors, logging.
"""

from __future__ import annotations

import dataclasses
import logging
import re

import numpy as np
import pytest

import hifigemm as hg
from hifigemm.schemes import SCHEMES as SCHEMES_BY_NAME
from tests.small_integers import SCHEMES


def test_arrays_of_other_libraries_are_a_clear_error():
    class Guest:
        def __dlpack__(self, **_):
            raise AssertionError("must not be read silently")

    with pytest.raises(TypeError, match="Guest"):
        hg.matmul(Guest(), np.ones((2, 2)))


REPORT_TYPES = {
    "num_products": int,
    "engine": str,
    "device": str,
    "bound": float,
    "correct": bool,
    "native": bool,
    "reason": str,
    "k_block": int,
    "workspace": int,
    "decision_seconds": float,
}


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("accuracy", [None, 1e-15, "correct"])
def test_reports_have_the_attributes_of_the_contract(make_pair, scheme, accuracy):
    a, b = make_pair("phi_1", 6, 20, 5)
    try:
        report = hg.matmul(a, b, scheme=scheme, accuracy=accuracy, return_report=True)[
            1
        ]
    except hg.AccuracyError:
        assert scheme == "native" or getattr(scheme, "mode", None) == "dp"
        return
    for name, kind in REPORT_TYPES.items():
        assert isinstance(getattr(report, name), kind), name
    assert isinstance(report, hg.Report)
    assert (report.engine, report.device) == ("numpy", "cpu")
    assert report.native is isinstance(report.scheme, hg.Native)
    assert report.correct is (report.bound == 0.0)
    assert report.num_products >= 1
    count = getattr(
        report.scheme, "num_slices", getattr(report.scheme, "num_moduli", 1)
    )
    assert isinstance(count, int)
    text = str(report)
    for part in (
        str(report.scheme),
        report.scheme.describe_products(report.num_products),
        "numpy",
        report.reason,
        str(report.k_block),
    ):
        assert part in text
    with pytest.raises(AttributeError):
        report.bound = 1.0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_plans_say_what_matmul_then_does(make_pair, assert_same_bits, scheme):
    a, b = make_pair("phi_1", 6, 20, 5)
    plan = hg.make_plan(a, b, scheme=scheme)
    c, report = hg.matmul(a, b, scheme=scheme, return_report=True)
    d, planned = hg.matmul(a, b, plan=plan, return_report=True)
    assert_same_bits(c, d)
    assert planned == report
    assert isinstance(plan, hg.Plan)
    assert (plan.scheme, plan.engine, plan.workspace) == (
        report.scheme,
        report.engine,
        report.workspace,
    )
    assert report.reason.startswith(plan.reason)
    text = str(plan)
    for part in (
        "(6 x 20) @ (20 x 5) float64",
        str(plan.scheme),
        str(plan.num_products),
        plan.reason,
    ):
        assert part in text
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.k_block = 1


def test_numbers_of_products_are_those_of_the_papers(make_pair):
    a, b = make_pair("phi_2", 6, 20, 5)
    z, w = make_pair("phi_2", 6, 20, 5, "complex128")
    for count in (2, 3, 5):
        assert (
            hg.matmul(a, b, scheme=hg.Ozaki1(num_slices=count), return_report=True)[
                1
            ].num_products
            == count * (count + 1) // 2
        )
        assert (
            hg.matmul(a, b, scheme=hg.Ozaki2(num_moduli=count), return_report=True)[
                1
            ].num_products
            == count
        )
    # 15 moduli with a square root of -1 take two products each.
    assert (
        hg.matmul(z, w, scheme=hg.Ozaki2(num_moduli=15), return_report=True)[
            1
        ].num_products
        == 30
    )
    short = np.ones((3, 3))
    assert (
        hg.matmul(short, short, scheme=hg.Ozaki1(num_slices=9), return_report=True)[
            1
        ].num_products
        == 1
    )


@pytest.mark.parametrize(
    "options",
    [{}, *({"scheme": name} for name in SCHEMES), {"accuracy": "correct"}],
    ids=str,
)
@pytest.mark.parametrize("left", [(3,), (2, 3), (1, 2, 3), (1, 1, 2, 3)], ids=str)
def test_one_matrix_times_an_empty_stack_is_an_empty_stack(options, left):
    a, b = np.ones(left, np.float32), np.ones((0, 3, 2), np.float32)
    want = np.matmul(a, b).shape
    c, report = hg.matmul(a, b, return_report=True, **options)
    assert (c.shape, report.num_products) == (want, 0)
    assert hg.gemm(a, b, np.ones(want, np.float32), beta=1, **options).shape == want
    assert hg.matmul(np.ones((0, 2, 3)), np.ones((3, 2)), **options).shape == (0, 2, 2)


def test_nothing_to_multiply_keeps_every_promise():
    assert (
        hg.matmul(
            np.ones((2, 0)), np.ones((0, 2)), scheme="native", accuracy="correct"
        ).tolist()
        == [[0.0] * 2] * 2
    )


def test_the_least_integer_is_a_power_of_two():
    assert hg.matmul(np.array([[-(2**63)]]), np.ones((1, 1))) == -(2.0**63)
    for beyond in (np.array([[2**63 - 1]]), np.array([[2**64 - 1]], np.uint64)):
        with pytest.raises(ValueError, match="beyond 2\\*\\*53"):
            hg.matmul(beyond, np.ones((1, 1)))


@pytest.mark.parametrize(
    "scheme",
    [
        lambda: hg.Multiword(num_words=2.0),
        lambda: hg.Multiword(num_words=True, num_products=1),
        lambda: hg.Multiword(product=["fp16"]),
        lambda: hg.Multiword(scale="no"),
        lambda: hg.Multiword(accumulate="blocked", block=1.5),
        lambda: hg.Corrected(block="x"),
        lambda: hg.Corrected(block=True),
        lambda: hg.Corrected(["fp16"]),
        lambda: hg.Corrected(scale=None),
        lambda: hg.Ozaki1(num_slices=2.0),
        lambda: hg.matmul(np.ones((1, 1)), np.ones((1, 1)), scheme=hg.Ozaki1(["int8"])),
        lambda: hg.Ozaki2(num_moduli=0),
        lambda: hg.Native(["fp64"]),
    ],
)
def test_wrong_fields_of_schemes_are_refused_by_name(scheme):
    with pytest.raises(
        hg.PlanError, match=r"(Multiword|Corrected|Ozaki1|Ozaki2|Native)"
    ):
        scheme()


def test_fields_of_schemes_may_be_numbers_of_numpy():
    assert hg.Ozaki1(num_slices=np.uint8(200)) == hg.Ozaki1(num_slices=200)
    assert type(hg.Ozaki2(num_moduli=np.int8(49)).num_moduli) is int
    assert hg.Corrected(block=np.int64(16), scale=np.True_) == hg.Corrected(block=16)
    a = np.ones((2, 3), np.float32)
    assert (
        hg.matmul(a, a.T, scheme=hg.Ozaki1(num_slices=np.int64(3))).tolist()
        == [[3.0] * 2] * 2
    )


def test_empty_products_report_nothing_to_multiply():
    c, report = hg.matmul(
        np.ones((3, 0)), np.ones((0, 2)), accuracy="correct", return_report=True
    )
    assert not c.any()
    assert (report.num_products, report.bound, report.correct) == (0, 0.0, True)
    assert "0" in report.reason


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 5)), ((0, 4), (4, 5))], ids=["full", "empty"]
)
@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "best"},
        {"accuracy": -1.0},
        {"scheme": "ozaki3"},
        {"scheme": None},
        {"scheme": hg.Ozaki1},
        {"engine": "cuda"},
        {"workspace": 0},
        {"workspace": -5},
    ],
    ids=str,
)
def test_unknown_options_are_plan_errors_that_name_them(shapes, options):
    a, b = (np.ones(shape) for shape in shapes)
    (value,) = options.values()
    for call in (hg.matmul, hg.gemm, hg.make_plan):
        with pytest.raises(hg.PlanError) as error:
            call(a, b, **options)
        assert isinstance(error.value, (hg.HifigemmError, ValueError))
        assert str(value) in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hg.Ozaki1(product="fp8"),
        lambda: hg.Ozaki1(num_slices=0),
        lambda: hg.Ozaki1(num_slices=-1),
        lambda: hg.Ozaki1(num_slices=10**6),
        lambda: hg.Ozaki1(num_slices=2.5),
        lambda: hg.Ozaki1(mode="hp"),
        lambda: hg.Ozaki2(num_moduli=1),
        lambda: hg.Ozaki2(num_moduli=50),
        lambda: hg.Ozaki2(num_moduli=7.5),
        lambda: hg.Ozaki2(scaling="slow"),
        lambda: hg.Ozaki2(product="fp16"),
        lambda: hg.Native(product="fp16"),
    ],
)
def test_parameters_out_of_range_are_plan_errors(make):
    with pytest.raises(hg.PlanError):
        make()


def test_scheme_dataclasses_are_frozen_hashable_and_have_defaults():
    for make in (hg.Native, hg.Ozaki1, hg.Ozaki2):
        assert make() == make()
        assert len({make(), make()}) == 1
        field = dataclasses.fields(make)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(make(), field, None)


@pytest.mark.parametrize("name", ["native", "ozaki1", "ozaki2"])
def test_scheme_names_mean_their_defaults(make_pair, assert_same_bits, name):
    a, b = make_pair("phi_1", 6, 20, 5)
    default = {"native": hg.Native(), "ozaki1": hg.Ozaki1(), "ozaki2": hg.Ozaki2()}[
        name
    ]
    by_name, by_class = (
        hg.matmul(a, b, scheme=s, return_report=True) for s in (name, default)
    )
    assert_same_bits(by_name[0], by_class[0])
    assert by_name[1] == by_class[1]


def test_plans_for_other_operands_are_refused_with_both_problems(make_pair):
    a, b = make_pair("phi_1", 6, 20, 5)
    plan = hg.make_plan(a, b, scheme="ozaki1")
    for x, y in (
        (a[:, :7], b[:7]),
        (a.astype(np.float32), b.astype(np.float32)),
        (a + 0j, b),
    ):
        for call in (hg.matmul, hg.gemm):
            with pytest.raises(hg.PlanError, match=r"20.*the operands are"):
                call(x, y, plan=plan)
    for options in ({"accuracy": "correct"}, {"scheme": "ozaki2"}, {"engine": "torch"}):
        with pytest.raises(hg.PlanError):
            hg.matmul(a, b, plan=plan, **options)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_plans_serve_other_numbers_of_rows_and_columns(make_pair, scheme):
    a, b = make_pair("integers", 6, 20, 5)
    plan = hg.make_plan(a, b, scheme=scheme)
    for m, n in ((1, 1), (13, 2), (3, 30)):
        x, y = make_pair("integers", m, 20, n)
        np.testing.assert_array_equal(hg.matmul(x, y, plan=plan), x @ y)
    x = np.stack([a, -a, 2 * a])
    np.testing.assert_array_equal(hg.matmul(x, b, plan=plan), x @ b)
    np.testing.assert_array_equal(
        hg.matmul(a, np.stack([b] * 3), plan=plan), np.stack([a @ b] * 3)
    )
    np.testing.assert_array_equal(hg.matmul(a[0], b[:, 0], plan=plan), a[0] @ b[:, 0])
    np.testing.assert_array_equal(hg.matmul(a[:0], b, plan=plan), np.zeros((0, 5)))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_one_log_line_says_what_was_done(make_pair, caplog, scheme):
    a, b = make_pair("phi_1", 6, 20, 5)
    with caplog.at_level(logging.INFO, logger="hifigemm"):
        report = hg.matmul(a, b, scheme=scheme, return_report=True)[1]
    (record,) = caplog.records
    assert record.name == "hifigemm"
    assert "(6 x 20) @ (20 x 5) float64" in record.getMessage()
    assert str(report.scheme) in record.getMessage()
    assert report.reason in record.getMessage()


def test_escalation_is_reported(make_pair):
    a, b = make_pair("cancelling", 6, 20, 5)
    a[0, 0] += 1.0
    report = hg.matmul(
        a, b, accuracy="correct", scheme=hg.Ozaki1(product="fp16"), return_report=True
    )[1]
    assert "escalated" in report.reason
    assert report.num_products > 0


def test_reasons_count_in_the_singular_too():
    a = np.ones((2, 3))
    a[0, 0] += 2.0**-30
    for scheme, text in (
        (hg.Ozaki1(num_slices=1), "1 slice of"),
        (hg.Ozaki1(num_slices=2), "2 slices of"),
    ):
        assert text in hg.matmul(a, a.T, scheme=scheme, return_report=True)[1].reason
    zero = hg.matmul(
        0 * a,
        a.T,
        scheme=hg.Ozaki2(scaling="fast"),
        accuracy="correct",
        return_report=True,
    )[1]
    assert "2 moduli hold the exact product of 1 bit" in zero.reason
    x, y = np.array([[1.0, 2.0**-300, -1.0]]), np.ones((3, 1))
    assert (
        "; 1 entry escalated by"
        in hg.matmul(x, y, accuracy="correct", scheme="ozaki1", return_report=True)[
            1
        ].reason
    )


def test_the_docstring_names_every_scheme():
    assert hg.matmul.__doc__ is not None
    assert all(f'"{name}"' in hg.matmul.__doc__ for name in SCHEMES_BY_NAME)


def test_the_docstring_example():
    a = np.array([[1e16, 1.0, -1e16]])
    assert hg.matmul(a, np.ones((3, 1)), accuracy="correct") == 1.0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda a: hg.matmul(a, a, plan="x"), hg.PlanError, "plan is a str"),
        (lambda a: hg.matmul(a, a, scheme=[]), hg.PlanError, r"scheme=\[\]"),
        (lambda a: hg.matmul(a, a, engine=[]), hg.PlanError, r"engine=\[\]"),
        (lambda a: hg.make_plan(a, a, engine=3), hg.PlanError, "engine=3"),
        (lambda a: hg.matmul(None, a), TypeError, "a has dtype object and is None"),
        (lambda a: hg.gemm(a, a, alpha=None), TypeError, "alpha = None"),
        (lambda a: hg.gemm(a, a, a, beta="2"), TypeError, "beta = '2'"),
        (lambda a: hg.gemm(a, a, alpha=2**2000), ValueError, "alpha is beyond"),
        (
            lambda a: hg.gemm(a, a, np.ones((2, 3)), beta=1.0),
            ValueError,
            r"c has shape \(2, 3\)",
        ),
        (
            lambda a: hg.gemm(a, a, np.full((2, 2), 2**53 + 1), beta=1.0),
            ValueError,
            r"beyond 2\*\*53",
        ),
        (
            lambda a: hg.gemm(a, a, np.ma.masked_array(a), beta=1.0),
            TypeError,
            "c is a masked array",
        ),
        (
            lambda a: hg.gemm(a, a, np.zeros((2, 2), "M8[s]"), beta=1.0),
            TypeError,
            "c has dtype datetime64",
        ),
        (
            lambda a: hg.gemm(a, a, np.zeros((2, 2), [("bfloat16", "u2")]), beta=1.0),
            TypeError,
            "c has dtype",
        ),
        (lambda a: hg.strict("no").__enter__(), TypeError, r"strict\('no'\)"),
    ],
)
def test_misuse_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call(np.eye(2))


def test_what_is_escalated_keeps_the_bound_of_the_promise():
    a, b = np.float32([[1.0, 2**20]]), np.ones((2, 1), np.float32)
    scheme = hg.Multiword("fp16", 1, 1, scale=False)
    found, report = hg.matmul(a, b, scheme=scheme, accuracy=1e-6, return_report=True)
    assert report.bound <= 1e-6
    assert found[0, 0] == 2**20 + 1


@pytest.mark.parametrize("r", [0.5, 0.999])
@pytest.mark.parametrize("k", [1, 100])
def test_a_promise_of_next_to_nothing_is_kept_by_few_moduli(r, k):
    found, report = hg.matmul(
        np.ones((2, k)),
        np.ones((k, 2)),
        accuracy=r,
        scheme="ozaki2",
        return_report=True,
    )
    assert (abs(found - k) <= r * k).all()
    assert report.num_products <= 6


def test_warmup_makes_a_product_and_says_how_long_it_took(caplog):
    a, b = np.ones((3, 40)), np.ones((40, 2))
    with caplog.at_level("INFO", "hifigemm"):
        done = hg.warmup(a, b, accuracy=1e-17)
    assert re.fullmatch(r"0 kernels compiled or loaded, \S+ s", done)
    assert "(3 x 40) @ (40 x 2) float64" in caplog.text
    with pytest.raises(ValueError, match="inner dimensions differ"):
        hg.warmup(a, a)
