"""Kernels that make results of products: reconstruction, rounding, special values."""
