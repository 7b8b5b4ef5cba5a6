/* The exact sum of products of binary64 numbers, whatever their exponents.
 *
 * A small superaccumulator for products (Neal, "Fast exact summation using small and large
 * superaccumulators", arXiv:1505.05571): digits of 32 bits in words of 64, so that carries
 * can wait. A product of two significands has 106 bits. It is added as five digits, to one
 * set of words for positive products and another for negative ones. A word holds 2^32 digits
 * before it overflows; k is below 2^31. Only the final sum is rounded, once, so no error
 * bound is needed.
 */

#include "core.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum {
    LOWEST = -3328,  /* exponent of the first bit: three subnormal numbers give 2^-3222 */
    SIGN_SHIFT = 63,
    FAR = 260,       /* bits below the largest term from which terms may wait */
};

/* Make room for products with exponents from `least` to `most`: five digits each, and one for
 * carries. */
static void widen(Accumulator *sum, int least, int most)
{
    int first = (least - LOWEST) >> 5, last = ((most - LOWEST) >> 5) + 6;
    first = first < 0 ? 0 : first;
    last = last > DIGITS ? DIGITS : last;
    if (sum->first == sum->last)
        sum->first = sum->last = first;
    for (; sum->first > first; sum->first--)
        sum->words[0][sum->first - 1] = sum->words[1][sum->first - 1] = 0;
    for (; sum->last < last; sum->last++)
        sum->words[0][sum->last] = sum->words[1][sum->last] = 0;
}

/* The product of two integers below 2^53: high 64 bits and low ones. */
static inline uint64_t multiplied(uint64_t x, uint64_t y, uint64_t *low)
{
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 Wide;
    Wide product = (Wide)x * y;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
#else
    const uint64_t mask = 0xffffffff;
    uint64_t x0 = x & mask, x1 = x >> 32, y0 = y & mask, y1 = y >> 32;
    uint64_t middle = x1 * y0 + (x0 * y0 >> 32); /* below 2^54 */
    uint64_t other = x0 * y1 + (middle & mask);  /* below 2^54 */
    *low = x * y;
    return x1 * y1 + (middle >> 32) + (other >> 32);
#endif
}

/* Add x y 2^exponent, for integers with signs. */
static inline void add(Accumulator *sum, uint64_t x, uint64_t y, int exponent)
{
    const uint64_t magnitude = ~((uint64_t)1 << SIGN_SHIFT), mask = 0xffffffff;
    uint64_t low;
    uint64_t high = multiplied(x & magnitude, y & magnitude, &low);

    /* Shift the product into place: 137 bits from bit `position % 32` of a word. */
    unsigned position = (unsigned)(exponent - LOWEST);
    unsigned shift = position & 31;
    uint64_t first = low << shift;
    uint64_t second = high << shift | low >> 1 >> (63 - shift);
    uint64_t third = high >> 1 >> (63 - shift);

    uint64_t *words = sum->words[(x ^ y) >> SIGN_SHIFT] + (position >> 5);
    words[0] += first & mask;
    words[1] += first >> 32;
    words[2] += second & mask;
    words[3] += second >> 32;
    words[4] += third;
}

/* Add x 2^exponent. */
static void add_double(Accumulator *sum, double x, int exponent)
{
    int of_x;
    uint64_t mantissa = decoded(x, &of_x);
    if (x == 0.0)
        return;
    widen(sum, of_x + exponent, of_x + exponent);
    add(sum, mantissa, 1, of_x + exponent);
}

/* Add x y. */
void accumulate_product(Accumulator *sum, double x, double y)
{
    int of_x, of_y;
    uint64_t x_mantissa = decoded(x, &of_x), y_mantissa = decoded(y, &of_y);
    if (x == 0.0 || y == 0.0)
        return;
    widen(sum, of_x + of_y, of_x + of_y);
    add(sum, x_mantissa, y_mantissa, of_x + of_y);
}

/* The magnitude of the sum in digits of 32 bits, one for each word in use; returns 1 if the
 * sum is negative. */
