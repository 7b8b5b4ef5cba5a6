"""What counts the code counts right, and notices circles, imports upward, missing tests
and stale exceptions.
"""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tools import measures

ROOMS = (("upper", ("top",)), ("lower", ("bottom", "top.deep")))


def package(folder, files):
    """A package `p` of files: their text by their name, such as "inner/a"."""
    root = folder / "p"
    for name, text in {"__init__": "", **files}.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
    return root


def modules_with(folder, text, name="a"):
    """The modules of a package with one file of that text."""
    return measures.modules_of(package(folder, {name: text}))


def graph_of(folder, **files):
    return measures.import_graph(measures.modules_of(package(folder, files)))


# Imports


def test_all_ways_to_import_are_edges(tmp_path):
    graph = graph_of(
        tmp_path,
        a="""
            import p.b
            from p import c
            from .d import x
            from typing import TYPE_CHECKING
            from importlib import import_module
            if TYPE_CHECKING:
                from p.e import y
            def lazy():
                from p.f import z
                import_module("p.g")
                print("p.h")
        """,
        **dict.fromkeys("bcdefgh", ""),
    )
    # p.h stands in a string that imports nothing.
    assert graph["p.a"] == {"p.b", "p.c", "p.d", "p.e", "p.f", "p.g"}


def test_relative_imports_of_packages_are_resolved(tmp_path):
    graph = graph_of(
        tmp_path,
        **{
            "inner/__init__": "from . import b\nfrom ..c import x\n",
            "inner/b": "",
            "c": "",
        },
    )
    assert graph["p.inner"] == {"p.inner.b", "p.c"}


def test_an_order_has_no_circle(tmp_path):
    graph = graph_of(tmp_path, a="from p import b, c\n", b="from p import c\n", c="")
    assert measures.check_circles(graph, []) == []


def test_a_circle_is_found(tmp_path):
    graph = graph_of(
        tmp_path, a="from p import b\n", b="from p import c\n", c="from p.a import x\n"
    )
    (complaint,) = measures.check_circles(graph, [])
    assert "p.a -> p.b -> p.c -> p.a" in complaint


def test_two_circles_are_both_found(tmp_path):
    graph = graph_of(
        tmp_path, a="from p import b\n", b="from p import a, c\n", c="from p import b\n"
    )
    complaints = measures.check_circles(graph, [])
    assert len(complaints) == 2
    assert "p.a -> p.b -> p.a" in complaints[0]
    assert "p.b -> p.c -> p.b" in complaints[1]


def test_a_lazily_imported_circle_is_found(tmp_path):
    graph = graph_of(
        tmp_path,
        a="import p.b\n",
        b="def f():\n    def g():\n        from p.a import x\n",
    )
    (complaint,) = measures.check_circles(graph, [])
    assert "p.a -> p.b -> p.a" in complaint


@pytest.mark.parametrize(
    "statement", ["b.x = f", "b.x, b.y = f, f", "def g():\n    b.x = f"]
)
def test_a_circle_through_a_slot_is_found(tmp_path, statement):
    graph = graph_of(
        tmp_path, a=f"from p import b\ndef f(): ...\n{statement}\n", b="x = None\n"
    )
    (complaint,) = measures.check_circles(graph, [])
    assert "p.a -> p.b -> p.a" in complaint


def test_an_exception_opens_its_circle_and_no_other(tmp_path):
    graph = graph_of(
        tmp_path, a="from p import b, c\n", b="from p import a\n", c="from p import a\n"
    )
    assert measures.check_circles(graph, ["p.b -> p.a", "p.c -> p.a"]) == []
    (complaint,) = measures.check_circles(graph, ["p.b -> p.a"])
    assert "p.a -> p.c -> p.a" in complaint


@pytest.mark.parametrize(
    "entry", ["p.a -> p.c", "p.c -> p.a", "p.a -> p.nothing", "p.nothing -> p.a"]
)
def test_a_stale_exception_of_circles_fails(tmp_path, entry):
    graph = graph_of(tmp_path, a="from p import b, c\n", b="from p import a\n", c="")
    (complaint,) = measures.check_circles(graph, ["p.b -> p.a", entry])
    assert complaint.startswith(f'"{entry}"')
    assert "remove it" in complaint


def test_of_two_exceptions_for_one_circle_one_is_stale(tmp_path):
    graph = graph_of(tmp_path, a="from p import b\n", b="from p import a\n")
    (complaint,) = measures.check_circles(graph, ["p.a -> p.b", "p.b -> p.a"])
    assert complaint.startswith('"p.a -> p.b"')


