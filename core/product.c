/* Products of matrices: each entry climbs a ladder until its rounding is certain.
 *
 *   1. two words, a fixed-point sum and what it leaves: four operations a term
 *   2. three words: eleven operations a term, for sums that cancel, operands of wide
 *      exponents, pairs and enclosures
 *   3. the exact sum, about 2 ns a term: ties, and whatever else is left
 *
 * Most products go by tiles of TILE_ROWS x COLUMNS entries. Rows of A are packed in
 * panels (k, TILE_ROWS) and columns of B in panels (k, COLUMNS), so a tile reads both in
 * order: the panel of B stays in the cache while all panels of A pass (Goto, van de
 * Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008,
 * doi:10.1145/1356052.1356053). Products of few columns go by dot products, which read
 * their operands once and pack nothing.
 */

#include "core.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW = 3,                    /* columns that are made by dot products, at most */
    SHORT = 32,                 /* terms from which a dot product beats a tile */
    BLOCK = 1 << 18,            /* numbers of packed rows: 2 MiB, in the last cache */
    UNKNOWN = INT_MAX,          /* a unit that nobody asked for yet */
    REST = 3,                   /* tiles after which three words are tried again */
};

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

/* The e for which x 2^-e has a Euclidean norm below 1 - 2^-22, by its sum of squares;
 * INT_MAX where x holds Inf or NaN.
 *
 * The sum has k roundings, k u < 2^-22, and the factor has room for them, and for what
 * rounding adds to partial sums of products. Where squares may over- or underflow, the
 * largest entry times the root of k takes the place of the norm.
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

/* Scale the first `count` vectors of a panel, the others being zeros, to norms below 1,
 * and leave out entries below TINY, whose products might be subnormal, with which
 * processors are slow. Returns 0 where the vectors hold Inf or NaN. */
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

/* The exponent of the unit of which all entries of a vector are multiples: that of the
 * lowest bit of any of them, 1000 for zeros. */
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

/* What the sums of a matrix share: operands as they are, decoded for exact sums. */
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

/* Write what words, of A B alone, round to; returns 0 where that is not certain. */
static int write_words(const Entries *s, ptrdiff_t i, ptrdiff_t j, Words words)
{
    const View *c = &s->p->c;
    if (c->data)
        words = plus(words, number(entry(c, s->z, i, j), c->is_single));
    words.exponent += s->p->shift;
    Values values;
    if (!settle(&words, s->p->kind, s->format, &values))
        return 0;
    write_values(s, i, j, values);
    return 1;
}

/* Write the doubles of words of which hi, and mid for a pair, are certain, times a
 * factor; returns 0 where an enclosure is not certain. Half a unit of these words is
 * more than err, so they are normal numbers, and the values as well. */
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

/* Room for the row and the columns; returns 0 where there is none. */
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

    /* Rows and columns are decoded when an entry of theirs is left. */
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
    double c = p->c.data ? number(entry(&p->c, s->z, i, j), p->c.is_single) : 0.0;
    Values values;
    settle_exactly(p->k, &s->row, &column, c, p->shift, p->kind, s->format, &values,
                   s->watch);
    write_values(s, i, j, values);
}

/* ---- tiles ---------------------------------------------------------------------- */

/* Packed rows and columns, scaled; the units are worked out when an entry is left. */
typedef struct {
    double *rows, *columns;
    int *row_exponents, *row_units;
    int *row_rests; /* tiles for which three words of a row rest, having settled nothing */
    int column_exponents[WIDEST], column_units[WIDEST];
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
    /* Tiny entries were left out. */
    if (*of_row < -450 || *of_column < -450)
        return -1800;
    return *of_row + *of_column;
}

/* Entries that are made together. In the common case their values lie far from the ends
 * of the range: they are sums times a factor of the row and of the column. */
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
    t->is_common = 1;
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

/* Write the sums of a tile and C as doubles; a bit for each that is not certain.
 *
 * C + hi is exact in two words, and a rounding, of at most 2^-53 |low|, brings lo to the
 * second. Products with factors are exact unless they are subnormal, which the margin
 * has room for: factors are 2^-800 or more, err is above 2^-110. */
static uint64_t write_with_addend(const Entries *s, const Tile *t, const double *hi,
                                  const double *lo)
{
    const View *c = &s->p->c;
    const int lanes = s->f->columns;
    uint64_t open = 0;
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->columns; v++) {
            int lane = r * lanes + v;
            double factor = t->row_factors[r] * t->column_factors[v], sum, rest;
            double addend = number(entry(c, s->z, t->i + r, t->j + v), c->is_single);
            two_sum(addend, hi[lane] * factor, &sum, &rest);
            double low = rest + lo[lane] * factor;
            double margin = (s->error_in_two * factor + fabs(low) * 0x1p-51) * (1.0 + 0x1p-20);
            double least = sum + (low - margin), most = sum + (low + margin);
            *(double *)entry(&s->p->first, s->z, t->i + r, t->j + v) = least;
            open |= (uint64_t)!(least == most) << lane;
        }
    return open;
}

