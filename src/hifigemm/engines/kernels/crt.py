"""From residues of C to rounded values in one launch.

The bits are those of `ModuliSet.reconstruct` and `round_limbs`, of `fill_nonfinite` where a vector holds an Inf or NaN,
and of `combine` for alpha and beta.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from hifigemm.engines.kernels.crt_constants import CrtConstants, crt_constants
from hifigemm.engines.kernels.crt_kernels import crt_kernels
from hifigemm.engines.kernels.launch import Launch, float64_bits, real_view
from hifigemm.engines.kernels.predicate import NO_PREDICATE, Predicate
from hifigemm.engines.kernels.tiles import gpu_of
from hifigemm.numerics.residues import ModuliSet

__all__ = ["crt"]

_LAUNCH = Launch(crt_kernels)
_RESIDENT = 16
"""Programs of a warp that a multiprocessor holds at a time, at least."""


def _columns(constants: CrtConstants) -> int:
    """Columns of a program, a warp: 8 a thread up to 28 moduli, else 4; 4 complex ones."""
    return 256 if len(constants.sizes) <= 7 and len(constants.weights) == 1 else 128


def _strides(x: Any, batch: int) -> tuple[int, ...]:
    """Strides of a tensor (batch or 1, ...) in entries, 0 along a batch of one that is repeated; zeros for None."""
    if x is None:
        return (0, 0, 0)
    strides = x.stride()
    return (0 if x.shape[0] != batch else strides[0], *strides[1:])


def crt(
    products: Any,
    scales: tuple[Any, Any],
    moduli: ModuliSet,
    out: Any,
    *,
    shift: int = 0,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    operands: tuple[Any, Any] | None = None,
    magnitude: Any = None,
    predicate: Predicate | None = None,
    rarely: bool = False,
) -> None:
    """Write alpha T + beta C to `out`, T = V 2**(shift - s_i - t_j) rounded once, V the integers with these residues.

    An exact zero T is +0; a negative value that rounds to zero is -0. alpha = 1 with beta = 0 leaves T as it is, any
    other pair gives what `numerics.epilogue.combine` gives. Outputs of vectors with an Inf or NaN are those of
    `numerics.special.fill_nonfinite` in the place of T. All of this holds for re and im of complex results.

    Parameters
    ----------
    products : int8 tensor, shape (batch, planes, m_pad, n_pad)
        Residues of V, any representatives, |V| <= moduli.half_range: one part for each modulus; or for complex `out`
        the residues of the products of `schemes.residue_products.product_operands`. n_pad is a multiple of 256, the
        last stride 1.
    scales : (int32 tensor, shape (batch or 1, m); int32 tensor, shape (batch or 1, n))
        s and t, last strides 1; `NOT_FINITE` marks a vector with an Inf or NaN.
    moduli : ModuliSet
    out : float64, float32, complex128 or complex64 tensor, shape (batch, m, n)
        Any strides.
    shift : int
    alpha, beta : float
        Moderate ones, see `numerics.epilogue.Epilogue`.
    c : tensor of the dtype of `out` that broadcasts to its shape, or None
        It may be `out` itself; it is not read where beta = 0.
    operands : tensors, shapes (batch or 1, m, k) and (batch or 1, k, n), any strides, or None
        Read for marked vectors only; None where no vector is marked.
    magnitude : int32 or int16 tensor, shape (batch, m, n), or None
        Receives floor(log2 |V|), or -1 for V = 0, of real V.
    predicate : (int64 tensor of one entry, least, most), optional
        As for `residue_gemm`: nothing is written unless least <= predicate <= most.
    rarely : bool
        The predicate is expected not to hold: few programs then do all of the work if it does. A launch of 262144 idle
        programs takes 154 us on an H200.
    """
    batch, m, n = out.shape
    if out.numel() == 0:
        return
    s, t = scales
    constants = crt_constants(moduli, out.is_complex())
    columns = _columns(constants)
    c = c.expand(batch, m, n) if c is not None and beta != 0.0 else None
    left, right = operands or (None, None)
    programs = batch * m * triton.cdiv(n, columns)
    if rarely:
        programs = min(programs, _RESIDENT * gpu_of(out.device).num_sms)
    _LAUNCH(
        (programs,),
        *(products, s, t, real_view(out), magnitude, real_view(c), real_view(left), real_view(right)),
        *(shift, float64_bits(alpha), float64_bits(beta)),
        *(m, n, 0 if left is None else left.shape[2], batch * m),
        *_strides(products, batch)[:3],
        *(_strides(s, batch)[0], _strides(t, batch)[0]),
        *_strides(out, batch),
        *_strides(magnitude, batch),
        *_strides(c, batch),
        *_strides(left, batch),
        *_strides(right, batch),
        *(predicate or NO_PREDICATE),
        SET=constants,
        PTX=out.is_cuda and torch.version.hip is None,
        SINGLE=out.dtype in (torch.float32, torch.complex64),
        MAGNITUDE=magnitude is not None,
        COMBINE=c is not None or alpha != 1.0,
        HAS_C=c is not None,
        FILL=left is not None,
        BLOCK=columns,
        num_warps=1,
        enable_fp_fusion=False,
    )
