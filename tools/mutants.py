"""Mutants of a module: its syntax tree with one place changed, as a slip of the pen
would.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

SWAPS = [
    *(
        (ast.Lt, ast.LtE),
        (ast.Gt, ast.GtE),
        (ast.Eq, ast.NotEq),
        (ast.Is, ast.IsNot),
        (ast.In, ast.NotIn),
    ),
    *(
        (ast.Add, ast.Sub),
        (ast.Mult, ast.Div),
        (ast.FloorDiv, ast.Mod),
        (ast.LShift, ast.RShift),
    ),
    *(
        (ast.BitAnd, ast.BitOr),
        (ast.And, ast.Or),
        ("max", "min"),
        ("maximum", "minimum"),
        ("any", "all"),
    ),
    *(("rint", "trunc"), ("ceil", "floor"), ("argmax", "argmin")),
]
OTHER = {x: y for pair in SWAPS for x, y in (pair, pair[::-1])}
UNCHANGED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)


class Mutant(NamedTuple):
    module: str
    line: int
    statement: str
    change: str
    place: tuple[ast.AST, str, int | None]
    new: ast.AST
    lines: range
    # what the statement defines when the module is imported; None inside functions
    names: frozenset[str] | None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.module, self.statement, self.change


def put(place: tuple[ast.AST, str, int | None], new: ast.AST) -> None:
    """Put a node at a place of the tree: a field of its parent, or an item of one."""
    parent, field, index = place
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def replacements(node: ast.AST, field: str, parent: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    match node:
        case ast.Constant(bool(v)):
            yield ast.Constant(not v)
        case ast.Constant(int(v)):
            yield from (ast.Constant(v + 1), ast.Constant(v - 1))
        case ast.Constant(float(v)):
            yield from (
                (ast.Constant(2 * v), ast.Constant(v / 2))
                if v
                else (ast.Constant(1.0),)
            )
        case ast.BinOp(left, op, right):
            if type(op) in OTHER:
                yield ast.BinOp(left, OTHER[type(op)](), right)
            if isinstance(op, (ast.Add, ast.Sub)):
                yield left
            if isinstance(op, ast.Add):
                yield right
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            if type(op) in OTHER:
                yield ast.AugAssign(target, OTHER[type(op)](), value)
        case ast.Expr(value) if not isinstance(value, ast.Constant):
            yield ast.Pass()
        case ast.Compare(left, ops, right):
            for i, op in enumerate(ops):
                yield ast.Compare(
                    left, [*ops[:i], OTHER[type(op)](), *ops[i + 1 :]], right
                )
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OTHER[type(op)](), values)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.Name(name, ast.Load()) if name in OTHER:
            yield ast.Name(OTHER[name], ast.Load())
        case ast.Attribute(value, name, ast.Load()) if name in OTHER:
            yield ast.Attribute(value, OTHER[name], ast.Load())
    if field in ("test", "ifs") and not isinstance(node, ast.Constant):
        yield ast.Constant(False)
        if not isinstance(parent, ast.While):
            yield ast.Constant(True)


def is_left_alone(node: ast.AST, field: str) -> bool:
    """Whether nothing in this node changes what is computed, or it is text."""
    match node:
        case (
            ast.FunctionDef(name="__repr__" | "__str__")
            | ast.keyword(arg="strict" | "maxsize" | "copy")
        ):
            return True
        case (
            ast.Assign(targets=[ast.Name("__all__")])
            | ast.AugAssign(target=ast.Name("__all__"))
        ):
            return True
        case (
            ast.If(test=ast.Name("TYPE_CHECKING"))
            | ast.BinOp(left=ast.Constant(str()))
            | ast.Constant(str())
        ):
            return True
    return isinstance(node, UNCHANGED) or field in (
        "annotation",
        "returns",
        "decorator_list",
        "bases",
    )


def mutants_of(tree: ast.Module, module: str) -> list[Mutant]:
    """All mutants of a module, in order of their lines."""
    found: list[Mutant] = []

    def text(node: ast.AST) -> str:
        lines = ast.unparse(node).splitlines()
        return (
            lines[0]
            if isinstance(getattr(node, "body", None), list)
            else " ".join(map(str.strip, lines))
        )

    def visit(
        node: ast.AST, place: tuple, statement: ast.AST, names: frozenset[str] | None
    ) -> None:
        parent, field, _ = place
        if is_left_alone(node, field):
            return
        if isinstance(node, ast.stmt):
            statement = node
            defined = {
                x.id
                for x in ast.walk(node)
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
            }
            names = (
                None
                if names is None
                else names | defined | ({node.name} if hasattr(node, "name") else set())
            )
        body = getattr(statement, "body", None)
        end = (
            body[0].lineno - 1
            if isinstance(body, list)
            else getattr(statement, "end_lineno", 1)
        )
        lines = range(statement.lineno, max(end, statement.lineno) + 1)
        whole, inner = text(statement), isinstance(parent, ast.expr)
        before = text(parent if inner else node)
        for new in replacements(node, field, parent):
            put(place, new)
            change = f"{before} -> {text(parent if inner else new)}"
            put(place, node)
            found.append(
                Mutant(module, node.lineno, whole, change, place, new, lines, names)
            )
        inside = isinstance(node, ast.FunctionDef)
        for name, value in ast.iter_fields(node):
            for i, child in (
                enumerate(value) if isinstance(value, list) else [(None, value)]
            ):
                if isinstance(child, ast.AST):
                    visit(
                        child,
                        (node, name, i),
                        statement,
                        None if inside and name == "body" else names,
                    )

    for i, node in enumerate(tree.body):
        visit(node, (tree, "body", i), node, frozenset())
    return sorted(found, key=lambda m: m.line)
