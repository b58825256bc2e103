"""Fixtures for unit tests."""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping
from pathlib import Path

import pytest

import moorage
import moorage_kube
import moorage_local
import moorage_workflows

PACKAGES = (moorage, moorage_kube, moorage_local, moorage_workflows)


@pytest.fixture(scope="session")
def source_trees() -> Mapping[Path, ast.Module]:
    """File → its syntax tree, for all that we ship. It costs seconds: its tests are of the group `source`.

    The garbage collector would take four fifths of the time.
    """
    folders = [Path(package.__file__).parent for package in PACKAGES]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    gc.disable()
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    gc.freeze()
    gc.enable()
    return trees
