"""Operands in, results out: arrays of each library, prepared operands, exact numbers.

Nothing here plans or multiplies. `Prepared` stands here for stored pickles.
"""

from hifigemm.operands.operands import Prepared as Prepared
