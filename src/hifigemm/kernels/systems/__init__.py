"""Kernels for stacks of small systems: one thread for each system."""
