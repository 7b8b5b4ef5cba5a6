/* Sums of products in two and in three words, for one set of vector instructions.
 *
 * Included by kernels.c once for each set. A set defines
 *
 *   NAME(f)            f with the name of the set
 *   WIDTH, VECTOR      doubles in a vector, and its type
 *   LOAD STORE ALL     from and to memory, of one number
 *   ADD SUB MUL ABS    lane by lane
 *   PLUS               ADD on the units for products, which are idle
 *                      then: x 1 + y by FMA, the same number
 *   FMA FMS            a b + c and a b - c, rounded once; only where HAS_FMA is 1
 *   UNLESS_BELOW       a number of at least this magnitude, else zero
 *   DIFFER             a bit for each lane in which two vectors are not equal
 *
 * The algorithm is the same everywhere: fixed-point sums in floating point. A register starts
 * at sigma = 3 2^g, above all partial sums, |sum| < 2^g. It stays between 2 2^g and 4 2^g,
 * where doubles lie on a grid of 2^(g - 51), so s = fl(sigma + x) takes the part of x on that
 * grid, and what it leaves, x - (s - sigma), is a double of at most 2^(g - 52) in magnitude
 * (ExtractScalar of Rump, Ogita, Oishi, "Accurate floating-point summation, part I", SISC 31,
 * 2008, doi:10.1137/050645671, with the running sum instead of sigma; s - sigma is exact by
 * Sterbenz). The parts on the grid add exactly, in any order; only the remainders are added
 * with rounding. The same idea with one more level gives three words. TwoSum needs six
 * operations instead of three, and rounds the low word at every step.
 *
 * The operands of a tile are scaled by powers of two to Euclidean norms below 1. By the
 * Cauchy-Schwarz inequality every partial sum, of any of the terms, is below 1: g = 0. The
 * norms leave room for the rounding errors of partial sums, at most k 2^-52, see product.c.
 */

enum { NAME(COLUMNS) = 2 * WIDTH };

/* p = fl(a b) and e = a b - p. Without FMA by Dekker, for numbers below 2^996.
 * e is exact unless it underflows; then it errs by at most 2^-1072. In tiles it does
 * not: products there are zeros or at least TINY^2. */
static ALWAYS_INLINE void NAME(two_product)(VECTOR a, VECTOR b, VECTOR *p, VECTOR *e)
{
    *p = MUL(a, b);
#if HAS_FMA
    *e = FMS(a, b, *p);
#else
    const VECTOR splitter = ALL(134217729.0); /* 2^27 + 1 */
    VECTOR t = MUL(splitter, a), u = MUL(splitter, b);
    VECTOR a_high = SUB(t, SUB(t, a)), b_high = SUB(u, SUB(u, b));
    VECTOR a_low = SUB(a, a_high), b_low = SUB(b, b_high);
    VECTOR excess = SUB(*p, MUL(a_high, b_high));
    excess = SUB(excess, MUL(a_low, b_high));
    excess = SUB(excess, MUL(a_high, b_low));
    *e = SUB(MUL(a_low, b_low), excess);
#endif
}

/* Add a b to sum and low: four operations with FMA.
 *
 * sum takes the part of a b on its grid of 2^(g - 51). The remainder, at most 2^(g - 52), is
 * rounded once, by u 2^(g - 52), and added to low with rounding. */
static ALWAYS_INLINE void NAME(add_in_two)(VECTOR a, VECTOR b, VECTOR *sum, VECTOR *low)
{
#if HAS_FMA
    VECTOR next = FMA(a, b, *sum);
    *low = ADD(*low, FMA(a, b, SUB(*sum, next)));
    *sum = next;
#else
    VECTOR p, e;
    NAME(two_product)(a, b, &p, &e);
    VECTOR next = ADD(*sum, p);
    *low = ADD(*low, ADD(ADD(SUB(*sum, next), p), e));
    *sum = next;
#endif
}

