"""Engines multiply; they know nothing of schemes."""

from hifigemm.engines.engine import Engine, available, engine_for

__all__ = ["Engine", "available", "engine_for"]
