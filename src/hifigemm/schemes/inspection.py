"""What Ozaki scheme II has to know of the operands: the bits that exact integers need,
the error ratio, and vectors that need more than others.

There are three ways to look at them, the cheapest first: at the operands as they are, at
A D and D**-1 B with powers of two along k, and at all but a few vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from hifigemm.model.accuracy import Target
from hifigemm.model.engine import Engine, has_kernels
from hifigemm.model.plan import Evidence, Outliers
from hifigemm.model.problem import Problem
from hifigemm.numerics import scaling
from hifigemm.numerics.bits import Array
from hifigemm.numerics.blocking import entries_within
from hifigemm.numerics.error_ratio import error_ratio
from hifigemm.numerics.inner_scaling import inner_required_bits, scaled_along_k
from hifigemm.numerics.residues import MAX_MODULI
from hifigemm.schemes.moduli_counts import (
    bits_held_by,
    count_for,
    exact_count,
    expected_count,
    sufficient_count,
)
from hifigemm.schemes.outliers import (
    find_outliers,
    find_separate,
    may_pay,
    may_separate,
    without,
)
from hifigemm.schemes.scheme import gaining_exponents, int8_product


@dataclass(frozen=True)
class Inspection:
    """The ways to look at the operands of a product, each of which gives evidence."""

    problem: Problem
    target: Target
    a: Array
    b: Array
    engine: Engine
    workspace: int
    by_norms: bool  # scales follow from the norms of the vectors
    explicit: bool  # the number of moduli was forced

    @property
    def on_device(self) -> bool:
        """True if kernels choose on the device."""
        return has_kernels(self.engine)

    @property
    def wants_exact(self) -> bool:
        """True if the target is kept by exact products alone."""
        return self.target.correct or (self.on_device and self.target.by_entry)

    @property
    def entries(self) -> int:
        """Entries of an operand that are looked at at a time."""
        return entries_within(self.workspace, self.engine.memory.block_entries)

    def evidence(self, scales_along_k: bool) -> Evidence:
        """The evidence of A and B, or of A D and D**-1 B; by more ways, the cheapest
        first, while the operands need more moduli than data of one size.
        """
        d = None
        if scales_along_k:
            d = gaining_exponents(self.a, self.b, self.engine, self.entries)
        evidence = self._with_exponents(d)
        is_settled = scales_along_k or self.explicit
        if is_settled or self.problem.mirror or not (self.a.size and self.b.size):
            return evidence
        evidence = self._better(evidence, self.along_k)
        if evidence.required_bits is None:
            evidence = self._better(evidence, self.without_vectors)
        return evidence

    def _better(
        self, evidence: Evidence, inspect: Callable[[], Evidence | None]
    ) -> Evidence:
        """The evidence of one more way, where the operands need more moduli than data of
        one size and it asks for fewer; else the evidence that is there.
        """
        needed = partial(sufficient_count, self.problem, self.target)
        count = needed(evidence)
        if count <= expected_count(self.problem, self.target):
            return evidence
        other = inspect()
        if other is None:
            return evidence
        return other if needed(other) < count or count > MAX_MODULI else evidence

    def along_k(self) -> Evidence | None:
        """The evidence of A D and D**-1 B, with powers of two along k; None where the
        operands gain nothing by it.
        """
        if self.on_device and self.by_norms:
            # The launches of a device, which is waited for once.
            largest = bits_held_by(self.problem, MAX_MODULI)
            bits_of = self.engine.override(inner_required_bits)
            bits = bits_of(self.a, self.b, largest, self.entries)
            return None if bits is None else Evidence(bits, inner=True)
        d = gaining_exponents(self.a, self.b, self.engine, self.entries)
        if d is None:
            return None
        return replace(self, by_norms=True)._with_exponents(d)

    def without_vectors(self) -> Evidence | None:
        """The evidence of all but a few vectors that no moduli hold; None where these
        are more than a few, and for other products.
        """
        problem = self.problem
        takes_words = self.on_device and self.wants_exact and self.by_norms
        if not (takes_words and may_separate(problem)):
            return None
        bits_of = self.engine.override(scaling.required_bits_of_vectors)
        required = bits_of(self.a, self.b, self.entries)
        separate = find_separate(required)
        if separate is None:
            return None
        required = without(required, separate)
        bits = scaling.widest(required, bits_held_by(problem, MAX_MODULI))
        outliers = self._outliers(bits, required)
        return Evidence(required_bits=bits, outliers=outliers, separate=separate)

    def _with_exponents(self, d: Array | None) -> Evidence:
        """The evidence of A D and D**-1 B; of A and B without d."""
        problem = self.problem
        target = self.target
        a = self.a
        b = self.b
        if d is not None:
            a = scaled_along_k(a, d, 2)
            b = scaled_along_k(b, d, 1)

        # The error ratio, by which few moduli may do.
        count = expected_count(problem, target)
        ratio = None
        is_number = math.isfinite(target.r) and not target.by_entry
        if self.by_norms and is_number and a.size and b.size:
            ratio = largest_error_ratio(a, b, self.engine, self.workspace)
            count = count_for(problem, target, ratio) or count

        # The required bits, unless they are more than the moduli hold; outliers.
        largest = bits_held_by(problem, MAX_MODULI if self.wants_exact else count)
        may_choose = self.by_norms and self.on_device and not self.explicit
        outliers = None
        if may_choose and may_pay(problem):
            bits_of_vectors = self.engine.override(scaling.required_bits_of_vectors)
            required = bits_of_vectors(a, b, self.entries)
            bits = scaling.widest(required, largest)
            outliers = self._outliers(bits, required)
        else:
            bits_of = self.engine.override(scaling.required_bits)
            bits = bits_of(a, b, largest, self.entries)
        is_inner = d is not None
        return Evidence(bits, ratio, outliers=outliers, inner=is_inner)

    def _outliers(
        self, bits: tuple[int, int] | None, required: tuple[Array, Array]
    ) -> Outliers | None:
        """Vectors that need more bits than most; None where none are worth a product of
        their own.
        """
        if bits is None or not may_pay(self.problem):
            return None
        count = exact_count(self.problem.is_complex, *bits)
        return find_outliers(self.problem, required, count)


def largest_error_ratio(a: Array, b: Array, engine: Engine, workspace: int) -> float:
    """`error_ratio` of both operands, on their engine and within a workspace."""
    entries = entries_within(workspace, engine.memory.block_entries)
    return engine.override(error_ratio)(
        a, b, int8_product(engine), entries, max(workspace // 256, 1)
    )
