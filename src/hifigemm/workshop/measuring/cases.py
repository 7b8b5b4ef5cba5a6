"""What a benchmark compares: the native product, schemes in a short notation, peers;
and the whole way for a workload.

Notation: SCHEME[:COUNT][:WORD...][@ACCURACY], such as "auto", "ozaki2:14",
"ozaki2:14:accurate", "ozaki1:7:fp16", "multiword:fp16:2:3", "corrected:tf32",
"auto@correct", "ozaki2@1e-15", "auto@Relative(1e-12)".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import hifigemm as hg

from .arrays import Arrays, Workload
from .checks import SAMPLE, Reference, native_bound
from .peers import available, peers
from .power import Meter
from .runs import FAILURES, NATIVE, Case, Outcome, failed, operand_sets, run
from .timing import Method

_CLASSES = hg.Native, hg.Multiword, hg.Corrected, hg.Ozaki1, hg.Ozaki2, hg.DoubleDouble
SCHEMES: dict[str, Any] = {cls.name: cls for cls in _CLASSES}
"""All schemes, by the names that `hifigemm bench` and `hifigemm report` know them by."""
_COUNTS = {
    "ozaki1": ("num_slices",),
    "ozaki2": ("num_moduli",),
    "multiword": ("num_words", "num_products"),
}
_WORDS = {
    "int8": "product",
    "fp16": "product",
    "bf16": "product",
    "tf32": "product",
    "fp32": "product",
    "fp64": "product",
    "dp": "mode",
    "sp": "mode",
    "correct": "mode",
    "fast": "scaling",
    "accurate": "scaling",
    "outside": "accumulate",
    "chained": "accumulate",
    "separate": "accumulate",
    "blocked": "accumulate",
}
"""The field of a scheme that a word of the notation sets."""
_RELATIVE = re.compile(r"Relative\((.+)\)")

LARGEST_STATED = 2e11
"""Operations up to which the bound of a forced count is worked out: n = 4096 for real
square products.
"""

_LATER_SAMPLE = 16
"""Rows and columns that are compared with the exact product in every set of operands
but the first.
"""


def check_case(text: str) -> None:
    """Raise ValueError unless the text names a case: "native", "peers", a peer, or a
    scheme in the notation with an accuracy that can be asked for.
    """
    if text in (NATIVE, "peers", *peers()):
        return
    options = scheme_options(text)
    if "accuracy" in options:
        one = np.ones((1, 1))
        hg.make_plan(one, one, accuracy=options["accuracy"])


def _accuracy(text: str) -> Any:
    """The accuracy that a text stands for: a number, Relative(r), or a name."""
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        return hg.Relative(float(relative[1]))
    try:
        return float(text)
    except ValueError:
        return text


def scheme_options(text: str) -> dict[str, Any]:
    """The options of `hifigemm.matmul` behind the notation.

    Ozaki scheme II with a count scales fast unless it is told otherwise.

    Raises
    ------
    ValueError
        What cannot be read, or what the scheme refuses.
    """
    words, _, accuracy = text.partition("@")
    name, *details = words.split(":")
    options: dict[str, Any] = {"accuracy": _accuracy(accuracy)} if accuracy else {}
    if name == "auto" and not details:
        return options | {"scheme": "auto"}
    if name not in SCHEMES:
        raise ValueError(
            f"no scheme {name!r} in {text!r}; known: auto, {', '.join(SCHEMES)}"
        )

    # Numbers are counts in their order; each word names the field that it sets.
    fields: dict[str, Any] = {}
    counts = iter(_COUNTS.get(name, ()))
    for word in details:
        field = next(counts, None) if word.isdecimal() else _WORDS.get(word)
        if field is None or field in fields:
            raise ValueError(f"{word!r} in {text!r} is no count or option of {name}")
        fields[field] = int(word) if word.isdecimal() else word
    if name == "ozaki2" and "num_moduli" in fields:
        fields.setdefault("scaling", "fast")
    try:
        return options | {"scheme": SCHEMES[name](**fields)}
    except TypeError as error:
        raise ValueError(
            f"{text!r}: {name} has no such option: {', '.join(fields)}"
        ) from error


def build(
    name: str,
    modes: Sequence[str],
    load: Workload,
    arrays: Arrays,
    sets: Sequence[tuple[Any, Any]],
) -> list[Case]:
    """The case of that name in each mode: "native", a peer, or a scheme in the
    notation. The modes share their outputs.

    Raises
    ------
    hifigemm.HifigemmError, RuntimeError
        The case is not possible for this workload, or the peer is not there.
    """
    outputs = tuple(arrays.empty(load) for _ in sets)
    if name == NATIVE:
        calls = _calls(partial(partial, arrays.multiply), sets, outputs)
        return [
            Case(
                name,
                calls,
                outputs,
                native_bound(load),
                mode,
                num_products=4 if load.is_complex else 1,
                unit=load.unit,
                scheme=name,
            )
            for mode in modes
        ]
    # Peers, and all else by the notation.
    peer = peers().get(name)
    if peer is None:
        return _cases_of_scheme(name, modes, load, sets, outputs)
    if not peer.available():
        raise RuntimeError(f"{name} is not installed here")
    if not peer.supports(arrays.device, load):
        raise RuntimeError(f"{name} does not multiply {load} on {arrays.device}")
    calls = _calls(peer.prepare, sets, outputs)
    bound = native_bound(load)
    return [
        Case(name, calls, outputs, bound, mode, peer=True, scheme=name)
        for mode in modes
    ]


def _calls(
    prepare: Callable[..., Callable[[], object]],
    sets: Sequence[tuple[Any, Any]],
    outputs: Sequence[Any],
) -> tuple[Callable[[], object], ...]:
    """A call for each set of operands, which writes the output of the set."""
    pairs = zip(sets, outputs, strict=True)
    return tuple(prepare(a, b, out) for (a, b), out in pairs)


def _cases_of_scheme(
    name: str,
    modes: Sequence[str],
    load: Workload,
    sets: Sequence[tuple[Any, Any]],
    outputs: tuple[Any, ...],
) -> list[Case]:
    """The case of a scheme in the notation, in each mode."""
    options = scheme_options(name)
    scheme, count, bound = _scheme_and_bound(load, sets[0], options)
    unit = getattr(scheme, "product", None) or load.unit
    cases = []
    for mode in modes:
        mode_options = options
        reason = ""
        if mode == "graph":
            # A graph holds what one plan does; a call without a plan may look at the
            # data and decide anew.
            plan = hg.make_plan(*sets[0], **options)
            reason = _uncapturable(plan)
            if not reason:
                mode_options = {"plan": plan}
        prepare = partial(_product_call, options=mode_options)
        cases.append(
            Case(
                name,
                _calls(prepare, sets, outputs),
                outputs,
                bound,
                mode,
                num_products=count,
                unit=unit,
                scheme=str(scheme),
                uncapturable=reason,
            )
        )
    return cases


def _product_call(
    a: Any, b: Any, out: Any, *, options: dict[str, Any]
) -> Callable[[], object]:
    """The product of two operands as a function without parameters."""
    return partial(hg.matmul, a, b, out=out, **options)


def measure(
    load: Workload,
    names: Sequence[str],
    modes: Sequence[str],
    arrays: Arrays,
    method: Method,
    *,
    meter: Meter | None = None,
    timed: bool = True,
    sample: int = SAMPLE,
) -> list[Outcome]:
    """Every case in every mode for one workload: built, checked, and timed unless
    `timed` is false.

    The name "peers" stands for those that are there. `sample` rows and columns of the
    first operands are compared with the exact product.
    """
    sets = operand_sets(arrays, load) if timed else [arrays.operands(load, 0)]
    # The first operands are judged by more entries than the others.
    references = []
    for seed, (a, b) in enumerate(sets):
        size = _LATER_SAMPLE if seed else sample
        references.append(Reference(load, a, b, size))
    cases: list[Case] = []
    failures = []
    for name in _without_repeats(names, arrays, load):
        try:
            cases += build(name, modes, load, arrays, sets)
        except FAILURES as error:
            for mode in modes:
                case = Case(name, (), (), math.nan, mode)
                failures.append(failed(case, error))
    outcomes = run(cases, references, arrays.clock(), method, meter=meter, timed=timed)
    return [*outcomes, *failures]


def _without_repeats(names: Sequence[str], arrays: Arrays, load: Workload) -> list[str]:
    """The names, each once, with those of the peers that are there for "peers"."""
    cases: dict[str, None] = {}
    for name in names:
        if name == "peers":
            for peer in available(arrays.device, load):
                cases[peer.name] = None
        else:
            cases[name] = None
    return list(cases)


def _scheme_and_bound(
    load: Workload, operands: tuple[Any, Any], options: dict[str, Any]
) -> tuple[Any, int, float]:
    """The scheme with its counts, the number of its products, and the bound that it
    promises or states.

    A forced count promises nothing, and it takes long to work out a bound for large
    products: they are held against what a native product may err.
    """
    is_forced = "accuracy" not in options
    is_forced = is_forced and getattr(options["scheme"], "explicit", False)
    if is_forced and load.operations > LARGEST_STATED:
        plan = hg.make_plan(*operands, **options)
        return plan.scheme, plan.num_products, math.inf
    _, report = hg.matmul(*operands, return_report=True, **options)
    num_products = report.num_products
    if report.native and load.is_complex:
        num_products *= 4
    return report.scheme, num_products, report.bound


def _uncapturable(plan: hg.Plan) -> str:
    """Why a graph cannot hold what a plan does, if so: the host reads whether its
    entries keep the bound.
    """
    if plan.verification.name != "ENTRYWISE" or plan.scheme.is_native:
        return ""
    return "its entries are certified"
