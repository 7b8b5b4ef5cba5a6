"""The stages of a product by Ozaki scheme II, to be timed one by one, with the work
that they cannot avoid.
"""

from __future__ import annotations

from typing import Any

import hifigemm as hg
from hifigemm.engines import engine_for
from hifigemm.executor import whole_split
from hifigemm.libraries import library_of
from hifigemm.operands import own_stack
from hifigemm.planner import for_problem, workspace_limit
from hifigemm.workshop.measuring.runs import Stage


def stages(a: Any, b: Any, options: dict[str, Any]) -> list[Stage]:
    """Stages of `matmul(a, b, **options)`: residues of A, residues of B, products with
    reconstruction.

    None for schemes other than Ozaki scheme II with fast scaling, and for products in
    blocks. The floors count each byte once: operands in, L residues of an entry out and
    in again, residues of the product out and in, the result out.
    """
    plan = hg.make_plan(a, b, **options)
    p = plan.problem
    library = library_of(("a", a), ("b", b))
    engine = engine_for(plan.engine, library.name, library.device)
    plan = for_problem(
        plan, p, engine, workspace_limit(p, None, engine), states_bound=False
    )
    if (
        not isinstance(plan.scheme, hg.Ozaki2)
        or plan.scheme.scaling != "fast"
        or not plan.is_whole
    ):
        return []
    x, y = (
        own_stack(library.asarray(a, "a"), "left", p),
        own_stack(library.asarray(b, "b"), "right", p),
    )
    left, right = (
        whole_split(plan, x, "left", engine),
        whole_split(plan, y, "right", engine),
    )

    def finish() -> object:
        return plan.scheme.multiply(plan, left, right, engine, 0)

    count, size, area_a, area_b, area_c = (
        plan.num_products,
        p.dtype.itemsize,
        p.m * p.k,
        p.k * p.n,
        p.m * p.n,
    )
    bytes_last = count * (area_a + area_b + 2 * area_c) + size * area_c
    work = 2.0 * p.m * p.n * p.k * count
    return [
        Stage(
            "residues of A",
            lambda: whole_split(plan, x, "left", engine),
            p.batch * (size + count) * area_a,
        ),
        Stage(
            "residues of B",
            lambda: whole_split(plan, y, "right", engine),
            p.batch * (size + count) * area_b,
        ),
        Stage(
            "products, reconstruction",
            finish,
            p.batch * bytes_last,
            p.batch * work,
            plan.words.name,
        ),
    ]
