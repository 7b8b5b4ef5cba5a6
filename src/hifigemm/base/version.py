"""The version, which installations read without importing the package."""

__version__ = "0.1.0"
