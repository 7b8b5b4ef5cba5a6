"""Names that stored pickles hold; see `hifigemm.model.accuracy`."""

from hifigemm.model.accuracy import Relative as Relative
from hifigemm.model.accuracy import Target as Target
