"""Mutation testing: change the sources a little, one place at a time, and see whether
the quick tests notice.

Usage: python tools/mutate.py src/hifigemm/numerics [--count 200] [--seed 1] [--jobs 2]
[--csv .cache/mutants.csv]

A mutant survives when all quick tests that touch its lines pass, nearest and shortest
tests first, until --budget seconds of processor time are spent. A test that takes far
longer than usual counts as failed ("too slow: ..."). What cannot be told from the
source stands in equivalent_mutants.csv with the reason ("*" for every change of a
statement); it is counted apart and not run. Which test touches which line is measured
once, in minutes, and kept in .cache. Needs Linux.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import pickle
import random
import re
import resource
import signal
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import hypothesis
import pytest
from mutants import Mutant, mutants_of, put

CALLS = 100
"""Calls of a function that are traced in a test."""
ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
CACHE = ROOT / ".cache" / "touched.pickle"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.csv"
QUICK = [
    "-q",
    "-s",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "-m",
    "not gpu and not multigpu and not slow",
]
QUICK += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


def live_functions() -> dict[tuple[str, int, str], list[types.FunctionType]]:
    """The functions of the package by file, first line and name."""
    found = defaultdict(list)
    for f in gc.get_objects():
        if isinstance(f, types.FunctionType) and f.__code__.co_filename.startswith(
            str(SRC)
        ):
            found[
                f.__code__.co_filename, f.__code__.co_firstlineno, f.__code__.co_name
            ].append(f)
    return found


def install(
    code: types.CodeType,
    functions: dict[tuple[str, int, str], list[types.FunctionType]],
) -> None:
    """Give live functions their code as it stands in the changed module."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for f in functions.get(
                (inner.co_filename, inner.co_firstlineno, inner.co_name), ()
            ):
                f.__code__ = inner
            install(inner, functions)


