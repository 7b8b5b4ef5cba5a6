/* Entries that Inf and NaN reach.
 *
 * As in numerics/special.py such an entry is Inf or NaN, and which one follows from signs
 * in the place of finite numbers: their sums cannot overflow, so the result is what IEEE
 * arithmetic gives in any order of summation. As in the reference BLAS a scalar multiplies
 * each term.
 */

#include "blas.h"

#include <math.h>
#include <stdlib.h>

static double sign_of(double x)
{
    return isfinite(x) ? (double)((x > 0.0) - (x < 0.0)) : x;
}

/* A copy with zeros for Inf and NaN; `is_dirty` says which rows, or columns, hold one. */
static View cleaned(const View *x, ptrdiff_t m, ptrdiff_t n, int by_rows, char *is_dirty)
{
    double *copy = allocated((size_t)m * (size_t)n, sizeof(double));
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            double number = number_at(x->data + i * x->row + j * x->column, x->is_single);
            copy[i * n + j] = isfinite(number) ? number : 0.0;
            if (!isfinite(number))
                is_dirty[by_rows ? i : j] = 1;
        }
    return (View){.data = (char *)copy, .row = n * (ptrdiff_t)sizeof(double),
                  .column = sizeof(double)};
}

/* 1 where a term of a row stands for an entry of A, and not for a structural zero. */
static int is_term(const Update *u, ptrdiff_t i, ptrdiff_t term)
{
    return is_in_shape(u->a_shape, i, term / u->type.components);
}

/* A formula with signs for finite numbers: Inf or NaN, or finite where neither reaches it. */
static double value_by_signs(const Problem *p, const Block *block, const Formula *formula)
{
    const Update *u = p->u;
    const int components = u->type.components;
    const ptrdiff_t width = components * block->columns, terms = components * u->k;
    const View *right = &p->right;
    double sum = 0.0;
    for (const MultipleOf *x = formula->multiples; x < formula->multiples + formula->products;
         x++) {
        const View *left = left_of(p, x);
        ptrdiff_t i = block->i + x->index / width;
        ptrdiff_t j = components * block->j + x->index % width;
        const char *a = left->data + i * left->row, *b = right->data + j * right->column;
        for (ptrdiff_t h = 0; h < terms; h++) {
            if (!is_term(u, i, h))
                continue;
            double factor = sign_of(x->factor)
                          * sign_of(number_at(b + h * right->row, right->is_single));
            sum += sign_of(number_at(a + h * left->column, left->is_single)) * factor;
        }
    }
    for (int i = 0; i < formula->addends; i++)
        sum += sign_of(formula->pairs[i][0]) * sign_of(formula->pairs[i][1]);
    return sum;
}

/* Write a block whose operands, scalars or addends hold Inf or NaN. */
void write_nonfinite_block(const Problem *p, const Block *block)
{
    const Update *u = p->u;
    const int components = u->type.components;
    const ptrdiff_t terms = components * u->k, columns = components * u->n;
    const ptrdiff_t width = components * block->columns, count = block->rows * width;

    /* Operands without Inf and NaN, and where these are. */
    char *is_dirty_row = calloc((size_t)u->m, 1), *is_dirty_column = calloc((size_t)columns, 1);
    double *settled = calloc((size_t)count, sizeof(double));
    if (!is_dirty_row || !is_dirty_column || !settled)
        allocated(SIZE_MAX, 1); /* which ends the program */
    Problem clean = *p;
    clean.left = cleaned(&p->left, u->m, terms, 1, is_dirty_row);
    clean.right = cleaned(&p->right, terms, columns, 0, is_dirty_column);
    clean.imaginary_left = clean.left;
    if (u->imaginary_a)
        clean.imaginary_left = cleaned(&p->imaginary_left, u->m, terms, 1, is_dirty_row);

    /* All other numbers are written as ever. */
    int are_scalars_finite = isfinite(p->alpha.re) && isfinite(p->alpha.im)
                          && isfinite(u->beta.re) && isfinite(u->beta.im);
    for (ptrdiff_t index = 0; index < count; index++) {
        if (!is_open(p, block, NULL, index))
            continue;
        Formula formula = formula_of(p, block, index);
        int is_reached = !are_scalars_finite || is_dirty_row[block->i + index / width]
                      || is_dirty_column[components * block->j + index % width];
        for (int i = 0; i < formula.addends; i++)
            is_reached |= !isfinite(formula.pairs[i][1]);
        if (is_reached)
            settled[index] = value_by_signs(p, block, &formula);
    }
    if (are_scalars_finite)
        write_block(&clean, block, settled);
    for (ptrdiff_t index = 0; index < count; index++)
        if (is_open(p, block, NULL, index) && !isfinite(settled[index]))
            write_number(p, block, index, settled[index]);

    if (clean.imaginary_left.data != clean.left.data)
        free(clean.imaginary_left.data);
    free(clean.left.data);
    free(clean.right.data);
    free(is_dirty_row);
    free(is_dirty_column);
    free(settled);
}
