/* Determinants and definiteness of up to 128 rows, from triangular factors in double words.
 *
 * Powers of two bring rows and columns of A into scale, S = D A D', exactly. Elimination in
 * double words gives a unit lower triangular L and an upper triangular U, taken as exact,
 * with P S = L U - E. It also gives bounds e_i of the row sums of |E|, by adding bounds of
 * the rounding errors of each step. So
 *
 *   det S = +-u_11 u_22 ... u_nn det(I - K),  K = (L U)^-1 E,
 *   sum over j of |K_ij| <= w_i,  w >= |U^-1| |L^-1| e.
 *
 * If s, the sum of all w_i, is below 1/2, the rows of I - K are diagonally dominant, and
 *
 *   1 - s <= product of (1 - w_i) <= det(I - K) <= product of (1 + w_i) <= 1 + s + s^2
 *
 * by the inequalities of Ostrowski [Ost37] and of Hadamard. The upper bound of |det(I - K)|
 * holds for every w. All of this also holds for leading blocks: they have leading blocks of
 * L, U and their inverses, so w is no larger. If no rows are exchanged and all pivots are
 * positive, w of all rows proves that all leading minors are positive.
 *
 * No pivot is zero: a pivot below e_i of its row is replaced by e_i, and the difference is
 * part of E. A determinant is a multiple of a known power of two; if the upper bound is below
 * that power, the determinant is zero.
 */

#include "core.h"

#include <math.h>
#include <string.h>

enum {
    UNKNOWN = 2,
    LARGEST_EXPONENT = 1000, /* of linalg/determinant.py */
};

static const double UNIT = 0x1p-53;
/* u^2, of which errors of double words are multiples. */
static const double UNIT_OF_PAIR = 0x1p-106;
/* More than a bound loses to underflow: when bounds are used, factors are below 2^210, and
 * bounds below MOST. */
static const double UNDERFLOWS = 0x1p-800, MOST = 0x1p100;

/* ---- factors --------------------------------------------------------------------- */

enum { BEYOND = 8 }; /* zeros after a row, which vectors reach */

/* S, n x n, and its triangular factors in double words, both in one array, L without its
 * diagonal, with rows `stride` apart; `errors` are at least the sums of the rows of
 * |L U - P S|, and `sign` is that of P. */
typedef struct {
    ptrdiff_t n, stride;
    double sign, *scaled, *hi, *lo, *errors;
    double *inverse, *bounds; /* n x n, magnitudes, and 2 n */
} Factors;

ptrdiff_t space_of_factors(ptrdiff_t n)
{
    return 2 * n * n + 2 * n * (n + BEYOND) + 3 * n;
}

static Factors factors_in(double *space, ptrdiff_t n)
{
    Factors f = {.n = n, .stride = n + BEYOND, .sign = 1.0};
    f.scaled = space;
    f.inverse = f.scaled + n * n;
    f.hi = f.inverse + n * n;
    f.lo = f.hi + n * f.stride;
    f.errors = f.lo + n * f.stride;
    f.bounds = f.errors + n;
    return f;
}

static void exchange_rows(Factors *f, ptrdiff_t i, ptrdiff_t k)
{
    for (ptrdiff_t j = 0; j < f->n; j++) {
        ptrdiff_t upper = k * f->stride + j, lower = i * f->stride + j;
        double hi = f->hi[lower], lo = f->lo[lower];
        f->hi[lower] = f->hi[upper];
        f->lo[lower] = f->lo[upper];
        f->hi[upper] = hi;
        f->lo[upper] = lo;
    }
    double error = f->errors[i];
    f->errors[i] = f->errors[k];
    f->errors[k] = error;
    f->sign = -f->sign;
}

/* l = x / d in double words for row i and pivot k.
 *
 * q1 = fl(x.hi / d.hi) leaves r = x.hi - q1 d.hi, exactly, and q2 = fl(r' / d.hi), r' being
 * r + x.lo - q1 d.lo after three roundings. As |r| <= u |x.hi|, |q1 d.lo| and |x.lo| are
 * at most u |x.hi| and a little more, these roundings err by 6 u^2 |x.hi|, that of q2 by
 * 3 u^2, and q2 d.lo, left out, is 3 u^2: x - l d is below 13 u^2 |x.hi|. */
