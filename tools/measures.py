"""A thermometer of the library: how far a reader has to go, and how much a line holds.

Usage: python tools/measures.py

It prints counts of src/hifigemm. None of them has a limit: a change is judged by
whoever reads it, and the counts say where to look. Three rules do have one, as they are
facts and no matter of taste: no circle among imports, no import upward in the order of
ROOMS, and a test file for each module. What breaks them today stands in
tools/measures_exceptions.txt, from which lines only go. The exit status is 1 where a
rule is broken or a line of that file is out of date.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

import hifigemm as hg
from hifigemm import schemes
from hifigemm.schemes import Scheme

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # where it is run as a script

from tools import own_calls  # noqa: E402

LIBRARY = Path(hg.__file__).resolve().parent
EXCEPTIONS = Path(__file__).with_name("measures_exceptions.txt")

WORKSHOP = ("__main__", "cli", "workshop", "testing")
"""Modules and packages that only measure and show. Counts of "the library without the
workshop" leave them out.
"""

ROOMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("command line", ("__main__", "cli")),
    ("workshop", ("workshop",)),
    ("public names", ("__init__", "testing", "numpy", "jax", "cupy", "linalg")),
    ("functions", ("functions",)),
    ("interop", ("interop",)),
    ("distributed", ("distributed",)),
    ("api", ("api", "gemm")),
    ("differentiable", ("differentiable",)),
    ("running", ("running",)),
    ("operands", ("operands", "libraries")),
    ("engines", ("engines",)),
    ("schemes", ("schemes",)),
    ("model", ("model", "accuracy", "plan", "problem")),
    ("kernels", ("kernels",)),
    ("numerics", ("numerics",)),
    ("base", ("base", "formats")),
)
"""Groups of modules, from the top to the bottom: a module imports from its own room and
from rooms below it. Kernels know their plain twins and no plan; numerics reads no
setting. `accuracy`, `formats`, `plan` and `problem` hold names for stored pickles.
"""

SCHEMES = {Scheme.__name__, *(scheme.__name__ for scheme in schemes.SCHEMES.values())}
"""Names of the classes of schemes."""

PARTICIPLES = frozenset({"found", "made", "given", "asked", "known", "kept", "done"})
PRONOUNS = frozenset(
    {
        "own",
        "rest",
        "place",
        "at",
        "most",
        "least",
        "each",
        "some",
        "both",
        "where",
        "behind",
    }
)
ROLES = PARTICIPLES | PRONOUNS | {"beside", "look"}
"""Names that say which part a thing plays in a sentence, and not what it is."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Edge = tuple[str, str]
Graph = dict[str, set[str]]


# Modules, their functions and their lines


@dataclass(frozen=True, eq=False)
class Module:
    """A source file of the package."""

    name: str
    """Dotted, as in "hifigemm.engines.registry"; a package has the name of its
    folder.
    """
    path: Path
    text: str
    tree: ast.Module

    @property
    def name_in_package(self) -> str:
        """The name without that of the package, such as "engines.registry"; "__init__"
        for the package itself.
        """
        return self.name.partition(".")[2] or "__init__"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(self.tree))


def modules_of(package: Path) -> list[Module]:
    """All modules of a package, by name."""
    modules = []
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_text(encoding="utf-8")
        modules.append(Module(".".join(parts), path, text, ast.parse(text)))
    return sorted(modules, key=lambda module: module.name)


