"""Matrix products to an accuracy that you choose.

    >>> import numpy as np, hifigemm as hg
    >>> a, b = np.array([[1e16, 1.0, -1e16]]), np.ones((3, 1))
    >>> a @ b, hg.matmul(a, b, accuracy="correct")  # the exact product, rounded once
    (array([[0.]]), array([[1.]]))

Products            matmul, gemm, prepare, make_plan, warmup
Accuracies          None, "fp32", "fp64", "correct", a number, Relative, Invariant
Schemes             Native, DoubleDouble, Ozaki1, Ozaki2, Multiword, Corrected
Programs (PyTorch)  emulate, install, uninstall
Facts and settings  Plan, Report, engines, info, strict
Modules             numpy (einsum, dot, ...), linalg (solve, det, ...), jax, cupy,
                    distributed, testing

help(hg.matmul) explains accuracies. Modules that are not in this list are internal.
"""

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

from hifigemm.base import startup  # noqa: F401, first, as it minds Ctrl-C while the others are imported

# isort: split
from hifigemm.api import make_plan, matmul, prepare, warmup
from hifigemm.base.exceptions import (
    AccuracyError,
    HifigemmError,
    InexactProductError,
    PlanError,
    VerificationError,
)
from hifigemm.base.freed_memory import keep_freed_memory as _keep_freed_memory
from hifigemm.base.public import missing as _missing
from hifigemm.base.public import shown as _shown
from hifigemm.base.public import with_signature as _with_signature
from hifigemm.base.settings import strict
from hifigemm.base.version import __version__ as __version__
from hifigemm.engines.registry import engines
from hifigemm.gemm import gemm
from hifigemm.model.accuracy import Invariant, Relative
from hifigemm.model.plan import Plan, Report
from hifigemm.operands.operands import Prepared
from hifigemm.schemes import Native

if _TYPE_CHECKING:
    from hifigemm import cupy as cupy
    from hifigemm import distributed as distributed
    from hifigemm import jax as jax
    from hifigemm import linalg as linalg
    from hifigemm import numpy as numpy
    from hifigemm import testing as testing
    from hifigemm.engines.information import info
    from hifigemm.interop.drop_in import emulate, install, uninstall
    from hifigemm.schemes import Corrected, DoubleDouble, Multiword, Ozaki1, Ozaki2

__all__ = [
    "AccuracyError",
    "Corrected",
    "DoubleDouble",
    "HifigemmError",
    "InexactProductError",
    "Invariant",
    "Multiword",
    "Native",
    "Ozaki1",
    "Ozaki2",
    "Plan",
    "PlanError",
    "Prepared",
    "Relative",
    "Report",
    "VerificationError",
    "emulate",
    "engines",
    "gemm",
    "info",
    "install",
    "make_plan",
    "matmul",
    "prepare",
    "strict",
    "uninstall",
    "warmup",
]

# Public modules, and the library that each of them needs.
_MODULES = {
    "cupy": "cupy",
    "distributed": "torch",
    "jax": "jax",
    "linalg": "numpy",
    "numpy": "numpy",
    "testing": "numpy",
}

# Public names that load on first use, with their modules.
_LOADED_ON_USE = {
    "Corrected": "schemes.corrected",
    "DoubleDouble": "schemes.double_double",
    "Multiword": "schemes.multiword",
    "Ozaki1": "schemes.ozaki1",
    "Ozaki2": "schemes.ozaki2",
    "emulate": "interop.drop_in",
    "info": "engines.information",
    "install": "interop.drop_in",
    "uninstall": "interop.drop_in",
}

# Functions that users look for in the package, by their modules.
_FUNCTIONS_OF = {
    "numpy": (
        "congruence",
        "dot",
        "einsum",
        "herk",
        "inner",
        "matrix_power",
        "matvec",
        "multi_dot",
        "outer",
        "syrk",
        "tensordot",
        "vdot",
        "vecdot",
        "vecmat",
    ),
    "linalg": (
        "cond",
        "det",
        "eigvalsh",
        "inv",
        "is_positive_definite",
        "lstsq",
        "slogdet",
        "solve",
        "svdvals",
    ),
}


def __getattr__(name: str) -> object:
    """A public module or name, imported on first use."""
    if name in _MODULES:
        return _import_module(f"{__name__}.{name}")
    if name in _LOADED_ON_USE:
        home = _import_module(f"{__name__}.{_LOADED_ON_USE[name]}")
        globals()[name] = _with_signature(getattr(home, name))
        return globals()[name]
    homes = [module for module, functions in _FUNCTIONS_OF.items() if name in functions]
    hint = f"{__name__}.{homes[0]}.{name}" if homes else ""
    raise _missing(__name__, name, hint)


_public_names = _shown(globals())


def __dir__() -> list[str]:
    """The public names, and the public modules whose library is installed."""
    modules = [name for name, needed in _MODULES.items() if _find_spec(needed)]
    return sorted([*_public_names(), "__version__", *modules])


_keep_freed_memory()

if "torch" in _sys.modules:  # then its operators are wanted too
    from hifigemm.differentiable import torch_operators as _  # noqa: F401
