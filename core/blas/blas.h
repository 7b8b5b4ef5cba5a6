/* A correctly rounded BLAS for programs without Python: declarations that its files share.
 *
 *   update.c      C := alpha A B + beta C, in blocks of rows and by threads
 *   scaled.c      multiples of operands as sums of words
 *   block.c       a block of the result: sums of the core, and exact ones
 *   formula.c     the terms of which each number of C is the sum
 *   nonfinite.c   entries that Inf and NaN reach
 *   operands.c    views and copies of operands
 *   long_dot.c    dot products of vectors that are too long for a copy
 *   level1.c level2.c level3.c   the routines, one body for all types and interfaces
 *   fortran.h cblas.h interfaces.c   their names, for integers of 32 and of 64 bits
 *   summary.c     counts of calls, for the command that asks for them
 *
 * Each entry is the exact value of its formula, rounded once to nearest, for any alpha and
 * beta. So its bits depend neither on threads nor on blocks. An exact zero is +0, and other
 * values that round to zero keep their sign.
 */
#ifndef HIFIGEMM_BLAS_H
#define HIFIGEMM_BLAS_H

#include "../core.h"

#include <math.h>

/* ---- numbers -------------------------------------------------------------------- */

/* A type by the numbers that an entry consists of. */
typedef struct {
    int is_single, components; /* 1 or 2 */
} Type;

extern const Type SINGLE, DOUBLE, SINGLE_COMPLEX, DOUBLE_COMPLEX;

typedef struct {
    double re, im;
} Scalar;

static inline ptrdiff_t size_of_number(Type type)
{
    return type.is_single ? sizeof(float) : sizeof(double);
}

static inline ptrdiff_t size_of(Type type)
{
    return type.components * size_of_number(type);
}

static inline Type real_type(Type type)
{
    return (Type){type.is_single, 1};
}

static inline double number_at(const char *at, int is_single)
{
    float x;
    double y;
    if (is_single) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&y, at, sizeof y);
    return y;
}

static inline void set_number(char *at, int is_single, double value)
{
    float single = (float)value;
    if (is_single)
        memcpy(at, &single, sizeof single);
    else
        memcpy(at, &value, sizeof value);
}

static inline Scalar scalar_at(Type type, const void *at)
{
    const char *bytes = at;
    Scalar x = {number_at(bytes, type.is_single), 0.0};
    if (type.components == 2)
        x.im = number_at(bytes + size_of_number(type), type.is_single);
    return x;
}

static inline int is_zero(Scalar x)
{
    return x.re == 0.0 && x.im == 0.0;
}

/* ---- operands.c ----------------------------------------------------------------- */

/* A matrix of the caller or in scratch memory; strides are in bytes. */
typedef struct {
    char *data;
    ptrdiff_t row, column;
    int is_conjugate;
} Matrix;

/* The part of a matrix that is read or written. */
typedef enum { FULL, LOWER, UPPER } Shape;
typedef enum { SYMMETRIC, HERMITIAN, TRIANGULAR, UNIT_TRIANGULAR } Structure;

static inline char *entry_of(const Matrix *x, ptrdiff_t i, ptrdiff_t j)
{
    return x->data + i * x->row + j * x->column;
}

int is_in_shape(Shape shape, ptrdiff_t i, ptrdiff_t j);
void *allocated(size_t count, size_t size);
Matrix transposed(Matrix x);
Matrix conjugated(Matrix x);
Matrix vector(Type type, ptrdiff_t n, const void *x, ptrdiff_t increment);
Matrix scratch_matrix(Type type, ptrdiff_t m, ptrdiff_t n);
void copy_matrix(Type type, ptrdiff_t m, ptrdiff_t n, const Matrix *from, const Matrix *to);
Matrix expanded(Type type, ptrdiff_t n, Matrix x, Shape shape, Structure structure);
View embedded_left(Type type, ptrdiff_t m, ptrdiff_t k, const Matrix *x);
View embedded_right(Type type, ptrdiff_t k, ptrdiff_t n, const Matrix *x);
View view_of(Type type, const Matrix *x);
Watch watch_of_call(void);
Decoded decode(ptrdiff_t k, const char *at, ptrdiff_t stride, int is_single);
void free_decoded(Decoded x);