class Loader(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Imports one module from changed code."""

    code: types.CodeType

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        return (
            importlib.util.spec_from_file_location(name, self.path, loader=self)
            if name == self.name
            else None
        )

    def get_code(self, name):  # type: ignore[no-untyped-def]
        return self.code


class Runner:
    """A pytest plugin that runs `work` on the collected tests, and knows which of them
    failed.
    """

    def __init__(self, work: Callable[[Runner, list[pytest.Item]], None]) -> None:
        self.work, self.failed = work, False

    def pytest_configure(self) -> None:
        # without shrinking
        generate = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "mutants", hypothesis.settings(), phases=generate
        )
        hypothesis.settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        self.work(self, session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def fails(self, item: pytest.Item, after: pytest.Item | None) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        return self.failed


def caches() -> list[_lru_cache_wrapper]:
    """What the package remembers of earlier calls."""
    found = (x for x in gc.get_objects() if isinstance(x, _lru_cache_wrapper))
    return [x for x in found if str(x.__module__).startswith("hifigemm")]


class Touched(NamedTuple):
    """What a test runs through; files are named from the root."""

    seconds: float
    # by file of the package; None where it fails anyway, and so judges nothing
    lines: dict[str, set[int]] | None
    digests: dict[str, str]  # of these files and of the test's own


def digest(file: str) -> str:
    return (
        hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
        if (ROOT / file).exists()
        else ""
    )


def trace(runner: Runner, items: list[pytest.Item]) -> dict[str, tuple]:
    """Run the tests with a line tracer, for the first calls of each function."""
    found, package = {}, f"{SRC}{os.sep}"
    lines: dict[str, set[int]] = defaultdict(set)
    calls: Counter[types.CodeType] = Counter()
    remembered = caches()

    def on_call(frame: types.FrameType, event: str, arg: object) -> Callable | None:
        code = frame.f_code
        if not code.co_filename.startswith(package) or calls[code] == CALLS:
            return None
        calls[code] += 1
        add = lines[code.co_filename].add

        def on_line(frame: types.FrameType, event: str, arg: object) -> Callable:
            add(frame.f_lineno)
            return on_line

        return on_line(frame, event, arg)

    for item, after in itertools.zip_longest(items, items[1:]):
        for cache in remembered:
            cache.cache_clear()
        lines.clear()
        calls.clear()
        start = time.process_time()
        threading.settrace(on_call)
        sys.settrace(on_call)
        fails = runner.fails(item, after)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seconds = time.process_time() - start
        named = {os.path.relpath(f, ROOT): x for f, x in lines.items()}
        digests = {
            file: digest(file) for file in (*named, os.path.relpath(item.path, ROOT))
        }
        found[item.nodeid] = (seconds, None if fails else named, digests)
    return found


def silent_child(work: Callable[[], int]) -> int:
    """Start work() in a forked process that exits with its result."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os._exit(work())
    return pid


def touched_by(runner: Runner, items: list[pytest.Item]) -> dict[str, Touched]:
    """`trace`, from the cache where neither the test's file nor the sources that it
    runs through have changed.
    """
    known = pickle.loads(CACHE.read_bytes()) if CACHE.exists() else {}
    now = {
        file: digest(file)
        for file in {file for *_, digests in known.values() for file in digests}
    }
    fresh = {
        name
        for name, (*_, digests) in known.items()
        if all(now[file] == d for file, d in digests.items())
    }
    stale = [item for item in items if item.nodeid not in fresh]
    CACHE.parent.mkdir(exist_ok=True)
    for i in range(0, len(stale), 200):
        print(f"tracing tests: {i} of {len(stale)} done", flush=True)
        part = stale[i : i + 200]
        os.waitpid(
            silent_child(
                lambda p=part, k=known: (
                    CACHE.write_bytes(pickle.dumps(k | trace(runner, p))) * 0
                )
            ),
            0,
        )
        known = pickle.loads(CACHE.read_bytes())
    return {item.nodeid: Touched(*known[item.nodeid]) for item in items}


class Session:
    """Mutants of some files, and the tests that judge them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.trees, self.code = args, {}, {}
        self.mutants: dict[Mutant, Path] = {}
        for given in args.paths:
            for path in sorted(given.rglob("*.py")) if given.is_dir() else [given]:
                path = path.resolve()
                self.trees[path] = ast.parse(path.read_text())
                self.mutants |= dict.fromkeys(
                    mutants_of(
                        self.trees[path],
                        ".".join(path.relative_to(SRC).with_suffix("").parts),
                    ),
                    path,
                )

    def tests_for(self, mutant: Mutant) -> list[str]:
        """The tests that touch a mutant, nearest first."""
        path = self.mutants[mutant]
        lines = {os.path.relpath(path, ROOT): set(mutant.lines)}
        if mutant.names is not None:  # a constant is touched where its name stands
            word = re.compile(rf"\b({'|'.join(mutant.names) or '$.'})\b")
            for file in SRC.rglob("*.py"):
                lines[os.path.relpath(file, ROOT)] = {
                    i
                    for i, x in enumerate(file.read_text().splitlines(), 1)
                    if word.search(x)
                }
        own, found = f"test_{path.stem}.py", []
        for test, x in self.touched.items():
            is_own = mutant.names is not None and own in test
            if x.lines is not None and (
                is_own
                or any(lines.get(file, set()) & at for file, at in x.lines.items())
            ):
                found.append(test)
        found.sort(key=lambda t: (own not in t, self.touched[t].seconds))
        seconds = itertools.accumulate(self.touched[t].seconds for t in found)
        return [
            t
            for t, x in zip(found, seconds, strict=True)
            if x - self.touched[t].seconds <= 3 * self.args.budget
        ]

    def judge(self, mutant: Mutant, tests: list[str], log: int) -> int:
        """Change the source in this process and run the tests; 1 as soon as one
        fails.
        """
        if not tests:
            return 0
        path = self.mutants[mutant]
        put(mutant.place, mutant.new)
        tree = ast.fix_missing_locations(self.trees[path])
        code = compile(tree, str(path), "exec")
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(
            resource.RLIMIT_AS,
            (pages * resource.getpagesize() + 2**32, resource.RLIM_INFINITY),
        )
        end = time.process_time() + self.args.budget
        status = 0

        def run(runner: Runner, items: list[pytest.Item]) -> None:
            nonlocal status
            by_name = {item.nodeid: item for item in items}
            here = [(i, name) for i, name in enumerate(tests) if name in by_name]
            for (i, name), after in itertools.zip_longest(here, here[1:]):
                os.write(log, i.to_bytes(4, "little"))
                signal.setitimer(signal.ITIMER_PROF, 2 + 5 * self.touched[name].seconds)
                signal.setitimer(
                    signal.ITIMER_REAL, 60 + 50 * self.touched[name].seconds
                )
                status = int(
                    runner.fails(by_name[name], by_name[after[1]] if after else None)
                )
                if status or time.process_time() > end:
                    return

        if mutant.names is None:
            install(code, self.functions)
            for cache in self.caches:
                cache.cache_clear()
            run(self.runner, list(self.items.values()))
            return status
        for name in [
            name
            for name in sys.modules
            if name.startswith(("hifigemm", "tests", "conftest"))
        ]:
            del sys.modules[name]
        loader = Loader(mutant.module, str(path))
        loader.code = code
        sys.meta_path.insert(0, loader)
        for file in dict.fromkeys(name.split("::")[0] for name in tests):
            if pytest.main([*QUICK, file], plugins=[Runner(run)]) or status:
                return 1
            if time.process_time() > end:
                break
        return 0

    def chosen(self) -> list[Mutant]:
        """All mutants or a sample with a share of each module, those again that
        survived where --again is given.
        """
        if self.args.again:
            with self.args.again.open() as file:
                alive = {
                    (x["module"], x["statement"], x["change"])
                    for x in csv.DictReader(file)
                    if not x["killed by"]
                }
            return [m for m in self.mutants if m.key in alive]
        chance = random.Random(self.args.seed)
        share = self.args.count / len(self.mutants) if self.args.count else 1.0
        if share >= 1.0:
            return list(self.mutants)
        by_module: dict[str, list[Mutant]] = defaultdict(list)
        for m in self.mutants:
            by_module[m.module].append(m)
        return [
            m
            for group in by_module.values()
            for m in chance.sample(group, round(share * len(group)))
        ]

    def run(self, runner: Runner, items: list[pytest.Item]) -> None:
        """Judge the mutants, --jobs at a time, and report."""
        self.runner, self.items = runner, {item.nodeid: item for item in items}
        self.touched = touched_by(runner, items)
        self.functions, self.caches = live_functions(), caches()
        gc.freeze()  # what a child does not visit stays shared
        is_equivalent = accepted()
        chosen = self.chosen()[::-1]
        queue, running = [m for m in chosen if not is_equivalent(m)], {}
        results = {m: "" for m in chosen if is_equivalent(m)}
        self.args.csv.parent.mkdir(exist_ok=True, parents=True)
        with self.args.csv.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(
                [
                    "module",
                    "line",
                    "statement",
                    "change",
                    "killed by",
                    "tests",
                    "seconds",
                ]
            )
            while queue or running:
                while queue and len(running) < self.args.jobs:
                    mutant = queue.pop()
                    tests, (out, log) = self.tests_for(mutant), os.pipe()
                    pid = silent_child(
                        lambda m=mutant, t=tests, log=log: self.judge(m, t, log)
                    )
                    os.close(log)
                    running[pid] = mutant, tests, out, time.monotonic()
                pid, status = os.wait()
                mutant, tests, out, start = running.pop(pid)
                with os.fdopen(out, "rb") as pipe:
                    at = pipe.read()[-4:]
                last = tests[int.from_bytes(at, "little")] if at else "import"
                killed = (
                    ""
                    if status == 0
                    else last
                    if os.WIFEXITED(status)
                    else f"too slow: {last}"
                )
                results[mutant] = killed
                seconds = f"{time.monotonic() - start:.1f}"
                table.writerow([*mutant[:4], killed, len(tests), seconds])
                file.flush()
                if not killed:
                    print(
                        f"{mutant.module}:{mutant.line}: {mutant.change}  ({len(tests)} tests, {seconds} s)",
                        flush=True,
                    )
        report(results)


def accepted() -> Callable[[Mutant], bool]:
    """Whether a mutant stands in the table of those that cannot be told from the
    source.
    """
    with EQUIVALENT.open(newline="") as file:
        keys = {
            (x["module"], x["statement"], x["change"]) for x in csv.DictReader(file)
        }
    return lambda m: m.key in keys or (*m.key[:2], "*") in keys


def report(results: dict[Mutant, str]) -> None:
    """Print the share of killed mutants by module; equivalent ones that survive do not
    count.
    """
    is_equivalent, counts = accepted(), defaultdict(Counter)
    for mutant, killed in results.items():
        kind = (
            ("slow" if killed.startswith("too slow") else "killed")
            if killed
            else "survived"
        )
        for name in (mutant.module, "all"):
            counts[name][
                "equivalent" if not killed and is_equivalent(mutant) else kind
            ] += 1
    print(
        f"{'module':44}{'mutants':>9}{'killed':>9}{'by time':>9}{'equivalent':>12}{'survived':>10}{'rate':>9}"
    )
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        c = counts[name]
        done, real = c["killed"] + c["slow"], c.total() - c["equivalent"]
        columns = (
            f"{c.total():9}{done:9}{c['slow']:9}{c['equivalent']:12}{c['survived']:10}"
        )
        print(f"{name:44}{columns}{100 * done / max(real, 1):8.1f}%")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, help="modules or folders under src"
    )
    parser.add_argument(
        "--count",
        type=int,
        help="about so many mutants, a share of each module; all by default",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument(
        "--budget",
        type=float,
        default=60.0,
        help="processor seconds of tests for a mutant",
    )
    parser.add_argument(
        "--tests", nargs="+", default=["tests"], help="tests that judge; all by default"
    )
    parser.add_argument(
        "--csv",
        type=Path,
        default=ROOT / ".cache" / "mutants.csv",
        help="where results go",
    )
    parser.add_argument(
        "--again", type=Path, help="CSV file of a run whose survivors are judged again"
    )
    session = Session(parser.parse_args())
    os.chdir(ROOT)
    return int(
        pytest.main([*QUICK, *session.args.tests], plugins=[Runner(session.run)])
    )


if __name__ == "__main__":
    sys.path.insert(0, str(SRC))
    sys.exit(main())
