/* Dot products of vectors that are too long for a product of the core, or for the copies
 * that complex ones need: exact sums, piece by piece. */

#include "blas.h"

enum { TERMS = 1 << 16 }; /* of a piece */

/* A vector of the caller, and a component of its entries. */
static const char *component_at(Type type, const Matrix *x, ptrdiff_t start, int q)
{
    return x->data + start * x->row + q * size_of_number(type);
}

/* Add a multiple of the products of two components to a sum. */
static void add_piece(Accumulator *sum, Type type, double factor, ptrdiff_t k,
                      const Matrix *x, const char *a, const Matrix *y, const char *b)
{
    Watch watch = watch_of_call();
    Multiple multiple = {factor, k, decode(k, a, x->row, type.is_single),
                         decode(k, b, y->row, type.is_single)};
    accumulate_multiple(sum, &multiple, &watch);
    free_decoded(multiple.a);
    free_decoded(multiple.b);
}

/* The same by signs, for vectors with Inf or NaN. */
static double signs_of_piece(Type type, double factor, ptrdiff_t k, const Matrix *x,
                             const char *a, const Matrix *y, const char *b)
{
    double sum = 0.0;
    for (ptrdiff_t h = 0; h < k; h++)
        sum += factor * sign_of(number_at(a + h * x->row, type.is_single))
             * sign_of(number_at(b + h * y->row, type.is_single));
    return sum;
}

/* 1 where the entries of a piece are finite. */
static int is_finite(Type type, const Matrix *x, ptrdiff_t start, ptrdiff_t k)
{
    for (ptrdiff_t h = 0; h < k; h++)
        for (int q = 0; q < type.components; q++)
            if (!isfinite(number_at(component_at(type, x, start + h, q), type.is_single)))
                return 0;
    return 1;
}

/* See `dot` of level1.c. */
void long_dot(Type type, Type result_type, int is_conjugate, const void *addend, int64_t n,
              const void *x, int64_t incx, const void *y, int64_t incy, void *result)
{
    const Format *format = result_type.is_single ? &BINARY32 : &BINARY64;
    const Matrix left = vector(type, n, x, incx), right = vector(type, n, y, incy);
    for (int q = 0; q < type.components; q++) {
        Accumulator sum;
        sum.first = sum.last = 0;
        double first = addend ? number_at(addend, result_type.is_single) : 0.0;
        double signs = sign_of(first);
        int has_nonfinite = !isfinite(first);
        if (!has_nonfinite)
            accumulate_product(&sum, first, 1.0);
        for (int64_t start = 0; start < n; start += TERMS) {
            ptrdiff_t k = n - start < TERMS ? (ptrdiff_t)(n - start) : TERMS;
            has_nonfinite |= !is_finite(type, &left, start, k)
                          || !is_finite(type, &right, start, k);
            /* re = x_0 y_0 -+ x_1 y_1, im = x_0 y_1 +- x_1 y_0. */
            for (int p = 0; p < type.components; p++) {
                double factor = p == 1 && (q == 0) != is_conjugate ? -1.0 : 1.0;
                const char *a = component_at(type, &left, start, p);
                const char *b = component_at(type, &right, start, p == 0 ? q : 1 - q);
                signs += signs_of_piece(type, factor, k, &left, a, &right, b);
                if (!has_nonfinite)
                    add_piece(&sum, type, factor, k, &left, a, &right, b);
            }
        }
        double value = has_nonfinite ? signs : rounded_accumulator(&sum, format);
        set_number((char *)result + q * size_of_number(result_type), result_type.is_single,
                   value);
    }
}
