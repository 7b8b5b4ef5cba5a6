"""Products that PyTorch and JAX differentiate, batch and trace."""
