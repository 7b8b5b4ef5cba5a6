import numpy as np
import pytest

from hifigemm.study.metrics import forward_errors, judge, relative_residual
from hifigemm.study.reference import ExactProduct, componentwise_error, correctly_rounded, excess_error
from tests import hard_matrices as gen


def test_forward_errors_are_entrywise_norms():
    a, b = np.array([[1.0, -2.0], [2.0, 4.0]]), np.array([[3.0, 4.0], [-1.0, 0.0]])
    c = a @ b + [[1.0, 0.0], [-2.0, 2.0]]
    expected = {"1": 5 / (9 * 8), "2": 3 / (5 * np.sqrt(26)), "inf": 2 / (4 * 4)}
    assert forward_errors(c, a, b) == pytest.approx(expected, rel=1e-15)
    assert forward_errors(c, a, b, reference=a @ b) == pytest.approx(expected, rel=1e-15)
    assert forward_errors(a @ b, a, b) == dict.fromkeys("12", 0.0) | {"inf": 0.0}


def test_forward_errors_see_below_the_last_bit_of_the_result():
    # The rounding error of a correctly rounded product, which a float64 reference could not show.
    rng = np.random.default_rng(0)
    a, b = gen.mean_of_uniforms(rng, (40, 50)), gen.mean_of_uniforms(rng, (50, 40))
    best = correctly_rounded(a, b)
    assert forward_errors(best, a, b, reference=best)["2"] == 0
    errors, native = forward_errors(best, a, b), forward_errors(a @ b, a, b)
    assert 0 < errors["2"] < native["2"] < 2.0**-53


def test_norms_do_not_overflow():
    a = np.full((2, 2), 2.0**600)
    assert forward_errors(a, a, np.eye(2)) == {"1": 0.0, "2": 0.0, "inf": 0.0}
    assert forward_errors(a * 2, a, np.eye(2))["2"] == pytest.approx(1 / np.sqrt(2))


def test_error_that_no_float64_holds_is_infinite():
    largest = np.finfo(float).max
    errors = forward_errors([[-largest]], [[largest]], [[1.0]])
    assert errors == {"1": np.inf, "2": np.inf, "inf": np.inf}


def test_relative_residual_of_a_known_perturbation():
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert relative_residual(reference + np.array([[0, 1e-3], [0, 0]]), reference) == pytest.approx(2e-4, rel=1e-12)
    assert relative_residual(np.float32([[0.1]]), [[0.1]]) == pytest.approx(abs(float(np.float32(0.1)) - 0.1) / 0.1)
    assert relative_residual(0 * reference, 0 * reference) == 0


def test_judgement_agrees_with_the_reference(make_pair):
    a, b = make_pair("phi_2", 9, 12, 7)
    c = a @ b
    excess, exact = excess_error(c, a, b), ExactProduct(a, b)
    judged = judge(c, exact, 2 * excess)
    assert judged.error == componentwise_error(c, a, b)
    assert judged.normwise_error == forward_errors(c, a, b)["2"]
    assert judged.kept
    assert judged.share_correct == np.mean(c == correctly_rounded(a, b))
    assert not judge(c, exact, excess / 2).kept
    assert judge(c, exact, np.inf).kept
    assert judge(correctly_rounded(a, b), exact, 0.0).relative_error <= 2.0**-53
