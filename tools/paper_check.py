"""The claims of paper/paper.md on the machine at hand: `make paper-check`.

Each claim is computed, and printed with what the paper states. The exit status is 1 where
one does not hold. Without a GPU it takes minutes; with PyTorch and a CUDA device those of
the GPU follow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import hifigemm as hg
from hifigemm.testing import phi_matrix
from hifigemm.testing.reference import correctly_rounded
from hifigemm.workshop.measuring.arrays import cuda_is_usable

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where it is run as a script

from tools import figures  # noqa: E402


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, and what is found here."""

    stated: str
    """Words of the paper."""
    check: Callable[[], tuple[bool, str]]
    """Whether it holds, and what was found."""


def summary() -> tuple[bool, str]:
    """The product of the summary."""
    a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    native, correct = (a @ b).item(), hg.matmul(a, b, accuracy="correct").item()
    return (native, correct) == (0.0, 1.0), f"{native:g} and {correct:g}"


def digests() -> tuple[bool, str]:
    """The digests of one product in several ways."""
    from examples.reproducible_sums import main

    found = main()["correct"]
    bits = sorted({*found.values()})
    return bits == ["aefd79b8"] and len(found) == 7, f"{len(found)} ways: {bits}"


def sides() -> tuple[bool, str]:
    """Sides of a line against those of fractions."""
    from examples.orientation import Q, R, grid, main

    naive, signs = main()
    (qx, qy), (rx, ry) = (map(Fraction, point) for point in (Q, R))
    exact = []
    for x, y in grid(len(signs)).reshape(-1, 2).tolist():
        x, y = Fraction(x), Fraction(y)
        value = (qx - x) * (ry - y) - (qy - y) * (rx - x)
        exact.append((value > 0) - (value < 0))
    wrong = [int((s.ravel() != exact).sum()) for s in (naive, signs)]
    return wrong == [2164, 0], f"{wrong[0]} and {wrong[1]} of {len(exact)}"


def correct_entries() -> tuple[bool, str]:
    """Entries of a correct product that are the exact ones, rounded."""
    rng = np.random.default_rng(1)
    a, b = (phi_matrix(rng, (1024, 1024), 0.5) for _ in range(2))
    c = hg.matmul(a, b, accuracy="correct")
    share = float((c == correctly_rounded(a, b)).mean())
    return share == 1.0, f"{100 * share:.4g} %"


def refinement() -> tuple[bool, str]:
    """Errors of both refinements in units of the last place."""
    from examples.refinement import main

    found = main()
    last = {name: column[-1] / 2.0**-52 for name, column in found.items()}
    ours, numpys = last["residual"], last["residual_of_numpy"]
    return ours <= 2 < numpys, f"{ours:.1g}, and {numpys:.1g} with NumPy's residual"


def enclosures() -> tuple[bool, str]:
    """Enclosures of random systems that miss the exact solution."""
    from experiments.systems import exact_solution

    rng = np.random.default_rng(0)
    missed = proven = 0
    for i in range(400):
        n = 2 + i % 11
        a = rng.standard_normal((n, n))
        a *= 10.0 ** rng.uniform(-4, 4, (n, 1))
        a[0] = a[1] + a[0] * 10.0 ** -(i % 16)  # conditions up to 1e15 and more
        b = rng.standard_normal((n, 1))
        try:
            solution = hg.linalg.solve(a, b)
        except hg.linalg.VerificationError:
            continue
        proven += 1
        rows = exact_solution(a, b) or []
        for x, radius, row in zip(solution.x, solution.radius, rows, strict=True):
            missed += abs(Fraction(x.item()) - row[0]) > Fraction(radius.item())
    return missed == 0 and proven > 0, f"{missed} entries missed, {proven} proven"


CLAIMS = (
    Claim(
        'NumPy returns 0 for the product of the summary, `"correct"` returns 1', summary
    ),
    Claim("has one digest, aefd79b8", digests),
    Claim("Of 4096 points near a line, the usual formula puts 2164", sides),
    Claim("100 % of the entries are the exact value rounded once", correct_entries),
    Claim("ends within 2 units of the last place", refinement),
    Claim("Of 400 systems, 0 enclosures miss the exact solution", enclosures),
)


def gpu_claims() -> Iterator[Claim]:
    """Bits and ratios on a CUDA device."""
    yield Claim("correct products have the bits of the CPU", same_bits)
    for case, dtype, accuracy in (
        ("auto", "float64", None),
        ("auto@correct", "float64", "correct"),
        ("auto", "float32", None),
    ):
        row = figures.row_of("headline_h200", case=case, dtype=dtype)
        stated = float(row["ratio_to_native"])
        yield Claim(
            f"{case} of {dtype}: {stated:.2f} times the native rate",
            lambda d=dtype, a=accuracy, r=stated: ratio(d, a, r),
        )


def same_bits() -> tuple[bool, str]:
    """A correct product of both."""
    import torch

    rng = np.random.default_rng(1)
    a, b = (phi_matrix(rng, (1024, 1024), 2.0) for _ in range(2))
    here = hg.matmul(a, b, accuracy="correct")
    x, y = (torch.from_numpy(z).cuda() for z in (a, b))
    there = hg.matmul(x, y, accuracy="correct").cpu().numpy()
    differ = int((here.view(np.int64) != there.view(np.int64)).sum())
    return differ == 0, f"{differ} entries differ"


def ratio(dtype: str, accuracy: Any, stated: float) -> tuple[bool, str]:
    """The sustained rate over that of the native product, n = 8192."""
    import torch

    from hifigemm.workshop.measuring.timing import CudaClock, Method, time_variants

    rng = np.random.default_rng(1)
    a, b = (
        torch.from_numpy(phi_matrix(rng, (8192, 8192), 0.5).astype(dtype)).cuda()
        for _ in range(2)
    )
    variants = {
        "native": lambda: torch.matmul(a, b),
        "ours": lambda: hg.matmul(a, b, accuracy=accuracy),
    }
    times = time_variants(variants, CudaClock(), Method())
    seconds = {}
    for name, found in times.items():
        assert found.sustained is not None
        seconds[name] = found.sustained.median
    here = seconds["native"] / seconds["ours"]
    return here >= 0.8 * stated, f"{here:.2f} on {torch.cuda.get_device_name()}"


def main() -> int:
    """Print the claims; the exit code."""
    claims = [*CLAIMS, *(gpu_claims() if cuda_is_usable() else ())]
    failed = 0
    for claim in claims:
        started = time.perf_counter()
        holds, found = claim.check()
        failed += not holds
        seconds = time.perf_counter() - started
        verdict = "holds" if holds else "DOES NOT HOLD"
        print(
            f"{verdict}: {claim.stated}\n    here: {found} ({seconds:.1f} s)",
            flush=True,
        )
    if not cuda_is_usable():
        print("no CUDA device: the claims about GPUs were left out")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
