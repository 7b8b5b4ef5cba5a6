/* The CBLAS interface for one width of integers, which interfaces.c sets: INT, NAME,
 * SCIPY_NAME and HANDLER_NAME. An order of the entries comes first, so arguments have
 * numbers one higher than in Fortran. */

static void NAME(report)(int order, const char *name, int wrong)
{
    if (HANDLER_NAME)
        HANDLER_NAME(order == ROW_MAJOR ? exchanged(name, wrong) : wrong, name, "");
    else
        end_program(name, wrong);
}
#define REPORT(name, wrong) NAME(report)(order, name, wrong)

/* ---- level 1 -------------------------------------------------------------------- */

#define DOT(f, result, type, result_type) \
    EXPORT result NAME(f)(INT n, const void *x, INT incx, const void *y, INT incy) \
    { \
        RETURNED(#f, result, dot(type, result_type, 0, NULL, n, x, incx, y, incy, \
                &value_)); \
    } \
    ALIAS(SCIPY_NAME(f), NAME(f));
DOT(sdot, float, SINGLE, SINGLE)
DOT(ddot, double, DOUBLE, DOUBLE)
DOT(dsdot, double, SINGLE, DOUBLE)

/* A sum of products and a number, rounded once. */
EXPORT float NAME(sdsdot)(INT n, float b, const void *x, INT incx, const void *y, INT incy)
{
    RETURNED("sdsdot", float, dot(SINGLE, SINGLE, 0, &b, n, x, incx, y, incy, &value_));
}
ALIAS(SCIPY_NAME(sdsdot), NAME(sdsdot));

#define COMPLEX_DOT(f, p, is_conjugate) \
    EXPORT void NAME(f)(INT n, const void *x, INT incx, const void *y, INT incy, \
            void *result) \
    { \
        UNCHECKED(#f, dot(TYPE_##p, TYPE_##p, is_conjugate, NULL, n, x, incx, y, incy, \
                result)); \
    } \
    ALIAS(SCIPY_NAME(f), NAME(f));
COMPLEX_DOT(cdotu_sub, c, 0)
COMPLEX_DOT(cdotc_sub, c, 1)
COMPLEX_DOT(zdotu_sub, z, 0)
COMPLEX_DOT(zdotc_sub, z, 1)

