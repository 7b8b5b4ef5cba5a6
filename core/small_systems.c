/* Small linear systems from their scaling to their enclosures, one after the other.
 *
 * Each goes the way of linalg/inverse.py, certificate.py and refinement.py as long as the
 * first scale and the first inverse are good enough; what is not is left to them. The
 * bounds are theirs, with their names. All right sides of a system take a step together.
 */

#include "core.h"

#include <math.h>
#include <string.h>

enum {
    MOST_STEPS = 5, /* of refinement; solutions with zeros take three */
    FEW_SIDES = 3,  /* right sides whose residuals go one by one */
};

static const double UNIT = 0x1p-53, LEAST = 0x1p-1074;
static const double GOOD_NORM = 0.5, MOST_CONDITION = 0x1p50; /* of linalg/inverse.py */
static const double SHARE_OF_PRODUCT = 0.05;                  /* of linalg/certificate.py */
static const double SHARP = 0x1p-60, NEGLIGIBLE = 0x1p-106;   /* of linalg/refinement.py */
static const double ENOUGH = 0x1p-56;

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
    double *sides;       /* 8 n k + 2 n + k numbers for all right sides */
    double *work;        /* 2 n^2 + 2 n numbers for a proof, 9 n for a right side */
} System;

ptrdiff_t space_of_small(ptrdiff_t n, ptrdiff_t k)
{
    return 7 * n * n + 10 * n * k + 12 * n + k;
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
    s.sides = s.bounds + n;
    s.work = s.sides + 8 * n * k + 2 * n + k;
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

/* ---- the certificate ------------------------------------------------------------- */

/* R A - I: a product with n roundings a term if that is accurate enough, otherwise rounded
 * once. Returns its accuracy, r of linalg/certificate.py, or -1 if there is none. */
static double write_gap(const System *s, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    double *gap = s->gap, accuracy = (double)(n + 1) * UNIT;
    if (accuracy * larger(s->condition, 1.0) <= SHARE_OF_PRODUCT) {
        kernels->small_product(n, n, n, s->inverse, s->a, gap);
        for (ptrdiff_t i = 0; i < n; i++)
            gap[i * n + i] -= 1.0;
        return accuracy;
    }
    memset(gap, 0, (size_t)(n * n) * sizeof *gap);
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

/* Twin: linalg.certificate.prove. Returns 0 if other scales, or two words, may be better. */
static int certify(System *s, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    double *sizes = s->work + 2 * n * n, *row_sums = sizes + n, *ones = s->bounds;
    double largest_sum = 0.0;
    s->condition = 0.0;
    for (ptrdiff_t i = 0; i < n; i++)
        ones[i] = 1.0;
    for (ptrdiff_t i = 0; i < n; i++)
        row_sums[i] = kernels->dot_of_magnitudes(n, s->a + i * n, ones);
    for (ptrdiff_t i = 0; i < n; i++) {
        double sum = kernels->dot_of_magnitudes(n, s->inverse + i * n, ones);
        sizes[i] = kernels->dot_of_magnitudes(n, s->inverse + i * n, row_sums);
        if (!(sizes[i] <= MOST_CONDITION))
            return 0;
        s->condition = larger(s->condition, sizes[i]);
        largest_sum = larger(largest_sum, sum);
    }
    s->inverse_norm = upward(largest_sum, n + 1, (double)n * LEAST);

    s->accuracy = write_gap(s, kernels, watch);
    if (s->accuracy < 0.0)
        return 0;
    double underflows = (double)((n + 2) * (n + 2)) * LEAST * (2.0 + s->inverse_norm);
    s->norm = 0.0;
    for (ptrdiff_t i = 0; i < n; i++) {
        double image = kernels->dot_of_magnitudes(n, s->gap + i * n, ones);
        sizes[i] = upward(image + s->accuracy * sizes[i] + UNIT, 2 * n + 9, underflows);
        if (!(sizes[i] < GOOD_NORM))
            return 0;
        s->norm = larger(s->norm, sizes[i]);
    }
    memcpy(s->bounds, sizes, (size_t)n * sizeof *sizes);
    return 1;
}

/* Twin: linalg.certificate.Certificate.contraction. At least |I - R A| v for v >= 0; `sizes`
 * has n numbers. */
static void contract(const System *s, const double *v, double *images, double *sizes,
                     const Kernels *kernels)
{
    ptrdiff_t n = s->n;
    double largest = 0.0;
    for (ptrdiff_t i = 0; i < n; i++) {
        largest = larger(largest, v[i]);
        sizes[i] = kernels->dot_of_magnitudes(n, s->a + i * n, v);
    }
    double underflows = (double)((n + 2) * (n + 2)) * LEAST;
    underflows *= 1.0 + largest + s->inverse_norm;
    for (ptrdiff_t i = 0; i < n; i++) {
        double image = kernels->dot_of_magnitudes(n, s->gap + i * n, v);
        double size = kernels->dot_of_magnitudes(n, s->inverse + i * n, sizes);
        images[i] = upward(image + s->accuracy * size + UNIT * v[i], 2 * n + 9, underflows);
    }
}

/* ---- enclosures ------------------------------------------------------------------ */

/* Right sides whose solution is not yet sharp, `count` of the k of a system. */
typedef struct {
    double *x, *low;        /* n x k; `low` is what the first step left, then the second word */
    int64_t *index;         /* of the right sides */
    double *minus;          /* -x, then -low where x has two words, of these right sides */
    double *b, *q, *d, *sizes; /* n x count: sides, residuals, R Q and |R||Q| */
    double *lengths;        /* at least the norms of the rows of A */
    double *images;         /* |R| times these */
    ptrdiff_t count;
    int words;              /* of x */
    int is_close;           /* residuals are close sums, in two words for the first step and
                             * then in three, and not rounded once */
    double share_of_sums;   /* what these err by, in the product of two norms */
} Sides;

static Sides sides_in(const System *s)
{
    ptrdiff_t n = s->n, size = n * s->k;
    Sides t = {.count = s->k, .words = 1, .is_close = s->k > FEW_SIDES};
    t.x = s->sides;
    t.low = t.x + size;
    t.minus = t.low + size;
    t.b = t.minus + 2 * size;
    t.q = t.b + size;
    t.d = t.q + size;
    t.sizes = t.d + size;
    t.lengths = t.sizes + size;
    t.images = t.lengths + n;
    t.index = (int64_t *)(t.images + n);
    return t;
}

/* C = R B for n x k matrices B, whose columns go one by one where they are few, and |R||B|
 * unless `sizes` is NULL. */
static void map_sides(const System *s, ptrdiff_t k, const double *b, double *c, double *sizes,
                      const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n;
    if (k > FEW_SIDES) {
        if (sizes)
            kernels->sized_product(n, n, k, s->inverse, b, c, sizes);
        else
            kernels->small_product(n, n, k, s->inverse, b, c);
        return;
    }
    View inverse = rows_of(s->inverse, n);
    double *side = s->work, *image = side + n, *size = side + 2 * n;
    for (ptrdiff_t h = 0; h < k; h++) {
        for (ptrdiff_t i = 0; i < n; i++)
            side[i] = b[i * k + h];
        image_and_size(n, &inverse, side, image, size, NULL, watch);
        for (ptrdiff_t i = 0; i < n; i++) {
            c[i * k + h] = image[i];
            if (sizes)
                sizes[i * k + h] = size[i];
        }
    }
}

/* Q close to B - A X, or that rounded once, with R Q and |R||Q|. Returns 0 where nothing is
 * to be read. */
static int write_residuals(const System *s, Sides *t, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = s->n, k = s->k, count = t->count, terms = t->words * n;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t c = 0; c < count; c++) {
            ptrdiff_t h = (ptrdiff_t)t->index[c];
            t->b[i * count + c] = s->b[i * k + h];
            t->minus[i * count + c] = -t->x[i * k + h];
            if (t->words == 2)
                t->minus[(n + i) * count + c] = -t->low[i * k + h];
        }
    Product residual = {.batch = 1, .m = n, .n = count, .k = terms, .kind = NEAREST};
    residual.a = t->words == 1 ? rows_of(s->a, n) : rows_of(s->doubled, 2 * n);
    residual.b = rows_of(t->minus, count);
    residual.c = rows_of(t->b, count);
    residual.first = rows_of(t->q, count);
    t->share_of_sums = 0.0;
    if (t->is_close) {
        /* write_update and write_close of product.c; rows of [A A] have longer norms */
        residual.close_words = t->words + 1;
        if (t->words == 1)
            t->share_of_sums = 4.01 * (tile_error_in_two(terms) + (double)terms * 0x1p-105);
        else
            t->share_of_sums = 1.42 * 8.01 * tile_error_in_three(terms);
    }
    if (multiply(&residual, kernels, watch) != DONE)
        return 0;
    map_sides(s, count, t->q, t->d, t->sizes, kernels, watch);
    return 1;
}

/* The exponent of the lowest bit that a nonzero number of a vector may have. */
static int lowest_bit(ptrdiff_t n, const double *x, ptrdiff_t stride)
{
    int lowest = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (x[i * stride] != 0.0 && ilogb(x[i * stride]) - 52 < lowest)
            lowest = ilogb(x[i * stride]) - 52;
    return lowest;
}

/* The exponent of the lowest bit that is set in a vector, at most 0. */
static int lowest_set_bit(ptrdiff_t n, const double *x, ptrdiff_t stride)
{
    int lowest = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        double value = fabs(x[i * stride]);
        if (value == 0.0)
            continue;
        int exponent;
        int64_t significand = (int64_t)ldexp(frexp(value, &exponent), 53);
        int bit = exponent - 53 + ilogb((double)(significand & -significand));
        lowest = bit < lowest ? bit : lowest;
    }
    return lowest;
}

