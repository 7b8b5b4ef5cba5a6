/* Small linear systems from their scaling to their enclosures, one after the other.
 *
 * Each goes the way of linalg/inverse.py, certificate.py and refinement.py as long as the
 * first scale and the first inverse are good enough; what is not is left to them. The
 * bounds are theirs, with their names.
 */

#include "core.h"

#include <math.h>
#include <string.h>

enum {
    MOST_STEPS = 4, /* of refinement; solutions with zeros take three */
};

static const double UNIT = 0x1p-53, LEAST = 0x1p-1074;
static const double GOOD_NORM = 0.5, MOST_CONDITION = 0x1p50; /* of linalg/inverse.py */
static const double SHARE_OF_PRODUCT = 0.05;                  /* of linalg/certificate.py */
static const double SHARP = 0x1p-60, NEGLIGIBLE = 0x1p-106;   /* of linalg/refinement.py */

/* A scaled system, its inverse and its bounds. The rows of each matrix are contiguous. */
typedef struct {
    ptrdiff_t n, k;
    double *a, *doubled; /* n x n, and [A A] */
    double *b;           /* n x k */
    int64_t *exponents;  /* of x, n x k */
    double *inverse;     /* R, n x n */
    double *gap;         /* R A - I up to `accuracy` |R||A|, n x n */
    double *bounds;      /* at least |I - R A| e */
    double accuracy, norm, inverse_norm, condition;
    double *work;        /* 2 n^2 + 2 n numbers for a proof, 11 n for a right side */
} System;

ptrdiff_t space_of_small(ptrdiff_t n, ptrdiff_t k)
{
    return 7 * n * n + 2 * n * k + 12 * n;
}

static System system_in(double *space, ptrdiff_t n, ptrdiff_t k)
{
    System s = {.n = n, .k = k};
    s.a = space;
    s.doubled = s.a + n * n;
    s.b = s.doubled + 2 * n * n;
    s.exponents = (int64_t *)(s.b + n * k);
    s.inverse = s.b + 2 * n * k;
    s.gap = s.inverse + n * n;
    s.bounds = s.gap + n * n;
    s.work = s.bounds + n;
    return s;
}

static double larger(double x, double y)
{
    return x > y ? x : y;
}

static View rows_of(double *x, ptrdiff_t columns)
{
    ptrdiff_t size = sizeof(double);
    return (View){(char *)x, 0, columns * size, size, 0};
}

/* ---- an approximate inverse ------------------------------------------------------ */

static void add_multiple(ptrdiff_t n, double *restrict y, double factor,
                         const double *restrict x)
{
    for (ptrdiff_t j = 0; j < n; j++)
        y[j] += factor * x[j];
}

static void exchange(ptrdiff_t n, double *x, double *y)
{
    for (ptrdiff_t j = 0; j < n; j++) {
        double value = x[j];
        x[j] = y[j];
        y[j] = value;
    }
}

/* R with R A close to I: the transpose of an inverse of A^T, by elimination with partial
 * pivoting. Returns 0 at a pivot of zero. */
static int invert(const System *s)
{
    ptrdiff_t n = s->n;
    double *m = s->work, *x = s->work + n * n;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            m[i * n + j] = s->a[j * n + i];
            x[i * n + j] = i == j;
        }
    for (ptrdiff_t c = 0; c < n; c++) {
        ptrdiff_t pivot = c;
        for (ptrdiff_t i = c + 1; i < n; i++)
            if (fabs(m[i * n + c]) > fabs(m[pivot * n + c]))
                pivot = i;
        if (m[pivot * n + c] == 0.0)
            return 0;
        if (pivot != c) {
            exchange(n, m + pivot * n, m + c * n);
            exchange(n, x + pivot * n, x + c * n);
        }
        for (ptrdiff_t i = c + 1; i < n; i++) {
            double factor = -m[i * n + c] / m[c * n + c];
            add_multiple(n - c - 1, m + i * n + c + 1, factor, m + c * n + c + 1);
            add_multiple(n, x + i * n, factor, x + c * n);
        }
    }
    for (ptrdiff_t c = n - 1; c >= 0; c--) {
        for (ptrdiff_t j = 0; j < n; j++)
            x[c * n + j] /= m[c * n + c];
        for (ptrdiff_t i = 0; i < c; i++)
            add_multiple(n, x + i * n, -m[i * n + c], x + c * n);
    }
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            s->inverse[j * n + i] = x[i * n + j];
    return 1;
}

/* ---- the certificate ------------------------------------------------------------- */