static int resolve(const Accumulator *sum, uint32_t *digits)
{
    /* Two's complement digits; the borrow propagates. */
    const uint64_t *positives = sum->words[0] + sum->first;
    const uint64_t *negatives = sum->words[1] + sum->first;
    int count = sum->last - sum->first;
    int64_t carry = 0;
    for (int i = 0; i < count; i++) {
        uint64_t positive = positives[i], negative = negatives[i];
        int64_t low = (int64_t)(positive & 0xffffffff) - (int64_t)(negative & 0xffffffff);
        int64_t total = carry + low;
        digits[i] = (uint32_t)total;
        carry = (total - (int64_t)digits[i]) / 0x100000000
              + ((int64_t)(positive >> 32) - (int64_t)(negative >> 32));
    }
    if (carry >= 0)
        return 0;
    uint64_t borrow = 1;
    for (int i = 0; i < count; i++) {
        borrow += (uint32_t)~digits[i];
        digits[i] = (uint32_t)borrow;
        borrow >>= 32;
    }
    return 1;
}

/* 2^shift times the sum, rounded once to a format, ties to even; an exact zero is +0.
 *
 * Returns 1 if every number within 2^unknown of the sum rounds alike, or if `unknown` is
 * INT_MIN. */
static int rounded(const Accumulator *sum, int shift, const Format *format, int unknown,
                   double *result)
{
    uint32_t digits[DIGITS + 2]; /* and two zeros below the lowest one */
    digits[0] = digits[1] = 0;
    int is_negative = resolve(sum, digits + 2);
    int top = sum->last - sum->first + 1;
    while (top >= 2 && digits[top] == 0)
        top--;
    if (top < 2) {
        *result = 0.0;
        return unknown == INT_MIN;
    }

    /* The leading 64 bits; the last one is sticky for all bits below it. */
    uint64_t lead = (uint64_t)digits[top] << 32 | digits[top - 1];
    unsigned empty = 0;
    while (lead >> (63 - empty) == 0)
        empty++;
    lead = lead << empty | (uint64_t)digits[top - 2] << empty >> 32;
    int sticky = (uint32_t)((uint64_t)digits[top - 2] << empty) != 0;
    for (int i = top - 3; i >= 2; i--)
        sticky |= digits[i] != 0;
    lead |= (uint64_t)sticky;
    int exponent = LOWEST + 32 * (sum->first + top - 1) - 64 - (int)empty + shift; /* of bit 0 */

    /* The number of bits that the format drops: 11 or 40, more for a subnormal result. */
    int dropped = 64 - format->precision;
    if (exponent + dropped < format->lowest)
        dropped = format->lowest - exponent;
    double value = 0.0;
    int is_certain = unknown == INT_MIN;
    if (dropped <= 64) {
        uint64_t kept = dropped == 64 ? 0 : lead >> dropped;
        uint64_t half = (uint64_t)1 << (dropped - 1);
        uint64_t rest = dropped == 64 ? lead : lead & (half + (half - 1));
        kept += rest > half || (rest == half && (kept & 1));
        value = ldexp((double)kept, exponent + dropped);
        if (value > format->largest)
            value = INFINITY;
        /* The unknown part is less than the last of the 64 bits. */
        uint64_t distance = rest > half ? rest - half : half - rest;
        is_certain = unknown == INT_MIN
                  || (unknown + shift <= exponent && distance > 2 && dropped < 64);
    }
    *result = is_negative ? -value : value;
    return is_certain;
}

/* The range of exponents of the nonzero products of two vectors, `least` to `most`; empty if
 * `most` is less. */
static void find_exponents(ptrdiff_t k, const Decoded *a, const Decoded *b, int *least,
                           int *most, Watch *watch)
{
    int smallest = -LOWEST, largest = LOWEST;
    for (ptrdiff_t start = 0; start < k; start += SPAN) {
        ptrdiff_t stop = k - start < SPAN ? k : start + SPAN;
        for (ptrdiff_t h = start; h < stop; h++) {
            int exponent = a->exponents[h] + b->exponents[h];
            int or_none = exponent >= LOWEST ? exponent : -LOWEST; /* zeros are lower */
            largest = largest > exponent ? largest : exponent;
            smallest = smallest < or_none ? smallest : or_none;
        }
        if (stops(watch, 2 * (stop - start)))
            break;
    }
    *least = smallest;
    *most = largest;
}

/* Add the products of two vectors with exponents from `least` to `most`. */
static void add_products(Accumulator *sum, ptrdiff_t k, const Decoded *a,
                         const Decoded *b, int least, int most, Watch *watch)
{
    for (ptrdiff_t start = 0; start < k; start += SPAN) {
        ptrdiff_t stop = k - start < SPAN ? k : start + SPAN;
        for (ptrdiff_t h = start; h < stop; h++) {
            int exponent = a->exponents[h] + b->exponents[h];
            if (exponent >= least && exponent <= most)
                add(sum, a->mantissas[h], b->mantissas[h], exponent);
        }
        if (stops(watch, 16 * (stop - start)))
            return;
    }
}

