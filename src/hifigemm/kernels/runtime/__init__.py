"""How kernels are compiled and launched: launches, buffers, launch lists, tiles.

Nothing here knows what a kernel computes.
"""