/* Add a b to sum, middle and low: eleven operations with FMA.
 *
 * a b = p + e exactly. sum takes the part of p on its grid, which leaves `first`, exactly.
 * middle takes the part of first + e, rounded, on its own grid of g. The remainder of these
 * two is at most g / 2 + u 2^-52 and goes into low. Its two additions err by at most 3 u g,
 * and are exact if the last bit of p is above g. */
static ALWAYS_INLINE void NAME(add_in_three)(VECTOR a, VECTOR b, VECTOR *sum,
                                             VECTOR *middle, VECTOR *low)
{
    VECTOR p, e;
    NAME(two_product)(a, b, &p, &e);
    VECTOR next = ADD(*sum, p);
    VECTOR first = PLUS(SUB(*sum, next), p);
    *sum = next;

    next = ADD(*middle, PLUS(first, e));
    VECTOR rest = PLUS(PLUS(SUB(*middle, next), first), e);
    *middle = next;
    *low = PLUS(*low, rest);
}

/* Sums of squares of the columns of a panel (k, COLUMNS), with k roundings each. */
static void NAME(squares)(ptrdiff_t k, const double *panel, double *squares)
{
    VECTOR left = ALL(0.0), right = ALL(0.0);
    for (ptrdiff_t h = 0; h < k; h++, panel += 2 * WIDTH) {
        VECTOR x = LOAD(panel), y = LOAD(panel + WIDTH);
        left = ADD(left, MUL(x, x));
        right = ADD(right, MUL(y, y));
    }
    STORE(squares, left);
    STORE(squares + WIDTH, right);
}

/* Sums of squares of `count` columns, a multiple of COLUMNS, whose rows lie `stride` numbers
 * apart. Row by row is the fastest order for memory. */
static void NAME(squares_by_rows)(ptrdiff_t k, ptrdiff_t count, const double *b,
                                  ptrdiff_t stride, double *squares)
{
    for (ptrdiff_t v = 0; v < count; v++)
        squares[v] = 0.0;
    for (ptrdiff_t h = 0; h < k; h++, b += stride)
        for (ptrdiff_t v = 0; v < count; v += WIDTH) {
            VECTOR x = LOAD(b + v);
            STORE(squares + v, ADD(LOAD(squares + v), MUL(x, x)));
        }
}

/* The columns of a panel times a factor each, without entries below TINY. */
static void NAME(scale)(ptrdiff_t k, double *panel, const double *factors)
{
    VECTOR left = LOAD(factors), right = LOAD(factors + WIDTH);
    for (ptrdiff_t h = 0; h < k; h++, panel += 2 * WIDTH) {
        STORE(panel, UNLESS_BELOW(TINY, MUL(LOAD(panel), left)));
        STORE(panel + WIDTH, UNLESS_BELOW(TINY, MUL(LOAD(panel + WIDTH), right)));
    }
}

/* hi + lo of some rows of a tile, from a panel a (k, TILE_ROWS) and columns b, whose rows lie
 * `stride` numbers apart. Partial sums of a column are below 2^g, its sigma is 3 2^g.
 *
 * Sums, low words and the columns of b fill the registers. `rows` is a constant after
 * inlining. */
