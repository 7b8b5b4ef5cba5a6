"""What would the papers' systems make on cards with few FP64 units? A prediction, from
datasheets and the efficiency that each stage has on an H100 or H200.

    python -m experiments.weak_fp64 [--output results/weak_fp64.csv]

None of the cards was at hand. [MOOI20] shows DGEMM by FP16 tensor cores ahead of DGEMM
by FP64 units on a Titan RTX, whose FP64 units are few. The time of a mode is that of
its measured stages, each scaled by what bounds it: products by the peak of their unit,
passes by the bandwidth of the memory, and by the FP64 instructions of a pass where
these take longer; the host's share stays. So a stage reaches the share of its peak that
it reaches where it was measured. INT8 products lose what the plain Triton kernel loses
to that for Hopper, and words what the estimate of `engines/gpu_rates.py` says.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hifigemm.workshop.environment import write_csv
from plots.drawings.names import case_name

RESULTS = Path("results")
MODES, WORDS = "modes_h100.csv", "words_h100.csv"


@dataclass(frozen=True)
class Datasheet:
    """Peaks of a card in operations a second without sparsity, FP16 and TF32 products
    added in FP32; bytes a second of its memory; and where this stands.
    """

    name: str
    fp64: float
    fp32: float
    fp16: float
    tf32: float
    int8: float
    memory: float
    source: str

    def peak(self, unit: str) -> float:
        """The peak of a unit; BF16 is as fast as FP16."""
        return float(getattr(self, "fp16" if unit == "bf16" else unit))


_HOPPER = 66.9e12, 66.9e12, 989.4e12, 494.7e12, 1978.9e12
MEASURED = {
    "NVIDIA H100 80GB HBM3": Datasheet(
        "H100", *_HOPPER, 3.35e12, source="NVIDIA H100 datasheet, SXM"
    ),
    "NVIDIA H200": Datasheet("H200", *_HOPPER, 4.8e12, source="NVIDIA H200 datasheet"),
}
"""By the device of the lines that predictions begin with."""
CARDS = (
    Datasheet(
        *("RTX 4090", 1.29e12, 82.6e12, 165.2e12, 82.6e12, 660.6e12, 1.008e12),
        source="NVIDIA Ada GPU architecture, appendix A",
    ),
    Datasheet(
        *("L40S", 1.43e12, 91.6e12, 362.05e12, 183e12, 733e12, 0.864e12),
        source="NVIDIA L40S datasheet; FP64 as 1/64 of FP32",
    ),
    Datasheet(
        *("RTX PRO 6000", 1.97e12, 126e12, 503.8e12, 251.9e12, 1007.6e12, 1.792e12),
        source="NVIDIA RTX Blackwell PRO GPU architecture; FP64 as 1/64 of FP32",
    ),
)
PLAIN_INT8 = 0.84
PLAIN_WORDS = 0.7
"""Rates of the plain kernels over those for Hopper: engines/gpu_rates.py."""

SLICE_INSTRUCTIONS = {"int8": 5, "fp16": 5, "fp64": 4}
"""FP64 instructions for each slice of an entry of float64, by its format, counted in
the PTX for sm_120: 2629 of 64 entries with 8 INT8 slices, 1285 of 64 with 5 FP64 ones.
"""
COUNT_INSTRUCTIONS = 3
"""The same for each entry of an operand where exponents or slices are counted."""
SUM_INSTRUCTIONS = {"dp": 26, "correct": 21, "sp": 24}
"""The same for each entry of the result, by the mode, rare branches included."""


def read(name: str) -> list[dict[str, str]]:
    """The lines of a file of the results that were timed."""
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["status"] == "timed"]


def fp64_instructions(row: Mapping[str, str]) -> dict[str, float]:
    """FP64 instructions of the passes of a product by slices."""
    n = float(row["n"])
    _, unit, mode = row["case"].split(":")
    slicing = 0.0
    if row["dtype"] == "float64":
        slicing = 2 * n * n * SLICE_INSTRUCTIONS[unit] * float(row["num_slices"])
    return {
        "count": 2 * n * n * COUNT_INSTRUCTIONS,
        "slices": slicing,
        "sums": n * n * SUM_INSTRUCTIONS[mode],
    }


def seconds_of_modes(row: Mapping[str, str], card: Datasheet) -> dict[str, float]:
    """Predicted seconds of each stage of a product by slices."""
    unit, own = row["unit"], MEASURED[row["device"]]
    products = float(row["seconds_products"]) * own.peak(unit) / card.peak(unit)
    if unit == "int8":
        products /= PLAIN_INT8
    found = {"products": products, "rest": float(row["seconds_rest"])}
    instructions = fp64_instructions(row)
    for stage in ("count", "slices", "sums", "passes"):
        by_memory = float(row[f"seconds_{stage}"]) * own.memory / card.memory
        # A multiplication with an addition counts as two operations of the peak.
        by_units = 2 * instructions.get(stage, 0.0) / card.fp64
        found[stage] = max(by_memory, by_units)
    return found


def tflops_of_words(row: Mapping[str, str], card: Datasheet) -> float:
    """Predicted TFLOP/s of a native product, or of words on tensor cores."""
    unit = row["unit"]
    speed = float(row["sustained_tflops"] or row["burst_tflops"])
    scaled = speed * card.peak(unit) / MEASURED[row["device"]].peak(unit)
    return scaled if row["case"] == "native" else PLAIN_WORDS * scaled


def predictions(card: Datasheet) -> Iterator[dict[str, Any]]:
    """One line for each mode and each scheme of words."""
    for source, rows in (
        ("modes", read(MODES)),
        ("words", [r for r in read(WORDS) if r["dtype"] == "float32"]),
    ):
        natives: dict[tuple[str, ...], float] = {}
        for row in rows:
            at = row["dtype"], row["n"], row["family"]
            stages: dict[str, float] = {}
            if row.get("num_slices"):
                stages = seconds_of_modes(row, card)
                tflops = 2e-12 * float(row["n"]) ** 3 / sum(stages.values())
            elif row["case"] == "native" or source == "words":
                tflops = tflops_of_words(row, card)
            else:
                continue
            if row["case"] == "native":
                natives[at] = tflops
            yield {
                "card": card.name,
                "source": source,
                **dict(zip(("dtype", "n", "family"), at, strict=True)),
                "case": row["case"],
                "predicted_tflops": tflops,
                "ratio_to_native": tflops / natives[at],
                "share_of_products": stages["products"] / sum(stages.values())
                if stages
                else "",
            }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown: the largest n of each file, with the measured share of the peak of
    the products beside.
    """
    cards = [card.name for card in CARDS]
    cells = ("measured", "share of the peak", *cards)
    lines = [f"| TFLOP/s, over native | {' | '.join(cells)} |"]
    lines.append("| --- " * (len(cells) + 1) + "|")
    measured = read(MODES), read(WORDS)
    for source, own in zip(("modes", "words"), measured, strict=True):
        most = max((row["n"] for row in own), key=int)
        for row in own:
            at = {key: row[key] for key in ("dtype", "family", "case")}
            predicted = [
                x
                for x in rows
                if x["source"] == source
                and x["n"] == most == row["n"]
                and at.items() <= x.items()
            ]
            if predicted and row["family"] == own[0]["family"]:
                device = MEASURED[row["device"]].name
                name = f"{row['dtype']}, {device}, n = {most}: {case_name(row['case'])}"
                lines.append(f"| {name} | {_measured(row)} | {_cells(predicted)} |")
    return "\n".join(lines)


def _measured(row: Mapping[str, str]) -> str:
    """Speed, gain, and the share of its peak that a unit reaches in the products."""
    speed = float(row["sustained_tflops"] or row["burst_tflops"])
    gain = float(row["ratio_to_native"] or row["burst_ratio_to_native"])
    products = speed * float(row["num_products"])
    if row.get("products_tflops"):
        products = float(row["products_tflops"])
    share = 1e12 * products / MEASURED[row["device"]].peak(row["unit"])
    return f"{speed:.3g}, {gain:.2g} | {100 * share:.0f} %"


def _cells(predicted: Sequence[Mapping[str, Any]]) -> str:
    return " | ".join(
        f"{row['predicted_tflops']:.3g}, {row['ratio_to_native']:.2g}"
        for row in predicted
    )


def main() -> None:
    """Predict, write, and print the table of docs/hardware.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", default="results/weak_fp64.csv")
    options = parser.parse_args()
    rows = [row for card in CARDS for row in predictions(card)]
    sources = {card.name: vars(card) for card in (*MEASURED.values(), *CARDS)}
    write_csv(options.output, rows, measured="no: predicted", datasheets=sources)
    print(table(rows))


if __name__ == "__main__":
    main()
