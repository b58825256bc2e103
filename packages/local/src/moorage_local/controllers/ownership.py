"""The objects of a workload: adopt orphans that its selector matches, release objects that it no longer matches.

https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#non-template-pod-acquisitions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moorage_kube.meta import controller_ref, is_deleting, labels_of, owner_reference
from moorage_kube.resources import Obj
from moorage_kube.selectors import LabelSelector


@dataclass(frozen=True, slots=True)
class Claims:
    """Candidates in three groups.

    `owned`: owned and matching. `adopt`: matching and without a controller. `release`: owned but no longer
    matching.
    """

    owned: tuple[Obj, ...] = ()
    adopt: tuple[Obj, ...] = ()
    release: tuple[Obj, ...] = ()


def claims(owner: Mapping[str, Any], selector: LabelSelector, candidates: Iterable[Obj]) -> Claims:
    """Sort the candidates in the owner's namespace into groups.

    An owner that is being deleted adopts nothing. An object that is being deleted is not adopted. An empty
    selector adopts nothing.
    """
    uid = owner["metadata"]["uid"]
    owned: list[Obj] = []
    adopt: list[Obj] = []
    release: list[Obj] = []
    for candidate in candidates:
        ref = controller_ref(candidate)
        matches = bool(selector.requirements) and selector.matches(labels_of(candidate))
        if ref is not None:
            if ref["uid"] == uid:
                (owned if matches or is_deleting(owner) else release).append(candidate)
        elif matches and not is_deleting(owner) and not is_deleting(candidate):
            adopt.append(candidate)
    return Claims(tuple(owned), tuple(adopt), tuple(release))


def adoption(owner: Mapping[str, Any], child: Obj) -> Obj:
    """Return the merge patch that makes `owner` the controller of `child`; it fails if the child has changed."""
    refs = [*(child["metadata"].get("ownerReferences") or ()), owner_reference(owner)]
    return _references(child, refs)


def release(owner: Mapping[str, Any], child: Obj) -> Obj:
    """Return the merge patch that ends the ownership; it fails if the child has changed."""
    uid = owner["metadata"]["uid"]
    return _references(child, [ref for ref in child["metadata"].get("ownerReferences") or () if ref["uid"] != uid])


def _references(child: Obj, refs: list[Obj]) -> Obj:
    meta = child["metadata"]
    return {
        "metadata": {
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion"),
            "ownerReferences": refs or None,
        }
    }
