"""Programs with the library in front of their BLAS."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.blas.conftest import LIBRARY, LIBRARY_FOR_WHEELS, run_python

PRODUCTS = """
import hashlib
import numpy as np
digest = hashlib.sha256()
for dtype in ("float32", "float64", "complex64", "complex128"):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((240, 240)) * 10.0 ** rng.integers(-9, 9, 240) for _ in "ab")
    a, b = (x.astype(dtype) for x in (a, b))
    if a.dtype.kind == "c":
        a.imag = b.real.T
    for x in (a @ b, a @ a.T, a @ b[0], np.vdot(a, b), a[:, ::2] @ b[::2]):
        digest.update(x.tobytes())
print(digest.hexdigest())
"""

CORRECT = """
import numpy as np
import hifigemm as hg
rng = np.random.default_rng(1)
for dtype in ("float32", "float64", "complex64", "complex128"):
    a, b = rng.standard_normal((2, 60, 60)).astype(dtype)
    for x, y in ((a, b), (a, a.T), (a, b[:, :1]), (a[:, ::2], b[::2])):
        assert (np.matmul(x, y) == hg.matmul(x, y, accuracy="correct")).all()
print(float(np.dot([1e20, 1.0, -1e20], [1.0, 1.0, 1.0])))
"""


def environment(**variables):
    """The variables of this process, and others."""
    return os.environ | variables


def binds_wheels_names():
    """True if NumPy is a wheel, whose BLAS has names of its own."""
    output = run_python(
        CORRECT.splitlines()[-1].replace("print", "import numpy as np; print"),
        **environment(LD_PRELOAD=str(LIBRARY)),
    )
    return output == "1.0\n"


@pytest.mark.parametrize("library", [LIBRARY, LIBRARY_FOR_WHEELS])
def test_products_of_numpy_are_correct(library):
    if not binds_wheels_names():
        pytest.skip("this NumPy has no BLAS of its own")
    assert run_python(CORRECT, **environment(LD_PRELOAD=str(library))) == "1.0\n"


def test_bits_do_not_depend_on_threads():
    outputs = {
        run_python(PRODUCTS, **environment(LD_PRELOAD=str(LIBRARY), **variables))
        for variables in (
            {"HIFIGEMM_THREADS": "1"},
            {"HIFIGEMM_THREADS": "2", "OMP_NUM_THREADS": "1"},
            {"HIFIGEMM_THREADS": "7"},
            {"HIFIGEMM_THREADS": "", "OMP_NUM_THREADS": "3,1"},
        )
    }
    assert len(outputs) == 1


THREADS = """
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
void cblas_dgemm(int, int, int, int, int, int, double, const double *, int, const double *, int,
                 double, double *, int);
enum { N = 900 };
static volatile int is_done;
static int largest;
static void *count_threads(void *x)
{
    while (!is_done) {
        int count = -2; /* . and .. */
        DIR *folder = opendir("/proc/self/task");
        while (readdir(folder))
            count++;
        closedir(folder);
        largest = count > largest ? count : largest;
    }
    return x;
}
int main(void)
{
    double *a = calloc(N * N, sizeof *a), *c = calloc(N * N, sizeof *c);
    pthread_t counter;
    for (int i = 0; i < N * N; i++)
        a[i] = i % 7;
    pthread_create(&counter, NULL, count_threads, NULL);
    cblas_dgemm(101, 111, 111, N, N, N, 1.0, a, N, a, N, 0.0, c, N);
    is_done = 1;
    pthread_join(counter, NULL);
    printf("%d\\n", largest - 2); /* the main thread and the counter */
    fflush(stdout);
    if (fork() == 0) { /* a child multiplies as well */
        double first = c[0];
        cblas_dgemm(101, 111, 111, N, N, N, 1.0, a, N, a, N, 0.0, c, N);
        _exit(c[0] == first ? 0 : 1);
    }
    int status;
    wait(&status);
    return WEXITSTATUS(status);
}
"""


@pytest.mark.parametrize(("threads", "others"), [("1", 0), ("3", 2)])
def test_threads_are_those_that_the_environment_asks_for(program, threads, others):
    path = program(THREADS.replace("\\\\n", "\\n"))
    process = subprocess.run(
        [path],
        env=environment(HIFIGEMM_THREADS=threads),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stdout) == (0, f"{others}\n")


MODES = """
#include <fenv.h>
#include <stdio.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
double cblas_ddot(int, const double *, int, const double *, int);
float cblas_sdot(int, const float *, int, const float *, int);
float cblas_sasum(int, const float *, int);
int main(void)
{
    double x[] = {1.0, 0x1p-60}, one[] = {1.0, 1.0};
    float tiny[] = {0x1p-140f, 0x1p-141f}, single_one[] = {1.0f, 1.0f};
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, and read subnormal numbers as zeros */
    unsigned before = _mm_getcsr() & 0xe040;
#endif
    double up = cblas_ddot(2, x, 1, one, 1);
    float sum = cblas_sdot(2, tiny, 1, single_one, 1), magnitudes = cblas_sasum(2, tiny, 1);
#if defined(__x86_64__)
    int is_kept = (_mm_getcsr() & 0xe040) == before;
    _mm_setcsr(0x1f80);
#else
    int is_kept = fegetround() == FE_UPWARD;
#endif
    printf("%d %d %d %d\\n", up == 1.0, sum == 0x1.8p-140f, magnitudes == 0x1.8p-140f, is_kept);
    return 0;
}
"""


def test_the_mode_of_a_thread_changes_no_bit_and_stays(program):
    path = program(MODES.replace("\\\\n", "\\n"))
    output = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    assert output == "1 1 1 1\n"
