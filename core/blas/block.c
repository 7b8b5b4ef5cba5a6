/* A block of C := alpha A B + beta C, with each number rounded once.
 *
 * alpha is a shift or a factor of the core's sums, or alpha B is a sum of words; problem_of
 * decides. beta C is a sum of words too, which the core adds and rounds: see scaled.c. If
 * words are not exact, near the ends of the range, an accumulator computes the exact value of
 * each formula.
 */

#include "blas.h"

#include <math.h>
#include <stdlib.h>

/* ---- places --------------------------------------------------------------------- */

/* Columns of a block, from `first` on and before `last`, that are written of a row. */
void find_columns(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t *first,
                  ptrdiff_t *last)
{
    Shape shape = p->u->c_shape;
    *first = block->j;
    *last = block->j + block->columns;
    if (shape == UPPER && *first < i)
        *first = i;
    if (shape == LOWER && *last > i + 1)
        *last = i + 1;
}

/* The positions of the numbers of an entry in a block, row by row. */
ptrdiff_t index_of(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t j)
{
    return ((i - block->i) * block->columns + (j - block->j)) * p->u->type.components;
}

/* 1 for a number that Inf and NaN have not settled. */
static int is_open(const double *settled, ptrdiff_t index)
{
    return !settled || isfinite(settled[index]);
}

/* The numbers of a block of C, in place. */
static View view_of_block(const Update *u, const Block *block)
{
    View c = view_of(u->result_type, &u->c);
    c.data += block->i * c.row + block->j * c.column;
    return c;
}

/* 1 if the numbers of some rows and columns are finite. */
static int are_finite(const View *x, ptrdiff_t i, ptrdiff_t rows, ptrdiff_t j,
                      ptrdiff_t columns)
{
    for (ptrdiff_t r = i; r < i + rows; r++) {
        const char *at = x->data + r * x->row + j * x->column;
        int is_finite = 1;
        for (ptrdiff_t v = 0; v < columns; v++)
            is_finite &= isfinite(number_at(at + v * x->column, x->is_single)) != 0;
        if (!is_finite)
            return 0;
    }
    return 1;
}

/* ---- sums of words -------------------------------------------------------------- */

/* Write the words of beta C to planes of `count` numbers, with zeros for entries that are not
 * written; NO_INTEGER if they are not exact, NOT_FINITE if one is Inf or NaN. */
static Outcome read_addends(const Problem *p, const Block *block, const double *settled,
                            ptrdiff_t count, double *addends)
{
    const Update *u = p->u;
    memset(addends, 0, (size_t)(count * p->addends) * sizeof *addends);
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++) {
            Scalar c = read_entry(u, i, j);
            ptrdiff_t index = index_of(p, block, i, j);
            for (int q = 0; q < u->type.components; q++) {
                double *words = addends + index + q;
                if (!is_open(settled, index + q))
                    continue;
                if (!split_multiple(u->result_type, p->beta, c, q, words, count))
                    return NO_INTEGER;
                for (int word = 0; word < p->addends; word++)
                    if (!isfinite(words[word * count]))
                        return NOT_FINITE;
            }
        }
    }
    return DONE;
}

/* Copy the numbers of a view to another one of its type. */
static void copy_numbers(View from, View to, ptrdiff_t rows, ptrdiff_t columns)
{
    const size_t size = from.is_single ? sizeof(float) : sizeof(double);
    for (ptrdiff_t i = 0; i < rows; i++) {
        const char *source = from.data + i * from.row;
        char *target = to.data + i * to.row;
        for (ptrdiff_t j = 0; j < columns; j++, source += from.column, target += to.column)
            if (size == sizeof(double))
                memcpy(target, source, sizeof(double));
            else
                memcpy(target, source, sizeof(float));
    }
}

/* Write a block by sums of the core; NO_INTEGER if words of beta C are not exact.
 *
 * The core writes to new memory, because it reads C again for entries that it adds a second
 * time. For a whole block of real numbers it reads C in place if beta is 1, and without beta
 * it also writes in place. */
static Outcome write_sums(const Problem *p, const Block *block, const double *settled)
{
    const Update *u = p->u;
    const Type type = real_type(u->result_type);
    const int components = u->type.components, per_term = components * p->words;
    const ptrdiff_t width = components * block->columns, count = block->rows * width;
    const ptrdiff_t term = per_term * block->first_term;
    const int is_whole = components == 1 && u->c_shape == FULL && !settled;
    const int is_in_place = is_whole && p->addends == 0;
    const View c = view_of_block(u, block);
    Matrix values = {.data = NULL};
    if (!is_in_place)
        values = scratch_matrix(type, block->rows, width);
    Product product = {
        .batch = 1, .m = block->rows, .n = width, .k = per_term * block->terms,
        .a = p->scaled_left, .b = p->scaled_right,
        .first = is_in_place ? c : view_of(type, &values),
        .factor = p->factor, .shift = p->shift, .kind = NEAREST,
    };
    product.a.data += block->i * product.a.row + term * product.a.column;
    product.b.data += term * product.b.row + components * block->j * product.b.column;

    double *addends = NULL;
    Outcome outcome = DONE;
    if (p->addends > 0 && is_whole && p->beta.re == 1.0) {
        product.c = c;
        if (!are_finite(&c, 0, block->rows, 0, block->columns))
            outcome = NOT_FINITE;
    } else if (p->addends > 0) {
        addends = allocated((size_t)(count * p->addends), sizeof(double));
        outcome = read_addends(p, block, settled, count, addends);
        product.c = (View){.data = (char *)addends, .column = sizeof(double),
                           .row = width * (ptrdiff_t)sizeof(double)};
        product.more_addends = p->addends - 1;
        product.addend = count * (ptrdiff_t)sizeof(double);
    }
    Watch watch = watch_of_call();
    if (outcome == DONE)
        outcome = multiply(&product, p->kernels, &watch);

    if (is_whole && !is_in_place && outcome == DONE)
        copy_numbers(view_of(type, &values), c, block->rows, block->columns);
    for (ptrdiff_t i = block->i; !is_whole && outcome == DONE && i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++) {
            ptrdiff_t index = index_of(p, block, i, j);
            const char *at = values.data + index * size_of(type);
            for (int q = 0; q < components; q++)
                if (is_open(settled, index + q))
                    write_number(u, i, j, q,
                                 number_at(at + q * size_of(type), type.is_single));
        }
    }
    free(values.data);
    free(addends);
    return outcome;
}

