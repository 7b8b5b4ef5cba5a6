"""What the measured figures say of the claims of the papers: tables in
docs/experiments.md, made from CSV files.

    python -m experiments.gpu.answers [docs/experiments.md]

What stands between `<!-- answers: STUDY_DEVICE -->` and `<!-- end -->` is written anew
from results/STUDY_DEVICE.csv and its environment, so that no figure is typed. A table says of
each claim whether it holds in all rows of the file, and by how much. The picture is
that of `python plots/experiments.py`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from experiments.gpu.residuals import LIBRARY
from experiments.residuals import METHODS
from hifigemm.workshop.plots.style import Row, choose, unique
from plots.drawings import read_rows
from plots.drawings.machines import with_speed
from plots.drawings.names import case_name, family_name

MISSING = "Not measured yet: `make study` measures on a GPU, and this place is filled in from its CSV files."
_COLUMNS = (
    "slices",
    "products",
    "ms",
    "TFLOP/s",
    "x native",
    "largest error",
    "correctly rounded",
)
_BLOCK = re.compile(r"(<!-- answers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Claim = tuple[str, bool, str]
"""A claim, whether it holds here, and the figures."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def verdicts(claims: Sequence[Claim]) -> str:
    """A line for each claim."""
    header = ("claim", "here", "measured")
    return table(
        header,
        [
            (claim, "holds" if holds else "does not hold", figures)
            for claim, holds, figures in claims
        ],
    )


def number(x: float | str, digits: int = 3) -> str:
    """A figure as a page shows it, empty where there is none."""
    return (
        ""
        if x == ""
        else f"{float(x):.{digits}g}".replace("e-0", "e-").replace("e+0", "e")
    )


def timed(rows: Sequence[Row]) -> list[Row]:
    """Lines that have a time, which is those whose results were right, with their
    `speed`.
    """
    return with_speed([row for row in rows if row["burst_tflops"]])


def ratios(
    rows: Sequence[Row], label: str, column: str, one: str, other: str, *keys: str
) -> list[float]:
    """A column of one label over that of another, for all lines that agree in the
    keys.
    """
    below = {
        tuple(row[key] for key in keys): row[column]
        for row in rows
        if row[label] == other
    }
    above = {
        tuple(row[key] for key in keys): row[column]
        for row in rows
        if row[label] == one
    }
    return [
        float(value) / float(below[at])
        for at, value in above.items()
        if value and float(below.get(at) or 0)
    ]


def claim(
    text: str, found: Sequence[float], holds: Callable[[float], bool], what: str
) -> list[Claim]:
    """What holds for all of some figures; nothing where there are none."""
    return [(text, all(map(holds, found)), f"{what} {spread(found)}")] if found else []


def at_most_one(x: float) -> bool:
    """For ratios that are not to exceed 1."""
    return x <= 1


def above_one(x: float) -> bool:
    """For ratios that are to exceed 1."""
    return x > 1


