/* Gaussian elimination of an integer matrix modulo many primes: the determinant, the leading
 * minors, and the solution of a system in the form of Cramer's rule.
 *
 * PRIMES primes are eliminated side by side. A few rows at a time are read, multiples of the
 * rows above are subtracted from them, and each is divided by its pivot. So a residue is
 * reduced once for DELAY products that are added to it. If a pivot vanishes modulo a prime,
 * columns are exchanged for this prime alone.
 */

#include "core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LARGEST_EXPONENT = 1 << 16, /* of an entry of Z; floats need a tenth of it */
    ROWS = 4,                   /* that one reading of the rows above serves */
};

/* The state of a group of primes. */
typedef struct {
    const Elimination *e;
    ptrdiff_t width;         /* n + k */
    Field field;
    double *powers;          /* of two */
    double *rows;            /* eliminated, width residues each, the pivot a 1 that is not stored */
    double *block;           /* ROWS rows at work */
    double *copy;            /* n numbers of one prime */
    ptrdiff_t *order;        /* of each prime: the columns of A in their places, PRIMES x n */
    int is_exchanged[PRIMES]; /* some columns are in other places */
    int has_minors[PRIMES];  /* no leading minor vanished so far */
    int is_singular[PRIMES];
    double product[PRIMES];  /* of the pivots, with the sign of the exchanges */
} Group;

/* ---- integers ------------------------------------------------------------------- */

/* x 2^shift in two halves; returns 0 if it is not an integer, or too large. */
static int read_digits(double x, int64_t shift, Digits *digits)
{
    const int64_t low_bits = ((int64_t)1 << HALF) - 1;
    if (!(fabs(x) < INFINITY))
        return 0;
    int exponent;
    uint64_t bits = decoded(x, &exponent);
    int64_t magnitude = (int64_t)(bits & ~((uint64_t)1 << 63));
    int64_t power = exponent + shift;
    *digits = (Digits){0.0, 0.0, 0};
    if (magnitude == 0)
        return 1;
    if (power < 0) {
        if (power <= -64 || magnitude & (((int64_t)1 << -power) - 1))
            return 0;
        magnitude >>= -power;
        power = 0;
    }
    double sign = bits >> 63 ? -1.0 : 1.0;
    digits->high = sign * (double)(magnitude >> HALF);
    digits->low = sign * (double)(magnitude & low_bits);
    digits->exponent = (int32_t)power;
    return power < LARGEST_EXPONENT;
}

/* The digits of n rows of Z; returns the largest exponent, or -1 if an entry is not an
 * integer. */
static int32_t read_integers(const Elimination *e, const View *part, Digits *digits)
{
    ptrdiff_t width = e->n + e->k;
    int32_t largest = 0;
    for (ptrdiff_t i = 0; i < e->n; i++)
        for (ptrdiff_t j = 0; j < width; j++, digits++) {
            double x;
            memcpy(&x, part->data + i * part->row + j * part->column, sizeof x);
            if (!read_digits(x, (int64_t)e->rows[i] + (int64_t)e->columns[j], digits))
                return -1;
            largest = digits->exponent > largest ? digits->exponent : largest;
        }
    return largest;
}

/* ---- primes --------------------------------------------------------------------- */

/* The primes from number `first` on; the last one fills the remaining lanes. */
static void take_primes(Group *group, ptrdiff_t first)
{
    const Elimination *e = group->e;
    Field *field = &group->field;
    for (int lane = 0; lane < PRIMES; lane++) {
        ptrdiff_t place = first + lane < e->count ? first + lane : e->count - 1;
        uint32_t exponent = (uint32_t)e->primes[place] - 2;
        field->p[lane] = e->primes[place];
        field->reciprocals[lane] = 1.0 / e->primes[place];
        field->roots[lane] = e->imag.data ? e->roots[place] : 0.0;
        for (int bit = 0; bit < PRIME_BITS; bit++)
            field->bits[bit][lane] = (double)(exponent >> bit & 1);

        group->is_exchanged[lane] = group->is_singular[lane] = 0;
        group->has_minors[lane] = 1;
        group->product[lane] = 1.0;
        for (ptrdiff_t j = 0; j < e->n; j++)
            group->order[lane * e->n + j] = j;
    }
}

/* The representative of a residue from 0 to p - 1. */
static double canonical(const Group *group, int lane, double residue)
{
    double p = group->field.p[lane];
    return residue < 0.0 ? residue + p : residue >= p ? residue - p : residue;
}

