"""The engine of a GPU: products on its tensor cores, executables of fused kernels.

Plans without one are carried out step by step: the plain maths through
`device_array`, exact products of INT8 words by a kernel of this package, those of FP16,
BF16, TF32, FP32 and FP64 words by PyTorch's matrix product. Work goes to the current
stream of the operands' device; memory comes from PyTorch's allocator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from hifigemm.base.exceptions import PlanError
from hifigemm.base.formats import BF16, FP16, FP32, FP64, INT8, TF32, Format
from hifigemm.engines.device_array import (
    check_not_capturing,
    count_change,
    unwrap,
    wrap,
)
from hifigemm.engines.device_ops import TORCH_DTYPES
from hifigemm.engines.float32_precision import float32_precision
from hifigemm.engines.gpu_rates import gpu_properties, rates_of
from hifigemm.engines.library_product import library_matmul
from hifigemm.engines.numpy_engine import NumpyEngine, check_exact
from hifigemm.engines.rates import Rates
from hifigemm.model.engine import (
    F,
    Lowering,
    MemoryLimits,
)
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
from hifigemm.model.problem import Problem, ProductSpec
from hifigemm.numerics.accumulation import (
    Accumulation,
    WordSums,
    add_outside,
    in_any_order,
    of_tensor_core,
    word_sums,
)
from hifigemm.numerics.bits import Array, least_exponent, scale_entries
from hifigemm.numerics.bounds import native_bound, underflow_free
from hifigemm.numerics.epilogue import PLAIN, Epilogue
from hifigemm.numerics.integer_sums import NEAREST
from hifigemm.numerics.tensor_core import A100, B200, H100, V100, TensorCoreModel

if TYPE_CHECKING:
    from hifigemm.engines.cuda.lowering import CudaLowering
    from hifigemm.engines.cuda.words import WordScheme

_MODELS = {7: V100, 8: A100, 9: H100}
"""Tensor cores by the major compute capability; later ones add as B200 does."""
_ADDS_AS_MODELLED = torch.version.hip is None
"""How the matrix cores of other makers add is not known here, so nothing is promised of
kernels that use them.
"""
_NEAR = 30
"""Powers of two of smaller alpha are taken as a factor of the product."""
_SINGLE = (torch.float32, torch.complex64)
_WORDS = {FP16: torch.float16, BF16: torch.bfloat16, TF32: torch.float32}


class CudaEngine:
    """A GPU: products on its tensor cores, fused kernels for Ozaki scheme II."""

    name = "torch"
    products: ClassVar[Mapping[str, ProductSpec]] = NumpyEngine.products

    def __init__(self, place: torch.device) -> None:
        self.place = place

    @cached_property
    def device(self) -> str:
        """Device with its name."""
        return f"{self.place} ({torch.cuda.get_device_name(self.place)})"

    @cached_property
    def costs(self) -> Rates | None:
        """Rates of this device; None without Triton."""
        return (
            rates_of(gpu_properties(self.place))
            if find_spec("triton") is not None
            else None
        )

    @cached_property
    def model(self) -> TensorCoreModel:
        """How the tensor cores of this device add."""
        major = torch.cuda.get_device_capability(self.place)[0]
        return _MODELS.get(major, B200)

    @cached_property
    def memory(self) -> MemoryLimits:
        """By default a sixteenth of the memory of the device, and at least 256 MiB."""
        least = max(
            2**28, torch.cuda.get_device_properties(self.place).total_memory // 16
        )
        return MemoryLimits(
            block_entries=2**22,
            workspace_factor=5,
            least_workspace=least,
            free=self._free_memory,
        )

    def _free_memory(self) -> int | None:
        """What the driver has left and what PyTorch's allocator holds in reserve; a
        capture is not to be disturbed.
        """
        if torch.cuda.is_current_stream_capturing():
            return None
        held = torch.cuda.memory_stats(self.place)
        reserved, used = (
            held.get(f"{kind}_bytes.all.current", 0)
            for kind in ("reserved", "allocated")
        )
        return int(torch.cuda.mem_get_info(self.place)[0] + reserved - used)

    def exact_product(
        self, spec: ProductSpec, a: Array, b: Array, max_a: int, max_b: int
    ) -> Array:
        """a @ b for integer matrices, exactly: int32 for INT8, else the float of the
        accumulator; see `Engine`.

        No partial sum exceeds the accumulator, so neither the order of a library's sums
        nor the alignment in a tensor core rounds anything.
        """
        from hifigemm.kernels.products.int8_product import exact_int8_gemm
        from hifigemm.kernels.runtime.recording import run_recorded

        check_exact(spec, a.shape[-1], max_a, max_b)
        x, y = unwrap(a), unwrap(b)
        if spec.operand is INT8:
            return wrap(run_recorded(exact_int8_gemm, x, y))
        if spec.operand in _WORDS:
            return wrap(_words_product(x, y, spec.operand))
        dtype = torch.float64 if spec.operand is FP64 else torch.float32
        return wrap(_native_matmul(x.to(dtype), y.to(dtype), None))

    def native_product(self, a: Array, b: Array) -> Array:
        """torch.matmul, FP32 operands without TF32."""
        return wrap(_native_matmul(unwrap(a), unwrap(b), None))

    def accumulation(self, fmt: Format) -> Accumulation:
        """Tensor cores in FP32 for FP16, BF16 and TF32 words, FP64 sums for FP32 words
        ("TF64"); see `Engine`.

        The library may add blocks in any order and split k, so every product counts as
        a step; `word_sums` do not.
        """
        if fmt is FP32:
            return in_any_order("cuBLAS in FP64, any order", fmt, FP64, 64)
        if fmt not in _WORDS:
            raise PlanError(
                f"engine 'torch' on a GPU multiplies {', '.join(self.products)}, not {fmt.name} words"
            )
        unit = of_tensor_core(self.model, fmt, block=64)
        return replace(unit, unit=f"{unit.unit}, any order", step=1)

    def rounded_product(
        self,
        fmt: Format,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        block: int | None = None,
    ) -> Array:
        """A B + C by PyTorch's product, C added last; see `accumulation` and
        `Engine`.
        """
        self.accumulation(fmt)

        def product(x: Array, y: Array, z: Array | None) -> Array:
            left, right = unwrap(x), unwrap(y)
            if fmt is FP32:
                xy = wrap(library_matmul(left.double(), right.double()))
            else:
                xy = wrap(_words_product(left, right, fmt))
            return xy if z is None else xy + z

        return add_outside(product, a, b, c, block)

    def override(self, function: F) -> F:
        """The kernels of this device."""
        from hifigemm.engines.cuda.overrides import OVERRIDES

        if function is word_sums:
            return cast(F, self._word_sums)
        return cast(F, OVERRIDES.get(function, function))

    def _word_sums(self, scheme: WordScheme, k: int, span: int = 0) -> WordSums | None:
        """The kernels of corrected products, which add as the tensor cores do, in order
        of k.
        """
        from hifigemm.engines.cuda.words import sums_of

        return sums_of(scheme, k, self.model, span) if _ADDS_AS_MODELLED else None

    def lowering(self, plan: Plan) -> Lowering | None:
        """How the scheme of the plan is carried out by launches."""
        lower = LOWERINGS.get(plan.scheme.name)
        return None if lower is None else lower(plan, self)


def _native(plan: Plan, engine: CudaEngine) -> Lowering | None:
    is_plain = plan.scheme.product is None and plan.rounding == NEAREST
    return NativeLowering(plan) if is_plain else None


def _residues(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import ozaki2

    return _that_rounds(ozaki2.lowering(plan, engine.place, engine.costs))


def _slices(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import ozaki1

    return _that_rounds(ozaki1.lowering(plan, engine.place))


def _sums(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda.double_double import RoundedSums

    return RoundedSums(plan, engine.place)


def _words(plan: Plan, engine: CudaEngine) -> Lowering | None:
    from hifigemm.engines.cuda import words

    if not _ADDS_AS_MODELLED:
        return None
    return _that_rounds(words.lowering(plan, engine.place, engine.model))


def _that_rounds(lowering: CudaLowering | None) -> Lowering | None:
    """The lowering, unless its plan has a rounding of its own that it cannot do."""
    if lowering is None or (lowering.has_rounding and not lowering.rounds):
        return None
    return lowering


LOWERINGS: dict[str, Callable[[Plan, CudaEngine], Lowering | None]] = {
    "native": _native,
    "ozaki2": _residues,
    "ozaki1": _slices,
    "double-double": _sums,
    "multiword": _words,
    "corrected": _words,
}
"""How schemes are carried out, by their names. None for plans that go step by step."""


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
        self._multiply = library_matmul if is_double else _native_matmul
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


def _native_matmul(
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


def _words_product(x: torch.Tensor, y: torch.Tensor, fmt: Format) -> torch.Tensor:
    """x @ y in FP32 on the tensor cores, for stacks (batch or 1, m, k) and (batch or 1,
    k, n) of words of `fmt`.
    """
    x, y = x.to(_WORDS[fmt]), y.to(_WORDS[fmt])
    if fmt is TF32:
        with float32_precision("cuda", "tf32"):
            return library_matmul(x, y)
    batch = max(len(x), len(y))
    return torch.bmm(
        x.expand(batch, -1, -1), y.expand(batch, -1, -1), out_dtype=torch.float32
    )
