"""Kernels that multiply, with what they do to the sums of a tile."""
