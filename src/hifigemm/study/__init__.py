"""Matrices, exact references, metrics and pictures: used by the command line, tests, benchmarks and experiments.

Nothing here is used by the library itself, and the judge (``exact``, ``reference``) shares no code with it.
"""
