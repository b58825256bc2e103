"""Fields of our kinds that got another name: the one table of them, and how objects keep both names meanwhile.

A field is renamed over two releases. In the first, the CRD has both names, readers take either, and both are kept
equal: by the webhook in what is written, by the operator in what is stored. So the release before can read what
this one writes, beside it and after a way back. In the second, the row is taken out of the table here, and the old
name goes. `decide.admission.renames` has what admission does with the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.apimachinery.resources import Obj


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A field of a kind. `table` is the path of the object that holds it."""

    kind: str
    table: tuple[str, ...]
    old: str
    new: str

    @property
    def old_path(self) -> str:
        return ".".join((*self.table, self.old))

    @property
    def new_path(self) -> str:
        return ".".join((*self.table, self.new))


RENAMED = (  # since 0.1
    Renamed(kind="Workspace", table=("spec", "schedule"), old="timezone", new="timeZone"),
    Renamed(kind="Workspace", table=("spec", "home"), old="storageClassName", new="storageClass"),
    Renamed(kind="MapJob", table=("spec", "policy"), old="timeoutSeconds", new="timeSeconds"),
    Renamed(kind="MapJob", table=("spec", "policy"), old="memoryLimitBytes", new="maxMemoryBytes"),
    Renamed(kind="MapJob", table=("spec", "policy"), old="backoffLimitSeconds", new="maxBackoffSeconds"),
)
KINDS = frozenset(row.kind for row in RENAMED)


def renamed_of(kind: str) -> tuple[Renamed, ...]:
    return tuple(row for row in RENAMED if row.kind == kind)


def table_of(obj: Any, row: Renamed) -> Mapping[str, Any] | None:
    """The object that holds the field; None where the path does not lead to one."""
    for step in row.table:
        if not isinstance(obj, Mapping):
            return None
        obj = obj.get(step)
    return obj if isinstance(obj, Mapping) else None


def with_new_names(kind: str, obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object as readers of this release take it: what stands under an old name alone has the new one too."""
    for row in renamed_of(kind):
        table = table_of(obj, row)
        if table is not None and table.get(row.old) is not None and table.get(row.new) is None:
            obj = _with_value(obj, row.table, {**table, row.new: table[row.old]})
    return obj


def add_old_names(kind: str, schema: Obj) -> None:
    """Give a kind's structural schema the old names, as they were but for the description."""
    for row in renamed_of(kind):
        table = schema
        for step in row.table:
            table = table["properties"][step]
        properties = table["properties"]
        note = f"Deprecated: the old name of `{row.new}`. The next release does not have it."
        properties[row.old] = {**properties[row.new], "description": note}


def merge_patch(kind: str, obj: Mapping[str, Any]) -> Obj | None:
    """What makes both names of every field equal in a stored object; None: they are. The new name counts."""
    patch: Obj = {}
    for row in renamed_of(kind):
        table = table_of(obj, row)
        if table is None or table.get(row.old) == table.get(row.new):
            continue
        missing, value = (row.old, table[row.new]) if table.get(row.new) is not None else (row.new, table[row.old])
        inner = patch
        for step in row.table:
            inner = inner.setdefault(step, {})
        inner[missing] = value
    return patch or None


def _with_value(obj: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Mapping[str, Any]:
    if not path:
        return value  # type: ignore[no-any-return]
    return {**obj, path[0]: _with_value(obj[path[0]], path[1:], value)}
