/* Arithmetic modulo PRIMES primes side by side, for one set of vector instructions.
 *
 * Included by kernels.h. A lane of a vector is a prime, 2^23 < p < 2^24, so one step serves
 * all primes, and every row is long enough for vectors. Residues are integers in floating
 * point, |r| <= p / 2 + 4 <= 2^23 + 4, with products below 2^47. All operations are exact,
 * with and without FMA: a sum of DELAY products and a residue is below 2^52 + 2^34.
 */

enum { NAME(PARTS) = PRIMES / WIDTH };

/* x modulo p, centred around 0, for integers |x| <= 2^53 - 2^24.
 *
 * x fl(1 / p) is x / p to 2^-51 of itself, which is 2^-21 at most, and adding 3 2^51
 * rounds it to an integer q, as doubles there lie on a grid of 1. So |x - q p| is at most
 * p (1/2 + 2^-21), p / 2 + 4 for p > 2^23, and q p, below 2^53, is exact. */
static ALWAYS_INLINE VECTOR NAME(reduced)(VECTOR x, VECTOR p, VECTOR reciprocal)
{
    const VECTOR grid = ALL(0x1.8p52);
    VECTOR q = SUB(ADD(MUL(x, reciprocal), grid), grid);
    return SUB(x, MUL(q, p));
}

/* x + factor y, exactly. */
static ALWAYS_INLINE VECTOR NAME(plus_multiple)(VECTOR x, VECTOR factor, VECTOR y)
{
#if HAS_FMA
    return FMA(factor, y, x);
#else
    return ADD(x, MUL(factor, y));
#endif
}

/* Powers of two modulo p, from 2^0 on. */
static void NAME(powers_of_two)(const Field *field, ptrdiff_t count, double *powers)
{
    for (int v = 0; v < PRIMES; v += WIDTH) {
        VECTOR p = LOAD(field->p + v), reciprocal = LOAD(field->reciprocals + v);
        VECTOR power = ALL(1.0);
        for (ptrdiff_t e = 0; e < count; e++) {
            STORE(powers + e * PRIMES + v, power);
            power = NAME(reduced)(ADD(power, power), p, reciprocal);
        }
    }
}

/* (high 2^HALF + low) 2^exponent modulo p: |high|, |low| < 2^27, so both products with
 * powers sum to less than 2^52. */
static ALWAYS_INLINE VECTOR NAME(residue)(const Digits *x, const double *powers, VECTOR p,
                                          VECTOR reciprocal)
{
    const double *power = powers + (ptrdiff_t)x->exponent * PRIMES;
    VECTOR high = MUL(ALL(x->high), LOAD(power + HALF * PRIMES));
    VECTOR sum = NAME(plus_multiple)(high, ALL(x->low), LOAD(power));
    return NAME(reduced)(sum, p, reciprocal);
}

/* x = real + root imag for a vector of integers; imag may be NULL. */
static void NAME(residues)(const Field *field, ptrdiff_t count, const Digits *real,
                           const Digits *imag, const double *powers, double *x)
{
    for (int v = 0; v < PRIMES; v += WIDTH) {
        VECTOR p = LOAD(field->p + v), reciprocal = LOAD(field->reciprocals + v);
        VECTOR root = LOAD(field->roots + v);
        for (ptrdiff_t j = 0; j < count; j++) {
            VECTOR value = NAME(residue)(real + j, powers + v, p, reciprocal);
            if (imag) {
                VECTOR part = NAME(residue)(imag + j, powers + v, p, reciprocal);
                value = NAME(plus_multiple)(value, root, part);
                value = NAME(reduced)(value, p, reciprocal);
            }
            STORE(x + j * PRIMES + v, value);
        }
    }
}

/* x modulo p. */
static void NAME(reduce)(const Field *field, ptrdiff_t count, double *x)
{
    VECTOR p[PRIMES / WIDTH], reciprocals[PRIMES / WIDTH];
    for (int v = 0; v < NAME(PARTS); v++) {
        p[v] = LOAD(field->p + v * WIDTH);
        reciprocals[v] = LOAD(field->reciprocals + v * WIDTH);
    }
    for (ptrdiff_t j = 0; j < count; j++, x += PRIMES)
        UNROLLED for (int v = 0; v < NAME(PARTS); v++) {
            VECTOR value = LOAD(x + v * WIDTH);
            STORE(x + v * WIDTH, NAME(reduced)(value, p[v], reciprocals[v]));
        }
}

/* x modulo p times a factor of each prime. */
static void NAME(scale_residues)(const Field *field, ptrdiff_t count, const double *x,
                                 const double *factor, double *product)
{
    for (int v = 0; v < PRIMES; v += WIDTH) {
        VECTOR p = LOAD(field->p + v), reciprocal = LOAD(field->reciprocals + v);
        VECTOR f = LOAD(factor + v);
        for (ptrdiff_t j = 0; j < count; j++) {
            VECTOR value = NAME(reduced)(LOAD(x + j * PRIMES + v), p, reciprocal);
            value = NAME(reduced)(MUL(value, f), p, reciprocal);
            STORE(product + j * PRIMES + v, value);
        }
    }
}

/* x - factor y, not reduced, for a reduced factor of each prime and reduced y. */
static void NAME(subtract_multiple)(ptrdiff_t count, double *x, const double *factor,
                                    const double *y)
{
    VECTOR factors[PRIMES / WIDTH];
    for (int v = 0; v < NAME(PARTS); v++)
        factors[v] = SUB(ALL(0.0), LOAD(factor + v * WIDTH));
    for (ptrdiff_t j = 0; j < count; j++, x += PRIMES, y += PRIMES)
        UNROLLED for (int v = 0; v < NAME(PARTS); v++) {
            VECTOR value = LOAD(x + v * WIDTH), multiple = LOAD(y + v * WIDTH);
            STORE(x + v * WIDTH, NAME(plus_multiple)(value, factors[v], multiple));
        }
}

/* The inverse of x modulo p by Fermat's theorem, x^(p - 2); 0 for x = 0. The squares of x and
 * the product of some of them are computed side by side. */
static void NAME(invert)(const Field *field, const double *x, double *inverse)
{
    VECTOR squares[PRIMES / WIDTH], products[PRIMES / WIDTH];
    const VECTOR one = ALL(1.0);
    for (int v = 0; v < NAME(PARTS); v++) {
        squares[v] = LOAD(x + v * WIDTH);
        products[v] = one;
    }
    for (int bit = 0; bit < PRIME_BITS; bit++)
        for (int v = 0; v < NAME(PARTS); v++) {
            VECTOR p = LOAD(field->p + v * WIDTH);
            VECTOR reciprocal = LOAD(field->reciprocals + v * WIDTH);
            VECTOR is_set = LOAD(field->bits[bit] + v * WIDTH);
            VECTOR factor = NAME(plus_multiple)(one, is_set, SUB(squares[v], one));
            products[v] = NAME(reduced)(MUL(products[v], factor), p, reciprocal);
            squares[v] = NAME(reduced)(MUL(squares[v], squares[v]), p, reciprocal);
        }
    for (int v = 0; v < NAME(PARTS); v++)
        STORE(inverse + v * WIDTH, products[v]);
}
