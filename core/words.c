/* The rounding of sums that are known up to a bound. */

#include "core.h"
#include "scalar_sums.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const Format BINARY64 = {53, -1074, DBL_MAX};
const Format BINARY32 = {24, -149, FLT_MAX};

/* The same sum, each word the nearest double of itself and those after it. */
Words normalised(double hi, double mid, double lo, double err, int exponent)
{
    two_sum(mid, lo, &mid, &lo);
    two_sum(hi, mid, &hi, &mid);
    two_sum(mid, lo, &mid, &lo);
    two_sum(hi, mid, &hi, &mid);
    return (Words){hi, mid, lo, err, exponent};
}

/* The sum of the words and c; err includes the loss of the third word.
 *
 * If c is not scaled exactly, err becomes NaN, and no comparison with it holds.
 */
Words plus(Words sum, double c)
{
    double scaled = ldexp(c, -sum.exponent);
    double rest;
    if (ldexp(scaled, sum.exponent) != c || !(fabs(scaled) < 0x1p1000))
        return (Words){0.0, 0.0, 0.0, NAN, sum.exponent};

    /* A cascade of TwoSums, Algorithm 4.8 of Ogita, Rump, Oishi 2005 with K = 3. */
    two_sum(sum.hi, scaled, &sum.hi, &rest);
    two_sum(sum.mid, rest, &sum.mid, &rest);
    two_sum(sum.lo, rest, &sum.lo, &rest);
    return normalised(sum.hi, sum.mid, sum.lo, sum.err + fabs(rest), sum.exponent);
}

/* A factor times a sum.
 *
 * If the products of the words and their errors are not exact, err becomes NaN. err includes
 * the loss of the third word of their sum. */
Words times_factor(Words sum, double factor)
{
    int exponent;
    const double words[3] = {sum.hi, sum.mid, sum.lo}, fraction = frexp(factor, &exponent);
    const Factor halves = halved(fraction);
    Words product = {0.0, 0.0, 0.0, sum.err, 0}; /* the fraction is below 1 */
    for (int i = 0; i < 3; i++) {
        if (words[i] == 0.0)
            continue;
        double error, p = two_product(halves, words[i], &error);
        if (!(fabs(p) >= 0x1p-900 && fabs(p) < 0x1p990 && fabs(words[i]) < 0x1p990))
            product.err = NAN;
        product = plus(plus(product, p), error);
    }
    product.exponent = sum.exponent + exponent;
    return product;
}

/* Returns 1 if the sum has the sign of hi: no number within err of it is zero, or err is 0. */
static int has_sign(const Words *sum)
{
    return sum->err == 0.0
        || fabs(sum->hi) - fabs(sum->mid) > sum->err * (1.0 + 0x1p-20);
}

/* The nearest number of a format, ties to even, in the scale of the words.
 *
 * Returns 1 if all numbers within err of the words round alike, or if err is 0. Zeros are
 * alike if they have the same sign: a sum below zero that rounds to zero is -0. The value
 * times 2^exponent is in the format, or overflows.
 *
 * Let r be the grid point of the format nearest to hi. The sum rounds to r or to its
 * neighbour on the side of hi + mid + lo; the midpoint between the two, at `half` from r,
 * decides. The distance from the first part of the remainder to the midpoint is exact if it
 * is small (Sterbenz). So the sign of this distance plus the second part is certain.
 */
static int nearest(const Words *sum, const Format *format, double *value)
{
    double hi = sum->hi, err = sum->err;
    if (hi == 0.0) { /* then all words are zeros; an exact zero is +0 */
        *value = 0.0;
        return err == 0.0;
    }
    if (!(fabs(hi) >= 0x1p-960 && err < 0x1p1000))
        return 0;

    /* The grid of the format around hi. */
    int exponent;
    double fraction = frexp(fabs(hi), &exponent);
    int unit = exponent - format->precision;
    int is_subnormal = unit < format->lowest - sum->exponent;
    if (is_subnormal)
        unit = format->lowest - sum->exponent;
    double step = ldexp(1.0, unit);
    if (step == 0.0 || step > 0x1p1000)
        return 0;
    double rounded = exponent - unit == 53 ? hi : ldexp(rint(ldexp(hi, -unit)), unit);

    /* The remainder in two parts; the second is rounded only if the first decides. */
    double first = hi - rounded, second = sum->mid + sum->lo;
    if (first == 0.0) {
        first = sum->mid;
        second = sum->lo;
    }
    double half = 0.5 * step;
    if (rounded == hi && fraction == 0.5 && !is_subnormal && (first > 0.0) != (hi > 0.0)) {
        /* Below a power of two the numbers lie twice as close. */
        half *= 0.5;
        step *= 0.5;
    }

    /* The distance of the sum before the midpoint. */
    double ahead = (half - fabs(first)) - (first > 0.0 ? second : -second);
    double margin = err == 0.0 ? 0.0 : err * (1.0 + 0x1p-20) + fabs(second) * 0x1p-50;
    double neighbour = first > 0.0 ? rounded + step : rounded - step;
    if (ahead > margin)
        *value = rounded;
    else if (-ahead > margin)
        *value = neighbour;
    else if (err == 0.0) /* a tie, of exact words */
        *value = fmod(ldexp(rounded, -unit), 2.0) == 0.0 ? rounded : neighbour;
    else
        return 0;
    *value = copysign(*value, hi);
    return *value != 0.0 || has_sign(sum);
}

