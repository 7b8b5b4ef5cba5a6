"""Names that stored pickles hold; see `hifigemm.model.plan`."""

from hifigemm.model.plan import Blocking as Blocking
from hifigemm.model.plan import Decision as Decision
from hifigemm.model.plan import Evidence as Evidence
from hifigemm.model.plan import Outliers as Outliers
from hifigemm.model.plan import Plan as Plan
from hifigemm.model.plan import Report as Report
from hifigemm.model.plan import SeparateVectors as SeparateVectors
from hifigemm.model.plan import Split as Split
from hifigemm.model.plan import Verification as Verification

Apart = SeparateVectors
_report = Report
"""Names of version 0.1.0."""
