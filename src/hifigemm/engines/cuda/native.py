"""The library's product on a GPU, completed where its entries are to be certified."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from hifigemm.base.formats import FP64
from hifigemm.base.store import once
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
from hifigemm.numerics.bits import scale_entries
from hifigemm.numerics.bounds import native_bound
from hifigemm.numerics.epilogue import PLAIN, Epilogue

if TYPE_CHECKING:
    from hifigemm.kernels.endings.underflow import Underflow
    from hifigemm.kernels.runtime.buffers import Buffer
    from hifigemm.kernels.runtime.launch_list import LaunchList

_NEAR = 30
"""Powers of two of smaller alpha are taken as a factor of the product."""
_MOST_FINISHED = 2**30
"""Multiplications of a certified product whose entries may all be made again, at most: by
the cost model that takes an H200 2 ms.
"""
_EMBEDDED_BYTES = 2**25
"""Of parts of complex operands that launches behind a product read as real matrices at a
time: as much as cuBLAS takes for itself on a Hopper.
"""
_SINGLE = (torch.float32, torch.complex64)


class NativeLowering(Lowering):
    """The library's product; see `hifigemm.model.engine.Lowering`.

    At the level of its own format the product is the library's, including over- and
    underflow. For other accuracies, launches make such entries again, or a
    large product is refused.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def nbytes(self, batch: int, rows: int, cols: int) -> int:
        """0: the library manages its own workspace. The launches that follow take no
        more for complex operands.
        """
        return 0

    def lower(self, signature: Signature) -> Executable:
        """The product, and the launches that follow it."""
        return NativeOnDevice(self.plan, signature)


class NativeOnDevice:
    """The library's product of tensors of one layout; see `Executable`.

    If entries are to be certified, launches that follow the product make those entries
    again that may have over- or underflowed. A large product with such entries is
    refused instead: all of its entries may be among them, and their sums take long.
    """

    def __init__(self, plan: Plan, signature: Signature) -> None:
        problem = plan.problem
        epilogue = signature.epilogue
        self.plan = plan
        self._shape = signature.shape
        self._shift = signature.shift
        self._is_combined = not epilogue.idle
        self._mirror = problem.mirror
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
        # A B may overflow, too, where a power of two brings it back.
        self._finish = None
        self._question = None
        needs_finish = plan.certifies or signature.shift <= -_NEAR
        if plan.certifies and _multiplications(problem) > _MOST_FINISHED:
            self._question = _Question(plan, signature)
        elif needs_finish and find_spec("triton") is not None:
            self._finish = _launches_behind(plan, signature)
        # The launches that follow take a product that is scaled already.
        self._late_shift = 0 if self._finish or self._question else signature.shift
        # What launches complete is made in new memory: `out` may lie anyhow.
        self._is_direct = signature.out is not None and not (
            signature.shift or self._is_combined or problem.mirror or plan.certifies
        )
        # A launch takes real scalars that need no scaling.
        self._combine = None
        is_near = abs(self._late_shift) < _NEAR
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
        """See `Executable`; nothing waits for the device but large certified products."""
        left = _in_shape(a, self._left_shape)
        right = _in_shape(b, self._right_shape)
        target = None
        if self._is_direct and out is not None:
            target = _in_shape(out, self._product_shape)
        product = self._multiply(left, right, target)
        if self._shift != self._late_shift:
            stack = wrap(product.view(self._stack_shape))
            product = unwrap(scale_entries(stack, self._shift))
        if self._finish is not None:
            self._finish(product, left, right)
        elif self._question is not None and self._question.is_open(
            product, left, right
        ):
            return NOT_ORDINARY
        if target is not None:
            return Outcome(out, self._bound, 1.0)
        product = _mirrored(product, self._mirror)
        if self._combine is not None:
            scalars = math.ldexp(alpha.real, self._late_shift), beta.real
            values = self._combine(product, c, out, scalars)
        elif self._late_shift or self._is_combined:
            values = self._scaled(product, c, alpha, beta)
        else:
            values = product
        if values is not out:
            values = _in_shape(values, self._shape)
        return Outcome(values, self._bound, 1.0)

    def _scaled(
        self,
        product: torch.Tensor,
        c: torch.Tensor | None,
        alpha: complex,
        beta: complex,
    ) -> torch.Tensor:
        """alpha (2**shift T) + beta C for any shift and scalars."""
        shift = self._late_shift
        values = wrap(product.view(self._stack_shape))
        addend = None if c is None else wrap(c.reshape(self._stack_shape))
        epilogue = Epilogue(alpha, beta, addend) if self._is_combined else PLAIN
        if shift and epilogue.idle:
            values = scale_entries(values, shift)
        elif shift:
            epilogue = epilogue.times_power(shift)

        if epilogue.idle or find_spec("triton") is None:
            return unwrap(epilogue.apply(values))

        from hifigemm.engines.cuda.lowering import combine

        combine(unwrap(values), epilogue)
        return unwrap(values)


