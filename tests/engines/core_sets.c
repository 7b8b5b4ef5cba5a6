/* Products of the compiled core by each set of instructions of a machine, bit for bit,
 * without Python: for processors that are emulated. Values that are rounded once are
 * unique, so the last line is the same on every machine.
 *
 *   gcc -std=c11 -O3 -ffp-contract=off -Icore tests/engines/core_sets.c \
 *       core/kernels.c core/words.c core/accumulator.c core/product.c -lm -o core_sets
 *
 * With aarch64-linux-gnu-gcc -static it runs under qemu-aarch64.
 */

#include "core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CASES = 4000, MOST = 40, TERMS = 1200 };

static uint64_t state = 1;

/* The next 64 bits of a linear congruential generator, the high ones mixed down. */
static uint64_t bits(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return state ^ state >> 29;
}

static int below_(int limit)
{
    return (int)((bits() >> 20) % (uint64_t)limit);
}

/* A number with some bits and an exponent within a span, of a family of its own. */
static double number(int family, int is_single)
{
    int spans[] = {0, 2, 40, 300, 2000};
    int span = spans[family % 5];
    int length = 1 + below_(is_single ? 24 : 53);
    double x = (double)(bits() >> (64 - length));
    int exponent = -length + (span ? below_(span) - span / 2 : 0);
    if (is_single)
        exponent = exponent < -140 ? -140 : exponent > 100 ? 100 : exponent;
    x = ldexp(x, exponent);
    x = bits() & 1024 ? -x : x;
    return family >= 10 && below_(3) == 0 ? 0.0 : x;
}

static void fill(void *to, ptrdiff_t count, int family, int is_single)
{
    for (ptrdiff_t i = 0; i < count; i++)
        if (is_single)
            ((float *)to)[i] = (float)number(family, 1);
        else
            ((double *)to)[i] = number(family, 0);
}

/* The second half of the terms takes the first one away again, all but its end. */
static void cancel(double *a, double *b, ptrdiff_t m, ptrdiff_t k, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t h = 0; h + 1 < k / 2; h++)
            a[i * k + k / 2 + h] = a[i * k + h];
    for (ptrdiff_t h = 0; h + 1 < k / 2; h++)
        for (ptrdiff_t j = 0; j < n; j++)
            b[(k / 2 + h) * n + j] = -b[h * n + j];
}

static View view(void *data, ptrdiff_t columns, int is_single)
{
    ptrdiff_t size = is_single ? sizeof(float) : sizeof(double);
    return (View){data, 0, columns * size, size, is_single};
}

int main(void)
{
    size_t most = (size_t)MOST * TERMS * sizeof(double);
    double *a = malloc(most), *b = malloc(most), *c = malloc(most);
    double *results[2][2];
    for (int i = 0; i < 4; i++)
        results[i / 2][i % 2] = malloc(MOST * MOST * sizeof(double));
    const Kernels *const *sets = kernels_here();
    uint64_t hash = UINT64_C(14695981039346656037);
    long entries = 0, different = 0;

    for (int number_of_case = 0; number_of_case < CASES; number_of_case++) {
        int family = below_(20), is_single = below_(4) == 0;
        ptrdiff_t m = 1 + below_(below_(4) ? 8 : MOST), n = 1 + below_(below_(4) ? 8 : MOST);
        ptrdiff_t k = 1 + below_(below_(8) ? 60 : TERMS);
        fill(a, m * k, family, is_single);
        fill(b, k * n, family, is_single);
        fill(c, m * n, family, is_single);
        if (!is_single && family % 2)
            cancel(a, b, m, k, n);
        Product p = {.batch = 1, .m = m, .n = n, .k = k, .kind = (Kind)below_(3)};
        p.a = view(a, k, is_single);
        p.b = view(b, n, is_single);
        if (below_(3) == 0)
            p.c = view(c, n, is_single);
        p.shift = below_(5) ? 0 : below_(200) - 100;
        if (p.kind == NEAREST && p.shift == 0 && below_(2))
            p.factor = number(family, 0);

        size_t size = (size_t)(m * n) * (is_single ? sizeof(float) : sizeof(double));
        for (int set = 0; sets[set]; set++) {
            double **values = results[set != 0];
            memset(values[1], 0, size);
            p.first = view(values[0], n, is_single);
            p.second = view(values[1], n, is_single);
            Watch watch = {INT64_MAX, NULL}; /* never asked */
            if (multiply(&p, sets[set], &watch) != DONE)
                return 2;
            for (int word = 0; word < 2 && set; word++)
                if (memcmp(results[0][word], values[word], size) != 0) {
                    printf("case %d: %s differs from %s\n", number_of_case, sets[set]->name,
                           sets[0]->name);
                    different++;
                }
        }
        for (int word = 0; word < 2; word++)
            for (size_t i = 0; i < size; i++)
                hash = (hash ^ ((unsigned char *)results[0][word])[i]) * UINT64_C(1099511628211);
        entries += (long)(m * n);
    }
    for (int set = 0; sets[set]; set++)
        printf("%s ", sets[set]->name);
    printf("\n%ld entries, %ld results differ, hash %016llx\n", entries, different,
           (unsigned long long)hash);
    return different != 0;
}
