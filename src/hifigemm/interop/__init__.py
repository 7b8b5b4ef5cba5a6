"""Products in programs that exist: operators of PyTorch, and kernels in the place of
its own.
"""
