"""Products of programs that exist: kernels instead of those of PyTorch and CuPy.

Scopes, policies and summaries stand here; derivatives are in `differentiable`.
"""
