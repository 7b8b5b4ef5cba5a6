"""The product of the engine's library, held to the same promise as every other scheme.

Idea
    C = fl(A B) in the operands' own format, or in FP64 for FP32 operands with one
    rounding to FP32 at the end.
Notation
    terms = k, or 2 k for complex operands; u the unit roundoff of the arithmetic.
Exact when
    Never relied on. |C - AB| <= gamma_terms |A||B| in any order of summation, as long
    as nothing over- or underflows; gamma_n = n u / (1 - n u).
Cost
    1 product.
References
    [Hig02] Accuracy and Stability of Numerical Algorithms, section 3.1,
    doi:10.1137/1.9780898718027.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from hifigemm.base.exceptions import AccuracyError
from hifigemm.base.formats import FP32, FP64, Format
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import Engine
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import Array, scale_by_power
from hifigemm.numerics.bounds import are_ordinary, free_of_underflow, native_bound
from hifigemm.numerics.rounding_formats import result_dtype
from hifigemm.schemes.scheme import Scheme, finished

if TYPE_CHECKING:
    from hifigemm.numerics.scaling import Scale


@dataclass(frozen=True)
class Native(Scheme):
    """The product of the library that owns the operands, such as NumPy or PyTorch.

    Parameters
    ----------
    product : None or "fp64"
        None multiplies in the format of the operands; "fp64" multiplies float32
        (complex64) operands in float64 (complex128) and rounds the result once.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.array([[1e8, 1.0, -1e8]], np.float32)
    >>> hg.matmul(a, np.ones((3, 1), np.float32), scheme=hg.Native("fp64"))
    array([[1.]], dtype=float32)
    """

    name: ClassVar[str] = "native"
    is_native = True

    product: Literal["fp64"] | None = None

    def describe_products(self, num_products: int, name: str = "") -> str:
        """The library's own product, and the products for escalated entries."""
        if num_products == 1:
            return "1, the library's own"
        return super().describe_products(num_products, name)

    def describe_verification(self, plan: Plan) -> str:
        """The a priori bound of sums; entries are inspected only for over- and
        underflow.
        """
        text = Verification.A_PRIORI.value
        if plan.verification is Verification.ENTRYWISE:
            text += "; entries that may over- or underflow are made again"
        return text

    def arithmetic(self, problem: Problem) -> Format:
        """Format in which products and sums are rounded."""
        return FP64 if self.product == "fp64" else problem.fmt

    def bound(self, problem: Problem) -> float:
        """Largest possible error / |A||B| before a final rounding."""
        return native_bound(problem.terms, self.arithmetic(problem).u)

    def keeps(self, problem: Problem, target: Target) -> bool:
        """True if the largest possible error meets the target.

        A target that is the level of the arithmetic itself counts as met.
        """
        if not problem.k:
            return True
        if target.by_entry:
            return False
        if target.level is self.arithmetic(problem):
            return True
        return self.bound(problem) <= target.r

    def check_keeps(self, problem: Problem, target: Target) -> None:
        """Raise AccuracyError if the largest possible error exceeds the target."""
        if self.keeps(problem, target):
            return
        if target.relative is not None:
            raise AccuracyError(
                f"{self} promises no relative error: its sums are rounded; requested: {target}"
            )
        raise AccuracyError(
            f"the native product of {problem} errs by up to {self.bound(problem):.3g} |A||B|; requested: {target}"
        )

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan of one product.

        At the level of its own format, a device's library handles over- and underflow,
        so that it costs no more than the library. Otherwise entries that may have over-
        or underflowed are made again.
        """
        bound = self.bound(problem)
        reason = f"native product, at worst {problem.terms} u = {bound:.3g} |A||B|"
        if self.product == "fp64" and problem.fmt is FP32:
            reason = f"float64 product of float32 operands, rounded once, at worst {bound:.3g} |A||B|"
        reason += target.accepts(bound)
        plan = Plan(
            problem=problem,
            asked=asked,
            scheme=self,
            target=target,
            engine=engine.name,
            product=None,
            num_products=1,
            k_block=problem.k,
            verification=Verification.ENTRYWISE,
            bound=max(target.r, bound),
            reason=reason,
        )
        if target.level is problem.fmt and engine.device != "cpu":
            reason = f"{reason}, over- and underflow as the library has them"
            plan = replace(plan, verification=Verification.A_PRIORI, reason=reason)
        return plan

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """0: the library manages its own workspace."""
        return 0

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """The operand as it is."""
        vectors = x.shape[1 if side == "left" else 2]
        return Split(side, vectors, x, np.zeros((1, 1, 1), np.int64), 1)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """The product; entries that may have over- or underflowed are not certified."""
        problem = plan.problem
        fmt = self.arithmetic(problem)
        bound = self.bound(problem)

        # Multiply in the format of the arithmetic; complex entries become re, im pairs.
        smallest = np.complex64 if problem.is_complex else np.float32
        dtype = np.result_type(result_dtype(fmt), smallest)
        a = left.planes.astype(dtype, copy=False)
        b = right.planes.astype(dtype, copy=False)
        c = engine.native_product(a, b)
        values = c.view(c.real.dtype)

        # Nearly always all entries are far from both ends of the exponents.
        smallest_normal = 2.0**fmt.emin
        keeps_format = fmt is problem.fmt and not shift
        if keeps_format and are_ordinary(values, problem.terms, smallest_normal):
            return finished(problem, values, None, bound, 1)

        certified = free_of_underflow(values, a, b, problem.terms, fmt.emin)

        # Scale and round to the format of the result.
        with np.errstate(over="ignore", invalid="ignore"):
            if shift:
                values = scale_by_power(values, np.array(shift))
            values = values.astype(result_dtype(problem.fmt), copy=False)
        certified &= np.isfinite(values)
        return finished(problem, values, certified, bound, 1)

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """A plan that neither over- nor underflows before the last rounding."""
        from hifigemm.schemes.double_double import plan_for_open_entries

        return plan_for_open_entries(problem, plan.target, engine, plan.asked)
