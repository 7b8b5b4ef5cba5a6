"""What docstrings of public names have to have, so that `help` and the pages of the site
say it: each parameter, an example, and nothing that Markdown takes for something else.
"""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

from tests.test_public_interface import imported, modules

SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
"""A heading of NumPy's style, with its line."""

WITHOUT_EXAMPLE = {"findings", "install", "uninstall"}
"""Functions that act on the whole process, or take minutes."""


def sections(text):
    """The sections of a docstring by heading, "" for what stands before the first."""
    before, *rest = SECTION.split(text)
    return {"": before} | dict(zip(rest[::2], rest[1::2]))


def named_in(section):
    """The names that a section describes, such as a and b in "a, b : array_like"."""
    heads = re.findall(
        r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: :.*)?$", section, re.MULTILINE
    )
    return [name.strip("* ") for head in heads for name in head.split(",")]


def functions_of(module):
    """The public functions of a module, and the classes that users make objects of."""
    for name in module.__all__:
        public = getattr(module, name)
        is_class = isinstance(public, type)
        is_error = is_class and issubclass(public, BaseException)
        is_record = is_class and "Attributes" in sections(inspect.getdoc(public) or "")
        if callable(public) and not is_error and not is_record:
            yield name, public


@pytest.mark.parametrize("name", modules())
def test_every_parameter_is_described(name):
    missing = {}
    for function, public in functions_of(imported(name)):
        text = sections(inspect.getdoc(public)).get("Parameters", "")
        parameters = {*inspect.signature(public).parameters}
        if parameters != {*named_in(text)}:
            missing[function] = sorted(parameters ^ {*named_in(text)})
    assert missing == {}


@pytest.mark.parametrize("name", modules())
def test_every_function_has_an_example(name):
    missing = []
    for function, public in functions_of(imported(name)):
        examples = sections(inspect.getdoc(public)).get("Examples", "")
        if inspect.isroutine(public) and ">>> " not in examples:
            missing.append(function)
    assert {*missing} <= WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", modules())
def test_examples_give_what_they_show(name):
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for function, public in functions_of(imported(name)):
        for example in finder.find(public, f"{name}.{function}", module=False):
            runner.run(example)
    assert runner.failures == 0


def prose(text):
    """A docstring without its examples and without what stands between backticks."""
    lines = [
        line for line in text.splitlines() if not re.match(r"\s*(>>>|\.\.\.) ", line)
    ]
    return re.sub(r"``.*?``|`[^`]*`", "", "\n".join(lines), flags=re.DOTALL)


@pytest.mark.parametrize("name", modules())
def test_markdown_leaves_the_text_as_it_is(name):
    wrong = []
    module = imported(name)
    for place in module.__all__:
        public = getattr(module, place)
        text = (inspect.getdoc(public) or "") if callable(public) else ""
        others = [x for head, x in sections(text).items() if head != "Examples"]
        if ">>>" in "".join(others):
            wrong.append(f"{place}: an example outside of its section is a quotation")
        # A word in asterisks is meant, and so are *args at the start of a line.
        plain = re.sub(r"(?<![\w*])\*\w[^*\n]*\*(?![\w*])", "", prose(text))
        plain = re.sub(r"^\s*\*{1,2}\w+(, \*{1,2}\w+)*$", "", plain, flags=re.MULTILINE)
        for line in plain.splitlines():
            if "*" in line:
                wrong.append(f"{place}: asterisks are emphasis: {line.strip()}")
    assert wrong == []
