"""Products that were planned before, repeated for other tensors of a GPU or arrays of NumPy without planning anew.

A small product takes less time than planning. The first call of a kind leaves a function behind, and later calls with
the same options, shapes, strides, dtypes, alignment and device go straight to it. It does what the plan does: the bits
are the same. Where the plan depends on the operands, they are looked at first, and each plan that they ask for has a
function of its own; a hopeful plan is checked on the way, as always. Where the last few looks asked for the same
product, it begins before this one is known: the device need not stop, and what comes of a wrong guess is made again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hifigemm.accuracy import Accuracy
from hifigemm.engine import Engine, RepeatedLook, RepeatedProduct, RequiredBits
from hifigemm.exceptions import HopeError
from hifigemm.numerics.bits import Array
from hifigemm.numerics.scaling import required_bits
from hifigemm.plan import Plan
from hifigemm.settings import decision_log, is_strict
from hifigemm.transforms import is_followed, is_wrapped

__all__ = ["keep", "key_of", "repeat"]

_LARGEST = 2**39
"""Multiplications above which planning takes a hundredth of the product, even where the device waits for it."""
_LIMIT = 1024
_ON_HOST = np.dtype(np.float64), np.dtype(np.float32)
"""Of arrays of NumPy whose products are repeated."""
_PLANS = 64
"""Plans of one kind of calls that are kept."""
_STREAK, _LONG_STREAK = 2, 4
"""Looks in a row that ask for one product before it is begun ahead of the next one. Most data have too many bits for an
exact plan, and a hopeful one follows; exact plans of random operands change from call to call."""
_kept: dict[Hashable, _Kept] = {}
_refused: set[Hashable] = set()


def key_of(
    a: Any,
    b: Any,
    out: Any,
    accuracy: Accuracy,
    scheme: Any,
    engine: str | None,
    workspace: int | None,
    sync: bool,
) -> Hashable:
    """What two calls must share; None where calls of this kind are not kept."""
    layout = _arrays(a, b, out) if type(a) is np.ndarray else _tensors(a, b, out)
    if layout is None:
        return None
    return *layout, type(accuracy), accuracy, scheme, engine, type(workspace), workspace, is_strict(), bool(sync)


def _arrays(a: Any, b: Any, out: Any) -> tuple[Any, ...] | None:
    """What matters of matrices of NumPy; None for others."""
    if out is not None or type(b) is not np.ndarray or a.dtype not in _ON_HOST or a.dtype != b.dtype:
        return None
    return "numpy", a.shape, b.shape, a.dtype.char


def _tensors(a: Any, b: Any, out: Any) -> tuple[Any, ...] | None:
    """What matters of tensors on the current CUDA device; None for others."""
    torch = sys.modules.get("torch")
    if torch is None or type(a) is not torch.Tensor or not a.is_cuda or torch.is_autocast_enabled() or is_followed():
        return None
    tensors = (a, b) if out is None else (a, b, out)
    if not all(_is_plain(torch, x, a.device) for x in tensors) or a.device.index != torch.cuda.current_device():
        return None
    if b.dtype is not a.dtype:
        return None
    at, bt, target = a.data_ptr(), b.data_ptr(), None
    if out is not None:
        if out.untyped_storage().data_ptr() in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()):
            return None
        target = out.dtype, out.shape, out.stride(), out.data_ptr() & 15
    one, other = (a.shape, a.stride(), a.dtype, at & 15), (b.shape, b.stride(), b.dtype, bt & 15)
    return *one, *other, a.device, at == bt, target


def _is_plain(torch: Any, x: Any, device: Any) -> bool:
    """Whether x is a dense tensor on the device whose memory is what it says."""
    if type(x) is not torch.Tensor or x.device != device:
        return False
    return x.layout is torch.strided and not (x.requires_grad or x.is_conj() or x.is_neg() or is_wrapped(x))


_Found = tuple[Plan, RepeatedProduct, str]
"""A plan, its product, and a line for the log."""


@dataclass
class _Kept:
    """What calls of one kind repeat.

    Attributes
    ----------
    look : function or None
        What is asked of the operands first, where the plan depends on it.
    products : dict
        By the answer, None where nothing is asked.
    recent : tuple
        What the last look found, and how many looks in a row found the same, whatever thread they came from.
    """

    look: RepeatedLook | None
    products: dict[RequiredBits, _Found] = field(default_factory=dict)
    recent: tuple[_Found | None, int] = (None, 0)

    def expected(self) -> _Found | None:
        """The product that the next look is expected to ask for; None where the last ones do not tell."""
        found, streak = self.recent
        if found is None:
            return None
        return found if streak >= (_STREAK if found[0].hopeful else _LONG_STREAK) else None

    def note(self, found: _Found | None) -> None:
        """What one more look found."""
        last, streak = self.recent
        self.recent = found, streak + 1 if _share_product(last, found) else 1


def _is_captured() -> bool:
    """Whether launches go into a CUDA graph; later calls, which do not, may be repeated."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _share_product(one: _Found | None, other: _Found | None) -> bool:
    return one is not None and other is not None and one[1] is other[1]