static void divide(Factors *f, ptrdiff_t i, ptrdiff_t k)
{
    ptrdiff_t at = i * f->stride + k, pivot = k * f->stride + k;
    double x = f->hi[at], d = f->hi[pivot];
    double q1 = x / d;
    double r = fma(-q1, d, x) + (f->lo[at] - q1 * f->lo[pivot]);
    double q2 = r / d;
    f->hi[at] = q1 + q2;
    f->lo[at] = q2 - (f->hi[at] - q1);
    f->errors[i] += 16.0 * UNIT_OF_PAIR * fabs(x);
}

/* The factors of S. Without row exchanges, only of the leading block that ends with the first
 * pivot that is not certainly positive. Returns the number of rows. */
static ptrdiff_t factorise(Factors *f, int exchanges, const Kernels *kernels)
{
    ptrdiff_t n = f->n, stride = f->stride;
    for (ptrdiff_t k = 0; k < n; k++) {
        ptrdiff_t chosen = k;
        for (ptrdiff_t i = k + 1; exchanges && i < n; i++)
            if (fabs(f->hi[i * stride + k]) > fabs(f->hi[chosen * stride + k]))
                chosen = i;
        if (chosen != k)
            exchange_rows(f, chosen, k);

        /* Any other number serves as a pivot: the difference is at most 3 times it. */
        double *pivot = f->hi + k * stride + k, *low = f->lo + k * stride + k;
        double least = f->errors[k];
        int is_last = !exchanges && !(*pivot >= least);
        if (!(fabs(*pivot) >= least)) {
            *pivot = least;
            *low = 0.0;
            f->errors[k] += 3.0 * least;
        }
        if (is_last)
            return k + 1;

        for (ptrdiff_t i = k + 1; i < n; i++) {
            double *hi = f->hi + i * stride + k, *lo = f->lo + i * stride + k;
            if (*hi == 0.0)
                continue; /* so is its low word */
            divide(f, i, k);
            double sizes = kernels->subtract_in_two(n - k - 1, hi + 1, lo + 1, *hi, *lo,
                                                    pivot + 1, low + 1);
            f->errors[i] += 4.0 * UNIT_OF_PAIR * sizes;
        }
    }
    return n;
}

/* ---- bounds ---------------------------------------------------------------------- */

/* |x| for row i of X, x T = e_i by substitution with the high words of T, and |x| v. */
static double solve_row(const Factors *f, ptrdiff_t m, int is_lower, ptrdiff_t i,
                        const double *restrict v, double *restrict x)
{
    double image = 0.0;
    for (ptrdiff_t j = 0; j < m; j++)
        x[j] = i == j;
    for (ptrdiff_t k = i; is_lower ? k >= 0 : k < m; k += is_lower ? -1 : 1) {
        const double *row = f->hi + k * f->stride;
        double value = is_lower ? x[k] : x[k] / row[k];
        ptrdiff_t start = is_lower ? 0 : k + 1, stop = is_lower ? k : m;
        for (ptrdiff_t j = start; j < stop; j++)
            x[j] -= value * row[j];
        x[k] = fabs(value);
        image += x[k] * v[k];
    }
    return image;
}

/* |X| |T| v for v >= 0, up to 2 m + 2 roundings. */
static void multiply_sizes(const Factors *f, ptrdiff_t m, int is_lower, const double *v,
                           double *product)
{
    double sums[MOST_OF_SMALL];
    for (ptrdiff_t k = 0; k < m; k++) {
        ptrdiff_t start = is_lower ? 0 : k, stop = is_lower ? k : m;
        sums[k] = is_lower ? v[k] : 0.0;
        for (ptrdiff_t j = start; j < stop; j++)
            sums[k] += fabs(f->hi[k * f->stride + j]) * v[j];
    }
    for (ptrdiff_t i = 0; i < m; i++) {
        product[i] = 0.0;
        for (ptrdiff_t k = 0; k < m; k++)
            product[i] += f->inverse[i * f->n + k] * sums[k];
    }
}

/* y >= |T^-1| v for v >= 0, T being L or U of m rows. Returns 0 if there is no bound.
 *
 * |I - X T| <= (gamma_m + u) |X| |T| =: D [Hig02, lemma 8.4], and T^-1 = X + (I - X T) T^-1
 * gives |T^-1| v <= |X| v + D |T^-1| v. So a z with z >= |X| v and D z <= a z, a < 1, has
 * |T^-1| v <= (I - D)^-1 |X| v <= z / (1 - a). It is |X| v and a little of |X| |T| |X| v, as
 * entries of X may almost cancel. */
