"""A GPU: its engine, and how the launches of each scheme are written.

A plan comes in, launches over named memory go out; kernels are those of `kernels`.
"""