/* True if right side c has a residual of zero. Rounded once it is where no term has
 * underflowed; a close sum of zero is where it errs by less than the lowest bit of all
 * terms. `of_sums` times the norm of a row of A is at least what close sums err by. */
static int is_solved(const System *s, const Sides *t, ptrdiff_t c, double of_sums)
{
    ptrdiff_t n = s->n, count = t->count;
    for (ptrdiff_t i = 0; i < n; i++)
        if (t->q[i * count + c] != 0.0)
            return 0;
    if (!t->is_close)
        return lowest_bit(n * n, s->a, 1) + lowest_bit(t->words * n, t->minus + c, count)
            >= -1074;
    int of_x = lowest_set_bit(t->words * n, t->minus + c, count);
    int of_b = lowest_set_bit(n, t->b + c, count);
    for (ptrdiff_t i = 0; i < n; i++) {
        int unit = lowest_set_bit(n, s->a + i * n, 1) + of_x;
        unit = of_b < unit ? of_b : unit;
        if (!(upward(of_sums * t->lengths[i], 2, LEAST) < ldexp(1.0, unit)))
            return 0;
    }
    return 1;
}

/* A solution in one or two words, and what a step says of it; vectors of n numbers. */
typedef struct {
    double *x, *low;
    double *left;           /* the exact sum less the words */
    double *error;          /* at least the error of x + low + left */
    double *of_d;           /* at least |R q* - d|, q* the exact residual */
    double *y;              /* |R q*| or more before one rounding */
    double *z, *images, *sizes;
    double error_of_x;      /* at least the largest error before the step */
    int words, is_exact;
} Refined;

