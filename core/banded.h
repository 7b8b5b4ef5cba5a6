/* Rows of the approximate inverse of a banded matrix, for one set of vector instructions.
 *
 * Included by kernels.h. A lane of a vector is a row. ROWS rows are computed side by side,
 * with entry j of all rows at z + j ROWS. Entries below LEAST_OF_ROWS become zeros, so that
 * decaying rows do not end in slow subnormal numbers. R may be any matrix, so this is
 * allowed.
 */

enum { NAME(ROWS) = 4 * WIDTH };

/* x[v] += factor y for the vectors of all rows. */
static ALWAYS_INLINE void NAME(add_to_rows)(VECTOR *x, double factor, const double *y)
{
    UNROLLED for (int v = 0; v < 4; v++)
        x[v] = NAME(plus_multiple)(x[v], ALL(factor), LOAD(y + v * WIDTH));
}

/* x[v] += left z and y[v] += right z. z is read once. */
static ALWAYS_INLINE void NAME(add_to_both)(VECTOR *x, VECTOR *y, double left, double right,
                                            const double *z)
{
    UNROLLED for (int v = 0; v < 4; v++) {
        VECTOR entries = LOAD(z + v * WIDTH);
        x[v] = NAME(plus_multiple)(x[v], ALL(left), entries);
        y[v] = NAME(plus_multiple)(y[v], ALL(right), entries);
    }
}

/* The lanes of e_row, e_row+1, ... that are 1 at entry j. */
static ALWAYS_INLINE void NAME(unit)(ptrdiff_t row, ptrdiff_t j, VECTOR *x)
{
    double lanes[4 * WIDTH] = {0.0};
    if (j >= row && j < row + 4 * WIDTH)
        lanes[j - row] = 1.0;
    UNROLLED for (int v = 0; v < 4; v++)
        x[v] = LOAD(lanes + v * WIDTH);
}

/* x / pivot, without tiny numbers. */
static ALWAYS_INLINE void NAME(store_quotients)(const VECTOR *x, double pivot, double *z)
{
    VECTOR reciprocal = ALL(1.0 / pivot);
    UNROLLED for (int v = 0; v < 4; v++)
        STORE(z + v * WIDTH, UNLESS_BELOW(LEAST_OF_ROWS, MUL(x[v], reciprocal)));
}

/* The rows r of z with r A = e_i, i from `row` on: with P A = L U solve U^T w = e_i and then
 * L^T P r = w, with the row exchange after each column of L. */
static void NAME(rows_of_inverse)(const Band *band, ptrdiff_t row, double *z, Watch *watch)
{
    enum { LANES = 4 * WIDTH };
    ptrdiff_t n = band->n, lower = band->lower, above = lower + band->upper;
    ptrdiff_t stride = above + lower + 2;
    VECTOR x[4], y[4];
    memset(z, 0, (size_t)(row * LANES) * sizeof *z);
    for (ptrdiff_t j = row; j < n; j += 2) {
        /* Two columns of U at a time share the loads of z; a zero precedes each column. */
        const double *u = band->factors + j * stride + above + 1;
        const double *next = j + 1 < n ? u + stride - 1 : u;
        NAME(unit)(row, j, x);
        NAME(unit)(row, j + 1, y);
        for (ptrdiff_t h = j - above < row ? row : j - above; h < j; h++)
            NAME(add_to_both)(x, y, -u[h - j], -next[h - j], z + h * LANES);
        NAME(store_quotients)(x, u[0], z + j * LANES);
        if (j + 1 < n) {
            NAME(add_to_rows)(y, -next[0], z + j * LANES);
            NAME(store_quotients)(y, next[1], z + (j + 1) * LANES);
        }
        if (stops(watch, 2 * (above + 1) * LANES))
            return;
    }
    if (lower == 0)
        return;
    for (ptrdiff_t j = n - 2; j >= 0; j--) {
        const double *l = band->factors + j * stride + above + 1;
        double *here = z + j * LANES, *pivot = z + band->pivots[j] * LANES;
        UNROLLED for (int v = 0; v < 4; v++)
            x[v] = LOAD(here + v * WIDTH);
        for (ptrdiff_t h = 1; h <= lower && j + h < n; h++)
            NAME(add_to_rows)(x, -l[h], here + h * LANES);
        UNROLLED for (int v = 0; v < 4; v++) {
            STORE(here + v * WIDTH, LOAD(pivot + v * WIDTH));
            STORE(pivot + v * WIDTH, UNLESS_BELOW(LEAST_OF_ROWS, x[v]));
        }
        if (stops(watch, (lower + 1) * LANES))
            return;
    }
}

/* x less entry j of e_row, e_row+1, ... */
static ALWAYS_INLINE void NAME(store_gaps)(const VECTOR *x, ptrdiff_t row, ptrdiff_t j,
                                           double *gaps)
{
    VECTOR e[4];
    NAME(unit)(row, j, e);
    UNROLLED for (int v = 0; v < 4; v++)
        STORE(gaps + v * WIDTH, SUB(x[v], e[v]));
}

/* r A - e_i for the rows r of z. The sum of an entry takes as many roundings as a column of A
 * has entries, plus one. */
static void NAME(deviations)(const Band *band, ptrdiff_t row, const double *z, double *gaps,
                             Watch *watch)
{
    enum { LANES = 4 * WIDTH };
    ptrdiff_t n = band->n, lower = band->lower, upper = band->upper;
    for (ptrdiff_t j = 0; j < n; j += 2) {
        /* Two columns of A at a time share the loads of z; zeros lie between them. */
        const double *a = band->columns + j * (lower + upper + 2) + upper + 1;
        const double *next = j + 1 < n ? a + lower + upper + 1 : a;
        VECTOR x[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
        VECTOR y[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
        ptrdiff_t first = j - upper < 0 ? 0 : j - upper;
        ptrdiff_t last = j + 1 + lower < n ? j + 1 + lower : n - 1;
        if (lower == 0 && first < row)
            first = row; /* rows of an upper triangle begin with zeros */
        for (ptrdiff_t h = first; h <= last; h++)
            NAME(add_to_both)(x, y, a[h - j], next[h - j], z + h * LANES);
        NAME(store_gaps)(x, row, j, gaps + j * LANES);
        if (j + 1 < n)
            NAME(store_gaps)(y, row, j + 1, gaps + (j + 1) * LANES);
        if (stops(watch, 2 * (lower + upper + 1) * LANES))
            return;
    }
}

/* The sums of z_j c_j, or of |z_j| c_j, for all rows, with n roundings each. */
static void NAME(sums_of_rows)(ptrdiff_t n, const double *z, const double *c,
                               int are_magnitudes, double *sums)
{
    VECTOR x[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
    if (!are_magnitudes)
        for (ptrdiff_t j = 0; j < n; j++)
            NAME(add_to_rows)(x, c[j], z + j * 4 * WIDTH);
    else
        for (ptrdiff_t j = 0; j < n; j++)
            UNROLLED for (int v = 0; v < 4; v++) {
                VECTOR size = ABS(LOAD(z + (j * 4 + v) * WIDTH));
                x[v] = NAME(plus_multiple)(x[v], ALL(c[j]), size);
            }
    for (int v = 0; v < 4; v++)
        STORE(sums + v * WIDTH, x[v]);
}
