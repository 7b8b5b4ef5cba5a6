"""Pure mathematics on NumPy arrays: bits, slices, residues, exact sums, one rounding.
Knows no scheme and no engine.
"""
