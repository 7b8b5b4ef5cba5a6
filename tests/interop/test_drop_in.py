"""The drop-in: what `emulate` and `install` take, which functions they decorate, when
they warn, and programs that are compiled inside.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

import hifigemm as hg

torch = pytest.importorskip("torch")
from hifigemm.interop import policy as policies  # noqa: E402
from tests.interop.scopes import exact, scope_without_products  # noqa: E402

pytestmark = pytest.mark.usefixtures("native_afterwards")


def test_an_explicit_product_inside_is_what_was_asked_for(random):
    a, b = random(40, 70), random(70, 60)
    native = a @ b
    with scope_without_products("correct", summary=True) as products:
        assert torch.equal(hg.matmul(a, b, scheme="native"), native)
        assert torch.equal(hg.matmul(a, b, scheme=hg.Native()), native)
        words = hg.matmul(a, b, scheme=hg.Multiword("fp32", 2, 3))
    assert products.rows == []
    assert torch.equal(words, hg.matmul(a, b, scheme=hg.Multiword("fp32", 2, 3)))


def test_compiled_functions_have_the_bits_of_those_that_are_not(random):
    torch.compiler.reset()
    a, b, c = random(40, 70), random(70, 60), random(40, 60)

    def function(a, b, c):
        return torch.relu(a @ b + c) @ b.mT

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    native = compiled(a, b, c)
    with hg.emulate("correct"):
        want = exact(torch.relu(exact(a, b) + c), b.mT)
        assert torch.equal(function(a, b, c), want)
        assert torch.equal(compiled(a, b, c), want)
    assert torch.equal(compiled(a, b, c), native)
    torch.compiler.reset()


COMPILED = """
import sys, torch, hifigemm as hg
torch.manual_seed(0)
a, b, c = (torch.randn(40, 40, dtype=torch.float64) for _ in range(3))
f = lambda a, b, c: torch.relu(a @ b + c) @ b.mT
if sys.argv[1] == "emulated":
    hg.install("correct")
assert torch.allclose(torch.compile(f)(a, b, c), f(a, b, c))
d = torch.compile(f)(a, b, c)
hg.uninstall()
product = (lambda x, y: hg.matmul(x, y, accuracy="correct")) if sys.argv[1] == "emulated" else torch.matmul
x = product(torch.relu(product(a, b) + c), b.mT)
print(bool(torch.equal(d, x)))
"""


@pytest.mark.slow
def test_processes_that_share_compiled_code_have_their_own_results(tmp_path):
    """Inductor's code and the cache of graphs on disk hold no product of the other
    process.
    """
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    for way in ("native", "emulated", "native", "emulated"):
        done = subprocess.run(
            [sys.executable, "-c", COMPILED, way],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        # native bits may differ: compiled code adds C inside of the library
        if way == "emulated":
            assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "options",
    [
        {"accuracy": "fp63"},
        {"accuracy": -1},
        {"scheme": "ozaki3"},
        {"min_size": -1},
        {"min_size": 2.5},
        {"workspace": 0},
        {"workspace": "1 GB"},
    ],
    ids=str,
)
def test_wrong_policies_are_refused_at_once(options):
    with pytest.raises(hg.PlanError):
        hg.emulate(**options)
    with pytest.raises(hg.PlanError):
        hg.install(**options)
    assert policies.current_policy() is None


def generator():
    yield 1


async def coroutine():
    return 1


class CalledAsGenerator:
    def __call__(self):
        yield 1


class CalledAsCoroutine:
    async def __call__(self):
        return 1


class CalledAsStatic:
    __call__ = staticmethod(coroutine)


@pytest.mark.parametrize(
    "later",
    [
        generator,
        coroutine,
        dict,
        CalledAsGenerator(),
        CalledAsCoroutine(),
        CalledAsStatic(),
        CalledAsCoroutine().__call__,
        functools.partial(generator),
    ],
)
def test_what_runs_after_its_call_cannot_be_decorated(later):
    with pytest.raises(TypeError, match="cannot decorate"):
        hg.emulate("correct")(later)


def test_objects_that_are_called_can_be_decorated():
    class Called:
        def __call__(self, x):
            return x

    a, b = torch.randn(4, 70), torch.randn(70, 5)
    assert torch.equal(hg.emulate("correct")(torch.matmul)(a, b), exact(a, b))
    assert hg.emulate("correct", min_size=0)(lambda x: (a @ b, x))(1)[1] == 1
    with pytest.warns(UserWarning, match="no product of PyTorch"):
        assert hg.emulate("correct")(Called())(3) == 3


def test_a_scope_inside_a_compiled_function_ends_with_it(random):
    torch.compiler.reset()
    a, b = random(40, 70), random(70, 60)
    native, correct = a @ b, exact(a, b)

    def function(x, y):
        z = x * 1
        with hg.emulate("correct"):
            return z @ y

    compiled = torch.compile(function, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(a, b), correct)
        assert torch.equal(a @ b, native)
        with hg.emulate(scheme="native"):
            assert torch.equal(compiled(a, b), correct)
            assert torch.equal(a @ b, native)
    torch.compiler.reset()


def test_scopes_in_which_pytorch_multiplies_nothing_warn():
    a = torch.ones(3, 3).numpy()
    message = "no product of PyTorch was seen in this scope; products of NumPy and JAX are not reached"
    with pytest.warns(UserWarning, match=message) as found, hg.emulate("correct"):
        a @ a
    assert found[0].filename == __file__
    decorated = hg.emulate("correct")(lambda: a @ a)
    with pytest.warns(UserWarning, match=message) as found:
        decorated()
    assert found[0].filename == __file__
    with scope_without_products("correct", summary=True) as products:
        a @ a
    assert message in str(products)
    assert "hifigemm.numpy" in str(products)
    with (
        pytest.raises(hg.AccuracyError, match=message),
        hg.emulate("correct", strict=True),
    ):
        a @ a


@pytest.mark.parametrize("strict", [False, True])
def test_scopes_do_not_complain_of_products_handed_on_of_inner_scopes_and_where_an_exception_leaves(
    strict,
):
    a = torch.ones(3, 3)
    with hg.emulate("fp32", strict=strict):  # on a CPU all of these are handed on
        a @ a
    with hg.emulate("correct", strict=strict):
        a.bfloat16() @ a.bfloat16()
    with (
        hg.emulate("correct", strict=strict),
        hg.emulate(scheme="native", strict=strict),
    ):
        a @ a
    with hg.emulate("correct", strict=strict), hg.emulate("fp32", strict=strict):
        a @ a
    with hg.emulate(scheme="native", strict=strict):
        pass
    with pytest.raises(ZeroDivisionError), hg.emulate("correct", strict=strict):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), hg.emulate("correct", strict=strict):
        torch.mm(a, a[:2])

    def inside():
        with hg.emulate("correct", strict=strict):
            yield

    steps = inside()
    next(steps)
    steps.close()


WITHOUT_TORCH = """
import sys, hifigemm as hg
sys.modules["torch"] = None  # which Python takes for a module that is not there
for function in (hg.emulate, hg.install):
    try:
        function("correct")
    except ImportError as error:
        print(type(error).__name__, error)
