"""Pure mathematics on NumPy arrays: bits, slices, residues, exact sums, one rounding.

Nothing here knows a scheme or an engine. In the order in which it may be read:

- Ground: `bits` (exponents, powers of two), `eft` (TwoSum, TwoProduct), `limbs` (long
  integers), `blocking` (blocks that fit the cache), `embedding` (complex products as
  real ones), `special` (Inf and NaN), `symmetric` and `subnormals` (IEEE arithmetic).
- Rounding: `rounding` of exact integers to float64 and float32, `rounding_formats` to
  shorter formats.
- Ozaki scheme I: `slicing`, and `bounds` with its conditions of exactness.
- Ozaki scheme II: `residues`, `scaling`, `residue_products`, and `strassen` for these;
  `estimates` and `error_ratio` for the number of slices and moduli.
- Words: `words`, `tensor_core` and `accumulation` (how units add), `word_bounds`.
- Other products: `double_double` with a bound for each entry, `integer_words` for
  integers of 64 bits, and `epilogue` for alpha T + beta C.
"""
