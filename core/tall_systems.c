/* Least squares of tall matrices, from the scaling of columns to the enclosure of x.
 *
 * linalg/full_rank.py has the theorem and its bounds, under the same names; V has one word
 * here. The steps follow linalg/least_squares.py, with s and x in two words. These modules
 * take over if the steps do not settle a problem.
 */

#include "core.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 8,      /* sums of a vector that run side by side */
    MOST_STEPS = 4, /* of refinement */
};

static const double UNIT = 0x1p-53, LEAST = 0x1p-1074;
static const double SHARE_OF_PRODUCT = 0.05;                /* of linalg/certificate.py */
static const double GOOD_NORM = 0.25, GUARD = 4.0;          /* of linalg/full_rank.py */
static const double ENOUGH = 0x1p-56, NEGLIGIBLE = 0x1p-106; /* of linalg/refinement.py */

/* B = Q U up to roundings, V close to U^-1. The rows of each matrix are contiguous. */
typedef struct {
    ptrdiff_t m, n;
    double *b, *adjoint; /* m x n, its columns in scale, and B^T */
    double *q, *q_adjoint;
    double *u, *v, *v_adjoint;
    double *row_sizes; /* at least the norms of the rows of V */
    int64_t *exponents; /* of the columns */
    double condition, norm;
    double *work;      /* 2 m (n + 4) + 7 n numbers; an m x 2 (n + 1) matrix comes first */
} Tall;

ptrdiff_t space_of_tall(ptrdiff_t m, ptrdiff_t n)
{
    return 4 * m * n + 3 * n * n + 2 * n + 2 * m * (n + 4) + 7 * n;
}

static Tall tall_in(double *space, ptrdiff_t m, ptrdiff_t n)
{
    Tall t = {.m = m, .n = n};
    t.b = space;
    t.adjoint = t.b + m * n;
    t.q = t.adjoint + m * n;
    t.q_adjoint = t.q + m * n;
    t.u = t.q_adjoint + m * n;
    t.v = t.u + n * n;
    t.v_adjoint = t.v + n * n;
    t.row_sizes = t.v_adjoint + n * n;
    t.exponents = (int64_t *)(t.row_sizes + n);
    t.work = t.row_sizes + 2 * n;
    return t;
}

static View rows_of(double *x, ptrdiff_t columns)
{
    ptrdiff_t size = sizeof(double);
    return (View){(char *)x, 0, columns * size, size, 0};
}

/* ---- products ------------------------------------------------------------------- */

/* The sum of x_j y_j, of n roundings a term. */
static double dot(ptrdiff_t n, const double *x, const double *y)
{
    double sums[LANES] = {0.0};
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += x[j + lane] * y[j + lane];
    for (; j < n; j++)
        sums[j % LANES] += x[j] * y[j];
    for (int step = LANES / 2; step; step /= 2)
        for (int lane = 0; lane < step; lane++)
            sums[lane] += sums[lane + step];
    return sums[0];
}

/* A x for m x n, whose rows lie `stride` numbers apart. */
static void map(ptrdiff_t m, ptrdiff_t n, const double *a, ptrdiff_t stride, const double *x,
                double *image)
{
    for (ptrdiff_t i = 0; i < m; i++)
        image[i] = dot(n, a + i * stride, x);
}

static void transpose(ptrdiff_t m, ptrdiff_t n, const double *a, double *transposed)
{
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            transposed[j * m + i] = a[i * n + j];
}

/* ---- factors -------------------------------------------------------------------- */

/* A column in scale, its largest entry in [1/2, 1), and the exponent that it lost; 0 where
 * an entry is not moderate. */
static int scale_column(ptrdiff_t m, const View *a, ptrdiff_t column, double *scaled,
                        int64_t *exponent)
{
    for (ptrdiff_t i = 0; i < m; i++)
        memcpy(scaled + i, a->data + i * a->row + column * a->column, sizeof *scaled);
    double largest = largest_of_moderate(m, scaled);
    if (largest < 0.0)
        return 0;
    int e;
    frexp(largest, &e);
    *exponent = e;
    for (ptrdiff_t i = 0; i < m; i++)
        scaled[i] *= power(-e);
    return 1;
}

/* Q and U by Gram and Schmidt, each column twice, and V. Returns 0 where a column is zero
 * then. */
