"""Wrong arguments: numbers as in the reference BLAS, reported to xerbla."""

from __future__ import annotations

import re
import subprocess

import pytest

HANDLERS = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
void dgemm_(const char *, const char *, const int *, const int *, const int *, const double *,
            const double *, const int *, const double *, const int *, const double *, double *,
            const int *);
void zher2k_64_(const char *, const char *, const int64_t *, const int64_t *, const void *,
                const void *, const int64_t *, const void *, const int64_t *, const double *,
                void *, const int64_t *);
void cblas_dgemv(int, int, int, int, double, const double *, int, const double *, int, double,
                 double *, int);
void cblas_ctrmm64_(int, int, int, int, int, int64_t, int64_t, const void *, const void *,
                    int64_t, void *, int64_t);
%s
int main(void)
{
    double x[64] = {0.0}, one = 1.0;
    int n = 2, negative = -1, small = 1;
    int64_t long_n = 2, long_small = 1;
    dgemm_("X", "N", &n, &n, &n, &one, x, &n, x, &n, &one, x, &n);
    dgemm_("n", "t", &n, &negative, &n, &one, x, &n, x, &n, &one, x, &n);
    dgemm_("N", "N", &n, &n, &n, &one, x, &n, x, &small, &one, x, &n);
    dgemm_("N", "N", &n, &n, &n, &one, x, &n, x, &n, &one, x, &small);
    zher2k_64_("U", "T", &long_n, &long_n, x, x, &long_n, x, &long_n, &one, x, &long_n);
    zher2k_64_("U", "C", &long_n, &long_n, x, x, &long_small, x, &long_n, &one, x, &long_n);
    cblas_dgemv(100, 111, 2, 2, 1.0, x, 2, x, 1, 0.0, x, 1);
    cblas_dgemv(101, 111, 2, 3, 1.0, x, 2, x, 1, 0.0, x, 1);
    cblas_dgemv(101, 111, -1, 3, 1.0, x, 3, x, 1, 0.0, x, 1);
    cblas_dgemv(102, 111, -1, 3, 1.0, x, 3, x, 1, 0.0, x, 1);
    cblas_dgemv(102, 111, 2, 3, 1.0, x, 2, x, 0, 0.0, x, 1);
    cblas_ctrmm64_(101, 141, 121, 111, 111, 2, 2, x, x, 2, x, 2);
    printf("%%d\\n", x[0] != 0.0);
    return 0;
}
"""

OVERRIDES = """
void xerbla_(const char *name, const int *info, size_t length)
{
    printf("%.*s|%d\\n", (int)length, name, *info);
}
void xerbla_64_(const char *name, const int64_t *info, size_t length)
{
    printf("%.*s|%d of 64 bits\\n", (int)length, name, (int)*info);
}
void cblas_xerbla(int info, const char *name, const char *form, ...)
{
    printf("%s|%d\\n", name, info);
}
void cblas_xerbla64_(int64_t info, const char *name, const char *form, ...)
{
    printf("%s|%d of 64 bits\\n", name, (int)info);
}
"""


def test_handlers_of_a_program_hear_of_wrong_arguments_and_nothing_is_written(program):
    path = program(HANDLERS % OVERRIDES)
    output = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [
        "DGEMM |1",
        "DGEMM |4",
        "DGEMM |10",
        "DGEMM |13",
        "ZHER2K|2 of 64 bits",
        "ZHER2K|7 of 64 bits",
        "cblas_dgemv|1",
        "cblas_dgemv|7",
        "cblas_dgemv|4",  # by rows, as the reference BLAS has it
        "cblas_dgemv|3",
        "cblas_dgemv|9",
        "cblas_ctrmm|5 of 64 bits",
        "0",
    ]


@pytest.mark.parametrize("skipped", [0, 6])
def test_without_a_handler_the_program_ends_with_the_message_of_the_reference(
    program, skipped
):
    source = HANDLERS % ""
    for _ in range(skipped):
        source = re.sub(r"    (dgemm_|zher2k_64_)\(\"[^;]*;\n", "", source, count=1)
    process = subprocess.run([program(source)], capture_output=True, text=True)
    name, number = ("DGEMM ", 1) if not skipped else ("cblas_dgemv", 1)
    assert process.returncode == 1
    assert process.stderr == (
        f" ** On entry to {name} parameter number {number:2d} had an illegal value\n"
    )
