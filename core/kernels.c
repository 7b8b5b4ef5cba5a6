/* kernels.h for each set of vector instructions, and the bounds of its sums. */

#include "core.h"

#include <math.h>

#if defined(__GNUC__) || defined(__clang__)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE inline
#endif
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 4")
#else
#define UNROLLED
#endif

/* Prefetch the next piece of a long vector while this one is added. */
#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) (void)(p)
#endif

/* Instructions beyond the target of this file: GCC and Clang allow them by target attributes
 * of functions, and MSVC always does. Other compilers have the portable set alone. */
#if defined(_M_X64) || defined(__clang__) && defined(__x86_64__) \
    || defined(__GNUC__) && defined(__x86_64__) && !defined(_WIN32)
/* (GCC for Windows does not align spilled wide registers.) */
#define HAS_X86 1
#include <immintrin.h>
#if defined(_MSC_VER)
#include <intrin.h>
#endif
#else
#define HAS_X86 0
#endif
#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_NEON 1
#include <arm_neon.h>
#else
#define HAS_NEON 0
#endif

#if HAS_X86

/* AVX2 and FMA: x86-64 processors from 2013 (Haswell) and 2015 (Excavator) on. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(f) f##_avx2
#define SET_NAME "avx2"
#define HAS_FMA 1
#define WIDTH 4
#define VECTOR __m256d
#define LOAD(p) _mm256_loadu_pd(p)
#define STORE(p, x) _mm256_storeu_pd(p, x)
#define ALL(x) _mm256_set1_pd(x)
#define ADD(x, y) _mm256_add_pd(x, y)
#define SUB(x, y) _mm256_sub_pd(x, y)
#define PLUS(x, y) _mm256_fmadd_pd(x, ALL(1.0), y)
#define MUL(x, y) _mm256_mul_pd(x, y)
#define ABS(x) _mm256_andnot_pd(ALL(-0.0), x)
#define FMA(x, y, z) _mm256_fmadd_pd(x, y, z)
#define FMS(x, y, z) _mm256_fmsub_pd(x, y, z)
#define UNLESS_BELOW(least, x) \
    _mm256_and_pd(x, _mm256_cmp_pd(ABS(x), ALL(least), _CMP_GE_OQ))
#define DIFFER(x, y) (unsigned)_mm256_movemask_pd(_mm256_cmp_pd(x, y, _CMP_NEQ_UQ))
#include "kernels.h"
#include "undefine.h"
#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif

/* AVX-512F: the same with twice the lanes. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
#define NAME(f) f##_avx512
#define SET_NAME "avx512"
#define HAS_FMA 1
#define WIDTH 8
#define VECTOR __m512d
#define LOAD(p) _mm512_loadu_pd(p)
#define STORE(p, x) _mm512_storeu_pd(p, x)
#define ALL(x) _mm512_set1_pd(x)
#define ADD(x, y) _mm512_add_pd(x, y)
#define SUB(x, y) _mm512_sub_pd(x, y)
#define PLUS(x, y) _mm512_add_pd(x, y)
#define MUL(x, y) _mm512_mul_pd(x, y)
#define ABS(x) _mm512_abs_pd(x)
#define FMA(x, y, z) _mm512_fmadd_pd(x, y, z)
#define FMS(x, y, z) _mm512_fmsub_pd(x, y, z)
#define UNLESS_BELOW(least, x) \
    _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(ABS(x), ALL(least), _CMP_GE_OQ), x)
#define DIFFER(x, y) (unsigned)_mm512_cmp_pd_mask(x, y, _CMP_NEQ_UQ)
#include "kernels.h"
#include "undefine.h"
#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif

#endif

#if HAS_NEON

/* Advanced SIMD, which every aarch64 processor has. */
#define NAME(f) f##_neon
#define SET_NAME "neon"
#define HAS_FMA 1
#define WIDTH 2
#define VECTOR float64x2_t
#define LOAD(p) vld1q_f64(p)
#define STORE(p, x) vst1q_f64(p, x)
#define ALL(x) vdupq_n_f64(x)
#define ADD(x, y) vaddq_f64(x, y)
#define SUB(x, y) vsubq_f64(x, y)
#define PLUS(x, y) vaddq_f64(x, y)
#define MUL(x, y) vmulq_f64(x, y)
#define ABS(x) vabsq_f64(x)
#define FMA(x, y, z) vfmaq_f64(z, x, y)
#define FMS(x, y, z) vnegq_f64(vfmsq_f64(z, x, y))
static ALWAYS_INLINE float64x2_t unless_below_neon(double least, float64x2_t x)
{
    uint64x2_t is_large = vcageq_f64(x, vdupq_n_f64(least));
    return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(x), is_large));
}
#define UNLESS_BELOW(least, x) unless_below_neon(least, x)
static ALWAYS_INLINE unsigned differ_neon(float64x2_t x, float64x2_t y)
{
    uint64x2_t equal = vceqq_f64(x, y);
    return (unsigned)((~vgetq_lane_u64(equal, 0) & 1) | (~vgetq_lane_u64(equal, 1) & 2));
}
#define DIFFER(x, y) differ_neon(x, y)
#include "kernels.h"
#include "undefine.h"

#endif