def repeat(key: Hashable, a: Any, b: Any, out: Any) -> tuple[Any, float | None]:
    """The product as earlier calls of this kind have left it: the result, or None where they left nothing for it.

    Beside None the error ratio of the operands, where a hopeful plan turned out not to suffice for it.
    """
    try:
        kept = _kept.get(key)
    except TypeError:  # an option that cannot be hashed, which is refused later
        return None, None
    if kept is None:
        return None, None
    if kept.look is None:
        found = kept.products.get(None)
        result, ratio = _made(found, a, b, out)
    else:
        answer, ahead = kept.look(a, b), kept.expected()
        try:
            result, ratio = _made(ahead, a, b, out)
        except Exception:  # what is asked for may need less memory, say; if not, it raises the same
            result, ratio, ahead, kept.recent = None, None, None, (None, 0)
        except BaseException:
            answer()  # reads the operands until then
            raise
        found = kept.products.get(answer())
        kept.note(found)
        if not _share_product(ahead, found):
            result = None  # makes room
            result, ratio = _made(found, a, b, out)
    if found is not None and result is not None and (log := decision_log()).isEnabledFor(logging.INFO):
        log.info("%s, as before", found[2])
    return result, ratio


def _made(found: _Found | None, a: Any, b: Any, out: Any) -> tuple[Any, float | None]:
    """What `repeat` returns, by a product that was found, or by none."""
    if found is None:
        return None, None
    plan, product, _ = found
    if plan.choices and (is_strict() or decision_log().isEnabledFor(logging.INFO)):
        return None, None  # which choice was taken has to be asked afterwards
    try:
        return product(a, b, out), None
    except HopeError as failed:
        return None, failed.ratio
    except RuntimeError as failed:
        if not isinstance(failed, getattr(sys.modules.get("torch"), "OutOfMemoryError", ())):
            raise
        return None, None  # less memory is free than for the first call: a plan may make do with it


def keep(
    key: Hashable,
    plan: Plan,
    engine: Engine,
    operands: tuple[Array, Array],
    stacks: tuple[Array, Array],
    result_shape: tuple[int, ...],
    out: Array | None,
) -> None:
    """Leave a function for calls of this kind, where the plan of this one allows it; see `Engine.repeated_product`.

    The plan is the first one for its operands: a second one, after an error ratio, depends on more than a look tells.
    """
    p = plan.problem
    most = plan.scheme.most_required_bits(plan) if plan.exact or plan.hopeful else None
    rests_on_data = plan.free or plan.promised or plan.exact
    is_large = p.multiplications > _LARGEST
    if (rests_on_data and most is None) or plan.outliers is not None or is_large:
        return
    if key in _refused or (key, plan) in _refused or _is_captured():
        return
    if max(len(_kept), len(_refused)) >= _LIMIT:
        _kept.clear()
        _refused.clear()
    kept = _kept.get(key)
    if kept is None:
        look = None if most is None else engine.repeated_look(operands, stacks, most)
        kept = _Kept(look)
    seen = None if most is None else engine.override(required_bits)(*stacks, most, plan.block_entries)
    if most is not None and (kept.look is None or plan.hopeful != (seen is None)):
        _refused.add(key)
        return
    # A list, because other threads add to what is kept.
    same = (product for other, product, _ in list(kept.products.values()) if other == plan)
    repeated = next(same, None) or engine.repeated_product(plan, operands, stacks, result_shape, out)
    if repeated is None:
        _refused.add((key, plan) if kept.products else key)
        return
    if len(kept.products) >= _PLANS:
        kept.products.clear()
    kept.products[seen] = plan, repeated, f"{p}: {plan.scheme}, {plan.reason}"
    _kept[key] = kept
