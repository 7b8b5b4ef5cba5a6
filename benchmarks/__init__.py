"""Timings behind the figures of the README: one script a question, each writes one CSV with its environment beside it."""
