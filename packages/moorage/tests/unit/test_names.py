"""No variable, argument or function is called `one`, `found`, `told` or `said`: a value is named by what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.xdist_group("source")  # which is parsed once

WORDS = {"one", "found", "told", "said"}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that is given to a value, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield line, name
            case ast.arg(arg=name, lineno=line):
                yield line, name
            case ast.FunctionDef(name=name, lineno=line) | ast.AsyncFunctionDef(name=name, lineno=line):
                yield line, name
            case ast.ExceptHandler(name=str(name), lineno=line) | ast.alias(asname=str(name), lineno=line):
                yield line, name
            case (
                ast.MatchAs(name=str(name), lineno=line)
                | ast.MatchStar(name=str(name), lineno=line)
                | ast.MatchMapping(rest=str(name), lineno=line)
            ):
                yield line, name


def test_a_value_is_named_by_what_it_is(source_trees):
    poor = [
        f"{path}:{line}: {name}"
        for path, tree in source_trees.items()
        for line, name in names_in(tree)
        if name in WORDS
    ]
    assert not poor, "name each value by what it is, such as `pod` or `faults`"


def test_every_way_to_give_a_name_is_seen():
    source = """
import x as a
def b(c, /, d, *e, f=1, **g):
    h = i, *j = k = x
    for l in (m := ()): n: int = 1
    with x as o: p += 1
    try: pass
    except* ValueError as q: pass
    match x:
        case [r, *s, {'a': 1, **t}] as u: pass
    return [v for v in x], lambda w: x
async def y(): z.x = x
"""
    assert {name for _, name in names_in(ast.parse(source))} == set("abcdefghijklmnopqrstuvwy")
