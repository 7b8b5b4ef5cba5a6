"""The index of the first entry of the largest magnitude, as the reference BLAS has it."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from tests.blas.routines import DTYPES, INTERFACES, REDUCTIONS, reduce

NAMES = [name for name in REDUCTIONS if name.endswith("amax")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("interface", INTERFACES)
def test_nothing_is_found_without_entries_or_a_positive_increment(
    library, name, interface
):
    x = np.ones(3, DTYPES[REDUCTIONS[name]])
    for n, increment in ((0, 1), (-1, 1), (3, 0), (3, -1)):
        assert reduce(library, interface, name, n, [(x, increment)]) == 0


@pytest.mark.parametrize("name", ["icamax", "izamax"])
def test_sums_of_parts_are_compared_as_rounded_once(library, name):
    """Sums that differ by less than their rounding are a tie, and two that overflow."""
    dtype = DTYPES[REDUCTIONS[name]]
    largest = np.finfo(dtype).max
    for values in ([1, 1 + 1e-20j], [1e-30 + 1j, 1 + 1e-20j], [largest * 1j, largest]):
        x = np.array(values, dtype)
        assert reduce(library, INTERFACES[0], name, 2, [(x, 1)]) == 1
    x = np.array([complex(largest, largest / 2), complex(largest, largest)], dtype)
    assert reduce(library, INTERFACES[0], name, 2, [(x, 1)]) == 1


PROBE = """
#include <complex.h>
#include <stdint.h>
#include <stdio.h>
int64_t isamax_(const int64_t *, const float *, const int64_t *);
int64_t isamax_64_(const int64_t *, const float *, const int64_t *);
double complex zdotc_64_(const void *, const void *, const void *, const void *, const void *,
                         const void *);
float sdot_64_(const int64_t *, const float *, const int64_t *, const float *, const int64_t *);
int main(void)
{
    /* 3 in 32 bits, negative in 64. */
    int64_t n = INT64_C(-4294967293), zero = 0, one = 1;
    float x[3] = {1.0f, 2.0f, 1.0f}, half = 0.5f;
    printf("%d", (int)(isamax_(&n, x, &one) & 0xffffffff));
    printf(" %d", (int)(isamax_64_(&n, x, &one) & 0xffffffff));
    /* The address of a result would be the first argument. */
    double complex result = 1.0 * I, z = 0.0;
    zdotc_64_(&result, &zero, &z, &zero, &z, &zero);
    printf(" %g", cimag(result));
    result = zdotc_64_(&zero, &z, &zero, &z, &zero, &zero);
    printf(" %g %g", cimag(result), sdot_64_(&one, &half, &one, &half, &one));
    return 0;
}
"""


def test_the_questions_of_julias_loader_have_their_answers(program):
    """libblastrampoline calls isamax, zdotc and sdot to learn the width of integers, where
    a complex result is and whether a float comes as one.
    """
    process = subprocess.run([program(PROBE)], capture_output=True, text=True)
    assert process.stdout == "2 0 1 0 0.25"
