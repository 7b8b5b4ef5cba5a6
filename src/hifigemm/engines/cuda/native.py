"""The library's product on a GPU, looked at where its entries are to be certified."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch

from hifigemm.base.formats import FP64
from hifigemm.engines.device_array import (
    check_not_capturing,
    count_change,
    unwrap,
    wrap,
)
from hifigemm.engines.device_ops import TORCH_DTYPES
from hifigemm.engines.float32_precision import float32_precision
from hifigemm.engines.library_product import library_matmul
from hifigemm.model.engine import Lowering
from hifigemm.model.executable import (
    NO_SPLITS,
    NOT_ORDINARY,
    Executable,
    Outcome,
    Refusal,
    Signature,
    Splits,
)
from hifigemm.model.plan import Plan
from hifigemm.model.problem import Problem
from hifigemm.numerics.bits import least_exponent, scale_entries
from hifigemm.numerics.bounds import native_bound, underflow_free
from hifigemm.numerics.epilogue import PLAIN, Epilogue

_NEAR = 30
"""Powers of two of smaller alpha are taken as a factor of the product."""
_SINGLE = (torch.float32, torch.complex64)


class NativeLowering(Lowering):
    """The library's product; see `hifigemm.model.engine.Lowering`.

    At the level of its own format it is taken as it is, over- and underflow included;
    else it is looked at.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """0: the library manages its own workspace."""
        return 0

    def lower(self, signature: Signature) -> Executable:
        """The product, looked at where entries are to be certified."""
        return NativeOnDevice(self.plan, signature)


class NativeOnDevice:
    """The library's product of tensors of one layout; see `Executable`.

    It refuses entries that may have over- or underflowed where they are to be
    certified.
    """

    def __init__(self, plan: Plan, signature: Signature) -> None:
        problem = plan.problem
        epilogue = signature.epilogue
        self.plan = plan
        self._shape = signature.shape
        self._shift = signature.shift
        self._is_combined = not epilogue.idle
        self._bound = native_bound(problem.terms, problem.fmt.u)
        # The library's float64 is that of IEEE, whatever is set.
        is_double = problem.fmt is FP64 and not problem.is_complex
        self._multiply = library_matmul if is_double else native_matmul
        # A library multiplies matrices and stacks of them in different ways.
        are_matrices = len(signature.left) == len(signature.right) == 1
        self._left_shape = signature.left.shape[are_matrices:]
        self._right_shape = signature.right.shape[are_matrices:]
        stack_shape = problem.shape
        self._stack_shape = stack_shape
        self._product_shape = stack_shape[1:] if are_matrices else stack_shape
        # What may be refused is not written to `out`.
        self._is_direct = signature.out is not None and not (
            signature.shift or self._is_combined or problem.mirror or plan.certifies
        )
        # A launch takes real scalars that need no scaling.
        self._combine = None
        is_near = abs(signature.shift) < _NEAR and not plan.certifies
        launches = self._is_combined and _kernels_combine(epilogue)
        if launches and is_near and not problem.is_complex:
            self._combine = _combined(problem, signature)

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        c: Any = None,
        alpha: complex = 1.0,
        beta: complex = 0.0,
        splits: Splits = NO_SPLITS,
    ) -> Outcome | Refusal:
        """See `Executable`; nothing waits for the device unless entries are to be
        certified.
        """
        plan = self.plan
        problem = plan.problem
        left = _in_shape(a, self._left_shape)
        right = _in_shape(b, self._right_shape)
        target = None
        if self._is_direct and out is not None:
            target = _in_shape(out, self._product_shape)
        product = self._multiply(left, right, target)
        if plan.certifies and (
            self._shift or not _is_ordinary(product, left, right, problem)
        ):
            return NOT_ORDINARY
        if target is not None:
            return Outcome(out, self._bound, 1.0)
        product = _mirrored(product, problem.mirror)
        if self._combine is not None:
            scalars = math.ldexp(alpha.real, self._shift), beta.real
            values = self._combine(product, c, out, scalars)
        elif self._shift or self._is_combined:
            values = self._scaled(left, right, product, c, alpha, beta)
        else:
            values = product
        if values is not out:
            values = _in_shape(values, self._shape)
        return Outcome(values, self._bound, 1.0)

    def _scaled(
        self,
        left: torch.Tensor,
        right: torch.Tensor,
        product: torch.Tensor,
        c: torch.Tensor | None,
        alpha: complex,
        beta: complex,
    ) -> torch.Tensor:
        """alpha (2**shift T) + beta C for any shift and scalars."""
        shift = self._shift
        values = wrap(product.view(self._stack_shape))
        addend = None if c is None else wrap(c.reshape(self._stack_shape))
        epilogue = Epilogue(alpha, beta, addend) if self._is_combined else PLAIN
        x = left if left.ndim == 3 else left[None]
        y = right if right.ndim == 3 else right[None]
        if shift <= -_NEAR and _has_kernels_to_finish(x, y, unwrap(values)):
            # A B may have overflowed where 2**shift A B does not.
            from hifigemm.kernels.endings.rounding import Targets
            from hifigemm.kernels.runtime.recording import run_recorded
            from hifigemm.kernels.sums.rounded_sums import finish_entries

            values = scale_entries(values, shift)
            targets = Targets(unwrap(values))
            run_recorded(finish_entries, x, y, targets, shift=shift)
        elif shift and epilogue.idle:
            values = scale_entries(values, shift)
        elif shift:
            epilogue = epilogue.times_power(shift)

        if epilogue.idle or find_spec("triton") is None:
            return unwrap(epilogue.apply(values))

        from hifigemm.engines.cuda.lowering import combine

        combine(unwrap(values), epilogue)
        return unwrap(values)


