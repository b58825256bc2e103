"""The owner of an object: stamped when it is created, and unchanged by updates.

Kubernetes' own controllers and our operator write objects on behalf of others, from templates stamped here
before, so the owner in their objects is trusted. That is why each kind with a pod template is stamped too.
"""

from __future__ import annotations

from collections.abc import Iterator

from moorage.decide.admission.fields import at
from moorage.decide.admission.review import TEMPLATES, Draft, Refusal, Request
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, label_value
from moorage_kube.resources import Obj


def owners(request: Request) -> Iterator[tuple[tuple[str, ...], str, str, str, str | None]]:
    """The owner fields with their required values: metadata path, its name, table, key, value (None: absent).

    Nothing for users that write on behalf of others.
    """
    if request.is_copy:
        return
    for path in (("metadata",), *TEMPLATES.get(request.kind, ())):
        where = ".".join(path)
        for table, key, mine in (
            ("labels", OWNER_LABEL, label_value(request.user)),
            ("annotations", OWNER_ANNOTATION, request.user),
        ):
            if request.operation == "CREATE" or request.old is None:
                yield path, where, table, key, mine
            else:
                old = at(request.old, (*path, table, key))
                yield path, where, table, key, None if old is None else str(old)


def stamp(draft: Draft) -> None:
    """Set the owner. A new object gets the requesting user; an updated object keeps its owner.

    The draft gets one warning if the request names another owner.
    """
    warned = False
    for path, where, table, key, wanted in owners(draft.request):
        meta = draft.obj
        for step in path:
            meta = table_at(meta, step)
        value = (meta.get(table) or {}).get(key)
        if value is not None and value != wanted and not warned:
            warned = True
            owner = "left as it was" if draft.request.operation == "UPDATE" else f"set to {draft.request.user}"
            draft.warnings.append(f"{where}.{table}[{key}]: cannot be set to {value!r}; {owner}")
        put(meta, table, key, wanted)


def judge_owner(draft: Draft) -> None:
    """Refuse an owner that differs from the one that `stamp` sets."""
    for path, where, table, key, wanted in owners(draft.request):
        value = at(draft.obj, (*path, table, key))
        if value is not None and value != wanted:
            allowed = "must not be set" if wanted is None else f"must be {wanted!r}"
            message = f"{allowed}: the owner is the user who created the object; Moorage sets it"
            draft.refusals.append(Refusal(f"{where}.{table}[{key}]", repr(value), message))


def put(meta: Obj, table: str, key: str, value: str | None) -> None:
    """Set or remove one label or annotation. Creates no empty table."""
    entries = dict(meta.get(table) or {})
    if value is None:
        if key not in entries:
            return
        del entries[key]
    else:
        entries[key] = value
    meta[table] = entries


def table_at(obj: Obj, key: str) -> Obj:
    """The mapping at a key. It is created if it is missing or null."""
    if not obj.get(key):
        obj[key] = {}
    table: Obj = obj[key]
    return table
