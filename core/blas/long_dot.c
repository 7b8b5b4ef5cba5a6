/* Dot products of vectors that are too long for a product of the core, or for the copies
 * that complex ones need: exact sums, piece by piece. */

#include "blas.h"

enum { TERMS = 1 << 16 }; /* of a piece */

/* A vector of the caller, and a component of its entries. */
static const char *component_at(Type type, const Matrix *x, ptrdiff_t start, int q)
{
    return x->data + start * x->row + q * size_of_number(type);
}

/* 1 if all entries of a vector are finite. */
static int is_finite(Type type, const Matrix *x, int64_t n)
{
    for (int64_t h = 0; h < n; h++)
        for (int q = 0; q < type.components; q++)
            if (!isfinite(number_at(component_at(type, x, h, q), type.is_single)))
                return 0;
    return 1;
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

/* The same with signs instead of finite numbers, for vectors with Inf or NaN. */
static double signs_of_piece(Type type, double factor, ptrdiff_t k, const Matrix *x,
                             const char *a, const Matrix *y, const char *b)
{
    double sum = 0.0;
    for (ptrdiff_t h = 0; h < k; h++)
        sum += factor * sign_of(number_at(a + h * x->row, type.is_single))
             * sign_of(number_at(b + h * y->row, type.is_single));
    return sum;
}

/* See `dot` of level1.c. */
void long_dot(Type type, Type result_type, int is_conjugate, const void *addend, int64_t n,
              const void *x, int64_t incx, const void *y, int64_t incy, void *result)
{
    const Format *format = result_type.is_single ? &BINARY32 : &BINARY64;
    const Matrix left = vector(type, n, x, incx), right = vector(type, n, y, incy);
    const double first = addend ? number_at(addend, result_type.is_single) : 0.0;
    const int are_finite = isfinite(first) && is_finite(type, &left, n)
                        && is_finite(type, &right, n);
    if (tally)
        note_sizes(1, 1, n, (double)n * type.components * type.components);
    for (int q = 0; q < type.components; q++) {
        double signs = sign_of(first);
        Accumulator sum;
        sum.first = sum.last = 0;
        if (are_finite)
            accumulate_product(&sum, first, 1.0);
        for (int64_t start = 0; start < n; start += TERMS) {
            ptrdiff_t k = n - start < TERMS ? (ptrdiff_t)(n - start) : TERMS;
            /* re = x_0 y_0 -+ x_1 y_1, im = x_0 y_1 +- x_1 y_0. */
            for (int p = 0; p < type.components; p++) {
                double factor = p == 1 && (q == 0) != is_conjugate ? -1.0 : 1.0;
                const char *a = component_at(type, &left, start, p);
                const char *b = component_at(type, &right, start, p == 0 ? q : 1 - q);
                if (are_finite)
                    add_piece(&sum, type, factor, k, &left, a, &right, b);
                else
                    signs += signs_of_piece(type, factor, k, &left, a, &right, b);
            }
        }
        double value = are_finite ? rounded_accumulator(&sum, format) : signs;
        set_number((char *)result + q * size_of_number(result_type), result_type.is_single,
                   value);
    }
}
