"""Tests wait for states, not for time, and patch nothing but the standard library.

`moorage_kube.testing.waiting` waits for a state, `moorage_kube.testing.pausing` until a random moment. What a
function of ours needs, it takes as an argument, so that a test can pass something else.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SLEEP = {"time.sleep", "asyncio.sleep", "anyio.sleep"}
PATCH = {"monkeypatch.setattr", "monkeypatch.delattr", "unittest.mock.patch", "unittest.mock.patch.object"}
SLEEPS = {  # the file and the function → why it sleeps; remove entries, add none
    "moorage/tests/contract/test_servers_that_record.py pass_time": "servers work in threads",
    "moorage/tests/integration/test_services_keep_nothing.py settle": "services work in threads",
}
PATCHES = {  # the file and the patched name → why; remove entries, add none
    "kube/tests/unit/remote/test_client.py loop.create_connection": "the event loop is asyncio's",
    "moorage/tests/unit/server/identity/test_auth.py site.service.cluster.gpus": "an unforeseen error",
    "moorage/tests/unit/server/identity/test_logins.py site.service.auth.identify": "counts the checks",
    "moorage/tests/unit/server/pages/test_jobpages.py ada.site.service.cluster.jobs_of_run": "not seen yet",
}


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Name in the file → the module or the member of a module that it was imported from."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def nodes_in(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each node, and the name of the function that it is in; empty at the top of the file."""
    for node in ast.iter_child_nodes(tree):
        yield function, node
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from nodes_in(node, node.name if is_function else function)


def origin_of(node: ast.expr, names: Mapping[str, str]) -> str:
    """The dotted name of an expression, with its first word as it was imported; empty if it has none."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    return ".".join([names.get(node.id, node.id), *reversed(words)]) if isinstance(node, ast.Name) else ""


def sleeps_in(tree: ast.AST) -> Iterator[str]:
    """The functions that sleep for longer than one turn of the event loop."""
    names = imported_names(tree)
    for function, node in nodes_in(tree):
        is_sleep = isinstance(node, ast.Call) and origin_of(node.func, names) in SLEEP
        if is_sleep and [ast.unparse(argument) for argument in node.args] != ["0"]:
            yield function


def patches_in(tree: ast.AST) -> Iterator[str]:
    """The names outside of the standard library that are patched."""
    names = imported_names(tree)
    for _, node in nodes_in(tree):
        if isinstance(node, ast.Call) and origin_of(node.func, names) in PATCH and node.args:
            target, *rest = (arg.value if isinstance(arg, ast.Constant) else arg for arg in node.args)
            patched = target if isinstance(target, str) else origin_of(target, names) or ast.unparse(target)
            is_local = not isinstance(target, str) and ast.unparse(target).split(".")[0] not in names
            if is_local or patched.split(".")[0] not in sys.stdlib_module_names:
                yield ".".join([patched, *(str(word) for word in rest[:1] if not isinstance(target, str))])
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            assigned = origin_of(node, names)
            if assigned.startswith("moorage") and not assigned.startswith("moorage_testing."):
                yield assigned


@pytest.fixture(scope="module")
def trees_of_tests() -> dict[str, ast.Module]:
    texts = {path: path.read_text() for path in sorted(ROOT.glob("*/tests/**/*.py"))}
    return {str(path.relative_to(ROOT)): ast.parse(text) for path, text in texts.items()}


def test_no_test_sleeps(trees_of_tests: dict[str, ast.Module]) -> None:
    sleeps = [f"{path} {function}" for path, tree in trees_of_tests.items() for function in sleeps_in(tree)]
    assert sorted(sleeps) == sorted(SLEEPS), "wait for a state, with moorage_kube.testing.waiting"


def test_no_test_patches_what_is_ours(trees_of_tests: dict[str, ast.Module]) -> None:
    patches = [f"{path} {name}" for path, tree in trees_of_tests.items() for name in patches_in(tree)]
    assert sorted(patches) == sorted(PATCHES), "pass what the function needs as an argument"


def test_sleeps_and_patches_are_seen() -> None:
    tree = ast.parse(
        """
import asyncio as aio, time
from asyncio import sleep
from moorage import thing
from moorage.thing import Thing as Other
from unittest import mock
import hashlib, os

async def a():
    time.sleep(0.1)
async def b():
    await aio.sleep(x)
async def c():
    await sleep(0.0)
async def d():
    await aio.sleep(0)
    await clock.sleep(5)
    thing.sleep(5)
def e(monkeypatch):
    monkeypatch.setattr("sys.stdin", 1)
    monkeypatch.setattr(os, "write", 1)
    monkeypatch.setattr(hashlib, "scrypt", 1)
    monkeypatch.setattr("moorage.thing.LIMIT", 1)
    monkeypatch.setattr(thing, "LIMIT", 1)
    monkeypatch.setattr(Other, "work", 1)
    monkeypatch.setattr(site.service, "work", 1)
    with mock.patch.object(thing.part, "x"), mock.patch("moorage_kube.y"), mock.patch("os.write"):
        thing.part.LIMIT, site.limit = 1, 2
"""
    )
    assert list(sleeps_in(tree)) == ["a", "b", "c"]
    assert list(patches_in(tree)) == [
        "moorage.thing.LIMIT",
        "moorage.thing.LIMIT",
        "moorage.thing.Thing.work",
        "site.service.work",
        "moorage.thing.part.x",
        "moorage_kube.y",
        "moorage.thing.part.LIMIT",
    ]
