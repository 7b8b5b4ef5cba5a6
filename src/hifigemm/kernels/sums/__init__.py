"""Kernels that round sums of products once."""