static ALWAYS_INLINE void NAME(tile)(const int rows, ptrdiff_t k, const double *a,
                                     const double *b, ptrdiff_t stride,
                                     const double *sigma, double *hi, double *lo,
                                     Watch *watch)
{
    VECTOR sum[TILE_ROWS][2], low[TILE_ROWS][2];
    const VECTOR zero = ALL(0.0);
    for (int r = 0; r < rows; r++) {
        sum[r][0] = LOAD(sigma);
        sum[r][1] = LOAD(sigma + WIDTH);
        STORE(lo + 2 * r * WIDTH, zero);
        STORE(lo + (2 * r + 1) * WIDTH, zero);
    }
    for (ptrdiff_t start = 0; start < k; start += CHUNK) {
        ptrdiff_t stop = k - start < CHUNK ? k : start + CHUNK;
        for (int r = 0; r < rows; r++)
            low[r][0] = low[r][1] = zero;

        for (ptrdiff_t h = start; h < stop; h++) {
            const double *x = a + h * TILE_ROWS, *y = b + h * stride;
            if (rows == 1) { /* columns in place, which no other tile reads */
                PREFETCH(y + AHEAD * stride);
                PREFETCH(y + AHEAD * stride + WIDTH);
            }
            VECTOR left = LOAD(y), right = LOAD(y + WIDTH);
            UNROLLED for (int r = 0; r < rows; r++) {
                VECTOR factor = ALL(x[r]);
                NAME(add_in_two)(factor, left, &sum[r][0], &low[r][0]);
                NAME(add_in_two)(factor, right, &sum[r][1], &low[r][1]);
            }
        }
        /* Short sums of low words round less. */
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) {
                double *total = lo + (2 * r + v) * WIDTH;
                STORE(total, ADD(LOAD(total), low[r][v]));
            }
        if (stop - start == CHUNK && stops(watch, rows * 2 * WIDTH * CHUNK))
            break;
    }
    /* Without sigma, exactly; hi becomes the nearest double of both, by TwoSum. */
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) {
            double *total = lo + (2 * r + v) * WIDTH;
            VECTOR x = SUB(sum[r][v], LOAD(sigma + v * WIDTH)), y = LOAD(total);
            VECTOR s = ADD(x, y), t = SUB(s, x);
            STORE(hi + (2 * r + v) * WIDTH, s);
            STORE(total, ADD(SUB(x, SUB(s, t)), SUB(y, t)));
        }
}

static void NAME(tile_in_two)(int rows, ptrdiff_t k, const double *a, const double *b,
                              ptrdiff_t stride, const double *sigma, double *hi,
                              double *lo, Watch *watch)
{
    if (rows == 3)
        NAME(tile)(3, k, a, b, stride, sigma, hi, lo, watch);
    else if (rows == 2)
        NAME(tile)(2, k, a, b, stride, sigma, hi, lo, watch);
    else
        NAME(tile)(1, k, a, b, stride, sigma, hi, lo, watch);
}

/* Sums of |a b| of a row of a tile, with k + 1 roundings each; a is the row's first
 * entry. */
static void NAME(row_of_magnitudes)(ptrdiff_t k, const double *a, const double *b,
                                    double *sums, Watch *watch)
{
    VECTOR left = ALL(0.0), right = ALL(0.0);
    for (ptrdiff_t start = 0; start < k; start += SPAN) {
        ptrdiff_t stop = k - start < SPAN ? k : start + SPAN;
        for (ptrdiff_t h = start; h < stop; h++) {
            VECTOR factor = ALL(a[h * TILE_ROWS]);
            left = ADD(left, ABS(MUL(factor, LOAD(b + h * 2 * WIDTH))));
            right = ADD(right, ABS(MUL(factor, LOAD(b + (h * 2 + 1) * WIDTH))));
        }
        if (stop < k && stops(watch, 2 * WIDTH * SPAN))
            break;
    }
    STORE(sums, left);
    STORE(sums + WIDTH, right);
}

/* hi + mid + lo of a row of a tile, not normalised; a is the row's first entry. Partial
 * sums of a column are below 2^g, its sigma is 3 2^g.
 *
 * hi is exact. mid is exact too, except for what goes into lo when its chunks are added. */