/* Write a residue of each prime to `results` from number `first` on. */
static void put_residues(const Group *group, ptrdiff_t first, const double *residues,
                         const int *is_known, double *results)
{
    for (int lane = 0; lane < PRIMES && first + lane < group->e->count; lane++)
        results[first + lane] =
            is_known[lane] ? canonical(group, lane, residues[lane]) : 0.0;
}

/* ---- exchanges ------------------------------------------------------------------ */

/* Bring the columns of a new row to their places. */
static void exchange_columns(Group *group, double *row)
{
    ptrdiff_t n = group->e->n;
    for (int lane = 0; lane < PRIMES; lane++) {
        if (!group->is_exchanged[lane])
            continue;
        for (ptrdiff_t j = 0; j < n; j++)
            group->copy[j] = row[group->order[lane * n + j] * PRIMES + lane];
        for (ptrdiff_t j = 0; j < n; j++)
            row[j * PRIMES + lane] = group->copy[j];
    }
}

/* Exchange two residues of one prime. */
static void swap(double *x, double *y)
{
    double copy = *x;
    *x = *y;
    *y = copy;
}

/* If pivot i of a prime is zero, in this row at work, exchange its column with a later one.
 * If the row is zero, the determinant is 0, and 1 stands for the pivot. */
static void find_pivots(const Kernels *kernels, Group *group, ptrdiff_t i, ptrdiff_t number)
{
    ptrdiff_t n = group->e->n, width = group->width;
    double *row = group->block + number * width * PRIMES;
    int has_zero = 0;
    kernels->reduce(&group->field, 1, row + i * PRIMES);
    for (int lane = 0; lane < PRIMES; lane++)
        has_zero |= row[i * PRIMES + lane] == 0.0;
    if (!has_zero)
        return;
    kernels->reduce(&group->field, n - i, row + i * PRIMES);
    for (int lane = 0; lane < PRIMES; lane++) {
        if (row[i * PRIMES + lane] != 0.0)
            continue;
        group->has_minors[lane] = 0;
        ptrdiff_t j = i + 1;
        while (j < n && row[j * PRIMES + lane] == 0.0)
            j++;
        if (j == n) {
            group->is_singular[lane] = 1;
            row[i * PRIMES + lane] = 1.0;
            continue;
        }
        for (ptrdiff_t h = 0; h < i; h++) {
            double *above = group->rows + h * width * PRIMES + lane;
            swap(above + i * PRIMES, above + j * PRIMES);
        }
        for (ptrdiff_t h = number; h < ROWS; h++) {
            double *other = group->block + h * width * PRIMES + lane;
            swap(other + i * PRIMES, other + j * PRIMES);
        }
        ptrdiff_t *order = group->order + lane * n, column = order[i];
        order[i] = order[j];
        order[j] = column;
        group->is_exchanged[lane] = 1;
        group->product[lane] = -group->product[lane];
    }
}

/* ---- elimination ---------------------------------------------------------------- */

/* Subtract the multiple of the eliminated row h from a row that makes its entry in that
 * column zero. */
static void clear_column(const Kernels *kernels, const Group *group, ptrdiff_t h, double *row)
{
    ptrdiff_t width = group->width;
    double *factor = row + h * PRIMES, *others = factor + PRIMES;
    const double *above = group->rows + (h * width + h + 1) * PRIMES;
    kernels->reduce(&group->field, h % DELAY == DELAY - 1 ? width - h : 1, factor);
    kernels->subtract_multiple(width - h - 1, others, factor, above);
}

/* Bring [A B] to echelon form modulo the primes of a group, and write the determinants and
 * leading minors; returns 0 if the watch ends the call. */