#define REDUCTION(f, p, routine) \
    EXPORT REAL_##p NAME(f)(INT n, const void *x, INT incx) \
    { \
        RETURNED(#f, REAL_##p, routine(TYPE_##p, n, x, incx, &value_)); \
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

/* The index of an entry, from 0 on; also 0 if there is no entry. */
#define IAMAX(p) \
    EXPORT size_t NAME(i##p##amax)(INT n, const void *x, INT incx) \
    { \
        int64_t number; \
        UNCHECKED("i" #p "amax", number = first_largest(TYPE_##p, n, x, incx)); \
        return number > 0 ? (size_t)number - 1 : 0; \
    } \
    ALIAS(SCIPY_NAME(i##p##amax), NAME(i##p##amax));
IAMAX(s)
IAMAX(d)
IAMAX(c)
IAMAX(z)

/* ---- level 2 -------------------------------------------------------------------- */

#define GEMV(p) \
    EXPORT void NAME(p##gemv)(int order, int trans, INT m, INT n, PASSED_##p alpha, \
            const void *a, INT lda, const void *x, INT incx, PASSED_##p beta, void *y, \
            INT incy) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "gemv", gemv(TYPE_##p, order_of(order), \
                trans_of(trans), m, n, ADDRESS_##p(alpha), a, lda, x, incx, \
                ADDRESS_##p(beta), y, incy)); \
    } \
    ALIAS(SCIPY_NAME(p##gemv), NAME(p##gemv));
GEMV(s)
GEMV(d)
GEMV(c)
GEMV(z)

#define SYMV(p) \
    EXPORT void NAME(p##symv)(int order, int uplo, INT n, PASSED_##p alpha, \
            const void *a, INT lda, const void *x, INT incx, PASSED_##p beta, void *y, \
            INT incy) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "symv", symv(TYPE_##p, order_of(order), SYMMETRIC, \
                uplo_of(uplo), n, ADDRESS_##p(alpha), a, lda, x, incx, ADDRESS_##p(beta), \
                y, incy)); \
    } \
    ALIAS(SCIPY_NAME(p##symv), NAME(p##symv));
SYMV(s)
SYMV(d)

#define HEMV(p) \
    EXPORT void NAME(p##hemv)(int order, int uplo, INT n, PASSED_##p alpha, \
            const void *a, INT lda, const void *x, INT incx, PASSED_##p beta, void *y, \
            INT incy) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "hemv", symv(TYPE_##p, order_of(order), HERMITIAN, \
                uplo_of(uplo), n, ADDRESS_##p(alpha), a, lda, x, incx, ADDRESS_##p(beta), \
                y, incy)); \
    } \
    ALIAS(SCIPY_NAME(p##hemv), NAME(p##hemv));
HEMV(c)
HEMV(z)

#define TRMV(p) \
    EXPORT void NAME(p##trmv)(int order, int uplo, int trans, int diag, INT n, \
            const void *a, INT lda, void *x, INT incx) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "trmv", trmv(TYPE_##p, order_of(order), \
                uplo_of(uplo), trans_of(trans), diag_of(diag), n, a, lda, x, incx)); \
    } \
    ALIAS(SCIPY_NAME(p##trmv), NAME(p##trmv));
TRMV(s)
TRMV(d)
TRMV(c)
TRMV(z)

#define GER(p) \
    EXPORT void NAME(p##ger)(int order, INT m, INT n, PASSED_##p alpha, const void *x, \
            INT incx, const void *y, INT incy, void *a, INT lda) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "ger", ger(TYPE_##p, order_of(order), 0, m, n, \
                ADDRESS_##p(alpha), x, incx, y, incy, a, lda)); \
    } \
    ALIAS(SCIPY_NAME(p##ger), NAME(p##ger));
GER(s)
GER(d)

#define GERU(p) \
    EXPORT void NAME(p##geru)(int order, INT m, INT n, PASSED_##p alpha, const void *x, \
            INT incx, const void *y, INT incy, void *a, INT lda) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "geru", ger(TYPE_##p, order_of(order), 0, m, n, \
                ADDRESS_##p(alpha), x, incx, y, incy, a, lda)); \
    } \
    ALIAS(SCIPY_NAME(p##geru), NAME(p##geru));
GERU(c)
GERU(z)

#define GERC(p) \
    EXPORT void NAME(p##gerc)(int order, INT m, INT n, PASSED_##p alpha, const void *x, \
            INT incx, const void *y, INT incy, void *a, INT lda) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "gerc", ger(TYPE_##p, order_of(order), 1, m, n, \
                ADDRESS_##p(alpha), x, incx, y, incy, a, lda)); \
    } \
    ALIAS(SCIPY_NAME(p##gerc), NAME(p##gerc));
GERC(c)
GERC(z)

/* ---- level 3 -------------------------------------------------------------------- */

#define GEMM(p) \
    EXPORT void NAME(p##gemm)(int order, int transa, int transb, INT m, INT n, INT k, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "gemm", gemm(TYPE_##p, order_of(order), \
                trans_of(transa), trans_of(transb), m, n, k, ADDRESS_##p(alpha), a, lda, \
                b, ldb, ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##gemm), NAME(p##gemm));
GEMM(s)
GEMM(d)
GEMM(c)
GEMM(z)

#define GEMMT(p) \
    EXPORT void NAME(p##gemmt)(int order, int uplo, int transa, int transb, INT n, INT k, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "gemmt", gemmt(TYPE_##p, order_of(order), \
                uplo_of(uplo), trans_of(transa), trans_of(transb), n, k, \
                ADDRESS_##p(alpha), a, lda, b, ldb, ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##gemmt), NAME(p##gemmt));
GEMMT(s)
GEMMT(d)
GEMMT(c)
GEMMT(z)

#define SYMM(p) \
    EXPORT void NAME(p##symm)(int order, int side, int uplo, INT m, INT n, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "symm", symm(TYPE_##p, order_of(order), SYMMETRIC, \
                side_of(side), uplo_of(uplo), m, n, ADDRESS_##p(alpha), a, lda, b, ldb, \
                ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##symm), NAME(p##symm));
SYMM(s)
SYMM(d)
SYMM(c)
SYMM(z)

#define HEMM(p) \
    EXPORT void NAME(p##hemm)(int order, int side, int uplo, INT m, INT n, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "hemm", symm(TYPE_##p, order_of(order), HERMITIAN, \
                side_of(side), uplo_of(uplo), m, n, ADDRESS_##p(alpha), a, lda, b, ldb, \
                ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##hemm), NAME(p##hemm));
HEMM(c)
HEMM(z)

#define SYRK(p) \
    EXPORT void NAME(p##syrk)(int order, int uplo, int trans, INT n, INT k, \
            PASSED_##p alpha, const void *a, INT lda, PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "syrk", syrk(TYPE_##p, order_of(order), SYMMETRIC, \
                uplo_of(uplo), trans_of(trans), n, k, ADDRESS_##p(alpha), a, lda, \
                ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##syrk), NAME(p##syrk));
SYRK(s)
SYRK(d)
SYRK(c)
SYRK(z)

#define HERK(p) \
    EXPORT void NAME(p##herk)(int order, int uplo, int trans, INT n, INT k, \
            REAL_##p alpha, const void *a, INT lda, REAL_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "herk", syrk(TYPE_##p, order_of(order), HERMITIAN, \
                uplo_of(uplo), trans_of(trans), n, k, &alpha, a, lda, &beta, c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##herk), NAME(p##herk));
HERK(c)
HERK(z)

#define SYR2K(p) \
    EXPORT void NAME(p##syr2k)(int order, int uplo, int trans, INT n, INT k, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            PASSED_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "syr2k", syr2k(TYPE_##p, order_of(order), SYMMETRIC, \
                uplo_of(uplo), trans_of(trans), n, k, ADDRESS_##p(alpha), a, lda, b, ldb, \
                ADDRESS_##p(beta), c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##syr2k), NAME(p##syr2k));
SYR2K(s)
SYR2K(d)
SYR2K(c)
SYR2K(z)

#define HER2K(p) \
    EXPORT void NAME(p##her2k)(int order, int uplo, int trans, INT n, INT k, \
            PASSED_##p alpha, const void *a, INT lda, const void *b, INT ldb, \
            REAL_##p beta, void *c, INT ldc) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "her2k", syr2k(TYPE_##p, order_of(order), HERMITIAN, \
                uplo_of(uplo), trans_of(trans), n, k, ADDRESS_##p(alpha), a, lda, b, ldb, \
                &beta, c, ldc)); \
    } \
    ALIAS(SCIPY_NAME(p##her2k), NAME(p##her2k));
HER2K(c)
HER2K(z)

#define TRMM(p) \
    EXPORT void NAME(p##trmm)(int order, int side, int uplo, int transa, int diag, INT m, \
            INT n, PASSED_##p alpha, const void *a, INT lda, void *b, INT ldb) \
    { \
        CHECKED_BY_ORDER("cblas_" #p "trmm", trmm(TYPE_##p, order_of(order), \
                side_of(side), uplo_of(uplo), trans_of(transa), diag_of(diag), m, n, \
                ADDRESS_##p(alpha), a, lda, b, ldb)); \
    } \
    ALIAS(SCIPY_NAME(p##trmm), NAME(p##trmm));
TRMM(s)
TRMM(d)
TRMM(c)
TRMM(z)

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
#undef SCIPY_NAME
#undef NAME
#undef INT
