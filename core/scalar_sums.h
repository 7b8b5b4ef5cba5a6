/* alpha T + beta C rounded once, from a pair for T, if the rounding is certain. The bound is
 * in numerics/scalar_sums.py.
 */
#ifndef HIFIGEMM_SCALAR_SUMS_H
#define HIFIGEMM_SCALAR_SUMS_H

#include "core.h"

#include <float.h>
#include <math.h>

/* A scalar and its halves, for products by Dekker. */
typedef struct {
    double value, high, low;
} Factor;

static inline Factor halved(double a)
{
    double t = 134217729.0 * a; /* 2^27 + 1 */
    double high = t - (t - a);
    return (Factor){a, high, a - high};
}

/* p + e = a b, by Dekker: the bits of numerics.eft.two_product. */
static inline double two_product(Factor a, double b, double *e)
{
    Factor x = halved(b);
    double p = a.value * b;
    double excess = p - a.high * x.high;
    excess = excess - a.low * x.high;
    excess = excess - a.high * x.low;
    *e = a.low * x.low - excess;
    return p;
}

/* A sum of products so far, as in numerics.scalar_sums: sum + low, and the sum of the
 * magnitudes added to low. */
typedef struct {
    double sum, low, size;
    int is_exact; /* no product has lost a bit */
} Sum;

static inline void add_multiple(Sum *total, Factor factor, double x)
{
    double error, rest, p = two_product(factor, x, &error), size = fabs(p);
    int is_exact = size >= 0x1p-900 && size < 0x1p990 && fabs(x) < 0x1p990;
    total->is_exact &= is_exact || x == 0.0;
    two_sum(total->sum, p, &total->sum, &rest);
    total->low += rest + error;
    total->size += fabs(rest) + fabs(error);
}

/* The nearest number to a sum whose terms err by `lost`; returns 1 if it is certain. */
static inline int round_sum(const Sum *total, double lost, int is_single, double *value)
{
    double margin = lost + total->size * 0x1p-49;
    double least = total->sum + (total->low - margin);
    double most = total->sum + (total->low + margin);
    *value = most;
    if (!is_single)
        return total->is_exact && least == most && fabs(most) <= DBL_MAX;

    /* A sum that lies on a midpoint of floats is not certain. */
    float below_least = (float)nextafter(least, -INFINITY);
    float above_most = (float)nextafter(most, INFINITY);
    *value = above_most;
    return total->is_exact && below_least == above_most;
}

#endif
