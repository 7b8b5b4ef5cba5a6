"""Plans for tests, whose needs are met by a function of scheme and target."""

from hifigemm.running import auto, planner, road


def make(problem, accuracy, scheme, engine, workspace, look=None, states_bound=True):
    """`planner.make`; without `look` the operands are not read."""
    return met(
        lambda known: planner.make(
            problem, accuracy, scheme, engine, workspace, known, states_bound
        ),
        look,
    )


def by_operands(problem, target, engine, costs, look, ratio=None):
    """`auto.by_operands` likewise."""
    return met(
        lambda known: auto.by_operands(problem, target, engine, costs, known, ratio),
        look,
    )


def met(plan_or_need, look):
    """The plan, once its needs are met."""
    if look is None:
        return plan_or_need(None)
    known = {}
    while isinstance(plan := plan_or_need(known), auto.Need):
        known[plan] = look(*plan)
    return plan


def forbid_plans(monkeypatch):
    """From now on a product that is not kept is an error."""
    for name in ("for_problem", "plan_for", "Signature"):
        monkeypatch.setattr(road, name, None)