/* R A - I: as a product with n roundings a term where that is accurate enough, else rounded
 * once. Its accuracy, r of linalg/certificate.py; -1 where there is none. */
static double write_gap(const System *s, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    double *gap = s->gap, accuracy = (double)(n + 1) * UNIT;
    memset(gap, 0, (size_t)(n * n) * sizeof *gap);
    if (accuracy * larger(s->condition, 1.0) <= SHARE_OF_PRODUCT) {
        for (ptrdiff_t i = 0; i < n; i++)
            for (ptrdiff_t h = 0; h < n; h++)
                add_multiple(n, gap + i * n, s->inverse[i * n + h], s->a + h * n);
        for (ptrdiff_t i = 0; i < n; i++)
            gap[i * n + i] -= 1.0;
        return accuracy;
    }
    for (ptrdiff_t i = 0; i < n; i++)
        gap[i * n + i] = -1.0;
    Product sums = {.batch = 1, .m = n, .n = n, .k = n, .kind = NEAREST};
    sums.a = rows_of(s->inverse, n);
    sums.b = rows_of(s->a, n);
    sums.c = rows_of(gap, n);
    sums.first = rows_of(s->work, n);
    if (multiply(&sums, kernels, watch) != DONE)
        return -1.0;
    memcpy(gap, s->work, (size_t)(n * n) * sizeof *gap);
    return 0.0;
}

/* Twin: linalg.certificate.prove. Returns 0 where other scales, or two words, may be
 * better. */
static int certify(System *s, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    double *sizes = s->work + 2 * n * n, *row_sums = sizes + n;
    double largest_sum = 0.0;
    s->condition = 0.0;
    for (ptrdiff_t i = 0; i < n; i++) {
        row_sums[i] = 0.0;
        for (ptrdiff_t j = 0; j < n; j++)
            row_sums[i] += fabs(s->a[i * n + j]);
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        double sum = 0.0;
        sizes[i] = 0.0;
        for (ptrdiff_t j = 0; j < n; j++) {
            double size = fabs(s->inverse[i * n + j]);
            sizes[i] += size * row_sums[j];
            sum += size;
        }
        if (!(sizes[i] <= MOST_CONDITION))
            return 0;
        s->condition = larger(s->condition, sizes[i]);
        largest_sum = larger(largest_sum, sum);
    }
    s->inverse_norm = upward(largest_sum, n, (double)n * LEAST);

    s->accuracy = write_gap(s, kernels, watch);
    if (s->accuracy < 0.0)
        return 0;
    double underflows = (double)((n + 2) * (n + 2)) * LEAST * (2.0 + s->inverse_norm);
    s->norm = 0.0;
    for (ptrdiff_t i = 0; i < n; i++) {
        double image = 0.0;
        for (ptrdiff_t j = 0; j < n; j++)
            image += fabs(s->gap[i * n + j]);
        s->bounds[i] = upward(image + s->accuracy * sizes[i] + UNIT, 2 * n + 7, underflows);
        if (!(s->bounds[i] < GOOD_NORM))
            return 0;
        s->norm = larger(s->norm, s->bounds[i]);
    }
    return 1;
}

/* Twin: linalg.certificate.Certificate.contraction. At least |I - R A| v for v >= 0; `sizes`
 * has n numbers. */
static void contract(const System *s, const double *v, double *images, double *sizes)
{
    ptrdiff_t n = s->n;
    double largest = 0.0;
    for (ptrdiff_t i = 0; i < n; i++) {
        largest = larger(largest, v[i]);
        sizes[i] = 0.0;
        for (ptrdiff_t j = 0; j < n; j++)
            sizes[i] += fabs(s->a[i * n + j]) * v[j];
    }
    double underflows = (double)((n + 2) * (n + 2)) * LEAST;
    underflows *= 1.0 + largest + s->inverse_norm;
    for (ptrdiff_t i = 0; i < n; i++) {
        double image = 0.0, size = 0.0;
        for (ptrdiff_t j = 0; j < n; j++) {
            image += fabs(s->gap[i * n + j]) * v[j];
            size += fabs(s->inverse[i * n + j]) * sizes[j];
        }
        images[i] = upward(image + s->accuracy * size + UNIT * v[i], 2 * n + 7, underflows);
    }
}

/* ---- enclosures ------------------------------------------------------------------ */

/* The exponent of the lowest bit that a nonzero number of a vector may have. */
static int lowest_bit(ptrdiff_t n, const double *x)
{
    int lowest = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (x[i] != 0.0 && ilogb(x[i]) - 52 < lowest)
            lowest = ilogb(x[i]) - 52;
    return lowest;
}

