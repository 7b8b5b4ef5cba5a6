/* The names of the routines, in Fortran and in C, for integers of 32 and of 64 bits:
 *
 *   dgemm_  dgemm_64_  cblas_dgemm  cblas_dgemm64_, and each with the prefix scipy_, as the
 *   wheels of NumPy and SciPy have it
 *
 * A name that is not fully implemented is missing here, so callers keep their own library for
 * it. Nothing in this library calls one of these names. */

#include "blas.h"
#include "../environment.h"

#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)

/* A second name of a function. */
#define ALIAS(alias_name, name) \
    EXPORT extern __typeof__(name) alias_name __attribute__((alias(STRING(name))))

/* Run a routine in arithmetic as the core needs it, and report a wrong argument. */
#define CHECKED(name, routine) \
    do { \
        Environment environment_ = enter_ieee(); \
        int64_t start_ = tally ? start_call() : 0; \
        int wrong_ = routine; \
        if (tally && !wrong_) \
            count_call(name, start_); \
        leave_ieee(environment_); \
        if (wrong_) \
            REPORT(name, wrong_); \
    } while (0)

#define CHECKED_BY_ORDER(name, routine) \
    do { \
        if (!is_order(order)) \
            REPORT(name, 1); \
        else \
            CHECKED(name, number_in_cblas(routine)); \
    } while (0)

/* Run a routine whose arguments cannot be wrong. */
#define UNCHECKED(name, routine) \
    do { \
        Environment environment_ = enter_ieee(); \
        int64_t start_ = tally ? start_call() : 0; \
        routine; \
        if (tally) \
            count_call(name, start_); \
        leave_ieee(environment_); \
    } while (0)

/* Return the value that a routine writes to its last argument, `value_`. */
#define RETURNED(name, type, routine) \
    type value_; \
    UNCHECKED(name, routine); \
    return value_

/* ---- wrong arguments ------------------------------------------------------------ */

/* As the reference BLAS does if no xerbla is defined. */
static void end_program(const char *name, int wrong)
{
    fprintf(stderr, " ** On entry to %s parameter number %2d had an illegal value\n", name,
            wrong);
    exit(EXIT_FAILURE);
}

/* Handlers that a program or one of its libraries may define. This library defines none:
 * in front of other libraries it would replace the handlers of LAPACK. */
#define HANDLER extern __attribute__((weak, visibility("default")))
HANDLER void xerbla_(const char *name, int32_t *wrong, size_t length);
HANDLER void xerbla_64_(const char *name, int64_t *wrong, size_t length);
HANDLER void cblas_xerbla(int32_t wrong, const char *name, const char *form, ...);
HANDLER void cblas_xerbla64_(int64_t wrong, const char *name, const char *form, ...);

/* ---- arguments ------------------------------------------------------------------ */

/* Names of types for macros, and scalars as CBLAS passes them: by value, or by address. A
 * complex result is a value, as in gfortran. */
#define TYPE_s SINGLE
#define TYPE_d DOUBLE
#define TYPE_c SINGLE_COMPLEX
#define TYPE_z DOUBLE_COMPLEX
#define REAL_s float
#define REAL_d double
#define REAL_c float
#define REAL_z double
#define COMPLEX_c float _Complex
#define COMPLEX_z double _Complex
#define PASSED_s float
#define PASSED_d double
#define PASSED_c const void *
#define PASSED_z const void *
#define ADDRESS_s(x) &x
#define ADDRESS_d(x) &x
#define ADDRESS_c(x) x
#define ADDRESS_z(x) x

/* The letter of an enumerator of CBLAS, or none. */
static char letter(int flag, int first, const char *letters)
{
    int index = flag - first;
    return index >= 0 && index < (int)strlen(letters) ? letters[index] : '\0';
}

static inline char trans_of(int flag) { return letter(flag, 111, "NTC"); }
static inline char uplo_of(int flag) { return letter(flag, 121, "UL"); }
static inline char diag_of(int flag) { return letter(flag, 131, "NU"); }
static inline char side_of(int flag) { return letter(flag, 141, "LR"); }

enum { ROW_MAJOR = 101, COLUMN_MAJOR = 102 };

static inline int is_order(int flag) { return flag == ROW_MAJOR || flag == COLUMN_MAJOR; }
static inline Order order_of(int flag) { return flag == ROW_MAJOR ? BY_ROWS : BY_COLUMNS; }

/* The argument number that cblas_xerbla gets for row-major matrices. The reference BLAS then
 * calls Fortran with sizes and operands exchanged, and handlers exchange the numbers back. */
static int exchanged(const char *name, int number)
{
    static const struct {
        const char *routine;
        int pairs[2][2];
    } routines[] = {
        {"gemm", {{4, 5}, {9, 11}}}, {"symm", {{4, 5}}},         {"hemm", {{4, 5}}},
        {"trmm", {{6, 7}}},          {"gemv", {{3, 4}}},         {"ger", {{2, 3}, {6, 8}}},
        {"geru", {{2, 3}, {6, 8}}},  {"gerc", {{2, 3}, {6, 8}}},
    };
    const char *routine = name + strlen("cblas_d");
    for (size_t i = 0; i < sizeof routines / sizeof *routines; i++) {
        if (strcmp(routine, routines[i].routine) != 0)
            continue;
        for (int pair = 0; pair < 2; pair++) {
            const int *numbers = routines[i].pairs[pair];
            if (number == numbers[0])
                return numbers[1];
            if (number == numbers[1])
                return numbers[0];
        }
    }
    return number;
}

/* Numbers of arguments after the order, which comes first; 0 stays. */
static inline int number_in_cblas(int wrong)
{
    return wrong ? wrong + 1 : 0;
}

/* ---- Fortran -------------------------------------------------------------------- */

#define INT int32_t
#define NAME(f) f##_
#define SCIPY_NAME(f) scipy_##f##_
#define HANDLER_NAME xerbla_
/* Not cdotu_, cdotc_, zdotu_ and zdotc_: programs for MKL, such as PyTorch, pass the address
 * of the result there, and nothing distinguishes them from programs for gfortran. */
#define COMPLEX_DOT_ALIAS(alias_name, name)
#include "fortran.h"

#define INT int64_t
#define NAME(f) f##_64_
#define SCIPY_NAME(f) scipy_##f##_64_
#define HANDLER_NAME xerbla_64_
#define COMPLEX_DOT_ALIAS ALIAS
#include "fortran.h"

/* ---- CBLAS ---------------------------------------------------------------------- */

#define INT int32_t
#define NAME(f) cblas_##f
#define SCIPY_NAME(f) scipy_cblas_##f
#define HANDLER_NAME cblas_xerbla
#include "cblas.h"

#define INT int64_t
#define NAME(f) cblas_##f##64_
#define SCIPY_NAME(f) scipy_cblas_##f##64_
#define HANDLER_NAME cblas_xerbla64_
#include "cblas.h"