/* ---- update.c ------------------------------------------------------------------- */

/* C := alpha A B + beta C for A m x k and B k x n; of a shape other than FULL only the
 * entries of a triangle are written. Structural zeros of A are not multiplied. From term
 * `conjugate_from` on, unless that is 0, conj(alpha) replaces alpha. */
typedef struct {
    Type type, result_type;
    ptrdiff_t m, n, k, conjugate_from;
    Matrix a, b, c;
    Shape a_shape, c_shape;
    Scalar alpha, beta;
    int has_real_diagonal; /* C is Hermitian */
} Update;

/* The address of component q of an entry of C. */
static inline char *result_at(const Update *u, ptrdiff_t i, ptrdiff_t j, int q)
{
    return entry_of(&u->c, i, j) + q * size_of_number(u->result_type);
}

/* An entry of C; the imaginary part on the diagonal of a Hermitian matrix is 0, and never
 * read. */
static inline Scalar read_entry(const Update *u, ptrdiff_t i, ptrdiff_t j)
{
    int is_real = u->type.components == 1 || (u->has_real_diagonal && i == j);
    Scalar x = {number_at(result_at(u, i, j, 0), u->result_type.is_single), 0.0};
    if (!is_real)
        x.im = number_at(result_at(u, i, j, 1), u->result_type.is_single);
    return x;
}

static inline void write_number(const Update *u, ptrdiff_t i, ptrdiff_t j, int q, double value)
{
    if (u->has_real_diagonal && i == j && q == 1)
        value = 0.0;
    set_number(result_at(u, i, j, q), u->result_type.is_single, value);
}

/* The operands of an update as real matrices, m x (components k) and (components k) x
 * (components n); and with alpha, 2^shift times a product whose terms are `words` for each
 * of theirs, times `factor` unless that is 0. beta C is 2^shift times `addends` words. */
typedef struct {
    const Update *u;
    View left, right, scaled_left, scaled_right;
    Scalar beta; /* times 2^-shift */
    double factor;
    int words, addends, shift;
    int is_exact; /* by exact sums: words are not */
    const Kernels *kernels;
} Problem;

/* Rows and columns of C that are written together, and the terms that they need. */
typedef struct {
    ptrdiff_t i, j, rows, columns, first_term, terms;
} Block;

void update(const Update *u);
Problem problem_of(const Update *u, View left, View right);
void free_scaled(const Problem *p);

/* ---- summary.c ------------------------------------------------------------------ */

/* Counts of calls, or NULL if they are not requested. */
extern struct Tally *tally;

/* Of a call: its time of start, its sizes, m x k and k x n, and its end. */
int64_t start_call(void);
void note_sizes(int64_t m, int64_t n, int64_t k, double products);
void count_call(const char *name, int64_t start);

/* ---- scaled.c ------------------------------------------------------------------- */

int is_power(double x);
int words_of_multiple(Type type, Scalar s);
int split_multiple(Type type, Scalar s, Scalar x, int q, double *words, ptrdiff_t step);
int scale_right(const Update *u, const View *right, Scalar alpha, int words, View *scaled);
View repeat_left(const Update *u, const View *left, int words);

/* ---- block.c -------------------------------------------------------------------- */

/* `settled` has the numbers of a block, row by row, that Inf and NaN reach, and finite
 * numbers for all others; or it is NULL. */
Outcome write_block(const Problem *p, const Block *block, const double *settled);
void find_columns(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t *first,
                  ptrdiff_t *last);
ptrdiff_t index_of(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t j);

/* ---- formula.c ------------------------------------------------------------------ */

enum { MOST_MULTIPLES = 4 };

