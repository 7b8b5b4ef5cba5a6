/* Level 1: sums over vectors, and their largest entries. */

#include "blas.h"

#include <math.h>
#include <stdlib.h>

/* Entries of a complex vector that is copied: 6 GiB with the other one. */
enum { LONGEST_COPY = 1 << 26 };

/* x^T y, or x^H y, rounded once. `addend`, or NULL, is a number of the result's type that is
 * added before the rounding. */
void dot(Type type, Type result_type, int is_conjugate, const void *addend, int64_t n,
         const void *x, int64_t incx, const void *y, int64_t incy, void *result)
{
    memset(result, 0, (size_t)size_of(result_type));
    if (addend)
        memcpy(result, addend, (size_t)size_of(result_type));
    if (n <= 0)
        return;
    if (n > (type.components == 2 ? LONGEST_COPY : INT32_MAX)) {
        long_dot(type, result_type, is_conjugate, addend, n, x, incx, y, incy, result);
        return;
    }
    Matrix row = transposed(vector(type, n, x, incx));
    update(&(Update){
        .type = type, .result_type = result_type, .m = 1, .n = 1, .k = n,
        .a = is_conjugate ? conjugated(row) : row, .b = vector(type, n, y, incy),
        .c = {.data = result}, .alpha = {1.0, 0.0}, .beta = {addend != NULL, 0.0},
    });
}

/* The numbers of a vector in new memory, as reals of binary64. */
static double *numbers_of(Type type, int64_t n, const void *x, int64_t incx)
{
    double *numbers = allocated((size_t)n, (size_t)type.components * sizeof(double));
    Matrix entries = vector(type, n, x, incx);
    for (int64_t i = 0; i < n; i++)
        for (int q = 0; q < type.components; q++) {
            const char *at = entry_of(&entries, i, 0) + q * size_of_number(type);
            numbers[i * type.components + q] = number_at(at, type.is_single);
        }
    return numbers;
}

/* |re| + |im|, rounded once to the type. */
static double magnitude_of(Type type, const char *at)
{
    Scalar x = scalar_at(type, at);
    double magnitude = fabs(x.re) + fabs(x.im);
    return type.is_single ? (float)magnitude : magnitude;
}

/* iamax: the number, from 1 on, of the first entry with the largest magnitude; 0 if there is
 * none. As in the reference BLAS, the first entry leads until a greater one follows. So a NaN
 * never takes the lead, but keeps it if it is the first entry. */
int64_t first_largest(Type type, int64_t n, const void *x, int64_t incx)
{
    if (n <= 0 || incx <= 0)
        return 0;
    Matrix entries = vector(type, n, x, incx);
    double largest = magnitude_of(type, entries.data);
    int64_t leader = 0;
    for (int64_t i = 1; i < n; i++) {
        double magnitude = magnitude_of(type, entry_of(&entries, i, 0));
        if (magnitude > largest) {
            leader = i;
            largest = magnitude;
        }
    }
    return leader + 1;
}

/* asum: the sum of |re| + |im|, rounded once. */
void sum_of_magnitudes(Type type, int64_t n, const void *x, int64_t incx, void *result)
{
    memset(result, 0, (size_t)size_of_number(type));
    if (n <= 0 || incx <= 0)
        return;
    int64_t count = n * type.components;
    double one = 1.0, *numbers = numbers_of(type, n, x, incx);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = fabs(numbers[i]);
    update(&(Update){
        .type = DOUBLE, .result_type = real_type(type), .m = 1, .n = 1, .k = count,
        .a = transposed(vector(DOUBLE, count, numbers, 1)),
        .b = vector(DOUBLE, count, &one, 0), .c = {.data = result}, .alpha = {1.0, 0.0},
    });
    free(numbers);
}

/* nrm2, faithfully rounded: one of the two numbers next to the norm, or the norm.
 *
 * The numbers are scaled so that the largest lies in [1, 2). Numbers that then underflow are
 * too small to matter. The sum of squares s is rounded once, and its root once: for
 * 1 <= s < 4, after scaling by a power of four, the root errs by 0.5 ulp plus half the
 * relative error of s, at most 0.36 ulp. If the norm is a number of the type, the result is
 * this number. */
void norm(Type type, int64_t n, const void *x, int64_t incx, void *result)
{
    double largest = 0.0;
    memset(result, 0, (size_t)size_of_number(type));
    if (n <= 0)
        return;
    int64_t count = n * type.components;
    double sum = 0.0, *numbers = numbers_of(type, n, x, incx);
    int has_nan = 0;
    for (int64_t i = 0; i < count; i++) {
        has_nan |= isnan(numbers[i]);
        largest = fabs(numbers[i]) > largest ? fabs(numbers[i]) : largest;
    }
    if (has_nan || largest == 0.0 || isinf(largest)) {
        free(numbers);
        set_number(result, type.is_single, has_nan ? NAN : largest);
        return;
    }
    int exponent = ilogb(largest);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = ldexp(numbers[i], -exponent);
    Matrix column = vector(DOUBLE, count, numbers, 1);
    update(&(Update){
        .type = DOUBLE, .result_type = DOUBLE, .m = 1, .n = 1, .k = count,
        .a = transposed(column), .b = column, .c = {.data = (char *)&sum},
        .alpha = {1.0, 0.0},
    });
    free(numbers);
    set_number(result, type.is_single, ldexp(sqrt(sum), exponent));
}
