/* Correctly rounded sums of products: declarations that the files of the compiled core share.
 *
 *   kernels.h      sums in two and in three words, for one set of vector instructions
 *   kernels.c      kernels.h compiled for each set, and the choice among them
 *   words.c        the rounding of such a sum, if its bound decides it (Ziv's test)
 *   accumulator.c  the exact sum of products of any exponents
 *   product.c      a product of matrices: panels, tiles, and the sum that settles an entry
 *   factors.c      elimination of some columns with partial pivoting
 *   certificate.h  the certificate of a float64 product, for one set of vector instructions
 *   certificate.c  roundings of a float64 product of binary32 operands
 *   elimination.h  arithmetic modulo primes, for one set of vector instructions
 *   elimination.c  elimination modulo primes: determinants, leading minors, solutions
 *   banded.h       rows of inverses of banded matrices, for one set of vector instructions
 *   banded.c       elimination in a band, and products with such rows
 *   systems.c      scaling and bounds of linear systems, in few readings of a matrix
 *   small_systems.h  products and inverses of small matrices, for one set of instructions
 *   small_systems.c  small linear systems from their scaling to their enclosures
 *   tall_systems.c  least squares, from the scaling to the enclosure
 *   small_factors.c  determinants and definiteness of up to 128 rows
 *   scalar_sums.h  alpha T + beta C rounded once, from a pair for T
 *   environment.h  rounding to nearest during a call
 *   module.c       the Python module hifigemm._core, and signals that end its calls
 *
 * u = 2^-53 is the unit roundoff of binary64. The core relies on rounding to nearest with
 * subnormal numbers, which enter_ieee sets, and on a compiler that neither contracts nor
 * reorders sums and products; setup.py has the flags.
 */
#ifndef HIFIGEMM_CORE_H
#define HIFIGEMM_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- calls that may be stopped -------------------------------------------------- */

enum {
    PULSE = 1 << 22, /* terms from one look at the clock to the next: 0.4 to 15 ms */
    SPAN = 1 << 18,  /* terms of a long vector that are read between two questions */
};

/* The loops of a call report their terms to it. From time to time it asks whether the call is
 * to stop. Then the loops end early, and the results are not valid. A term takes 0.1 ns in a
 * tile; a slower term counts several times. */
typedef struct Watch {
    int64_t terms; /* until the next question */
    int (*is_to_stop)(struct Watch *watch);
} Watch;

/* Report `terms`; returns 1 if the call is to stop, now and in every later call. */
static inline int stops(Watch *watch, int64_t terms)
{
    watch->terms -= terms;
    return watch->terms <= 0 && watch->is_to_stop(watch);
}

/* ---- kernels.h ------------------------------------------------------------------ */

enum {
    TILE_ROWS = 3,    /* rows of a tile: with two vectors of columns, 12 sums in registers */
    CHUNK = 256,      /* terms after which the low words of a tile are set aside */
    PIECE = 1024,     /* terms of a dot product that are scaled together: 8 KiB of each */
    WIDEST = 16,      /* columns of a tile, at most */
    AHEAD = 24,       /* rows of columns that are prefetched */
};

/* Scaled entries of tiles are at least TINY or zeros: see product.c. */
#define TINY 0x1p-450

/* ---- elimination.h -------------------------------------------------------------- */

enum {
    PRIMES = 8,      /* side by side: a vector of the widest registers */
    PRIME_BITS = 24, /* of a prime */
    DELAY = 64,      /* products of residues that are added before a reduction */
    HALF = 27,       /* bits of the low half of a significand */
};

/* Primes, 2^23 < p < 2^24, and of each 1 / p, a root of -1 or 0, and the bits of p - 2
 * from the lowest one, as 0 or 1. */
typedef struct {
    double p[PRIMES], reciprocals[PRIMES], roots[PRIMES], bits[PRIME_BITS][PRIMES];
} Field;

/* The integer (high 2^HALF + low) 2^exponent, |high| < 2^27 and |low| < 2^27. */
typedef struct {
    double high, low;
    int32_t exponent;
} Digits;

/* ---- banded.h ------------------------------------------------------------------- */

enum {
    MOST_ROWS = 32, /* of an inverse side by side, four vectors of the widest registers */
};

/* Smaller entries of an inverse become zeros. Products with the others stay well above the
 * subnormal numbers. */
#define LEAST_OF_ROWS 0x1p-900

/* A matrix with `lower` diagonals below the main one and `upper` above it, and its factors
 * L and U, all by columns from the highest entry down, with a zero before each. U has
 * lower + upper entries above the diagonal, and the entries of L follow it. */
