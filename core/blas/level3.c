/* Level 3: products of matrices. Arguments are checked in the order of the reference BLAS,
 * and numbered as there.
 */

#include "blas.h"

#include <stdlib.h>

/* ---- arguments ------------------------------------------------------------------ */

int is_one_of(char letter, const char *letters)
{
    char capital = letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter;
    return capital != '\0' && strchr(letters, capital) != NULL;
}

Shape shape_of(char uplo)
{
    return is_one_of(uplo, "L") ? LOWER : UPPER;
}

/* 1 if `ld` is at least the length of the contiguous vectors: columns, or rows. */
int is_leading(Order order, int64_t ld, int64_t rows, int64_t columns)
{
    int64_t length = order == BY_COLUMNS ? rows : columns;
    return ld >= (length > 1 ? length : 1);
}

/* A matrix of the caller. */
Matrix matrix(Type type, Order order, const void *data, int64_t ld)
{
    ptrdiff_t size = size_of(type);
    Matrix x = {.data = (char *)(uintptr_t)data, .row = size, .column = ld * size};
    return order == BY_COLUMNS ? x : transposed(x);
}

/* op(A): A, its transpose or its conjugate transpose. */
Matrix operand(Matrix x, char trans)
{
    if (is_one_of(trans, "N"))
        return x;
    x = transposed(x);
    return is_one_of(trans, "C") ? conjugated(x) : x;
}

static int is_transposed(char trans)
{
    return !is_one_of(trans, "N");
}

/* ---- general matrices ----------------------------------------------------------- */

int gemm(Type type, Order order, char transa, char transb, int64_t m, int64_t n, int64_t k,
         const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta,
         void *c, int64_t ldc)
{
    int a_turns = is_transposed(transa), b_turns = is_transposed(transb);
    if (!is_one_of(transa, "NTC"))
        return 1;
    if (!is_one_of(transb, "NTC"))
        return 2;
    if (m < 0)
        return 3;
    if (n < 0)
        return 4;
    if (k < 0)
        return 5;
    if (!is_leading(order, lda, a_turns ? k : m, a_turns ? m : k))
        return 8;
    if (!is_leading(order, ldb, b_turns ? n : k, b_turns ? k : n))
        return 10;
    if (!is_leading(order, ldc, m, n))
        return 13;
    update(&(Update){
        .type = type, .result_type = type, .m = m, .n = n, .k = k,
        .a = operand(matrix(type, order, a, lda), transa),
        .b = operand(matrix(type, order, b, ldb), transb),
        .c = matrix(type, order, c, ldc),
        .alpha = scalar_at(type, alpha), .beta = scalar_at(type, beta),
    });
    return 0;
}

/* A triangle of a product. */
int gemmt(Type type, Order order, char uplo, char transa, char transb, int64_t n, int64_t k,
          const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta,
          void *c, int64_t ldc)
{
    int a_turns = is_transposed(transa), b_turns = is_transposed(transb);
    if (!is_one_of(uplo, "UL"))
        return 1;
    if (!is_one_of(transa, "NTC"))
        return 2;
    if (!is_one_of(transb, "NTC"))
        return 3;
    if (n < 0)
        return 4;
    if (k < 0)
        return 5;
    if (!is_leading(order, lda, a_turns ? k : n, a_turns ? n : k))
        return 8;
    if (!is_leading(order, ldb, b_turns ? n : k, b_turns ? k : n))
        return 10;
    if (!is_leading(order, ldc, n, n))
        return 13;
    update(&(Update){
        .type = type, .result_type = type, .m = n, .n = n, .k = k,
        .a = operand(matrix(type, order, a, lda), transa),
        .b = operand(matrix(type, order, b, ldb), transb),
        .c = matrix(type, order, c, ldc), .c_shape = shape_of(uplo),
        .alpha = scalar_at(type, alpha), .beta = scalar_at(type, beta),
    });
    return 0;
}

/* ---- symmetric and Hermitian matrices ------------------------------------------- */

