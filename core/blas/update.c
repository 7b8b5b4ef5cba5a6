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
    MOST_NUMBERS = 1 << 20,   /* of a block: 8 MiB */
    FEWEST_ROWS = 24,         /* of a block, so that panels of B are packed for many rows */
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

/* Threads that a call may take: those that the environment asks for, or else all cores. */
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

/* Rows of a number and what they need: a triangle has entries, or terms, up to the
 * diagonal. */
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

/* Write all blocks. Threads live as long as this call, so that nothing is left over for a
 * process that forks. They take no signals, which belong to the program's threads. */
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

/* 1 for a power of two with a sign. */
static int is_power(double x)
{
    int exponent;
    return isfinite(x) && fabs(frexp(x, &exponent)) == 0.5;
}

/* 1 where entries that are not zero are so large that their products, and errors of these,
 * are multiples of 2^-1074: two numbers with 53 bits from 2^-450 on. */
static int are_large(const View *x, ptrdiff_t m, ptrdiff_t n)
{
    if (x->is_single)
        return 1;
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            double number = number_at(x->data + i * x->row + j * x->column, 0);
            if (fabs(number) < 0x1p-450 && number != 0.0)
                return 0;
        }
    return 1;
}

/* B^T A^T, so that the rows of the result are its longer side. */
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

/* The real operands of an update, and how it is rounded. */
static Problem problem_of(const Update *u)
{
    Problem p = {.u = u, .alpha = u->alpha, .kernels = kernels};
    p.is_plain = u->alpha.im == 0.0 && is_power(u->alpha.re) && u->beta.im == 0.0
              && (u->beta.re == 0.0 || is_power(u->beta.re)) && u->k > 0;

    /* A negative power of two leaves its sign to the smaller operand: so zeros of exact
     * sums stay +0. */
    int sign = 1, is_left_smaller = u->m <= u->n;
    if (p.is_plain) {
        sign = u->alpha.re < 0.0 ? -1 : 1;
        p.alpha.re = fabs(u->alpha.re);
        p.shift = ilogb(p.alpha.re);
    }
    int left_sign = is_left_smaller ? sign : 1, right_sign = is_left_smaller ? 1 : sign;
    int is_real = u->type.components == 1;
    if (is_real && left_sign == 1)
        p.left = view_of(u->type, &u->a);
    else
        p.left = embedded_left(u->type, u->m, u->k, &u->a, left_sign);
    if (is_real && right_sign == 1)
        p.right = view_of(u->type, &u->b);
    else
        p.right = embedded_right(u->type, u->k, u->n, &u->b, right_sign);
    p.imaginary_left = p.left;
    if (u->imaginary_a)
        p.imaginary_left = embedded_left(u->type, u->m, u->k, u->imaginary_a, left_sign);

    ptrdiff_t terms = u->k * u->type.components;
    if (!p.is_plain)
        p.has_all_bits = are_large(&p.left, u->m, terms)
                      && are_large(&p.imaginary_left, u->m, terms)
                      && are_large(&p.right, terms, u->n * u->type.components);
    return p;
}

static void free_copies(const Problem *p)
{
    if (p->imaginary_left.data != p->left.data)
        free(p->imaginary_left.data);
    if (p->left.data != p->u->a.data)
        free(p->left.data);
    if (p->right.data != p->u->b.data)
        free(p->right.data);
}

/* C := alpha A B + beta C. As in the reference BLAS A and B are not read for alpha = 0,
 * C is not for beta = 0, and nothing is written where nothing changes. */
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
    if (to_do.k > INT32_MAX / u->type.components) {
        fprintf(stderr, "hifigemm: sums of %td products; at most 2^31 - 1 are served\n",
                u->k * u->type.components);
        abort();
    }
    pthread_once(&once, choose_kernels);
    int has_shape = u->a_shape != FULL || u->c_shape != FULL || u->imaginary_a;
    if (u->n > u->m && !has_shape)
        to_do = mirrored(&to_do);

    /* Threads by the work, as far as there are rows for them. */
    int components = u->type.components;
    double terms = (double)u->m * (double)u->n * (double)to_do.k * components * components;
    double most = fmin(terms / SHARE, (double)to_do.m / FEWEST_ROWS);
    int threads = 1;
    if (most >= 2.0) {
        int limit = thread_limit();
        threads = most < limit ? (int)most : limit;
    }
    Problem p = problem_of(&to_do);
    write_side_by_side(&p, threads);
    free_copies(&p);
}
