"""The slots that operators of other libraries call, which the package fills."""

from __future__ import annotations

import ast
import inspect

import hifigemm as hg
from hifigemm.differentiable import kernels


def test_slots_hold_the_products_of_the_package(make_pair, assert_same_bits):
    a, b = make_pair("cancelling", 4, 9, 5)
    want = hg.matmul(a, b, accuracy="correct")
    assert_same_bits(kernels.matmul(a, b, accuracy="correct"), want)
    assert_same_bits(
        kernels.gemm(a, b, want, alpha=2.0, beta=1.0, accuracy="correct"),
        hg.gemm(a, b, want, alpha=2.0, beta=1.0, accuracy="correct"),
    )
    plan = kernels.make_plan(a, b, accuracy="correct")
    assert plan == hg.make_plan(a, b, accuracy="correct")


def test_the_module_imports_nothing_of_the_package():
    """Else it would close a circle with what fills its slots."""
    tree = ast.parse(inspect.getsource(kernels))
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert names
    assert not [name for name in names if name.startswith("hifigemm")]
