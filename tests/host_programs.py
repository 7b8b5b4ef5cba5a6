"""An engine with programs and without a device: the plain maths, chosen by error ratios
as kernels choose.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hifigemm.engines.numpy_engine import NumpyEngine
from hifigemm.model.accuracy import NOTHING_STATED
from hifigemm.model.engine import Lowering
from hifigemm.model.executable import Outcome, RecordedDecision, certify
from hifigemm.model.plan import Evidence, Verification
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import Epilogue
from hifigemm.numerics.error_ratio import error_bound, error_ratio, largest_ratio
from hifigemm.numerics.residue_products import num_planes
from hifigemm.numerics.residues import moduli_set
from hifigemm.running.executor import execute
from hifigemm.schemes import Native, Ozaki2
from hifigemm.schemes.scheme import int8_product

LIMIT = 2**30


class Costs:
    """A native product takes one second, each residue product its share of it, and so
    do words.
    """

    def __init__(self, share):
        self.share = share

    def native_seconds(self, problem):
        return 1.0

    def sum_seconds(self, problem):
        return 1e9

    def residue_seconds(self, problem, num_products, estimate):
        return self.share * num_products

    def word_seconds(self, problem):
        return self.share


class ResidueLowering(Lowering):
    """A plan of residues, on whole operands; what it found is told when somebody
    asks.
    """

    def __init__(self, plan, done):
        self.plan, self.done = plan, done

    def lower(self, signature):
        return partial(self.multiply, signature)

    def inspecting(self, signature, executable):
        return None

    def in_halves(self, batch, rows, cols):
        return False

    def nbytes(self, batch, rows, cols):
        return self.plan.scheme.nbytes(self.plan, batch, rows, cols)

    def multiply(
        self, signature, a, b, out=None, c=None, alpha=1.0, beta=0.0, splits=None
    ):
        plan = self.plan
        assert out is None
        a, b = a.reshape(signature.left.shape), b.reshape(signature.right.shape)
        epilogue = Epilogue(alpha, beta, c)
        self.done.append(plan)
        if plan.certifies or plan.verification is Verification.ON_DEVICE:
            ratio = error_ratio(a, b, int8_product(NumpyEngine()), 2**14, 10**6)
            found = self.certificate(ratio)
            steps = replace(plan, scheme=found.scheme, target=NOTHING_STATED)
            steps = replace(steps, verification=Verification.NONE, alternatives=())
            if isinstance(found.scheme, Native):
                steps = found.scheme.plan(
                    plan.problem, plan.target, NumpyEngine(), None, None
                )
                steps = replace(steps, blocking=plan.blocking)
            elif found.bound > 0.0:
                # a count that the ratio allows has even scales
                steps = replace(steps, evidence=None)
        else:
            found, steps = None, plan
        _, outcome = execute(
            steps,
            a,
            b,
            NumpyEngine(),
            LIMIT,
            signature.shift,
            epilogue,
            signature.splits,
        )
        values = outcome.values.reshape(signature.shape)
        told = None if found is None else partial(self.told, found)
        made = Outcome(values, plan.bound, plan.num_products, (), told)
        return certify(made, plan)

    def told(self, found):
        return found

    def certificate(self, ratio):
        """As `hifigemm.engines.cuda.ozaki2` reads its record."""
        plan, p = self.plan, self.plan.problem
        ranges = [
            moduli_set(s.count, p.is_complex)
            for s in (plan.scheme, *plan.alternatives[:-1])
        ]
        if plan.verification is Verification.NONE:
            bound = error_bound(p.terms, ratio, ranges[0].half_range)
            return RecordedDecision(
                True, plan.scheme, bound, plan.num_products, plan.k_block
            )
        for scheme, moduli in zip(
            (plan.scheme, *plan.alternatives), ranges, strict=False
        ):
            if ratio <= largest_ratio(p.terms, plan.target.r, moduli.half_range):
                made = num_planes(moduli, p.is_complex)
                return RecordedDecision(True, scheme, plan.target.r, made, plan.k_block)
        if plan.verification is Verification.ENTRYWISE:
            evidence = Evidence(error_ratio=ratio)
            return RecordedDecision(
                False,
                plan.scheme,
                plan.bound,
                plan.num_products,
                plan.k_block,
                evidence,
            )
        last = plan.alternatives[-1]
        if isinstance(last, Ozaki2):
            return RecordedDecision(
                True,
                last,
                0.0,
                num_planes(moduli_set(last.count, p.is_complex), p.is_complex),
                p.k,
            )
        return RecordedDecision(True, last, native_bound(p.terms, p.fmt.u), 1, p.k)


class ProgramEngine(NumpyEngine):
    """Carries plans of residues out at once, and notes which; `share` is that of
    `Costs`.
    """

    def __init__(self, share=0.01):
        self.costs = Costs(share)
        self.done = []

    def lowering(self, plan):
        if not isinstance(plan.scheme, Ozaki2) or plan.scheme.scaling != "fast":
            return None
        if plan.verification is Verification.ON_DEVICE or not plan.certifies:
            return ResidueLowering(plan, self.done)
        if plan.evidence is not None or plan.target.correct:
            return None
        return ResidueLowering(plan, self.done)
