/* Products of matrices: each entry climbs a ladder until its rounding is certain.
 *
 *   1. two words, a fixed-point sum and what it leaves: four operations a term
 *      (sums of terms that all have a factor 0 are known to be 0 then)
 *   2. three words: eleven operations a term, for sums that cancel, operands of wide
 *      exponents, pairs and enclosures
 *   3. three words on a grid for this entry alone, two more operations a term: sums whose
 *      products are all far smaller than the largest entries of row and column multiplied
 *   4. the exact sum, about 5 ns a term: ties, and whatever else is left
 *
 * Most products are computed by tiles of TILE_ROWS x COLUMNS entries. Rows of A are packed in
 * panels (k, TILE_ROWS) and columns of B in panels (k, COLUMNS), so a tile reads both in
 * order: the panel of B stays in the cache while all panels of A pass (Goto, van de Geijn,
 * "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008,
 * doi:10.1145/1356052.1356053). Products of few columns use dot products, which read their
 * operands once and pack nothing.
 */

#include "core.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW = 3,                    /* columns that dot products compute, at most */
    SHORT = 32,                 /* terms from which a dot product beats a tile */
    BLOCK = 1 << 18,            /* numbers of packed rows: 2 MiB, in the last cache */
    STRIPE = 128,               /* columns whose squares are added together, at most */
    STRIPE_NUMBERS = 1 << 16,   /* numbers of them: 512 KiB, in the second cache */
    UNKNOWN = INT_MAX,          /* a unit that was not computed yet */
    LEFT_OUT = -1800,           /* the unit where tiny entries were left out */
    REST = 3,                   /* tiles after which three words are tried again */
    GAIN = 4,                   /* bits by which a grid of an entry's own is finer */
    PLAIN = -100,               /* exponent of the finest grid that write_plainly knows */
    FINEST = -300,              /* exponent of the finest grid: rests stay normal numbers */
};

/* The halves of a piece are added one by one if they differ by at least this. */
#define APART 0x1p20

/* ---- views ---------------------------------------------------------------------- */

static inline char *entry(const View *x, ptrdiff_t z, ptrdiff_t i, ptrdiff_t j)
{
    return x->data + z * x->matrix + i * x->row + j * x->column;
}

static inline double number(const char *at, int is_single)
{
    if (is_single) {
        float x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    double x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline void put(const View *x, ptrdiff_t z, ptrdiff_t i, ptrdiff_t j, double value)
{
    if (x->is_single)
        *(float *)entry(x, z, i, j) = (float)value;
    else
        *(double *)entry(x, z, i, j) = value;
}

static View transposed(View x)
{
    ptrdiff_t row = x.row;
    x.row = x.column;
    x.column = row;
    return x;
}

/* B^T A^T. */
static Product mirrored(const Product *p)
{
    Product q = *p;
    q.m = p->n;
    q.n = p->m;
    q.a = transposed(p->b);
    q.b = transposed(p->a);
    q.c = transposed(p->c);
    q.first = transposed(p->first);
    q.second = transposed(p->second);
    return q;
}

/* `count` numbers, `stride` bytes apart, one after the other. */
static void copy(const char *from, ptrdiff_t stride, ptrdiff_t count, int is_single,
                 double *to, Watch *watch)
{
    for (ptrdiff_t start = 0; start < count; start += SPAN) {
        ptrdiff_t stop = count - start < SPAN ? count : start + SPAN;
        for (ptrdiff_t i = start; i < stop; i++)
            to[i] = number(from + i * stride, is_single);
        if (stops(watch, 16 * (stop - start)))
            return;
    }
}

/* Some vectors along k, side by side in a panel (k, lanes), and zeros in other lanes. */
static void gather_span(const char *from, ptrdiff_t vector, ptrdiff_t term,
                        ptrdiff_t count, ptrdiff_t k, int is_single, int lanes,
                        double *panel)
{
    if (count == lanes && !is_single && vector == sizeof(double)) {
        for (ptrdiff_t h = 0; h < k; h++)
            if (lanes == WIDEST) /* a constant size, without a call */
                memcpy(panel + h * WIDEST, from + h * term, WIDEST * sizeof(double));
            else
                memcpy(panel + h * lanes, from + h * term, (size_t)lanes * sizeof(double));
        return;
    }
    for (ptrdiff_t v = 0; v < lanes; v++) {
        const char *at = from + v * vector;
        if (v >= count)
            for (ptrdiff_t h = 0; h < k; h++)
                panel[h * lanes + v] = 0.0;
        else if (is_single)
            for (ptrdiff_t h = 0; h < k; h++)
                panel[h * lanes + v] = number(at + h * term, 1);
        else
            for (ptrdiff_t h = 0; h < k; h++)
                panel[h * lanes + v] = number(at + h * term, 0);
    }
}

static inline void gather(const char *from, ptrdiff_t vector, ptrdiff_t term,
                          ptrdiff_t count, ptrdiff_t k, int is_single, int lanes,
                          double *panel, Watch *watch)
{
    ptrdiff_t start = 0;
    for (; k - start > SPAN; start += SPAN) {
        gather_span(from + start * term, vector, term, count, SPAN, is_single, lanes,
                    panel + start * lanes);
        if (stops(watch, 16 * SPAN * lanes))
            return;
    }
    gather_span(from + start * term, vector, term, count, k - start, is_single, lanes,
                panel + start * lanes);
}

/* ---- scaling -------------------------------------------------------------------- */

/* The e for which a positive normal number lies in [2^(e - 1), 2^e). */
static inline int exponent_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52) - 1022;
}

/* The e for which x 2^-e has a Euclidean norm below 1 - 2^-22, by its sum of squares; INT_MAX
 * if x holds Inf or NaN.
 *
 * The sum has k roundings, k u < 2^-22. The factor leaves room for them, and for the rounding
 * errors of partial sums of products. If squares may over- or underflow, the largest entry
 * times the root of k replaces the norm.
 */
static int exponent_of_norm(double squares, ptrdiff_t k, const double *x, ptrdiff_t stride)
{
    int e;
    if (squares >= 0x1p-900 && squares <= 0x1p900) {
        e = exponent_of(squares * (1.0 + 0x1p-20));
        return (e + 1) >> 1; /* the squares are below 2^e <= 4^(e / 2), rounded up */
    }
    double largest = 0.0;
    for (ptrdiff_t h = 0; h < k; h++) {
        double magnitude = fabs(x[h * stride]);
        if (!(magnitude < INFINITY))
            return INT_MAX;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest == 0.0)
        return 0;
    int of_root;
    frexp((double)k, &of_root);
    frexp(largest, &e);
    return e + ((of_root + 1) >> 1) + 1;
}

static inline double unless_tiny(double x)
{
    return fabs(x) >= TINY ? x : 0.0;
}

/* Scale the first `count` vectors of a panel to norms below 1; the others are zeros. Entries
 * below TINY become zeros: their products might be subnormal, which is slow. Returns 0 if the
 * vectors hold Inf or NaN. */