static int factorise(Tall *t)
{
    ptrdiff_t m = t->m, n = t->n;
    memset(t->u, 0, (size_t)(n * n) * sizeof *t->u);
    memcpy(t->q_adjoint, t->adjoint, (size_t)(m * n) * sizeof *t->q);
    for (ptrdiff_t j = 0; j < n; j++) {
        double *column = t->q_adjoint + j * m;
        for (int pass = 0; pass < 2; pass++)
            for (ptrdiff_t i = 0; i < j; i++) {
                const double *other = t->q_adjoint + i * m;
                double factor = dot(m, other, column);
                t->u[i * n + j] += factor;
                for (ptrdiff_t h = 0; h < m; h++)
                    column[h] -= factor * other[h];
            }
        double size = sqrt(dot(m, column, column));
        if (!(size > 0.0))
            return 0;
        t->u[j * n + j] = size;
        for (ptrdiff_t h = 0; h < m; h++)
            column[h] /= size;
    }
    transpose(n, m, t->q_adjoint, t->q);

    /* U V = I, one column of V after the other */
    memset(t->v_adjoint, 0, (size_t)(n * n) * sizeof *t->v);
    for (ptrdiff_t j = 0; j < n; j++) {
        double *column = t->v_adjoint + j * n;
        column[j] = 1.0 / t->u[j * n + j];
        for (ptrdiff_t i = j - 1; i >= 0; i--)
            column[i] = -dot(j - i, t->u + i * n + i + 1, column + i + 1) / t->u[i * n + i];
    }
    transpose(n, n, t->v_adjoint, t->v);
    return 1;
}

/* Twin: linalg.full_rank.prove. Returns 0 where products of n roundings a term, or one word
 * of V, are not enough. */
static int prove(Tall *t, const Kernels *kernels)
{
    ptrdiff_t m = t->m, n = t->n;
    double *gap = t->work, *deviation = gap, *image = gap + m * (n + 1);
    for (ptrdiff_t i = 0; i < n; i++)
        t->row_sizes[i] = length(n, t->v + i * n, 1);
    for (ptrdiff_t i = 0; i < m; i++) {
        image[i] = 0.0;
        for (ptrdiff_t j = 0; j < n; j++)
            image[i] += fabs(t->b[i * n + j]) * t->row_sizes[j];
    }
    t->condition = length(m, image, 1);
    double accuracy = (double)(n + 1) * UNIT, size = GUARD * t->condition;
    if (!(accuracy * (size > 1.0 ? size : 1.0) <= SHARE_OF_PRODUCT))
        return 0;

    kernels->small_product(m, n, n, t->b, t->v, gap);
    for (ptrdiff_t i = 0; i < m * n; i++)
        gap[i] -= t->q[i];
    double of_w = length(m * n, gap, 1) + accuracy * t->condition;
    of_w += UNIT * sqrt(1.75 * (double)n);
    of_w = upward(of_w, n + 10, 8.0 * (double)((m + n) * (m + n)) * LEAST);

    kernels->small_product(n, m, n, t->q_adjoint, t->q, deviation);
    for (ptrdiff_t i = 0; i < n; i++)
        deviation[i * n + i] -= 1.0;
    double of_e = length(n * n, deviation, 1) + 2.0 * (double)((m + 1) * n) * UNIT;
    of_e = upward(of_e, 8, 4.0 * (double)(m * n) * LEAST);
    t->norm = upward(5.0 * of_w + 2.0 * of_e, 4, 0.0);
    return t->norm < GOOD_NORM;
}

/* ---- enclosures ------------------------------------------------------------------ */

/* A right side f, and s and x of the augmented system in one or two words each. */
typedef struct {
    double *f, *s, *low_s;
    double *x, *low_x;
    double *left_x; /* what the words of x are less than the sum they stand for */
    double *q1, *q2, *p, *z, *sizes, *minus;
    double bound; /* at least the norms of d1 and d2, with all roundings */
    int words;
} Side;

static Side side_in(const Tall *t)
{
    ptrdiff_t m = t->m, n = t->n;
    Side v = {.f = t->work + 2 * m * (n + 1), .words = 1};
    v.s = v.f + m;
    v.low_s = v.s + m;
    v.q1 = v.low_s + m;
    v.minus = v.q1 + m;
    v.x = v.minus + 2 * m;
    v.low_x = v.x + n;
    v.left_x = v.low_x + n;
    v.q2 = v.left_x + n;
    v.p = v.q2 + n;
    v.z = v.p + n;
    v.sizes = v.z + n;
    return v;
}