/* A solution in one or two words, and what a step says of it; vectors of n numbers. */
typedef struct {
    double *x, *low;
    double *left;           /* what the words are less than the sum they stand for */
    double *error;          /* at least the error of x + low + left */
    double *of_d;           /* at least |R q* - d|, q* the exact residual */
    double *y;              /* |R q*| or more before one rounding */
    double *side, *q, *d, *minus; /* `minus` has 2 n: -x, then -low */
    double error_of_x;      /* at least the largest error before the step */
    int words, is_exact;
} Refined;

/* One step, as in linalg.refinement._step. Returns 0 where nothing is to be read. */
static int refine(const System *s, Refined *v, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    for (ptrdiff_t i = 0; i < n; i++) {
        v->minus[i] = -v->x[i];
        v->minus[n + i] = -v->low[i];
    }
    Product residual = {.batch = 1, .m = n, .n = 1, .k = v->words * n, .kind = NEAREST};
    residual.a = v->words == 1 ? rows_of(s->a, n) : rows_of(s->doubled, 2 * n);
    residual.b = rows_of(v->minus, 1);
    residual.c = rows_of(v->side, 1);
    residual.first = rows_of(v->q, 1);
    if (multiply(&residual, kernels, watch) != DONE)
        return 0;

    v->is_exact = 1;
    double share = (double)(n + 2) * UNIT, largest = 0.0;
    double underflows = (double)(3 * n + 6) * LEAST * (1.0 + s->inverse_norm);
    for (ptrdiff_t i = 0; i < n; i++) {
        double image = 0.0, size = 0.0;
        for (ptrdiff_t j = 0; j < n; j++) {
            double term = s->inverse[i * n + j] * v->q[j];
            image += term;
            size += fabs(term);
        }
        v->is_exact &= v->q[i] == 0.0;
        v->d[i] = image;
        v->of_d[i] = upward(share * size, n + 6, underflows);
        v->y[i] = fabs(image) + v->of_d[i];
        if (!(v->y[i] < INFINITY))
            return 0;
        largest = larger(largest, v->y[i]);
    }
    /* An error of zero is known as such where no term has underflowed. */
    if (v->is_exact)
        v->is_exact = lowest_bit(n * n, s->a) + lowest_bit(2 * n, v->minus) >= -1074;
    v->error_of_x = upward(largest / (1.0 - s->norm), 4, 0.0);
    for (ptrdiff_t i = 0; i < n; i++) {
        v->error[i] = upward(v->of_d[i] + v->error_of_x * s->bounds[i], 3, LEAST);
        if (v->words == 1) {
            two_sum(v->x[i], v->d[i], v->x + i, v->left + i);
        } else {
            double low;
            two_sum(v->low[i], v->d[i], &low, v->left + i);
            two_sum(v->x[i], low, v->x + i, v->low + i);
        }
        if (v->is_exact)
            v->error[i] = 0.0;
    }
    return 1;
}

/* True if no error is more than SHARP times its entry, or `negligible` times the largest. */
static int is_sharp(ptrdiff_t n, const Refined *v, double negligible)
{
    double largest = 0.0;
    for (ptrdiff_t i = 0; i < n; i++)
        largest = larger(largest, fabs(v->x[i]));
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(v->error[i] <= larger(SHARP * fabs(v->x[i]), negligible * largest)))
            return 0;
    return 1;
}

/* Sharper errors of entries that are small beside others: |I - R A| is applied to the bounds
 * of all entries, twice, and not to the largest one alone, as in
 * linalg.certificate.Certificate.radius. */
static void sharpen(const System *s, Refined *v)
{
    ptrdiff_t n = s->n;
    double *z = v->minus, *sizes = z + n;
    for (ptrdiff_t i = 0; i < n; i++)
        z[i] = upward(v->y[i] + v->error_of_x * s->bounds[i], 4, LEAST);
    contract(s, z, v->q, sizes);
    for (ptrdiff_t i = 0; i < n; i++)
        z[i] = upward(v->y[i] + v->q[i], 3, 0.0);
    contract(s, z, v->q, sizes);
    for (ptrdiff_t i = 0; i < n; i++)
        v->error[i] = upward(v->of_d[i] + v->q[i], 1, 0.0);
}

/* x 2^exponent in `scaled`; returns 0 where that is rounded or overflows. Exponents are
 * those of a column, 0 to 400, less that of a right side, -400 to 400. */
