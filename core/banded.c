/* Products of the approximate inverse R of a banded or triangular matrix A, and of R A - I,
 * with few columns. Neither matrix is stored: a few of their rows at a time are computed and
 * multiplied by all columns.
 *
 * With `lower` diagonals below the main one and `upper` above it, a row of R takes
 * n (2 lower + upper) scalar products, and a row of R A - I takes n times the number of
 * diagonals of A.
 * R comes from P A = L U by elimination with partial pivoting; U has lower + upper diagonals
 * above the main one. An upper triangle is its own U.
 */

#include "core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The band of A by columns, from the highest diagonal down, with zeros beyond the matrix
 * and before each column; the diagonal is number `middle` of `stride`. */
static void read_band(const View *a, ptrdiff_t n, ptrdiff_t lower, ptrdiff_t upper,
                      ptrdiff_t stride, ptrdiff_t middle, double *columns)
{
    for (ptrdiff_t j = 0; j < n; j++) {
        double *column = columns + j * stride;
        memset(column, 0, (size_t)stride * sizeof *column);
        ptrdiff_t first = j - upper < 0 ? 0 : j - upper;
        ptrdiff_t last = j + lower < n ? j + lower : n - 1;
        for (ptrdiff_t i = first; i <= last; i++)
            memcpy(column + middle + i - j, a->data + i * a->row + j * a->column,
                   sizeof *column);
    }
}

/* The columns of A, and L and U: numbers of each column as `Band` has them, and the row that
 * each pivot came from. Rows of L keep the order from the elimination of their column.
 * Without diagonals below the main one U is A, and `factors` is not written. Returns 0 if a
 * pivot is zero, or if the watch ends the call. */
int factorise_band(const View *a, ptrdiff_t n, ptrdiff_t lower, ptrdiff_t upper,
                   double *columns, double *factors, int64_t *pivots, Watch *watch)
{
    ptrdiff_t above = lower + upper, width = above + 2, stride = width + lower;
    read_band(a, n, lower, upper, width, upper + 1, columns);
    if (lower == 0) {
        int has_pivots = 1;
        for (ptrdiff_t c = 0; c < n; c++)
            has_pivots &= columns[c * width + upper + 1] != 0.0;
        return has_pivots;
    }
    read_band(a, n, lower, upper, stride, above + 1, factors);
    for (ptrdiff_t c = 0; c < n; c++) {
        double *column = factors + c * stride + above + 1;
        ptrdiff_t last_row = c + lower < n ? lower : n - 1 - c;
        ptrdiff_t last_column = c + above < n ? above : n - 1 - c;
        ptrdiff_t pivot = 0;
        for (ptrdiff_t i = 1; i <= last_row; i++)
            if (fabs(column[i]) > fabs(column[pivot]))
                pivot = i;
        if (column[pivot] == 0.0)
            return 0;
        pivots[c] = c + pivot;

        /* Entries of a row lie stride - 1 numbers apart. */
        for (ptrdiff_t j = 0; j <= last_column; j++) {
            double *entry = column + j * (stride - 1), value = entry[0];
            entry[0] = entry[pivot];
            entry[pivot] = value;
        }
        for (ptrdiff_t i = 1; i <= last_row; i++)
            column[i] /= column[0];
        for (ptrdiff_t j = 1; j <= last_column; j++) {
            double *entries = column + j * (stride - 1), factor = entries[0];
            for (ptrdiff_t i = 1; i <= last_row; i++)
                entries[i] -= column[i] * factor;
        }
        if (stops(watch, (last_row + 1) * (last_column + 1)))
            return 0;
    }
    return 1;
}

/* Columns of a matrix one after the other; returns the end of the copy. */
static double *copy_of_columns(const View *x, ptrdiff_t n, ptrdiff_t count, double *copy)
{
    for (ptrdiff_t j = 0; j < count; j++)
        for (ptrdiff_t i = 0; i < n; i++)
            memcpy(copy + j * n + i, x->data + i * x->row + j * x->column, sizeof *copy);
    return copy + n * count;
}

/* Rows of a result in one of its columns. */
static void write_rows(const View *out, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t column,
                       const double *values)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        memcpy(out->data + (row + i) * out->row + column * out->column, values + i,
               sizeof *values);
}

/* Rows `first` to `first` + `count` - 1 of R Q, |R| S and |R A - I| V; see core.h. */
Outcome banded_products(const BandedProducts *p, const Kernels *kernels, Watch *watch)
{
    ptrdiff_t n = p->band.n, lanes = kernels->rows;
    ptrdiff_t num_columns = p->num_images + p->num_sizes + p->num_gaps;
    size_t numbers = (size_t)(n * (2 * lanes + num_columns) + 1);
    double *space = malloc(sizeof(double) * numbers);
    if (!space)
        return NO_MEMORY;
    double *z = space, *gaps = z + n * lanes, *q = gaps + n * lanes;
    double *s = copy_of_columns(&p->q, n, p->num_images, q);
    double *v = copy_of_columns(&p->s, n, p->num_sizes, s);
    copy_of_columns(&p->v, n, p->num_gaps, v);

    double sums[MOST_ROWS];
    for (ptrdiff_t row = 0; row < p->count; row += lanes) {
        ptrdiff_t rows = p->count - row < lanes ? p->count - row : lanes;
        kernels->rows_of_inverse(&p->band, p->first + row, z, watch);
        for (ptrdiff_t j = 0; j < p->num_images; j++) {
            kernels->sums_of_rows(n, z, q + j * n, 0, sums);
            write_rows(&p->images, row, rows, j, sums);
        }
        for (ptrdiff_t j = 0; j < p->num_sizes; j++) {
            kernels->sums_of_rows(n, z, s + j * n, 1, sums);
            write_rows(&p->sizes, row, rows, j, sums);
        }
        if (p->num_gaps)
            kernels->deviations(&p->band, p->first + row, z, gaps, watch);
        for (ptrdiff_t j = 0; j < p->num_gaps; j++) {
            kernels->sums_of_rows(n, gaps, v + j * n, 1, sums);
            write_rows(&p->gaps, row, rows, j, sums);
        }
        if (stops(watch, num_columns * lanes * n))
            break;
    }
    free(space);
    return DONE;
}
