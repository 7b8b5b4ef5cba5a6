"""Products in programs that exist: operators of PyTorch."""