static int normalise(const Kernels *f, ptrdiff_t k, int lanes, int count, double *panel,
                     int *exponents)
{
    double squares[WIDEST] = {0.0}, factors[WIDEST];
    int is_mild = 1;
    if (lanes == TILE_ROWS)
        for (ptrdiff_t h = 0; h < k; h++)
            for (int v = 0; v < TILE_ROWS; v++)
                squares[v] += panel[h * TILE_ROWS + v] * panel[h * TILE_ROWS + v];
    else
        f->squares(k, panel, squares);

    for (int v = 0; v < lanes; v++) {
        exponents[v] = 0;
        factors[v] = 1.0;
    }
    for (int v = 0; v < count; v++) {
        exponents[v] = exponent_of_norm(squares[v], k, panel + v, lanes);
        if (exponents[v] == INT_MAX)
            return 0;
        is_mild &= abs(exponents[v]) <= 1000;
        if (is_mild)
            factors[v] = power(-exponents[v]);
    }
    if (!is_mild)
        for (ptrdiff_t h = 0; h < k * lanes; h++)
            panel[h] = unless_tiny(ldexp(panel[h], -exponents[h % lanes]));
    else if (lanes == TILE_ROWS)
        for (ptrdiff_t h = 0; h < k; h++)
            for (int v = 0; v < TILE_ROWS; v++)
                panel[h * TILE_ROWS + v] =
                    unless_tiny(panel[h * TILE_ROWS + v] * factors[v]);
    else
        f->scale(k, panel, factors);
    return 1;
}

static inline int trailing_zeros(uint64_t x)
{
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(x);
#else
    int count = 0;
    for (; !(x & 0xff); x >>= 8)
        count += 8;
    for (; !(x & 1); x >>= 1)
        count += 1;
    return count;
#endif
}

/* The exponent of the largest power of two that divides all entries of a vector, by their
 * lowest bits; 1000 for zeros. */
static int unit_of(ptrdiff_t k, const char *at, ptrdiff_t stride, int is_single,
                   Watch *watch)
{
    int unit = 1000;
    for (ptrdiff_t h = 0; h < k; h++) {
        if (h % SPAN == 0 && stops(watch, 16 * SPAN))
            break;
        int lowest;
        uint64_t mantissa = decoded(number(at + h * stride, is_single), &lowest) << 1;
        if (mantissa == 0)
            continue;
        lowest += trailing_zeros(mantissa) - 1;
        unit = lowest < unit ? lowest : unit;
    }
    return unit;
}

/* ---- entries -------------------------------------------------------------------- */

/* Data that the sums of a matrix share: the operands, and vectors decoded for exact sums. */
typedef struct {
    const Product *p;
    const Kernels *f;
    const Format *format;
    double error_in_two, error_in_three; /* bounds of tiles */
    int log_k;                           /* k <= 2^log_k */
    ptrdiff_t z;
    Decoded row;     /* of A, number row_index */
    Decoded columns; /* of B, from `first_column` on */
    ptrdiff_t row_index, first_column;
    unsigned char has_column[WIDEST];
    int is_out_of_memory;
    Watch *watch;
} Entries;

static void write_values(const Entries *s, ptrdiff_t i, ptrdiff_t j, Values values)
{
    put(&s->p->first, s->z, i, j, values.first);
    if (s->p->kind != NEAREST)
        put(&s->p->second, s->z, i, j, values.second);
}

/* The double next to a normal number that is not the largest, upward or downward. */
static inline double neighbour(double x, int direction)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits += x > 0.0 ? direction : -direction;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Numbers that an entry of A B is added to; returns how many. */
static inline int read_addends(const Entries *s, ptrdiff_t i, ptrdiff_t j, double *addends)
{
    const Product *p = s->p;
    if (!p->c.data)
        return 0;
    const char *at = entry(&p->c, s->z, i, j);
    for (int x = 0; x <= p->more_addends; x++)
        addends[x] = number(at + x * p->addend, p->c.is_single);
    return 1 + p->more_addends;
}

/* Write the rounding of the words of A B, without factor; returns 0 if it is not certain. */
static int write_words(const Entries *s, ptrdiff_t i, ptrdiff_t j, Words words)
{
    /* A zero alone is certain only if it is exact. */
    if (words.hi == 0.0 && words.mid == 0.0 && words.lo == 0.0 && !s->p->c.data) {
        if (words.err == 0.0)
            write_values(s, i, j, (Values){0.0, 0.0});
        return words.err == 0.0;
    }
    double addends[MOST_ADDENDS];
    int count = read_addends(s, i, j, addends);
    if (s->p->factor != 0.0)
        words = times_factor(words, s->p->factor);
    for (int x = 0; x < count; x++)
        words = plus(words, addends[x]);
    words.exponent += s->p->shift;
    Values values;
    if (!settle(&words, s->p->kind, s->format, &values))
        return 0;
    write_values(s, i, j, values);
    return 1;
}

/* Write what words, of A B alone, are close to; returns 0 where C takes too much from them.
 *
 * The value is the nearest double of the words and C, up to u of itself, or eta where it is
 * subnormal. The second value of a pair is the nearest double of the remainder. The words
 * err by 2 error_in_three at most, times 4 (1 + 2^-19) the norms of row and column:
 * error_of_close_sums of engines/core.py. */
static int write_close(const Entries *s, ptrdiff_t i, ptrdiff_t j, Words words)
{
    double addends[MOST_ADDENDS];
    int count = read_addends(s, i, j, addends);
    for (int x = 0; x < count; x++)
        words = plus(words, addends[x]);
    if (!(words.err <= 2.0 * s->error_in_three))
        return 0;
    int exponent = words.exponent + s->p->shift;
    double value = ldexp(words.hi, exponent);
    put(&s->p->first, s->z, i, j, value);
    if (s->p->kind == PAIR)
        put(&s->p->second, s->z, i, j, ldexp(words.mid, exponent));
    return fabs(value) < INFINITY;
}

/* Write the doubles of words of which hi, and mid for a pair, are certain, times a
 * factor; returns 0 where an enclosure is not certain. Half a unit of these words is
 * more than err, which is above 2^(PLAIN - 148), so they are above 2^-200: with factors
 * of 2^-800 or more, the values are normal numbers as well. */
static int write_plainly(const Entries *s, ptrdiff_t i, ptrdiff_t j, const Words *words,
                         double factor)
{
    Values values = {words->hi * factor, words->mid * factor};
    if (s->p->kind == ENCLOSURE) {
        double margin = words->err * (1.0 + 0x1p-20) + fabs(words->lo) * 0x1p-51;
        if (!(fabs(words->mid) - fabs(words->lo) > margin))
            return 0;
        values.second = values.first;
        if (words->mid < 0.0)
            values.first = neighbour(values.first, -1);
        else
            values.second = neighbour(values.second, 1);
    }
    write_values(s, i, j, values);
    return 1;
}

static void decode(const char *at, ptrdiff_t stride, ptrdiff_t k, int is_single,
                   Decoded to, Watch *watch)
{
    for (ptrdiff_t start = 0; start < k; start += SPAN) {
        ptrdiff_t stop = k - start < SPAN ? k : start + SPAN;
        for (ptrdiff_t h = start; h < stop; h++) {
            int exponent;
            to.mantissas[h] = decoded(number(at + h * stride, is_single), &exponent);
            to.exponents[h] = (int16_t)exponent;
        }
        if (stops(watch, 16 * (stop - start)))
            return;
    }
}

