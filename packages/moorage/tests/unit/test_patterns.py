"""Patterns of `re`: none is made of a text of users, for one short text can keep such a pattern busy for ever.

RE2 (`decide/workflows/text/patterns.py`) matches users' patterns: its time grows with the text's length alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import moorage
from moorage_testing.cputime import run_all

SOURCE = Path(moorage.__file__).parent
MAKERS = {"compile", "match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer", "template"}
BANNED = {"fnmatch", "glob", "regex", "sre_compile", "sre_parse"}  # they compile patterns from their arguments
ALLOWED = {"cli/mapitems.py": ["9: import of glob"]}  # a person's own pattern, for files of their own machine


def faults_of(tree: ast.Module) -> Iterator[str]:
    """Where a pattern may be made of a text that is known only when a function runs.

    What stands outside of all functions runs once, when the module is imported: no text of users is there yet.
    """
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    called: set[int] = set()
    while stack:
        node, is_inside = stack.pop()
        match node:
            case ast.Import(names) if any(name.name.split(".")[0] in BANNED for name in names):
                yield f"{node.lineno}: import of {names[0].name}"
            case ast.Import(names) if any(name.name == "re" and name.asname for name in names):
                yield f"{node.lineno}: `re` under another name"
            case ast.ImportFrom(module=module) if (module or "").split(".")[0] in {*BANNED, "re"}:
                yield f"{node.lineno}: import from {module}"
            case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr=maker)) if maker in MAKERS:
                called.add(id(node.func))
                if is_inside and not (node.args and isinstance(node.args[0], ast.Constant)):
                    yield f"{node.lineno}: re.{maker} of what is no literal"
            case ast.Attribute(value=ast.Name("re"), attr=maker) if maker in MAKERS and id(node) not in called:
                yield f"{node.lineno}: re.{maker} is handed on"
        inside = is_inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        stack += [(child, inside) for child in ast.iter_child_nodes(node)]


@pytest.mark.xdist_group("source")
def test_no_pattern_is_made_of_a_text_that_comes_from_outside(source_trees: Mapping[Path, ast.Module]) -> None:
    faults = {"/".join(path.parts[-2:]): list(faults_of(tree)) for path, tree in source_trees.items()}
    assert {path: found for path, found in faults.items() if found} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return re.compile(x)",
        "def f(x): return re.sub('a' + x, '', '')",
        "def f(x): return re.fullmatch(f'(?:{x})+', '')",
        "f = lambda x: re.match(pattern=x, string='')",
        "class C:\n    async def f(self, x): re.search(x.pattern, '')",
        "def f(x): return map(re.compile, x)",
        "import re as patterns",
        "from re import compile",
        "from fnmatch import fnmatchcase",
        "import glob",
    ],
)
def test_each_way_around_the_rule_is_found(source: str) -> None:
    assert len(list(faults_of(ast.parse(source)))) == 1


def test_literals_and_patterns_made_at_import_are_allowed() -> None:
    source = "A = 'a'\nB = re.compile(rf'{A}+')\ndef f(x): return re.sub(r'a+', '', x) + B.sub('', x)"
    assert list(faults_of(ast.parse(source))) == []


# each kept a process busy for minutes or for ever, with a pattern that was made of it or that went back in it
HOSTILE = {
    "signer of a certificate": """
        from moorage_local.apiserver.kinds.certificatesigningrequest import _SIGNER
        assert not _SIGNER.fullmatch("a.b/" + "a" * 100_000 + "!")""",
    "label of a reading": """
        from moorage.decide.usage.readings import _LABEL
        _LABEL.findall("a" * 400_000)""",
    "sentence of many values": """
        from moorage.server.pages.sentences import in_words
        for joint in ("; ", " of ", ", ", ": "):
            in_words(("x" + joint) * (290 // (1 + len(joint))), "ja")""",
    "name with many stars": """
        from moorage_kube.globs import fits
        assert not fits("a" * 253, "*a" * 60 + "b")""",
}


def test_no_text_keeps_a_pattern_busy() -> None:
    run_all(HOSTILE)
