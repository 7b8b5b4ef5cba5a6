/* L and U of some columns, by elimination with partial pivoting.
 *
 * No proof relies on their values: the caller bounds their residual.
 */

#include "core.h"

#include <math.h>

static double *row_of(const View *x, ptrdiff_t i)
{
    return (double *)(x->data + i * x->row);
}

/* Overwrite a panel, m x n with contiguous rows, with U and, below its diagonal, L; also
 * write the row that came to each place. A column without a pivot stays unchanged. */
void factor_panel(ptrdiff_t m, ptrdiff_t n, const View *panel, int64_t *order, Watch *watch)
{
    for (ptrdiff_t i = 0; i < m; i++)
        order[i] = i;
    for (ptrdiff_t c = 0; c < n && !stops(watch, (m - c) * (n - c)); c++) {
        ptrdiff_t pivot = c;
        for (ptrdiff_t i = c + 1; i < m; i++)
            if (fabs(row_of(panel, i)[c]) > fabs(row_of(panel, pivot)[c]))
                pivot = i;
        double *restrict pivot_row = row_of(panel, c);
        if (row_of(panel, pivot)[c] == 0.0)
            continue;

        if (pivot != c) {
            double *restrict other = row_of(panel, pivot);
            for (ptrdiff_t j = 0; j < n; j++) {
                double value = other[j];
                other[j] = pivot_row[j];
                pivot_row[j] = value;
            }
            int64_t index = order[pivot];
            order[pivot] = order[c];
            order[c] = index;
        }

        for (ptrdiff_t i = c + 1; i < m; i++) {
            double *restrict row = row_of(panel, i);
            double factor = row[c] / pivot_row[c];
            row[c] = factor;
            for (ptrdiff_t j = c + 1; j < n; j++)
                row[j] -= factor * pivot_row[j];
        }
    }
}
