/* Level 2: products of a matrix and a vector. */

#include "blas.h"

#include <stdlib.h>

int gemv(Type type, Order order, char trans, int64_t m, int64_t n, const void *alpha,
         const void *a, int64_t lda, const void *x, int64_t incx, const void *beta, void *y,
         int64_t incy)
{
    if (!is_one_of(trans, "NTC"))
        return 1;
    if (m < 0)
        return 2;
    if (n < 0)
        return 3;
    if (!is_leading(order, lda, m, n))
        return 6;
    if (incx == 0)
        return 8;
    if (incy == 0)
        return 11;
    if (m == 0 || n == 0)
        return 0;
    int64_t rows = is_one_of(trans, "N") ? m : n, terms = is_one_of(trans, "N") ? n : m;
    update(&(Update){
        .type = type, .result_type = type, .m = rows, .n = 1, .k = terms,
        .a = operand(matrix(type, order, a, lda), trans),
        .b = vector(type, terms, x, incx), .c = vector(type, rows, y, incy),
        .alpha = scalar_at(type, alpha), .beta = scalar_at(type, beta),
    });
    return 0;
}

/* symv and hemv. */
int symv(Type type, Order order, Structure structure, char uplo, int64_t n, const void *alpha,
         const void *a, int64_t lda, const void *x, int64_t incx, const void *beta, void *y,
         int64_t incy)
{
    if (!is_one_of(uplo, "UL"))
        return 1;
    if (n < 0)
        return 2;
    if (!is_leading(order, lda, n, n))
        return 5;
    if (incx == 0)
        return 7;
    if (incy == 0)
        return 10;
    Update u = {
        .type = type, .result_type = type, .m = n, .n = 1, .k = n,
        .b = vector(type, n, x, incx), .c = vector(type, n, y, incy),
        .alpha = scalar_at(type, alpha), .beta = scalar_at(type, beta),
    };
    if (n == 0)
        return 0;
    if (is_zero(u.alpha)) {
        update(&u);
        return 0;
    }
    u.a = expanded(type, n, matrix(type, order, a, lda), shape_of(uplo), structure);
    update(&u);
    free(u.a.data);
    return 0;
}

int trmv(Type type, Order order, char uplo, char trans, char diag, int64_t n,
         const void *a, int64_t lda, void *x, int64_t incx)
{
    if (!is_one_of(uplo, "UL"))
        return 1;
    if (!is_one_of(trans, "NTC"))
        return 2;
    if (!is_one_of(diag, "UN"))
        return 3;
    if (n < 0)
        return 4;
    if (!is_leading(order, lda, n, n))
        return 6;
    if (incx == 0)
        return 8;
    multiply_by_triangle(type, shape_of(uplo), trans, is_one_of(diag, "U"), n, 1,
                         (Scalar){1.0, 0.0}, matrix(type, order, a, lda),
                         vector(type, n, x, incx));
    return 0;
}

/* ger, geru and gerc: A := alpha x y^T + A, or with y^H. */
int ger(Type type, Order order, int is_conjugate, int64_t m, int64_t n, const void *alpha,
        const void *x, int64_t incx, const void *y, int64_t incy, void *a, int64_t lda)
{
    if (m < 0)
        return 1;
    if (n < 0)
        return 2;
    if (incx == 0)
        return 5;
    if (incy == 0)
        return 7;
    if (!is_leading(order, lda, m, n))
        return 9;
    Matrix row = transposed(vector(type, n, y, incy));
    update(&(Update){
        .type = type, .result_type = type, .m = m, .n = n, .k = 1,
        .a = vector(type, m, x, incx), .b = is_conjugate ? conjugated(row) : row,
        .c = matrix(type, order, a, lda), .alpha = scalar_at(type, alpha), .beta = {1.0, 0.0},
    });
    return 0;
}