static int is_restored(double x, int64_t exponent, double *scaled)
{
    *scaled = x * power((int)exponent);
    return *scaled * power((int)-exponent) == x;
}

/* Twin: linalg.refinement.enclosure, for right side h. Returns 0 where the bounds of more
 * steps may be sharper; `is_nearest` is cleared where x may not be the nearest numbers to
 * the solution. */
static int enclose_side(const System *s, ptrdiff_t h, const View *x, const View *radius,
                        double *most_steps, int *is_nearest, const Kernels *kernels,
                        Watch *watch)
{
    ptrdiff_t n = s->n, k = s->k;
    double *w = s->work;
    Refined v = {.x = w, .low = w + n, .left = w + 2 * n, .error = w + 3 * n,
                 .of_d = w + 4 * n, .y = w + 5 * n, .side = w + 6 * n, .q = w + 7 * n,
                 .d = w + 8 * n, .minus = w + 9 * n, .words = 1};
    for (ptrdiff_t i = 0; i < n; i++)
        v.side[i] = s->b[i * k + h];
    for (ptrdiff_t i = 0; i < n; i++) {
        v.x[i] = v.low[i] = 0.0;
        for (ptrdiff_t j = 0; j < n; j++)
            v.x[i] += s->inverse[i * n + j] * v.side[j];
    }
    for (int steps = 1;; steps++) {
        if (!refine(s, &v, kernels, watch))
            return 0;
        *most_steps = larger(*most_steps, steps);
        if (v.is_exact || is_sharp(n, &v, 0.0))
            break;
        if (is_sharp(n, &v, NEGLIGIBLE)) {
            sharpen(s, &v);
            break;
        }
        if (steps == MOST_STEPS)
            return 0;
        if (v.words == 1) {
            memcpy(v.low, v.left, (size_t)n * sizeof *v.low);
            v.words = 2;
        }
    }

    for (ptrdiff_t i = 0; i < n; i++) {
        /* The solution lies within `error` of x + rest. */
        double rest = v.words == 1 ? v.left[i] : v.low[i], error = v.error[i], bound;
        if (v.words == 2 && v.left[i] != 0.0)
            error = upward(error + fabs(v.left[i]), 1, 0.0);
        double margin = upward(error, 2, 0.0) + 0x1p-51 * fabs(rest);
        if (error != 0.0)
            *is_nearest &= v.x[i] + (rest - margin) == v.x[i]
                        && v.x[i] + (rest + margin) == v.x[i];
        bound = rest == 0.0 ? error : upward(error + fabs(rest), 1, 0.0);

        double value, scaled_bound;
        int64_t exponent = s->exponents[i * k + h];
        if (!is_restored(v.x[i], exponent, &value)
            || !is_restored(bound, exponent, &scaled_bound))
            return 0;
        memcpy(x->data + i * x->row + h * x->column, &value, sizeof value);
        memcpy(radius->data + i * radius->row + h * radius->column, &scaled_bound,
               sizeof scaled_bound);
    }
    return 1;
}

/* The solution X of A X = B and its radii, A n x n and B n x k. Returns LEFT where nothing
 * is to be read: the first scale or the first inverse is not good enough, a result is
 * subnormal, or the watch ends the call. `space` has room for space_of_small(n, k) numbers. */
Solved solve_small(ptrdiff_t n, ptrdiff_t k, const View *a, const View *b, const View *x,
                   const View *radius, Proof *proof, double *space, const Kernels *kernels,
                   Watch *watch)
{
    System s = system_in(space, n, k);
    View scaled_a = rows_of(s.a, n), scaled_b = rows_of(s.b, k);
    int64_t exponent_of_determinant;
    if (!equilibrate(n, k, a, b, &scaled_a, &scaled_b, s.exponents,
                     &exponent_of_determinant, s.work, watch))
        return LEFT;
    if (!invert(&s) || !certify(&s, kernels, watch))
        return LEFT;
    for (ptrdiff_t i = 0; i < n; i++) {
        memcpy(s.doubled + 2 * i * n, s.a + i * n, (size_t)n * sizeof(double));
        memcpy(s.doubled + 2 * i * n + n, s.a + i * n, (size_t)n * sizeof(double));
    }
    *proof = (Proof){s.condition, s.norm, 0.0};
    int is_nearest = 1;
    for (ptrdiff_t h = 0; h < k; h++)
        if (!enclose_side(&s, h, x, radius, &proof->steps, &is_nearest, kernels, watch))
            return LEFT;
    return is_nearest ? NEAREST_NUMBERS : ENCLOSED;
}