/* symm and hemm: C := alpha A B + beta C, or alpha B A + beta C. */
int symm(Type type, Order order, Structure structure, char side, char uplo, int64_t m,
         int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
         const void *beta, void *c, int64_t ldc)
{
    int is_left = is_one_of(side, "L");
    int64_t rows = is_left ? m : n;
    if (!is_one_of(side, "LR"))
        return 1;
    if (!is_one_of(uplo, "UL"))
        return 2;
    if (m < 0)
        return 3;
    if (n < 0)
        return 4;
    if (!is_leading(order, lda, rows, rows))
        return 7;
    if (!is_leading(order, ldb, m, n))
        return 9;
    if (!is_leading(order, ldc, m, n))
        return 12;
    if (m == 0 || n == 0)
        return 0;
    Update u = {
        .type = type, .result_type = type, .m = m, .n = n, .k = rows,
        .c = matrix(type, order, c, ldc),
        .alpha = scalar_at(type, alpha), .beta = scalar_at(type, beta),
    };
    if (is_zero(u.alpha)) {
        update(&u);
        return 0;
    }
    Matrix all = expanded(type, rows, matrix(type, order, a, lda), shape_of(uplo), structure);
    Matrix general = matrix(type, order, b, ldb);
    u.a = is_left ? all : general;
    u.b = is_left ? general : all;
    update(&u);
    free(all.data);
    return 0;
}

/* syrk and herk: a triangle of alpha op(A) op(A)^T + beta C, or with op(A)^H. */
int syrk(Type type, Order order, Structure structure, char uplo, char trans, int64_t n,
         int64_t k, const void *alpha, const void *a, int64_t lda, const void *beta, void *c,
         int64_t ldc)
{
    int is_hermitian = structure == HERMITIAN, turns = is_transposed(trans);
    if (!is_one_of(uplo, "UL"))
        return 1;
    if (!is_one_of(trans, is_hermitian ? "NC" : type.components == 2 ? "NT" : "NTC"))
        return 2;
    if (n < 0)
        return 3;
    if (k < 0)
        return 4;
    if (!is_leading(order, lda, turns ? k : n, turns ? n : k))
        return 7;
    if (!is_leading(order, ldc, n, n))
        return 10;
    Type scalar_type = is_hermitian ? real_type(type) : type;
    Matrix left = operand(matrix(type, order, a, lda), trans);
    update(&(Update){
        .type = type, .result_type = type, .m = n, .n = n, .k = k,
        .a = left, .b = is_hermitian ? conjugated(transposed(left)) : transposed(left),
        .c = matrix(type, order, c, ldc), .c_shape = shape_of(uplo),
        .alpha = scalar_at(scalar_type, alpha), .beta = scalar_at(scalar_type, beta),
        .has_real_diagonal = is_hermitian,
    });
    return 0;
}

/* [A B] in new memory. */
static Matrix joined(Type type, ptrdiff_t n, ptrdiff_t k, const Matrix *a, const Matrix *b)
{
    Matrix both = scratch_matrix(type, n, 2 * k), second = both;
    second.data += k * both.column;
    copy_matrix(type, n, k, a, &both);
    copy_matrix(type, n, k, b, &second);
    return both;
}

/* syr2k: a triangle of alpha A B^T + alpha B A^T + beta C = alpha [A B] [B A]^T + beta C; and
 * her2k with A B^H and conj(alpha) B A^H. */
