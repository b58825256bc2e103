"""The list of databases has every table that a migration makes."""

from __future__ import annotations

import re

import pytest

from moorage.server.databases import ServerDatabase, databases
from moorage.sql.migrations import migrations

_TABLE = re.compile(r"create table (?:if not exists )?(\w+)|drop table (?:if exists )?(\w+)", re.IGNORECASE)


@pytest.mark.parametrize("database", databases(), ids=lambda database: database.name)
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_table_of_a_schema_is_in_the_list(database: ServerDatabase, dialect: str) -> None:
    if dialect == "sqlite" and not database.file:
        pytest.skip("kept in no file")
    tables: set[str] = set()
    for step in migrations(dialect, database.schema):
        for made, dropped in _TABLE.findall(step.sql):
            tables |= {made} if made else set()
            tables -= {dropped}
    assert tables == set(database.tables)


def test_every_file_and_schema_is_in_the_list_once() -> None:
    files = [database.file for database in databases() if database.file]
    assert sorted(files) == sorted(set(files))
    schemas = [(database.schema.package, database.schema.prefix) for database in databases()]
    assert len(schemas) == len(set(schemas))