/* Allocate memory for the row and the columns; returns 0 if there is none. */
static int make_room(Entries *s)
{
    size_t k = (size_t)(s->p->k ? s->p->k : 1);
    if (!s->row.mantissas)
        s->row.mantissas = malloc((1 + WIDEST) * k * sizeof(uint64_t));
    if (!s->row.exponents)
        s->row.exponents = malloc((1 + WIDEST) * k * sizeof(int16_t));
    if (!s->row.mantissas || !s->row.exponents)
        return 0;
    s->columns = (Decoded){s->row.mantissas + k, s->row.exponents + k};
    return 1;
}

/* Write an entry by its exact sum. */
static void write_exactly(Entries *s, ptrdiff_t i, ptrdiff_t j)
{
    const Product *p = s->p;
    if (stops(s->watch, 0))
        return; /* a row may be half decoded */
    if (!make_room(s)) {
        s->is_out_of_memory = 1;
        return;
    }

    /* Decode rows and columns only if one of their entries is still open. */
    if (s->row_index != i) {
        decode(entry(&p->a, s->z, i, 0), p->a.column, p->k, p->a.is_single, s->row,
               s->watch);
        s->row_index = i;
    }
    ptrdiff_t lane = j - s->first_column;
    Decoded column = {s->columns.mantissas + lane * p->k,
                      s->columns.exponents + lane * p->k};
    if (!s->has_column[lane]) {
        decode(entry(&p->b, s->z, 0, j), p->b.row, p->k, p->b.is_single, column,
               s->watch);
        s->has_column[lane] = 1;
    }
    double addends[MOST_ADDENDS];
    int count = read_addends(s, i, j, addends);
    Values values = {0.0, 0.0};
    if (p->factor == 0.0) {
        settle_exactly(p->k, &s->row, &column, count, addends, p->shift, p->kind, s->format,
                       &values, s->watch);
    } else {
        Multiple multiple = {p->factor, p->k, s->row, column};
        Accumulator sum;
        sum.first = sum.last = 0;
        accumulate_multiple(&sum, &multiple, s->watch);
        for (int x = 0; x < count; x++)
            accumulate_product(&sum, addends[x], 1.0);
        values.first = rounded_accumulator(&sum, s->format);
    }
    write_values(s, i, j, values);
}

/* ---- tiles ---------------------------------------------------------------------- */

/* Packed rows and columns, scaled. Units are computed only if an entry is still open. */
typedef struct {
    double *rows, *packed;
    const double *columns; /* `packed`, or the unscaled columns of B */
    ptrdiff_t stride;      /* of their rows */
    double sigma[WIDEST], units[WIDEST]; /* 3 and 1 of packed columns, or times a power */
    int *row_exponents, *row_units;
    int (*row_rests)[2]; /* tiles for which three words of a row, on the common grid and on
                          * their own, are skipped after settling nothing */
    int column_exponents[WIDEST], column_units[WIDEST];
    int *nonzeros; /* for each term, a bit for each packed column that is not 0 there */
    int has_nonzeros;
} Panels;

/* The exponent of the unit of the scaled products of a packed row, number i of the
 * matrix, and a column, number j. */
static int unit_of_products(const Entries *s, Panels *panels, ptrdiff_t row, ptrdiff_t i,
                            int column, ptrdiff_t j)
{
    const View *a = &s->p->a, *b = &s->p->b;
    int *of_row = panels->row_units + row, *of_column = panels->column_units + column;
    if (*of_row == UNKNOWN)
        *of_row = unit_of(s->p->k, entry(a, s->z, i, 0), a->column, a->is_single, s->watch)
                - panels->row_exponents[row];
    if (*of_column == UNKNOWN)
        *of_column = unit_of(s->p->k, entry(b, s->z, 0, j), b->row, b->is_single, s->watch)
                   - panels->column_exponents[column];
    if (*of_row < -450 || *of_column < -450)
        return LEFT_OUT;
    return *of_row + *of_column;
}

/* Entries that are computed together. Usually their values lie far from the ends of the
 * range: sums times a factor of the row and one of the column. */
typedef struct {
    ptrdiff_t row;  /* the first packed row, number i of the matrix */
    ptrdiff_t i, j; /* the first entry */
    int rows, columns;
    int is_common;
    double row_factors[TILE_ROWS], column_factors[WIDEST];
} Tile;

static void find_factors(const Entries *s, const Panels *panels, Tile *t)
{
    const int *row_exponents = panels->row_exponents + t->row;
    const double factor = fabs(s->p->factor);
    t->is_common = factor == 0.0 || (factor >= 0x1p-100 && factor <= 0x1p100);
    for (int r = 0; r < t->rows; r++)
        t->is_common &= abs(row_exponents[r] + s->p->shift) <= 400;
    for (int v = 0; v < t->columns; v++)
        t->is_common &= abs(panels->column_exponents[v]) <= 400;
    if (!t->is_common)
        return;
    for (int r = 0; r < t->rows; r++)
        t->row_factors[r] = power(row_exponents[r] + s->p->shift);
    for (int v = 0; v < t->columns; v++)
        t->column_factors[v] = power(panels->column_exponents[v]);
}

/* The entries of C in a row of a tile, times 2^shift; a bit for each that is not exact. */
static uint64_t scaled_addends(const Entries *s, const Tile *t, int r, double *addends)
{
    const Product *p = s->p;
    const int lanes = s->f->columns;
    const double scale = power(p->shift), back = power(-p->shift);
    uint64_t inexact = 0;
    for (int x = 0; p->c.data && x <= p->more_addends; x++) {
        const char *at = entry(&p->c, s->z, t->i + r, t->j) + x * p->addend;
        for (int v = 0; v < t->columns; v++) {
            double addend = number(at + v * p->c.column, p->c.is_single);
            addends[x * lanes + v] = addend * scale;
            inexact |= (uint64_t)(addends[x * lanes + v] * back != addend) << v;
        }
    }
    return inexact;
}

/* True if a double lies in the middle between two floats that are normal. */
static inline int is_between_floats(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x1fffffff) == 0x10000000;
}

/* Write the float that both bounds of a sum round to; returns 0 if the sum may round to
 * another one, or if it is no normal number.
 *
 * The double nearest to the sum lies between the bounds. It rounds to the same float as the
 * sum unless it lies in the middle between two floats; then a bound does, or the bounds lie
 * on both sides of it. */
static inline int write_float(double least, double most, float *value)
{
    *value = (float)least;
    return *value == (float)most && fabsf(*value) > 0x1p-126f && fabsf(*value) < INFINITY
        && !is_between_floats(least) && !is_between_floats(most);
}

/* Write the floats that both bounds of the sums of a row round to; a bit for each sum whose
 * bounds round to two floats, or to one that is no normal number. */
static uint64_t write_floats(const Entries *s, const Tile *t, int r, const double *bounds,
                             const double *ends)
{
    uint64_t open = 0;
    for (int v = 0; v < t->columns; v++) {
        float *value = (float *)entry(&s->p->first, s->z, t->i + r, t->j + v);
        open |= (uint64_t)!write_float(bounds[v], ends[v], value) << v;
    }
    return open;
}

