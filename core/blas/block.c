/* A block of C := alpha A B + beta C, each number rounded once.
 *
 *   plain       alpha and beta are powers of two: the core adds C to its sums, scaled so
 *               that one shift is left for both
 *   certified   a pair of numbers for each entry of A B, and the sum of its multiples where
 *               its bound makes the rounding certain: see scalar_sums.h
 *   exact       what is left: an accumulator holds the exact value
 */

#include "blas.h"
#include "../scalar_sums.h"

#include <math.h>
#include <stdlib.h>

/* ---- calls of the core ---------------------------------------------------------- */

static int never_stops(Watch *watch)
{
    watch->terms = INT64_MAX;
    return 0;
}

static Watch watch_of_call(void)
{
    return (Watch){INT64_MAX, never_stops};
}

/* The product of the real operands that belongs to a block, without results. */
static Product product_of(const Problem *p, const Block *block, const View *left)
{
    const int components = p->u->type.components;
    const ptrdiff_t term = components * block->first_term;
    Product product = {
        .batch = 1,
        .m = block->rows,
        .n = components * block->columns,
        .k = components * block->terms,
        .a = *left,
        .b = p->right,
    };
    product.a.data += block->i * left->row + term * left->column;
    product.b.data += term * p->right.row + components * block->j * p->right.column;
    return product;
}

/* ---- powers of two -------------------------------------------------------------- */

typedef enum { SCALED, UNSCALED, HAS_NONFINITE } Addends;

/* beta / alpha times C for a block, 0 where nothing is written; UNSCALED where a number is
 * not finite or loses bits. */
static Addends scale_addends(const Problem *p, const Block *block, const double *settled,
                             ptrdiff_t count, double *addends)
{
    double beta = p->u->beta.re;
    int shift = ilogb(beta) - p->shift, sign = beta < 0.0 ? -1 : 1;
    for (ptrdiff_t index = 0; index < count; index++) {
        addends[index] = 0.0;
        if (!is_open(p, block, settled, index))
            continue;
        double c = read_number(p, block, index);
        double scaled = shift ? ldexp(c, shift) : c;
        if (!isfinite(c))
            return HAS_NONFINITE;
        if (!isfinite(scaled) || (shift && ldexp(scaled, -shift) != c))
            return UNSCALED;
        addends[index] = sign * scaled;
    }
    return SCALED;
}

/* Write a block by sums of the core alone; NO_INTEGER where C cannot be scaled. */
static Outcome write_plainly(const Problem *p, const Block *block, const double *settled)
{
    const Type type = {p->u->result_type.is_single, 1};
    const ptrdiff_t width = p->u->type.components * block->columns;
    const ptrdiff_t count = block->rows * width;
    Product product = product_of(p, block, &p->left);
    double *addends = NULL;
    Addends addend_state = SCALED;
    if (p->u->beta.re != 0.0) {
        addends = allocated((size_t)count, sizeof(double));
        addend_state = scale_addends(p, block, settled, count, addends);
        product.c = (View){.data = (char *)addends, .column = sizeof(double),
                           .row = width * (ptrdiff_t)sizeof(double)};
    }
    if (addend_state != SCALED) {
        free(addends);
        return addend_state == UNSCALED ? NO_INTEGER : NOT_FINITE;
    }

    Matrix values = scratch_matrix(type, block->rows, width);
    product.first = view_of(type, &values);
    product.shift = p->shift;
    product.kind = NEAREST;
    Watch watch = watch_of_call();
    Outcome outcome = multiply(&product, p->kernels, &watch);
    if (outcome == DONE)
        for (ptrdiff_t index = 0; index < count; index++)
            if (is_open(p, block, settled, index))
                write_number(p, block, index,
                             number_at(values.data + index * size_of(type), type.is_single));
    free(values.data);
    free(addends);
    return outcome;
}

/* ---- other scalars -------------------------------------------------------------- */

/* Numbers of A B and what they leave. */
typedef struct {
    double *high, *low;
} Pairs;

static Outcome find_pairs(const Problem *p, const Block *block, const View *left,
                          ptrdiff_t count, Pairs *pairs)
{
    const ptrdiff_t row = p->u->type.components * block->columns * (ptrdiff_t)sizeof(double);
    Product product = product_of(p, block, left);
    pairs->high = allocated((size_t)count, 2 * sizeof(double));
    pairs->low = pairs->high + count;
    product.first = (View){.data = (char *)pairs->high, .row = row, .column = sizeof(double)};
    product.second = (View){.data = (char *)pairs->low, .row = row, .column = sizeof(double)};
    product.kind = PAIR;
    Watch watch = watch_of_call();
    return multiply(&product, p->kernels, &watch);
}

/* A vector of so many terms in new memory, decoded for exact sums. */
static Decoded decode(ptrdiff_t k, const char *at, ptrdiff_t stride, int is_single)
{
    Decoded x = {allocated((size_t)k, sizeof(uint64_t)), allocated((size_t)k, sizeof(int16_t))};
    for (ptrdiff_t h = 0; h < k; h++) {
        int exponent;
        x.mantissas[h] = decoded(number_at(at + h * stride, is_single), &exponent);
        x.exponents[h] = (int16_t)exponent;
    }
    return x;
}

static void free_decoded(Decoded x)
{
    free(x.mantissas);
    free(x.exponents);
}