/* The residuals q1 = f - s - B x and q2 = -B^T s, rounded once; 0 where nothing is to be
 * read. */
static int write_residuals(const Tall *t, const Side *v, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t m = t->m, n = t->n, columns = v->words * (n + 1);
    const double *of_s[] = {v->s, v->low_s}, *of_x[] = {v->x, v->low_x};
    double *left = t->work;
    for (int word = 0; word < v->words; word++) {
        double *block = left + word * (n + 1), *minus = v->minus + word * (n + 1);
        for (ptrdiff_t i = 0; i < m; i++) {
            memcpy(block + i * columns, t->b + i * n, (size_t)n * sizeof *left);
            block[i * columns + n] = of_s[word][i];
        }
        for (ptrdiff_t j = 0; j < n; j++)
            minus[j] = -of_x[word][j];
        minus[n] = -1.0;
    }
    Product of_f = {.batch = 1, .m = m, .n = 1, .k = columns, .kind = NEAREST};
    of_f.a = rows_of(left, columns);
    of_f.b = rows_of(v->minus, 1);
    of_f.c = rows_of(v->f, 1);
    of_f.first = rows_of(v->q1, 1);
    if (multiply(&of_f, kernels, watch) != DONE)
        return 0;

    double *adjoints = t->work;
    for (int word = 0; word < v->words; word++) {
        for (ptrdiff_t j = 0; j < n; j++)
            memcpy(adjoints + (j * v->words + word) * m, t->adjoint + j * m,
                   (size_t)m * sizeof *adjoints);
        for (ptrdiff_t i = 0; i < m; i++)
            v->minus[word * m + i] = -of_s[word][i];
    }
    Product of_zero = {.batch = 1, .m = n, .n = 1, .k = v->words * m, .kind = NEAREST};
    of_zero.a = rows_of(adjoints, v->words * m);
    of_zero.b = rows_of(v->minus, 1);
    of_zero.first = rows_of(v->q2, 1);
    return multiply(&of_zero, kernels, watch) == DONE;
}

/* x + y + d in two words, of which y is zero before the first step; and what they leave. */
static void add(ptrdiff_t n, double *x, double *y, const double *d, double *left)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        double low;
        two_sum(y[i], d[i], &low, left + i);
        two_sum(x[i], low, x + i, y + i);
    }
}

/* Twin: linalg.full_rank.FullRank.update, and its sum with s and x. Returns 0 where nothing
 * is to be read. */
static int step(const Tall *t, Side *v, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t m = t->m, n = t->n;
    if (!write_residuals(t, v, kernels, watch))
        return 0;

    /* z = Q^T q1 - p, p = V^T q2, and what p errs by */
    map(n, n, t->v_adjoint, n, v->q2, v->p);
    map(n, m, t->q_adjoint, m, v->q1, v->z);
    double share = (double)(n + 2) * UNIT;
    for (ptrdiff_t j = 0; j < n; j++) {
        double size = 0.0;
        for (ptrdiff_t i = 0; i < n; i++)
            size += fabs(t->v_adjoint[j * n + i]) * (share * fabs(v->q2[i]) + 2.0 * LEAST);
        size += 2.0 * UNIT * fabs(v->p[j]);
        v->sizes[j] = upward(size, n + 10, 4.0 * (double)(n + 1) * LEAST);
        v->z[j] -= v->p[j];
    }
    double of_p = length(n, v->sizes, 1), count = (double)(m + n + 4);
    double size = length(m, v->q1, 1) + length(n, v->p, 1) + of_p;
    size = upward(size, 3, 4.0 * (double)(m + n) * LEAST);
    double of_size = upward(2.25 * t->norm / (1.0 - t->norm), 4, 0.0);
    of_size += 9.0 * (double)(m + 1) * UNIT * sqrt((double)n);
    v->bound = upward(of_size * size + 1.25 * of_p, 12, 16.0 * count * count * LEAST);

    /* s + q1 - Q z, whose last digits may be lost, and x + V z */
    double *image = v->minus;
    map(m, n, t->q, n, v->z, image);
    for (ptrdiff_t i = 0; i < m; i++)
        v->q1[i] -= image[i];
    add(m, v->s, v->low_s, v->q1, image);
    map(n, n, t->v, n, v->z, v->sizes);
    add(n, v->x, v->low_x, v->sizes, v->left_x);
    v->words = 2;
    return 1;
}