/* Write the sums of a tile, times the factor of the product, and C; a bit for each that is
 * not certain.
 *
 * Each sum of addends and hi is computed exactly, as a sum and its error. The product of hi
 * and the factor is computed exactly, as a product and its error; the product of lo and the
 * factor is rounded once. This product, that error and the errors of up to four additions
 * are added with five roundings. Each of the six roundings errs by at most 2^-53 times the
 * sum of the magnitudes, and the addition of the margin errs by no more.
 * Products with powers of two are exact unless they are subnormal, which the margin has room
 * for: with the factor they are 2^-900 or more, err is above 2^-110. So the sum lies between
 * two bounds, and what both round to is its nearest number.
 *
 * A close value, of one addend at most, is sum + low, rounded: it errs by u (1 + 2 u) of
 * itself and by err, and k 2^-105 for the rounding of low, times a factor. That is at most
 * 4 (1 + 2^-19) times the norms of row and column: error_of_close_sums of
 * engines/core.py. */
static uint64_t write_update(const Entries *s, const Tile *t, const double *hi,
                             const double *lo)
{
    const Product *p = s->p;
    const int lanes = s->f->columns, columns = t->columns;
    const int count = p->c.data ? 1 + p->more_addends : 0;
    double powers[WIDEST] = {0.0}, addends[MOST_ADDENDS * WIDEST] = {0.0}, values[WIDEST];
    double ends[WIDEST];
    uint64_t open = 0;
    for (int r = 0; r < t->rows; r++) {
        for (int v = 0; v < columns; v++)
            powers[v] = t->row_factors[r] * t->column_factors[v];
        uint64_t open_here = scaled_addends(s, t, r, addends);
        uint64_t differ = s->f->add_to_row(hi + r * lanes, lo + r * lanes, powers, p->factor,
                                           count, addends, s->error_in_two,
                                           p->close_words == 2, values, ends);
        if (p->first.is_single) {
            open_here |= write_floats(s, t, r, values, ends);
        } else {
            open_here |= differ;
            for (int v = 0; v < columns; v++)
                *(double *)entry(&p->first, s->z, t->i + r, t->j + v) = values[v];
        }
        open |= open_here << (r * lanes);
    }
    return open;
}

/* A sum x + rest, x the double nearest to it, up to a margin. */
typedef struct {
    double x, rest, margin;
} Sum;

/* The nearest float of a sum; returns 0 if it is not certain, or no normal number. */
static inline int nearest_float(const Sum *sum, float *value)
{
    double margin = (sum->margin + fabs(sum->rest) * 0x1p-50) * (1.0 + 0x1p-20);
    return write_float(sum->x + (sum->rest - margin), sum->x + (sum->rest + margin), value);
}

/* The sum less a float that is close to it. The difference of x and the float is a double. */
static inline Sum less_float(const Sum *sum, float value)
{
    Sum difference = {.margin = sum->margin};
    two_sum(sum->x - (double)value, sum->rest, &difference.x, &difference.rest);
    return difference;
}

/* The sign of a sum; 0 if it is not certain. */
static inline int sign_of_sum(const Sum *sum)
{
    double least = fabs(sum->rest) + sum->margin * (1.0 + 0x1p-20);
    if (fabs(sum->x) > least * (1.0 + 0x1p-50))
        return sum->x > 0.0 ? 1 : -1;
    return 0;
}

/* Write both doubles next to a sum; returns 0 if they are not certain. Half the way from x
 * to the next double is |rest| at least, and more than the margin. */
static inline int enclose_by_doubles(const Sum *sum, double *lower, double *upper)
{
    if (!(fabs(sum->rest) > sum->margin * (1.0 + 0x1p-20)))
        return 0;
    *lower = *upper = sum->x;
    if (sum->rest > 0.0)
        *upper = neighbour(sum->x, 1);
    else
        *lower = neighbour(sum->x, -1);
    return 1;
}

/* The same in float: the sum lies on one side of the float nearest to x. */
static inline int enclose_by_floats(const Sum *sum, float *lower, float *upper)
{
    float value = (float)sum->x;
    Sum difference = less_float(sum, value);
    int sign = sign_of_sum(&difference);
    if (!sign || !(fabsf(value) > 0x1p-126f && fabsf(value) < FLT_MAX))
        return 0;
    *lower = sign > 0 ? value : (float)below(value, &BINARY32);
    *upper = sign > 0 ? (float)above(value, &BINARY32) : value;
    return 1;
}

/* Write enclosures of a tile, or pairs of floats, by sums in two words; a bit for each entry
 * that is not certain. Products with powers of two are exact, as the margin is far above the
 * subnormal numbers and what is smaller is not certain. */
static uint64_t write_parts(const Entries *s, const Tile *t, const double *hi,
                            const double *lo)
{
    const Product *p = s->p;
    const int lanes = s->f->columns;
    uint64_t open = 0;
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->columns; v++) {
            const double scale = t->row_factors[r] * t->column_factors[v];
            const int lane = r * lanes + v;
            const ptrdiff_t i = t->i + r, j = t->j + v;
            Sum sum = {.margin = s->error_in_two * scale};
            two_sum(hi[lane] * scale, lo[lane] * scale, &sum.x, &sum.rest);
            void *first = entry(&p->first, s->z, i, j), *second = entry(&p->second, s->z, i, j);
            int is_certain;
            if (!p->first.is_single) {
                is_certain = enclose_by_doubles(&sum, first, second);
            } else if (p->kind == ENCLOSURE) {
                is_certain = enclose_by_floats(&sum, first, second);
            } else {
                is_certain = nearest_float(&sum, first);
                Sum rest = less_float(&sum, *(float *)first);
                is_certain = is_certain && nearest_float(&rest, second);
            }
            open |= (uint64_t)!is_certain << lane;
        }
    return open;
}

/* Write the nearest numbers of a tile, or close ones, enclosures, or pairs of floats, by
 * sums in two words; a bit for each entry that is still open, and in `zeros` for each
 * of these whose words are 0. */
static uint64_t write_in_two(const Entries *s, Panels *panels, const Tile *t, uint64_t *zeros)
{
    const Product *p = s->p;
    const int lanes = s->f->columns;
    const double err = s->error_in_two;
    double hi[TILE_ROWS * WIDEST], lo[TILE_ROWS * WIDEST];
    uint64_t open = ~(uint64_t)0;
    s->f->tile_in_two(t->rows, p->k, panels->rows + t->row * p->k, panels->columns,
                      panels->stride, panels->sigma, hi, lo, s->watch);
    for (int x = 0; panels->columns != panels->packed && x < t->rows * lanes; x++) {
        hi[x] /= panels->units[x % lanes];
        lo[x] /= panels->units[x % lanes];
    }

    if (p->kind != NEAREST && !p->close_words) {
        if (t->is_common)
            open = write_parts(s, t, hi, lo);
    } else if (p->c.data || p->factor != 0.0) {
        if (p->kind == NEAREST && t->is_common && abs(p->shift) <= 400)
            open = write_update(s, t, hi, lo);
    } else if (t->is_common && p->close_words) {
        open = 0;
        for (int r = 0; r < t->rows; r++)
            for (int v = 0; v < t->columns; v++) {
                int lane = r * lanes + v;
                double factor = t->row_factors[r] * t->column_factors[v];
                Values values;
                two_sum(hi[lane] * factor, lo[lane] * factor, &values.first,
                        &values.second);
                write_values(s, t->i + r, t->j + v, values);
            }
    } else if (t->is_common && !p->first.is_single) {
        open = s->f->doubles(2 * t->rows, hi, lo, err);
        for (int r = 0; r < t->rows; r++)
            for (int v = 0; v < t->columns; v++)
                *(double *)entry(&p->first, s->z, t->i + r, t->j + v) =
                    hi[r * lanes + v] * t->row_factors[r] * t->column_factors[v];
    } else if (t->is_common) {
        double nearest[TILE_ROWS * WIDEST];
        memcpy(nearest, hi, sizeof hi);
        open = s->f->singles(2 * t->rows, nearest, lo, err);
        for (int r = 0; r < t->rows; r++)
            for (int v = 0; v < t->columns; v++) {
                double value =
                    nearest[r * lanes + v] * t->row_factors[r] * t->column_factors[v];
                put(&p->first, s->z, t->i + r, t->j + v, value);
                int is_normal = fabs(value) >= 0x1p-126 && fabs(value) < 0x1p128;
                open |= (uint64_t)!is_normal << (r * lanes + v);
            }
    }

    /* The open entries. Some are open because their words are exact: all remainders are
     * multiples of a unit, below 2^53 units. */
    for (int r = 0; r < t->rows && open; r++)
        for (int v = 0; v < t->columns; v++) {
            uint64_t bit = (uint64_t)1 << (r * lanes + v);
            if (!(open & bit))
                continue;
            int exponent = panels->row_exponents[t->row + r] + panels->column_exponents[v];
            Words words = {hi[r * lanes + v], lo[r * lanes + v], 0.0, err, exponent};
            int unit =
                unit_of_products(s, panels, t->row + r, t->i + r, v, t->j + v);
            if (unit >= s->log_k - 105)
                words.err = 0.0;
            if (write_words(s, t->i + r, t->j + v, words))
                open &= ~bit;
            else if (words.hi == 0.0 && words.mid == 0.0)
                *zeros |= bit;
        }
    return open;
}

