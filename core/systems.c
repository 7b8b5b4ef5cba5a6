/* Steps of the proofs of linear systems that read a whole matrix once or twice: the product
 * of magnitudes and a vector, and the powers of two that scale rows and columns.
 */

#include "core.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 8, /* sums of a row that run side by side */
};

static void write_double(const View *x, ptrdiff_t i, ptrdiff_t j, double value)
{
    memcpy(x->data + i * x->row + j * x->column, &value, sizeof value);
}

/* A row or column, contiguous: in place, or a copy in `space`. */
static const double *vector(const char *at, ptrdiff_t stride, ptrdiff_t count,
                            double *space)
{
    if (stride == (ptrdiff_t)sizeof(double) || count < 2)
        return (const double *)at;
    for (ptrdiff_t h = 0; h < count; h++)
        memcpy(space + h, at + h * stride, sizeof *space);
    return space;
}

/* ---- products of magnitudes ----------------------------------------------------- */

/* The sum of |a_j| v_j; a term takes at most n roundings, including its product. */
static double sum_of_row(ptrdiff_t n, const double *a, const double *v)
{
    double sums[LANES] = {0.0};
    ptrdiff_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += fabs(a[j + lane]) * v[j + lane];
    for (; j < n; j++)
        sums[j % LANES] += fabs(a[j]) * v[j];
    for (int step = LANES / 2; step; step /= 2)
        for (int lane = 0; lane < step; lane++)
            sums[lane] += sums[lane + step];
    return sums[0];
}

/* sums_i += |a_ij| v_j for a column of A. */
static void add_column(ptrdiff_t m, const double *restrict a, double v,
                       double *restrict sums)
{
    for (ptrdiff_t i = 0; i < m; i++)
        sums[i] += fabs(a[i]) * v;
}

/* out = |A| V, A m x n and V n x k. `space` has room for n k numbers, and for the larger of
 * m and n. Entries of A are read in the order in which they lie in memory, once for all
 * columns of V. */
void magnitude_product(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const View *a, const View *v,
                       const View *out, double *space, Watch *watch)
{
    double *columns = space, *copy = space + n * k;
    for (ptrdiff_t j = 0; j < k; j++) {
        if (stops(watch, 16 * (int64_t)n))
            return;
        for (ptrdiff_t h = 0; h < n; h++)
            memcpy(columns + j * n + h, v->data + h * v->row + j * v->column, sizeof *columns);
    }

    if (a->row == (ptrdiff_t)sizeof(double) && m > 1) {
        /* Columns of A lie in memory: sums grow by one column after the other. */
        for (ptrdiff_t j = 0; j < k; j++) {
            memset(copy, 0, (size_t)m * sizeof(double));
            for (ptrdiff_t h = 0; h < n; h++) {
                add_column(m, (const double *)(a->data + h * a->column),
                           columns[j * n + h], copy);
                if (stops(watch, 8 * (int64_t)m))
                    return;
            }
            for (ptrdiff_t i = 0; i < m; i++)
                write_double(out, i, j, copy[i]);
        }
        return;
    }
    for (ptrdiff_t i = 0; i < m; i++) {
        const double *row = vector(a->data + i * a->row, a->column, n, copy);
        for (ptrdiff_t j = 0; j < k; j++) {
            write_double(out, i, j, sum_of_row(n, row, columns + j * n));
            if (stops(watch, 8 * (int64_t)n))
                return;
        }
    }
}

/* ---- scaling -------------------------------------------------------------------- */

/* The e with 2^(e - 1) <= x < 2^e, 0 for zero. */
static int exponent_of(double x)
{
    int e;
    frexp(x, &e);
    return e;
}

/* The largest magnitude of a vector; -1 where one is not moderate. */
double largest_of_moderate(ptrdiff_t n, const double *x)
{
    double most[LANES] = {0.0}, least[LANES], sums[LANES] = {0.0};
    for (int lane = 0; lane < LANES; lane++)
        least[lane] = 1.0;
    for (ptrdiff_t j = 0; j < n; j += LANES) {
        int count = n - j < LANES ? (int)(n - j) : LANES;
        for (int lane = 0; lane < count; lane++) {
            double size = fabs(x[j + lane]), nonzero = size > 0.0 ? size : 1.0;
            most[lane] = size > most[lane] ? size : most[lane];
            least[lane] = nonzero < least[lane] ? nonzero : least[lane];
            sums[lane] += size; /* NaN, which no comparison keeps */
        }
    }
    double largest = 0.0;
    for (int lane = 0; lane < LANES; lane++) {
        largest = most[lane] > largest ? most[lane] : largest;
        if (!(sums[lane] < INFINITY) || least[lane] < 1.0 / MODERATE)
            return -1.0;
    }
    return largest <= MODERATE ? largest : -1.0;
}