static int bound_of_solution(const Factors *f, ptrdiff_t m, int is_lower, const double *v,
                             double *y)
{
    double sizes[MOST_OF_SMALL], share = 0.0;
    for (ptrdiff_t i = 0; i < m; i++) {
        double image = solve_row(f, m, is_lower, i, v, f->inverse + i * f->n);
        y[i] = upward(image, m + 1, UNDERFLOWS);
    }
    multiply_sizes(f, m, is_lower, y, sizes);
    for (ptrdiff_t i = 0; i < m; i++)
        y[i] += 0x1p-30 * sizes[i];

    multiply_sizes(f, m, is_lower, y, sizes);
    for (ptrdiff_t i = 0; i < m; i++) {
        double error = upward((double)(m + 2) * UNIT * sizes[i], 2 * m + 4, UNDERFLOWS);
        if (!(error <= 0.5 * y[i] && y[i] < MOST))
            return 0;
        share = error / y[i] > share ? error / y[i] : share;
    }
    for (ptrdiff_t i = 0; i < m; i++)
        y[i] = upward(y[i] / (1.0 - share), 3, 0.0);
    return 1;
}

/* (hi + lo) 2^exponent up to error 2^exponent, hi the nearest double of hi + lo. */
typedef struct {
    double hi, lo, error;
    int64_t exponent;
} Enclosed;

/* The product of the first m pivots, 1/2 <= |hi| < 2. Each of m products errs by at most
 * 6 u^2 of itself [JMP17, algorithm 11]; powers of two are exact. */
static Enclosed product_of_pivots(const Factors *f, ptrdiff_t m)
{
    double x = f->sign, y = 0.0;
    int64_t exponent = 0;
    for (ptrdiff_t i = 0; i < m; i++) {
        double pivot = f->hi[i * f->stride + i], hi = x * pivot, lo = fma(x, pivot, -hi);
        lo += fma(x, f->lo[i * f->stride + i], y * pivot);
        int shift = ilogb(hi);
        x = ldexp(hi + lo, -shift);
        y = ldexp(lo - ((hi + lo) - hi), -shift);
        exponent += shift;
    }
    return (Enclosed){x, y, 0.0, exponent};
}

/* The leading minor of m rows of S; of all rows if some were exchanged. Returns 0 if nothing
 * is known of it; hi and lo are zero if its sign is unknown. */
static int minor_of(const Factors *f, ptrdiff_t m, Enclosed *minor)
{
    double *y = f->bounds, *w = y + f->n, share = 0.0, product = 1.0;
    for (ptrdiff_t i = 0; i < m; i++)
        if (!(f->errors[i] < 1.0))
            return 0; /* entries may have grown beyond all bounds */
    if (!bound_of_solution(f, m, 1, f->errors, y) || !bound_of_solution(f, m, 0, y, w))
        return 0;
    for (ptrdiff_t i = 0; i < m; i++) {
        share += w[i];
        product *= 1.0 + w[i];
    }

    *minor = product_of_pivots(f, m);
    double of_pivots = 7.0 * (double)m * UNIT_OF_PAIR, size = fabs(minor->hi);
    if (share < 0.5) {
        minor->error = upward(size * (share * (1.0 + share) + of_pivots), m + 6, 0.0);
    } else {
        minor->error = upward(size * product, 2 * m + 4, 0.0);
        minor->hi = minor->lo = 0.0;
    }
    return minor->error < INFINITY;
}

/* ---- multiples of powers of two -------------------------------------------------- */

enum { BIT_OF_ZERO = 1 << 20 }; /* the lowest bit of zero */

/* The exponent of the lowest bit of a number. */
static int64_t lowest_bit(double x)
{
    int exponent;
    uint64_t mantissa = decoded(x, &exponent) & ~((uint64_t)1 << 63);
    if (mantissa == 0)
        return BIT_OF_ZERO;
    return exponent + ilogb((double)(mantissa & -mantissa));
}

/* An e for which the leading minor of m rows of S is a multiple of 2^e: rows, and then
 * columns, are integers times powers of two. */
static int64_t lowest_bit_of_minor(const Factors *f, ptrdiff_t m)
{
    int64_t of_columns[MOST_OF_SMALL], sum = 0;
    for (ptrdiff_t j = 0; j < m; j++)
        of_columns[j] = BIT_OF_ZERO;
    for (ptrdiff_t i = 0; i < m; i++) {
        int64_t bits[MOST_OF_SMALL], of_row = BIT_OF_ZERO;
        for (ptrdiff_t j = 0; j < m; j++) {
            bits[j] = lowest_bit(f->scaled[i * f->n + j]);
            of_row = bits[j] < of_row ? bits[j] : of_row;
        }
        sum += of_row;
        for (ptrdiff_t j = 0; j < m; j++)
            if (bits[j] < BIT_OF_ZERO && bits[j] - of_row < of_columns[j])
                of_columns[j] = bits[j] - of_row;
    }
    for (ptrdiff_t j = 0; j < m; j++)
        sum += of_columns[j];
    return sum;
}