/* For each row of a tile, a bit for each column with a term that has no factor 0. Products of
 * packed entries do not underflow. */
static void find_terms(const Entries *s, Panels *panels, const Tile *t, int *with_terms)
{
    const ptrdiff_t k = s->p->k;
    const int lanes = s->f->columns;
    const double *rows = panels->rows + t->row * k;
    if (!panels->has_nonzeros)
        for (ptrdiff_t h = 0; h < k; h++) {
            panels->nonzeros[h] = 0;
            for (int v = 0; v < lanes; v++)
                panels->nonzeros[h] |= (panels->packed[h * lanes + v] != 0.0) << v;
        }
    panels->has_nonzeros = 1;
    memset(with_terms, 0, TILE_ROWS * sizeof *with_terms);
    for (ptrdiff_t start = 0; start < k; start += SPAN) {
        ptrdiff_t stop = k - start < SPAN ? k : start + SPAN;
        for (ptrdiff_t h = start; h < stop; h++)
            for (int r = 0; r < TILE_ROWS; r++)
                with_terms[r] |= -(rows[h * TILE_ROWS + r] != 0.0) & panels->nonzeros[h];
        if (stops(s->watch, TILE_ROWS * (stop - start)))
            return;
    }
}

/* Write entries of row r of a tile without terms; a bit for each entry that is still open. */
static uint64_t write_zeros(const Entries *s, Panels *panels, const Tile *t, int r,
                            uint64_t open, int with_terms)
{
    for (int v = 0; v < t->columns; v++) {
        ptrdiff_t i = t->i + r, j = t->j + v;
        if (!(open >> v & 1) || with_terms >> v & 1
            || unit_of_products(s, panels, t->row + r, i, v, j) == LEFT_OUT)
            continue;
        Words zero = {0.0, 0.0, 0.0, 0.0, 0};
        if (write_words(s, i, j, zero))
            open &= ~((uint64_t)1 << v);
    }
    return open;
}

/* The exponent g of a grid for terms with this sum of magnitudes: all partial sums are below
 * 2^g. The factor leaves room for the roundings of the sum of magnitudes, and for the
 * rounding errors of partial sums, k 2^-52 of 2^g. */
static int grid_of(double magnitude)
{
    if (!(magnitude >= 0x1p-300))
        return FINEST;
    return exponent_of(magnitude * (1.0 + 0x1p-20));
}

/* The grids of row r of a tile. Returns 0 if no open entry has a grid much finer than the
 * common one, of 2^0. */
static int find_grids(const Entries *s, const Panels *panels, const Tile *t, int r,
                      uint64_t open, int *grids)
{
    const ptrdiff_t k = s->p->k;
    double sums[WIDEST];
    s->f->row_of_magnitudes(k, panels->rows + t->row * k + r, panels->packed, sums,
                            s->watch);
    int is_finer = 0;
    for (int v = 0; v < t->columns; v++) {
        int g = grid_of(sums[v]);
        grids[v] = g > 0 ? 0 : g; /* no norm is above 1 */
        is_finer |= (open >> v & 1) && grids[v] <= -GAIN;
    }
    return is_finer;
}

/* Write entries of row r of a tile by sums in three words, on separate grids or on the common
 * one; a bit for each entry that is still open. */
static uint64_t write_in_three(Entries *s, Panels *panels, const Tile *t, int r,
                               uint64_t open, int is_own)
{
    const Product *p = s->p;
    int grids[WIDEST] = {0};
    if (is_own && !find_grids(s, panels, t, r, open, grids))
        return open;
    double hi[WIDEST], mid[WIDEST], lo[WIDEST], sigma[WIDEST], errors[WIDEST];
    for (int v = 0; v < s->f->columns; v++) {
        sigma[v] = 3.0 * power(grids[v]);
        errors[v] = s->error_in_three;
        if (is_own) /* entries below TINY, which became zeros, have no grid */
            errors[v] = errors[v] * power(grids[v]) + 2.0 * (double)p->k * TINY;
    }
    s->f->row_in_three(p->k, panels->rows + t->row * p->k + r, panels->packed, sigma, hi,
                       mid, lo, s->watch);
    uint64_t uncertain = s->f->normalise(2, hi, mid, lo, errors, p->kind == PAIR);
    int is_plain = t->is_common && !p->c.data && p->factor == 0.0 && !p->first.is_single;

    for (int v = 0; v < t->columns; v++) {
        if (!(open >> v & 1))
            continue;
        ptrdiff_t i = t->i + r, j = t->j + v;
        int exponent = panels->row_exponents[t->row + r] + panels->column_exponents[v];
        Words words = {hi[v], mid[v], lo[v], errors[v], exponent};
        int is_written = p->close_words == 3 && write_close(s, i, j, words);
        if (!is_written && is_plain && !(uncertain >> v & 1) && grids[v] >= PLAIN)
            is_written =
                write_plainly(s, i, j, &words, t->row_factors[r] * t->column_factors[v]);
        if (!is_written)
            is_written = write_words(s, i, j, words);
        if (!is_written) {
            words.err = 0.0;
            int unit = unit_of_products(s, panels, t->row + r, i, v, j);
            is_written =
                unit >= grids[v] + s->log_k - 146 && write_words(s, i, j, words);
        }
        if (is_written)
            open &= ~((uint64_t)1 << v);
    }
    return open;
}

/* Pack columns from number j on; returns 0 if they hold Inf or NaN. */
static int pack_columns(const Entries *s, Panels *panels, ptrdiff_t j, int columns)
{
    const View *b = &s->p->b;
    const int lanes = s->f->columns;
    gather(entry(b, s->z, 0, j), b->column, b->row, columns, s->p->k, b->is_single, lanes,
           panels->packed, s->watch);
    panels->columns = panels->packed;
    panels->stride = lanes;
    panels->has_nonzeros = 0;
    for (int v = 0; v < lanes; v++)
        panels->sigma[v] = 3.0;
    return normalise(s->f, s->p->k, lanes, columns, panels->packed, panels->column_exponents);
}