static void NAME(row_in_three)(ptrdiff_t k, const double *a, const double *b,
                               const double *sigma, double *hi, double *mid, double *lo,
                               Watch *watch)
{
    const VECTOR zero = ALL(0.0), scale = ALL(0x1p-43);
    VECTOR sum[2] = {LOAD(sigma), LOAD(sigma + WIDTH)}, middle[2], low[2];
    VECTOR mid_total[2] = {zero, zero}, low_total[2] = {zero, zero};
    for (ptrdiff_t start = 0; start < k; start += CHUNK) {
        /* The remainders of CHUNK products sum to at most CHUNK (2^-52 + 2^-54) < 2^-43,
         * times 2^g. */
        ptrdiff_t stop = k - start < CHUNK ? k : start + CHUNK;
        for (int v = 0; v < 2; v++) {
            middle[v] = MUL(LOAD(sigma + v * WIDTH), scale);
            low[v] = zero;
        }
        for (ptrdiff_t h = start; h < stop; h++) {
            VECTOR factor = ALL(a[h * TILE_ROWS]);
            UNROLLED for (int v = 0; v < 2; v++)
                NAME(add_in_three)(factor, LOAD(b + (h * 2 + v) * WIDTH), &sum[v],
                                   &middle[v], &low[v]);
        }
        for (int v = 0; v < 2; v++) {
            VECTOR x = mid_total[v];
            VECTOR y = SUB(middle[v], MUL(LOAD(sigma + v * WIDTH), scale));
            VECTOR s = ADD(x, y), t = SUB(s, x);
            VECTOR rest = ADD(SUB(x, SUB(s, t)), SUB(y, t));
            mid_total[v] = s;
            low_total[v] = ADD(ADD(low_total[v], low[v]), rest);
        }
        if (stop - start == CHUNK && stops(watch, 8 * WIDTH * CHUNK))
            break;
    }
    for (int v = 0; v < 2; v++) {
        STORE(hi + v * WIDTH, SUB(sum[v], LOAD(sigma + v * WIDTH)));
        STORE(mid + v * WIDTH, mid_total[v]);
        STORE(lo + v * WIDTH, low_total[v]);
    }
}

/* A bit for each sum whose rounding to binary64 is not certainly hi, by Ziv's test. */
static uint64_t NAME(doubles)(int vectors, const double *hi, const double *lo, double err)
{
    const VECTOR margin = ALL(err);
    uint64_t open = 0;
    for (int v = 0; v < vectors; v++) {
        VECTOR x = LOAD(hi + v * WIDTH), y = LOAD(lo + v * WIDTH);
        open |= (uint64_t)(DIFFER(ADD(x, SUB(y, margin)), x)
                           | DIFFER(ADD(x, ADD(y, margin)), x)) << (v * WIDTH);
    }
    return open;
}

/* The same for binary32; hi is rounded to 24 bits if that is certain.
 *
 * Veltkamp's splitting rounds to nearest, ties to either side. An interval holds the sum in
 * its interior; if both its ends round to one number, this number is nearest to the sum. */
static uint64_t NAME(singles)(int vectors, double *hi, const double *lo, double err)
{
    const VECTOR splitter = ALL(536870913.0); /* 2^29 + 1 */
    uint64_t open = 0;
    for (int v = 0; v < vectors; v++) {
        VECTOR x = LOAD(hi + v * WIDTH), y = LOAD(lo + v * WIDTH);
        /* hi + (lo -+ err) is rounded, by less than 2^-52 |hi|. */
        VECTOR margin = ADD(ALL(err), MUL(ABS(x), ALL(0x1p-52)));
        VECTOR least = ADD(x, SUB(y, margin)), most = ADD(x, ADD(y, margin));
        VECTOR s = MUL(splitter, least), t = MUL(splitter, most);
        VECTOR value = SUB(s, SUB(s, least));
        open |= (uint64_t)DIFFER(value, SUB(t, SUB(t, most))) << (v * WIDTH);
        STORE(hi + v * WIDTH, value);
    }
    return open;
}

/* TwoSum of Knuth, lane by lane. */
static ALWAYS_INLINE void NAME(two_sum)(VECTOR *a, VECTOR *b)
{
    VECTOR sum = ADD(*a, *b), t = SUB(sum, *a);
    *b = ADD(SUB(*a, SUB(sum, t)), SUB(*b, t));
    *a = sum;
}

/* Add numbers to a row of a tile: hi + lo times `factors`, powers of two, and times `factor`
 * unless that is 0. `values` and `ends` are bounds of the sums, with a bit for each sum of
 * which they differ; or close values and no bit. See write_update of product.c. */
