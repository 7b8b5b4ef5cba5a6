/* The terms of which each number of C is the sum. */

#include "blas.h"

/* Add alpha times the terms from `first` on and before `last`, entries of A and B. */
static void add_multiples(Formula *formula, const Update *u, Scalar alpha, ptrdiff_t j, int q,
                          ptrdiff_t first, ptrdiff_t last)
{
    const int components = u->type.components;
    const ptrdiff_t start = components * first, terms = components * (last - first);
    const ptrdiff_t column = components * j;
    if (terms > 0 && alpha.re != 0.0)
        formula->multiples[formula->products++] =
            (MultipleOf){alpha.re, column + q, start, terms};
    /* The imaginary part of a scalar turns re and im. */
    double factor = q == 1 ? alpha.im : -alpha.im;
    if (terms > 0 && alpha.im != 0.0)
        formula->multiples[formula->products++] =
            (MultipleOf){factor, column + 1 - q, start, terms};
}

/* Component q of alpha (A B) + beta C at (i, j). Zeros multiply nothing. */
Formula formula_of(const Problem *p, const Block *block, ptrdiff_t i, ptrdiff_t j, int q)
{
    const Update *u = p->u;
    const Scalar alpha = u->alpha, beta = u->beta, conjugate = {alpha.re, -alpha.im};
    const ptrdiff_t first = block->first_term, last = first + block->terms;
    Formula formula = {.products = 0};
    if (u->conjugate_from) { /* then a block has all terms */
        add_multiples(&formula, u, alpha, j, q, first, u->conjugate_from);
        add_multiples(&formula, u, conjugate, j, q, u->conjugate_from, last);
    } else {
        add_multiples(&formula, u, alpha, j, q, first, last);
    }
    if (is_zero(beta))
        return formula;

    Scalar c = read_entry(u, i, j);
    if (beta.re != 0.0) {
        formula.pairs[formula.addends][0] = beta.re;
        formula.pairs[formula.addends++][1] = q == 0 ? c.re : c.im;
    }
    if (beta.im != 0.0) {
        formula.pairs[formula.addends][0] = q == 1 ? beta.im : -beta.im;
        formula.pairs[formula.addends++][1] = q == 1 ? c.re : c.im;
    }
    return formula;
}
