/* The floating-point environment: rounding to nearest, with subnormal numbers.
 *
 * Everything in the core relies on it. If a thread has set another mode, that mode is
 * restored after the call.
 */
#ifndef HIFIGEMM_ENVIRONMENT_H
#define HIFIGEMM_ENVIRONMENT_H

#include <stdint.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>

typedef unsigned Environment;

static inline Environment enter_ieee(void)
{
    Environment before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* no exception traps, to nearest, nothing flushed */
    return before;
}

static inline void leave_ieee(Environment before)
{
    /* Drop the flags that the call has raised. */
    _mm_setcsr(before);
}

#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))

typedef uint64_t Environment;

static inline Environment enter_ieee(void)
{
    Environment before, ieee = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(ieee));
    return before;
}

static inline void leave_ieee(Environment before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
}

#else

#include <fenv.h>

typedef fenv_t Environment;

static inline Environment enter_ieee(void)
{
    Environment before;
    feholdexcept(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}

static inline void leave_ieee(Environment before)
{
    fesetenv(&before);
}

#endif

#endif