/* One step of right side c, as in linalg.refinement._step. Returns 0 where nothing is to be
 * read.
 *
 * Close sums err by 2 u |q| + r |a_j||x| + eta, with norms, which adds u |R||q| and
 * r (|R||a|) |x| to what d errs by. */
static int refine(const System *s, const Sides *t, ptrdiff_t c, Refined *v)
{
    ptrdiff_t n = s->n, count = t->count, h = (ptrdiff_t)t->index[c];
    double share = (double)(n + 2 + t->is_close) * UNIT, largest = 0.0, of_sums = 0.0;
    double underflows = (double)(4 * n + 8) * LEAST * (1.0 + s->inverse_norm);
    if (t->is_close)
        of_sums = t->share_of_sums * length(t->words * n, t->minus + c, count);
    for (ptrdiff_t i = 0; i < n; i++) {
        double of_d = share * t->sizes[i * count + c];
        if (t->is_close)
            of_d += of_sums * t->images[i];
        v->of_d[i] = upward(of_d, n + 6, underflows);
        v->y[i] = fabs(t->d[i * count + c]) + v->of_d[i];
        if (!(v->y[i] < INFINITY))
            return 0;
        largest = larger(largest, v->y[i]);
    }
    v->words = t->words;
    v->is_exact = is_solved(s, t, c, of_sums);
    v->error_of_x = upward(largest / (1.0 - s->norm), 4, 0.0);
    for (ptrdiff_t i = 0; i < n; i++) {
        double x = t->x[i * s->k + h], low = t->low[i * s->k + h], d = t->d[i * count + c];
        v->error[i] = upward(v->of_d[i] + v->error_of_x * s->bounds[i], 3, LEAST);
        v->low[i] = 0.0;
        if (v->words == 1) {
            two_sum(x, d, v->x + i, v->left + i);
        } else {
            two_sum(low, d, &low, v->left + i);
            two_sum(x, low, v->x + i, v->low + i);
        }
        if (v->is_exact)
            v->error[i] = 0.0;
    }
    return 1;
}