/* Write the nearest numbers of a tile by sums in two words; a bit for each entry that is
 * left. */
static uint64_t write_in_two(const Entries *s, Panels *panels, const Tile *t)
{
    const Product *p = s->p;
    const int lanes = s->f->columns;
    const double err = s->error_in_two;
    double hi[TILE_ROWS * WIDEST], lo[TILE_ROWS * WIDEST];
    uint64_t open = ~(uint64_t)0;
    s->f->tile_in_two(t->rows, p->k, panels->rows + t->row * p->k, panels->columns, hi, lo,
                      s->watch);

    if (p->c.data) {
        if (t->is_common && !p->first.is_single && p->shift == 0)
            open = write_with_addend(s, t, hi, lo);
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

    /* Entries that are left, some of them because their words are exact: all rests are
     * multiples of a unit, below 2^53 of it. */
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
        }
    return open;
}

/* Write entries of row r of a tile by sums in three words, and those that these leave
 * exactly; returns 0 where it leaves all of them. */
static int write_in_three(Entries *s, Panels *panels, const Tile *t, int r, uint64_t open)
{
    const Product *p = s->p;
    const double err = s->error_in_three;
    double hi[WIDEST], mid[WIDEST], lo[WIDEST];
    s->f->row_in_three(p->k, panels->rows + t->row * p->k + r, panels->columns, hi, mid, lo,
                       s->watch);
    uint64_t uncertain = s->f->normalise(2, hi, mid, lo, err, p->kind == PAIR);
    int is_plain = t->is_common && !p->c.data && !p->first.is_single, has_settled = 0;

    for (int v = 0; v < t->columns; v++) {
        if (!(open >> v & 1))
            continue;
        ptrdiff_t i = t->i + r, j = t->j + v;
        int exponent = panels->row_exponents[t->row + r] + panels->column_exponents[v];
        Words words = {hi[v], mid[v], lo[v], err, exponent};
        int is_written = 0;
        if (is_plain && !(uncertain >> v & 1))
            is_written =
                write_plainly(s, i, j, &words, t->row_factors[r] * t->column_factors[v]);
        if (!is_written)
            is_written = write_words(s, i, j, words);
        if (!is_written) {
            words.err = 0.0;
            int unit = unit_of_products(s, panels, t->row + r, i, v, j);
            is_written = unit >= s->log_k - 146 && write_words(s, i, j, words);
        }
        if (!is_written)
            write_exactly(s, i, j);
        has_settled |= is_written;
    }
    return has_settled;
}

/* Write the entries of a tile. */
static void write_tile(Entries *s, Panels *panels, Tile *t)
{
    find_factors(s, panels, t);
    uint64_t open = ~(uint64_t)0, used = ((uint64_t)1 << t->columns) - 1;
    if (s->p->kind == NEAREST)
        open = write_in_two(s, panels, t);
    for (int r = 0; r < t->rows; r++) {
        uint64_t open_columns = open >> (r * s->f->columns) & used;
        int *rests = panels->row_rests + t->row + r;
        if (open_columns && *rests == 0) {
            if (!write_in_three(s, panels, t, r, open_columns))
                *rests = REST;
            continue;
        }
        for (int v = 0; open_columns >> v; v++)
            if (open_columns >> v & 1)
                write_exactly(s, t->i + r, t->j + v);
        *rests -= open_columns != 0;
    }
}

