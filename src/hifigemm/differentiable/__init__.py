"""Products that PyTorch and JAX differentiate, batch and trace.

An operator is here for its derivatives; its product is that of `running`.
"""
