/* The certificate of float64 products of binary32 operands, for one set of vector
 * instructions: what it reads from the operands and from the product. Included by kernels.h.
 * The loops are plain C, which compilers vectorise. numerics/float64_products.py has the
 * proofs.
 */

/* Scale one number of each of n vectors by the power of two `scale`, as doubles. The vectors'
 * sums of squares and the exponents of their lowest bits are updated. */
static void NAME(to_doubles)(ptrdiff_t n, const float *restrict x, double scale,
                        double *restrict y, double *restrict squares,
                        int32_t *restrict lowest)
{
    for (ptrdiff_t j = 0; j < n; j++) {
        double value = scale * (double)x[j];
        y[j] = value;
        squares[j] += value * value;
    }
    for (ptrdiff_t j = 0; j < n; j++) {
        int32_t bits;
        memcpy(&bits, x + j, sizeof bits);
        int32_t exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
        int32_t is_normal = exponent != 0;
        int32_t significand = fraction | is_normal << 23;

        /* The lowest bit alone is a power of two; converting it to float gives its exponent. */
        float lowest_bit = (float)(significand & -significand);
        memcpy(&bits, &lowest_bit, sizeof bits);
        int32_t unit = exponent + !is_normal - 150 + (bits >> 23) - 127;
        unit += (significand == 0) * 2 * NO_BIT;
        lowest[j] = unit < lowest[j] ? unit : lowest[j];
    }
}

/* Write a row of the product, rounded to binary32, or NaN if the rounding is not certain;
 * returns the number of NaN. */
static ptrdiff_t NAME(round_product)(ptrdiff_t n, const double *restrict product,
                               double row_margin, double row_spread,
                               const double *restrict norms,
                               const double *restrict spreads, float *restrict values)
{
    int32_t open = 0;
    for (ptrdiff_t j = 0; j < n; j++) {
        double sum = product[j] + 0.0; /* an exact zero is +0 */
        double margin = row_margin * norms[j], spread = row_spread * spreads[j];

        /* An exact sum, of a spread below 2^53, has no margin. */
        int64_t margin_bits, spread_bits;
        memcpy(&margin_bits, &margin, sizeof margin);
        memcpy(&spread_bits, &spread, sizeof spread);
        margin_bits &= ~((spread_bits - BITS_OF_2_53) >> 63);
        memcpy(&margin, &margin_bits, sizeof margin);
        float lower = (float)(sum - margin), upper = (float)(sum + margin);

        /* -0 and +0 differ in their bits. */
        int32_t lower_bits, upper_bits;
        memcpy(&lower_bits, &lower, sizeof lower);
        memcpy(&upper_bits, &upper, sizeof upper);
        int32_t is_open = lower_bits != upper_bits;
        lower_bits |= -is_open; /* all bits: a NaN */
        memcpy(values + j, &lower_bits, sizeof lower_bits);
        open += is_open;
    }
    return open;
}
