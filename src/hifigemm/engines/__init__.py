"""Engines multiply; they know nothing of schemes."""

from hifigemm.engines.registry import available, engine_for

__all__ = ["available", "engine_for"]
