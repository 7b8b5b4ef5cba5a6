"""What Triton makes of the kernels for GPUs that are not there, kept in .cache/compiled.

compiled.py compiles, in a process each. What it found of a family is judged again
without compiling as long as the sources and Triton are the same: a run that was cut off
goes on where it ended.
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
"""Bytes of shared memory that a program may have, for each architecture."""
SAMPLED = 80, 90, 120
"""Architectures of the sample, of which each takes a part of the kernels."""
ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "compiled"
_SCRIPT = Path(__file__).with_name("compiled.py")


def kept(arch, family):
    """What `printed` returns, from the record of an earlier run if that is current."""
    import triton

    record = KEPT / f"{arch}-{family}-triton{triton.__version__}.json"
    sources = hash_of_sources()
    if record.exists():
        earlier = json.loads(record.read_text())
        if earlier["sources"] == sources:
            return earlier["lines"]
    lines = printed(arch, family)
    if hash_of_sources() != sources:  # edited meanwhile: unknown what was compiled
        return lines
    KEPT.mkdir(parents=True, exist_ok=True)
    unfinished = record.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"sources": sources, "lines": lines}))
    unfinished.replace(record)
    return lines


def hash_of_sources():
    """A hash of the sources on which the lines of compiled.py depend: its own, those of
    engines, kernels and numerics, and formats.
    """
    package = ROOT / "src" / "hifigemm"
    files = [_SCRIPT, package / "base" / "formats.py"]
    for room in ("engines", "kernels", "numerics"):
        files += sorted((package / room).rglob("*.py"))
    found = hashlib.sha256()
    for file in files:
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def printed(arch, *family):
    """The lines of compiled.py, which compiles anew."""
    done = run(arch, *family)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def run(arch, *family):
    """compiled.py, run to its end with an empty cache of Triton."""
    environment = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    }
    with TemporaryDirectory() as of_triton:
        environment["TRITON_CACHE_DIR"] = of_triton
        return subprocess.run(
            [sys.executable, "-m", "tests.kernels.compiled", str(arch), *family],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
