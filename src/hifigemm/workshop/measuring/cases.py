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

_CLASSES = hg.Native, hg.Ozaki1, hg.Ozaki2, hg.Corrected, hg.Multiword, hg.DoubleDouble
_SCHEMES: dict[str, Any] = {cls.name: cls for cls in _CLASSES}
_COUNTS = {
    "ozaki1": ("num_slices",),
    "ozaki2": ("num_moduli",),
    "multiword": ("num_words", "num_products"),
}
_WORDS = {
    **dict.fromkeys(("int8", "fp16", "bf16", "tf32", "fp32", "fp64"), "product"),
    **dict.fromkeys(("dp", "sp", "correct"), "mode"),
    **dict.fromkeys(("fast", "accurate"), "scaling"),
    **dict.fromkeys(("outside", "chained", "separate", "blocked"), "accumulate"),
}
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
    if name not in _SCHEMES:
        raise ValueError(
            f"no scheme {name!r} in {text!r}; known: auto, {', '.join(_SCHEMES)}"
        )
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
        return options | {"scheme": _SCHEMES[name](**fields)}
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
    outputs, known = tuple(arrays.empty(load) for _ in sets), peers()
    unit = "fp64" if load.real == "float64" else "fp32"
    facts: dict[str, Any] = {
        "num_products": 4 if load.is_complex else 1,
        "unit": unit,
        "scheme": name,
    }

    def runs(
        prepare: Callable[..., Callable[[], object]], **given: Any
    ) -> tuple[Callable[[], object], ...]:
        return tuple(
            prepare(a, b, out, **given)
            for (a, b), out in zip(sets, outputs, strict=True)
        )

    if name == NATIVE:
        calls = runs(partial(partial, arrays.multiply))
        return [
            Case(name, calls, outputs, native_bound(load), mode, **facts)
            for mode in modes
        ]
    if name in known:
        if not known[name].available():
            raise RuntimeError(f"{name} is not installed here")
        if not known[name].supports(arrays.device, load):
            raise RuntimeError(f"{name} does not multiply {load} on {arrays.device}")
        calls = runs(known[name].prepare)
        return [
            Case(name, calls, outputs, native_bound(load), mode, peer=True, scheme=name)
            for mode in modes
        ]
    options = scheme_options(name)
    scheme, count, bound = _what_is_done(load, sets[0], options)
    facts |= {
        "num_products": count,
        "scheme": str(scheme),
        "unit": getattr(scheme, "product", None) or unit,
    }
    cases = []
    for mode in modes:
        given, why = options, ""
        if mode == "graph":
            # A graph holds what one plan does; a call without a plan may look at the
            # data and decide anew.
            plan = hg.make_plan(*sets[0], **options)
            why = _uncapturable(plan)
            given = options if why else {"plan": plan}
        calls = runs(
            lambda a, b, out, **given: partial(hg.matmul, a, b, out=out, **given),
            **given,
        )
        cases.append(
            Case(
                name,
                calls,
                outputs,
                bound,
                mode,
                uncapturable=why,
                **facts,
            )
        )
    return cases


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
    references = [
        Reference(load, a, b, _LATER_SAMPLE if seed else sample)
        for seed, (a, b) in enumerate(sets)
    ]
    cases: list[Case] = []
    failures = []
    there = [peer.name for peer in available(arrays.device, load)]
    for name in dict.fromkeys(
        each for given in names for each in (there if given == "peers" else [given])
    ):
        try:
            cases += build(name, modes, load, arrays, sets)
        except FAILURES as error:
            failures += [
                failed(Case(name, (), (), math.nan, mode), error) for mode in modes
            ]
    return [
        *run(cases, references, arrays.clock(), method, meter=meter, timed=timed),
        *failures,
    ]


def _what_is_done(
    load: Workload, operands: tuple[Any, Any], options: dict[str, Any]
) -> tuple[Any, int, float]:
    """The scheme with its counts, the number of its products, and the bound that it
    promises or states.

    A forced count promises nothing, and it takes long to work out a bound for large
    products: they are held against what a native product may err.
    """
    if (
        load.operations > LARGEST_STATED
        and "accuracy" not in options
        and getattr(options["scheme"], "explicit", False)
    ):
        plan = hg.make_plan(*operands, **options)
        return plan.scheme, plan.num_products, math.inf
    _, report = hg.matmul(*operands, return_report=True, **options)
    return (
        report.scheme,
        report.num_products * (4 if report.native and load.is_complex else 1),
        report.bound,
    )


def _uncapturable(plan: hg.Plan) -> str:
    """Why a graph cannot hold what a plan does, if so: the host reads whether its
    entries keep the bound.
    """
    waits = plan.verification.name == "ENTRYWISE" and not isinstance(
        plan.scheme, hg.Native
    )
    return "its entries are certified" if waits else ""
