"""Kernels of a GPU, each the twin of a plain function of numerics.

Torch and Triton are imported by the modules in here, never by `import hifigemm`. No
kernel knows a plan, a scheme or an engine.
"""
