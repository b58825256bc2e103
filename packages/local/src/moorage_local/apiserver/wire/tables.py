"""Tables, as `kubectl get` prints them.

https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moorage_kube.clock import Clock
from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import age
from moorage_local.apiserver.kinds.kind import Column, Kind

_PLAIN = (
    Column(name="Name", type="string", format="name", description="Name of the object"),
    Column(name="Age", type="string", description="Time since the object was created"),
)


def partial_object(obj: Obj) -> Obj:
    """Metadata alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


class Table:
    """Tables of one kind, one after another; only the first has the column definitions (for watches)."""

    def __init__(self, kind: Kind, clock: Clock, include: str) -> None:
        if include not in ("", "None", "Metadata", "Object"):
            raise BadRequest(
                f'includeObject: Unsupported value: "{include}": supported values: "Metadata", "None", "Object"'
            )
        self._kind = kind
        self._clock = clock
        self._include = include or "Metadata"
        self._told = False

    def of(self, items: Sequence[Obj], meta: Obj, event: str = "") -> Obj:
        kind = self._kind
        now = self._clock.now()
        rows = []
        for obj in items if event != "BOOKMARK" else ():
            cells: Sequence[Any]
            if kind.rules.cells is not None and kind.columns:
                cells = kind.rules.cells(obj, now)
            else:
                cells = (obj["metadata"].get("name", ""), age(obj["metadata"].get("creationTimestamp"), now))
            row: Obj = {"cells": list(cells)}
            if kind.rules.row_conditions is not None and (conditions := kind.rules.row_conditions(obj)):
                row["conditions"] = conditions
            if self._include == "Metadata":
                row["object"] = partial_object(obj)
            elif self._include == "Object":
                row["object"] = obj
            rows.append(row)
        columns = kind.columns if kind.rules.cells is not None and kind.columns else _PLAIN
        out: Obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        out["columnDefinitions"] = [] if self._told else [column.to_obj() for column in columns]
        out["rows"] = rows
        if event == "BOOKMARK":
            out["rows"] = [{"cells": [], "object": partial_object(items[0])}] if items else []
        else:
            self._told = True
        return out


def to_table(kind: Kind, items: Sequence[Obj], meta: Obj, clock: Clock, include: str) -> Obj:
    return Table(kind, clock, include).of(items, meta)
