/* Views and copies of operands. */

#include "blas.h"

#include <stdio.h>
#include <stdlib.h>

const Type SINGLE = {1, 1}, DOUBLE = {0, 1}, SINGLE_COMPLEX = {1, 2}, DOUBLE_COMPLEX = {0, 2};

/* Memory for at least one item. A BLAS cannot report an error, so without memory the
 * program ends. */
void *allocated(size_t count, size_t size)
{
    void *memory = count <= SIZE_MAX / 2 / size ? malloc((count ? count : 1) * size) : NULL;
    if (!memory) {
        fprintf(stderr, "hifigemm: no memory for %zu numbers of %zu bytes\n", count, size);
        abort();
    }
    return memory;
}

Matrix transposed(Matrix x)
{
    ptrdiff_t row = x.row;
    x.row = x.column;
    x.column = row;
    return x;
}

Matrix conjugated(Matrix x)
{
    x.is_conjugate = !x.is_conjugate;
    return x;
}

/* A vector as a column. One with a negative increment begins at its end in memory. */
Matrix vector(Type type, ptrdiff_t n, const void *x, ptrdiff_t increment)
{
    ptrdiff_t stride = increment * size_of(type);
    char *data = (char *)(uintptr_t)x;
    if (increment < 0 && n > 0)
        data -= (n - 1) * stride;
    return (Matrix){.data = data, .row = stride, .column = size_of(type)};
}

/* A new matrix, by rows. */
Matrix scratch_matrix(Type type, ptrdiff_t m, ptrdiff_t n)
{
    ptrdiff_t size = size_of(type);
    char *data = allocated((size_t)m * (size_t)n, (size_t)size);
    return (Matrix){.data = data, .row = n * size, .column = size};
}

/* Copy an entry, as its conjugate or not. */
static void copy_entry(Type type, const char *from, int is_conjugate, char *to)
{
    Scalar x = scalar_at(type, from);
    set_number(to, type.is_single, x.re);
    if (type.components == 2)
        set_number(to + size_of_number(type), type.is_single, is_conjugate ? -x.im : x.im);
}

/* Copy `from`, conjugated if it says so, to a matrix of its type. */
void copy_matrix(Type type, ptrdiff_t m, ptrdiff_t n, const Matrix *from, const Matrix *to)
{
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            copy_entry(type, entry_of(from, i, j), from->is_conjugate, entry_of(to, i, j));
}

int is_in_shape(Shape shape, ptrdiff_t i, ptrdiff_t j)
{
    return shape == FULL || (shape == LOWER ? j <= i : j >= i);
}

/* All entries of a square matrix with one stored triangle, in new memory. The other triangle,
 * and diagonal values that the structure fixes, are never read. */
Matrix expanded(Type type, ptrdiff_t n, Matrix x, Shape shape, Structure structure)
{
    int is_triangular = structure == TRIANGULAR || structure == UNIT_TRIANGULAR;
    Matrix all = scratch_matrix(type, n, n);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            char *to = entry_of(&all, i, j);
            int is_stored = is_in_shape(shape, i, j);
            if (is_triangular && (!is_stored || (i == j && structure == UNIT_TRIANGULAR))) {
                memset(to, 0, (size_t)size_of(type));
                if (i == j)
                    set_number(to, type.is_single, 1.0);
                continue;
            }
            const char *from = is_stored ? entry_of(&x, i, j) : entry_of(&x, j, i);
            int is_mirrored = !is_stored && structure == HERMITIAN;
            copy_entry(type, from, x.is_conjugate != is_mirrored, to);
            if (i == j && structure == HERMITIAN && type.components == 2)
                set_number(to + size_of_number(type), type.is_single, 0.0);
        }
    return all;
}

/* ---- complex matrices as real ones ---------------------------------------------- */

/* As in numerics/embedding.py: re and im of an entry lie next to each other, and A B in
 * real numbers is embedded_left(A) embedded_right(B). */

/* The numbers of A: m x (components k), by rows in new memory. */
View embedded_left(Type type, ptrdiff_t m, ptrdiff_t k, const Matrix *x)
{
    Type to_type = {0, type.components};
    ptrdiff_t row = k * size_of(to_type);
    char *data = allocated((size_t)m * (size_t)k, (size_t)size_of(to_type));
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t h = 0; h < k; h++) {
            Scalar entry = scalar_at(type, entry_of(x, i, h));
            char *to = data + i * row + h * size_of(to_type);
            set_number(to, 0, entry.re);
            if (type.components == 2)
                set_number(to + sizeof(double), 0, x->is_conjugate ? -entry.im : entry.im);
        }
    return (View){.data = data, .row = row, .column = sizeof(double)};
}

/* Rows re, im, ... and -im, re, ... of B: (components k) x (components n), by rows in new
 * memory. */
View embedded_right(Type type, ptrdiff_t k, ptrdiff_t n, const Matrix *x)
{
    if (type.components == 1)
        return embedded_left(type, k, n, x);
    ptrdiff_t width = 2 * n;
    double *data = allocated((size_t)k * (size_t)n, 4 * sizeof(double));
    for (ptrdiff_t h = 0; h < k; h++)
        for (ptrdiff_t j = 0; j < n; j++) {
            Scalar entry = scalar_at(type, entry_of(x, h, j));
            double re = entry.re, im = x->is_conjugate ? -entry.im : entry.im;
            double *to = data + 2 * h * width + 2 * j;
            to[0] = re;
            to[1] = im;
            to[width] = -im;
            to[width + 1] = re;
        }
    return (View){.data = (char *)data, .row = width * (ptrdiff_t)sizeof(double),
                  .column = sizeof(double)};
}

/* A real matrix, in place. */
View view_of(Type type, const Matrix *x)
{
    return (View){.data = x->data, .row = x->row, .column = x->column,
                  .is_single = type.is_single};
}

/* ---- exact sums ----------------------------------------------------------------- */

static int never_stops(Watch *watch)
{
    watch->terms = INT64_MAX;
    return 0;
}

/* The core reports its terms to it. Nothing stops a call of a BLAS. */
Watch watch_of_call(void)
{
    return (Watch){INT64_MAX, never_stops};
}

/* A vector with this number of terms in new memory, decoded. */
Decoded decode(ptrdiff_t k, const char *at, ptrdiff_t stride, int is_single)
{
    Decoded x = {allocated((size_t)k, sizeof(uint64_t)), allocated((size_t)k, sizeof(int16_t))};
    for (ptrdiff_t h = 0; h < k; h++) {
        int exponent;
        x.mantissas[h] = decoded(number_at(at + h * stride, is_single), &exponent);
        x.exponents[h] = (int16_t)exponent;
    }
    return x;
}

void free_decoded(Decoded x)
{
    free(x.mantissas);
    free(x.exponents);
}
