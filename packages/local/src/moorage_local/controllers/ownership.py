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
    """`owned` are the owner's and match; `adopt` match and have no controller; `release` are the owner's but do
    not match any more."""

    owned: tuple[Obj, ...] = ()
    adopt: tuple[Obj, ...] = ()
    release: tuple[Obj, ...] = ()


def claims(owner: Mapping[str, Any], selector: LabelSelector, candidates: Iterable[Obj]) -> Claims:
    """Sort the candidates of the owner's namespace. An owner that is being deleted adopts nothing, an object that
    is being deleted is not adopted, and a selector that matches everything owns only by reference."""
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
    """The merge patch that makes `owner` the controller of `child`; refused when the child changed meanwhile."""
    refs = [*(child["metadata"].get("ownerReferences") or ()), owner_reference(owner)]
    return _references(child, refs)


def release(owner: Mapping[str, Any], child: Obj) -> Obj:
    """The merge patch that ends the ownership; refused when the child changed meanwhile."""
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