/* The value of a formula from its exact sums. */
static double exact_value(const Problem *p, const Block *block, const Formula *formula)
{
    const Format *format = p->u->result_type.is_single ? &BINARY32 : &BINARY64;
    const ptrdiff_t width = p->u->type.components * block->columns;
    const ptrdiff_t k = p->u->type.components * block->terms;
    Multiple multiples[2];
    for (int i = 0; i < formula->products; i++) {
        const MultipleOf *x = &formula->multiples[i];
        Product product = product_of(p, block, left_of(p, x));
        const char *row = product.a.data + x->index / width * product.a.row;
        const char *column = product.b.data + x->index % width * product.b.column;
        multiples[i].factor = x->factor;
        multiples[i].a = decode(k, row, product.a.column, product.a.is_single);
        multiples[i].b = decode(k, column, product.b.row, product.b.is_single);
    }
    Watch watch = watch_of_call();
    double value = settle_multiples(k, formula->products, multiples, formula->addends,
                                    (const double(*)[2])formula->pairs, format, &watch);
    for (int i = 0; i < formula->products; i++) {
        free_decoded(multiples[i].a);
        free_decoded(multiples[i].b);
    }
    return value;
}

/* The value of a formula: from the pairs of A B and of A' B where that is certain. */
static double value_of(const Problem *p, const Block *block, const Formula *formula,
                       const Pairs pairs[2], double lost)
{
    if (formula->products == 0 && p->u->beta.im == 0.0) /* beta C, and its zeros */
        return formula->pairs[0][0] * formula->pairs[0][1];
    Sum total = {.is_exact = 1};
    for (int i = 0; i < formula->products; i++) {
        const MultipleOf *x = &formula->multiples[i];
        const Pairs *of = &pairs[x->is_imaginary];
        Factor factor = halved(x->factor);
        add_multiple(&total, factor, of->high[x->index]);
        add_multiple(&total, factor, of->low[x->index]);
        /* A sum lies within half a unit of its pair. */
        lost += fabs(x->factor * of->low[x->index]) * 0x1p-53;
    }
    for (int i = 0; i < formula->addends; i++)
        add_multiple(&total, halved(formula->pairs[i][0]), formula->pairs[i][1]);
    double value;
    if (round_sum(&total, lost, p->u->result_type.is_single, &value))
        return value;
    return exact_value(p, block, formula);
}

/* 1 where all numbers of C that formulas read are finite. */
static int are_addends_finite(const Problem *p, const Block *block, const double *settled,
                              ptrdiff_t count)
{
    if (is_zero(p->u->beta))
        return 1;
    for (ptrdiff_t index = 0; index < count; index++) {
        if (!is_open(p, block, settled, index))
            continue;
        Formula formula = formula_of(p, block, index);
        for (int i = 0; i < formula.addends; i++)
            if (!isfinite(formula.pairs[i][1]))
                return 0;
    }
    return 1;
}

/* Write a block with any finite scalars. */
static Outcome write_with_scalars(const Problem *p, const Block *block,
                                  const double *settled)
{
    const Update *u = p->u;
    const int components = u->type.components;
    const ptrdiff_t count = block->rows * components * block->columns;
    const double largest = fmax(fmax(fabs(p->alpha.re), fabs(p->alpha.im)), 1.0);
    const double lost = p->has_all_bits ? 0.0 : 4.0 * 0x1p-1074 * largest;
    if (!are_addends_finite(p, block, settled, count))
        return NOT_FINITE;

    Pairs pairs[2] = {{NULL, NULL}, {NULL, NULL}};
    Outcome outcome = DONE;
    if (block->terms > 0)
        outcome = find_pairs(p, block, &p->left, count, &pairs[0]);
    pairs[1] = pairs[0];
    if (outcome == DONE && block->terms > 0 && u->imaginary_a && p->alpha.im != 0.0)
        outcome = find_pairs(p, block, &p->imaginary_left, count, &pairs[1]);

    /* Both numbers of an entry may be read for each, so they are written together. */
    for (ptrdiff_t entry = 0; outcome == DONE && entry < count; entry += components) {
        double values[2];
        for (int q = 0; q < components; q++) {
            Formula formula = formula_of(p, block, entry + q);
            if (is_open(p, block, settled, entry + q))
                values[q] = value_of(p, block, &formula, pairs, lost);
        }
        for (int q = 0; q < components; q++)
            if (is_open(p, block, settled, entry + q))
                write_number(p, block, entry + q, values[q]);
    }
    if (pairs[1].high != pairs[0].high)
        free(pairs[1].high);
    free(pairs[0].high);
    return outcome;
}

/* Write a block; NOT_FINITE where operands, scalars or C are not finite. Numbers that are
 * settled already, Inf and NaN, are left out. */
Outcome write_block(const Problem *p, const Block *block, const double *settled)
{
    const Scalar alpha = p->alpha, beta = p->u->beta;
    if (!isfinite(alpha.re) || !isfinite(alpha.im) || !isfinite(beta.re) || !isfinite(beta.im))
        return NOT_FINITE;
    if (p->is_plain) {
        Outcome outcome = write_plainly(p, block, settled);
        if (outcome != NO_INTEGER)
            return outcome;
    }
    return write_with_scalars(p, block, settled);
}