/* A factor times a sum of products: of numbers of a row of A and a column of B, from number
 * `first` of these on. */
typedef struct {
    double factor;
    ptrdiff_t column, first, terms;
} MultipleOf;

/* A number of C: such multiples, and products of pairs. */
typedef struct {
    int products, addends;
    MultipleOf multiples[MOST_MULTIPLES];
    double pairs[2][2];
} Formula;

Formula formula_of(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t j, int q);
/* ---- nonfinite.c ---------------------------------------------------------------- */

/* Signs of finite numbers, and Inf and NaN. */
static inline double sign_of(double x)
{
    return isfinite(x) ? (double)((x > 0.0) - (x < 0.0)) : x;
}

void write_nonfinite_block(const Problem *p, const Block *block);

/* ---- level1.c, level2.c, level3.c ----------------------------------------------- */

typedef enum { BY_COLUMNS, BY_ROWS } Order;

int is_one_of(char letter, const char *letters);
int is_leading(Order order, int64_t ld, int64_t rows, int64_t columns);
Shape shape_of(char uplo);
Matrix matrix(Type type, Order order, const void *data, int64_t ld);
Matrix operand(Matrix x, char trans);
void multiply_by_triangle(Type type, Shape shape, char trans, int is_unit, ptrdiff_t m,
                          ptrdiff_t n, Scalar alpha, Matrix a, Matrix b);

/* Scalars and results are passed by address, so they are converted after the arithmetic mode
 * is set. Routines return 0, or the number of the first wrong argument, counted as in
 * Fortran. */
void dot(Type type, Type result_type, int is_conjugate, const void *addend, int64_t n,
         const void *x, int64_t incx, const void *y, int64_t incy, void *result);
void long_dot(Type type, Type result_type, int is_conjugate, const void *addend, int64_t n,
              const void *x, int64_t incx, const void *y, int64_t incy, void *result);
void sum_of_magnitudes(Type type, int64_t n, const void *x, int64_t incx, void *result);
void norm(Type type, int64_t n, const void *x, int64_t incx, void *result);
int64_t first_largest(Type type, int64_t n, const void *x, int64_t incx);

int gemv(Type type, Order order, char trans, int64_t m, int64_t n, const void *alpha,
         const void *a, int64_t lda, const void *x, int64_t incx, const void *beta, void *y,
         int64_t incy);
int symv(Type type, Order order, Structure structure, char uplo, int64_t n, const void *alpha,
         const void *a, int64_t lda, const void *x, int64_t incx, const void *beta, void *y,
         int64_t incy);
int trmv(Type type, Order order, char uplo, char trans, char diag, int64_t n,
         const void *a, int64_t lda, void *x, int64_t incx);
int ger(Type type, Order order, int is_conjugate, int64_t m, int64_t n, const void *alpha,
        const void *x, int64_t incx, const void *y, int64_t incy, void *a, int64_t lda);

int gemm(Type type, Order order, char transa, char transb, int64_t m, int64_t n, int64_t k,
         const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta,
         void *c, int64_t ldc);
int gemmt(Type type, Order order, char uplo, char transa, char transb, int64_t n, int64_t k,
          const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb, const void *beta,
          void *c, int64_t ldc);
int symm(Type type, Order order, Structure structure, char side, char uplo, int64_t m,
         int64_t n, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
         const void *beta, void *c, int64_t ldc);
int syrk(Type type, Order order, Structure structure, char uplo, char trans, int64_t n,
         int64_t k, const void *alpha, const void *a, int64_t lda, const void *beta, void *c,
         int64_t ldc);
int syr2k(Type type, Order order, Structure structure, char uplo, char trans, int64_t n,
          int64_t k, const void *alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
          const void *beta, void *c, int64_t ldc);
int trmm(Type type, Order order, char side, char uplo, char transa, char diag, int64_t m,
         int64_t n, const void *alpha, const void *a, int64_t lda, void *b, int64_t ldb);

#endif
