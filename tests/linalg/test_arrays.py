"""The proofs on device arrays, which are tensors: of the CPU here, through the same
functions as those of a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

from hifigemm import linalg
from hifigemm.linalg import arguments, arrays, certificate
from hifigemm.linalg.certificate import prove
from tests.linalg.worst_arithmetic import UNIT, exact_matmul, fractions
from tests.linalg.worst_arithmetic import moduli as exact_moduli

torch = pytest.importorskip("torch")
pytest.importorskip("flint")

from experiments.linalg_enclosures import (  # noqa: E402
    is_beyond_range,
    matrices,
    wrong,
)
from experiments.linalg_uncertain import FAMILIES as BOXES  # noqa: E402
from experiments.linalg_uncertain import Counts  # noqa: E402
from experiments.spectra import (  # noqa: E402
    MATRICES,
    Spectrum,
    hermitian,
    rectangular,
)
from experiments.systems import (  # noqa: E402
    FAMILIES,
    SPARSE,
    exact_parts,
    misses,
    of_condition,
)
from hifigemm.engines import device_ops  # noqa: E402
from hifigemm.engines.device_array import DeviceArray, unwrap, wrap  # noqa: E402
from hifigemm.libraries import TorchLibrary  # noqa: E402
from hifigemm.numerics.equilibration import MatrixInScale  # noqa: E402
from tests.linalg.exact_least_squares import (  # noqa: E402
    exact_determinant,
    exact_lstsq,
    nearly_dependent,
)

ALL = {**FAMILIES, **SPARSE}
MAY_FAIL = {"near singular by an ulp", "exactly singular"}
"""Families with matrices that are singular."""


@pytest.fixture
def on_device(monkeypatch):
    """Tensors of the CPU are computed with as those of a GPU are; all matrices count as
    large, and right sides of up to 64 entries as few.
    """
    to_native = TorchLibrary.to_native

    def unwrapped(library, x):
        return unwrap(x) if isinstance(x, DeviceArray) else to_native(library, x)

    monkeypatch.setattr(arguments, "_any_array", lambda x, name, library: wrap(x))
    monkeypatch.setattr(arguments, "is_small", lambda x: False)
    monkeypatch.setattr(arrays, "MOST_ON_HOST", 64)
    monkeypatch.setattr(TorchLibrary, "to_native", unwrapped)


def solved(solve, *operands, **options):
    """x and radius of tensors as arrays of NumPy."""
    solution = solve(*(torch.from_numpy(x.copy()) for x in operands), **options)
    return solution.x.numpy(), solution.radius.numpy()


@pytest.mark.parametrize("family", ALL)
def test_no_enclosure_misses_and_correct_solutions_are_the_nearest(on_device, family):
    rng = np.random.default_rng([17, 0])
    for a, b in matrices(*ALL[family](rng)):
        parts = exact_parts(a, b)
        may_fail = parts is None or is_beyond_range(parts, a.dtype)
        for accuracy in (None, "correct"):
            try:
                x, radius = solved(linalg.solve, a, b, accuracy=accuracy)
            except linalg.VerificationError:
                assert may_fail or family in MAY_FAIL
                continue
            assert parts is not None, "a singular matrix was proven nonsingular"
            assert misses(x, radius, parts) == []
            assert x.dtype == np.result_type(a, b)
            assert radius.dtype == x.real.dtype
            assert accuracy is None or wrong(x, parts) == 0


@pytest.mark.parametrize("family", BOXES)
def test_radii_of_uncertain_data_hold_at_all_corners(on_device, monkeypatch, family):
    boxes = [BOXES[family](np.random.default_rng([17, seed])) for seed in range(3)]
    solutions = []
    for box in boxes:
        a, b, *radii = (torch.from_numpy(x) for x in box[:4])
        options = dict(zip(("a_radius", "b_radius"), radii))
        try:
            solution = linalg.solve(a, b, **options)
        except linalg.VerificationError as error:
            # Less than a proven factor is a proof
            factor = error.proven_factor
            solution = linalg.solve(a, b, a_radius=factor * radii[0].double())
            box = box._replace(
                a_radius=factor * box.a_radius, b_radius=0.0 * box.b_radius
            )
        arrays_of_host = solution.x.numpy(), solution.radius.numpy()
        solutions.append((box, linalg.VerifiedSolution(*arrays_of_host)))

    # The judge solves arrays of NumPy
    monkeypatch.undo()
    counts = Counts()
    for box, solution in solutions:
        counts.judge(box, solution, 1)
    assert counts.numbers["vertex systems"] > 10
    assert counts.numbers["missed"] == 0
    assert max(counts.ratios["small"], default=1.0) < 1.01


@pytest.mark.parametrize("family", ["random", "condition 1e9", "complex", "float32"])
def test_certificates_of_few_digits_prove_as_much(on_device, monkeypatch, family):
    # The product R A is off by nearly all that its promise allows, towards I
    wanted = []

    def worst(a, b, accuracy, result):
        wanted.append(accuracy)
        return a @ b - 0.5 * accuracy * (a.abs() @ b.abs())

    monkeypatch.setattr(certificate, "MANY_ROWS", 1)
    monkeypatch.setattr(arrays.products, "product_of_numbers", worst)
    rng = np.random.default_rng(3)
    a, b = FAMILIES[family](rng)
    solution, report = linalg.solve(
        *(torch.from_numpy(x) for x in (a, b)), return_report=True
    )
    assert wanted[0] > 2.0**-42
    assert 0.001 < report.norm < 0.1
    x, radius = solution.x.numpy(), solution.radius.numpy()
    assert misses(x, radius, exact_parts(a, b)) == []
    assert (radius <= 4.0 * np.spacing(np.abs(x))).all()


@pytest.mark.parametrize("kind", ["d", "D"])
@pytest.mark.parametrize("shape", [(3, 7, 2), (6, 7, 6), (2, 7, 6), (4, 3, 0)])
def test_products_keep_the_bound_of_their_roundings(monkeypatch, shape, kind):
    m, n, k = shape

    # What the library multiplies is off by nearly all that its promise allows
    def worst(a, b, accuracy, result):
        return a @ b + 0.5 * accuracy * (a.abs() @ b.abs())

    monkeypatch.setattr(arrays.products, "product_of_numbers", worst)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, n)).astype(kind)
    b = rng.standard_normal((n, k)).astype(kind)
    if kind == "D":
        a = a + 1j * rng.standard_normal((m, n))
        b = b + 1j * rng.standard_normal((n, k))
    product = arrays.to_host(
        arrays.matmul(wrap(torch.from_numpy(a)), wrap(torch.from_numpy(b)))
    )
    assert product.shape == (m, k)
    assert product.dtype == np.dtype(kind)
    terms = 2 * n if kind == "D" else n
    left = [a.real, -a.imag] if kind == "D" else [a]
    right = [b.real, b.imag] if kind == "D" else [b]
    pairs = [(fractions(x), fractions(y)) for x, y in zip(left, right)]
    for i, j in np.ndindex(m, k):
        exact = sum(exact_matmul(x[i : i + 1], y)[0][j] for x, y in pairs)
        size = sum(
            exact_matmul(exact_moduli(x[i : i + 1]), exact_moduli(y))[0][j]
            for x, y in pairs
        )
        assert abs(Fraction(product[i, j].real) - exact) <= (terms + 1) * UNIT * size


def test_inverses_and_least_squares_enclose_the_exact_ones(on_device):
    rng = np.random.default_rng(1)
    for condition in (1e2, 1e10):
        a, _ = of_condition(condition)(rng)
        x, radius = solved(linalg.inv, a)
        assert misses(x, radius, exact_parts(a, np.eye(len(a)))) == []
    for a in (rng.standard_normal((9, 4)), rng.standard_normal((4, 9))):
        for b in (rng.standard_normal((len(a), 2)), rng.standard_normal((len(a), 6))):
            x, radius = solved(linalg.lstsq, a, b)
            other = linalg_on_host(linalg.lstsq, a, b)
            assert (np.abs(x - other.x) <= radius + other.radius).all()
            assert (radius <= 4.0 * np.spacing(np.abs(x).max())).all()


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("is_wide", [False, True])
def test_nearly_dependent_columns_are_proven(on_device, kind, is_wide):
    rng = np.random.default_rng(1)
    a = nearly_dependent(rng, 12, 5, 1e20, kind)
    a = np.ascontiguousarray(a.T) if is_wide else a
    b = rng.standard_normal((len(a), 2))
    x, radius = solved(linalg.lstsq, a, b)
    assert misses(x, radius, exact_lstsq(a, b.astype(kind))) == []
    assert (radius <= np.spacing(np.abs(x).max())).all()
    a[-1] = a[0]
    a[:, -1] = a[:, 0]
    with pytest.raises(linalg.VerificationError, match="rank-deficient"):
        solved(linalg.lstsq, a, b)


def linalg_on_host(solve, *operands):
    """The same of arrays of NumPy, which are wrapped by no fixture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            arguments,
            "_any_array",
            lambda x, name, library: library.asarray(x, name),
        )
        return solve(*operands)