/* True if a minor can be no number but hi 2^exponent. */
static int is_known_multiple(const Factors *f, ptrdiff_t m, const Enclosed *minor)
{
    int64_t lowest = lowest_bit_of_minor(f, m) - minor->exponent;
    if (minor->hi != 0.0 && lowest_bit(minor->hi) < lowest)
        return 0;
    return ilogb(upward(fabs(minor->lo) + minor->error, 1, 0.0)) < lowest;
}

/* ---- answers --------------------------------------------------------------------- */

/* S from A; returns 0 if an entry is not moderate. det S = 2^exponent det A. */
static int scale(Factors *f, const View *a, int64_t *exponent, Watch *watch)
{
    double space[3 * MOST_OF_SMALL];
    ptrdiff_t n = f->n, size = sizeof(double);
    View scaled = {(char *)f->scaled, 0, n * size, size, 0};
    if (!equilibrate(n, 0, a, NULL, &scaled, NULL, NULL, exponent, space, watch))
        return 0;
    memset(f->hi, 0, (size_t)(2 * n * f->stride) * sizeof(double)); /* and lo */
    for (ptrdiff_t i = 0; i < n; i++) {
        memcpy(f->hi + i * f->stride, f->scaled + i * n, (size_t)n * sizeof(double));
        f->errors[i] = UNIT_OF_PAIR; /* more than all that will underflow */
    }
    return 1;
}

/* Twin: linalg.determinant._neighbours. `facts` are 1, the two neighbouring doubles that
 * enclose det A / 2^exponent, equal if it is a double, and the exponent, 0 in the middle of
 * the range. The first is 0 if the neighbours are not certain, or if an entry is not
 * moderate. */
void tell_determinant(ptrdiff_t n, const View *a, double *facts, double *space,
                      const Kernels *kernels, Watch *watch)
{
    Factors f = factors_in(space, n);
    int64_t of_scales;
    Enclosed d;
    memset(facts, 0, 4 * sizeof *facts);
    if (!scale(&f, a, &of_scales, watch) || !minor_of(&f, factorise(&f, 1, kernels), &d))
        return;
    double lower = d.hi, upper = d.hi;
    if (d.lo - d.error > 0.0)
        upper = nextafter(d.hi, INFINITY);
    else if (d.lo + d.error < 0.0)
        lower = nextafter(d.hi, -INFINITY);
    else if (!is_known_multiple(&f, n, &d))
        return;
    facts[0] = 1.0;
    if (d.hi == 0.0)
        return;

    /* The determinant has the exponent of its smaller neighbour. */
    double smaller = fabs(lower) < fabs(upper) ? lower : upper;
    int64_t power = d.exponent - of_scales, exponent = ilogb(smaller) + power;
    if (exponent >= -LARGEST_EXPONENT && exponent <= LARGEST_EXPONENT)
        exponent = 0;
    facts[1] = ldexp(lower, (int)(power - exponent));
    facts[2] = ldexp(upper, (int)(power - exponent));
    facts[3] = (double)exponent;
}

/* 1 if a matrix is positive definite, 0 if it is not, 2 if that is not certain, the matrix is
 * not symmetric, or an entry is not moderate. */
void tell_definiteness(ptrdiff_t n, const View *a, double *answer, double *space,
                       const Kernels *kernels, Watch *watch)
{
    Factors f = factors_in(space, n);
    int64_t of_scales;
    *answer = UNKNOWN;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < i; j++) {
            double x, y;
            memcpy(&x, a->data + i * a->row + j * a->column, sizeof x);
            memcpy(&y, a->data + j * a->row + i * a->column, sizeof y);
            if (x != y)
                return;
        }
    if (!scale(&f, a, &of_scales, watch))
        return;
    int is_positive = 1;
    for (ptrdiff_t i = 0; i < n; i++)
        is_positive &= f.scaled[i * n + i] > 0.0;

    /* The first minor that is not certainly positive decides. */
    Enclosed minor;
    ptrdiff_t m = is_positive ? factorise(&f, 0, kernels) : 0;
    if (!is_positive)
        *answer = 0.0;
    else if (!minor_of(&f, m, &minor))
        return;
    else if (minor.hi > 0.0)
        *answer = 1.0;
    else if (minor.hi < 0.0 || is_known_multiple(&f, m, &minor))
        *answer = 0.0;
}