/* Returns 1 if tiles read the columns of B without packing them: A has few rows, and each
 * row of B is contiguous. */
static int stays_in_place(const Product *p)
{
    const ptrdiff_t size = sizeof(double);
    return p->m <= TILE_ROWS && p->k <= SPAN && !p->b.is_single && p->b.column == size
        && p->b.row % size == 0;
}

/* Use the columns of a tile in place, with their sums of squares; returns 0 if their sizes
 * are not moderate.
 *
 * A sigma of 3 2^e stands for scaling by 2^-e. Entries below TINY are kept. Their products
 * may underflow, each by less than 2^-1070, which is less than 2^-600 of 2^e. */
static int take_columns(const Entries *s, Panels *panels, ptrdiff_t j, const double *squares)
{
    const View *b = &s->p->b;
    for (int v = 0; v < s->f->columns; v++) {
        if (!(squares[v] >= 0x1p-600 && squares[v] <= 0x1p600))
            return 0;
        panels->column_exponents[v] = exponent_of_norm(squares[v], s->p->k, NULL, 0);
        panels->units[v] = power(panels->column_exponents[v]);
        panels->sigma[v] = 3.0 * panels->units[v];
    }
    panels->columns = (const double *)entry(b, s->z, 0, j);
    panels->stride = b->row / (ptrdiff_t)sizeof(double);
    return 1;
}

/* Returns 1 if sums in two words settle most entries: not the second doubles of pairs. */
static int is_in_two(const Product *p)
{
    if (p->close_words)
        return p->close_words == 2;
    int needs_three = p->kind == PAIR && !p->first.is_single;
    return p->kind == NEAREST || (!p->c.data && !needs_three);
}

/* Write the entries of a tile. */
static void write_tile(Entries *s, Panels *panels, Tile *t)
{
    find_factors(s, panels, t);
    uint64_t open = ~(uint64_t)0, used = ((uint64_t)1 << t->columns) - 1, zeros = 0;
    int with_terms[TILE_ROWS], has_terms = 0;
    if (is_in_two(s->p))
        open = write_in_two(s, panels, t, &zeros);
    for (int r = 0; r < t->rows; r++) {
        uint64_t open_columns = open >> (r * s->f->columns) & used;
        if (open_columns && panels->columns != panels->packed)
            pack_columns(s, panels, t->j, t->columns); /* for three words */
        if (zeros >> (r * s->f->columns) & used) {
            if (!has_terms)
                find_terms(s, panels, t, with_terms);
            has_terms = 1;
            open_columns = write_zeros(s, panels, t, r, open_columns, with_terms[r]);
        }
        int *rests = panels->row_rests[t->row + r];
        for (int is_own = 0; is_own < 2 && open_columns; is_own++) {
            if (rests[is_own] > 0) {
                rests[is_own]--;
                continue;
            }
            uint64_t left = write_in_three(s, panels, t, r, open_columns, is_own);
            if (left == open_columns)
                rests[is_own] = REST;
            open_columns = left;
        }
        for (int v = 0; open_columns >> v; v++)
            if (open_columns >> v & 1)
                write_exactly(s, t->i + r, t->j + v);
    }
}

/* A product of two matrices by tiles. */
static Outcome by_tiles(Entries *s, Panels *panels, ptrdiff_t block_rows)
{
    const Product *p = s->p;
    const Kernels *f = s->f;
    const ptrdiff_t k = p->k, z = s->z;
    const int lanes = f->columns;
    double squares[STRIPE];
    ptrdiff_t stripe = 0;
    if (stays_in_place(p)) {
        stripe = STRIPE_NUMBERS / (k + 1) / lanes * lanes;
        stripe = stripe < lanes ? lanes : stripe > STRIPE ? STRIPE : stripe;
    }
    for (ptrdiff_t start = 0; start < p->m; start += block_rows) {
        ptrdiff_t rows = p->m - start < block_rows ? p->m - start : block_rows;
        for (ptrdiff_t i = 0; i < rows; i += TILE_ROWS) {
            double *panel = panels->rows + i * k;
            ptrdiff_t count = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
            gather(entry(&p->a, z, start + i, 0), p->a.row, p->a.column, count, k,
                   p->a.is_single, TILE_ROWS, panel, s->watch);
            if (!normalise(f, k, TILE_ROWS, (int)count, panel,
                           panels->row_exponents + i))
                return NOT_FINITE;
            if (stops(s->watch, 32 * TILE_ROWS * (int64_t)k))
                return STOPPED;
            for (int r = 0; r < TILE_ROWS; r++) {
                panels->row_units[i + r] = UNKNOWN;
                panels->row_rests[i + r][0] = panels->row_rests[i + r][1] = 0;
            }
        }
        for (ptrdiff_t j = 0; j < p->n; j += lanes) {
            int columns = (int)(p->n - j < lanes ? p->n - j : lanes);
            if (stripe > 0 && j % stripe == 0) {
                ptrdiff_t count = p->n - j < stripe ? (p->n - j) / lanes * lanes : stripe;
                f->squares_by_rows(k, count, (const double *)entry(&p->b, z, 0, j),
                                   p->b.row / (ptrdiff_t)sizeof(double), squares);
            }
            int is_in_place = stripe > 0 && columns == lanes
                           && take_columns(s, panels, j, squares + j % stripe);
            if (!is_in_place && !pack_columns(s, panels, j, columns))
                return NOT_FINITE;
            if (stops(s->watch, 32 * lanes * (int64_t)k))
                return STOPPED;
            for (int v = 0; v < lanes; v++)
                panels->column_units[v] = UNKNOWN;
            memset(s->has_column, 0, sizeof s->has_column);
            s->first_column = j;
            for (ptrdiff_t i = 0; i < rows; i += TILE_ROWS) {
                int count = (int)(rows - i < TILE_ROWS ? rows - i : TILE_ROWS);
                Tile tile = {.row = i, .i = start + i, .j = j, .rows = count,
                             .columns = columns};
                write_tile(s, panels, &tile);
                if (stops(s->watch, TILE_ROWS * WIDEST * CHUNK))
                    return STOPPED;
            }
        }
    }
    return s->is_out_of_memory ? NO_MEMORY : DONE;
}

/* ---- dot products --------------------------------------------------------------- */

/* The ways to add a dot product: scaled by norms, in two or three words, or by sums of
 * magnitudes. */
enum { IN_TWO, IN_THREE, IN_PARTS };

/* A sum of pieces so far: its words, and their error bound. */
typedef struct {
    double hi, mid, lo, err;
} Total;

/* Add the words of a piece, in units of 2^g. The two words that are added with rounding are
 * bounded at the same time. */
static void add_piece(Total *total, double hi, double mid, double lo, double err)
{
    double rest, other;
    two_sum(total->hi, hi, &total->hi, &rest);
    two_sum(total->mid, mid, &total->mid, &other);
    two_sum(total->mid, rest, &total->mid, &rest);
    double low = (rest + other) + lo;
    total->lo += low;
    total->err += err + 0x1p-52 * (fabs(rest) + fabs(other) + fabs(low) + fabs(total->lo));
}