/* True if no error is more than a share of its entry, or `negligible` times the largest. */
static int is_sharp(ptrdiff_t n, const Refined *v, double share, double negligible)
{
    double largest = 0.0;
    for (ptrdiff_t i = 0; i < n; i++)
        largest = larger(largest, fabs(v->x[i]));
    for (ptrdiff_t i = 0; i < n; i++)
        if (!(v->error[i] <= larger(share * fabs(v->x[i]), negligible * largest)))
            return 0;
    return 1;
}

/* Twin: linalg.refinement._is_due_to_update, for right side c. */
static int is_due_to_update(const System *s, const Sides *t, ptrdiff_t c, const Refined *v)
{
    double largest_error = 0.0, largest = 0.0;
    int is_most_of_error = 0;
    for (ptrdiff_t i = 0; i < s->n; i++) {
        if (v->error[i] > ENOUGH * fabs(v->x[i]))
            is_most_of_error |= v->of_d[i] > 0.0625 * v->error[i];
        largest_error = larger(largest_error, v->of_d[i]);
        largest = larger(largest, fabs(t->d[i * t->count + c]));
    }
    return is_most_of_error || largest_error > largest;
}

/* Sharper errors of entries that are small beside others: |I - R A| is applied to the bounds
 * of all entries, twice, and not to the largest one alone, as in
 * linalg.certificate.Certificate.radius. */
static void sharpen(const System *s, Refined *v, const Kernels *kernels)
{
    ptrdiff_t n = s->n;
    for (ptrdiff_t i = 0; i < n; i++)
        v->z[i] = upward(v->y[i] + v->error_of_x * s->bounds[i], 4, LEAST);
    contract(s, v->z, v->images, v->sizes, kernels);
    for (ptrdiff_t i = 0; i < n; i++)
        v->z[i] = upward(v->y[i] + v->images[i], 3, 0.0);
    contract(s, v->z, v->images, v->sizes, kernels);
    for (ptrdiff_t i = 0; i < n; i++)
        v->error[i] = upward(v->of_d[i] + v->images[i], 1, 0.0);
}

/* Write the solution of right side h and its radius. Returns 0 where one is subnormal;
 * `is_nearest` is cleared where x may not be the nearest numbers to the solution. */
static int write_side(const System *s, ptrdiff_t h, const Refined *v, const View *x,
                      const View *radius, int *is_nearest)
{
    for (ptrdiff_t i = 0; i < s->n; i++) {
        /* The solution lies within `error` of x + rest. */
        double rest = v->words == 1 ? v->left[i] : v->low[i], error = v->error[i], bound;
        if (v->words == 2 && v->left[i] != 0.0)
            error = upward(error + fabs(v->left[i]), 1, 0.0);
        double margin = upward(error, 2, 0.0) + 0x1p-51 * fabs(rest);
        if (error != 0.0)
            *is_nearest &= v->x[i] + (rest - margin) == v->x[i]
                        && v->x[i] + (rest + margin) == v->x[i];
        bound = rest == 0.0 ? error : upward(error + fabs(rest), 1, 0.0);

        int64_t exponent = s->exponents[i * s->k + h];
        if (!write_restored(x, i, h, v->x[i], exponent)
            || !write_restored(radius, i, h, bound, exponent))
            return 0;
    }
    return 1;
}

