/* What core/small_factors.c says of one matrix, step by step, for test_small_factors.py. */

#include "../../core/small_factors.c"

static int goes_on(Watch *watch)
{
    (void)watch;
    return 0;
}

/* The rows of f.scaled, f.hi, f.lo, f.errors, bounds of |L^-1| e and of |U^-1| |L^-1| e, for
 * m rows, which is returned, and of their minor 1, hi, lo, error and exponent, 0 where
 * nothing is known. */
int steps_of(int set, int n, const double *a, int exchanges, double *scaled, double *hi,
             double *lo, double *errors, double *y, double *w, double *minor)
{
    static double space[100000];
    Factors f = factors_in(space, n);
    Watch watch = {1 << 30, goes_on};
    View view = {(char *)a, 0, (ptrdiff_t)sizeof(double) * n, sizeof(double), 0};
    int64_t exponent;
    if (!scale(&f, &view, &exponent, &watch))
        return 0;
    int m = (int)factorise(&f, exchanges, kernels_here()[set]);
    memcpy(scaled, f.scaled, (size_t)(n * n) * sizeof(double));
    for (int i = 0; i < n; i++) {
        memcpy(hi + i * n, f.hi + i * f.stride, (size_t)n * sizeof(double));
        memcpy(lo + i * n, f.lo + i * f.stride, (size_t)n * sizeof(double));
    }
    memcpy(errors, f.errors, (size_t)n * sizeof(double));
    Enclosed d;
    minor[0] = minor_of(&f, m, &d);
    if (minor[0] != 0.0) {
        bound_of_solution(&f, m, 1, f.errors, y);
        bound_of_solution(&f, m, 0, y, w);
        minor[1] = d.hi;
        minor[2] = d.lo;
        minor[3] = d.error;
        minor[4] = (double)d.exponent;
    }
    return m;
}
