/* Multiples of operands as sums of words: for a scalar s, s x is one number if s is a power
 * of two, otherwise a product and its error. The core adds all words exactly. */

#include "blas.h"
#include "../scalar_sums.h"

#include <math.h>
#include <stdlib.h>

/* 1 if s is plus or minus a power of two. */
int is_power(double x)
{
    int exponent;
    return isfinite(x) && fabs(frexp(x, &exponent)) == 0.5;
}

/* 1 if products with s are numbers of binary64, as products of two floats are. */
static int has_one_word(Type type, double s)
{
    return type.is_single || is_power(s);
}

/* The words of components of s x. */
int words_of_multiple(Type type, Scalar s)
{
    if (s.im != 0.0)
        return type.is_single ? 2 : 4;
    return has_one_word(type, s.re) ? 1 : 2;
}

/* The word or words of s x for two numbers; returns 0 if they are not exact. Inf and NaN stay
 * unchanged, for the core to find. */
static int split_product(Type type, double s, double x, double *words, ptrdiff_t step)
{
    double product = s * x;
    words[0] = product;
    if (x == 0.0 || s == 0.0) {
        words[0] = 0.0;
        if (!has_one_word(type, s))
            words[step] = 0.0;
        return isfinite(s);
    }
    if (!isfinite(x)) {
        if (!has_one_word(type, s))
            words[step] = 0.0;
        return 1;
    }
    if (type.is_single) /* 48 bits, from 2^-298 to 2^256 */
        return isfinite(product);
    if (is_power(s))
        return isfinite(product) && product / s == x;
    words[0] = two_product(halved(s), x, &words[step]);
    return fabs(product) >= 0x1p-900 && fabs(product) < 0x1p990 && fabs(x) < 0x1p990
        && fabs(s) < 0x1p990;
}

/* The words of component q of s x, `step` numbers apart; returns 0 if they are not exact. */
int split_multiple(Type type, Scalar s, Scalar x, int q, double *words, ptrdiff_t step)
{
    double parallel = q == 0 ? x.re : x.im, turned = q == 0 ? x.im : x.re;
    if (s.im == 0.0 && s.re == 1.0) { /* the common case, at once */
        words[0] = parallel;
        return 1;
    }
    if (s.im == 0.0)
        return split_product(type, s.re, parallel, words, step);
    double *second = words + step * (type.is_single ? 1 : 2);
    double factor = q == 0 ? -s.im : s.im;
    int is_exact = 1;
    if (has_one_word(type, s.re) && !type.is_single)
        words[step] = 0.0;
    is_exact &= split_product(type, s.re, parallel, words, step);
    if (has_one_word(type, factor) && !type.is_single)
        second[step] = 0.0;
    return is_exact & split_product(type, factor, turned, second, step);
}

/* alpha times B, embedded; the words of a row lie one below the other. Returns 0 if they are
 * not exact. From row `conjugate_from` on, unless that is 0, conj(alpha) replaces alpha. */
int scale_right(const Update *u, const View *right, Scalar alpha, int words, View *scaled)
{
    const int components = u->type.components;
    const ptrdiff_t width = components * u->n;
    double *data = allocated((size_t)(u->k * components * words) * (size_t)width, sizeof(double));
    *scaled = (View){.data = (char *)data, .row = width * (ptrdiff_t)sizeof(double),
                     .column = sizeof(double)};
    int is_exact = 1;
    for (ptrdiff_t h = 0; h < u->k; h++) {
        Scalar s = alpha;
        if (u->conjugate_from && h >= u->conjugate_from)
            s.im = -s.im;
        for (int row = 0; row < components; row++, data += words * width)
            for (ptrdiff_t j = 0; j < width; j += components) {
                const char *at = right->data + (h * components + row) * right->row
                               + j * right->column;
                Scalar x = {number_at(at, right->is_single), 0.0};
                if (components == 2)
                    x.im = number_at(at + right->column, right->is_single);
                for (int q = 0; q < components; q++)
                    is_exact &= split_multiple(u->type, s, x, q, data + j + q, width);
            }
    }
    return is_exact;
}

/* The numbers of A, each repeated several times. */
View repeat_left(const Update *u, const View *left, int words)
{
    const ptrdiff_t terms = u->k * u->type.components;
    double *data = allocated((size_t)u->m * (size_t)(terms * words), sizeof(double));
    View repeated = {.data = (char *)data, .row = terms * words * (ptrdiff_t)sizeof(double),
                     .column = sizeof(double)};
    for (ptrdiff_t i = 0; i < u->m; i++)
        for (ptrdiff_t h = 0; h < terms; h++)
            for (int word = 0; word < words; word++)
                *data++ = number_at(left->data + i * left->row + h * left->column,
                                    left->is_single);
    return repeated;
}