def test_determinants_and_definiteness(on_device):
    rng = np.random.default_rng(2)
    a = rng.integers(-9, 10, (5, 5)).astype(float)
    exact = round(np.linalg.det(a))
    d = linalg.det(torch.from_numpy(a))
    assert d.lower <= exact <= d.upper
    assert d.upper - d.lower <= 1e-8 * abs(exact)
    gram = torch.from_numpy(a @ a.T)
    assert linalg.is_positive_definite(gram)
    assert linalg.is_positive_definite(gram.to(torch.complex128))
    assert not linalg.is_positive_definite(gram - 1e4 * torch.eye(5))
    rank_one = torch.ones((3, 3), dtype=torch.float64)
    assert not linalg.is_positive_definite(rank_one)
    with pytest.raises(ValueError, match=r"the first at \(0, 1\)"):
        linalg.is_positive_definite(torch.from_numpy(a))


def test_determinants_by_a_proof(on_device):
    # More rows than are quicker in integers
    n = 40
    rng = np.random.default_rng(3)
    a = rng.standard_normal((n, n))
    d = linalg.det(torch.from_numpy(a))
    assert Fraction(d.lower) <= exact_determinant(a.tolist()) <= Fraction(d.upper)
    assert d.upper - d.lower <= 1e-12 * abs(d.lower)

    # The determinant of [Re -Im; Im Re] is the square of the modulus
    b = a + 1j * rng.standard_normal((n, n))
    disk = linalg.det(torch.from_numpy(b))
    square = exact_determinant(np.block([[b.real, -b.imag], [b.imag, b.real]]).tolist())
    size = float(square) ** 0.5
    assert abs(abs(disk.center) - size) <= disk.radius + 4 * np.spacing(size)
    assert disk.radius <= 1e-12 * size


