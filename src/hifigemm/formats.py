"""Names that stored pickles hold; see `hifigemm.base.formats`."""

from hifigemm.base.formats import Format as Format
from hifigemm.base.formats import _named as _named
