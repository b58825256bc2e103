"""Databases as text, and back: what the last release wrote is committed as SQL.

`python tests/upgrade/dumps.py` writes the fixtures anew, by the last release's code.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import psycopg
import upgradescenes
from releases import FIXTURES, LAST_COMMIT, running, unpack_last_release

FILES = ("queue.db", "people.db", "usage.db", "outputs.db")
KEPT_IN_FILES = ("usage.db", "outputs.db")  # also where PostgreSQL has the rest
POSTGRES = "postgres.sql"


def dump_sqlite(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        return "\n".join(db.iterdump()) + f"\nPRAGMA user_version = {version};\n"


def load_sqlite(text: str, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(text)


def dump_postgres(url: str, program: str) -> str:
    dump = subprocess.run(
        [program, "--inserts", "--no-owner", "--no-privileges", url], capture_output=True, text=True, check=True
    )
    lines = [line for line in dump.stdout.splitlines() if line and not line.startswith(("--", "\\"))]
    return "\n".join(lines) + "\n"


def load_postgres(text: str, url: str) -> None:
    lines = [line for line in text.splitlines() if not line.startswith("SET ")]  # of one version of the server
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("\n".join(lines).encode())


def load_fixtures(folder: Path, url: str) -> None:
    """What the last release left, in a folder and, with `url`, in PostgreSQL."""
    for name in KEPT_IN_FILES if url else FILES:
        load_sqlite((FIXTURES / f"{name}.sql").read_text(encoding="utf-8"), folder / name)
    if url:
        load_postgres((FIXTURES / POSTGRES).read_text(encoding="utf-8"), url)


def main() -> None:
    from moorage.testing.postgres import throwaway_postgres

    FIXTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, throwaway_postgres() as server:
        sources = Path(scratch, "release")
        sources.mkdir()
        if reason := unpack_last_release(sources):
            sys.exit(reason)
        for url in ("", server.url):
            folder = Path(scratch, "postgres" if url else "sqlite")
            folder.mkdir()
            with running(sources / "src", folder, url) as release:
                upgradescenes.write(release)
            if url:
                program = str(server._programs / "pg_dump")
                (FIXTURES / POSTGRES).write_text(dump_postgres(url, program), encoding="utf-8")
            else:
                for name in FILES:
                    (FIXTURES / f"{name}.sql").write_text(dump_sqlite(folder / name), encoding="utf-8")
        crds = FIXTURES / "crds"
        crds.mkdir(exist_ok=True)
        for path in sorted((sources / "deploy" / "crds").glob("*.yaml")):
            (crds / path.name).write_bytes(path.read_bytes())
    print(f"{FIXTURES} is what {LAST_COMMIT} writes")


if __name__ == "__main__":
    main()
