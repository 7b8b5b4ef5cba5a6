"""Ozaki scheme II: residues of scaled operands and the Chinese remainder theorem.

Idea
    A' = round(2**s_i A_ih), B' = round(2**t_j B_hj), integers with 2 sum_h
    |A'||B'| < P = prod p_l. A' B' mod p_l is one INT8 product for each modulus, the
    integer A' B' follows by the Chinese remainder theorem, and 2**-(s_i + t_j) A' B' is
    rounded once. Complex operands take two real products for a modulus with j**2 = -1
    mod p, three for the others.
Notation
    s = row scale exponent, t = column scale exponent, p_l = moduli,
    P = modulus_product.
Exact when
    sum_h |A'||B'| <= half_range(P), by the choice of s and t in numerics/scaling.py,
    and k_block 128**2 < 2**31. The result is correctly rounded where 2**s_i A_i and
    2**t_j B_j are integers already.
Cost
    num_moduli products, one more for accurate scaling, or of magnitudes where the
    operands decide how many moduli there are; complex: 2 or 3 for each modulus.
References
    [OUI25] Ozaki scheme II, arXiv:2504.08009. [UOI25b] arXiv:2508.03984. [UMIOG26]
    complex, arXiv:2512.08321. [UOI26] error bounds, arXiv:2602.02549.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, cast

import numpy as np

from hifigemm.base.exceptions import AccuracyError, PlanError
from hifigemm.model.accuracy import Target
from hifigemm.model.engine import SCALED_ALONG_K, Engine, has_kernels
from hifigemm.model.executable import Outcome
from hifigemm.model.plan import Evidence, Plan, Split, Verification
from hifigemm.model.problem import Problem, counted
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import Array, lowest_bit, scale_by_power
from hifigemm.numerics.blocking import (
    largest_block,
    put,
    vector_blocks,
    widen,
)
from hifigemm.numerics.embedding import (
    components,
    embed_left,
    embed_right,
    unembed,
)
from hifigemm.numerics.estimates import (
    MAGNITUDE_BITS_UP,
    accurate_bits,
    component_sums,
    magnitudes_up,
)
from hifigemm.numerics.residue_products import (
    crt,
    num_planes,
    product_residues,
    residue_gemm,
    round_integers,
    scaled_residues,
)
from hifigemm.numerics.residues import (
    MAX_MODULI,
    ModuliSet,
    moduli_set,
)
from hifigemm.numerics.scaling import Scale
from hifigemm.schemes import certify
from hifigemm.schemes.moduli_counts import (
    count_for,
    exact_bits,
    exact_count,
    expected_count,
    invariant_count,
    normwise_error,
)
from hifigemm.schemes.ozaki1 import Ozaki1
from hifigemm.schemes.scheme import (
    Scheme,
    apart,
    finished,
    int8_product,
    product_spec,
    rows_together,
)


@dataclass(frozen=True)
class Ozaki2(Scheme):
    """Ozaki scheme II: products of residues, by the Chinese remainder theorem [OUI25].

    Parameters
    ----------
    product : "int8"
    num_moduli : int or None
        2 to 49; None chooses the number from the accuracy and the data.
    scaling : "accurate", "fast", "inner" or "largest"
        How the rows of A and the columns of B are scaled:

        - "accurate" estimates |A||B| with one more INT8 product. It needs fewer moduli,
          and wide exponents do it no harm.
        - "fast" scales each operand by its norms alone, so that a prepared operand
          keeps its residues.
        - "inner" is "fast", and also scales the columns of A and the rows of B by
          opposite powers of two, if the exponents of the operands gain by it. The
          matrices of a stack share the powers.
        - "largest" scales each row and column by the exponent of its largest entry and
          the number of terms. With a given count, an entry then depends on its row and
          column alone, not on the order of their terms; see `Invariant`.

    Examples
    --------
    >>> import numpy as np, hifigemm as hg
    >>> a = np.random.default_rng(0).standard_normal((4, 4))
    >>> c, report = hg.matmul(
    ...     a, a.T, scheme=hg.Ozaki2(num_moduli=14), return_report=True
    ... )
    >>> report.num_products, report.bound < 1e-13
    (14, True)
    """

    name: ClassVar[str] = "ozaki2"
    adds_over_k = True
    limits = 2, MAX_MODULI

    product: Literal["int8"] = "int8"
    num_moduli: int | None = None
    scaling: Literal["accurate", "fast", "inner", "largest"] = "accurate"

    def __post_init__(self) -> None:
        if self.product != "int8":
            raise PlanError(
                f'Ozaki2(product={self.product!r}): residues are INT8 words, product="int8"'
            )
        super().__post_init__()

    @property
    def explicit(self) -> bool:
        """True if the number of moduli is forced."""
        return self.num_moduli is not None

    @property
    def by_norms(self) -> bool:
        """True if rows and columns are scaled by their norms."""
        return self.scaling in ("fast", "inner")

    @cached_property
    def count(self) -> int:
        """num_moduli, once a plan has filled it in."""
        if self.num_moduli is None:
            raise PlanError(f"{self} has no number of moduli yet: it comes from a plan")
        return self.num_moduli

    def needs_evidence(self, problem: Problem, target: Target, engine: Engine) -> bool:
        """False for a forced count, and if a device chooses, unless the target is a
        promise for every single entry. Exact products keep such a promise, and
        certifying the entries one by one takes longer than a few more moduli. A promise
        by norms needs no inspection either.
        """
        if target.normwise is not None:
            return False
        if not has_kernels(engine):
            return not self.explicit
        wants_exact = target.correct or target.by_entry
        return wants_exact or not (self.by_norms or self.explicit)

    def check_keeps(self, problem: Problem, target: Target) -> None:
        """Raise AccuracyError for a count that does not keep a promise by norms."""
        if target.normwise is None or self.num_moduli is None:
            return
        error = normwise_error(problem, self.num_moduli)
        if error > target.normwise:
            raise AccuracyError(
                f"{self} errs by up to {error:.3g} |a_i| |b_j|; requested: {target}, for which "
                f"{problem} takes {invariant_count(problem, target)} moduli"
            )

    def evidence(
        self,
        problem: Problem,
        target: Target,
        a: Array,
        b: Array,
        engine: Engine,
        workspace: int,
    ) -> Evidence | None:
        """The bits that exact integers need and, on a CPU, the error ratio; see `plan`."""
        from hifigemm.schemes.inspection import Inspection

        scales_along_k = self.scales_along_k
        inspection = Inspection(
            problem, target, a, b, engine, workspace, self.by_norms, self.explicit
        )
        return inspection.evidence(scales_along_k)

    def plan(
        self,
        problem: Problem,
        target: Target,
        engine: Engine,
        evidence: Evidence | None,
        asked: Scheme | None,
    ) -> Plan:
        """The plan, with a forced number of moduli or the one that the evidence needs.

        If the operands are short enough, the moduli hold the exact product; otherwise
        the error ratio decides their number. Without evidence the plan assumes data of
        one size.
        """
        spec = product_spec(engine, self.product, "Ozaki2")
        bits = None if evidence is None else evidence.required_bits
        exact = None if bits is None else exact_count(problem.is_complex, *bits)
        is_inner = evidence is not None and evidence.inner
        scheme = replace(self, scaling="inner") if is_inner else self
        count = expected_count(problem, target)
        reason = f"{count} moduli for {target}"
        bound = target.r
        verification = Verification.ENTRYWISE

        if target.normwise is not None:
            # No data can break it, and the count follows from none.
            count = self.num_moduli or invariant_count(problem, target)
            reason = f"{count} moduli for {target}, for any data"
            verification = Verification.A_PRIORI
        elif self.num_moduli is not None:
            count = self.num_moduli
            reason = f"{count} moduli, as asked"
            if math.isinf(target.r):
                verification = Verification.NONE
            elif exact is not None and exact <= count and self.by_norms:
                bound = 0.0
                verification = Verification.A_PRIORI
            elif evidence is not None:
                # The scales are not balanced, as the integers are not exact.
                evidence = replace(evidence, required_bits=None)
        elif bits is not None and exact is not None:
            count = exact
            num_bits = counted(exact_bits(problem.is_complex, *bits), "bit")
            reason = f"{count} moduli hold the exact product of {num_bits}"
            if evidence is not None and evidence.separate is not None:
                reason = f"{reason}; {evidence.separate}"
            if scheme.by_norms:
                bound = 0.0
                verification = Verification.A_PRIORI
        elif evidence is not None and evidence.error_ratio is not None:
            sufficient = self.count_for(problem, target, evidence.error_ratio)
            if sufficient is not None:
                count = sufficient
                reason = f"{count} moduli for {target} in every entry"
                verification = Verification.A_PRIORI

        if scheme.scaling == "accurate":
            reason += ", one more product for the scaling"
        elif is_inner:
            reason += f", {SCALED_ALONG_K}"
        return Plan(
            problem=problem,
            asked=asked,
            scheme=replace(scheme, num_moduli=count),
            target=target,
            engine=engine.name,
            product=spec,
            num_products=_num_planes(problem, count),
            k_block=spec.k_block,
            verification=verification,
            bound=bound,
            reason=reason,
            evidence=evidence,
        )

    def expected_products(self, problem: Problem, target: Target, more: int = 0) -> int:
        """Products for operands without wide exponents, by `more` further moduli."""
        return _num_planes(problem, expected_count(problem, target) + more)

    def count_for(self, problem: Problem, target: Target, ratio: float) -> int | None:
        """Moduli that keep the target for operands with this error ratio; None if no
        number of moduli does.
        """
        return count_for(problem, target, ratio)

    def planes(self, problem: Problem) -> int:
        """Number of INT8 products, once a plan has filled in the number of moduli."""
        return _num_planes(problem, self.count)

    def nbytes(self, plan: Plan, batch: int, rows: int, cols: int) -> int:
        """Bytes of residues and working copies of rows, columns and entries."""
        problem = plan.problem
        k = problem.k
        moduli = moduli_set(self.count, problem.is_complex)
        width = 2 if problem.is_complex else 1

        # Residues and facts of rows and columns; float32 copies of some terms.
        facts = 9 * width * width
        entry_bytes = num_planes(moduli, problem.is_complex) + facts
        vectors = batch * (rows + cols) * (k * entry_bytes + 4 * min(1024, k))

        # Temporaries of the part of an operand that is being scaled.
        entries = plan.blocking.entries
        operand = problem.batch * max(problem.m, problem.n) * k
        passing = min(largest_block(k, entries), operand)
        passing *= width * (12 * 8 + 2 * self.count)

        # Residues of the result; limbs and temporaries while entries are rounded.
        results = batch * rows * cols * width
        rounding = min(results, entries) * (4 * moduli.limb_count + self.count + 30) * 8
        return vectors + results * (self.count + 120) + passing + rounding

    def scales(
        self, plan: Plan, a: Array | None, b: Array | None, engine: Engine
    ) -> tuple[Scale | None, Scale | None] | None:
        """The scales of each operand by Cauchy-Schwarz, or of both by an INT8 product.

        "fast" takes the norms of one operand, "largest" its exponents. "accurate"
        multiplies the magnitudes of both, and "inner" compares them, so a missing
        operand leaves no pair.
        """
        if self.scales_along_k and (a is None or b is None):
            return None
        if self.by_norms:
            left = None if a is None else self._scale_by_norms(plan, a, 2, engine)
            right = None if b is None else self._scale_by_norms(plan, b, 1, engine)
            return left, right
        if self.scaling == "largest":
            left = None if a is None else self._scale_by_largest(plan, a, 2)
            right = None if b is None else self._scale_by_largest(plan, b, 1)
            return left, right

        if a is None or b is None:
            return None
        moduli = moduli_set(self.count, plan.problem.is_complex)
        balance = _balance(plan)
        entries = plan.blocking.entries
        exponents_a = scaling.exponents(a, 2, entries)
        exponents_b = scaling.exponents(b, 1, entries)
        rows, cols = largest_sums(plan, a, b, exponents_a, exponents_b, engine)
        left = _scale_by_sums(rows, exponents_a, moduli, balance, 2)
        right = _scale_by_sums(cols, exponents_b, moduli, -balance, 1)
        return left, right

    def _scale_by_norms(self, plan: Plan, x: Array, axis: int, engine: Engine) -> Scale:
        """The scale of the vectors along `axis` by Cauchy-Schwarz."""
        moduli = moduli_set(self.count, plan.problem.is_complex)
        balance = _balance(plan) if axis == 2 else -_balance(plan)
        norm_scale = engine.override(scaling.norm_scale)
        return norm_scale(x, axis, moduli, balance, plan.blocking.entries)

    def _scale_by_largest(self, plan: Plan, x: Array, axis: int) -> Scale:
        """The scale of the vectors along `axis` by their largest entries."""
        moduli = moduli_set(self.count, plan.problem.is_complex)
        exponent = scaling.exponents(x, axis, plan.blocking.entries)
        return scaling.largest_scale(exponent, axis, plan.problem.terms, moduli)

    def scales_of_norms(
        self, plan: Plan, rows: tuple[Array, Array], cols: tuple[Array, Array]
    ) -> tuple[Scale, Scale]:
        """The scales of "fast" and "largest" by `square_norms` of whole rows of A and
        columns of B, and their exponents.
        """
        moduli = moduli_set(self.count, plan.problem.is_complex)
        if self.scaling == "largest":
            terms = plan.problem.terms
            return (
                scaling.largest_scale(rows[1], 2, terms, moduli),
                scaling.largest_scale(cols[1], 1, terms, moduli),
            )
        balance = _balance(plan)
        return (
            scaling.scale_of_norms(*rows, 2, moduli, balance),
            scaling.scale_of_norms(*cols, 1, moduli, -balance),
        )

    def split(
        self, plan: Plan, x: Array, side: str, scale: Scale | None, engine: Engine
    ) -> Split:
        """Residues of the scaled and rounded operand, one plane for each modulus.

        For complex operands there are two or three planes for each modulus. The facts,
        for plans that certify: `exponent` of the largest entry of a vector; `delta`,
        the largest change by rounding in units of the integers (0 if they are exact);
        `sums`, upper bounds of the sums of magnitudes of a row or column in units of
        2**(exponent - 6); and the facts of `certify.facts`.
        """
        if scale is None:
            raise PlanError(f"{self}: a split needs its scale")
        moduli = moduli_set(self.count, plan.problem.is_complex)
        residues_of = engine.override(scaled_residues)
        planes = residues_of(x, scale, moduli, plan.blocking.entries)

        facts = {}
        if plan.certifies:
            width = _width(plan.problem, scale)
            facts = _facts(plan, x, scale, width)
        vectors = x.shape[3 - scale.axis]
        unit = self.unit(plan, scale)
        count = planes.shape[1]
        return Split(side, vectors, planes, unit, count, facts, k_major=True)

    def split_together(
        self, plan: Plan, a: Array, b: Array, engine: Engine
    ) -> tuple[Split, Split] | None:
        """See `Scheme`."""
        rows = rows_together(plan, a, b)
        if rows is None:
            return None
        if self.by_norms and not _balance(plan):
            # The scales of rows and columns follow from their norms alike.
            scale = self._scale_by_norms(plan, rows, 2, engine)
        elif self.scaling == "largest":
            scale = self._scale_by_largest(plan, rows, 2)
        else:
            scales = self.scales(plan, a, b, engine)
            row_scale, col_scale = cast(tuple[Scale, Scale], scales)
            scale = row_scale.above(col_scale)
        return apart(self.split(plan, rows, "left", scale, engine), a.shape[1])

    def unit(self, plan: Plan, scale: Scale) -> Array:
        """Exponents of the grids of scaled vectors, see `Split`."""
        unit = -scale.exponent
        width = _width(plan.problem, scale)
        return unit if width == 1 else np.repeat(unit, width, axis=3 - scale.axis)

    def multiply(
        self, plan: Plan, left: Split, right: Split, engine: Engine, shift: int
    ) -> Outcome:
        """Residues of the product modulus by modulus, reconstruction, one rounding."""
        residues = self.residues(left.planes, right.planes, plan, engine)
        if not plan.certifies:
            values = self.rounded(residues, left.unit, right.unit, plan, engine, shift)
            return Outcome(values, plan.bound, left.count)

        # The error of the integers, in units of 2**(e_i + f_j) and in their own.
        error = _error(left, right)
        err = np.frexp(error)[1].astype(np.int64)
        exponents = left.facts["exponent"] + right.facts["exponent"]
        lowest = exponents - left.unit - right.unit

        # Round and see which roundings are sure in spite of it.
        problem = plan.problem
        moduli = moduli_set(self.count, problem.is_complex)
        rounded = round_integers(
            product_residues(residues, moduli),
            left.unit,
            right.unit,
            shift,
            moduli,
            problem.fmt,
            plan.blocking.entries,
            err + lowest,
        )
        certified, bound = certify.certified_entries(
            plan, left, right, engine, rounded, error == 0, err, lowest
        )
        return finished(problem, rounded.values, certified, bound, left.count)

    def residues(self, left: Array, right: Array, plan: Plan, engine: Engine) -> Array:
        """Residues of the integers A' B' from the planes of both operands; residues of
        partial sums over k are added modulo each p.
        """
        multiply = engine.override(residue_gemm)
        moduli = moduli_set(self.count, plan.problem.is_complex)
        return multiply(left, right, moduli, int8_product(engine))

    def rounded(
        self,
        residues: Array,
        left_unit: Array,
        right_unit: Array,
        plan: Plan,
        engine: Engine,
        shift: int,
    ) -> Array:
        """The entries with these residues at these units: 2**shift A B, rounded once."""
        problem = plan.problem
        values = engine.override(crt)(
            residues,
            left_unit,
            right_unit,
            shift,
            moduli_set(self.count, problem.is_complex),
            problem.fmt,
            plan.blocking.entries,
        )
        return unembed(values) if problem.is_complex else values

    def escalate(self, plan: Plan, problem: Problem, engine: Engine) -> Plan | None:
        """The plan with half as many moduli again.

        If the largest number is not enough, Ozaki scheme I takes over, unless this
        scheme was forced.
        """
        if plan.is_fixed:
            return None
        if self.count == MAX_MODULI:
            if plan.asked is not None:
                return None
            return Ozaki1().plan_for_uncertified(problem, plan.target, engine, None)
        count = min(self.count + self.count // 2, MAX_MODULI)
        return replace(
            plan,
            problem=problem,
            scheme=replace(self, num_moduli=count),
            num_products=_num_planes(problem, count),
            verification=Verification.ENTRYWISE,
            reason=f"escalated to {count} moduli",
            evidence=None,
        )


def _balance(plan: Plan) -> int:
    """Bits of scale that rows of A get at the expense of columns of B.

    It is 0 unless both become exact integers.
    """
    bits = None if plan.evidence is None else plan.evidence.required_bits
    if bits is None:
        return 0
    return scaling.balance(bits, plan.scheme.count, plan.problem.is_complex)


def _num_planes(problem: Problem, count: int) -> int:
    """INT8 products that `count` moduli take."""
    return num_planes(moduli_set(count, problem.is_complex), problem.is_complex)


def _width(problem: Problem, scale: Scale) -> int:
    """Vectors of the embedded operand for each of its own: two columns for each of a
    complex B.
    """
    return 2 if problem.is_complex and scale.axis == 1 else 1


def _facts(plan: Plan, x: Array, scale: Scale, width: int) -> dict[str, Array]:
    """The facts of an operand that `Ozaki2.split` lists.

    An embedded operand has `width` vectors for each of x.
    """
    axis = scale.axis
    embed = embed_left if axis == 2 else embed_right
    entries = plan.blocking.entries

    # One number for each vector of the embedded operand.
    exponent = scaling.exponents(x, axis, entries)
    exponent = np.repeat(exponent, width, axis=3 - axis)
    unit = np.repeat(scale.exponent, width, axis=3 - axis)
    nearest = np.repeat(scale.nearest, width, axis=3 - axis)
    facts = {"exponent": exponent}

    shape = [x.shape[0], plan.problem.terms, plan.problem.terms]
    shape[3 - axis] = x.shape[3 - axis] * width
    for block in vector_blocks(x, axis, entries):
        y = embed(x[block])
        vectors = widen(block, width)

        # Rounding to nearest changes an integer by at most 1/2, truncation by 1.
        delta = np.where(nearest[vectors], 0.5, 1.0)
        delta[lowest_bit(y, axis) >= -unit[vectors]] = 0.0
        put(facts, "delta", exponent.shape, vectors, delta)

        magnitudes = magnitudes_up(y, exponent[vectors])
        sums = magnitudes.sum(axis=axis, keepdims=True, dtype=np.int64)
        put(facts, "sums", exponent.shape, vectors, sums)

        for name, fact in certify.facts(plan, y, exponent[vectors]).items():
            put(facts, name, tuple(shape), vectors, fact)
    return facts


def largest_sums(
    plan: Plan, a: Array, b: Array, left: Array, right: Array, engine: Engine
) -> tuple[Array, Array]:
    """Largest entries of each row and of each column of |A||B|, block by block.

    `left` and `right` are the exponents of a and b; magnitudes are rounded up to 6
    bits. Of complex operands re and im both count.
    """
    rows = np.zeros_like(left)
    cols = np.zeros_like(right)
    for block in plan.blocks():
        index_a, index_b = block.places(a, b)
        ups_a = [magnitudes_up(c, left[index_a]) for c in components(a[index_a])]
        ups_b = [magnitudes_up(c, right[index_b]) for c in components(b[index_b])]
        largest = 2**MAGNITUDE_BITS_UP
        for sums in component_sums(int8_product(engine), ups_a, ups_b, largest):
            _raise_to(rows, index_a, sums.max(axis=2, keepdims=True))
            _raise_to(cols, index_b, sums.max(axis=1, keepdims=True))
    return rows, cols


def _raise_to(largest: Array, index: tuple[slice, ...], values: Array) -> None:
    """Raise entries of `largest` to `values`; a stack of one holds those of all."""
    if len(largest) == 1:
        values = values.max(axis=0, keepdims=True)
    largest[index] = np.maximum(largest[index], values)


def _scale_by_sums(
    sums: Array, exponents: Array, moduli: ModuliSet, balance: int, axis: int
) -> Scale:
    """The accurate scale of vectors with these exponents and largest sums of |A||B|."""
    scale = scaling.scale_exponent(sums, exponents, MAGNITUDE_BITS_UP, moduli) + balance
    nearest = scale + exponents >= MAGNITUDE_BITS_UP
    return Scale(scale, nearest, axis, accurate_bits(moduli, balance))


def _error(left: Split, right: Split) -> Array:
    """Bound of |A B - 2**-(s+t) A' B'| in units of 2**(e_i + f_j).

    It is 0 for exact integers. With B' in units of B, and A' = A - d likewise,
    |A B - (A - d) B'| <= |A||B - B'| + |d||B'|. The sums of magnitudes bound |B'| as
    well: truncation lowers magnitudes, and where integers are the nearest ones, a
    magnitude rounded up is one of them.
    """
    sums_a = left.facts["sums"] * 2.0**-MAGNITUDE_BITS_UP
    sums_b = right.facts["sums"] * 2.0**-MAGNITUDE_BITS_UP
    delta_a = scale_by_power(left.facts["delta"], left.unit - left.facts["exponent"])
    delta_b = scale_by_power(right.facts["delta"], right.unit - right.facts["exponent"])
    return delta_a * sums_b + delta_b * sums_a
