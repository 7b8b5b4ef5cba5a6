/* C := alpha A B + beta C, in blocks of rows and by threads. */

#define _GNU_SOURCE
#include "blas.h"
#include "../environment.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MOST_NUMBERS = 1 << 18,   /* of a block: 2 MiB, which stay in the last cache */
    FEWEST_ROWS = 24,         /* of a block, so that panels of B serve many rows */
    TRIANGLE_ROWS = 128,      /* of a block, where a triangle saves terms or entries */
    SHARE = 1 << 23,          /* terms of a thread: 1 ms, twenty times what it costs */
    MOST_THREADS = 256,
};

/* ---- threads -------------------------------------------------------------------- */

/* The first number of a list in the environment, or 0. */
static int count_of_variable(const char *name)
{
    const char *text = getenv(name);
    long count = text ? strtol(text, NULL, 10) : 0;
    return count < 0 ? 0 : count > MOST_THREADS ? MOST_THREADS : (int)count;
}

/* Threads that a call may use: the number in the environment, otherwise all cores. */
static int thread_limit(void)
{
    int count = count_of_variable("HIFIGEMM_THREADS");
    if (count == 0)
        count = count_of_variable("OMP_NUM_THREADS");
    cpu_set_t cores;
    if (count == 0 && sched_getaffinity(0, sizeof cores, &cores) == 0)
        count = CPU_COUNT(&cores);
    return count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

/* Every `count`-th block of a problem, from number `first` on. */
typedef struct {
    const Problem *p;
    ptrdiff_t block_rows;
    int first, count;
} Share;

/* A range of rows and its needs: a triangle has entries, or terms, up to the diagonal. */
static Block block_at(const Update *u, ptrdiff_t start, ptrdiff_t block_rows)
{
    ptrdiff_t rows = u->m - start < block_rows ? u->m - start : block_rows;
    Block block = {.i = start, .rows = rows, .columns = u->n, .terms = u->k};
    if (u->c_shape == LOWER)
        block.columns = start + rows;
    if (u->c_shape == UPPER) {
        block.j = start;
        block.columns = u->n - start;
    }
    if (u->a_shape == LOWER)
        block.terms = start + rows;
    if (u->a_shape == UPPER) {
        block.first_term = start;
        block.terms = u->k - start;
    }
    return block;
}

static void *write_share(void *argument)
{
    const Share *share = argument;
    const Update *u = share->p->u;
    Environment environment = enter_ieee();
    ptrdiff_t step = share->count * share->block_rows;
    for (ptrdiff_t i = share->first * share->block_rows; i < u->m; i += step) {
        Block block = block_at(u, i, share->block_rows);
        Outcome outcome = write_block(share->p, &block, NULL);
        if (outcome == NOT_FINITE)
            write_nonfinite_block(share->p, &block);
        if (outcome == NO_MEMORY)
            allocated(SIZE_MAX, 1); /* which ends the program */
    }
    leave_ieee(environment);
    return NULL;
}

/* Write all blocks. Threads end with this call, so that a process that forks has none of
 * them. They block signals, which belong to the program's threads. */
static void write_side_by_side(const Problem *p, int threads)
{
    const Update *u = p->u;
    ptrdiff_t rows = (u->m + threads - 1) / threads;
    ptrdiff_t most_rows = MOST_NUMBERS / (u->n * u->type.components);
    rows = rows < most_rows ? rows : most_rows;
    if ((u->c_shape != FULL || u->a_shape != FULL) && rows > TRIANGLE_ROWS)
        rows = TRIANGLE_ROWS;
    rows = rows > FEWEST_ROWS ? rows : FEWEST_ROWS;

    Share shares[MOST_THREADS];
    pthread_t numbers[MOST_THREADS];
    int is_started[MOST_THREADS] = {0};
    sigset_t all, before;
    sigfillset(&all);
    for (int t = 0; t < threads; t++)
        shares[t] = (Share){p, rows, t, threads};
    if (threads > 1)
        pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int t = 1; t < threads; t++)
        is_started[t] = pthread_create(&numbers[t], NULL, write_share, &shares[t]) == 0;
    if (threads > 1)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (int t = 0; t < threads; t++)
        if (!is_started[t])
            write_share(&shares[t]);
    for (int t = 1; t < threads; t++)
        if (is_started[t])
            pthread_join(numbers[t], NULL);
}

/* ---- problems ------------------------------------------------------------------- */

static const Kernels *kernels;

static void choose_kernels(void)
{
    kernels = kernels_here()[0];
}