/* x 2^exponent in the format; x is on its grid, so only overflow changes it. */
static double of_format(double x, int exponent, const Format *format)
{
    double value = ldexp(x, exponent);
    return fabs(value) > format->largest ? copysign(INFINITY, value) : value;
}

/* The neighbours of x in a format. */
double below(double x, const Format *format)
{
    return format->precision == 24 ? nextafterf((float)x, -INFINITY) : nextafter(x, -INFINITY);
}

double above(double x, const Format *format)
{
    return format->precision == 24 ? nextafterf((float)x, INFINITY) : nextafter(x, INFINITY);
}

/* The values in binary64 of words far from the ends of the range, by Ziv's test alone.
 *
 * hi is the nearest number if neither end of the interval around mid + lo, widened by its
 * rounding, changes it. In the same way mid is the nearest number to the remainder. */
static int settle_plainly(const Words *sum, Kind kind, Values *values)
{
    double hi = sum->hi, mid = sum->mid, lo = sum->lo, err = sum->err;
    if (!(fabs(hi) >= 0x1p-200 && fabs(hi) <= 0x1p200 && err <= 0x1p200)
        || abs(sum->exponent) > 400)
        return 0;
    double factor = power(sum->exponent);
    double margin = (err + fabs(lo)) * (1.0 + 0x1p-20) + fabs(mid) * 0x1p-51;
    values->first = hi * factor;
    values->second = 0.0;
    if (hi + (mid - margin) != hi || hi + (mid + margin) != hi)
        return 0;
    if (kind == NEAREST)
        return 1;
    if (err == 0.0 && mid == 0.0) { /* one word holds the sum */
        values->second = kind == PAIR ? 0.0 : values->first;
        return 1;
    }
    margin = err * (1.0 + 0x1p-20) + fabs(lo) * 0x1p-51;
    if (kind == PAIR) {
        values->second = mid * factor;
        if (fabs(mid) < 0x1p-400)
            return 0;
        if (err == 0.0) /* ties of exact words go to the even number, as here */
            return mid + lo == mid;
        return mid + (lo - margin) == mid && mid + (lo + margin) == mid;
    }
    values->second = values->first;
    if (!(fabs(mid) - fabs(lo) > margin))
        return 0;
    if (mid < 0.0)
        values->first = nextafter(values->first, -INFINITY);
    else
        values->second = nextafter(values->second, INFINITY);
    return 1;
}

/* The values of a sum; returns 1 if the bound of the words makes them certain. */
int settle(const Words *sum, Kind kind, const Format *format, Values *values)
{
    if (format == &BINARY64 && settle_plainly(sum, kind, values))
        return 1;

    double value;
    if (!nearest(sum, format, &value))
        return 0;
    values->first = of_format(value, sum->exponent, format);
    values->second = 0.0;
    if (kind == NEAREST)
        return 1;
    if (!isfinite(values->first))
        return 0; /* left to the exact sum */

    /* The sum less the value: hi and the value are so close that their difference is a
     * double. */
    Words rest =
        normalised(sum->hi - value, sum->mid, sum->lo, sum->err, sum->exponent);
    if (kind == PAIR) {
        if (!nearest(&rest, format, &value))
            return 0;
        values->second = of_format(value, rest.exponent, format);
        return 1;
    }

    /* Its sign decides between which numbers the sum lies. */
    if (!has_sign(&rest))
        return 0;
    values->second = values->first;
    if (rest.hi < 0.0)
        values->first = below(values->first, format);
    if (rest.hi > 0.0)
        values->second = above(values->second, format);
    return 1;
}
