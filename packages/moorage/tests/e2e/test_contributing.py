"""The exercises of CONTRIBUTING.md and of the pages for contributors, on a copy of the tree, as written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from moorage_testing.docblocks import SHELL, Block, blocks_of

ROOT = Path(__file__).parents[4]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "contributing").glob("*.md"))]
COPIED = ("packages", "docs", "benchmarks", "examples", "deploy")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "dist", "site", ".moorage-demo")
EXERCISES = [page for page in PAGES if any(block.place for block in blocks_of(page, ROOT))]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources that uses the packages of this environment, and not its modules of ours."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=LEFT_OUT, symlinks=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copy)
    (copy / ".venv").symlink_to(sys.prefix)
    return copy


def environment(tree: Path) -> Mapping[str, str]:
    """Modules of the copy come before those of the checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MOORAGE_", "MAKE"))}
    sources = [str(path) for path in sorted(tree.glob("packages/*/src"))]
    return kept | {"PYTHONPATH": os.pathsep.join(sources)}


def run(tree: Path, command: str) -> None:
    """Type a command in the copy. `make` does not install the packages again."""
    typed = command.replace("make ", "make -s -o setup ", 1) if command.startswith("make ") else command
    done = subprocess.run(
        ["bash", "-euc", typed],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def exercise_of(page: Path) -> list[Block]:
    """From the first block that changes a file on: what comes before it is for every day."""
    blocks = blocks_of(page, ROOT)
    first = next(number for number, block in enumerate(blocks) if block.place)
    last = max(number for number, block in enumerate(blocks) if block.place or is_check(block))
    return blocks[first : last + 1]


def is_check(block: Block) -> bool:
    return block.language in SHELL and any(line.startswith(".venv/bin/ruff") for line in block.commands)


@pytest.mark.skipif(not Path(sys.prefix, "bin", "ruff").exists(), reason="needs the environment of `make setup`")
@pytest.mark.parametrize("page", EXERCISES, ids=lambda page: page.name)
def test_an_exercise_works_as_written(tree, page):
    """Each block is applied or run in its order; without its last test, the text would prove nothing."""
    ran = []
    for block in exercise_of(page):
        if block.place:
            block.apply(tree)
        elif block.language in SHELL:
            for command in block.commands:
                run(tree, command)
                ran.append(command)
    assert any(" -m pytest " in command for command in ran)