def is_in(name: str, prefixes: Iterable[str]) -> bool:
    """True if a dotted name is one of the prefixes or lies inside of one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def without_workshop(modules: Iterable[Module]) -> list[Module]:
    """The modules that multiply, without those that only measure and show."""
    return [module for module in modules if not is_in(module.name_in_package, WORKSHOP)]


def nodes_of(modules: Iterable[Module]) -> Iterator[ast.AST]:
    """All syntax nodes of the modules."""
    for module in modules:
        yield from module.nodes


def functions_of(modules: Iterable[Module]) -> list[Function]:
    """Functions and methods, nested ones included and overloads left out."""
    functions = [node for node in nodes_of(modules) if isinstance(node, Function)]
    return [
        function
        for function in functions
        if not has_decorator(function, ("overload", "typing.overload"))
    ]


def has_decorator(function: Function, names: Sequence[str]) -> bool:
    """True if one of the decorators, called or not, has one of the names."""
    for decorator in function.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(target) in names:
            return True
    return False


def device_functions_of(modules: Iterable[Module]) -> list[Function]:
    """Functions that Triton or Gluon compiles for a GPU."""
    return [
        function
        for function in functions_of(modules)
        if has_decorator(function, ("triton.jit", "gluon.jit"))
    ]


def parameters_of(function: Function | ast.Lambda) -> list[ast.arg]:
    """Parameters of a function; `*args` and `**options` are one each."""
    arguments = function.args
    starred = [
        argument
        for argument in (arguments.vararg, arguments.kwarg)
        if argument is not None
    ]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def docstrings_of(module: Module) -> list[ast.Expr]:
    """Statements that are nothing but a string: docstrings, those of constants and
    fields included.
    """
    statements = [node for node in module.nodes if isinstance(node, ast.Expr)]
    return [
        x
        for x in statements
        if isinstance(x.value, ast.Constant) and isinstance(x.value.value, str)
    ]


@cache
def tokens_of(module: Module) -> list[tokenize.TokenInfo]:
    """Tokens of the source text, comments included."""
    return list(tokenize.generate_tokens(io.StringIO(module.text).readline))


LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@cache
def code_lines(module: Module) -> set[int]:
    """Numbers of the lines that are no blank, comment or docstring line."""
    lines: set[int] = set()
    for token in tokens_of(module):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in docstrings_of(module):
        lines -= lines_of(docstring)
    return lines


MARKER = re.compile(r"#\s*(fmt|noqa|type|mypy)\b")
"""Comments for the formatter and the checkers, which explain nothing."""


def comment_lines(module: Module) -> set[int]:
    """Numbers of the lines that hold a comment alone, markers for tools left out."""
    comments = [token for token in tokens_of(module) if token.type == tokenize.COMMENT]
    alone = [token for token in comments if token.line.strip() == token.string.strip()]
    return {token.start[0] for token in alone if not MARKER.match(token.string)}


def lines_of(node: ast.stmt) -> set[int]:
    """Numbers of the lines from the first to the last of a statement."""
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def is_on_one_line(node: ast.stmt) -> bool:
    """True if a statement ends on the line that it begins on."""
    return node.lineno == node.end_lineno


def num_code_lines(modules: Iterable[Module]) -> int:
    """Lines of code of all the modules."""
    return sum(len(code_lines(module)) for module in modules)


# The front: places, parameters, kernels


def num_report_constructions(modules: Iterable[Module]) -> int:
    """Calls of the class Report."""
    calls = [node for node in nodes_of(modules) if isinstance(node, ast.Call)]
    return sum(last_name(call.func) == "Report" for call in calls)


def last_name(node: ast.AST) -> str:
    """`c` for the expressions c and a.b.c; the empty string for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return ""


def num_functions_of_api(modules: Iterable[Module]) -> int:
    """Functions of api.py, without methods, nested functions and overloads."""
    count = 0
    for module in modules:
        if module.name_in_package == "api":
            count += sum(
                function in module.tree.body for function in functions_of([module])
            )
    return count


def num_long_signatures(modules: Iterable[Module]) -> int:
    """Functions with more than 6 parameters, those of devices included."""
    return sum(len(parameters_of(function)) > 6 for function in functions_of(modules))


def num_starred_calls(modules: Iterable[Module]) -> int:
    """Calls with two starred arguments (`*x`) or more."""
    calls = [node for node in nodes_of(modules) if isinstance(node, ast.Call)]
    return sum(
        sum(isinstance(argument, ast.Starred) for argument in call.args) >= 2
        for call in calls
    )


def num_scheme_checks(modules: Iterable[Module]) -> int:
    """`isinstance` calls outside of schemes/ whose second argument names a class of
    schemes.
    """
    outside = [
        module for module in modules if not is_in(module.name_in_package, ["schemes"])
    ]
    calls = [
        node
        for node in nodes_of(outside)
        if isinstance(node, ast.Call) and len(node.args) == 2
    ]
    checks = [call for call in calls if last_name(call.func) == "isinstance"]
    return sum(
        any(last_name(node) in SCHEMES for node in ast.walk(check.args[1]))
        for check in checks
    )


def longest_kernel_signature(
    modules: Sequence[Module], *, in_fields: bool
) -> tuple[int, str]:
    """The largest number of parameters of a device function, and the name of that
    function.

    Parameters
    ----------
    in_fields : bool
        Count a parameter that is annotated by a NamedTuple of these modules as that
        many parameters as it has fields.
    """
    sizes = record_sizes(modules) if in_fields else {}
    longest = (0, "none")
    for function in device_functions_of(modules):
        annotations = [parameter.annotation for parameter in parameters_of(function)]
        size = sum(
            sizes.get(last_name(annotation), 1) if annotation else 1
            for annotation in annotations
        )
        longest = max(longest, (size, function.name))
    return longest


