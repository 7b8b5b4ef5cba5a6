"""Names that stored pickles hold; see `hifigemm.model.problem`."""

from hifigemm.model.problem import Problem as Problem
from hifigemm.model.problem import ProductSpec as ProductSpec
