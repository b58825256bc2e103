"""The pods of a node that `moor drain` evicts, those it leaves, and those that forbid it: `kubectl drain`'s rules.

One rule differs: emptyDir volumes of runs, maps, workflows, workspaces and datasets never forbid it. Work that
Moorage starts again elsewhere begins with empty ones, as each attempt does.

https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.model.argo import WORKFLOW_LABEL
from moorage.model.dataset import DATASET_LABEL
from moorage.model.names import MAP_LABEL, RUN_LABEL, WORKSPACE_LABEL
from moorage_kube.meta import Key, annotations_of, controller_ref, key_of, labels_of
from moorage_kube.resources import Obj

_STARTED_AGAIN = (RUN_LABEL, MAP_LABEL, WORKFLOW_LABEL, WORKSPACE_LABEL, DATASET_LABEL)  # on pods that we make
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"  # the API's image of a static pod: only its file can end it


class DrainOptions(Struct, frozen=True, kw_only=True):
    """The options of `kubectl drain` that affect pods."""

    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    force: bool = False


NO_OPTIONS = DrainOptions()


class Refusal(Struct, frozen=True):
    """A pod that prevents the drain, and the option that would allow it."""

    pod: Key
    why: str
    option: str


class DrainPlan(Struct, frozen=True, kw_only=True):
    """The plan of a drain. If there are `refused` pods, nothing is evicted.

    Show `warnings` before the first eviction.
    """

    evict: tuple[Obj, ...] = ()
    leaving: tuple[Obj, ...] = ()  # asked to go already; only waited for
    kept: tuple[Key, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_drain(
    pods: Iterable[Obj], daemonsets: frozenset[Key] | None, options: DrainOptions = NO_OPTIONS
) -> DrainPlan:
    """Sort the pods of one node.

    `daemonsets` are those that exist (None: could not be read, then a pod's owner is believed); a pod of a deleted
    DaemonSet is treated as one that will not be created again.
    """
    evict: list[Obj] = []
    leaving: list[Obj] = []
    kept: list[Key] = []
    refused: list[Refusal] = []
    warnings: list[str] = []
    for pod in sorted(pods, key=key_of):
        key = key_of(pod)
        # pods that are not ours to evict: of the node itself, or already leaving
        if MIRROR_ANNOTATION in annotations_of(pod):
            kept.append(key)
            continue
        if pod["metadata"].get("deletionTimestamp"):
            leaving.append(pod)
            continue
        # a DaemonSet would create its pod again on the same node
        finished = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        owner = controller_ref(pod)
        if owner is not None and owner["kind"] == "DaemonSet" and not finished:
            if daemonsets is None or Key(key.namespace, owner["name"]) in daemonsets:
                if options.ignore_daemonsets:
                    kept.append(key)
                    warnings.append(f"leaving pod {key} of DaemonSet {owner['name']}")
                else:
                    refused.append(
                        Refusal(key, f"it belongs to the DaemonSet {owner['name']}", "--ignore-daemonsets")
                    )
                continue
            owner = None
        # data and pods that are lost for good need a flag
        problems = []
        if _has_local_data(pod) and not finished:
            if options.delete_emptydir_data or _is_started_again(pod):
                warnings.append(f"pod {key} loses the data of its emptyDir volumes")
            else:
                problems.append(Refusal(key, "it keeps data in an emptyDir volume", "--delete-emptydir-data"))
        if owner is None and not finished:
            if options.force:
                warnings.append(f"pod {key} has no controller: nothing will make it again")
            else:
                problems.append(Refusal(key, "it has no controller, so nothing would make it again", "--force"))
        refused += problems
        if not problems:
            evict.append(pod)
    return DrainPlan(
        evict=tuple(evict),
        leaving=tuple(leaving),
        kept=tuple(kept),
        refused=tuple(refused),
        warnings=tuple(warnings),
    )


def _is_started_again(pod: Mapping[str, Any]) -> bool:
    return controller_ref(pod) is not None and any(label in labels_of(pod) for label in _STARTED_AGAIN)


def _has_local_data(pod: Mapping[str, Any]) -> bool:
    return any("emptyDir" in volume for volume in (pod.get("spec") or {}).get("volumes") or ())
