"""Both names of a renamed field say the same in what is stored, whichever of them somebody writes.

On an update the name that changed counts, so a program of the last release and one of this one may both edit an
object that has both.
"""

from __future__ import annotations

from typing import Any

from moorage.apimachinery.resources import Obj
from moorage.decide.admission.fields import shown_value
from moorage.decide.admission.review import Draft, Refusal
from moorage.model.renamed import Renamed, renamed_of, table_of


def rename(draft: Draft) -> None:
    """Make both names of each renamed field equal."""
    patches, refusals = rename_fields(draft.request.kind, draft.request.obj, draft.request.old)
    draft.apply(patches)
    draft.refusals += refusals


def rename_fields(kind: str, obj: Obj, old: Obj | None) -> tuple[tuple[Obj, ...], tuple[Refusal, ...]]:
    """Patches (RFC 6902) that make both names equal, and refusals of fields that were given two values."""
    patches: list[Obj] = []
    refusals: list[Refusal] = []
    for row in renamed_of(kind):
        table = table_of(obj, row)
        if table is None or table.get(row.old) == table.get(row.new):
            continue
        before = table_of(old, row) or {}
        outcome = _winner(row, table.get(row.old), table.get(row.new), before)
        if outcome is None:
            message = f"is the old name of {row.new!r} and has another value than that: give {row.new!r} alone"
            refusals.append(Refusal(row.old_path, shown_value(table[row.old]), message))
            continue
        to, value = outcome
        where = "/" + "/".join((*row.table, to))
        patches.append({"op": "remove", "path": where} if value is None else _add(where, value))
    return tuple(patches), tuple(refusals)


def _winner(row: Renamed, old: Any, new: Any, before: Any) -> tuple[str, Any] | None:
    """Which name takes which value; None: both were given, and differ."""
    old_changed = old != before.get(row.old)
    new_changed = new != before.get(row.new)
    if old_changed == new_changed:  # both, as in something new; or neither
        if old is not None and new is not None and old_changed:
            return None
        return (row.old, new) if new is not None else (row.new, old)
    return (row.old, new) if new_changed else (row.new, old)


def _add(where: str, value: Any) -> Obj:
    return {"op": "add", "path": where, "value": value}
