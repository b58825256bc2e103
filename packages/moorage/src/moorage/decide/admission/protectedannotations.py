"""Annotations that our services write and trust, on objects that users may write too.

A user who could write them would evade a limit: the number of restarts of a run, the suspension of idle work, the
length of a snooze, the number of failed workers of a map. So only our services and administrators may write them.
For all others they retain their stored values, and a new object has none. Templates count as well: Kubernetes'
own controllers create objects from them. All these annotations are listed in `SERVICE_MARKS` and `PERSONAL_MARKS`
of `moorage.model.names`.

Suspending a run writes an annotation on its Job: users may write it in their own name, and any user who resumes
the run removes it. Cancelling a run records its end; only our services and administrators may remove that record.
"""

from __future__ import annotations

from collections.abc import Iterator

from moorage.decide.admission.fields import at
from moorage.decide.admission.ownership import put
from moorage.decide.admission.review import TEMPLATES, Draft, Refusal, Request
from moorage.decide.runs.state import CANCELLED, read_suspension
from moorage.model import names
from moorage.model.names import ENDED_ANNOTATION, PERSONAL_MARKS, SERVICE_MARKS, SUSPENDED_ANNOTATION

_WHO = {
    SUSPENDED_ANNOTATION: "users suspend a run in their own name only",
    ENDED_ANNOTATION: "users can only cancel a run",
}
# kind → other paths of the metadata of objects that it creates
MORE_METADATA = {"CronWorkflow": (("spec", "workflowMetadata"),)}


def forged(request: Request) -> Iterator[tuple[tuple[str, ...], str, str | None, str | None]]:
    """Forged annotations: path of the metadata, key, new value, required value.

    A value of None means that the annotation is absent, or must be.
    """
    if request.writes_marks:
        return
    for path in (("metadata",), *TEMPLATES.get(request.kind, ()), *MORE_METADATA.get(request.kind, ())):
        for key in (*SERVICE_MARKS, *PERSONAL_MARKS):
            value, before = (_text(obj, (*path, "annotations", key)) for obj in (request.obj, request.old))
            if value != before and not _may_write(key, value, before, request):
                yield path, key, value, before


def restore_protected(draft: Draft) -> None:
    """Restore the stored value of each forged annotation, and warn."""
    for path, key, value, before in list(forged(draft.request)):
        meta = at(draft.obj, path)
        if not isinstance(meta, dict):  # its whole template was taken away, and the mark with it
            continue
        put(meta, "annotations", key, before)
        done = "removed" if before is None else "left as it was"
        how = "cannot be removed" if value is None else f"cannot be set to {value!r}"
        draft.warnings.append(f"{'.'.join(path)}.annotations[{key}]: {how}; {done}")


def judge_protected(draft: Draft) -> None:
    """Refuse protected annotations that are still forged.

    This happens if the mutating webhook was not called, or if another webhook wrote after it.
    """
    for path, key, value, before in forged(draft.request):
        if not isinstance(at(draft.obj, path), dict):
            continue
        allowed = "must not be set" if before is None else f"must stay {before!r}"
        who = _WHO.get(key, "Moorage writes it")
        field = f"{'.'.join(path)}.annotations[{key}]"
        draft.refusals.append(Refusal(field, "" if value is None else repr(value), f"{allowed}: {who}"))


def _text(obj: object, path: tuple[str, ...]) -> str | None:
    value = at(obj, path)
    return None if value is None else str(value)


def _may_write(key: str, value: str | None, before: str | None, request: Request) -> bool:
    """Whether a user may set a protected annotation to this value."""
    match key:
        case names.SUSPENDED_ANNOTATION:
            return value is None or read_suspension(value).by == request.user
        case names.ENDED_ANNOTATION:  # a run that Moorage ended may be cancelled, too
            return value is not None and value.startswith(f"{CANCELLED} by ")
        case names.OVER_BUDGET_ANNOTATION:  # our webhook has set it on a new object
            return request.operation == "CREATE" and before is None
    return False