/* True if no error of x is more than a small part of its entry, or of the largest one, of
 * which two words hold no less. */
static int is_sharp(const Tall *t, const Side *v, double underflows)
{
    double largest = 0.0;
    for (ptrdiff_t j = 0; j < t->n; j++)
        largest = fabs(v->x[j]) > largest ? fabs(v->x[j]) : largest;
    for (ptrdiff_t j = 0; j < t->n; j++) {
        double error = upward(t->row_sizes[j] * v->bound, 1, underflows);
        double enough = ENOUGH * fabs(v->x[j]), least = NEGLIGIBLE * largest;
        if (!(error <= (enough > least ? enough : least)))
            return 0;
    }
    return 1;
}

/* Twin: linalg.least_squares._enclosure, for right side h. Returns 0 where the bounds of more
 * steps may be sharper, or a result is subnormal. */
static int enclose_side(const Tall *t, ptrdiff_t h, const View *b, const View *x,
                        const View *radius, double *most_steps, const Kernels *kernels,
                        Watch *watch)
{
    ptrdiff_t m = t->m, n = t->n;
    Side v = side_in(t);
    int64_t of_side;
    if (!scale_column(m, b, h, v.f, &of_side))
        return 0;
    int is_zero = 1;
    for (ptrdiff_t i = 0; i < m; i++)
        is_zero &= v.f[i] == 0.0;

    /* s = f - Q z and x = V z for z = Q^T f */
    map(n, m, t->q_adjoint, m, v.f, v.z);
    map(m, n, t->q, n, v.z, v.s);
    for (ptrdiff_t i = 0; i < m; i++) {
        v.s[i] = v.f[i] - v.s[i];
        v.low_s[i] = 0.0;
    }
    map(n, n, t->v, n, v.z, v.x);
    for (ptrdiff_t j = 0; j < n; j++)
        v.low_x[j] = 0.0;

    double underflows = 16.0 * (double)((m + n + 4) * (m + n + 4)) * LEAST;
    int steps = 0;
    do {
        if (steps == MOST_STEPS || !step(t, &v, kernels, watch))
            return 0;
        steps++;
    } while (!is_zero && !is_sharp(t, &v, underflows));
    *most_steps = steps > *most_steps ? steps : *most_steps;

    for (ptrdiff_t j = 0; j < n; j++) {
        double error = upward(t->row_sizes[j] * v.bound, 1, underflows);
        double bound = upward(error + fabs(v.low_x[j]) + fabs(v.left_x[j]), 2, 0.0);
        if (is_zero)
            v.x[j] = bound = 0.0;
        int64_t exponent = of_side - t->exponents[j];
        if (!write_restored(x, j, h, v.x[j], exponent)
            || !write_restored(radius, j, h, bound, exponent))
            return 0;
    }
    return 1;
}

/* The solutions of least squares X of A X = B and their radii, A m x n with m > n and B m x
 * k. Returns LEFT where nothing is to be read: entries are wild, one word of V or one step
 * is not enough, a result is subnormal, or the watch ends the call. `space` has room for
 * space_of_tall(m, n) numbers. */
Solved solve_tall(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const View *a, const View *b,
                  const View *x, const View *radius, Proof *proof, double *space,
                  const Kernels *kernels, Watch *watch)
{
    Tall t = tall_in(space, m, n);
    for (ptrdiff_t j = 0; j < n; j++)
        if (!scale_column(m, a, j, t.adjoint + j * m, t.exponents + j))
            return LEFT;
    transpose(n, m, t.adjoint, t.b);
    if (!factorise(&t) || !prove(&t, kernels))
        return LEFT;
    *proof = (Proof){t.condition, t.norm, 0.0};
    for (ptrdiff_t h = 0; h < k; h++)
        if (!enclose_side(&t, h, b, x, radius, &proof->steps, kernels, watch))
            return LEFT;
    return stops(watch, 0) ? LEFT : ENCLOSED;
}