typedef struct {
    ptrdiff_t n, lower, upper;
    const double *columns; /* n x (lower + upper + 2) */
    const double *factors; /* n x (2 lower + upper + 2) */
    const int64_t *pivots; /* row j was exchanged with row pivots[j] */
} Band;

/* ---- certificate.h -------------------------------------------------------------- */

enum { NO_BIT = 4000 }; /* exponent of the lowest bit of zeros */

#define BITS_OF_2_53 ((int64_t)(1023 + 53) << 52)

/* ---- kernels.c ------------------------------------------------------------------ */

/* The sums of one set of vector instructions, its arithmetic modulo primes, where a
 * residue is PRIMES numbers, its rows of inverses and its small matrices; kernels.h,
 * elimination.h, banded.h and small_systems.h say what each computes. */
typedef struct {
    const char *name;
    int columns; /* of a tile */
    int rows;    /* of an inverse side by side */
    void (*squares)(ptrdiff_t k, const double *panel, double *squares);
    void (*squares_by_rows)(ptrdiff_t k, ptrdiff_t count, const double *b, ptrdiff_t stride,
                            double *squares);
    void (*scale)(ptrdiff_t k, double *panel, const double *factors);
    void (*tile_in_two)(int rows, ptrdiff_t k, const double *a, const double *b,
                        ptrdiff_t stride, const double *sigma, double *hi, double *lo,
                        Watch *watch);
    void (*row_in_three)(ptrdiff_t k, const double *a, const double *b,
                         const double *sigma, double *hi, double *mid, double *lo,
                         Watch *watch);
    void (*row_of_magnitudes)(ptrdiff_t k, const double *a, const double *b, double *sums,
                              Watch *watch);
    uint64_t (*doubles)(int vectors, const double *hi, const double *lo, double err);
    uint64_t (*singles)(int vectors, double *hi, const double *lo, double err);
    uint64_t (*add_to_row)(const double *hi, const double *lo, const double *factors,
                           double factor, int addends, const double *addend, double err,
                           int is_close, double *values, double *ends);
    uint64_t (*normalise)(int vectors, double *hi, double *mid, double *lo,
                          const double *err, int is_pair);
    double (*square)(ptrdiff_t n, const double *x);
    double (*dot_of_magnitudes)(ptrdiff_t n, const double *a, const double *b);
    int (*is_on_grid)(ptrdiff_t n, const double *x, double sigma);
    void (*dot_in_two)(ptrdiff_t n, const double *a, const double *b, double sigma,
                       double *hi, double *lo);
    void (*dot_in_three)(ptrdiff_t n, const double *a, const double *b, double sigma,
                         double *hi, double *mid, double *lo);
    double (*subtract_in_two)(ptrdiff_t n, double *hi, double *lo, double f_hi, double f_lo,
                              const double *p_hi, const double *p_lo);
    void (*powers_of_two)(const Field *field, ptrdiff_t count, double *powers);
    void (*residues)(const Field *field, ptrdiff_t count, const Digits *real,
                     const Digits *imag, const double *powers, double *x);
    void (*reduce)(const Field *field, ptrdiff_t count, double *x);
    void (*scale_residues)(const Field *field, ptrdiff_t count, const double *x,
                           const double *factor, double *product);
    void (*subtract_multiple)(ptrdiff_t count, double *x, const double *factor,
                              const double *y);
    void (*invert)(const Field *field, const double *x, double *inverse);
    void (*rows_of_inverse)(const Band *band, ptrdiff_t row, double *z, Watch *watch);
    void (*deviations)(const Band *band, ptrdiff_t row, const double *z, double *gaps,
                       Watch *watch);
    void (*sums_of_rows)(ptrdiff_t n, const double *z, const double *c, int are_magnitudes,
                         double *sums);
    void (*to_doubles)(ptrdiff_t n, const float *x, double scale, double *y, double *squares,
                  int32_t *lowest);
    ptrdiff_t (*round_product)(ptrdiff_t n, const double *product, double row_margin,
                         double row_spread, const double *norms, const double *spreads,
                         float *values);
    void (*small_product)(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const double *a,
                          const double *b, double *c);
    void (*sized_product)(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const double *a,
                          const double *b, double *c, double *sizes);
    int (*small_inverse)(ptrdiff_t n, const double *a, double *inverse, double *space);
} Kernels;

/* The sets that this machine supports, the widest first, and NULL. */
const Kernels *const *kernels_here(void);

/* Error bounds of the kernels, for operands that meet their conditions. */
double tile_error_in_two(ptrdiff_t k);
double tile_error_in_three(ptrdiff_t k);
double piece_error_in_two(ptrdiff_t n);
double piece_error_in_three(ptrdiff_t n);

/* ---- words.c -------------------------------------------------------------------- */

