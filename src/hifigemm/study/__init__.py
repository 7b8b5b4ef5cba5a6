"""What the command line, benchmarks and experiments share: files with their
environment, and pictures.
"""
