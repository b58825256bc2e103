"""The page of folders: every package of the workspace, by the first sentence of its docstring."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from moorage_testing.reference.kinds import cell

ROOT = Path(__file__).parents[5]
HEAD = """
# Folders of the code

Each folder of the code has one subject. Its `__init__.py` describes its contents; this page shows the first
sentences. The unit tests of `packages/moorage/src/moorage/decide/runs` are in
`packages/moorage/tests/unit/decide/runs`; so it is for each folder.
`ARCHITECTURE.md` shows which folder may import which.
"""


def where_page(note: str) -> str:
    """A table for each distribution, its folders in the order of their names."""
    out = [note.rstrip("\n"), HEAD.rstrip("\n")]
    for package in sorted(ROOT.glob("packages/*/src/*/__init__.py")):
        folder = package.parent
        out += [f"\n## {folder.name}\n", f"`{folder.relative_to(ROOT)}`: {summary_of(package)}\n"]
        rows = [f"| `{name}` | {cell(text)} |" for name, text in _parts(folder)]
        out += ["| folder | subject |", "|---|---|", *rows]
    return "\n".join(out) + "\n"


def _parts(package: Path) -> Iterator[tuple[str, str]]:
    """The folders of a distribution with packages in them, and of the platform also its top-level files."""
    files = [path for path in package.rglob("*.py") if path.name == "__init__.py" and path.parent != package]
    if package.name == "moorage":
        files += [path for path in package.glob("*.py") if not path.name.startswith("_")]
    for path in sorted(files):
        name = path.parent if path.name == "__init__.py" else path
        yield str(name.relative_to(package)), summary_of(path)


def summary_of(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line. Raises ValueError where it has none."""
    text = ast.get_docstring(ast.parse(path.read_text()))
    if not text:
        raise ValueError(f"{path} has no docstring: write one that describes its contents")
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