def spread(values: Sequence[float]) -> str:
    """The range of some figures."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def modes(rows: Sequence[Row]) -> str:
    """The table at the largest n with the narrowest exponents, then claims."""
    everything, rows = rows, timed(rows)
    family, lines = unique(rows, "family")[0], []
    most = max(unique(choose(rows, family=family), "n"), key=int)
    for row in choose(rows, family=family, n=most):
        counts = (row["num_slices"], row["num_products"])
        time = number(1e3 * float(row["sustained_seconds"] or row["burst_seconds"]))
        figures = (time, number(row["speed"]), number(row["ratio_to_native"]))
        errors = (
            number(row["relative_error"], 2),
            f"{100 * float(row['share_equal']):.4g} %",
        )
        name = ("float32: " if row["dtype"] == "float32" else "") + case_name(
            row["case"]
        )
        lines.append((name, *counts, *figures, *errors))
    head = (f"n = {most}, {family_name(family)}", *_COLUMNS)
    claims = correct_mode(everything)
    double, single = choose(rows, dtype="float64"), choose(rows, dtype="float32")

    def over(found: Sequence[Row], column: str, one: str, other: str) -> list[float]:
        return ratios(found, "case", column, one, other, "n", "family")

    errors = over(double, "relative_error", "ozaki1:fp16:dp", "native")
    claims += claim(
        "DP mode errs no more than DGEMM", errors, at_most_one, "ratio of errors"
    )
    errors = over(single, "relative_error", "ozaki1:fp16:sp", "native")
    claims += claim(
        "SP mode errs no more than SGEMM", errors, at_most_one, "ratio of errors"
    )
    speeds = over(double, "burst_tflops", "ozaki1:fp16:correct", "ozaki1:fp64:correct")
    claims += claim(
        "correct mode is quicker on FP16 than on FP64 units",
        speeds,
        above_one,
        "ratio of speeds",
    )
    speeds = over(double, "burst_tflops", "auto@correct", "ozaki1:fp16:correct")
    claims += claim(
        "correct rounding is quicker by residues than by slices",
        speeds,
        above_one,
        "ratio of speeds",
    )
    speeds = over(single, "burst_tflops", "ozaki1:int8:sp", "native")
    claims += claim(
        "SP mode on INT8 units is quicker than SGEMM",
        speeds,
        above_one,
        "ratio of speeds",
    )
    long = [row for row in rows if row["num_slices"] and int(row["n"]) >= 8192]
    shares = [
        float(row["seconds_products"]) / float(row["seconds_total"]) for row in long
    ]
    claims += claim(
        "products take at least 55 % of the time: n >= 8192",
        shares,
        lambda share: share >= 0.55,
        "shares",
    )
    return "\n\n".join([table(head, lines), counts_over_n(rows), verdicts(claims)])


def counts_over_n(rows: Sequence[Row]) -> str:
    """Numbers of slices and products of each mode, a line for each phi, over n."""
    sliced = [row for row in rows if row["num_slices"]]
    sizes = sorted(unique(sliced, "n"), key=int)
    lines = []
    for family in unique(sliced, "family"):
        for case in unique(choose(sliced, family=family), "case"):
            found = {row["n"]: row for row in choose(sliced, family=family, case=case)}
            cells = [
                f"{found[n]['num_slices']}, {found[n]['num_products']}"
                if n in found
                else ""
                for n in sizes
            ]
            lines.append((family_name(family), case_name(case), *cells))
    return table(("", "slices and products, n =", *sizes), lines)


def correct_mode(rows: Sequence[Row]) -> list[Claim]:
    """Whether every correct product has no error: in its sample, and in all entries
    where another way is compared.
    """
    found = [
        row for row in rows if row["case"].endswith("correct") and row["relative_error"]
    ]
    errors = [float(row["relative_error"]) for row in choose(found, dtype="float64")]
    same = [float(row["share_equal"] or "nan") for row in found]
    if not errors:
        return []
    figures = f"largest error {number(max(errors))} in {len(errors)} products; {100 * min(same):.6g} % of all entries"
    holds = max(errors) == 0 and all(share == 1 for share in same)
    return [
        (
            "correct mode: error 0 in every entry, every n and φ",
            holds,
            f"{figures} are those of two ways",
        )
    ]


def residuals(rows: Sequence[Row]) -> str:
    """Residuals at k = 4096 or the largest k that the model has, then claims."""
    machine = next((row["unit"] for row in rows if row["unit"] != "model"), "")
    inputs, methods = unique(rows, "inputs"), list(METHODS)
    k = max(
        (
            row["k"]
            for row in rows
            if row["unit"] == "model" and row["method"] != methods[-1]
        ),
        key=int,
    )
    at = {
        (row["method"], row["inputs"], row["unit"]): row["residual"]
        for row in choose(rows, k=k)
    }

    def cell(*where: str) -> str:
        measured, modelled = (
            number(at.get((*where, unit), ""), 2) for unit in (machine, "model")
        )
        return f"{measured} ({modelled})".replace(" ()", "").strip()

    lines = [
        (method, *(cell(method, name) for name in inputs))
        for method in (*methods, LIBRARY)
    ]
    own = [
        row for row in rows if row["unit"] == machine or row["method"] == methods[-1]
    ]
    uniform = [
        row
        for row in own
        if row["inputs"].startswith("uniform") and int(row["k"]) >= 64
    ]
    long = [row for row in own if int(row["k"]) >= 1024]
    longest = max(unique(rows, "k"), key=int)
    published, fp32 = "corrected FP16 as published", methods[-1]
    scaled = next(method for method in methods if "scaled" in method)

    def over(found: Sequence[Row], method: str, other: str = fp32) -> list[float]:
        return ratios(found, "method", "residual", method, other, "inputs", "k")

    text = f"{published} errs no more than {fp32}: uniform entries, k >= 64"
    what = "ratio of residuals"
    claims = claim(text, over(uniform, published), at_most_one, what)
    text = f"{scaled}, errs no more than {fp32}: all inputs, k >= 1024"
    claims += claim(text, over(long, scaled), at_most_one, what)
    text = f"{scaled}, errs no more than {LIBRARY}, which cuts k: all inputs, k >= 1024"
    claims += claim(text, over(long, scaled, LIBRARY), at_most_one, what)
    in_unit = next(method for method in methods if "summed in" in method)
    text = f"{in_unit}, errs more than {fp32}: uniform entries, k = {longest}"
    claims += claim(text, over(choose(uniform, k=longest), in_unit), above_one, what)
    for text, fits in (
        ("kernels of hifigemm", ("corrected FP16",)),
        ("the library of the GPU", ("4 products",)),
    ):
        same = [
            float(r["same_bits"])
            for r in own
            if r["same_bits"] and any(x in r["method"] for x in fits)
        ]
        claims += claim(
            f"the model has the bits of the unit: {text}",
            same,
            lambda x: x == 1,
            "share of entries",
        )
    return f"{table((f'k = {k}: {machine} (model)', *inputs), lines)}\n\n{verdicts(claims)}"


def words(rows: Sequence[Row]) -> str:
    """Speed over n, then claims."""
    rows = timed(rows)
    sizes, lines = sorted(unique(rows, "n"), key=int), []
    for dtype in unique(rows, "dtype"):
        for case in unique(choose(rows, dtype=dtype), "case"):
            found = {row["n"]: row for row in choose(rows, dtype=dtype, case=case)}
            last = found[max(found, key=int)]
            cells = (number(found[n]["speed"]) if n in found else "" for n in sizes)
            lines.append(
                (
                    dtype,
                    case_name(case),
                    *cells,
                    number(last["ratio_to_native"] or last["burst_ratio_to_native"]),
                    number(last["sample_error"], 2),
                    number(last["joules"]),
                    number(last["gflops_per_watt"]),
                )
            )
    head = (
        "",
        "TFLOP/s, n =",
        *sizes,
        "largest n: x native",
        "error",
        "J",
        "GFLOP/s/W",
    )
    claims: list[Claim] = []
    single, double = choose(rows, dtype="float32"), choose(rows, dtype="float64")

    def over_native(found: Sequence[Row], column: str, case: str) -> list[float]:
        return ratios(found, "case", column, case, "native", "n")

    for case in ("corrected:fp16", "corrected:tf32"):
        name, found = case_name(case), choose(single, case=case)
        peak = [
            float(row["roof_tflops"])
            for row in choose(single, case="native")
            if row["roof_tflops"]
        ]
        fastest = (
            [max(float(row["speed"]) for row in found) / peak[0]]
            if peak and found
            else []
        )
        claims += claim(
            f"{name} pass the peak of FP32",
            fastest,
            above_one,
            "largest speed over the peak",
        )
        errors = over_native(single, "sample_error", case)
        claims += claim(
            f"{name} err no more than SGEMM",
            errors,
            at_most_one,
            "ratio of largest errors",
        )
        watts = over_native(single, "gflops_per_watt", case)
        claims += claim(
            f"{name} take less energy than SGEMM",
            watts,
            above_one,
            "ratio of GFLOP/s/W",
        )
    for case in (
        "corrected:tf32:chained",
        "multiword:tf32:2:3",
        "multiword:tf32:2:4",
        "multiword:fp16:2:3",
    ):
        speeds = over_native(single, "speed", case)
        claims += claim(
            f"quicker than SGEMM: {case_name(case)}",
            speeds,
            above_one,
            "ratio of speeds",
        )
    errors = over_native(single, "sample_error", "multiword:tf32:2:3")
    claims += claim(
        f"{case_name('multiword:tf32:2:3')} err no more than SGEMM",
        errors,
        at_most_one,
        "ratio of largest errors",
    )
    speeds = over_native(double, "speed", "multiword:fp32:2:3")
    claims += claim(
        "TF64 with three products is slower than DGEMM",
        speeds,
        at_most_one,
        "ratio of speeds",
    )
    return f"{table(head, lines)}\n\n{verdicts(claims)}"


def forward_errors(rows: Sequence[Row]) -> str:
    """The 2-norm over n beside what was published, then claims."""
    own, published = choose(rows, source="computed"), choose(rows, source="published")
    sizes, lines = sorted(unique(own, "n"), key=int), []
    known = {(row["curve"], row["n"]): row["norm_2"] for row in published}
    for curve in (name for name in unique(own, "curve") if not name.startswith("|")):
        for precision in unique(choose(own, curve=curve), "precision"):
            found = {
                row["n"]: row["norm_2"]
                for row in choose(own, curve=curve, precision=precision)
            }
            beside = {n: known.get((curve.split(",")[0], n)) for n in sizes}
            cells = (
                number(found.get(n, ""))
                + (f" ({number(beside[n])})" if beside[n] else "")
                for n in sizes
            )
            lines.append((curve, *cells))

    def over(one: str, other: str) -> list[float]:
        return ratios(own, "curve", "norm_2", one, other, "n")

    what = "ratio of 2-norms"
    claims = claim(
        "3x TF32 in one chain errs more than SGEMM",
        over("3x TF32", "SGEMM"),
        above_one,
        what,
    )
    found = over("4x TF32", "3x TF32")
    claims += claim(
        "the fourth product of TF32 words changes less than 5 %",
        found,
        lambda x: abs(x - 1) < 0.05,
        what,
    )
    found = over("3x TF32, summed outside", "SGEMM")
    claims += claim(
        "3x TF32 whose sum leaves the unit errs no more than SGEMM",
        found,
        at_most_one,
        what,
    )
    claims += claim(
        "1x TF64 errs less than SGEMM", over("1x TF64", "SGEMM"), at_most_one, what
    )
    found = ratios(
        [row for row in own if int(row["n"]) >= 2048],
        "curve",
        "norm_2",
        "4x TF64, words to nearest",
        "DGEMM",
        "n",
    )
    claims += claim(
        "4x TF64 errs no more than DGEMM: n >= 2048", found, at_most_one, what
    )
    return f"{table(('2-norm (published), n =', *sizes), lines)}\n\n{verdicts(claims)}"


def schemes(rows: Sequence[Row]) -> str:
    """What no other scheme beats in both error and speed."""
    parts = []
    for dtype in unique(rows, "dtype"):
        found, best = [], 0.0
        right = timed(choose(rows, dtype=dtype))
        for row in sorted(
            right, key=lambda r: (float(r["sample_error"]), -float(r["speed"]))
        ):
            if float(row["speed"]) > best:
                best = float(row["speed"])
                figures = (
                    number(row["sample_error"], 2),
                    number(best),
                    number(row["ratio_to_native"]),
                )
                found.append((case_name(row["case"]), *figures))
        parts.append(
            table(
                (
                    f"{dtype}: on the Pareto front",
                    "largest error",
                    "TFLOP/s",
                    "x native",
                ),
                found,
            )
        )
    return "\n\n".join(parts)


def spans(rows: Sequence[Row]) -> str:
    """Errors and times over the span of D, then claims."""
    rows = choose(rows, status="timed")
    places = unique(rows, "span")
    parts = []
    for head, column, digits in (
        ("largest error, bits of D:", "error", 2),
        ("ms, bits of D:", "milliseconds", 3),
    ):
        lines = []
        for case in unique(rows, "case"):
            found = {row["span"]: row[column] for row in choose(rows, case=case)}
            cells = (number(found.get(span, ""), digits) for span in places)
            lines.append((case_name(case), *cells))
        parts.append(table((head, *places), lines))

    claims: list[Claim] = []
    for case in ("ozaki2:14", "ozaki2:15", "auto", "auto@fp64", "auto@correct"):
        own = choose(rows, case=case)
        unscaled = [float(row["error"]) for row in choose(own, span="0")]
        growth = [float(row["error"]) / max(unscaled) for row in own if unscaled]
        claims += claim(
            f"{case_name(case)}: errs as without D, within a factor of 3",
            growth,
            lambda ratio: ratio <= 3,
            "ratio of errors",
        )
    parts.append(verdicts(claims))
    return "\n\n".join(parts)


ANSWERS: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "modes": ("Speed, shares of time, rates and numbers of products", modes),
    "spans": ("Error and time over the bits that a diagonal along k spans", spans),
    "residuals": ("Residual over k, measured and by the model", residuals),
    "words": ("Speed and energy over n", words),
    "forward_errors": ("Error over n in three norms", forward_errors),
    "schemes": ("Speed over error, every scheme a point", schemes),
}
"""By the name of the study: what its picture shows, and what its file says."""


def answer(stem: str, results: Path) -> str:
    """Picture, environment and tables of a study; `MISSING` where it has no file."""
    if not (results / f"{stem}.csv").exists():
        return MISSING
    picture, say = ANSWERS[study_of(stem)]
    facts = json.loads((results / f"{stem}.env.json").read_text("utf-8"))
    versions = ", ".join(
        f"{key} {facts[key]}" for key in ("torch", "triton", "driver") if facts.get(key)
    )
    ended = (
        ""
        if facts["ended"] == "with all lines"
        else f" The run ended {facts['ended']}, before all its lines."
    )
    rows = read_rows(results / f"{stem}.csv")
    environment = ", ".join(
        text for text in (facts["device"], versions, facts["date"][:10]) if text
    )
    measured = f"[Data](../results/{stem}.csv): {environment}.{ended}{untimed(rows)}"
    return f"![{picture}](../results/{stem}.png)\n\n{measured}\n\n{say(rows)}"


def untimed(rows: Sequence[Row]) -> str:
    """A sentence on lines without a time, where there are any."""
    found = [row for row in rows if row.get("status", "timed") != "timed"]
    named = (
        f"{case_name(row['case'])} of {row['dtype']}, n = {row['n']}: {row['status']}"
        for row in found
    )
    return f" Without a time: {'; '.join(named)}." if found else ""


def filled_in(text: str, results: Path) -> str:
    """A page with its answers made anew."""
    return _BLOCK.sub(
        lambda match: f"{match[1]}{answer(match[2], results)}\n{match[3]}", text
    )


def study_of(stem: str) -> str:
    """The study of a file that is named after it and the device."""
    return stem.rpartition("_")[0]


def stems(text: str) -> Iterator[str]:
    """The files whose answers a page has a place for."""
    return (match[2] for match in _BLOCK.finditer(text))


def main(argv: Sequence[str] | None = None) -> int:
    """Fill in a page."""
    arguments = sys.argv[1:] if argv is None else argv
    page = Path(arguments[0] if arguments else "docs/experiments.md")
    page.write_text(filled_in(page.read_text("utf-8"), Path("results")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