static int eliminate_rows(const Kernels *kernels, Group *group, const Digits *real,
                          const Digits *imag, ptrdiff_t first, Watch *watch)
{
    const Elimination *e = group->e;
    ptrdiff_t n = e->n, width = group->width;
    const Field *field = &group->field;
    double inverse[PRIMES];
    for (ptrdiff_t start = 0; start < n; start += ROWS) {
        ptrdiff_t stop = n - start < ROWS ? n : start + ROWS;
        for (ptrdiff_t i = start; i < stop; i++) {
            double *row = group->block + (i - start) * width * PRIMES;
            kernels->residues(field, width, real + i * width,
                              imag ? imag + i * width : NULL, group->powers, row);
            exchange_columns(group, row);
        }
        for (ptrdiff_t h = 0; h < start; h++)
            for (ptrdiff_t i = start; i < stop; i++)
                clear_column(kernels, group, h,
                             group->block + (i - start) * width * PRIMES);

        for (ptrdiff_t i = start; i < stop; i++) {
            double *row = group->block + (i - start) * width * PRIMES;
            for (ptrdiff_t h = start; h < i; h++)
                clear_column(kernels, group, h, row);

            /* Leading minors are products of pivots. */
            find_pivots(kernels, group, i, i - start);
            double *pivot = row + i * PRIMES, *others = pivot + PRIMES;
            kernels->scale_residues(field, 1, group->product, pivot, group->product);
            put_residues(group, first, group->product, group->has_minors,
                         e->minors + i * e->count);
            kernels->invert(field, pivot, inverse);
            kernels->scale_residues(field, width - i - 1, others, inverse,
                                    group->rows + (i * width + i + 1) * PRIMES);
        }
        if (stops(watch, ROWS * PRIMES * (int64_t)(start + 8) * (int64_t)width))
            return 0;
    }
    int is_known[PRIMES];
    for (int lane = 0; lane < PRIMES; lane++)
        is_known[lane] = !group->is_singular[lane];
    put_residues(group, first, group->product, is_known, e->determinants);
    return 1;
}

/* Solve U X = C from the last row up, overwrite C, and write the numerators of
 * Cramer's rule, det X. */
static int substitute_back(const Kernels *kernels, Group *group, ptrdiff_t first,
                           Watch *watch)
{
    const Elimination *e = group->e;
    ptrdiff_t n = e->n, k = e->k, width = group->width;
    const Field *field = &group->field;
    for (ptrdiff_t i = n - 1; i >= 0; i--) {
        double *row = group->rows + i * width * PRIMES, *sides = row + n * PRIMES;
        for (ptrdiff_t h = i + 1; h < n; h++) {
            const double *solved = group->rows + (h * width + n) * PRIMES;
            kernels->subtract_multiple(k, sides, row + h * PRIMES, solved);
            if ((h - i) % DELAY == 0)
                kernels->reduce(field, k, sides);
        }
        kernels->reduce(field, k, sides);
        if (stops(watch, PRIMES * (int64_t)n * (int64_t)(k + 8)))
            return 0;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        double *sides = group->rows + (i * width + n) * PRIMES;
        kernels->scale_residues(field, k, sides, group->product, sides);
        for (int lane = 0; lane < PRIMES && first + lane < e->count; lane++) {
            ptrdiff_t column = group->order[lane * n + i];
            for (ptrdiff_t h = 0; h < k; h++)
                e->numerators[(column * k + h) * e->count + first + lane] =
                    group->is_singular[lane]
                        ? 0.0
                        : canonical(group, lane, sides[h * PRIMES + lane]);
        }
    }
    return 1;
}

/* Twin: numerics.prime_fields.eliminate. */
Outcome eliminate(const Elimination *e, const Kernels *kernels, Watch *watch)
{
    size_t n = (size_t)e->n, width = n + (size_t)e->k, residue = PRIMES * sizeof(double);
    size_t parts = e->imag.data ? 2 : 1;
    Digits *digits = malloc((parts * n * width + 1) * sizeof *digits);
    if (!digits)
        return NO_MEMORY;
    const Digits *imag = e->imag.data ? digits + n * width : NULL;
    int32_t largest = read_integers(e, &e->real, digits);
    int32_t other = imag ? read_integers(e, &e->imag, digits + n * width) : 0;
    if (largest < 0 || other < 0) {
        free(digits);
        return NO_INTEGER;
    }
    ptrdiff_t num_powers = (largest > other ? largest : other) + HALF + 1;

    Group group = {.e = e, .width = (ptrdiff_t)width};
    group.powers = malloc((size_t)num_powers * residue);
    group.rows = malloc((n * width + 1) * residue);
    group.block = calloc(ROWS * width + 1, residue);
    group.copy = malloc((n + 1) * sizeof(double));
    group.order = malloc((n * PRIMES + 1) * sizeof *group.order);
    int has_memory =
        group.powers && group.rows && group.block && group.copy && group.order;
    Outcome outcome = has_memory ? DONE : NO_MEMORY;
    for (ptrdiff_t first = 0; outcome == DONE && first < e->count; first += PRIMES) {
        take_primes(&group, first);
        kernels->powers_of_two(&group.field, num_powers, group.powers);
        if (!eliminate_rows(kernels, &group, digits, imag, first, watch)
            || (e->k && !substitute_back(kernels, &group, first, watch)))
            outcome = STOPPED;
    }
    free(group.order);
    free(group.copy);
    free(group.block);
    free(group.rows);
    free(group.powers);
    free(digits);
    return outcome;
}