def record_sizes(modules: Iterable[Module]) -> dict[str, int]:
    """The number of fields of each NamedTuple, by name."""
    sizes = {}
    for node in nodes_of(modules):
        if isinstance(node, ast.ClassDef) and any(
            last_name(base) == "NamedTuple" for base in node.bases
        ):
            sizes[node.name] = sum(
                isinstance(statement, ast.AnnAssign) for statement in node.body
            )
    return sizes


def device_lines(modules: Iterable[Module]) -> tuple[int, int]:
    """Lines of code in device functions, and lines with nothing but a comment in
    them.
    """
    num_lines = 0
    num_comments = 0
    for module in modules:
        inside: set[int] = set()
        for function in device_functions_of([module]):
            inside |= lines_of(function)
        if inside:
            num_lines += len(inside & code_lines(module))
            num_comments += len(inside & comment_lines(module))
    return num_lines, num_comments


# How much a line holds


def num_syntax_nodes(modules: Iterable[Module]) -> int:
    """Statements and expressions, docstrings left out.

    Of what `ast.walk` yields, operators, contexts, parameters and the like are left
    out, as they come with these.
    """
    count = 0
    for module in modules:
        nodes = [node for node in module.nodes if isinstance(node, ast.stmt | ast.expr)]
        # A docstring is a statement and the constant in it.
        count += len(nodes) - 2 * len(docstrings_of(module))
    return count


def num_dense_statements(modules: Iterable[Module]) -> int:
    """Statements on a single line with 20 nodes of expressions or more."""
    statements = [node for node in nodes_of(modules) if isinstance(node, ast.stmt)]
    short = [statement for statement in statements if is_on_one_line(statement)]
    return sum(num_expressions(statement) >= 20 for statement in short)


def num_expressions(statement: ast.stmt) -> int:
    """Nodes of expressions in a statement."""
    return sum(isinstance(node, ast.expr) for node in ast.walk(statement))


def num_tuple_assignments(modules: Iterable[Module]) -> int:
    """Assignments such as `a, b = x, y`: as many names as values, on a single line."""
    count = 0
    for node in nodes_of(modules):
        if (
            isinstance(node, ast.Assign)
            and is_on_one_line(node)
            and isinstance(node.value, ast.Tuple)
        ):
            targets = [
                target for target in node.targets if isinstance(target, ast.Tuple)
            ]
            count += any(len(target.elts) == len(node.value.elts) for target in targets)
    return count


def num_conditional_expressions(modules: Iterable[Module]) -> int:
    """Expressions such as `x if condition else y`."""
    return sum(isinstance(node, ast.IfExp) for node in nodes_of(modules))


def num_comprehensions(modules: Iterable[Module]) -> int:
    """Comprehensions of lists, sets and dicts, and generator expressions."""
    kinds = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    return sum(isinstance(node, kinds) for node in nodes_of(modules))


def num_comment_lines(modules: Iterable[Module]) -> int:
    """Lines that hold a comment alone, markers for tools left out."""
    return sum(len(comment_lines(module)) for module in modules)


def num_any_annotations(modules: Iterable[Module]) -> int:
    """Annotations of parameters, results and variables that contain `Any`."""
    annotations: list[ast.expr | None] = []
    for node in nodes_of(modules):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
        elif isinstance(node, Function):
            annotations.append(node.returns)
    return sum(
        any(last_name(x) == "Any" for x in ast.walk(annotation))
        for annotation in annotations
        if annotation
    )


def share_of_roles(modules: Iterable[Module]) -> float:
    """Percentage of the local names that are a participle or a pronoun of ROLES; a name
    counts once a function.
    """
    num_names = 0
    num_roles = 0
    for node in nodes_of(modules):
        if isinstance(node, Function | ast.Lambda):
            names = local_names(node)
            num_names += len(names)
            num_roles += len(names & ROLES)
    return 100 * num_roles / max(num_names, 1)


def local_names(function: Function | ast.Lambda) -> set[str]:
    """Names that a function binds: parameters, and what is assigned to outside of
    functions and classes in it.
    """
    names = {parameter.arg for parameter in parameters_of(function)}
    body = function.body if isinstance(function.body, list) else [function.body]
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        waiting.extend(ast.iter_child_nodes(node))
    return names