@pytest.mark.parametrize("family", MATRICES)
def test_no_eigenvalue_or_singular_value_is_missed(on_device, family):
    a = hermitian(family, np.random.default_rng(6))
    result = linalg.eigvalsh(torch.from_numpy(a))
    values, radius = result.values.numpy(), result.radius.numpy()
    assert values.dtype == np.linalg.eigvalsh(a).dtype
    assert Spectrum(a, is_singular=False).misses(values, radius) == []

    a = rectangular(family, np.random.default_rng(7))
    result = linalg.svdvals(torch.from_numpy(a))
    values = result.values.flip(0).numpy()
    radius = result.radius.flip(0).numpy()
    spectrum = Spectrum(a, is_singular=True)
    assert spectrum.misses(values, radius) == []
    condition = linalg.cond(torch.from_numpy(a))
    assert not spectrum.condition_misses(condition.lower, condition.upper)


def test_values_of_stacks_and_of_nothing(on_device):
    a = torch.eye(2, dtype=torch.float64).repeat(3, 1, 1)
    assert linalg.eigvalsh(a).values.tolist() == [[1.0, 1.0]] * 3
    assert linalg.svdvals(a[:, :1]).values.tolist() == [[1.0]] * 3
    assert linalg.svdvals(a[:, :0]).radius.shape == (3, 0)
    a[1, 0, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError, match="1 of 3") as error:
        linalg.eigvalsh(a)
    assert error.value.solution.values[1].isnan().all()
    with pytest.raises(ValueError, match="conjugate transpose"):
        linalg.eigvalsh(torch.triu(torch.ones((2, 2))))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_inf_and_nan_raise(on_device, value):
    a, b = np.eye(3), np.ones(3)
    b[1] = value
    for accuracy in (None, "correct"):
        with pytest.raises(linalg.VerificationError, match="1 of 3 entries of b"):
            solved(linalg.solve, a, b, accuracy=accuracy)
    a[1, 1] = value
    with pytest.raises(linalg.VerificationError, match="1 of 9 entries of a"):
        solved(linalg.solve, a, np.ones(3))


def test_a_stack_that_fails_in_places_carries_what_was_proven(on_device):
    stack = torch.stack([torch.ones((2, 2)), torch.eye(2)]).double()
    with pytest.raises(torch.linalg.LinAlgError, match="1 of 2 systems") as error:
        linalg.solve(stack, torch.ones(2, dtype=torch.float64))
    solution = error.value.solution
    assert solution.x[0].isnan().all()
    assert (solution.x[1] == 1.0).all()
    assert (solution.radius[0] == torch.inf).all()


