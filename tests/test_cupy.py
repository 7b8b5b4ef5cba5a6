"""CuPy arrays: products as they come, on CuPy's current stream, and the functions of
hifigemm.cupy.

Results are judged by those of NumPy arrays: "correct" has one answer, and a fixed
number of moduli one for every library. Where no GPU is needed, CuPy's arrays point to
memory that nobody reads.
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import hifigemm as hg
import hifigemm.numpy as hnp
from tests.conftest import PAIRS, SINGLES

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")
import hifigemm.cupy as hc  # noqa: E402
from hifigemm import libraries  # noqa: E402
from hifigemm.engines.device_array import unwrap  # noqa: E402
from hifigemm.libraries import library_of  # noqa: E402
from hifigemm.running import products  # noqa: E402
from tests.cupy_arrays import (  # noqa: E402
    CALLS,
    CORRECT,
    DTYPES,
    EXACT,
    Correct,
    check_same_bits,
    integers,
    on_device,
    operands,
    unread,
)

# Arrays come in, and go out


LAYOUTS = {
    "C": lambda x: x,
    "Fortran": lambda x: x.T.copy().T,
    "every other": lambda x: x.repeat(2, 0).repeat(3, 1)[::2, ::3],
    "negative": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "negative rows": lambda x: x[::-1].copy()[::-1],
    "part": lambda x: x.repeat(2, 1)[:, : x.shape[1]],
    "repeated row": lambda x: (
        cupy if isinstance(x, cupy.ndarray) else np
    ).broadcast_to(x[:1], x.shape),
}


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_a_product_has_the_bits_of_numpy(make_pair, options, dtype, layout):
    a, b = make_pair("phi_2", 33, 41, 29, dtype)
    of_layout = LAYOUTS[layout]
    expected = hg.matmul(of_layout(a), of_layout(b), **options)
    made, report = hg.matmul(
        *(of_layout(x) for x in on_device(a, b)), **options, return_report=True
    )
    check_same_bits(made, expected)
    assert report.engine == "torch"
    assert report.device.startswith(f"cuda:{made.device.id}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    ["cancelling", "ties", "underflowing", "overflowing", "full_range", "smallest"],
)
def test_every_library_has_the_same_bits(make_pair, name, dtype):
    assert name in PAIRS or name in SINGLES
    a, b = make_pair(name, 19, 23, 17, dtype)
    with np.errstate(all="ignore"):
        for options in EXACT.values():
            expected = hg.matmul(a, b, **options)
            check_same_bits(hg.matmul(*on_device(a, b), **options), expected)
            for device in "cpu", "cuda":
                made = (
                    hg.matmul(
                        *(torch.from_numpy(x).to(device) for x in (a, b)), **options
                    )
                    .cpu()
                    .numpy()
                )
                assert made.tobytes() == expected.tobytes(), device
            assert of_jax(a, b, options) in (None, expected.tobytes())


def of_jax(a, b, options):
    """The bytes of a product of JAX arrays on the CPU; None without JAX."""
    # most of a GPU's memory otherwise
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        return None
    with jax.enable_x64(True):
        x, y = (jax.device_put(x, jax.devices("cpu")[0]) for x in (a, b))
        return np.asarray(hg.matmul(x, y, **options)).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shapes",
    [
        ((4,), (4,)),
        ((4,), (4, 2)),
        ((3, 4), (4,)),
        ((5, 3, 4), (4, 2)),
        ((3, 4), (5, 4, 2)),
        ((5, 1, 3, 4), (2, 4, 2)),
        ((0, 4), (4, 2)),
        ((3, 0), (0, 2)),
        ((0,), (0,)),
        ((0, 3, 4), (4, 2)),
        ((2, 3, 0), (0,)),
    ],
)
@pytest.mark.parametrize("options", [{}, CORRECT], ids=["default", "correct"])
def test_shapes_are_those_of_numpy(shapes, options):
    a, b = integers(shapes[0]), integers(shapes[1], seed=1)
    check_same_bits(hg.matmul(*on_device(a, b), **options), a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, EXACT["fast"]], ids=["default", "fast"])
def test_a_product_of_a_known_layout_is_not_planned_again(monkeypatch, options):
    launch = pytest.importorskip("hifigemm.kernels.runtime.launch")
    if options and not launch.enters_directly():
        pytest.skip(
            "kernels of this Triton are launched by its JIT, which costs more than a plan"
        )
    a, b = integers((64, 96)), integers((96, 32))
    x, y = on_device(a, b)
    hg.matmul(x, y, **options)
    monkeypatch.setattr(products, "product", None)
    x += 1.0
    made = hg.matmul(x, y, **options)
    x += 1.0
    check_same_bits(made, (a + 1.0) @ b)
    check_same_bits(hg.matmul(x, y, **options), (a + 2.0) @ b)
    with cupy.cuda.Stream(non_blocking=True) as current:
        check_same_bits(hg.matmul(x, y, **options), (a + 2.0) @ b)
        current.synchronize()


@pytest.mark.gpu
def test_operands_and_results_are_not_copied():
    a, b = on_device(np.ones((256, 256)), np.eye(256))
    hg.matmul(a, b, **EXACT["fast"])
    seen = []
    library = library_of(("a", a))
    with library.active():
        for x in (a, a.T, a[3:, ::2], a[:0]):
            tensor = unwrap(library.asarray(x, "x"))
            assert tensor.shape == x.shape
            assert x.size == 0 or tensor.data_ptr() == x.data.ptr
            seen.append(library.to_native(library.asarray(x, "x")))
            assert x.size == 0 or seen[-1].data.ptr == x.data.ptr
            assert seen[-1].shape == x.shape


@pytest.mark.gpu
def test_memory_of_a_result_is_given_back_and_operands_may_go():
    a, b = on_device(integers((128, 64)), integers((64, 96)))
    expected = cupy.asnumpy(a) @ cupy.asnumpy(b)
    hg.matmul(a, b, **EXACT["fast"])
    gc.collect()
    before = torch.cuda.memory_allocated()
    c = hg.matmul(a, b, **EXACT["fast"])
    assert torch.cuda.memory_allocated() >= before + c.nbytes
    del a, b
    gc.collect()
    check_same_bits(c, expected)
    part = c[5:]
    del c
    gc.collect()
    check_same_bits(part, expected[5:])
    del part
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, CORRECT, EXACT["fast"]], ids=["default", "correct", "fast"]
)
@pytest.mark.parametrize(
    "of_layout",
    [
        lambda c: c,
        lambda c: c.T.copy().T,
        lambda c: c.repeat(2, 0)[::2],
        lambda c: c[None].repeat(2, 0)[1],
    ],
    ids=["C", "Fortran", "every other row", "part"],
)
def test_out_is_filled_and_returned(of_layout, options):
    a, b = integers((32, 48)), integers((48, 40))
    out = of_layout(cupy.full((32, 40), np.nan))
    x, y = on_device(a, b)
    assert hg.matmul(x, y, out=out, **options) is out
    check_same_bits(out, a @ b)
    assert hg.gemm(x, y, out, alpha=2.0, beta=1.0, out=out, **options) is out
    check_same_bits(out, 3.0 * (a @ b))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, CORRECT, EXACT["fast"]], ids=["default", "correct", "fast"]
)
def test_out_may_be_an_operand(options):
    a = integers((64, 64))
    for of_square in (lambda x: (x, x), lambda x: (x, x.T), lambda x: (x.T, x)):
        (x,) = on_device(a)
        hg.matmul(*of_square(x), out=x, **options)
        left, right = of_square(a)
        check_same_bits(x, left @ right)


@pytest.mark.gpu
def test_out_that_cannot_be_written_to_is_refused():
    a, b = on_device(integers((3, 4)), integers((4, 2)))
    with pytest.raises(ValueError, match=r"strides \(-16, 8\)"):
        hg.matmul(a, b, out=cupy.empty((3, 2))[::-1])
    with pytest.raises(ValueError, match=r"read-only|share memory"):
        hg.matmul(a, b, out=cupy.broadcast_to(cupy.empty((1, 2)), (3, 2)))
    with pytest.raises(TypeError, match="float32"):
        hg.matmul(a, b, out=cupy.empty((3, 2), "float32"))
    with pytest.raises(ValueError, match="shape"):
        hg.matmul(a, b, out=cupy.empty((2, 3)))
    with pytest.raises(TypeError, match="different libraries"):
        hg.matmul(a, b, out=np.empty((3, 2)))


@pytest.mark.gpu
def test_operands_of_two_libraries_and_subclasses_are_refused():
    a, b = on_device(integers((3, 4)), integers((4, 2)))
    for other in (cupy.asnumpy(b), torch.as_tensor(b)):
        with pytest.raises(TypeError, match="b is of"):
            hg.matmul(a, other)

    class Labelled(cupy.ndarray):
        pass

    with pytest.raises(TypeError, match="Labelled"):
        hg.matmul(a, b.view(Labelled))
    with pytest.raises(TypeError, match="stack them first"):
        hg.matmul([a[0], a[1]], cupy.asnumpy(b))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_wrap_around_or_are_exact(dtype):
    rng = np.random.default_rng(0)
    most = 2 if dtype == "bool" else min(np.iinfo(dtype).max, 2**31)
    a, b = (
        rng.integers(0, most, shape).astype(dtype) for shape in ((40, 60), (60, 20))
    )
    check_same_bits(hg.matmul(*on_device(a, b)), a @ b)
    if dtype in ("int8", "uint8", "int16"):
        made = hg.matmul(*on_device(a, b), result="int64")
        check_same_bits(made, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.gpu
def test_integers_beside_floats_and_narrow_floats_promote_as_in_numpy():
    a, b = integers((3, 4)), integers((4, 2))
    for left, right in (
        ("float32", "int32"),
        ("float64", "int8"),
        ("float32", "float64"),
        ("float32", "complex128"),
    ):
        x, y = a.astype(left), b.astype(right)
        check_same_bits(
            hg.matmul(*on_device(x, y), **CORRECT), hg.matmul(x, y, **CORRECT)
        )
    x, y = a.astype(np.float16), b.astype(np.float16)
    check_same_bits(
        hg.matmul(*on_device(x, y)), x.astype(np.float32) @ y.astype(np.float32)
    )


@pytest.mark.gpu
def test_bfloat16_is_read_in_place():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = integers((33, 40), "float32"), integers((40, 20), "float32")
    try:
        x, y = (cupy.asarray(x.astype(ml_dtypes.bfloat16)) for x in (a, b))
    except (TypeError, ValueError) as error:
        pytest.skip(f"this CuPy has no bfloat16: {error}")
    for options in ({}, CORRECT):
        check_same_bits(hg.matmul(x, y, **options), a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("result", ["pair", "enclosure"])
def test_pairs_and_enclosures_have_the_bits_of_numpy(make_pair, result, dtype):
    a, b = make_pair("cancelling", 9, 12, 7, dtype)
    for made, expected in zip(
        hg.matmul(*on_device(a, b), result=result),
        hg.matmul(a, b, result=result),
        strict=True,
    ):
        check_same_bits(made, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_has_the_bits_of_numpy(make_pair, dtype):
    a, b = make_pair("phi_1", 20, 24, 22, dtype)
    c = integers((20, 22), dtype)
    x, y, z = on_device(a, b, c)
    for scalars in (
        {"alpha": -1.0, "beta": 1.0},
        {"alpha": 0.5, "beta": 0.0},
        {"alpha": 0.0, "beta": 3.0},
    ):
        check_same_bits(
            hg.gemm(x, y, z, **scalars, **CORRECT),
            hg.gemm(a, b, c, **scalars, **CORRECT),
        )
    made = hg.gemm(
        y, x, trans_a="C", trans_b="T", alpha=2.0, scheme=hg.Ozaki2(num_moduli=14)
    )
    check_same_bits(
        made,
        hg.gemm(
            b, a, trans_a="C", trans_b="T", alpha=2.0, scheme=hg.Ozaki2(num_moduli=14)
        ),
    )
    assert hg.gemm(x[::-1], y, z, beta=cupy.float64(2.0), **CORRECT).shape == (20, 22)


@pytest.mark.gpu
def test_plans_and_prepared_operands_serve_cupy():
    a, b = integers((48, 64)), integers((64, 32))
    x, y = on_device(a, b)
    plan = hg.make_plan(x, y, scheme=hg.Ozaki2(num_moduli=14, scaling="fast"))
    prepared = hg.prepare(y, "right", plan=plan)
    expected = a @ b
    check_same_bits(hg.matmul(x, y, plan=plan), expected)
    y[...] = 0
    check_same_bits(hg.matmul(x, prepared), expected)
    assert type(hg.matmul(hg.prepare(x, "left", plan=plan), prepared)) is cupy.ndarray
    with pytest.raises(TypeError, match="different libraries"):
        hg.matmul(a, prepared)


@pytest.mark.gpu
def test_an_inf_and_a_nan_go_where_numpy_has_them():
    a, b = integers((8, 8)), integers((8, 8))
    a[2, 3], b[4, 5] = np.inf, np.nan
    with np.errstate(all="ignore"):
        expected = hg.matmul(a, b, **CORRECT)
    made = hg.matmul(*on_device(a, b), **CORRECT)
    assert np.array_equal(cupy.asnumpy(made), expected, equal_nan=True)


# Streams and devices


DELAY = r"""
extern "C" __global__ void delay(double *x, long long cycles, double value) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    if (threadIdx.x == 0) x[0] = value;
}
"""
STREAMS = {
    "default": lambda: cupy.cuda.Stream.null,
    "per thread": lambda: cupy.cuda.Stream.ptds,
    "blocking": cupy.cuda.Stream,
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
    "of PyTorch": lambda: cupy.cuda.ExternalStream(torch.cuda.Stream().cuda_stream),
}


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")
@pytest.mark.gpu
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("options", [{}, EXACT["fast"]], ids=["default", "fast"])
def test_products_take_their_turn_on_the_current_stream_of_cupy(stream, options):
    """An operand that is written late in the stream is read after that, and the call
    does not wait for it.
    """
    delay = cupy.RawKernel(DELAY, "delay")
    a, b = on_device(np.zeros((160, 160)), np.eye(160))
    hg.matmul(a, b, **options)
    cupy.cuda.Device().synchronize()
    current = STREAMS[stream]()
    with current:
        hg.matmul(a, b, **options)  # cuBLAS makes a workspace for the stream
        current.synchronize()
        delay((1,), (1,), (a, 2**30, 7.0))  # about half a second
        c = hg.matmul(a, b, **options)
        waited = current.done
        d = c + 1.0
    current.synchronize()
    assert not waited
    assert (float(c[0, 0]), float(d[0, 0])) == (7.0, 8.0)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.gpu
def test_copies_of_layouts_without_a_tensor_are_made_on_the_current_stream():
    delay = cupy.RawKernel(DELAY, "delay")
    a, b = on_device(np.zeros((160, 160)), np.eye(160))
    options = EXACT["fast"]
    hg.gemm(a[::-1], b, **options)
    with cupy.cuda.Stream(non_blocking=True) as current:
        delay((1,), (1,), (a, 2**30, 7.0))
        made = [
            hg.matmul(a[::-1], b, **options),
            hg.gemm(a[::-1], b, a, alpha=3.0, beta=-1.0, **options),
        ]
        plan = hg.make_plan(a, b, **options)
        made.append(hg.matmul(hg.prepare(a[::-1], "left", plan=plan), b))
        made.append(hnp.einsum("ij,jk->ki", a[::-1], b, **options).T)
    current.synchronize()
    assert [float(x[-1, 0]) for x in made] == [7.0, 21.0, 7.0, 7.0]
    assert float(made[1][0, 0]) == -7.0


@pytest.mark.gpu
def test_a_report_is_read_after_the_product_whichever_stream_is_current():
    delay = cupy.RawKernel(DELAY, "delay")
    a, b = on_device(integers((256, 256)), integers((256, 256)))
    options = {"scheme": "ozaki2", "return_report": True}
    expected = hg.matmul(a, b, **options)[1].bound
    with cupy.cuda.Stream(non_blocking=True) as current:
        hg.matmul(a, b, **options)
        current.synchronize()
        delay((1,), (1,), (a, 2**30, float(a[0, 0])))
        report = hg.matmul(a, b, **options)[1]
    assert report.bound == expected


@pytest.mark.gpu
def test_a_result_that_is_dropped_leaves_its_memory_to_its_stream():
    """What PyTorch reuses of a result goes to later work of the same stream, behind
    what still reads it.
    """
    a, b = on_device(integers((512, 512)), np.eye(512))
    expected = cupy.asnumpy(a).sum()
    with cupy.cuda.Stream(non_blocking=True) as current:
        sums = []
        for _ in range(20):
            c = hg.matmul(a, b, **EXACT["fast"])
            sums.append(c.sum())
            del c
    current.synchronize()
    assert [float(x) for x in sums] == [expected] * 20


@pytest.mark.multigpu
def test_products_go_to_the_device_of_the_operands():
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = integers((64, 64)), integers((64, 64))
    with cupy.cuda.Device(1):
        x, y = on_device(a, b)
    with cupy.cuda.Device(0):
        for options in EXACT.values():
            made = hg.matmul(x[::-1], y, **options)
            assert made.device.id == 1
            check_same_bits(made, a[::-1] @ b)
        assert cupy.cuda.Device().id == 0
        assert hg.matmul(x[:0], y).device.id == 1
        with pytest.raises(ValueError, match="cuda:0"):
            hg.matmul(x, cupy.asarray(b))


# Functions


ONLY_HERE = {
    "einsum of one": lambda xp, a, b, v: xp.einsum("ij->j", a),
    "einsum of a diagonal": lambda xp, a, b, v: xp.einsum("ii->i", a[:, :4]),
    "einsum of two dtypes": lambda xp, a, b, v: xp.einsum(
        "ij,jk->ik", a, b.real.astype("float32")
    ),
    "einsum beside integers": lambda xp, a, b, v: xp.einsum(
        "ij,jk->ik", a, b.real.astype("int32")
    ),
    "outer": lambda xp, a, b, v: xp.outer(v, v),
    "vecdot": lambda xp, a, b, v: xp.vecdot(a, b.T),
    "matvec": lambda xp, a, b, v: xp.matvec(a, v),
    "vecmat": lambda xp, a, b, v: xp.vecmat(v, b),
    "multi_dot": lambda xp, a, b, v: xp.multi_dot([a, b]),
    "matrix_power": lambda xp, a, b, v: xp.matrix_power(a[:, :4], 2),
    "matrix_power 0": lambda xp, a, b, v: xp.matrix_power(a[:, :4], 0),
    "matrix_power 1": lambda xp, a, b, v: xp.matrix_power(a[:, :4], 1),
    "syrk": lambda xp, a, b, v: xp.syrk(a),
    "herk": lambda xp, a, b, v: xp.herk(a, "C"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", (CALLS | ONLY_HERE).values(), ids=CALLS | ONLY_HERE)
def test_functions_have_the_bits_of_numpy(make_pair, call, dtype):
    arrays = operands(make_pair, dtype)
    check_same_bits(call(Correct(), *on_device(*arrays)), call(Correct(), *arrays))


@pytest.mark.gpu
def test_functions_fill_out_and_report():
    a, b = integers((4, 6)), integers((6, 4))
    x, y = on_device(a, b)
    out = cupy.empty((4, 4))
    made, report = hc.einsum("ij,jk->ki", x, y, out=out, **CORRECT, return_report=True)
    assert made is out
    check_same_bits(out, (a @ b).T)
    assert report.correct
    made, chain = hc.multi_dot([x, y, x], return_report=True)
    check_same_bits(made, a @ b @ a)
    assert 0 < chain.bound < 1e-13
    assert hc.dot(x, y, out) is out
    check_same_bits(out, a @ b)


# Without a GPU, or without PyTorch


@pytest.mark.parametrize("missing", ["torch", "its CUDA"])
def test_pytorch_is_asked_for_by_name(monkeypatch, missing):
    if missing == "torch":
        monkeypatch.setattr(libraries.library, "find_spec", lambda _: None)
    else:
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    match = "install torch" if missing == "torch" else "built without CUDA"
    with pytest.raises(TypeError, match=f"a is an array of CuPy on cuda:0.*{match}"):
        hg.matmul(unread((2, 3)), unread((3, 2)))
    with pytest.raises(TypeError, match=match):
        hc.einsum("ij,jk", unread((2, 3)), unread((3, 2)))