class _Question:
    """Asks the device whether any entry of a product may have over- or underflowed."""

    def __init__(self, plan: Plan, signature: Signature) -> None:
        from hifigemm.kernels.runtime.host_word import HostWords

        self._launches = _launches_behind(plan, signature, asks=True)
        self._words = HostWords(unwrap(signature.left).device)

    def is_open(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Of C = A B; waits for the device."""
        check_not_capturing()
        return self._words.number_from(partial(self._launches, c, a, b)) != 0


def _multiplications(problem: Problem) -> int:
    """Of real numbers."""
    return problem.multiplications * (4 if problem.is_complex else 1)


def _in_shape(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """x in this shape, itself where it has it."""
    return x if x.shape == shape else x.reshape(shape)


def _launches_behind(
    plan: Plan, signature: Signature, *, asks: bool = False
) -> LaunchList:
    """Launches for 2**shift fl(A B), A and B: those that make entries again, or, where
    the host asks, those that tell its word whether any entry is open.
    """
    from hifigemm.kernels.runtime.launch_list import LaunchList, facts_of

    problem = plan.problem
    a, b = unwrap(signature.left), unwrap(signature.right)
    shift = signature.shift

    def make() -> LaunchList:
        from hifigemm.kernels.endings.underflow import (
            look_for_underflow,
            send_is_open,
        )

        dtype = TORCH_DTYPES[problem.dtype]
        launches = LaunchList(a.device)
        product = launches.operand(
            torch.empty(problem.shape, dtype=dtype, device="meta")
        )
        left = launches.operand(a)
        right = launches.operand(b)
        terms, emin = problem.terms, problem.fmt.emin
        look = partial(look_for_underflow, product, left, right, terms, emin, shift)
        if asks:
            word = launches.operand(torch.empty(1, dtype=torch.int64, device="meta"))
            send_is_open(look(), word)
        else:
            underflow = look() if plan.certifies else None
            _finish_in_parts((product, left, right), problem, shift, underflow)
        return launches.finish().compile()

    layout = facts_of(a), facts_of(b), a.device
    key = "behind", problem, shift, plan.certifies, asks, layout
    return once(key, make, a.device)


def _finish_in_parts(
    operands: tuple[Buffer, Buffer, Buffer],
    problem: Problem,
    shift: int,
    underflow: Underflow | None,
) -> None:
    """Add the launches for a product and its operands. Complex ones are read as real
    matrices, in parts of so many rows and columns as their memory allows.
    """
    from hifigemm.kernels.endings.rounding import Targets
    from hifigemm.kernels.sums.rounded_sums import finish_entries
    from hifigemm.kernels.vectors.embedding import interleaved

    product, left, right = operands
    rows = problem.m
    columns = problem.n
    if problem.is_complex:
        # A column of B becomes two columns of twice the length. A row of A becomes one
        # row of twice the length; if its entries are contiguous, nothing is copied.
        vector_bytes = problem.k * problem.dtype.itemsize
        columns = max(_EMBEDDED_BYTES // (2 * len(right) * vector_bytes), 1)
        if interleaved(left) is None:
            rows = max(_EMBEDDED_BYTES // (len(left) * vector_bytes), 1)
    for row in range(0, problem.m, rows):
        of_rows = slice(row, row + rows)
        for column in range(0, problem.n, columns):
            of_columns = slice(column, column + columns)
            targets = Targets(product[:, of_rows, of_columns])
            x, y = left[:, of_rows], right[:, :, of_columns]
            finish_entries(x, y, targets, shift=shift, underflow=underflow)


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