/* The sum of squares of a piece: 0 if all numbers are zero, INFINITY if it is out of range,
 * NAN if the piece holds Inf or NaN. */
static double square_of(const Kernels *f, ptrdiff_t n, const double *x)
{
    double square = f->square(n, x), largest = 0.0;
    if (square >= 0x1p-900 && square <= 0x1p900)
        return square;
    for (ptrdiff_t h = 0; h < n; h++) {
        if (!(fabs(x[h]) < INFINITY))
            return NAN;
        largest = fabs(x[h]) > largest ? fabs(x[h]) : largest;
    }
    return largest == 0.0 ? 0.0 : INFINITY;
}

/* Terms of a dot product that are added together, up to PIECE, and the sums of squares of
 * their factors, within [2^-900, 2^900] or 0. */
typedef struct {
    ptrdiff_t n;
    const double *a, *b;
    double square_a, square_b;
} Piece;

/* The e for which a norm is below 2^e, or a product of two, from its square. */
static int exponent_of_root(double square)
{
    return square > 0.0 ? (exponent_of(square * (1.0 + 0x1p-20)) + 1) >> 1 : FINEST;
}

/* Add a piece in two words, with partial sums below 2^g. */
static void add_in_two(const Kernels *f, const Piece *piece, int g, Total *total)
{
    double unit = power(g), hi, lo;
    f->dot_in_two(piece->n, piece->a, piece->b, 3.0 * unit, &hi, &lo);
    add_piece(total, hi, lo, 0.0, piece_error_in_two(piece->n) * unit);
}

/* 1 if three words hold a piece exactly, with partial sums below 2^g.
 *
 * Numbers below 2^i and 2^j, multiples of 2^(i - 51) and 2^(j - 51), have products that are
 * multiples of 2^(i + j - 102). The remainders that go into the low word, at most 2^(g - 92)
 * each, and their sums, below 2^(g - 82), are doubles if that power is 2^(g - 134) or more.
 * So is the error of a single product, of 106 bits, if it does not underflow. */
static int is_exact(const Kernels *f, const Piece *piece, int g)
{
    if (piece->n == 1)
        return g > FINEST;
    int i = exponent_of_root(piece->square_a), j = exponent_of_root(piece->square_b);
    return i + j - 102 >= g - 134 && f->is_on_grid(piece->n, piece->a, 3.0 * power(i))
        && f->is_on_grid(piece->n, piece->b, 3.0 * power(j));
}

/* Add a piece in three words, with partial sums below 2^g. */
static void add_in_three(const Kernels *f, const Piece *piece, int g, Total *total)
{
    double unit = power(g), hi, mid, lo;
    double err = is_exact(f, piece, g) ? 0.0 : piece_error_in_three(piece->n) * unit;
    f->dot_in_three(piece->n, piece->a, piece->b, 3.0 * unit, &hi, &mid, &lo);
    /* One word if that is enough: after a large term, the others become the next word. */
    two_sum(hi, mid, &hi, &mid);
    add_piece(total, hi, mid, lo, err);
}

/* Terms of a piece from `start` on. */
static Piece part(const Kernels *f, const Piece *piece, ptrdiff_t start, ptrdiff_t n)
{
    const double *a = piece->a + start, *b = piece->b + start;
    return (Piece){n, a, b, f->square(n, a), f->square(n, b)};
}

/* Add a piece in three words, on the grid of its sum of magnitudes, or in parts if a few
 * large terms make that grid coarse.
 *
 * If one half is far larger than the other, the smaller half is added on its own grid, and
 * the larger half is halved again, down to a single product. */
static void add_in_parts(const Kernels *f, const Piece *piece, Total *total)
{
    const double *a = piece->a, *b = piece->b;
    ptrdiff_t half = piece->n / 2, rest = piece->n - half;
    double first = f->dot_of_magnitudes(half, a, b);
    double second = f->dot_of_magnitudes(rest, a + half, b + half);
    int is_apart = piece->n > 1 && (first > APART * second || second > APART * first);
    if (!is_apart) {
        add_in_three(f, piece, grid_of(first + second), total);
        return;
    }
    Piece halves[2] = {part(f, piece, 0, half), part(f, piece, half, rest)};
    int larger = second > first;
    add_in_three(f, &halves[!larger], grid_of(larger ? first : second), total);
    add_in_parts(f, &halves[larger], total);
}

/* The dot product of two vectors, with the ladder of the file's head.
 *
 * Sigma scales whole pieces, by their norms, instead of entries. A missing norm, -1, is
 * computed on first use, so that a piece is read from memory once. A piece that is far larger
 * than another one is added in parts at once. */
static Outcome dot(Entries *s, ptrdiff_t i, ptrdiff_t j, const double *a, const double *b,
                   double *squares_a, double *squares_b)
{
    const Kernels *f = s->f;
    const ptrdiff_t k = s->p->k;
    for (int rung = s->p->kind == NEAREST ? IN_TWO : IN_THREE;; rung = IN_PARTS) {
        Total total = {0.0, 0.0, 0.0, 0.0};
        double smallest = INFINITY;
        int is_in_range = 1;
        for (ptrdiff_t start = 0, number = 0; start < k; start += PIECE, number++) {
            ptrdiff_t n = k - start < PIECE ? k - start : PIECE;
            if (stops(s->watch, 4 * n + 256))
                return STOPPED;
            if (squares_a[number] == -1.0)
                squares_a[number] = square_of(f, n, a + start);
            if (squares_b[number] == -1.0)
                squares_b[number] = square_of(f, n, b + start);
            Piece piece = {n, a + start, b + start, squares_a[number], squares_b[number]};
            if (isnan(piece.square_a) || isnan(piece.square_b))
                return NOT_FINITE;
            if (piece.square_a == 0.0 || piece.square_b == 0.0)
                continue;
            double product = piece.square_a * piece.square_b;
            if (rung == IN_PARTS) /* sums of magnitudes may be of any size */
                is_in_range &= isfinite(piece.square_a) && isfinite(piece.square_b);
            else
                is_in_range &= product >= 0x1p-600 && product <= 0x1p900;
            if (!is_in_range)
                continue; /* later pieces may still hold Inf or NaN */

            smallest = product < smallest ? product : smallest;
            int is_apart = product > APART * APART * smallest;
            if (rung == IN_TWO)
                add_in_two(f, &piece, exponent_of_root(product), &total);
            else if (rung == IN_THREE && !is_apart)
                add_in_three(f, &piece, exponent_of_root(product), &total);
            else
                add_in_parts(f, &piece, &total);
        }
        Words sum = normalised(total.hi, total.mid, total.lo, total.err, 0);
        if (is_in_range && write_words(s, i, j, sum))
            return DONE;
        if (rung == IN_PARTS)
            break;
    }
    write_exactly(s, i, j);
    return stops(s->watch, 0) ? STOPPED : DONE;
}

/* A vector along k, contiguous: in place, or a copy in `space`. */
static const double *contiguous(const char *at, ptrdiff_t stride, ptrdiff_t k,
                                int is_single, double *space, Watch *watch)
{
    if (!is_single && stride == sizeof(double))
        return (const double *)at;
    copy(at, stride, k, is_single, space, watch);
    return space;
}

