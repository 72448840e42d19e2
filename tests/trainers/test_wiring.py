"""Objects are wired by who builds them: what they are given stays as it was."""

import ast
from collections.abc import Iterator
from pathlib import Path

import trainers

SOURCES = sorted(Path(trainers.__path__[0]).rglob("*.py"))


def rewired(tree: ast.AST) -> Iterator[str]:
    """Yield the targets of a constructor's assignments that are attributes of its arguments."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            own, *given = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
            for target in ast.walk(function):
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    root = ast.unparse(target).partition(".")[0]
                    if root in given and root != own:
                        yield ast.unparse(target)


def test_an_attribute_of_an_argument_is_found():
    source = "class A:\n def __init__(self, b, *, c):\n  self.b, b.see = b, self\n  c.d.e += 1"

    assert {*rewired(ast.parse(source))} == {"b.see", "c.d.e"}


def test_no_constructor_sets_an_attribute_of_what_it_is_given():
    found = {path.name: [*rewired(ast.parse(path.read_text()))] for path in SOURCES}

    assert len(found) > 100
    assert {name: targets for name, targets in found.items() if targets} == {}