hg.uninstall()
"""


def test_without_pytorch_a_scope_says_whose_products_it_makes():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(
            "ImportError emulate and install replace the products of PyTorch, which is not installed"
        )
        assert "pip install torch" in line
        assert "hifigemm.numpy" in line


def test_the_page_on_pytorch_runs():
    page = Path(__file__).parents[2] / "docs" / "pytorch.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    exec(compile(code, str(page), "exec"), {})


RESIDUES = hg.Ozaki2(num_moduli=15, scaling="fast")


def words_of(a, b):
    return hg.matmul(a, b, scheme=RESIDUES)


@pytest.mark.gpu
# which PyTorch captures before its own
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("way", ["drop-in", "operator"])
def test_graphs_of_compiled_functions_hold_emulated_products(way):
    """mode="reduce-overhead": the first call warms up, the second records a CUDA graph,
    later ones replay it.
    """
    torch.compiler.reset()
    a, b, c = (
        torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(3)
    )
    product = torch.matmul if way == "drop-in" else words_of

    def function(a, b, c):
        return product(torch.relu(product(a, b) + c), b.mT)

    want = words_of(torch.relu(words_of(a, b) + c), b.mT)
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    with hg.emulate(scheme=RESIDUES) if way == "drop-in" else nullcontext():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert torch.equal(compiled(a, b, c), want)
        x, y, z = (
            torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(3)
        )
        want = words_of(torch.relu(words_of(x, y) + z), y.mT)
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(x, y, z), want)
    torch.compiler.reset()


@pytest.mark.gpu
def test_products_of_the_drop_in_are_captured():
    a, b = (torch.randn(256, 256, dtype=torch.float64, device="cuda") for _ in range(2))
    want = words_of(a, b)
    with hg.emulate(scheme=RESIDUES):
        assert torch.equal(a @ b, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = a @ b
    c.zero_()
    graph.replay()
    assert torch.equal(c, want)


@pytest.mark.gpu
def test_default_scopes_never_wait_for_the_device():
    a, b = (
        torch.randn(1024, 1024, dtype=torch.float64, device="cuda") for _ in range(2)
    )
    with hg.emulate():
        a @ b
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the mode is a prototype
                torch.cuda.set_sync_debug_mode("error")
            a @ b
            (a + 0) @ (b + 0)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_count_of_digits_is_no_accuracy_of_a_scope():
    for call in (hg.emulate, hg.install):
        for accuracy in (1, 12, 15.0):
            with pytest.raises(
                hg.PlanError, match=f"accuracy={accuracy:g}: .* not a count of digits"
            ):
                call(accuracy)
