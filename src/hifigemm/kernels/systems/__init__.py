"""Kernels for stacks of small systems: tiles of systems, rows and columns."""
