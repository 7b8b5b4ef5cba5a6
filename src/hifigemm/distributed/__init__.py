"""Products of DTensors, matrices on a mesh of processes, with the bits of one device."""

from hifigemm.base.public import shown
from hifigemm.distributed.api import gemm, make_plan, matmul
from hifigemm.distributed.layout import Layout
from hifigemm.distributed.products import MeshPlan

__all__ = ["Layout", "MeshPlan", "gemm", "make_plan", "matmul"]
__dir__ = shown(globals())
