"""Tools to test matrix products: an exact judge, hard matrices, and checks of the
functions that exactness relies on.

    from hifigemm.testing import correctly_rounded, meets_promise

    assert meets_promise(c, a, b, 1e-12).all()
    assert c.tobytes() == correctly_rounded(a, b).tobytes()

Bytes distinguish -0 from +0, which == does not. The judge sees only operands and
results, and shares no code with the library. `primitives` checks the functions of
NumPy, its BLAS and PyTorch that exactness relies on; ``hifigemm info --check`` runs it.
"""

from hifigemm.base.public import shown
from hifigemm.testing.exact import ExactMatrix
from hifigemm.testing.matrices import (
    EXPONENT_FAMILIES,
    as_complex,
    exp_rand,
    exponent_family,
    hilbert,
    inverse_hilbert,
    phi_matrix,
    random_floats,
    span_pair,
    uniform,
)
from hifigemm.testing.reference import (
    ExactProduct,
    Judgement,
    componentwise_error,
    correctly_rounded,
    exact_difference,
    exact_product,
    forward_errors,
    judge,
    meets_promise,
    relative_residual,
)

__all__ = [
    "EXPONENT_FAMILIES",
    "ExactMatrix",
    "ExactProduct",
    "Judgement",
    "as_complex",
    "componentwise_error",
    "correctly_rounded",
    "exact_difference",
    "exact_product",
    "exp_rand",
    "exponent_family",
    "forward_errors",
    "hilbert",
    "inverse_hilbert",
    "judge",
    "meets_promise",
    "phi_matrix",
    "random_floats",
    "relative_residual",
    "span_pair",
    "uniform",
]

__dir__ = shown(globals())