/* Twin: linalg.refinement.enclosure. Returns 0 where the bounds of more steps may be
 * sharper; `is_nearest` is cleared where x may not be the nearest numbers to the solution. */
static int enclose_sides(const System *s, const View *x, const View *radius,
                         double *most_steps, int *is_nearest, const Kernels *kernels,
                         Watch *watch)
{
    ptrdiff_t n = s->n, k = s->k;
    double *w = s->work;
    Refined v = {.x = w, .low = w + n, .left = w + 2 * n, .error = w + 3 * n,
                 .of_d = w + 4 * n, .y = w + 5 * n, .z = w + 6 * n, .images = w + 7 * n,
                 .sizes = w + 8 * n};
    Sides t = sides_in(s);
    map_sides(s, k, s->b, t.x, NULL, kernels, watch);
    memset(t.low, 0, (size_t)(n * k) * sizeof *t.low);
    for (ptrdiff_t h = 0; h < k; h++)
        t.index[h] = h;
    for (ptrdiff_t i = 0; i < n && t.is_close; i++)
        t.lengths[i] = length(n, s->a + i * n, 1);
    for (ptrdiff_t i = 0; i < n && t.is_close; i++)
        t.images[i] = kernels->dot_of_magnitudes(n, s->inverse + i * n, t.lengths);

    for (int steps = 1; t.count > 0; steps++) {
        if (steps > MOST_STEPS || !write_residuals(s, &t, kernels, watch))
            return 0;
        *most_steps = steps;
        ptrdiff_t open = 0;
        int is_in_two = t.is_close && t.words == 1, is_limited = 0;
        for (ptrdiff_t c = 0; c < t.count; c++) {
            ptrdiff_t h = (ptrdiff_t)t.index[c];
            if (!refine(s, &t, c, &v))
                return 0;
            double share = is_in_two ? ENOUGH : SHARP;
            int is_done = v.is_exact || is_sharp(n, &v, share, 0.0);
            if (!is_done && is_sharp(n, &v, SHARP, NEGLIGIBLE)) {
                sharpen(s, &v, kernels);
                is_done = 1;
            }
            if (is_done) {
                /* Where it is not certain what is nearest, another step is worth its price. */
                int is_certain = 1;
                if (!write_side(s, h, &v, x, radius, &is_certain))
                    return 0;
                is_done = is_certain || !is_in_two;
                if (is_done)
                    *is_nearest &= is_certain;
            }
            if (is_done)
                continue;
            for (ptrdiff_t i = 0; i < n; i++) {
                t.x[i * k + h] = v.x[i];
                t.low[i * k + h] = v.words == 1 ? v.left[i] : v.low[i];
            }
            t.index[open++] = h;
            is_limited |= is_due_to_update(s, &t, c, &v);
        }
        /* A second word of x where another step of one would gain little */
        t.count = open;
        if (!is_in_two || is_limited)
            t.words = 2;
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
    if (!kernels->small_inverse(n, s.a, s.inverse, s.work) || !certify(&s, kernels, watch))
        return LEFT;
    for (ptrdiff_t i = 0; i < n; i++) {
        memcpy(s.doubled + 2 * i * n, s.a + i * n, (size_t)n * sizeof(double));
        memcpy(s.doubled + 2 * i * n + n, s.a + i * n, (size_t)n * sizeof(double));
    }
    *proof = (Proof){s.condition, s.norm, 0.0};
    int is_nearest = 1;
    if (!enclose_sides(&s, x, radius, &proof->steps, &is_nearest, kernels, watch))
        return LEFT;
    return is_nearest ? NEAREST_NUMBERS : ENCLOSED;
}
