"""What compilers make of the kernels, on GPUs that are not there: spills, instructions,
waits.

A sample of the kernels is compiled for three architectures; compiled.py says what it
leaves out. With `--arch 90` (`make test-compiled ARCH=90`) all kernels are compiled for
that architecture. What was found of a family is kept in .cache/compiled, and judged
again without compiling as long as the sources and Triton are the same: a run that was
cut off goes on where it ended.
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
SAMPLED = 80, 90, 120
SCRIPT = Path(__file__).with_name("compiled.py")
ROOT = Path(__file__).parents[3]
KEPT = ROOT / ".cache" / "compiled"


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.getoption("arch")
    for arch in chosen:
        if arch not in SHARED:
            raise pytest.UsageError(f"--arch {arch} is none of {[*SHARED]}")
    metafunc.parametrize("arch", chosen or SAMPLED)


@pytest.fixture
def is_whole(request):
    """True if all kernels are compiled, and not a sample."""
    return bool(request.config.getoption("arch"))


@pytest.fixture
def compiled(arch, is_whole):
    """compiled(family): the lines of compiled.py for the kernels of a family."""

    def find(family):
        if is_whole:
            found = found_before(arch, family)
        else:
            found = [line for line in printed(arch) if line["family"] == family]
        assert found
        for line in found:
            assert line["shared"] <= SHARED[arch], line
            # The driver launches the kernel without Triton: see cuda_driver.py.
            assert line["enters directly"], line
        return found

    return find


def found_before(arch, family):
    """What `printed` returns, from the record of an earlier run if that is current."""
    record = KEPT / f"{arch}-{family}-triton{triton.__version__}.json"
    sources = hash_of_sources()
    if record.exists():
        kept = json.loads(record.read_text())
        if kept["sources"] == sources:
            return kept["lines"]
    lines = printed(arch, family)
    KEPT.mkdir(parents=True, exist_ok=True)
    unfinished = record.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"sources": sources, "lines": lines}))
    unfinished.replace(record)
    return lines


@cache
def hash_of_sources():
    """A hash of what compiled.py prints for one Triton depends on: it imports kernels
    and numerics, and both what is in formats.
    """
    package = ROOT / "src" / "hifigemm"
    files = [SCRIPT, package / "formats.py"]
    for room in ("engines", "numerics"):
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
            [sys.executable, SCRIPT, str(arch), *family],
            env=environment,
            capture_output=True,
            text=True,
        )


WIDE_STORES = {
    "float64": "st.global.v2.b64",
    "float32": "st.global.v4.b32",
    "complex128": "st.global.v2.b64",
    "complex64": "st.global.v2.b32",
}


def spills(line):
    return line["STL"] + line["LDL"]


def test_products_of_residues(arch, compiled):
    for line in compiled("residues"):
        # On sm_100 one tile of slices stores a word, and loads it once.
        assert spills(line) <= (
            2 if arch == 100 and "64x128x128" in line["case"] else 0
        ), line
        # Three waits for each of three widths in each of two consumers; more would mean
        # that wgmma is serialised.
        assert line["WARPGROUP.DEPBAR"] <= 18, line


def test_reconstruction(compiled):
    for line in compiled("reconstruction"):
        if line["kernel"] != "crt_kernel":  # products of halves are made as well
            assert spills(line) == 0, line
            continue
        # A few of the 168 planes of 28 moduli wait in memory, and words of products of
        # halves: more programs fit then.
        many = line["case"].startswith("28 ") or line["case"].endswith(
            "float64 of halves"
        )
        assert spills(line) <= (64 if many else 0), line
        assert line["dot products"] > 0, line
        # Complex entries are stored whole, real ones 16 bytes at a time.
        (store,) = (
            wide for dtype, wide in WIDE_STORES.items() if dtype in line["case"]
        )
        assert line[store] > 0, line


def test_residues_of_operands(arch, compiled):
    for line in compiled("scaling"):
        # Of the 64 words behind the pairs of residues of a thread, a few are fetched
        # anew for each pair: up to sm_89 with Triton 3.9 more than elsewhere.
        limit = 112 if arch < 90 else 48
        assert spills(line) <= (limit if "complex" in line["case"] else 0), line
        # more words than DP4A takes
        many = "complex" in line["case"] and "moduli 20" in line["case"]
        assert (line["dot products"] > 0) != (
            many or line["kernel"] == "_clear_kernel"
        ), line
        assert line["conversions"] == 0, line


def test_error_ratios(arch, compiled, is_whole):
    found = [line for line in compiled("ratios") if "ratio" in line["kernel"]]
    # A ratio of some terms and one of all, with a predicate and without, are launches of
    # one kernel: it differs with the type, the tile and the sides that are given.
    if is_whole:
        assert len(found) == len({line["case"] for line in found}) == 5
    assert any(line["kernel"] == "_ratio_kernel" for line in found) == (arch == 90)
    for line in found:
        # Triton 3.9 converts all sums of a tile before it compares any, and so keeps
        # half of them in memory, once; on sm_100 a few of a complex one.
        assert spills(line) <= {90: 320, 100: 40}.get(arch, 0), line
        if line["kernel"] == "_ratio_kernel":
            # Three waits in each of two consumers; more would mean that wgmma is
            # serialised.
            assert line["WARPGROUP.DEPBAR"] == 6, line


def test_scaling_along_k(compiled):
    for line in compiled("inner"):
        # Factors of terms are exchanged between threads, and no tiles of entries, which
        # take 32 KB.
        if line["kernel"] in ("scaled_residues_kernel", "required_bits_kernel"):
            assert line["shared"] <= 16384, line
        assert spills(line) <= 32, line


def test_required_bits(compiled):
    for line in compiled("bits"):
        # Triton 3.9 keeps a few words of a look that stops early in memory, once, where
        # 128 registers are the most.
        assert spills(line) <= 8, line
        real = "complex" not in line["case"] and line["kernel"] != "_clear_kernel"
        assert line["LDG.E.128"] > 0 or not real, line


def test_products_of_words(compiled):
    for line in compiled("words"):
        if line["kernel"] == "double_words_kernel":
            # A few addresses of tiles at an edge.
            assert spills(line) <= 24, line
        if line["kernel"] == "_add_spans_kernel":
            assert spills(line) == 0, line
        if "blocks" not in line:
            continue
        # Two registers, once; of the 256 columns of a wide tile one half waits in
        # memory while the other one is scaled.
        is_wide = "hopper 128x256" in line["case"]
        # Two sums of this tile, and three of TF32 words of it in flight, fill all
        # registers of the plain kernel.
        is_full = "triton 128x128x32" in line["case"] and "blocked" in line["case"]
        assert spills(line) <= (400 if is_wide else 10 if is_full else 4), line
        # The product of each block starts from zero unless sums are chained; so do
        # chains of pairs, in the plain kernel from sums that are cleared before.
        is_hopper = "hopper" in line["case"]
        starts = 0 if "chained" in line["case"] else line["blocks"]
        if is_hopper or "pairs" not in line["case"]:
            assert line["restarts"] == starts, line
        if is_hopper:
            assert line["moves"] == line["spills in loops"] == 0, line
            # At most three waits in each of two consumers; more would mean that wgmma is
            # serialised.
            assert line["WARPGROUP.DEPBAR"] <= 6, line


def test_words_along_k(compiled):
    for line in compiled("words_along_k"):
        assert spills(line) == 0, line
        # Three programs share the registers of a multiprocessor at least.
        assert line["registers"] <= 180, line


def test_products_of_slices(arch, compiled, is_whole):
    found = compiled("slices")
    if is_whole:
        assert len(found) >= 8
        assert any(line["kernel"] == "_hopper_kernel" for line in found) == (arch == 90)
    for line in found:
        # Triton 3.9 keeps places of a tile in memory from before its products to the
        # end of them.
        limit = {100: 48, 120: 4}.get(arch, 0)
        # Addresses of INT64 sums, once in a window of FP64 products, and a few words of
        # twelve slices of float32.
        if line["case"].startswith("correct"):
            is_double = (
                line["kernel"] == "slice_gemm_kernel" and "float64" in line["case"]
            )
            limit = max(limit, 320 if is_double else 24)
        assert spills(line) <= limit, line
        # As for residues, whose kernel these are.
        assert line["WARPGROUP.DEPBAR"] <= 18, line


def test_counts_of_slices(compiled):
    for line in compiled("counts"):
        # Triton 3.9 keeps a few words of the sums of magnitudes in memory.
        assert spills(line) <= 16, line


def test_native_products(arch, compiled):
    for line in compiled("native"):
        product = line["kernel"] == "_native_kernel" and line["case"] != "float32"
        # FP64 tensor cores of Blackwell: Triton 3.9 takes them, 3.6 does not
        if not (product and arch == 100):
            assert (line["DMMA"] > 0) == (product and arch in (80, 90)), line
        even = line["case"].endswith("n 256")
        if not product or (line["DMMA"] and even):
            assert spills(line) == 0, line
        if product and even and "float64" in line["case"]:
            assert line["copies"] == ["0x10"], line
        assert "i32" not in line["doubled"], line


def test_rounded_sums(compiled):
    for line in compiled("sums"):
        # What is made again, rarely, holds three words and takes all registers there
        # are: a few words wait in memory, once for each tile.
        limit = 48 if line["kernel"] == "_rest_kernel" else 4
        assert spills(line) <= limit, line


def test_thin_products(compiled):
    for line in compiled("thin_products"):
        assert spills(line) == 0, line
        assert line["LDG.E.128"] > 0, line


def test_equilibration(compiled):
    for line in compiled("equilibration"):
        assert spills(line) == 0, line