def _in_shape(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """x in this shape, itself where it has it."""
    return x if x.shape == shape else x.reshape(shape)


def _has_kernels_to_finish(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether kernels complete the entries of a stack that overflowed."""
    return a.dtype == b.dtype == c.dtype and find_spec("triton") is not None


def _combined(problem: Problem, signature: Signature) -> Callable[..., torch.Tensor]:
    """alpha T + beta C for the T of a problem and a C laid out as that of a signature: a
    function of T, C, `out` or None, and (alpha, beta), which writes to T or `out`.

    The launch is written down once: to bind its arguments takes the host longer than a
    small product takes the GPU.
    """
    from hifigemm.kernels.products.epilogue import combine_in_place
    from hifigemm.kernels.runtime.launch import scalar
    from hifigemm.kernels.runtime.launch_list import LaunchList

    stack = problem.batch, problem.m, problem.n
    like = torch.empty(stack, dtype=TORCH_DTYPES[problem.dtype], device="meta")
    launches = LaunchList(unwrap(signature.left).device)
    c = signature.epilogue.c
    addend = None if c is None else unwrap(c)
    product = launches.operand(like)
    target = launches.operand(like)
    third = None if addend is None else launches.operand(addend)
    beta = 0.0 if third is None else scalar(1)
    combine_in_place(product, scalar(0), beta, third, target)
    launches.finish().compile()

    def combine(
        t: torch.Tensor,
        c: torch.Tensor | None,
        out: torch.Tensor | None,
        scalars: tuple[float, float],
    ) -> torch.Tensor:
        # The kernel writes to contiguous entries behind an aligned address.
        result = t
        if out is not None and out.is_contiguous() and out.data_ptr() % 16 == 0:
            result = out
        launches(t, result, *(() if c is None else (c,)), scalars=scalars)
        if result is out:
            count_change(out)
        return result

    return combine


def _kernels_combine(epilogue: Epilogue) -> bool:
    """Whether there are kernels, and they take these scalars."""
    return epilogue.is_moderate and find_spec("triton") is not None


def _is_ordinary(
    c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, problem: Problem
) -> bool:
    """Whether every entry of A B is finite, and none may have underflowed: one wait of
    the host, for two numbers.

    Where an entry is small, or zero, another look at the operands tells whether a
    product of two of theirs underflows.
    """
    check_not_capturing()
    parts = torch.view_as_real(c) if c.is_complex() else c
    least, most = torch.stack(torch.aminmax(parts.abs())).tolist()
    if not most < math.inf:
        return False
    if underflow_free(least, problem.terms, 2.0**problem.fmt.emin):
        return True
    return sum(least_exponent(wrap(x.to(c.dtype))) for x in (a, b)) >= problem.fmt.emin


def native_matmul(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None
) -> torch.Tensor:
    """torch.matmul in IEEE arithmetic; a stack of one is multiplied as the matrix that
    it is.
    """
    target = out
    single = a.ndim == 3 and a.shape[0] == b.shape[0] == 1
    if single:
        a, b, out = a[0], b[0], None if out is None else out[0]
    with float32_precision("cuda", "ieee") if a.dtype in _SINGLE else nullcontext():
        c = library_matmul(a, b, out)
    if c.is_complex():
        from hifigemm.kernels.endings.special import restore_special_values
        from hifigemm.kernels.runtime.recording import run_recorded

        stacks = [x if x.ndim == 3 else x[None] for x in (a, b, c)]
        run_recorded(restore_special_values, *stacks)
    if target is not None:
        return target
    return c[None] if single else c


def _mirrored(c: torch.Tensor, how: str) -> torch.Tensor:
    """A matrix or a stack, its lower triangle mirrored as a `Problem` wants it."""
    if how:
        from hifigemm.kernels.endings.mirror import mirror
        from hifigemm.kernels.runtime.recording import run_recorded

        run_recorded(mirror, c if c.ndim == 3 else c[None], how == "C")
    return c