int syr2k(Type type, Order order, Structure structure, char uplo, char trans, int64_t n,
          int64_t k, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
          const void *beta, void *c, int64_t ldc)
{
    int is_hermitian = structure == HERMITIAN, turns = is_transposed(trans);
    if (!is_one_of(uplo, "UL"))
        return 1;
    if (!is_one_of(trans, is_hermitian ? "NC" : type.components == 2 ? "NT" : "NTC"))
        return 2;
    if (n < 0)
        return 3;
    if (k < 0)
        return 4;
    if (!is_leading(order, lda, turns ? k : n, turns ? n : k))
        return 7;
    if (!is_leading(order, ldb, turns ? k : n, turns ? n : k))
        return 9;
    if (!is_leading(order, ldc, n, n))
        return 12;
    Update u = {
        .type = type, .result_type = type, .m = n, .n = n, .k = 2 * k,
        .c = matrix(type, order, c, ldc), .c_shape = shape_of(uplo),
        .alpha = scalar_at(type, alpha),
        .beta = scalar_at(is_hermitian ? real_type(type) : type, beta),
        .has_real_diagonal = is_hermitian,
    };
    if (n == 0 || k == 0 || is_zero(u.alpha)) {
        u.k = 0;
        update(&u);
        return 0;
    }
    Matrix first = operand(matrix(type, order, a, lda), trans);
    Matrix second = operand(matrix(type, order, b, ldb), trans);
    Matrix left = joined(type, n, k, &first, &second);
    Matrix swapped = joined(type, n, k, &second, &first);
    u.a = left;
    u.b = is_hermitian ? conjugated(transposed(swapped)) : transposed(swapped);
    u.conjugate_from = is_hermitian ? k : 0;
    update(&u);
    free(left.data);
    free(swapped.data);
    return 0;
}

/* ---- triangular matrices -------------------------------------------------------- */

/* B := alpha op(A) B, m x n, for a triangular A, in place. */
void multiply_by_triangle(Type type, Shape shape, char trans, int is_unit, ptrdiff_t m,
                          ptrdiff_t n, Scalar alpha, Matrix a, Matrix b)
{
    Update u = {
        .type = type, .result_type = type, .m = m, .n = n, .k = m, .c = b, .alpha = alpha,
        .a_shape = shape,
    };
    if (m == 0 || n == 0)
        return;
    if (is_zero(alpha)) {
        update(&u);
        return;
    }
    Matrix all = expanded(type, m, a, shape, is_unit ? UNIT_TRIANGULAR : TRIANGULAR);
    Matrix copy = scratch_matrix(type, m, n);
    copy_matrix(type, m, n, &b, &copy);
    u.a = operand(all, trans);
    u.b = copy;
    if (is_transposed(trans))
        u.a_shape = shape == LOWER ? UPPER : LOWER;
    update(&u);
    free(all.data);
    free(copy.data);
}

/* From the right, B op(A) is the transpose of op(A)^T B^T. */
int trmm(Type type, Order order, char side, char uplo, char transa, char diag, int64_t m,
         int64_t n, const void *alpha, const void *a, int64_t lda, void *b, int64_t ldb)
{
    int is_left = is_one_of(side, "L"), is_unit = is_one_of(diag, "U");
    int64_t rows = is_left ? m : n;
    if (!is_one_of(side, "LR"))
        return 1;
    if (!is_one_of(uplo, "UL"))
        return 2;
    if (!is_one_of(transa, "NTC"))
        return 3;
    if (!is_one_of(diag, "UN"))
        return 4;
    if (m < 0)
        return 5;
    if (n < 0)
        return 6;
    if (!is_leading(order, lda, rows, rows))
        return 9;
    if (!is_leading(order, ldb, m, n))
        return 11;
    Matrix triangle = matrix(type, order, a, lda), result = matrix(type, order, b, ldb);
    Shape shape = shape_of(uplo);
    Scalar factor = scalar_at(type, alpha);
    if (is_left) {
        multiply_by_triangle(type, shape, transa, is_unit, m, n, factor, triangle, result);
        return 0;
    }
    /* op(A)^T is A^T, A or conj(A): a transposed view, and the transposition left over. */
    if (is_one_of(transa, "C"))
        triangle = conjugated(triangle);
    triangle = transposed(triangle);
    shape = shape == LOWER ? UPPER : LOWER;
    char trans = is_transposed(transa) ? 'T' : 'N';
    multiply_by_triangle(type, shape, trans, is_unit, n, m, factor, triangle,
                         transposed(result));
    return 0;
}
