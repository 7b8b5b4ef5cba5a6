/* Entries that Inf and NaN reach.
 *
 * As in numerics/special.py, such an entry is Inf or NaN. Signs in place of finite numbers
 * decide which one: their sums cannot overflow, so the result is the one of IEEE arithmetic
 * in any order of summation. As in the reference BLAS, a scalar multiplies each term.
 */

#include "blas.h"

#include <math.h>
#include <stdlib.h>

/* A copy with zeros for Inf and NaN; `is_dirty` marks the rows, or columns, that hold one. */
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

/* 1 if a term of a row is an entry of A, 0 if it is a structural zero. */
static int is_term(const Update *u, ptrdiff_t i, ptrdiff_t term)
{
    return is_in_shape(u->a_shape, i, term / u->type.components);
}

/* A formula with signs for finite numbers: Inf or NaN, or finite if neither reaches it. */
static double value_by_signs(const Problem *p, ptrdiff_t i, const Formula *formula)
{
    const View *left = &p->left, *right = &p->right;
    double sum = 0.0;
    for (int x = 0; x < formula->products; x++) {
        const MultipleOf *of = &formula->multiples[x];
        const char *a = left->data + i * left->row, *b = right->data + of->column * right->column;
        for (ptrdiff_t h = of->first; h < of->first + of->terms; h++) {
            if (!is_term(p->u, i, h))
                continue;
            double factor = sign_of(of->factor)
                          * sign_of(number_at(b + h * right->row, right->is_single));
            sum += sign_of(number_at(a + h * left->column, left->is_single)) * factor;
        }
    }
    for (int x = 0; x < formula->addends; x++)
        sum += sign_of(formula->pairs[x][0]) * sign_of(formula->pairs[x][1]);
    return sum;
}

/* Write a block whose operands, scalars or addends hold Inf or NaN. */
void write_nonfinite_block(const Problem *p, const Block *block)
{
    const Update *u = p->u;
    const int components = u->type.components;
    const ptrdiff_t terms = components * u->k, columns = components * u->n;
    const ptrdiff_t count = block->rows * components * block->columns;
    const int are_scalars_finite = isfinite(u->alpha.re) && isfinite(u->alpha.im)
                                && isfinite(u->beta.re) && isfinite(u->beta.im);

    /* Operands without Inf and NaN, and the positions of Inf and NaN. */
    char *is_dirty_row = calloc((size_t)u->m, 1), *is_dirty_column = calloc((size_t)columns, 1);
    double *settled = calloc((size_t)count, sizeof(double));
    if (!is_dirty_row || !is_dirty_column || !settled)
        allocated(SIZE_MAX, 1); /* which ends the program */
    View left = cleaned(&p->left, u->m, terms, 1, is_dirty_row);
    View right = cleaned(&p->right, terms, columns, 0, is_dirty_column);

    /* Numbers that they reach. */
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++)
            for (int q = 0; q < components; q++) {
                Formula formula = formula_of(p, block, i, j, q);
                int is_reached = !are_scalars_finite || is_dirty_row[i]
                              || is_dirty_column[components * j + q];
                for (int x = 0; x < formula.addends; x++)
                    is_reached |= !isfinite(formula.pairs[x][1]);
                if (is_reached)
                    settled[index_of(p, block, i, j) + q] = value_by_signs(p, i, &formula);
            }
    }

    /* Write all others as usual. */
    if (are_scalars_finite) {
        Problem clean = problem_of(u, left, right);
        write_block(&clean, block, settled);
        free_scaled(&clean);
    }
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++)
            for (int q = 0; q < components; q++) {
                double value = settled[index_of(p, block, i, j) + q];
                if (!isfinite(value))
                    write_number(u, i, j, q, value);
            }
    }
    free(left.data);
    free(right.data);
    free(is_dirty_row);
    free(is_dirty_column);
    free(settled);
}