/* At least the Euclidean norm of n numbers that lie `stride` apart. */
double length(ptrdiff_t n, const double *x, ptrdiff_t stride)
{
    double square = 0.0;
    for (ptrdiff_t i = 0; i < n; i++)
        square += x[i * stride] * x[i * stride];
    return upward(sqrt(square), n + 8, 0x1p-500);
}

/* Write x 2^exponent to an entry of a matrix; returns 0 if it is rounded or overflows. The
 * exponent of a column lies in 0 to 400, the one of a right side in -400 to 400, and this is
 * their difference. */
int write_restored(const View *matrix, ptrdiff_t row, ptrdiff_t column, double x,
                   int64_t exponent)
{
    double scaled = x * power((int)exponent);
    memcpy(matrix->data + row * matrix->row + column * matrix->column, &scaled, sizeof scaled);
    return scaled * power((int)-exponent) == x;
}

/* Twin: numerics.equilibration.equilibrated. Returns 0 where entries are not moderate, or
 * the watch ends the call.
 *
 * A is n x n and B n x k. `space` has room for 3 n numbers: the largest entries of the
 * columns, which become their factors, the factors of the rows, and a vector. */
int equilibrate(ptrdiff_t n, ptrdiff_t k, const View *a, const View *b, const View *scaled_a,
                const View *scaled_b, int64_t *exponents, int64_t *sum, double *space,
                Watch *watch)
{
    double *of_columns = space, *of_rows = space + n, *copy = space + 2 * n;
    for (ptrdiff_t j = 0; j < n; j++)
        of_columns[j] = 0.0;

    /* A row is read from memory once, for its factor and for the largest entries of the
     * columns. */
    *sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double *x = vector(a->data + i * a->row, a->column, n, copy);
        double largest = largest_of_moderate(n, x);
        if (largest < 0.0 || stops(watch, 16 * (int64_t)n))
            return 0;
        int row = -exponent_of(largest);
        double factor = power(row);
        *sum += row;
        of_rows[i] = factor;
        for (ptrdiff_t j = 0; j < n; j++) {
            double scaled = fabs(x[j]) * factor;
            of_columns[j] = scaled > of_columns[j] ? scaled : of_columns[j];
        }
    }
    for (ptrdiff_t j = 0; j < n; j++) {
        int column = -exponent_of(of_columns[j]);
        *sum += column;
        of_columns[j] = power(column);
        for (ptrdiff_t h = 0; h < k; h++)
            exponents[j * k + h] = column;
    }

    /* Right sides, in scale with the rows. */
    for (ptrdiff_t h = 0; h < k; h++) {
        const double *x = vector(b->data + h * b->column, b->row, n, copy);
        if (largest_of_moderate(n, x) < 0.0 || stops(watch, 16 * (int64_t)n))
            return 0;
        double largest = 0.0;
        for (ptrdiff_t i = 0; i < n; i++) {
            double scaled = fabs(x[i]) * of_rows[i];
            largest = scaled > largest ? scaled : largest;
        }
        int side = -exponent_of(largest);
        for (ptrdiff_t i = 0; i < n; i++) {
            write_double(scaled_b, i, h, x[i] * (of_rows[i] * power(side)));
            exponents[i * k + h] -= side;
        }
    }

    /* Rows of the result lie in memory. */
    for (ptrdiff_t i = 0; i < n; i++) {
        const double *x = vector(a->data + i * a->row, a->column, n, copy);
        double *scaled = (double *)(scaled_a->data + i * scaled_a->row);
        for (ptrdiff_t j = 0; j < n; j++)
            scaled[j] = x[j] * (of_rows[i] * of_columns[j]);
        if (stops(watch, 16 * (int64_t)n))
            return 0;
    }
    return 1;
}

/* ---- enclosures ----------------------------------------------------------------- */

