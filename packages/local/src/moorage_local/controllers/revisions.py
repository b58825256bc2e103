"""Revisions of a pod template, which StatefulSets and DaemonSets store as ControllerRevisions. All pure.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/controller-revision-v1/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage_kube.meta import owner_reference
from moorage_kube.resources import Obj
from moorage_local.controllers.pods import stable, suffix

HASH_LABEL = "controller-revision-hash"  # on pods
REVISION_HASH = "controller.kubernetes.io/hash"  # on revisions
HISTORY_LIMIT = 10


@dataclass(frozen=True, slots=True)
class CreateRevision:
    revision: Obj


@dataclass(frozen=True, slots=True)
class RenumberRevision:
    """Give an old revision the newest number, because its template is used again."""

    revision: Obj
    number: int


@dataclass(frozen=True, slots=True)
class DeleteRevision:
    revision: Obj


RevisionAction = CreateRevision | RenumberRevision | DeleteRevision


def find_revision(owner: Mapping[str, Any], known: Sequence[Obj]) -> tuple[Obj, tuple[RevisionAction, ...]]:
    """Return the revision of the owner's current template, and the steps that make it the newest one."""
    ordered = sorted(known, key=_order)
    made = make_revision(owner, ordered[-1]["revision"] + 1 if ordered else 1)
    same = [revision for revision in ordered if revision.get("data") == made["data"]]
    if not same:
        return made, (CreateRevision(made),)
    if same[-1] is ordered[-1]:
        return same[-1], ()
    return same[-1], (RenumberRevision(same[-1], made["revision"]),)


def surplus_revisions(owner: Mapping[str, Any], known: Sequence[Obj], live: Iterable[str]) -> list[DeleteRevision]:
    """Return the oldest unused revisions beyond the history limit. `live`: the names of the revisions in use."""
    limit = owner["spec"].get("revisionHistoryLimit")
    kept = set(live)
    idle = sorted((revision for revision in known if revision["metadata"]["name"] not in kept), key=_order)
    return [
        DeleteRevision(revision)
        for revision in idle[: max(0, len(idle) - (HISTORY_LIMIT if limit is None else limit))]
    ]


def make_revision(owner: Mapping[str, Any], number: int) -> Obj:
    """Return the ControllerRevision of the owner's template; its name depends on the template."""
    meta, template = owner["metadata"], owner["spec"]["template"]
    collisions = (owner.get("status") or {}).get("collisionCount") or 0
    digest = suffix("revision", stable(template), collisions, length=10)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{meta['name']}-{digest}",
            "namespace": meta["namespace"],
            "labels": dict((template.get("metadata") or {}).get("labels") or {}) | {REVISION_HASH: digest},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }


def template_of(revision: Mapping[str, Any]) -> Obj:
    template = revision["data"]["spec"]["template"]
    return {key: value for key, value in template.items() if key != "$patch"}


def _order(revision: Mapping[str, Any]) -> tuple[int, str, str]:
    meta = revision["metadata"]
    return int(revision.get("revision") or 0), meta.get("creationTimestamp") or "", meta["name"]