# The first two rules: imports go down, without a circle


def import_graph(modules: Sequence[Module]) -> Graph:
    """Modules of the package that each module needs: by import, wherever it stands, by
    name, and through slots.

    A slot is a variable of a module that another module assigns to, as in
    `kernels.matmul = product`: at run time the first calls into the second, so it needs
    that one as much as if it imported it.
    """
    names = {module.name for module in modules}
    graph: Graph = {module.name: set() for module in modules}
    for module in modules:
        graph[module.name] |= imports_of(module, names)
        for slot in slots_filled_by(module, names):
            graph[slot].add(module.name)
    for name, targets in graph.items():
        targets.discard(name)
    return graph


def imports_of(module: Module, names: set[str]) -> set[str]:
    """Those of the names that a module imports, in functions and for type checkers
    too.
    """
    targets = set(names_bound_to_imports(module, names).values())
    for node in module.nodes:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and last_name(node.func) == "import_module":
            targets |= {
                x.value
                for x in node.args
                if isinstance(x, ast.Constant) and isinstance(x.value, str)
            }
    return targets & names


def names_bound_to_imports(module: Module, names: set[str]) -> dict[str, str]:
    """The module that each imported name is, or comes from."""
    modules: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            base = imported_base(module, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                modules[alias.asname or alias.name] = inner if inner in names else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    modules[alias.asname] = alias.name
    return modules


def imported_base(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what `from ... import` names."""
    if not node.level:
        return node.module or ""
    is_package = module.path.name == "__init__.py"
    package = module.name.split(".") if is_package else module.name.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def slots_filled_by(module: Module, names: set[str]) -> set[str]:
    """Those of the names whose variables a module assigns to."""
    imported = names_bound_to_imports(module, names)
    slots = set()
    for node in module.nodes:
        if isinstance(node, ast.Assign):
            targets = [
                x
                for target in node.targets
                for x in ast.walk(target)
                if isinstance(x, ast.Attribute)
            ]
            owners = [
                target.value.id
                for target in targets
                if isinstance(target.value, ast.Name)
            ]
            slots |= {
                imported[owner] for owner in owners if imported.get(owner) in names
            }
    return slots


def way(graph: Graph, start: str, end: str) -> list[str]:
    """The names on a shortest way from one module to another, both included; empty
    without one.
    """
    reached_from: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for target in sorted(graph.get(name, ())):
            if target not in reached_from:
                reached_from[target] = name
                waiting.append(target)
    if end not in reached_from:
        return []
    names = [end]
    while names[-1] != start or len(names) == 1:
        names.append(reached_from[names[-1]])
    return names[::-1]


def circles_of(graph: Graph) -> list[list[str]]:
    """Circles such that no other is left when the last import of each is taken away; a
    circle ends where it begins.
    """
    remaining = {name: set(targets) for name, targets in graph.items()}
    circles = []
    for name in sorted(remaining):
        while circle := way(remaining, name, name):
            circles.append(circle)
            remaining[circle[-2]].discard(circle[-1])
    return circles


def without_edges(graph: Graph, edges: Iterable[Edge]) -> Graph:
    """The graph without some of its imports."""
    remaining = {name: set(targets) for name, targets in graph.items()}
    for name, target in edges:
        remaining.get(name, set()).discard(target)
    return remaining


def edge_of(entry: str) -> Edge:
    """The two modules of an entry such as "hifigemm.a -> hifigemm.b"."""
    name, _, target = entry.partition(" -> ")
    return name, target


def entry_of(edge: Edge) -> str:
    """The entry for an import."""
    return " -> ".join(edge)


def check_circles(graph: Graph, exceptions: Sequence[str]) -> list[str]:
    """Complaints about circles among imports that the exceptions do not open, and about
    exceptions that open none.
    """
    edges = [edge_of(entry) for entry in exceptions]
    remaining = without_edges(graph, edges)
    complaints = []
    for circle in circles_of(remaining):
        text = "these modules import each other in a circle: {}; move what they share to a module below them"
        complaints.append(text.format(" -> ".join(circle)))
    # An import whose return closes no circle needs no exception; it stays while the
    # next ones are looked at.
    for name, target in edges:
        exists = target in graph.get(name, ())
        closes_a_circle = exists and bool(way(remaining, target, name))
        if not closes_a_circle:
            complaints.append(out_of_date(entry_of((name, target)), CIRCLES))
        if exists and not closes_a_circle:
            remaining[name].add(target)
    return complaints


def room_of(name: str, rooms: Sequence[tuple[str, tuple[str, ...]]]) -> int | None:
    """The index of the room of a module, 0 at the top: that of the longest name which
    holds the module.
    """
    inner = name.partition(".")[2] or "__init__"
    index_and_length: tuple[int | None, int] = (None, 0)
    for index, (_, members) in enumerate(rooms):
        for member in members:
            if is_in(inner, [member]) and len(member) > index_and_length[1]:
                index_and_length = (index, len(member))
    return index_and_length[0]


def check_upward_imports(
    graph: Graph,
    exceptions: Sequence[str],
    rooms: Sequence[tuple[str, tuple[str, ...]]] = ROOMS,
) -> list[str]:
    """Complaints about imports of a room above, about modules without a room, and about
    exceptions without need.
    """
    complaints = []
    upward = set()
    for name in sorted(graph):
        room = room_of(name, rooms)
        if room is None:
            complaints.append(
                f"{name} has no room yet: name it or its package in ROOMS of tools/measures.py"
            )
            continue
        for target in sorted(graph[name]):
            target_room = room_of(target, rooms)
            if target_room is None or target_room >= room:
                continue
            entry = entry_of((name, target))
            upward.add(entry)
            if entry not in exceptions:
                places = f"{rooms[room][0]} lies below {rooms[target_room][0]}"
                complaints.append(
                    f"upward import: {entry} ({places}); move what is shared down, or pass it as argument"
                )
    complaints += [
        out_of_date(entry, UPWARD) for entry in exceptions if entry not in upward
    ]
    return complaints


# The third rule: a test file for each module


def untested_modules(package: Path, tests: Path) -> set[str]:
    """Files of the package, as in "engines/rates.py", without a file of tests, as in
    "tests/engines/test_rates.py".
    """
    files = [path.relative_to(package) for path in package.rglob("*.py")]
    modules = [
        file for file in files if file.name not in ("__init__.py", "__main__.py")
    ]
    return {
        module.as_posix()
        for module in modules
        if not (tests / module.with_name(f"test_{module.name}")).is_file()
        and not only_names_others(package / module)
    }


def only_names_others(path: Path) -> bool:
    """True for a module of imports and assignments alone, as for stored pickles."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    has_imports = any(isinstance(node, ast.ImportFrom) for node in nodes)
    return has_imports and not any(
        isinstance(node, Function | ast.ClassDef) for node in nodes
    )


def check_tests(package: Path, tests: Path, exceptions: Sequence[str]) -> list[str]:
    """Complaints about modules without a file of tests, and about exceptions that have
    one by now or are gone.
    """
    untested = untested_modules(package, tests)
    complaints = []
    for module in sorted(untested - set(exceptions)):
        path = Path(module)
        test = (Path("tests") / path.with_name(f"test_{path.name}")).as_posix()
        complaints.append(f"{module} has no test of its name: write {test}")
    complaints += [
        out_of_date(entry, UNTESTED) for entry in exceptions if entry not in untested
    ]
    return complaints


# Exceptions


CIRCLES = "circles of imports"
UPWARD = "upward imports"
UNTESTED = "modules without a test"


def out_of_date(entry: str, section: str) -> str:
    """The complaint about an exception that is needed no more."""
    return f'"{entry}" is no exception any more: remove it from [{section}] of {EXCEPTIONS.name}'


def read_exceptions(path: Path) -> dict[str, list[str]]:
    """Entries by section; blank lines and lines that begin with # are none.

    Raises ValueError: an entry in front of the first section, or a section that no rule
    has.
    """
    sections: dict[str, list[str]] = {CIRCLES: [], UPWARD: [], UNTESTED: []}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if entry.startswith("["):
            section = entry.strip("[]")
        if section not in sections:
            raise ValueError(
                f"{path.name}: {entry!r} is not in one of the sections {', '.join(sections)}"
            )
        if not entry.startswith("["):
            sections[section].append(entry)
    return sections


def broken_rules(
    package: Path, tests: Path, exceptions: dict[str, list[str]]
) -> list[str]:
    """Complaints of all three rules, each a line that says what to do."""
    graph = import_graph(modules_of(package))
    return [
        *check_circles(graph, exceptions[CIRCLES]),
        *check_upward_imports(graph, exceptions[UPWARD]),
        *check_tests(package, tests, exceptions[UNTESTED]),
    ]


# The report


def print_figures(heading: str, figures: Sequence[tuple[object, str]]) -> None:
    """Print a heading, and a line for each figure with its name."""
    print(heading)
    for value, name in figures:
        text = f"{value:,.1f}" if isinstance(value, float) else str(value)
        print(f"  {text:>9}  {name}")
    print()


def repeated_figure(name: str, function: Callable[[], object]) -> tuple[str, str]:
    """The line of a call that is repeated."""
    calls, files = own_calls.repeated_calls_of(function)
    return f"{calls} in {files}", name


def print_calls() -> None:
    """Print how far products have to go."""
    repeated = [
        repeated_figure(name, function)
        for name, function in own_calls.products().items()
    ]
    # Once JAX is loaded, every product asks whether its operands are arrays of JAX:
    # that comes last.
    if find_spec("jax") is not None:
        repeated.append(
            repeated_figure(
                "matmul with a fixed scheme inside jax.jit", own_calls.product_of_jax()
            )
        )
    counts = own_calls.counts_of(own_calls.PLAIN)
    first = [
        (counts["imported_files"], "files imported by the end of it"),
        (counts["first_files"], "files whose functions it calls"),
    ]
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    print_figures(
        f"Own calls, in so many files, of a repeated product of 64 x 64 float64 arrays ({python})",
        repeated,
    )
    print_figures("The first matmul(a, b) of a process", first)


def print_front(modules: Sequence[Module]) -> None:
    """Print counts of the whole library."""
    parameters, kernel = longest_kernel_signature(modules, in_fields=False)
    fields, kernel_of_fields = longest_kernel_signature(modules, in_fields=True)
    lines, comments = device_lines(modules)
    figures: list[tuple[object, str]] = [
        (len(modules), "files"),
        (num_report_constructions(modules), "places that construct a Report"),
        (num_functions_of_api(modules), "functions of api.py"),
        (num_long_signatures(modules), "functions with more than 6 parameters"),
        (num_starred_calls(modules), "calls with two starred arguments or more"),
        (
            num_scheme_checks(modules),
            "isinstance checks for a class of schemes, outside of schemes/",
        ),
        (
            parameters,
            f"most parameters of a device function ({kernel}); a record counts as one",
        ),
        (fields, f"the same with a record counted as its fields ({kernel_of_fields})"),
        (lines, "lines of code in device functions"),
        (comments, "comment lines in device functions"),
    ]
    print_figures("The whole library", figures)


def print_density(modules: Sequence[Module]) -> None:
    """Print how much a line of the library holds."""
    lines = num_code_lines(modules)
    nodes = num_syntax_nodes(modules)
    annotations = num_any_annotations(modules)
    sizes: list[tuple[object, str]] = [
        (lines, "lines of code"),
        (nodes, "syntax nodes (statements and expressions)"),
        (nodes / lines, "syntax nodes in a line of code"),
        (
            share_of_roles(modules),
            "% of the local names are a participle or a pronoun (found, made, own, at, ...)",
        ),
        (annotations, "annotations that contain Any"),
    ]
    counts = [
        (
            num_dense_statements(modules),
            "one-line statements of 20 expression nodes or more",
        ),
        (num_tuple_assignments(modules), "assignments a, b = x, y"),
        (num_conditional_expressions(modules), "conditional expressions"),
        (num_comprehensions(modules), "comprehensions"),
        (num_comment_lines(modules), "comment lines"),
        (annotations, "annotations that contain Any"),
    ]
    print_figures(
        "The library without the workshop (what only measures and shows)", sizes
    )
    print_figures(
        "In 1,000 lines of its code",
        [(1000 * count / lines, name) for count, name in counts],
    )


def main() -> int:
    """Print the figures, then what breaks a rule; 1 if anything does."""
    modules = modules_of(LIBRARY)
    print_calls()
    print_front(modules)
    print_density(without_workshop(modules))

    exceptions = read_exceptions(EXCEPTIONS)
    listed = [(len(entries), name) for name, entries in exceptions.items()]
    print_figures(f"Exceptions in tools/{EXCEPTIONS.name}", listed)

    complaints = broken_rules(LIBRARY, ROOT / "tests", exceptions)
    for complaint in complaints:
        print(f"error: {complaint}")
    return int(bool(complaints))


if __name__ == "__main__":
    raise SystemExit(main())