def test_an_upward_import_is_found_in_functions_too(tmp_path):
    graph = graph_of(
        tmp_path,
        top="from p import bottom\n",
        bottom="def f():\n    from p.top import x\n",
    )
    (complaint,) = measures.check_upward_imports(
        graph, [], [*ROOMS, ("root", ("__init__",))]
    )
    assert "p.bottom -> p.top" in complaint
    assert "lower lies below upper" in complaint
    assert not measures.check_upward_imports(
        graph, ["p.bottom -> p.top"], [*ROOMS, ("root", ("__init__",))]
    )


def test_a_stale_exception_of_upward_imports_fails(tmp_path):
    graph = graph_of(tmp_path, top="from p import bottom\n", bottom="")
    (complaint,) = measures.check_upward_imports(
        graph, ["p.bottom -> p.top"], [*ROOMS, ("root", ("__init__",))]
    )
    assert "remove it from [upward imports]" in complaint


def test_a_module_without_a_room_is_named(tmp_path):
    (complaint,) = measures.check_upward_imports(
        graph_of(tmp_path, top="", other=""), [], [*ROOMS, ("", ("__init__",))]
    )
    assert complaint.startswith("p.other has no room")


def test_the_longest_name_gives_the_room():
    assert measures.room_of("p.top.other", ROOMS) == 0
    assert measures.room_of("p.top.deep.er", ROOMS) == 1
    assert measures.room_of("p.topmost", ROOMS) is None
    assert measures.room_of("p", ROOMS) is None


# Tests of modules, and exceptions


def test_a_module_without_a_test_is_found(tmp_path):
    root = package(
        tmp_path, dict.fromkeys(["a", "inner/__init__", "inner/b", "__main__"], "")
    )
    tests = tmp_path / "tests"
    (tests / "inner").mkdir(parents=True)
    (tests / "test_a.py").touch()
    (complaint,) = measures.check_tests(root, tests, [])
    assert (
        complaint == "inner/b.py has no test of its name: write tests/inner/test_b.py"
    )
    assert measures.check_tests(root, tests, ["inner/b.py"]) == []


def test_a_stale_exception_of_tests_fails(tmp_path):
    root = package(tmp_path, {"a": ""})
    (tmp_path / "test_a.py").touch()
    complaints = measures.check_tests(root, tmp_path, ["a.py", "gone.py"])
    assert len(complaints) == 2
    assert all(
        "remove it from [modules without a test]" in complaint
        for complaint in complaints
    )


def test_exceptions_are_read_by_section(tmp_path):
    path = tmp_path / "exceptions.txt"
    path.write_text(
        "# why\n[upward imports]\np.b -> p.a\n\n[modules without a test]\n# none\n",
        "utf-8",
    )
    assert measures.read_exceptions(path) == {
        "circles of imports": [],
        "upward imports": ["p.b -> p.a"],
        "modules without a test": [],
    }


@pytest.mark.parametrize("text", ["p.b -> p.a\n", "[other]\np.b -> p.a\n"])
def test_an_exception_without_a_rule_is_an_error(tmp_path, text):
    path = tmp_path / "exceptions.txt"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match="one of the sections"):
        measures.read_exceptions(path)


# Figures


CODE = '''\
"""Docstring
over two lines."""

# A comment.
LIMIT = 1
"""Of a constant."""


def f(x):  # a comment behind code
    """Of a function."""
    # fmt: off
    text = """not
    a docstring"""
    return x + text  # noqa: E501
'''


def test_lines_are_code_comment_or_neither(tmp_path):
    *_, module = modules_with(tmp_path, CODE)
    lines = CODE.splitlines()
    code = [
        "LIMIT = 1",
        "def f(x):  # a comment behind code",
        '    text = """not',
        '    a docstring"""',
    ]
    assert [lines[i - 1] for i in sorted(measures.code_lines(module))] == [
        *code,
        "    return x + text  # noqa: E501",
    ]
    assert [lines[i - 1] for i in sorted(measures.comment_lines(module))] == [
        "# A comment."
    ]


def test_syntax_nodes_leave_docstrings_out(tmp_path):
    # The assignment, its name, the sum, and the two terms of it.
    assert measures.num_syntax_nodes(modules_with(tmp_path, "x = y + 1\n")) == 5
    # The function, its result and the name in that.
    text = '"""Module."""\ndef f(x):\n    """Function."""\n    return x\n'
    assert measures.num_syntax_nodes(modules_with(tmp_path, text)) == 3


