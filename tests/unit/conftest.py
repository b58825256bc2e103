"""Fixtures for unit tests."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

import moorage

SOURCE = Path(moorage.__file__).parent


@pytest.fixture(scope="session")
def source_trees() -> Mapping[Path, ast.Module]:
    """File → its syntax tree, for all of `src/moorage`. It costs seconds: its tests are of the group `source`."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