def test_two_numbers_are_read_for_a_proof_and_one_for_each_step(on_device, monkeypatch):
    waits = []
    item = DeviceArray.item
    numbers = arrays.numbers

    def counted(*values):
        waits.append(len(values))
        return numbers(*values)

    def counted_item(value):
        waits.append(1)
        return item(value)

    for module in ("certificate", "refinement"):
        monkeypatch.setattr(f"hifigemm.linalg.{module}.numbers", counted)
    monkeypatch.setattr(DeviceArray, "item", counted_item)
    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.standard_normal((30, 30)))
    b = torch.from_numpy(rng.standard_normal(30))
    _, report = linalg.solve(a, b, return_report=True)
    assert report.attempts == 1
    # The last one is the range of x
    assert len(waits) <= 2 + (report.steps + 1) + 1


@pytest.mark.parametrize("most_on_host", [0, 2**15])
@pytest.mark.parametrize(
    "family",
    ["random", "condition 1e16", "complex", "graded over 2^300", "decay chain"],
)
def test_right_sides_lie_on_the_host_or_on_the_device(
    on_device, monkeypatch, most_on_host, family
):
    """A host array meets one of a device nowhere by accident."""
    monkeypatch.setattr(arrays, "MOST_ON_HOST", most_on_host)
    monkeypatch.setattr(device_ops, "HOST_LIMIT", 1)
    rng = np.random.default_rng(4)
    a, b = ALL[family](rng)
    for accuracy in (None, "correct"):
        x, radius = solved(linalg.solve, a, b, accuracy=accuracy)
        assert misses(x, radius, exact_parts(a, b)) == []
    x, radius = solved(linalg.inv, a)
    assert misses(x, radius, exact_parts(a, np.eye(len(a)))) == []


def test_operations_on_vectors_launch_no_kernels(on_device, monkeypatch):
    """What has n entries is on the host; a device multiplies matrices by it."""

    def product(a, v, of_magnitudes):
        matrix = unwrap(a)
        return wrap((matrix.abs() if of_magnitudes else matrix) @ unwrap(v))

    monkeypatch.setattr(arrays, "_by_kernel", product)
    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.standard_normal((30, 30)))
    b = torch.from_numpy(rng.standard_normal(30))
    linalg.solve(a, b)

    sizes = []
    original = DeviceArray.__array_ufunc__

    def counted(array, ufunc, method, *inputs, **options):
        sizes.append(max(getattr(x, "size", 1) for x in inputs))
        return original(array, ufunc, method, *inputs, **options)

    in_scale = arrays.matrix_in_scale
    monkeypatch.setattr(
        arrays,
        "matrix_in_scale",
        lambda a, flag: MatrixInScale(
            *map(wrap, map(torch.from_numpy, in_scale(a.tensor.numpy(), flag)))
        ),
    )
    monkeypatch.setattr(DeviceArray, "__array_ufunc__", counted)
    linalg.solve(a, b)

    assert sizes == [30], "the diagonal of I - R A"


def test_a_device_inverts_matrices_that_came_from_it(monkeypatch):
    n = arrays.MOST_INVERTED_BY_HOST + 1
    a = np.random.default_rng(1).standard_normal((n, n))
    monkeypatch.setattr(np.linalg, "inv", None)
    with arrays.operands_on("cpu:0"):
        r = arrays.inverse(a.T).T
        assert np.abs(r @ a - np.eye(n)).max() < 1e-10
        # A pivot of zero is told by the entries, which prove nothing
        with pytest.raises(np.linalg.LinAlgError, match="not finite"):
            prove(np.zeros((n, n)), arrays.inverse(np.zeros((n, n))))
    with pytest.raises(TypeError):
        arrays.inverse(a)


def test_small_systems_of_a_device_are_solved_by_the_host(request, monkeypatch):
    """Stacks too; results go back to the device."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 6, 6))
    b = rng.standard_normal((3, 6, 2))
    systems = (a, b), (a[0], b[0]), (a[0], b[0, :, 0])
    wanted = [linalg.solve(*system) for system in systems]

    request.getfixturevalue("on_device")
    monkeypatch.setattr(arguments, "is_small", arrays.is_small)
    monkeypatch.setattr(TorchLibrary, "on_host", False)
    monkeypatch.setattr(TorchLibrary, "active", lambda library: nullcontext())
    monkeypatch.setattr(DeviceArray, "__array_ufunc__", None)
    for system, want in zip(systems, wanted, strict=True):
        x, radius = solved(linalg.solve, *system)
        assert (x == want.x).all()
        assert (radius == want.radius).all()