static uint64_t NAME(add_to_row)(const double *hi, const double *lo, const double *factors,
                                 double factor, int addends, const double *addend,
                                 double err, int is_close, double *values,
                                 double *ends)
{
    uint64_t open = 0;
    if (factor != 0.0)
        err *= fabs(factor);
    for (int v = 0; v < 2 * WIDTH; v += WIDTH) {
        VECTOR powers = LOAD(factors + v);
        VECTOR sum = MUL(LOAD(hi + v), powers), low = MUL(LOAD(lo + v), powers);
        VECTOR rest = ALL(0.0);
        if (factor != 0.0) {
            NAME(two_product)(sum, ALL(factor), &sum, &rest);
            low = MUL(low, ALL(factor));
        }
        VECTOR size = ADD(ABS(low), ABS(rest));
        low = ADD(low, rest);
        for (int x = 0; x < addends; x++) {
            rest = LOAD(addend + x * 2 * WIDTH + v);
            NAME(two_sum)(&sum, &rest);
            low = ADD(low, rest);
            size = ADD(size, ABS(rest));
        }
        if (is_close) {
            STORE(values + v, ADD(sum, low));
            continue;
        }
        VECTOR margin = ADD(MUL(ALL(err), powers), MUL(size, ALL(0x1p-50)));
        margin = MUL(margin, ALL(1.0 + 0x1p-20));
        VECTOR least = ADD(sum, SUB(low, margin)), most = ADD(sum, ADD(low, margin));
        open |= (uint64_t)DIFFER(least, most) << v;
        STORE(values + v, least);
        STORE(ends + v, most);
    }
    return open;
}

/* Sums in three words as from `normalised` in words.c. A bit for each sum whose hi is not
 * certainly the nearest double; for pairs also if mid is not certainly the nearest double to
 * the sum less hi. Each sum has its own err.
 *
 * If the bit is not set, half a unit of hi, and of mid, is more than err. */
static uint64_t NAME(normalise)(int vectors, double *hi, double *mid, double *lo,
                                const double *err, int is_pair)
{
    uint64_t open = 0;
    for (int v = 0; v < vectors; v++, hi += WIDTH, mid += WIDTH, lo += WIDTH) {
        VECTOR x = LOAD(hi), y = LOAD(mid), z = LOAD(lo);
        NAME(two_sum)(&y, &z);
        NAME(two_sum)(&x, &y);
        NAME(two_sum)(&y, &z);
        NAME(two_sum)(&x, &y);
        STORE(hi, x);
        STORE(mid, y);
        STORE(lo, z);

        /* Certain if neither end of an interval around the words that follow changes a word. */
        VECTOR widened = MUL(LOAD(err + v * WIDTH), ALL(1.0 + 0x1p-20));
        VECTOR rest = MUL(ABS(z), ALL(1.0 + 0x1p-20));
        VECTOR margin = ADD(ADD(widened, rest), MUL(ABS(y), ALL(0x1p-51)));
        unsigned moved = DIFFER(ADD(x, SUB(y, margin)), x)
                       | DIFFER(ADD(x, ADD(y, margin)), x);
        if (is_pair) {
            margin = ADD(widened, MUL(ABS(z), ALL(0x1p-51)));
            moved |= DIFFER(ADD(y, SUB(z, margin)), y)
                   | DIFFER(ADD(y, ADD(z, margin)), y);
        }
        open |= (uint64_t)moved << (v * WIDTH);
    }
    return open;
}

/* Sums of four vectors of a dot product, and of the numbers after the last whole vector. */

enum { NAME(STEP) = 4 * WIDTH };

/* The sum of all lanes of four vectors. */
static ALWAYS_INLINE double NAME(total)(const VECTOR *x)
{
    double lanes[WIDTH], total = 0.0;
    STORE(lanes, ADD(ADD(x[0], x[1]), ADD(x[2], x[3])));
    for (int i = 0; i < WIDTH; i++)
        total += lanes[i];
    return total;
}

/* A copy of the last n < STEP numbers, filled up with zeros. */
static ALWAYS_INLINE void NAME(tail)(ptrdiff_t n, const double *x, double *copy)
{
    for (ptrdiff_t i = 0; i < 4 * WIDTH; i++)
        copy[i] = i < n ? x[i] : 0.0;
}