/* ---- exact sums ----------------------------------------------------------------- */

/* The value of a formula, rounded once. */
static double exact_value(const Problem *p, ptrdiff_t i, const Formula *formula)
{
    const Format *format = p->u->result_type.is_single ? &BINARY32 : &BINARY64;
    const View *left = &p->left, *right = &p->right;
    Watch watch = watch_of_call();
    Accumulator total;
    total.first = total.last = 0;
    for (int x = 0; x < formula->products; x++) {
        const MultipleOf *of = &formula->multiples[x];
        const char *row = left->data + i * left->row + of->first * left->column;
        const char *column = right->data + of->first * right->row + of->column * right->column;
        Multiple multiple = {
            of->factor, of->terms, decode(of->terms, row, left->column, left->is_single),
            decode(of->terms, column, right->row, right->is_single)};
        accumulate_multiple(&total, &multiple, &watch);
        free_decoded(multiple.a);
        free_decoded(multiple.b);
    }
    for (int x = 0; x < formula->addends; x++)
        accumulate_product(&total, formula->pairs[x][0], formula->pairs[x][1]);
    return rounded_accumulator(&total, format);
}

/* 1 if all numbers of C that formulas read are finite. */
static int are_addends_finite(const Problem *p, const Block *block, const double *settled)
{
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++)
            for (int q = 0; q < p->u->type.components; q++) {
                Formula formula = formula_of(p, block, i, j, q);
                int is_needed = is_open(settled, index_of(p, block, i, j) + q);
                for (int x = 0; x < formula.addends; x++)
                    if (is_needed && !isfinite(formula.pairs[x][1]))
                        return 0;
            }
    }
    return 1;
}

/* Write a block by exact sums alone. */
static Outcome write_exact_values(const Problem *p, const Block *block,
                                  const double *settled)
{
    const Update *u = p->u;
    const int components = u->type.components;
    const ptrdiff_t first_term = components * block->first_term;
    const ptrdiff_t terms = components * block->terms;
    if (!are_finite(&p->left, block->i, block->rows, first_term, terms)
        || !are_finite(&p->right, first_term, terms, components * block->j,
                       components * block->columns)
        || !are_addends_finite(p, block, settled))
        return NOT_FINITE;
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++) {
            /* Each number may read both numbers of its entry, so both are written together. */
            ptrdiff_t index = index_of(p, block, i, j);
            double values[2] = {0.0, 0.0};
            for (int q = 0; q < components; q++) {
                Formula formula = formula_of(p, block, i, j, q);
                if (is_open(settled, index + q))
                    values[q] = exact_value(p, i, &formula);
            }
            for (int q = 0; q < components; q++)
                if (is_open(settled, index + q))
                    write_number(u, i, j, q, values[q]);
        }
    }
    return DONE;
}

/* Write a block of beta C without a product. A zero keeps its sign times the sign of beta. */
static Outcome write_multiples(const Problem *p, const Block *block)
{
    const Update *u = p->u;
    for (ptrdiff_t i = block->i; i < block->i + block->rows; i++) {
        ptrdiff_t first, last;
        find_columns(p, block, i, &first, &last);
        for (ptrdiff_t j = first; j < last; j++) {
            Scalar c = u->beta.re == 0.0 ? (Scalar){0.0, 0.0} : read_entry(u, i, j);
            write_number(u, i, j, 0, u->beta.re == 0.0 ? 0.0 : u->beta.re * c.re);
            if (u->type.components == 2)
                write_number(u, i, j, 1, u->beta.re == 0.0 ? 0.0 : u->beta.re * c.im);
        }
    }
    return DONE;
}

/* Write a block; NOT_FINITE if operands, scalars or C are not finite. Numbers that are
 * already settled, Inf and NaN, are left out. */
Outcome write_block(const Problem *p, const Block *block, const double *settled)
{
    const Scalar alpha = p->u->alpha, beta = p->u->beta;
    if (block->terms == 0 && beta.im == 0.0)
        return write_multiples(p, block);
    if (!isfinite(alpha.re) || !isfinite(alpha.im) || !isfinite(beta.re)
        || !isfinite(beta.im))
        return NOT_FINITE;
    if (!p->is_exact) {
        Outcome outcome = write_sums(p, block, settled);
        if (outcome != NO_INTEGER)
            return outcome;
    }
    return write_exact_values(p, block, settled);
}
