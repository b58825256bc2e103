"""Data folders and databases of a server, for tests of backups."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorage.server.backup.archive import Manifest, pack
from moorage.server.backup.store import Place, collect, scratch
from moorage_kube.testing.clock import NOON
from moorage_testing.postgres import new_database


@pytest.fixture
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    """A function that creates an empty place for a server's data; its argument is the kind of the database."""

    def make(kind: str) -> Place:
        folder = tmp_path / f"place-{os.urandom(3).hex()}"
        folder.mkdir()
        if kind == "sqlite":
            return Place(folder=folder)
        return Place(folder=folder, url=new_database(request.getfixturevalue("postgres_server").url))

    return make


def where(place: Place, name: str) -> Any:
    return place.url or place.folder / name


def back_up(place: Place, target: Path) -> Manifest:
    """Create a backup, like the server's route and `moor backup`."""
    with scratch(place) as folder:
        return pack(folder, collect(place, folder, now=NOON), target)


def lines(place: Place, tmp_path: Path) -> dict[str, bytes]:
    """All data of a place, by file of an archive.

    The queue without the fields that a restore takes from workers.
    """
    folder = tmp_path / f"lines-{os.urandom(3).hex()}"
    folder.mkdir()
    collect(place, folder, now=NOON)
    tables = {
        str(path.relative_to(folder)): b"".join(sorted(path.read_bytes().splitlines(keepends=True)))
        for path in folder.rglob("*")
        if path.is_file() and path.stem not in ("maps", "items", "sessions", "output_sizes")
    }
    return {name: text for name, text in tables.items() if text.count(b"\n") > 1 or name.endswith(".log")}
