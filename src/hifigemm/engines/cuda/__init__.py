"""A GPU: its engine, and how the launches of each scheme are written.

A plan comes in, a program over named memory goes out; kernels are those of `kernels`.
"""
