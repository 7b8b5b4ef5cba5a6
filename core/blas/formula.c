/* What each number of C is a sum of. */

#include "blas.h"

#include <math.h>

/* A number of a block: component q of entry (i, j). */
typedef struct {
    ptrdiff_t i, j;
    int q;
} Place;

static Place place_of(const Problem *p, const Block *block, ptrdiff_t index)
{
    ptrdiff_t entry = index / p->u->type.components;
    return (Place){block->i + entry / block->columns, block->j + entry % block->columns,
                   (int)(index % p->u->type.components)};
}

static char *result_at(const Problem *p, Place at)
{
    return entry_of(&p->u->c, at.i, at.j) + at.q * size_of_number(p->u->result_type);
}

/* 1 for an imaginary part on the diagonal of a Hermitian matrix: 0, and never read. */
static int is_zero_part(const Problem *p, Place at)
{
    return p->u->has_real_diagonal && at.q == 1 && at.i == at.j;
}

/* A number of C in front of the update. */
double read_number(const Problem *p, const Block *block, ptrdiff_t index)
{
    Place at = place_of(p, block, index);
    if (is_zero_part(p, at))
        return 0.0;
    return number_at(result_at(p, at), p->u->result_type.is_single);
}

void write_number(const Problem *p, const Block *block, ptrdiff_t index, double value)
{
    Place at = place_of(p, block, index);
    if (is_zero_part(p, at))
        value = 0.0;
    set_number(result_at(p, at), p->u->result_type.is_single, value);
}

/* 1 for a number of C that is to be written and that Inf and NaN have not settled. */
int is_open(const Problem *p, const Block *block, const double *settled, ptrdiff_t index)
{
    Place at = place_of(p, block, index);
    return is_in_shape(p->u->c_shape, at.i, at.j) && !(settled && !isfinite(settled[index]));
}

/* alpha T + beta C: the imaginary part of a scalar turns re and im of what it multiplies.
 * Zeros multiply nothing. C is read where it is written alone. */
Formula formula_of(const Problem *p, const Block *block, ptrdiff_t index)
{
    const Scalar alpha = p->alpha, beta = p->u->beta;
    const Place at = place_of(p, block, index);
    const ptrdiff_t other = index + 1 - 2 * at.q; /* the entry's other component */
    const double turn = at.q == 1 ? 1.0 : -1.0;
    const int has_products = block->terms > 0;
    Formula formula = {.products = 0};

    if (alpha.re != 0.0 && has_products)
        formula.multiples[formula.products++] = (MultipleOf){alpha.re, 0, index};
    if (alpha.im != 0.0 && has_products)
        formula.multiples[formula.products++] = (MultipleOf){turn * alpha.im, 1, other};
    if (!is_in_shape(p->u->c_shape, at.i, at.j))
        return formula;
    if (beta.re != 0.0) {
        formula.pairs[formula.addends][0] = beta.re;
        formula.pairs[formula.addends++][1] = read_number(p, block, index);
    }
    if (beta.im != 0.0) {
        formula.pairs[formula.addends][0] = turn * beta.im;
        formula.pairs[formula.addends++][1] = read_number(p, block, other);
    }
    return formula;
}
