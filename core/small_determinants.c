/* Determinants of up to four rows in double words, with a bound that tells their sign and
 * their neighbours among doubles; what is closer to one is left.
 *
 * A determinant of four rows is the sum of six products of minors of its first two and of
 * its last two rows (Laplace). Each minor, product and sum is hi + lo.
 */

#include "core.h"

#include <math.h>

/* hi + lo, hi the nearest double of the sum; and the sum of the magnitudes of all terms, up
 * to a few roundings. `is_exact` where no operation has left a low word. */
typedef struct {
    double hi, lo, size;
    int is_exact;
} Term;

/* The rest is exact where fma is rounded once, which module.c asks. */
static Term product_of(double x, double y)
{
    double hi = x * y, lo = fma(x, y, -hi);
    return (Term){hi, lo, fabs(hi), lo == 0.0};
}

/* An error of at most 3 u^2 / (1 - 4 u) of the sum: [JMP17, algorithm 6]. */
static Term sum_of(Term x, Term y)
{
    double s, e, t, f, hi, lo;
    two_sum(x.hi, y.hi, &s, &e);
    two_sum(x.lo, y.lo, &t, &f);
    e += t;
    hi = s + e;
    lo = e - (hi - s);
    lo += f;
    s = hi + lo;
    return (Term){s, lo - (s - hi), x.size + y.size, x.is_exact && y.is_exact && e == 0.0};
}

/* An error of at most 6 u^2 of the product: [JMP17, algorithm 11]. */
static Term times(Term x, Term y)
{
    double hi = x.hi * y.hi, lo = fma(x.hi, y.hi, -hi);
    int is_exact = x.is_exact && y.is_exact && lo == 0.0;
    lo += fma(x.hi, y.lo, x.lo * y.hi);
    double s = hi + lo;
    return (Term){s, lo - (s - hi), x.size * y.size, is_exact};
}

static Term negative(Term x)
{
    x.hi = -x.hi;
    x.lo = -x.lo;
    return x;
}

/* The minor of two rows and two columns. */
static Term minor_of(const double *upper, const double *lower, int j, int k)
{
    return sum_of(product_of(upper[j], lower[k]), negative(product_of(upper[k], lower[j])));
}

static Term of_number(double x)
{
    return (Term){x, 0.0, fabs(x), 1};
}

/* The determinant of n rows, n from 1 to 4, each four numbers apart. */
static Term determinant(int n, const double *a)
{
    const double *b = a + 4, *c = a + 8, *d = a + 12;
    if (n == 1)
        return of_number(a[0]);
    if (n == 2)
        return minor_of(a, b, 0, 1);
    if (n == 3) {
        Term sum = times(of_number(c[0]), minor_of(a, b, 1, 2));
        sum = sum_of(sum, negative(times(of_number(c[1]), minor_of(a, b, 0, 2))));
        return sum_of(sum, times(of_number(c[2]), minor_of(a, b, 0, 1)));
    }
    static const int columns[6][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 3, 1, 2},
                                      {1, 2, 0, 3}, {1, 3, 0, 2}, {2, 3, 0, 1}};
    Term sum = {0.0, 0.0, 0.0, 1};
    for (int i = 0; i < 6; i++) {
        const int *j = columns[i];
        Term term = times(minor_of(a, b, j[0], j[1]), minor_of(c, d, j[2], j[3]));
        sum = sum_of(sum, i == 1 || i == 4 ? negative(term) : term);
    }
    return sum;
}

/* The two neighbours between which the determinant of an n x n matrix lies, n from 1 to 4,
 * equal where it is a double. Returns 0 where these are not certain, or an entry is not
 * moderate.
 *
 * A term passes two minors of 3 u^2, a product of 6 u^2 and five sums of 3 u^2, all of at
 * most the sum of magnitudes, which errs by a few u: 64 u^2 is more. */
int neighbours_of_determinant(int n, const View *a, double *lower, double *upper)
{
    double entries[16] = {0.0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double x;
            memcpy(&x, a->data + i * a->row + j * a->column, sizeof x);
            double size = fabs(x);
            if (!(size <= MODERATE) || (size < 1.0 / MODERATE && size != 0.0))
                return 0;
            entries[4 * i + j] = x;
        }
    Term d = determinant(n, entries);
    *lower = *upper = d.hi + 0.0; /* no negative zero */
    if (d.is_exact)
        return 1;
    double error = d.size * 0x1p-100;
    if (d.lo - error > 0.0)
        *upper = nextafter(d.hi, INFINITY);
    else if (d.lo + error < 0.0)
        *lower = nextafter(d.hi, -INFINITY);
    else
        return 0;
    /* Zero lies between no two neighbours but itself and the least numbers. */
    return fabs(d.hi) > 0x1p-1000;
}
