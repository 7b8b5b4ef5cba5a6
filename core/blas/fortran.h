/* The Fortran interface for one width of integers, which interfaces.c sets: INT, NAME,
 * SCIPY_NAME, HANDLER_NAME and COMPLEX_DOT_ALIAS. All arguments are addresses. The lengths of
 * strings, after the last argument, are not read. */

static void NAME(report)(const char *name, int wrong)
{
    INT number = wrong;
    if (HANDLER_NAME)
        HANDLER_NAME(name, &number, strlen(name));
    else
        end_program(name, wrong);
}
#define REPORT NAME(report)

/* ---- level 1 -------------------------------------------------------------------- */

#define DOT(f, result, type, result_type) \
    EXPORT result NAME(f)(const INT *n, const void *x, const INT *incx, const void *y, \
            const INT *incy) \
    { \
        RETURNED(#f, result, dot(type, result_type, 0, NULL, *n, x, *incx, y, *incy, \
                &value_)); \
    } \
    ALIAS(SCIPY_NAME(f), NAME(f));
DOT(sdot, float, SINGLE, SINGLE)
DOT(ddot, double, DOUBLE, DOUBLE)
DOT(dsdot, double, SINGLE, DOUBLE)

/* A sum of products and a number, rounded once. */
EXPORT float NAME(sdsdot)(const INT *n, const float *b, const void *x, const INT *incx,
                          const void *y, const INT *incy)
{
    RETURNED("sdsdot", float, dot(SINGLE, SINGLE, 0, b, *n, x, *incx, y, *incy, &value_));
}
ALIAS(SCIPY_NAME(sdsdot), NAME(sdsdot));

/* A complex result comes as a value. */
#define COMPLEX_DOT(f, p, is_conjugate) \
    EXPORT COMPLEX_##p SCIPY_NAME(f)(const INT *n, const void *x, const INT *incx, \
            const void *y, const INT *incy) \
    { \
        RETURNED(#f, COMPLEX_##p, dot(TYPE_##p, TYPE_##p, is_conjugate, NULL, *n, x, \
                *incx, y, *incy, &value_)); \
    } \
    COMPLEX_DOT_ALIAS(NAME(f), SCIPY_NAME(f));
COMPLEX_DOT(cdotu, c, 0)
COMPLEX_DOT(cdotc, c, 1)
COMPLEX_DOT(zdotu, z, 0)
COMPLEX_DOT(zdotc, z, 1)

