/* Products and inverses of small matrices, for one set of vector instructions. Included by
 * kernels.h; the loops are plain C, of which compilers make vectors, and no product is
 * fused with a sum. The rows of each matrix are contiguous.
 */

static ALWAYS_INLINE void NAME(add_multiple)(ptrdiff_t n, double *restrict y, double factor,
                                             const double *restrict x)
{
    for (ptrdiff_t j = 0; j < n; j++)
        y[j] += factor * x[j];
}

/* C = A B, A m x n and B n x k, of n roundings a term. */
static void NAME(small_product)(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const double *a,
                                const double *b, double *c)
{
    memset(c, 0, (size_t)(m * k) * sizeof *c);
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t h = 0; h < n; h++)
            NAME(add_multiple)(k, c + i * k, a[i * n + h], b + h * k);
}

/* The same, and |A| |B|. */
static void NAME(sized_product)(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const double *a,
                                const double *b, double *c, double *sizes)
{
    memset(c, 0, (size_t)(m * k) * sizeof *c);
    memset(sizes, 0, (size_t)(m * k) * sizeof *sizes);
    for (ptrdiff_t i = 0; i < m; i++) {
        double *restrict sums = c + i * k, *restrict sums_of_sizes = sizes + i * k;
        for (ptrdiff_t h = 0; h < n; h++) {
            const double factor = a[i * n + h], *restrict row = b + h * k;
            for (ptrdiff_t j = 0; j < k; j++) {
                double term = factor * row[j];
                sums[j] += term;
                sums_of_sizes[j] += fabs(term);
            }
        }
    }
}

static void NAME(exchange)(ptrdiff_t n, double *restrict x, double *restrict y)
{
    for (ptrdiff_t j = 0; j < n; j++) {
        double value = x[j];
        x[j] = y[j];
        y[j] = value;
    }
}

/* R with R A close to I: the transpose of an inverse of A^T, by elimination with partial
 * pivoting. Returns 0 at a pivot of zero. `space` has room for two matrices. */
static int NAME(small_inverse)(ptrdiff_t n, const double *a, double *inverse, double *space)
{
    double *m = space, *x = space + n * n;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            m[i * n + j] = a[j * n + i];
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
            NAME(exchange)(n, m + pivot * n, m + c * n);
            NAME(exchange)(n, x + pivot * n, x + c * n);
        }
        for (ptrdiff_t i = c + 1; i < n; i++) {
            double factor = -m[i * n + c] / m[c * n + c];
            NAME(add_multiple)(n - c - 1, m + i * n + c + 1, factor, m + c * n + c + 1);
            NAME(add_multiple)(n, x + i * n, factor, x + c * n);
        }
    }
    for (ptrdiff_t c = n - 1; c >= 0; c--) {
        for (ptrdiff_t j = 0; j < n; j++)
            x[c * n + j] /= m[c * n + c];
        for (ptrdiff_t i = 0; i < c; i++)
            NAME(add_multiple)(n, x + i * n, -m[i * n + c], x + c * n);
    }
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            inverse[j * n + i] = x[i * n + j];
    return 1;
}