def test_local_names_stop_at_inner_functions():
    text = """
        def f(a, *b, c=1, **d):
            e = [g for g in a]
            (h, k.attribute), m[n] = e, c
            with e as o:
                pass
            def inner(p):
                q = p
            return lambda r: r
    """
    (function,) = ast.parse(dedent(text)).body
    assert measures.local_names(function) == {"a", "b", "c", "d", "e", "g", "h", "o"}


def test_the_share_of_roles_counts_a_name_once_in_each_function(tmp_path):
    text = """
        found = 1
        def f(given, x):
            made = x
            made = given
            y = found
            return lambda rest: rest
    """
    # Of f: given, made out of given, x, made, y; of the lambda: rest out of rest.
    # Variables of a module are not local.
    assert measures.share_of_roles(modules_with(tmp_path, text)) == 100 * 3 / 5


def test_dense_statements_begin_at_twenty_nodes_of_expressions(tmp_path):
    # A call of f with n names has n + 2 nodes.
    for num_names, expected in ((17, 0), (18, 1)):
        call = f"f({', '.join(['x'] * num_names)})\n"
        assert measures.num_dense_statements(modules_with(tmp_path, call)) == expected
        assert (
            measures.num_dense_statements(
                modules_with(tmp_path, call.replace(", ", ",\n"))
            )
            == 0
        )


def test_tuple_assignments_have_as_many_names_as_values_on_a_line(tmp_path):
    text = (
        "a, b = x, y\n"
        "a, b = c = x, y\n"
        "m, n = shape\n"
        "a = x, y\n"
        "a, *b = x, y, z\n"
        "a, b = (\n    x, y)\n"
        "a, b = f(x, y)\n"
    )
    assert measures.num_tuple_assignments(modules_with(tmp_path, text)) == 2


def test_other_expressions_are_counted(tmp_path):
    text = "a = [x for x in y]\nb = {x for x in y}\nc = {x: 1 for x in y}\nd = sum(x if x else y for x in y)\n"
    modules = modules_with(tmp_path, text)
    assert measures.num_comprehensions(modules) == 4
    assert measures.num_conditional_expressions(modules) == 1
    text = "def f(a: Any, b: dict[str, typing.Any], *c: Any, d: int) -> Any:\n    x: list[Any] = Any\n"
    assert measures.num_any_annotations(modules_with(tmp_path, text)) == 5
    text = "f(*a, *b)\nf(*a, x, **b)\nf(*a, *b, *c)\nf([*a, *b])\n"
    assert measures.num_starred_calls(modules_with(tmp_path, text)) == 2


def test_reports_and_checks_for_schemes_are_counted(tmp_path):
    text = "Report(1)\nplan.Report(1)\nBlocksReport(1)\nx: Report = Report\n"
    assert measures.num_report_constructions(modules_with(tmp_path, text)) == 2
    text = (
        "isinstance(x, Ozaki2)\n"
        "isinstance(x, (int, hg.Native))\n"
        "isinstance(x, A | Scheme)\n"
        "isinstance(Native, type)\n"
    )
    root = package(tmp_path, {"a": text, "schemes/a": text})
    assert measures.num_scheme_checks(measures.modules_of(root)) == 3


def test_functions_and_their_parameters_are_counted_without_overloads(tmp_path):
    text = """
        @overload
        def f(a, b, c, d, e, g, h): ...
        def f(a, b, /, c, *d, e, **g):
            def inner(): ...
        def h(a, b, /, c, *d, e, f, **g): ...
        class A:
            def method(self): ...
    """
    modules = modules_with(tmp_path, text, "api")
    assert measures.num_functions_of_api(modules) == 2
    assert measures.num_long_signatures(modules) == 1


KERNELS = """
    class Strided(NamedTuple):
        pointer: int
        row: int
        column: int
    @triton.jit
    def f(a, b, c: tl.constexpr):
        # Why.
        # fmt: skip
        return a

    @gluon.jit(do_not_specialize=["x"])
    def g(x: Strided, y: Strided):
        return x
    @jax.jit
    def h(a, b, c, d, e, f, g):
        # On no device of ours.
        return a
"""


def test_device_functions_are_those_of_triton_and_gluon(tmp_path):
    modules = modules_with(tmp_path, KERNELS)
    assert measures.longest_kernel_signature(modules, in_fields=False) == (3, "f")
    assert measures.longest_kernel_signature(modules, in_fields=True) == (6, "g")
    assert measures.device_lines(modules) == (4, 1)


def test_the_workshop_is_left_out_by_whole_names(tmp_path):
    root = package(
        tmp_path, dict.fromkeys(["cli/a", "client", "workshop", "engines/rates"], "")
    )
    names = [
        module.name for module in measures.without_workshop(measures.modules_of(root))
    ]
    assert names == ["p", "p.client", "p.engines.rates"]