/* R v and |R| |v| in one reading of R, n x n; each of n roundings. */
void image_and_size(ptrdiff_t n, const View *r, const double *v, double *image,
                    double *size, double *space, Watch *watch)
{
    if (r->row == (ptrdiff_t)sizeof(double) && n > 1) {
        memset(image, 0, (size_t)n * sizeof(double));
        memset(size, 0, (size_t)n * sizeof(double));
        for (ptrdiff_t j = 0; j < n; j++) {
            const double *column = (const double *)(r->data + j * r->column);
            for (ptrdiff_t i = 0; i < n; i++) {
                double term = column[i] * v[j];
                image[i] += term;
                size[i] += fabs(term);
            }
            if (stops(watch, 16 * (int64_t)n))
                return;
        }
        return;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        const double *row = vector(r->data + i * r->row, r->column, n, space);
        double images[LANES] = {0.0}, sizes[LANES] = {0.0};
        for (ptrdiff_t j = 0; j < n; j += LANES) {
            int count = n - j < LANES ? (int)(n - j) : LANES;
            for (int lane = 0; lane < count; lane++) {
                double term = row[j + lane] * v[j + lane];
                images[lane] += term;
                sizes[lane] += fabs(term);
            }
        }
        for (int step = LANES / 2; step; step /= 2)
            for (int lane = 0; lane < step; lane++) {
                images[lane] += images[lane + step];
                sizes[lane] += sizes[lane + step];
            }
        image[i] = images[0];
        size[i] = sizes[0];
        if (stops(watch, 16 * (int64_t)n))
            return;
    }
}

/* Twin: linalg.refinement.enclosure, for one right side, of a solution that its first step
 * makes sharp: x = R b + d, d close to R q, q = b - A R b rounded once. Returns 0, without
 * valid results, if the bound of another step may be sharper, q is zero, or the watch ends
 * the call.
 *
 * `bounds` are at least |I - R A| e, and `norm` is their largest, below 1; `inverse_norm`
 * is at least |R| e. `space` has room for 6 n numbers. */
int enclose(ptrdiff_t n, const View *a, const View *b, const View *r, const double *bounds,
            double norm, double inverse_norm, const View *x, const View *radius,
            double *space, const Kernels *kernels, Watch *watch)
{
    double *side = space, *start = space + n, *q = space + 2 * n, *d = space + 3 * n;
    double *sizes = space + 4 * n, *copy = space + 5 * n;
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(side + i, b->data + i * b->row, sizeof *side);
    image_and_size(n, r, side, start, sizes, copy, watch);

    /* q = b + A (-x), rounded once */
    for (ptrdiff_t i = 0; i < n; i++)
        d[i] = -start[i];
    ptrdiff_t width = sizeof(double);
    Product residual = {.batch = 1, .m = n, .n = 1, .k = n, .a = *a, .kind = NEAREST};
    residual.b = (View){(char *)d, 0, width, width, 0};
    residual.c = (View){(char *)side, 0, width, width, 0};
    residual.first = (View){(char *)q, 0, width, width, 0};
    if (multiply(&residual, kernels, watch) != DONE)
        return 0;
    image_and_size(n, r, q, d, sizes, copy, watch);
    if (stops(watch, 0))
        return 0;

    /* |R q* - d| <= |R| (gamma_n + u) |q| + what underflows, and the largest error of x */
    double share = (double)(n + 2) * 0x1p-53, largest = 0.0;
    double underflows = (double)(3 * n + 6) * 0x1p-1074 * (1.0 + inverse_norm);
    int is_zero = 1;
    for (ptrdiff_t i = 0; i < n; i++) {
        is_zero &= q[i] == 0.0;
        sizes[i] = upward(share * sizes[i], n + 6, underflows);
        double y = fabs(d[i]) + sizes[i];
        if (!(y < INFINITY))
            return 0;
        largest = y > largest ? y : largest;
    }
    if (is_zero)
        return 0;
    double error_of_x = upward(largest / (1.0 - norm), 4, 0.0);

    /* x + d in two words, and the bound of the remainder */
    for (ptrdiff_t i = 0; i < n; i++) {
        double sum, rest;
        two_sum(start[i], d[i], &sum, &rest);
        double error = upward(sizes[i] + error_of_x * bounds[i], 3, 0x1p-1074);
        if (!(error <= 0x1p-60 * fabs(sum)))
            return 0;
        write_double(x, i, 0, sum);
        write_double(radius, i, 0, upward(error + fabs(rest), 1, 0.0));
    }
    return 1;
}