#define REDUCTION(f, p, routine) \
    EXPORT REAL_##p NAME(f)(const INT *n, const void *x, const INT *incx) \
    { \
        RETURNED(#f, REAL_##p, routine(TYPE_##p, *n, x, *incx, &value_)); \
    } \
    ALIAS(SCIPY_NAME(f), NAME(f));
REDUCTION(sasum, s, sum_of_magnitudes)
REDUCTION(dasum, d, sum_of_magnitudes)
REDUCTION(scasum, c, sum_of_magnitudes)
REDUCTION(dzasum, z, sum_of_magnitudes)
REDUCTION(snrm2, s, norm)
REDUCTION(dnrm2, d, norm)
REDUCTION(scnrm2, c, norm)
REDUCTION(dznrm2, z, norm)

/* The number of an entry, from 1 on. */
#define IAMAX(p) \
    EXPORT INT NAME(i##p##amax)(const INT *n, const void *x, const INT *incx) \
    { \
        int64_t number; \
        UNCHECKED("i" #p "amax", number = first_largest(TYPE_##p, *n, x, *incx)); \
        return (INT)number; \
    } \
    ALIAS(SCIPY_NAME(i##p##amax), NAME(i##p##amax));
IAMAX(s)
IAMAX(d)
IAMAX(c)
IAMAX(z)

/* ---- level 2 -------------------------------------------------------------------- */

#define GEMV(p, P) \
    EXPORT void NAME(p##gemv)(const char *trans, const INT *m, const INT *n, \
            const void *alpha, const void *a, const INT *lda, const void *x, \
            const INT *incx, const void *beta, void *y, const INT *incy) \
    { \
        CHECKED(P "GEMV ", gemv(TYPE_##p, BY_COLUMNS, *trans, *m, *n, alpha, a, *lda, x, \
                *incx, beta, y, *incy)); \
    } \
    ALIAS(SCIPY_NAME(p##gemv), NAME(p##gemv));
GEMV(s, "S")
GEMV(d, "D")
GEMV(c, "C")
GEMV(z, "Z")

#define SYMV(p, P) \
    EXPORT void NAME(p##symv)(const char *uplo, const INT *n, const void *alpha, \
            const void *a, const INT *lda, const void *x, const INT *incx, \
            const void *beta, void *y, const INT *incy) \
    { \
        CHECKED(P "SYMV ", symv(TYPE_##p, BY_COLUMNS, SYMMETRIC, *uplo, *n, alpha, a, \
                *lda, x, *incx, beta, y, *incy)); \
    } \
    ALIAS(SCIPY_NAME(p##symv), NAME(p##symv));
SYMV(s, "S")
SYMV(d, "D")
SYMV(c, "C")
SYMV(z, "Z")

#define HEMV(p, P) \
    EXPORT void NAME(p##hemv)(const char *uplo, const INT *n, const void *alpha, \
            const void *a, const INT *lda, const void *x, const INT *incx, \
            const void *beta, void *y, const INT *incy) \
    { \
        CHECKED(P "HEMV ", symv(TYPE_##p, BY_COLUMNS, HERMITIAN, *uplo, *n, alpha, a, \
                *lda, x, *incx, beta, y, *incy)); \
    } \
    ALIAS(SCIPY_NAME(p##hemv), NAME(p##hemv));
HEMV(c, "C")
HEMV(z, "Z")

#define TRMV(p, P) \
    EXPORT void NAME(p##trmv)(const char *uplo, const char *trans, const char *diag, \
            const INT *n, const void *a, const INT *lda, void *x, const INT *incx) \
    { \
        CHECKED(P "TRMV ", trmv(TYPE_##p, BY_COLUMNS, *uplo, *trans, *diag, *n, a, *lda, \
                x, *incx)); \
    } \
    ALIAS(SCIPY_NAME(p##trmv), NAME(p##trmv));
TRMV(s, "S")
TRMV(d, "D")
TRMV(c, "C")
TRMV(z, "Z")

#define GER(p, P) \
    EXPORT void NAME(p##ger)(const INT *m, const INT *n, const void *alpha, \
            const void *x, const INT *incx, const void *y, const INT *incy, void *a, \
            const INT *lda) \
    { \
        CHECKED(P "GER  ", ger(TYPE_##p, BY_COLUMNS, 0, *m, *n, alpha, x, *incx, y, \
                *incy, a, *lda)); \
    } \
    ALIAS(SCIPY_NAME(p##ger), NAME(p##ger));
GER(s, "S")
GER(d, "D")

#define GERU(p, P) \
    EXPORT void NAME(p##geru)(const INT *m, const INT *n, const void *alpha, \
            const void *x, const INT *incx, const void *y, const INT *incy, void *a, \
            const INT *lda) \
    { \
        CHECKED(P "GERU ", ger(TYPE_##p, BY_COLUMNS, 0, *m, *n, alpha, x, *incx, y, \
                *incy, a, *lda)); \
    } \
    ALIAS(SCIPY_NAME(p##geru), NAME(p##geru));
GERU(c, "C")
GERU(z, "Z")

#define GERC(p, P) \
    EXPORT void NAME(p##gerc)(const INT *m, const INT *n, const void *alpha, \
            const void *x, const INT *incx, const void *y, const INT *incy, void *a, \
            const INT *lda) \
    { \
        CHECKED(P "GERC ", ger(TYPE_##p, BY_COLUMNS, 1, *m, *n, alpha, x, *incx, y, \
                *incy, a, *lda)); \
    } \
    ALIAS(SCIPY_NAME(p##gerc), NAME(p##gerc));
GERC(c, "C")
GERC(z, "Z")

/* ---- level 3 -------------------------------------------------------------------- */

#define GEMM(p, P) \
    EXPORT void NAME(p##gemm)(const char *transa, const char *transb, const INT *m, \
            const INT *n, const INT *k, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "GEMM ", gemm(TYPE_##p, BY_COLUMNS, *transa, *transb, *m, *n, *k, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##gemm), NAME(p##gemm));
GEMM(s, "S")
GEMM(d, "D")
GEMM(c, "C")
GEMM(z, "Z")

#define GEMMT(p, P) \
    EXPORT void NAME(p##gemmt)(const char *uplo, const char *transa, const char *transb, \
            const INT *n, const INT *k, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "GEMMT", gemmt(TYPE_##p, BY_COLUMNS, *uplo, *transa, *transb, *n, *k, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##gemmt), NAME(p##gemmt));
GEMMT(s, "S")
GEMMT(d, "D")
GEMMT(c, "C")
GEMMT(z, "Z")

#define SYMM(p, P) \
    EXPORT void NAME(p##symm)(const char *side, const char *uplo, const INT *m, \
            const INT *n, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "SYMM ", symm(TYPE_##p, BY_COLUMNS, SYMMETRIC, *side, *uplo, *m, *n, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##symm), NAME(p##symm));
SYMM(s, "S")
SYMM(d, "D")
SYMM(c, "C")
SYMM(z, "Z")

#define HEMM(p, P) \
    EXPORT void NAME(p##hemm)(const char *side, const char *uplo, const INT *m, \
            const INT *n, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "HEMM ", symm(TYPE_##p, BY_COLUMNS, HERMITIAN, *side, *uplo, *m, *n, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##hemm), NAME(p##hemm));
HEMM(c, "C")
HEMM(z, "Z")

#define SYRK(p, P) \
    EXPORT void NAME(p##syrk)(const char *uplo, const char *trans, const INT *n, \
            const INT *k, const void *alpha, const void *a, const INT *lda, \
            const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "SYRK ", syrk(TYPE_##p, BY_COLUMNS, SYMMETRIC, *uplo, *trans, *n, *k, \
                alpha, a, *lda, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##syrk), NAME(p##syrk));
SYRK(s, "S")
SYRK(d, "D")
SYRK(c, "C")
SYRK(z, "Z")

#define HERK(p, P) \
    EXPORT void NAME(p##herk)(const char *uplo, const char *trans, const INT *n, \
            const INT *k, const REAL_##p *alpha, const void *a, const INT *lda, \
            const REAL_##p *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "HERK ", syrk(TYPE_##p, BY_COLUMNS, HERMITIAN, *uplo, *trans, *n, *k, \
                alpha, a, *lda, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##herk), NAME(p##herk));
HERK(c, "C")
HERK(z, "Z")

#define SYR2K(p, P) \
    EXPORT void NAME(p##syr2k)(const char *uplo, const char *trans, const INT *n, \
            const INT *k, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const void *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "SYR2K", syr2k(TYPE_##p, BY_COLUMNS, SYMMETRIC, *uplo, *trans, *n, *k, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##syr2k), NAME(p##syr2k));
SYR2K(s, "S")
SYR2K(d, "D")
SYR2K(c, "C")
SYR2K(z, "Z")

#define HER2K(p, P) \
    EXPORT void NAME(p##her2k)(const char *uplo, const char *trans, const INT *n, \
            const INT *k, const void *alpha, const void *a, const INT *lda, \
            const void *b, const INT *ldb, const REAL_##p *beta, void *c, const INT *ldc) \
    { \
        CHECKED(P "HER2K", syr2k(TYPE_##p, BY_COLUMNS, HERMITIAN, *uplo, *trans, *n, *k, \
                alpha, a, *lda, b, *ldb, beta, c, *ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##her2k), NAME(p##her2k));
HER2K(c, "C")
HER2K(z, "Z")

#define TRMM(p, P) \
    EXPORT void NAME(p##trmm)(const char *side, const char *uplo, const char *transa, \
            const char *diag, const INT *m, const INT *n, const void *alpha, \
            const void *a, const INT *lda, void *b, const INT *ldb) \
    { \
        CHECKED(P "TRMM ", trmm(TYPE_##p, BY_COLUMNS, *side, *uplo, *transa, *diag, *m, \
                *n, alpha, a, *lda, b, *ldb)); \
    } \
    ALIAS(SCIPY_NAME(p##trmm), NAME(p##trmm));
TRMM(s, "S")
TRMM(d, "D")
TRMM(c, "C")
TRMM(z, "Z")

#undef DOT
#undef COMPLEX_DOT
#undef REDUCTION
#undef IAMAX
#undef GEMV
#undef SYMV
#undef HEMV
#undef TRMV
#undef GER
#undef GERU
#undef GERC
#undef GEMM
#undef GEMMT
#undef SYMM
#undef HEMM
#undef SYRK
#undef HERK
#undef SYR2K
#undef HER2K
#undef TRMM
#undef REPORT
#undef HANDLER_NAME
#undef COMPLEX_DOT_ALIAS
#undef SCIPY_NAME
#undef NAME
#undef INT
