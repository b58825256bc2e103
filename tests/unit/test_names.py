"""No variable, argument or function is called `one`, `found`, `told` or `said`: a value is named by what it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import moorage

SOURCE = Path(moorage.__file__).parent
WORDS = {"one", "found", "told", "said"}
# rooms still to be cleaned: remove each when it is clean
UNCLEAN = {"server"}
ROOMS = sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")})


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


def poor_names(room: str) -> list[str]:
    top = SOURCE / room
    paths = sorted(top.rglob("*.py")) if top.is_dir() else [top]
    return [
        f"{path.relative_to(SOURCE.parent)}:{line}: {name}"
        for path in paths
        for line, name in names_in(ast.parse(path.read_text(encoding="utf-8")))
        if name in WORDS
    ]


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in UNCLEAN])
def test_a_value_is_named_by_what_it_is(room):
    assert not poor_names(room), "name each value by what it is, such as `pod` or `faults`"


def test_the_rooms_still_to_be_cleaned_are_rooms():
    assert set(ROOMS) >= UNCLEAN


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