typedef struct {
    int precision; /* significand bits, 53 or 24 */
    int lowest;    /* exponent of the smallest subnormal number */
    double largest;
} Format;

extern const Format BINARY64, BINARY32;

/* hi + mid + lo: each word is the nearest double of the sum of itself and the words after it,
 * and |lo| is at most half a unit in the last place of mid. The exact sum is
 * 2^exponent (hi + mid + lo), up to 2^exponent err. */
typedef struct {
    double hi, mid, lo, err;
    int exponent;
} Words;

typedef enum { NEAREST, PAIR, ENCLOSURE } Kind;

/* NEAREST: the first value alone. PAIR: the nearest number, and the nearest number to the
 * remainder. ENCLOSURE: the numbers below and above the sum, equal if it is a number. */
typedef struct {
    double first, second;
} Values;

Words normalised(double hi, double mid, double lo, double err, int exponent);
Words plus(Words sum, double c);
Words times_factor(Words sum, double factor);
int settle(const Words *sum, Kind kind, const Format *format, Values *values);
double below(double x, const Format *format);
double above(double x, const Format *format);

/* 2^exponent, for a normal number. */
static inline double power(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline void two_sum(double a, double b, double *s, double *e)
{
    /* Knuth: s = fl(a + b) and s + e = a + b, barring overflow. */
    double sum = a + b;
    double t = sum - a;
    *e = (a - (sum - t)) + (b - t);
    *s = sum;
}

/* ---- accumulator.c -------------------------------------------------------------- */

/* Finite doubles as integers with signs, and exponents. */
typedef struct {
    uint64_t *mantissas;
    int16_t *exponents;
} Decoded;

enum { ZERO_EXPONENT = -8000 }; /* of a zero: below that of any product */

/* A finite double as an integer below 2^53, with its sign as the highest bit, times a
 * power of two; the power of a zero is ZERO_EXPONENT. */
static inline uint64_t decoded(double x, int *exponent)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t sign = bits >> 63 << 63, fraction = bits & (((uint64_t)1 << 52) - 1);
    int field = (int)(bits >> 52 & 0x7ff), is_subnormal = field == 0;
    uint64_t magnitude = fraction | (uint64_t)!is_subnormal << 52;
    *exponent = magnitude ? field + is_subnormal - 1075 : ZERO_EXPONENT;
    return sign | magnitude;
}

/* A factor times the sum of products of two vectors. */
typedef struct {
    double factor;
    ptrdiff_t k;
    Decoded a, b;
} Multiple;

enum { DIGITS = 208 }; /* of 32 bits up to 2^3328, above 2^31 products of 2^3072 */

/* An exact sum that grows; {.last = 0} is zero. Words `first` to `last` - 1 are in use; the
 * others have no value yet. */
typedef struct {
    int first, last;
    uint64_t words[2][DIGITS]; /* of positive and of negative products */
} Accumulator;

void accumulate_product(Accumulator *sum, double x, double y);
void accumulate_multiple(Accumulator *total, const Multiple *x, Watch *watch);
double rounded_accumulator(Accumulator *total, const Format *format);
void settle_exactly(ptrdiff_t k, const Decoded *a, const Decoded *b, int addends,
                    const double *addend, int shift, Kind kind, const Format *format,
                    Values *values, Watch *watch);

/* ---- product.c ------------------------------------------------------------------ */

/* A stack of matrices: strides in bytes, of matrices, rows and columns. */
typedef struct {
    char *data; /* NULL: none */
    ptrdiff_t matrix, row, column;
    int is_single; /* binary32, not binary64 */
} View;

enum { MOST_ADDENDS = 4 };

/* 2^shift (factor A B + C) for stacks of m x k and k x n matrices. C is a sum of 1 +
 * `more_addends` matrices, each `addend` bytes after the one before. */
typedef struct {
    ptrdiff_t batch, m, n, k;
    View a, b, c, first, second;
    double factor; /* 0: none; with one the kind is NEAREST and the shift 0 */
    int more_addends;
    ptrdiff_t addend;
    int shift;
    Kind kind;
    int close_words; /* 0: entries are rounded once. 2: entries are sums in two words without
                      * a certificate: NEAREST with C, see write_update, or PAIR without C.
                      * 3: sums in three words, NEAREST or PAIR with C, see write_close */
} Product;

typedef enum { DONE = 0, NOT_FINITE = -1, NO_MEMORY = -2, STOPPED = -3, NO_INTEGER = -4 } Outcome;

Outcome multiply(const Product *product, const Kernels *kernels, Watch *watch);
Outcome finish(const Product *product, ptrdiff_t count, const double *rows,
               const double *columns, const Kernels *kernels, Watch *watch);

