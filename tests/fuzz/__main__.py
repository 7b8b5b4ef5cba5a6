"""Products at random against exact integers: ``python -m tests.fuzz --seed 1 --seconds
60`` or ``... SEED INDEX``.

``--what scopes`` calls functions of PyTorch inside `hifigemm.emulate`, and ``--what
meshes`` the same for DTensors of ``--ranks`` processes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool

from threadpoolctl import threadpool_limits

from tests.fuzz.run import Counts, case_of, fuzz, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "case",
        nargs="*",
        type=int,
        metavar="SEED INDEX",
        help="one case again, with all its calls",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="per job; default: 60"
    )
    parser.add_argument("--count", type=int, help="cases in all, in place of --seconds")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--what", choices=("products", "scopes", "meshes"), default="products"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        default=[2],
        help="of a mesh, for each of its dimensions",
    )
    args = parser.parse_args()
    if args.case:
        return (
            again_in_a_scope(*args.case) if args.what == "scopes" else again(*args.case)
        )
    started = time.monotonic()
    if args.what == "meshes":
        from tests.fuzz.scopes import run_on_mesh

        counts = run_on_mesh(
            tuple(args.ranks), args.seed, 1000 if args.count is None else args.count
        )
        return summary(counts, time.monotonic() - started)
    with Pool(args.jobs) as pool:
        found = pool.map(
            partial(job, args.what, args.seed, args.seconds, args.count, args.jobs),
            range(args.jobs),
        )
    return summary(sum(found, Counter()), time.monotonic() - started)


def again_in_a_scope(seed: int, index: int) -> int:
    from tests.fuzz.scopes import draw_scope_case, fuzz_scopes

    print(draw_scope_case(seed, index))
    counts = fuzz_scopes(seed, [index], print)
    return int(any(outcome == "wrong" for *_, outcome in counts))


def again(seed: int, index: int) -> int:
    case = case_of(seed, index)
    print(case)
    found = [
        print(f"  {outcome}: {way}\n    {text}") or outcome
        for way, outcome, text in outcomes(case)
    ]
    return int("wrong" in found)


def job(
    what: str, seed: int, seconds: float, count: int | None, jobs: int, own: int
) -> Counts:
    """Every so manieth case, until the time is over or all have been drawn."""
    started = time.monotonic()

    def indices() -> Iterator[int]:
        index = own
        while time.monotonic() < started + seconds if count is None else index < count:
            yield index
            index += jobs

    run = fuzz
    if what == "scopes":
        from tests.fuzz.scopes import fuzz_scopes as run
    with threadpool_limits(1):
        return run(seed, indices(), partial(print, flush=True))


def summary(counts: Counts, seconds: float) -> int:
    """One line for each kind of product, and one for all."""
    aside = (
        "unseen" if any(outcome == "unseen" for *_, outcome in counts) else "refused"
    )
    totals = {
        key[:3]: [counts[(*key[:3], outcome)] for outcome in ("kept", aside, "wrong")]
        for key in counts
    }
    print(
        f"{'product':<20} {'dtype':<10} {'engine':<20} {'kept':>8} {aside:>8} {'wrong':>6}"
    )
    for key, numbers in sorted(totals.items()):
        print("{:<20} {:<10} {:<20} {:>8} {:>8} {:>6}".format(*key, *numbers))
    kept, others, wrong = map(sum, zip(*totals.values()))
    total = kept + others + wrong
    print(
        f"{total} products in {seconds:.0f} s, {total / seconds:.0f} a second: {others} {aside}, {wrong} wrong"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
