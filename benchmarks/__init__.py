"""Timings behind the figures of the README: each script answers one question and writes
one CSV.
"""
