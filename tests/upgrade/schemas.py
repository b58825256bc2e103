"""What of one schema another one does not keep: pure comparisons of CRDs and of databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

_NARROWER = (  # a bound of the new schema that lets less through than the old one
    ("minimum", lambda old, new: old is None or new > old),
    ("minLength", lambda old, new: old is None or new > old),
    ("minItems", lambda old, new: old is None or new > old),
    ("minProperties", lambda old, new: old is None or new > old),
    ("maximum", lambda old, new: old is None or new < old),
    ("maxLength", lambda old, new: old is None or new < old),
    ("maxItems", lambda old, new: old is None or new < old),
    ("maxProperties", lambda old, new: old is None or new < old),
    ("pattern", lambda old, new: old != new),
    ("enum", lambda old, new: old is None or not set(old) <= set(new)),
    ("required", lambda old, new: not set(new) <= set(old or ())),
    ("x-kubernetes-validations", lambda old, new: old != new),
)
_SAME = ("type", "default", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys")


def crd_losses(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Each thing that an object of the old structural schema may have and the new one drops or refuses."""
    for key in _SAME:
        if old.get(key) != new.get(key):
            yield f"{path or '.'}: {key} was {old.get(key)!r} and is {new.get(key)!r}"
    for key, is_narrower in _NARROWER:
        if key in new and is_narrower(old.get(key), new[key]):
            yield f"{path or '.'}: {key} was {old.get(key)!r} and is {new[key]!r}"
    if old.get("x-kubernetes-preserve-unknown-fields") and not new.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path or '.'}: unknown fields are dropped"
    for name, schema in (old.get("properties") or {}).items():
        if name not in (new.get("properties") or {}):
            yield f"{path}.{name} is gone"
        else:
            yield from crd_losses(schema, new["properties"][name], f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if isinstance(old.get(inner), Mapping):
            yield from crd_losses(old[inner], new.get(inner) or {}, f"{path}[]")


def prune(value: Any, schema: Mapping[str, Any]) -> Any:
    """What the API server keeps of a value.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning
    """
    if isinstance(value, list):
        return [prune(item, schema.get("items") or {}) for item in value]
    if not isinstance(value, Mapping) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
    kept = {}
    for name, inner in value.items():
        if name in properties:
            kept[name] = prune(inner, properties[name])
        elif isinstance(others, Mapping):
            kept[name] = prune(inner, others)
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    type: str
    nullable: bool
    has_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Columns by table and name; unique indexes and triggers as (table, definition)."""

    columns: Mapping[str, Mapping[str, Column]]
    unique: frozenset[tuple[str, str]]
    triggers: frozenset[tuple[str, str]]


def table_losses(old: Tables, new: Tables) -> Iterator[str]:
    """What code that knows the old tables cannot do any more on the new ones."""
    for table, columns in old.columns.items():
        if table not in new.columns:
            yield f"table {table} is gone"
            continue
        now = new.columns[table]
        for name, column in columns.items():
            if name not in now:
                yield f"column {table}.{name} is gone"
            elif now[name].type != column.type:
                yield f"column {table}.{name} was {column.type} and is {now[name].type}"
            elif column.nullable and not now[name].nullable:
                yield f"column {table}.{name} must not be null any more"
        for name in now.keys() - columns.keys():
            if not now[name].nullable and not now[name].has_default:
                yield f"column {table}.{name} is new and has no default: old code cannot insert"
    for table, definition in sorted((new.unique - old.unique) | (new.triggers - old.triggers)):
        if table in old.columns:
            yield f"table {table} has a new rule: {definition}"


def read_sqlite(path: Path) -> Tables:
    with closing(sqlite3.connect(path)) as db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            table: {
                name: Column(type=kind, nullable=not required, has_default=default is not None or bool(key))
                for _, name, kind, required, default, key in db.execute(f"PRAGMA table_info({table})")
            }
            for table in names
            if not table.startswith("sqlite_")
        }
        unique = set()
        for table in columns:
            for _, index, is_unique, *_ in db.execute(f"PRAGMA index_list({table})").fetchall():
                if is_unique:
                    of = [row[2] for row in db.execute(f"PRAGMA index_info({index})")]
                    unique.add((table, f"unique ({', '.join(map(str, of))})"))
        triggers = set(db.execute("SELECT tbl_name, name FROM sqlite_master WHERE type = 'trigger'"))
    return Tables(columns=columns, unique=frozenset(unique), triggers=frozenset(triggers))


def read_postgres(url: str) -> Tables:
    columns: dict[str, dict[str, Column]] = {}
    with psycopg.connect(url) as db:
        for table, name, kind, nullable, default, identity in db.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity"
            " FROM information_schema.columns WHERE table_schema = 'public'"
        ):
            is_filled = default is not None or identity == "YES"
            columns.setdefault(table, {})[name] = Column(
                type=kind, nullable=nullable == "YES", has_default=is_filled
            )
        unique = {
            (table, definition[definition.index(" USING ") :])
            for table, definition in db.execute("SELECT tablename, indexdef FROM pg_indexes")
            if definition.startswith("CREATE UNIQUE")
        }
        triggers = set(db.execute("SELECT event_object_table, trigger_name FROM information_schema.triggers"))
    return Tables(columns=columns, unique=frozenset(unique), triggers=frozenset(triggers))
