"""The product of the library behind the engine, judged by the same promise as every
other scheme.

Idea
    C = fl(A B) in the operands' own format, or in FP64 for FP32 operands with one
    rounding to FP32 at the end.
Notation
    terms = k, or 2 k for complex operands; u the unit roundoff of the arithmetic.
Exact when
    Never relied on. |C - AB| <= gamma_terms |A||B| in any order of summation, as long
    as nothing over- or underflows.
Cost
    1 product.
References
    [Hig02] Accuracy and Stability of Numerical Algorithms, section 3.1,
    doi:10.1137/1.9780898718027.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from hifigemm.accuracy import Target
from hifigemm.engine import Engine
from hifigemm.formats import FP32, FP64, Format
from hifigemm.numerics.bits import Array, least_exponent, scale_by_power
from hifigemm.numerics.bounds import are_ordinary, native_bound, underflow_free
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.numerics.scaling import Scale
from hifigemm.numerics.subnormals import matmul
from hifigemm.plan import Evidence, Plan, Product, Split, Verification
from hifigemm.problem import Problem
from hifigemm.schemes.double_double import DoubleDouble
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.scheme import Scheme, finished


@dataclass(frozen=True)
class Native(Scheme):
    """The library's own product.

    Parameters
    ----------
    product : None or "fp64"
        None multiplies in the format of the operands; "fp64" multiplies float32
        (complex64) operands in float64 (complex128) and rounds the result once.
    """

    name: ClassVar[str] = "native"
    core = staticmethod(matmul)

    product: Literal["fp64"] | None = None

    def arithmetic(self, problem: Problem) -> Format:
        """Format in which products and sums are rounded."""
        return FP64 if self.product == "fp64" else problem.fmt

    def bound(self, problem: Problem) -> float:
        """Worst case of error / |A||B| before a final rounding."""
        return native_bound(problem.terms, self.arithmetic(problem).u)

    def keeps(self, problem: Problem, target: Target) -> bool:
        """Whether the worst case meets the target, or the target is the level of the
        arithmetic itself.
        """
        if not problem.k:
            return True
        if target.by_entry:
            return False
        return self.bound(problem) <= target.r or target.level is self.arithmetic(
            problem
        )

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Any,
    ) -> Plan:
        """One product. At the level of its own format an engine with programs leaves
        over- and underflow to its library; otherwise entries where they may have
        happened are escalated.
        """
        return _planned(self, problem, target, engine, asked)

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """None: the library manages its own workspace."""
        return 0

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """The operand as it is."""
        return Split(
            side,
            x.shape[1 if side == "left" else 2],
            x,
            np.zeros((1, 1, 1), np.int64),
            1,
        )

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Product:
        """The product; entries that over- or underflowed, or may have on the way, are
        not certified.
        """
        fmt = self.arithmetic(plan.problem)
        dtype = np.result_type(
            result_dtype(fmt), np.complex64 if plan.problem.is_complex else np.float32
        )
        a, b = (
            left.planes.astype(dtype, copy=False),
            right.planes.astype(dtype, copy=False),
        )
        c = engine.native_product(a, b)
        parts, bound = c.view(c.real.dtype), self.bound(plan.problem)
        limit = plan.problem.terms, 2.0**fmt.emin
        if not shift and fmt is plan.problem.fmt and are_ordinary(parts, *limit):
            return finished(plan.problem, parts, None, bound, 1)
        certified = underflow_free(np.abs(parts), *limit)
        # no product underflows
        if not certified.all() and least_exponent(a) + least_exponent(b) >= fmt.emin:
            certified[...] = True
        with np.errstate(over="ignore", invalid="ignore"):
            if shift:
                parts = scale_by_power(parts, np.array(shift))
            parts = parts.astype(result_dtype(plan.problem.fmt), copy=False)
        certified &= np.isfinite(parts)
        return finished(plan.problem, parts, certified, bound, 1)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """Double-double sums on a CPU, else slices with FP64 products; neither over-
        nor underflow on the way.
        """
        if DoubleDouble.is_for(engine):
            return DoubleDouble().plan(problem, plan.target, engine, None, plan.asked)
        return Ozaki1(product="fp64").continued(
            problem, plan.target, engine, plan.asked
        )


@lru_cache(maxsize=256)
def _planned(
    scheme: Native, problem: Problem, target: Target, engine: Engine, asked: Any
) -> Plan:
    """The plan, kept for the next product of this kind: no data enter it, and small
    products are quick.
    """
    bound = scheme.bound(problem)
    reason = f"native product, at worst {problem.terms} u = {bound:.3g} |A||B|"
    if scheme.product == "fp64" and problem.fmt is FP32:
        reason = f"float64 product of float32 operands, rounded once, at worst {bound:.3g} |A||B|"
    reason += target.accepts(bound)
    plan = Plan(
        *(
            problem,
            asked,
            scheme,
            target,
            engine.name,
            None,
            1,
            problem.k,
            Verification.ENTRYWISE,
        ),
        *(max(target.r, bound), reason),
    )
    if target.level is problem.fmt and engine.compile(plan) is not None:
        reason = f"{reason}, over- and underflow as the library has them"
        plan = replace(plan, verification=Verification.A_PRIORI, reason=reason)
    return plan
