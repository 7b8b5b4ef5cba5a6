/* Counts of calls, for `hifigemm run --blas correct --summary`.
 *
 * HIFIGEMM_BLAS_SUMMARY names a file of one table, zeros at first, which every process of the
 * program maps. So no process has to write anything when it ends, and the table also has the
 * calls of a killed process. src/hifigemm/cli/blas_summary.py reads it. */

#define _GNU_SOURCE
#include "blas.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    ROWS = 128,         /* more than the number of routines and types */
    MOST_TRIES = 10000, /* attempts to take a busy row; then its process counts as killed */
};

/* Calls of a routine, such as "dgemm", and the sizes of the call with the most products. */
typedef struct {
    _Atomic uint64_t name;
    atomic_int is_in_use;
    uint64_t calls, nanoseconds, products;
    int64_t m, n, k;
} Row;

struct Tally {
    Row rows[ROWS];
};

struct Tally *tally;

/* Sizes of the call that a thread is in, and its products of real numbers. */
static _Thread_local struct {
    int64_t m, n, k;
    double products;
} sizes;

__attribute__((constructor)) static void map_tally(void)
{
    const char *path = getenv("HIFIGEMM_BLAS_SUMMARY");
    struct stat status;
    int file = path && *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    if (fstat(file, &status) == 0 && status.st_size == (off_t)sizeof *tally) {
        void *memory = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        tally = memory == MAP_FAILED ? NULL : memory;
    }
    close(file);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* "dgemm" of "DGEMM ", "cblas_dgemm" and the like, as eight letters in a number. */
static uint64_t name_of(const char *text)
{
    char letters[sizeof(uint64_t)] = {0};
    uint64_t name;
    if (strncmp(text, "cblas_", 6) == 0)
        text += 6;
    for (size_t i = 0; i < sizeof letters && text[i] && text[i] != ' ' && text[i] != '_'; i++)
        letters[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] - 'A' + 'a' : text[i]);
    memcpy(&name, letters, sizeof name);
    return name;
}

/* The row of a name, a new one if there is none; NULL if the table is full. */
static Row *row_of(uint64_t name)
{
    for (Row *row = tally->rows; row < tally->rows + ROWS; row++) {
        uint64_t present = 0;
        if (atomic_compare_exchange_strong(&row->name, &present, name) || present == name)
            return row;
    }
    return NULL;
}

int64_t start_call(void)
{
    memset(&sizes, 0, sizeof sizes);
    return now();
}

void note_sizes(int64_t m, int64_t n, int64_t k, double products)
{
    sizes.m = m;
    sizes.n = n;
    sizes.k = k;
    sizes.products = products;
}

void count_call(const char *name, int64_t start)
{
    int64_t nanoseconds = now() - start;
    Row *row = row_of(name_of(name));
    if (!row)
        return;
    for (int tries = 0; atomic_exchange(&row->is_in_use, 1) && tries < MOST_TRIES; tries++)
        sched_yield();
    row->calls++;
    row->nanoseconds += (uint64_t)nanoseconds;
    row->products += (uint64_t)sizes.products;
    double most = (double)row->m * (double)row->n * (double)row->k;
    if ((double)sizes.m * (double)sizes.n * (double)sizes.k >= most) {
        row->m = sizes.m;
        row->n = sizes.n;
        row->k = sizes.k;
    }
    atomic_store(&row->is_in_use, 0);
}