/* ---- certificate.c -------------------------------------------------------------- */

int to_doubles(const Kernels *kernels, ptrdiff_t count, ptrdiff_t k, const View *x, int shift,
               const View *y, double *norms, double *spreads, Watch *watch);
ptrdiff_t round_product(const Kernels *kernels, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k,
                        const View *product, const double *rows, const double *columns,
                        const View *values);

/* ---- systems.c ------------------------------------------------------------------ */

/* Of moderate magnitudes, from the reciprocal on, as in numerics/equilibration.py. */
#define MODERATE 0x1p200

void magnitude_product(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const View *a, const View *v,
                       const View *out, double *space, Watch *watch);
double largest_of_moderate(ptrdiff_t n, const double *x);
double length(ptrdiff_t n, const double *x, ptrdiff_t stride);
int write_restored(const View *matrix, ptrdiff_t row, ptrdiff_t column, double x,
                   int64_t exponent);
int equilibrate(ptrdiff_t n, ptrdiff_t k, const View *a, const View *b, const View *scaled_a,
                const View *scaled_b, int64_t *exponents, int64_t *sum, double *space,
                Watch *watch);
/* linalg.upward.above: an upper bound of a nonnegative x from before this many roundings. */
static inline double upward(double x, ptrdiff_t roundings, double underflows)
{
    double factor = 1.0 + (double)(roundings + 4) * 0x1p-52;
    return x * factor + (2.0 * underflows + 0x1p-1074);
}

void image_and_size(ptrdiff_t n, const View *r, const double *v, double *image,
                    double *size, double *space, Watch *watch);
int enclose(ptrdiff_t n, const View *a, const View *b, const View *r, const double *bounds,
            double norm, double inverse_norm, const View *x, const View *radius,
            double *space, const Kernels *kernels, Watch *watch);

/* ---- banded.c ------------------------------------------------------------------- */

/* Rows `first` to `first` + `count` - 1 of images = R Q, sizes = |R| S and
 * gaps = |fl(R A - I)| V, R being the inverse of L U with the exchanges of rows. */
typedef struct {
    Band band;
    ptrdiff_t first, count, num_images, num_sizes, num_gaps; /* rows, and columns */
    View q, s, v, images, sizes, gaps;
} BandedProducts;

int factorise_band(const View *a, ptrdiff_t n, ptrdiff_t lower, ptrdiff_t upper,
                   double *columns, double *factors, int64_t *pivots, Watch *watch);
Outcome banded_products(const BandedProducts *p, const Kernels *kernels, Watch *watch);

/* ---- factors.c ------------------------------------------------------------------ */

void factor_panel(ptrdiff_t m, ptrdiff_t n, const View *panel, int64_t *order, Watch *watch);

/* ---- elimination.c -------------------------------------------------------------- */

/* Z = 2^rows [A B] 2^columns, n x n and n x k, modulo `count` primes; of complex matrices
 * A and B are real + root imag, with a root of -1 for each prime. */
typedef struct {
    ptrdiff_t n, k, count;
    View real, imag; /* imag.data is NULL for real matrices */
    const double *rows, *columns, *primes, *roots;
    double *determinants, *minors, *numerators; /* count, n x count, n k x count */
} Elimination;

Outcome eliminate(const Elimination *e, const Kernels *kernels, Watch *watch);

/* ---- small_systems.c ------------------------------------------------------------ */

typedef enum { LEFT = 0, ENCLOSED = 1, NEAREST_NUMBERS = 2 } Solved;

/* How a solution was proven: see linalg.solution.SolutionReport. */
typedef struct {
    double condition, norm, steps;
} Proof;

ptrdiff_t space_of_small(ptrdiff_t n, ptrdiff_t k);
Solved solve_small(ptrdiff_t n, ptrdiff_t k, const View *a, const View *b, const View *x,
                   const View *radius, Proof *proof, double *space, const Kernels *kernels,
                   Watch *watch);

/* ---- tall_systems.c ------------------------------------------------------------- */

ptrdiff_t space_of_tall(ptrdiff_t m, ptrdiff_t n);
Solved solve_tall(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const View *a, const View *b,
                  const View *x, const View *radius, Proof *proof, double *space,
                  const Kernels *kernels, Watch *watch);

/* ---- small_factors.c ------------------------------------------------------------ */

enum { MOST_OF_SMALL = 128 }; /* rows */

ptrdiff_t space_of_factors(ptrdiff_t n);
void tell_determinant(ptrdiff_t n, const View *a, double *facts, double *space,
                      const Kernels *kernels, Watch *watch);
void tell_definiteness(ptrdiff_t n, const View *a, double *answer, double *space,
                       const Kernels *kernels, Watch *watch);

#endif
