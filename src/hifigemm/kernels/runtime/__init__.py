"""How kernels are compiled and launched: launches, buffers, programs, tiles.

Nothing here knows what a kernel computes.
"""
