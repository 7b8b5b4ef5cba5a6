"""Kernels that read operands once: statistics of vectors, residues, words, slices."""