/* The sum of squares of up to PIECE numbers. */
static double NAME(square)(ptrdiff_t n, const double *x)
{
    VECTOR sum[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
    ptrdiff_t i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        UNROLLED for (int v = 0; v < 4; v++) {
            VECTOR y = LOAD(x + i + v * WIDTH);
#if HAS_FMA
            sum[v] = FMA(y, y, sum[v]);
#else
            sum[v] = ADD(sum[v], MUL(y, y));
#endif
        }
    double total = NAME(total)(sum);
    for (; i < n; i++)
        total += x[i] * x[i];
    return total;
}

/* The sum of |a b| of up to PIECE products, with n + 1 roundings. */
static double NAME(dot_of_magnitudes)(ptrdiff_t n, const double *a, const double *b)
{
    VECTOR sum[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
    ptrdiff_t i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
        UNROLLED for (int v = 0; v < 4; v++) {
            VECTOR x = LOAD(a + i + v * WIDTH), y = LOAD(b + i + v * WIDTH);
            sum[v] = ADD(sum[v], ABS(MUL(x, y)));
        }
    double total = NAME(total)(sum);
    for (; i < n; i++)
        total += fabs(a[i] * b[i]);
    return total;
}

/* 1 if up to PIECE numbers below 2^g are all on the grid of sigma = 3 2^g: multiples of
 * 2^(g - 51). */
static int NAME(is_on_grid)(ptrdiff_t n, const double *x, double sigma)
{
    const VECTOR start = ALL(sigma);
    ptrdiff_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        VECTOR y = LOAD(x + i);
        if (DIFFER(SUB(ADD(start, y), start), y))
            return 0;
    }
    for (; i < n; i++)
        if ((sigma + x[i]) - sigma != x[i])
            return 0;
    return 1;
}

/* hi + lo of up to PIECE products with partial sums below 2^g, sigma = 3 2^g.
 *
 * Each lane starts at sigma, and its partial sums are below 2^g as well. The lanes'
 * sums are multiples of 2^(g - 51) of which any sum is below 2^g: adding them is exact. */
static void NAME(dot_in_two)(ptrdiff_t n, const double *a, const double *b, double sigma,
                             double *hi, double *lo)
{
    const VECTOR start = ALL(sigma);
    VECTOR sum[4] = {start, start, start, start};
    VECTOR low[4] = {ALL(0.0), ALL(0.0), ALL(0.0), ALL(0.0)};
    double x[4 * WIDTH], y[4 * WIDTH];
    while (n > 0) {
        if (n < 4 * WIDTH) {
            NAME(tail)(n, a, x);
            NAME(tail)(n, b, y);
            a = x;
            b = y;
        }
        UNROLLED for (int v = 0; v < 4; v++) {
            PREFETCH(a + PIECE + v * WIDTH);
            PREFETCH(b + PIECE + v * WIDTH);
            NAME(add_in_two)(LOAD(a + v * WIDTH), LOAD(b + v * WIDTH), &sum[v], &low[v]);
        }
        a += 4 * WIDTH;
        b += 4 * WIDTH;
        n -= 4 * WIDTH;
    }
    for (int v = 0; v < 4; v++)
        sum[v] = SUB(sum[v], start);
    *hi = NAME(total)(sum);
    *lo = NAME(total)(low);
}

/* hi + mid + lo, in the same way. The remainders of PIECE products sum to less than
 * 2^(g - 41). */
static void NAME(dot_in_three)(ptrdiff_t n, const double *a, const double *b,
                               double sigma, double *hi, double *mid, double *lo)
{
    const VECTOR start = ALL(sigma), fine = ALL(sigma * 0x1p-41), zero = ALL(0.0);
    VECTOR sum[4] = {start, start, start, start};
    VECTOR middle[4] = {fine, fine, fine, fine}, low[4] = {zero, zero, zero, zero};
    double x[4 * WIDTH], y[4 * WIDTH];
    while (n > 0) {
        if (n < 4 * WIDTH) {
            NAME(tail)(n, a, x);
            NAME(tail)(n, b, y);
            a = x;
            b = y;
        }
        UNROLLED for (int v = 0; v < 4; v++)
            NAME(add_in_three)(LOAD(a + v * WIDTH), LOAD(b + v * WIDTH), &sum[v],
                               &middle[v], &low[v]);
        a += 4 * WIDTH;
        b += 4 * WIDTH;
        n -= 4 * WIDTH;
    }
    for (int v = 0; v < 4; v++) {
        sum[v] = SUB(sum[v], start);
        middle[v] = SUB(middle[v], fine);
    }
    *hi = NAME(total)(sum);
    *mid = NAME(total)(middle);
    *lo = NAME(total)(low);
}

/* x - f p for a row x, a factor f and a row p in double words; the sum of |x.hi| + 4 |f p.hi|
 * over the row. Rows have WIDTH - 1 numbers more than n, zeros, which stay zeros.
 *
 * Errors of an entry, up to 1 + 6 u: the product leaves out f.lo p.lo, u^2 |f p|, and rounds
 * its three low terms and their two sums by 1, 1, 2 and 3 of these. The sum rounds x.lo less
 * the low product by u^2 |x| + 3 u^2 |f p|, and what TwoSum left plus that by 2 u^2 |x| +
 * 4 u^2 |f p|. In all 3 u^2 |x| + 15 u^2 |f p|: less than 4 u^2 times the sum that is
 * returned, whose own roundings are fewer than 2^10. */
static double NAME(subtract_in_two)(ptrdiff_t n, double *hi, double *lo, double f_hi,
                                    double f_lo, const double *p_hi, const double *p_lo)
{
    const VECTOR factor = ALL(f_hi), low_factor = ALL(f_lo), four = ALL(4.0);
    VECTOR sizes = ALL(0.0);
    for (ptrdiff_t j = 0; j < n; j += WIDTH) {
        VECTOR x = LOAD(hi + j), p = LOAD(p_hi + j), product, e;
        NAME(two_product)(factor, p, &product, &e);
        VECTOR low = ADD(MUL(factor, LOAD(p_lo + j)), MUL(low_factor, p));
        sizes = ADD(sizes, ADD(ABS(x), MUL(four, ABS(product))));

        VECTOR rest = SUB(ALL(0.0), product);
        NAME(two_sum)(&x, &rest);
        rest = ADD(rest, SUB(LOAD(lo + j), ADD(e, low)));
        NAME(two_sum)(&x, &rest);
        STORE(hi + j, x);
        STORE(lo + j, rest);
    }
    double lanes[WIDTH], total = 0.0;
    STORE(lanes, sizes);
    for (int i = 0; i < WIDTH; i++)
        total += lanes[i];
    return total;
}

#include "elimination.h"
#include "banded.h"
#include "certificate.h"
#include "small_systems.h"

static const Kernels NAME(kernels) = {
    .name = SET_NAME,
    .columns = NAME(COLUMNS),
    .rows = NAME(ROWS),
    .squares = NAME(squares),
    .squares_by_rows = NAME(squares_by_rows),
    .scale = NAME(scale),
    .tile_in_two = NAME(tile_in_two),
    .row_in_three = NAME(row_in_three),
    .row_of_magnitudes = NAME(row_of_magnitudes),
    .doubles = NAME(doubles),
    .singles = NAME(singles),
    .add_to_row = NAME(add_to_row),
    .normalise = NAME(normalise),
    .square = NAME(square),
    .dot_of_magnitudes = NAME(dot_of_magnitudes),
    .is_on_grid = NAME(is_on_grid),
    .dot_in_two = NAME(dot_in_two),
    .dot_in_three = NAME(dot_in_three),
    .subtract_in_two = NAME(subtract_in_two),
    .powers_of_two = NAME(powers_of_two),
    .residues = NAME(residues),
    .reduce = NAME(reduce),
    .scale_residues = NAME(scale_residues),
    .subtract_multiple = NAME(subtract_multiple),
    .invert = NAME(invert),
    .rows_of_inverse = NAME(rows_of_inverse),
    .deviations = NAME(deviations),
    .sums_of_rows = NAME(sums_of_rows),
    .to_doubles = NAME(to_doubles),
    .round_product = NAME(round_product),
    .small_product = NAME(small_product),
    .sized_product = NAME(sized_product),
    .small_inverse = NAME(small_inverse),
};