/* The sign of a sum, 0 for zero. Returns 1 if every number within 2^unknown of the sum has
 * this sign, or if `unknown` is INT_MIN. */
static int find_sign(const Accumulator *sum, int unknown, int *sign)
{
    uint32_t digits[DIGITS];
    int is_negative = resolve(sum, digits);
    int top = sum->last - sum->first - 1;
    while (top >= 0 && digits[top] == 0)
        top--;
    *sign = top < 0 ? 0 : is_negative ? -1 : 1;
    return unknown == INT_MIN || (top >= 0 && LOWEST + 32 * (sum->first + top) >= unknown);
}

/* The values of 2^shift times a sum from which less than 2^unknown is missing. Returns 1 if
 * the missing part cannot change a value, or if `unknown` is INT_MIN; otherwise 0, with the
 * sum unchanged. */
static int settle_sum(Accumulator *sum, int shift, Kind kind, const Format *format,
                      int unknown, Values *values)
{
    double value;
    if (!rounded(sum, shift, format, unknown, &value))
        return 0;
    values->first = value;
    values->second = 0.0;
    if (kind == NEAREST || (kind == PAIR && !isfinite(value)))
        return 1;

    /* The sum less the value, or less the largest number. */
    if (!isfinite(value))
        value = copysign(format->largest, value);
    add_double(sum, -value, -shift);
    int sign, is_certain;
    if (kind == PAIR) {
        is_certain = rounded(sum, shift, format, unknown, &values->second);
    } else {
        is_certain = find_sign(sum, unknown, &sign);
        values->first = sign < 0 ? below(value, format) : value;
        values->second = sign > 0 ? above(value, format) : value;
    }
    if (!is_certain)
        add_double(sum, value, -shift);
    return is_certain;
}

/* The values of 2^shift (sum of a b + addends), each rounded once.
 *
 * If exponents lie far apart, most terms are too small to matter: terms that are `FAR` bits
 * below the largest one sum to less than 2^-FAR k of it. They are left out if the others
 * settle the values without them. */
void settle_exactly(ptrdiff_t k, const Decoded *a, const Decoded *b, int addends,
                    const double *addend, int shift, Kind kind, const Format *format,
                    Values *values, Watch *watch)
{
    Accumulator sum;
    sum.first = sum.last = 0;
    for (int i = 0; i < addends; i++)
        add_double(&sum, addend[i], 0);

    int least, most;
    find_exponents(k, a, b, &least, &most, watch);
    int split = most - least > FAR ? most - FAR : least;
    if (least <= most) {
        widen(&sum, split, most);
        add_products(&sum, k, a, b, split, most, watch);
    }
    /* The terms left out, k products below 2^(split + 106), sum to less than 2^(split + 137). */
    int unknown = split > least ? split + 137 : INT_MIN;
    if (settle_sum(&sum, shift, kind, format, unknown, values))
        return;
    widen(&sum, least, split);
    add_products(&sum, k, a, b, least, split - 1, watch);
    settle_sum(&sum, shift, kind, format, INT_MIN, values);
}

/* Add a factor times a sum, digit by digit. */
static void add_multiple(Accumulator *total, double factor, const Accumulator *sum)
{
    uint32_t digits[DIGITS];
    int is_negative = resolve(sum, digits), exponent;
    uint64_t mantissa = decoded(factor, &exponent) ^ (uint64_t)is_negative << SIGN_SHIFT;
    if (factor == 0.0)
        return;
    for (int i = 0; i < sum->last - sum->first; i++) {
        int position = exponent + LOWEST + 32 * (sum->first + i);
        if (digits[i] == 0)
            continue;
        widen(total, position, position);
        add(total, digits[i], mantissa, position);
    }
}

/* Add a multiple of a sum of products. */
void accumulate_multiple(Accumulator *total, const Multiple *x, Watch *watch)
{
    Accumulator sum;
    sum.first = sum.last = 0;
    int least, most;
    find_exponents(x->k, &x->a, &x->b, &least, &most, watch);
    if (least > most)
        return;
    widen(&sum, least, most);
    add_products(&sum, x->k, &x->a, &x->b, least, most, watch);
    add_multiple(total, x->factor, &sum);
}

/* A sum rounded once to a format, ties to even; an exact zero is +0. */
double rounded_accumulator(Accumulator *total, const Format *format)
{
    Values values = {0.0, 0.0};
    settle_sum(total, 0, NEAREST, format, INT_MIN, &values);
    return values.first;
}
