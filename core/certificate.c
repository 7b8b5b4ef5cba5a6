/* The certificate of a float64 product of binary32 operands: numerics/float64_products.py
 * states and proves it. Entries whose rounding it leaves open become NaN; `finish` of
 * product.c writes them. */

#include "core.h"

#include <math.h>

enum { LANES = 64 }; /* vectors side by side, or parts of one vector */

/* Vectors side by side in memory: a number of each, then the next. */
static void columns_to_doubles(const Kernels *f, ptrdiff_t count, ptrdiff_t k, const View *x,
                          double scale, const View *y, double *squares, double *lowest)
{
    for (ptrdiff_t first = 0; first < count; first += LANES) {
        ptrdiff_t lanes = count - first < LANES ? count - first : LANES;
        int32_t units[LANES];
        for (ptrdiff_t v = 0; v < lanes; v++) {
            squares[first + v] = 0.0;
            units[v] = NO_BIT;
        }
        for (ptrdiff_t h = 0; h < k; h++)
            f->to_doubles(lanes, (const float *)(x->data + first * x->row + h * x->column), scale,
                     (double *)(y->data + first * y->row + h * y->column), squares + first,
                     units);
        for (ptrdiff_t v = 0; v < lanes; v++)
            lowest[first + v] = units[v];
    }
}

/* A contiguous vector: its parts are vectors side by side. */
static void row_to_doubles(const Kernels *f, ptrdiff_t k, const float *x, double scale, double *y,
                      double *square, double *lowest)
{
    double squares[LANES] = {0.0};
    int32_t units[LANES];
    for (int v = 0; v < LANES; v++)
        units[v] = NO_BIT;
    for (ptrdiff_t h = 0; h < k; h += LANES)
        f->to_doubles(k - h < LANES ? k - h : LANES, x + h, scale, y + h, squares, units);
    for (int v = 1; v < LANES; v++) {
        squares[0] += squares[v];
        units[0] = units[v] < units[0] ? units[v] : units[0];
    }
    *square = squares[0];
    *lowest = units[0];
}

/* 2^shift x as doubles, for `count` vectors of k terms of binary32; and the norm of each
 * vector, rounded upward, also in units of the lowest bit. In x and y either the terms of a
 * vector or the vectors are contiguous. Returns 0 if x holds Inf or NaN. */
int to_doubles(const Kernels *f, ptrdiff_t count, ptrdiff_t k, const View *x, int shift,
               const View *y, double *norms, double *spreads, Watch *watch)
{
    double scale = power(shift);
    if (x->column != sizeof(float))
        columns_to_doubles(f, count, k, x, scale, y, norms, spreads);
    else
        for (ptrdiff_t i = 0; i < count && !stops(watch, 16 * k); i++)
            row_to_doubles(f, k, (const float *)(x->data + i * x->row), scale,
                           (double *)(y->data + i * y->row), norms + i, spreads + i);

    /* Sums of squares with k + 64 roundings at most, and exponents of lowest bits so far. */
    double upward = 1.0 + ((double)k + 70.0) * 0x1p-52;
    int is_finite = 1;
    for (ptrdiff_t i = 0; i < count; i++) {
        norms[i] = sqrt(norms[i]) * upward;
        spreads[i] = ldexp(norms[i], -(int)spreads[i] - shift);
        is_finite &= norms[i] < INFINITY;
    }
    return is_finite;
}

/* Write a product of k terms, rounded to binary32, or NaN if the rounding is not certain;
 * returns the number of NaN. Rows are contiguous. */
ptrdiff_t round_product(const Kernels *f, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k,
                        const View *product, const double *rows, const double *columns,
                        const View *values)
{
    const double factor = ((double)k + 3.0) * 0x1p-53;
    ptrdiff_t open = 0;
    for (ptrdiff_t i = 0; i < m; i++)
        open += f->round_product(n, (const double *)(product->data + i * product->row),
                                 factor * rows[i], rows[m + i], columns, columns + n,
                                 (float *)(values->data + i * values->row));
    return open;
}