/* A product of two matrices by tiles. */
static Outcome by_tiles(Entries *s, Panels *panels, ptrdiff_t block_rows)
{
    const Product *p = s->p;
    const Kernels *f = s->f;
    const ptrdiff_t k = p->k, z = s->z;
    const int lanes = f->columns;
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
                panels->row_rests[i + r] = 0;
            }
        }
        for (ptrdiff_t j = 0; j < p->n; j += lanes) {
            int columns = (int)(p->n - j < lanes ? p->n - j : lanes);
            gather(entry(&p->b, z, 0, j), p->b.column, p->b.row, columns, k,
                   p->b.is_single, lanes, panels->columns, s->watch);
            if (!normalise(f, k, lanes, columns, panels->columns, panels->column_exponents))
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

/* A sum of pieces so far: its words, and what they err by. */
typedef struct {
    double hi, mid, lo, err;
} Total;

/* Add the words of a piece, in units of 2^g; the two that are added with rounding are
 * bounded as they come. */
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

/* The sum of squares of a piece: 0 for zeros alone, INFINITY where it is out of range,
 * NAN where the piece holds Inf or NaN. */
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

/* The dot product of two vectors, with the ladder of the file's head.
 *
 * Pieces are scaled, by sigma, rather than their entries, by the norms of the pieces.
 * These are worked out where they are missing, -1: so a piece comes from memory once. */
static Outcome dot(Entries *s, ptrdiff_t i, ptrdiff_t j, const double *a, const double *b,
                   double *squares_a, double *squares_b)
{
    const Kernels *f = s->f;
    const ptrdiff_t k = s->p->k;
    int is_in_range = 1;
    for (int words = s->p->kind == NEAREST ? 2 : 3; words <= 3; words++) {
        Total total = {0.0, 0.0, 0.0, 0.0};
        for (ptrdiff_t start = 0, piece = 0; start < k; start += PIECE, piece++) {
            ptrdiff_t n = k - start < PIECE ? k - start : PIECE;
            if (stops(s->watch, 4 * n + 256))
                return STOPPED;
            if (squares_a[piece] == -1.0)
                squares_a[piece] = square_of(f, n, a + start);
            if (squares_b[piece] == -1.0)
                squares_b[piece] = square_of(f, n, b + start);
            if (isnan(squares_a[piece]) || isnan(squares_b[piece]))
                return NOT_FINITE;
            if (squares_a[piece] == 0.0 || squares_b[piece] == 0.0)
                continue;
            double product = squares_a[piece] * squares_b[piece] * (1.0 + 0x1p-20);
            is_in_range &= product >= 0x1p-600 && product <= 0x1p900;
            if (!is_in_range)
                continue; /* later pieces may still hold Inf or NaN */

            int e;
            frexp(product, &e);
            double unit = ldexp(1.0, (e + 1) >> 1), hi, mid, lo = 0.0, err;
            if (words == 2) {
                f->dot_in_two(n, a + start, b + start, 3.0 * unit, &hi, &mid);
                err = piece_error_in_two(n);
            } else {
                f->dot_in_three(n, a + start, b + start, 3.0 * unit, &hi, &mid, &lo);
                err = piece_error_in_three(n);
            }
            add_piece(&total, hi, mid, lo, err * unit);
        }
        if (!is_in_range)
            break;
        if (write_words(s, i, j, normalised(total.hi, total.mid, total.lo, total.err, 0)))
            return DONE;
    }
    write_exactly(s, i, j);
    return stops(s->watch, 0) ? STOPPED : DONE;
}

/* A vector along k, term by term: itself, or a copy in `space`. */
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

/* Few columns, and rows that lie in memory term by term. */
static int goes_by_dots(const Product *p)
{
    ptrdiff_t size = p->a.is_single ? sizeof(float) : sizeof(double);
    return p->n <= FEW && p->k >= SHORT && p->a.column == size;
}

/* 2^shift (A B + C), rounded; NOT_FINITE where A or B holds Inf or NaN, STOPPED where the
 * watch ends the call. */
Outcome multiply(const Product *product, const Kernels *f, Watch *watch)
{
    /* The shape that goes well: few columns and rows along memory for dot products, few
     * rows and many columns for tiles. */
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
    int *facts = malloc((size_t)(block_rows ? block_rows : 1) * 3 * sizeof(int));
    Entries s = {
        .p = &p,
        .f = f,
        .format = p.first.is_single ? &BINARY32 : &BINARY64,
        .error_in_two = tile_error_in_two(p.k),
        .error_in_three = tile_error_in_three(p.k),
        .log_k = exponent_of((double)(p.k ? p.k : 1)),
        .watch = watch,
    };
    Outcome outcome = space && facts ? DONE : NO_MEMORY;

    for (ptrdiff_t z = 0; z < p.batch && outcome == DONE; z++) {
        s.z = z;
        s.row_index = -1;
        if (stops(watch, 1024)) {
            outcome = STOPPED;
        } else if (by_dot) {
            outcome = by_dots(&s, space);
        } else {
            Panels panels = {.rows = space, .columns = space + block_rows * p.k,
                             .row_exponents = facts, .row_units = facts + block_rows,
                             .row_rests = facts + 2 * block_rows};
            outcome = by_tiles(&s, &panels, block_rows);
        }
    }
    free(space);
    free(facts);
    free(s.row.mantissas);
    free(s.row.exponents);
    return outcome;
}