/* Any processor: one number at a time, with Dekker products if there is no FMA instruction. */
#define NAME(f) f##_portable
#define SET_NAME "portable"
#ifdef FP_FAST_FMA
#define HAS_FMA 1
#else
#define HAS_FMA 0
#endif
#define WIDTH 1
#define VECTOR double
#define LOAD(p) (*(p))
#define STORE(p, x) (void)(*(p) = (x))
#define ALL(x) (x)
#define ADD(x, y) ((x) + (y))
#define SUB(x, y) ((x) - (y))
#define PLUS(x, y) ((x) + (y))
#define MUL(x, y) ((x) * (y))
#define ABS(x) fabs(x)
#define FMA(x, y, z) fma(x, y, z)
#define FMS(x, y, z) fma(x, y, -(z))
#define UNLESS_BELOW(least, x) (fabs(x) >= (least) ? (x) : 0.0)
#define DIFFER(x, y) (unsigned)((x) != (y))
#include "kernels.h"

#if HAS_X86

/* True if the processor has a set and the system saves its registers. */
static void find_sets(int *has_avx2, int *has_avx512)
{
#if defined(_MSC_VER)
    int registers[4]; /* eax, ebx, ecx, edx */
    __cpuidex(registers, 1, 0);
    int has_fma = registers[2] >> 12 & 1, has_xgetbv = registers[2] >> 27 & 1;
    unsigned long long kept = has_xgetbv ? _xgetbv(0) : 0;
    __cpuidex(registers, 7, 0);
    *has_avx2 = has_fma && (registers[1] >> 5 & 1) && (kept & 0x06) == 0x06;
    *has_avx512 = (registers[1] >> 16 & 1) && (kept & 0xe6) == 0xe6;
#else
    __builtin_cpu_init();
    *has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    *has_avx512 = __builtin_cpu_supports("avx512f") != 0;
#endif
}

#endif

const Kernels *const *kernels_here(void)
{
    static const Kernels *sets[4];
    int count = 0;
    if (sets[0] == NULL) {
#if HAS_X86
        int has_avx2, has_avx512;
        find_sets(&has_avx2, &has_avx512);
        if (has_avx512)
            sets[count++] = &kernels_avx512;
        if (has_avx2)
            sets[count++] = &kernels_avx2;
#endif
#if HAS_NEON
        sets[count++] = &kernels_neon;
#endif
        sets[count++] = &kernels_portable;
    }
    return sets;
}

/* The error bound of tile_in_two, for rows and columns with norms below 1.
 *
 * In a chunk of c terms a rest, at most 2^-52, is rounded by u 2^-52 at most, and the i-th
 * addition to the low word by u i 2^-52: u 2^-52 c (c + 3) / 2 in all. Adding the n low words
 * of the chunks, whose sum is below k 2^-52, adds n u k 2^-52. The entries below TINY that
 * became zeros contribute less than 2 k TINY.
 */
double tile_error_in_two(ptrdiff_t k)
{
    double c = k < CHUNK ? (double)k : CHUNK;
    double n = (double)((k + CHUNK - 1) / CHUNK);
    return 1.01 * 0x1p-105 * n * (c * (c + 3.0) / 2.0 + (double)k)
         + 2.0 * (double)k * TINY;
}

/* The error bound of row_in_three.
 *
 * The grid of the middle word is g = ulp(3 2^-43) = 2^-94, so c rests of at most
 * 2^-95 + 2^-105, each with an error of 3 u g = 6 u 2^-95, are added to the low word of a
 * chunk, the i-th with an error of u i 2^-95: u 2^-95 c (c + 13) / 2, and 1 % for 2^-105.
 * The two additions that end a chunk round a number that is no larger than the sum of all
 * rests, k 2^-94, and of what TwoSum left of the middle words, n k 2^-51 u.
 */
double tile_error_in_three(ptrdiff_t k)
{
    double c = k < CHUNK ? (double)k : CHUNK;
    double n = (double)((k + CHUNK - 1) / CHUNK);
    double largest = (double)k * (0x1p-94 + n * 0x1p-104);
    double rounded = n * (0x1p-148 * c * (c + 13.0) / 2.0 + 2.0 * 0x1p-53 * largest);
    return 1.01 * rounded + 2.0 * (double)k * TINY;
}

/* The error bound of dot_in_two, in units of 2^g.
 *
 * With two lanes of four chains or more a chain has at most n / 4 + 1 terms, in narrow
 * vectors; the bound above of one chunk of so many terms holds for each of the chains, of
 * which there are n divided by that number. Joining them takes 4 WIDTH additions of numbers
 * below n 2^-52. A remainder that underflows loses at most 2^-1074, below 2^(g - 700) because
 * g is at least -300.
 */
double piece_error_in_two(ptrdiff_t n)
{
    double c = (double)(n / 4 + 1);
    return 1.01 * 0x1p-105 * (((double)n + 4.0) * (c + 3.0) / 2.0 + 32.0 * (double)n)
         + (double)n * 0x1p-700;
}

/* The error bound of dot_in_three, in units of 2^g: remainders are at most 2^(g - 93), in
 * chains of c terms as above. */
double piece_error_in_three(ptrdiff_t n)
{
    double c = (double)(n / 4 + 1);
    return 1.01 * 0x1p-146 * (((double)n + 4.0) * (c + 13.0) / 2.0 + 64.0 * (double)n)
         + (double)n * 0x1p-700;
}