/* B^T A^T, so that the result has more rows than columns. */
static Update mirrored(const Update *u)
{
    Update mirror = *u;
    mirror.m = u->n;
    mirror.n = u->m;
    mirror.a = transposed(u->b);
    mirror.b = transposed(u->a);
    mirror.c = transposed(u->c);
    return mirror;
}

/* How an update of real operands is added. A positive power of two alpha is a shift, and any
 * other real alpha a factor of the product in binary64. If products with alpha are exact, for
 * operands of binary32, or if alpha is complex, it multiplies B, the smaller operand. */
Problem problem_of(const Update *u, View left, View right)
{
    Problem p = {
        .u = u, .left = left, .right = right, .scaled_left = left, .scaled_right = right,
        .beta = u->beta, .kernels = kernels,
    };
    Scalar factor = u->alpha;
    if (u->alpha.im == 0.0 && u->alpha.re > 0.0 && is_power(u->alpha.re)) {
        int shift = ilogb(u->alpha.re);
        Scalar scaled = {ldexp(u->beta.re, -shift), ldexp(u->beta.im, -shift)};
        if (ldexp(scaled.re, shift) == u->beta.re && ldexp(scaled.im, shift) == u->beta.im) {
            p.shift = shift;
            p.beta = scaled;
            factor.re = 1.0;
        }
    }
    if (!u->type.is_single && factor.im == 0.0 && factor.re != 1.0) {
        p.factor = factor.re;
        factor.re = 1.0;
    }
    p.words = words_of_multiple(u->type, factor);
    if (u->k > INT32_MAX / (u->type.components * p.words)) {
        fprintf(stderr, "hifigemm: sums of %td products in %d words; at most 2^31 - 1 are served\n",
                u->k * u->type.components, p.words);
        abort();
    }
    p.addends = is_zero(p.beta) ? 0 : words_of_multiple(u->result_type, p.beta);
    if (factor.re == 1.0 && factor.im == 0.0)
        return p;
    p.is_exact = !scale_right(u, &right, factor, p.words, &p.scaled_right);
    if (p.words > 1)
        p.scaled_left = repeat_left(u, &left, p.words);
    return p;
}

void free_scaled(const Problem *p)
{
    if (p->scaled_left.data != p->left.data)
        free(p->scaled_left.data);
    if (p->scaled_right.data != p->right.data)
        free(p->scaled_right.data);
}

/* Products of real numbers in an update: a triangle has half of them and half a diagonal. */
static double products_of(const Update *u)
{
    double rows = (double)u->m, columns = (double)u->n, terms = (double)u->k;
    if (u->c_shape != FULL)
        columns = (columns + 1.0) / 2.0;
    if (u->a_shape != FULL)
        terms = (terms + 1.0) / 2.0;
    return rows * columns * terms * u->type.components * u->type.components;
}

/* C := alpha A B + beta C. As in the reference BLAS, A and B are not read if alpha = 0, C is
 * not read if beta = 0, and nothing is written if nothing changes. */
void update(const Update *u)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    Update to_do = *u;
    if (is_zero(u->alpha)) {
        to_do.k = 0;
        to_do.a_shape = FULL;
    }
    if (u->m == 0 || u->n == 0 || (to_do.k == 0 && u->beta.re == 1.0 && u->beta.im == 0.0))
        return;
    pthread_once(&once, choose_kernels);
    if (tally)
        note_sizes(u->m, u->n, to_do.k, products_of(&to_do));
    int has_shape = u->a_shape != FULL || u->c_shape != FULL;
    if (u->n > u->m && !has_shape)
        to_do = mirrored(&to_do);

    /* The number of threads follows the work, up to the number of rows. */
    int components = u->type.components;
    double terms = (double)u->m * (double)u->n * (double)to_do.k * components * components;
    double most = fmin(terms / SHARE, (double)to_do.m / FEWEST_ROWS);
    int threads = 1;
    if (most >= 2.0) {
        int limit = thread_limit();
        threads = most < limit ? (int)most : limit;
    }

    /* Complex operands are copied as real ones. */
    int is_real = components == 1;
    View left = is_real ? view_of(u->type, &to_do.a)
                        : embedded_left(u->type, to_do.m, to_do.k, &to_do.a);
    View right = is_real ? view_of(u->type, &to_do.b)
                         : embedded_right(u->type, to_do.k, to_do.n, &to_do.b);
    Problem p = problem_of(&to_do, left, right);
    write_side_by_side(&p, threads);
    free_scaled(&p);
    if (!is_real) {
        free(left.data);
        free(right.data);
    }
}