/* A product of few columns. `space` holds the columns, a row, and the squares of all. */
static Outcome by_dots(Entries *s, double *space)
{
    const Product *p = s->p;
    const ptrdiff_t k = p->k, z = s->z, pieces = (k + PIECE - 1) / PIECE;
    double *row_copy = space + p->n * k, *squares = row_copy + k;
    double *squares_of_row = squares + p->n * pieces;
    const double *columns[FEW];
    for (ptrdiff_t j = 0; j < p->n; j++)
        columns[j] = contiguous(entry(&p->b, z, 0, j), p->b.row, k, p->b.is_single,
                                space + j * k, s->watch);
    for (ptrdiff_t piece = 0; piece < p->n * pieces; piece++)
        squares[piece] = -1.0;
    memset(s->has_column, 0, sizeof s->has_column);
    s->first_column = 0;
    for (ptrdiff_t i = 0; i < p->m; i++) {
        const double *row = contiguous(entry(&p->a, z, i, 0), p->a.column, k,
                                       p->a.is_single, row_copy, s->watch);
        for (ptrdiff_t piece = 0; piece < pieces; piece++)
            squares_of_row[piece] = -1.0;
        for (ptrdiff_t j = 0; j < p->n; j++) {
            Outcome outcome =
                dot(s, i, j, row, columns[j], squares_of_row, squares + j * pieces);
            if (outcome != DONE)
                return outcome;
        }
    }
    return s->is_out_of_memory ? NO_MEMORY : DONE;
}

/* ---- products ------------------------------------------------------------------- */

/* True for few columns, and rows that are contiguous in memory. */
static int goes_by_dots(const Product *p)
{
    ptrdiff_t size = p->a.is_single ? sizeof(float) : sizeof(double);
    return p->n <= FEW && p->k >= SHORT && p->a.column == size;
}

static Entries entries_of(const Product *p, const Kernels *f, Watch *watch)
{
    return (Entries){
        .p = p,
        .f = f,
        .format = p->first.is_single ? &BINARY32 : &BINARY64,
        .error_in_two = tile_error_in_two(p->k),
        .error_in_three = tile_error_in_three(p->k),
        .log_k = exponent_of((double)(p->k ? p->k : 1)),
        .watch = watch,
    };
}

/* 2^shift (A B + C), rounded; NOT_FINITE if A or B holds Inf or NaN, STOPPED if the watch
 * ends the call. */
Outcome multiply(const Product *product, const Kernels *f, Watch *watch)
{
    /* Choose the fast orientation: few columns and contiguous rows for dot products, few rows
     * and many columns for tiles. */
    Product p = *product;
    Product q = mirrored(product);
    int is_thin = goes_by_dots(&p), is_flat = goes_by_dots(&q);
    if (!is_thin && (is_flat || (p.n < p.m && p.n < f->columns)))
        p = q;
    int by_dot = is_thin || is_flat;

    /* One piece of memory for all matrices of the stack. */
    ptrdiff_t block_rows = (BLOCK / (p.k ? p.k : 1)) / TILE_ROWS * TILE_ROWS;
    if (block_rows < 8 * TILE_ROWS)
        block_rows = 8 * TILE_ROWS;
    ptrdiff_t padded_m = (p.m + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (block_rows > padded_m)
        block_rows = padded_m;
    ptrdiff_t numbers = by_dot ? (p.n + 1) * (p.k + p.k / PIECE + 1)
                               : (block_rows + f->columns) * p.k;
    double *space = malloc((size_t)(numbers ? numbers : 1) * sizeof(double));
    int *facts = malloc((size_t)(4 * block_rows + p.k + 1) * sizeof(int));
    Entries s = entries_of(&p, f, watch);
    Outcome outcome = space && facts ? DONE : NO_MEMORY;

    for (ptrdiff_t z = 0; z < p.batch && outcome == DONE; z++) {
        s.z = z;
        s.row_index = -1;
        if (stops(watch, 1024)) {
            outcome = STOPPED;
        } else if (by_dot) {
            outcome = by_dots(&s, space);
        } else {
            Panels panels = {.rows = space, .packed = space + block_rows * p.k,
                             .row_exponents = facts, .row_units = facts + block_rows,
                             .row_rests = (int(*)[2])(facts + 2 * block_rows),
                             .nonzeros = facts + 4 * block_rows};
            outcome = by_tiles(&s, &panels, block_rows);
        }
    }
    free(space);
    free(facts);
    free(s.row.mantissas);
    free(s.row.exponents);
    return outcome;
}

/* Copy up to WIDEST columns of B, each contiguous, in blocks of rows that fit in the first
 * cache whatever their stride. */
static void copy_columns(const Entries *s, ptrdiff_t first_column, double *to)
{
    enum { ROWS = 8 };
    const View *b = &s->p->b;
    const ptrdiff_t k = s->p->k;
    ptrdiff_t columns = s->p->n - first_column;
    columns = columns < WIDEST ? columns : WIDEST;
    for (ptrdiff_t h = 0; h < k; h += ROWS) {
        ptrdiff_t rows = k - h < ROWS ? k - h : ROWS;
        for (ptrdiff_t v = 0; v < columns; v++) {
            const char *from = entry(b, s->z, h, first_column + v);
            for (ptrdiff_t r = 0; r < rows; r++)
                to[v * k + h + r] = number(from + r * b->row, b->is_single);
        }
    }
}

/* The entries of 2^shift A B at `rows` and `columns`, rounded, as doubles. Entries whose
 * columns lie close together follow each other. */
Outcome finish(const Product *p, ptrdiff_t count, const double *rows, const double *columns,
               const Kernels *f, Watch *watch)
{
    const ptrdiff_t k = p->k, pieces = (k + PIECE - 1) / PIECE;
    ptrdiff_t numbers = (WIDEST + 1) * (k + pieces);
    double *space = malloc((size_t)(numbers ? numbers : 1) * sizeof(double));
    double *row_copy = space + WIDEST * k, *squares = row_copy + k;
    double *squares_of_row = squares + WIDEST * pieces;
    Entries s = entries_of(p, f, watch);
    Outcome outcome = space ? DONE : NO_MEMORY;
    s.row_index = -1;
    s.first_column = -1;
    for (ptrdiff_t e = 0; e < count && outcome == DONE; e++) {
        ptrdiff_t i = (ptrdiff_t)rows[e], j = (ptrdiff_t)columns[e];
        ptrdiff_t lane = j % WIDEST, first_column = j - lane;
        if (first_column != s.first_column) {
            s.first_column = first_column;
            memset(s.has_column, 0, sizeof s.has_column);
            copy_columns(&s, first_column, space);
            for (ptrdiff_t piece = 0; piece < WIDEST * pieces; piece++)
                squares[piece] = -1.0;
            if (stops(watch, 16 * WIDEST * k))
                break;
        }
        const double *row = contiguous(entry(&p->a, 0, i, 0), p->a.column, k,
                                       p->a.is_single, row_copy, watch);
        for (ptrdiff_t piece = 0; piece < pieces; piece++)
            squares_of_row[piece] = -1.0;
        outcome = dot(&s, i, j, row, space + lane * k, squares_of_row,
                      squares + lane * pieces);
    }
    if (s.is_out_of_memory)
        outcome = NO_MEMORY;
    free(space);
    free(s.row.mantissas);
    free(s.row.exponents);
    return outcome;
}
