"""What to expect on GPUs that were not measured: the table of docs/hardware.md, from
datasheets and the cost model.

Usage: python tools/hardware.py

The rates are those by which "auto" chooses (`engines/gpu_rates.py`): the share of its
units that an H200 reaches of its own. What that model leaves out is added here, the
FP64 instructions of the stages beside the products, which take longer than their passes
over memory where the FP64 unit is a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hifigemm.engines.gpu_rates import GpuProperties, rates_of
from hifigemm.engines.rates import Rates
from hifigemm.model.problem import Problem

PER_OPERAND_ENTRY, PER_RESULT_ENTRY = 12, 25
"""FP64 instructions of a thread for each entry: 372 for the 32 entries of a tile of
residues, 201 for the 8 entries of one of the reconstruction with 15 moduli, counted in
the machine code for sm_120, rare branches included.
"""
MODULI = 15


@dataclass(frozen=True)
class Card:
    """A board by its datasheet: multiprocessors, boost clock in hertz, bytes a second,
    FP64 lanes of an SM.
    """

    name: str
    capability: tuple[int, int]
    num_sms: int
    clock: float
    memory_rate: float
    fp64_lanes: int
    geforce: bool = False  # FP16 products are added in FP32 at half the rate

    @property
    def rates(self) -> Rates:
        """Those of the library's cost model."""
        # The model takes two transfers a clock over a bus: here of one byte a bit.
        return rates_of(
            GpuProperties(
                self.name,
                self.capability,
                self.num_sms,
                self.clock,
                self.memory_rate / 2,
                8,
            )
        )

    def residue_seconds(self, n: int) -> float:
        """A float64 product of n x n matrices by `MODULI` moduli, with the look that a
        promise takes.
        """
        rates, problem = self.rates, Problem(1, n, n, n, np.dtype(np.float64))
        lanes = self.num_sms * self.clock * self.fp64_lanes
        seconds = rates.residue_seconds(problem, MODULI, True)
        for entries, each in (
            (2 * n * n, PER_OPERAND_ENTRY),
            (n * n, PER_RESULT_ENTRY),
        ):
            passes = 1.5 * entries * (8 + MODULI) / rates.bandwidth
            seconds += max(entries * each / lanes - passes, 0.0)
        return seconds

    def row(self, n: int) -> list[str]:
        """TFLOP/s of FP64 and FP32 products of n x n matrices, native and by this
        library.
        """
        rates = self.rates
        double, single = (
            Problem(1, n, n, n, np.dtype(x)) for x in (np.float64, np.float32)
        )
        words = rates.word_seconds(single)
        words += self.geforce * 2 * n**3 / rates.words  # half of the rate of the units
        made = (
            rates.native_seconds(double),
            self.residue_seconds(n),
            rates.native_seconds(single),
            words,
        )
        figures = [2 * n**3 / seconds / 1e12 for seconds in made]
        name = (
            self.name if self.capability != (9, 0) else f"{self.name} (units measured)"
        )
        gains = figures[1] / figures[0], figures[3] / figures[2]
        return [
            name,
            ".".join(map(str, self.capability)),
            *(f"{x:.3g}" for x in figures[:2]),
            f"{gains[0]:.1f}",
            *(f"{x:.3g}" for x in figures[2:]),
            f"{gains[1]:.1f}" if gains[1] >= 1 else "native",
        ]


CARDS = (
    Card("A100 SXM 80 GB", (8, 0), 108, 1.41e9, 2.039e12, 32),
    Card("RTX 3090", (8, 6), 82, 1.695e9, 0.936e12, 2, geforce=True),
    Card("RTX 4090", (8, 9), 128, 2.52e9, 1.008e12, 2, geforce=True),
    Card("L40S", (8, 9), 142, 2.52e9, 0.864e12, 2),
    Card("H100 SXM", (9, 0), 132, 1.98e9, 3.35e12, 64),
    Card("H200", (9, 0), 132, 1.98e9, 4.8e12, 64),
    Card("B200", (10, 0), 148, 1.965e9, 8.0e12, 64),
    Card("B300", (10, 3), 148, 1.92e9, 8.0e12, 2),
    Card("RTX 5090", (12, 0), 170, 2.407e9, 1.792e12, 2, geforce=True),
    Card("RTX PRO 6000", (12, 0), 188, 2.617e9, 1.792e12, 2),
)
HEAD = (
    "board",
    "sm",
    "FP64 native",
    "15 moduli, promised",
    "gain",
    "FP32 native",
    "FP16 words",
    "gain",
)


def table(n: int) -> str:
    """The table in Markdown."""
    rows = [list(HEAD), ["---"] * len(HEAD), *(card.row(n) for card in CARDS)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    print(table(8192))
