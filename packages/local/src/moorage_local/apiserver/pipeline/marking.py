"""Apply a delete request to an object: removed at once, or marked while finalizers remain. Pure."""

from __future__ import annotations

from datetime import datetime

from moorage_kube.clock import parse_rfc3339, rfc3339
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Kind, Rules
from moorage_local.apiserver.pipeline.calls import Call, DeleteOptions

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


def marked(kind: Kind, old: Obj, options: DeleteOptions, call: Call, now: datetime) -> tuple[Obj, bool]:
    """Return the object with the deletion marked, and whether it can be removed at once.

    https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go
    """
    rules = kind.rules
    meta = {**old["metadata"]}
    new = {**old, "metadata": meta}
    deleting = "deletionTimestamp" in meta
    # a pod has a grace period; a second request may shorten it, but never extend it
    grace = rules.graceful(old, options.grace_period_seconds)
    graceful = False
    if grace is not None:
        if deleting:
            left = meta.get("deletionGracePeriodSeconds")
            asked = options.grace_period_seconds
            if left is not None:
                if asked is None or asked >= left:
                    return _with_finalizers(kind, new, options, call), False
                grace = max(0, asked)
                was = parse_rfc3339(meta["deletionTimestamp"])
                meta["deletionTimestamp"] = rfc3339(was - span_of(left - grace))
                meta["deletionGracePeriodSeconds"] = grace
                graceful = True
        else:
            meta["deletionTimestamp"] = rfc3339(now + span_of(grace))
            meta["deletionGracePeriodSeconds"] = grace
            if meta.get("generation"):
                meta["generation"] += 1
            graceful = True
    # without time to end, only finalizers keep the object
    new = _with_finalizers(kind, new, options, call)
    meta = new["metadata"]
    if graceful and grace:
        return new, False
    if not is_held(rules, new):
        return new, True
    # first request for an object with finalizers: mark it, so that their controllers act
    if not graceful and not deleting:
        meta["deletionTimestamp"] = rfc3339(now)
        meta["deletionGracePeriodSeconds"] = 0
        if meta.get("generation"):
            meta["generation"] += 1
    if rules.on_deletion is not None:
        rules.on_deletion(new)
    return new, False


def _with_finalizers(kind: Kind, obj: Obj, options: DeleteOptions, call: Call) -> Obj:
    had = list(obj["metadata"].get("finalizers") or ())
    orphan, foreground = ORPHAN in had, FOREGROUND in had
    match options.propagation:
        case "Orphan":
            orphan, foreground = True, False
        case "Foreground":
            orphan, foreground = False, True
        case "Background":
            orphan, foreground = False, False
        case None if kind.rules.orphan_by_default and not had:
            orphan = True
            call.warn(
                "child pods are preserved by default when jobs are deleted; set"
                " propagationPolicy=Background to"
                " remove them or set propagationPolicy=Orphan to suppress this warning"
            )
    kept = [name for name in had if name not in (ORPHAN, FOREGROUND)]
    kept += [ORPHAN] if orphan else []
    kept += [FOREGROUND] if foreground else []
    meta = {**obj["metadata"]}
    if kept:
        meta["finalizers"] = kept if set(kept) != set(had) else had
    else:
        meta.pop("finalizers", None)
    return {**obj, "metadata": meta}


def is_held(rules: Rules, obj: Obj) -> bool:
    """Whether finalizers or a rule of the kind block the removal of an object that is being deleted."""
    return bool(obj["metadata"].get("finalizers")) or rules.pending(obj)


def is_finished(kind: Kind, new: Obj, old: Obj) -> bool:
    """Whether an update removed the last thing that blocked a deletion."""
    if "deletionTimestamp" not in old["metadata"] or is_held(kind.rules, new):
        return False
    return not old["metadata"].get("deletionGracePeriodSeconds")
