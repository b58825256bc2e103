"""The fields that an update of a pod may change: image, deadline, tolerations, and more while it is gated.

The order and the words are those of the real server's pod strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.types.fields import FieldErrors

_UPDATABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`"
    " (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it"
    " to be set to 1 if it was"
    " previously negative)"
)


def validate_pod_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    """Check an update of a pod. Few fields of its spec can change; the message lists them."""
    spec, had = new.get("spec") or {}, old.get("spec") or {}
    # later checks compare containers by position
    for sort in ("containers", "initContainers"):
        if len(spec.get(sort) or ()) != len(had.get(sort) or ()):
            errors.forbidden(f"spec.{sort}", "pod updates may not add or remove containers")
            return
    # these fields may change in one direction only
    deadline, deadline_was = spec.get("activeDeadlineSeconds"), had.get("activeDeadlineSeconds")
    if deadline is not None:
        if deadline_was is not None and deadline > deadline_was:
            errors.invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")
            return
    elif deadline_was is not None:
        errors.invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")
    _only_added_tolerations(spec, had, errors)
    gates = {gate.get("name") for gate in had.get("schedulingGates") or ()}
    added = [gate.get("name") for gate in spec.get("schedulingGates") or () if gate.get("name") not in gates]
    if added:
        listed = " ".join(str(gate) for gate in added)
        errors.forbidden(
            "spec.schedulingGates", f"only deletion is allowed, but found new scheduling gates '{{{listed}}}'"
        )
    # take back all changes that are allowed; the rest must be as it was
    if spec == had:
        return
    munged = {**spec}
    for sort in ("containers", "initContainers"):
        if sort in munged:
            munged[sort] = [
                {**container, "image": was.get("image")}
                for container, was in zip(munged[sort], had[sort], strict=True)
            ]
    for key in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        _copy_key(munged, had, key)
    if (had.get("terminationGracePeriodSeconds") or 0) < 0 and munged.get("terminationGracePeriodSeconds") == 1:
        _copy_key(munged, had, "terminationGracePeriodSeconds")
    # a gated pod is not scheduled yet, so its node selection may become narrower
    if had.get("schedulingGates"):
        _validate_gated(munged, had, errors)
    if munged != had:
        changed = sorted(key for key in {*munged, *had} if munged.get(key) != had.get(key))
        errors.forbidden(
            "spec", f"pod updates may not change fields other than {_UPDATABLE}\nchanged: {', '.join(changed)}"
        )


def _copy_key(target: Obj, source: Mapping[str, Any], key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _only_added_tolerations(spec: Mapping[str, Any], had: Mapping[str, Any], errors: FieldErrors) -> None:
    def stripped(toleration: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    now = [stripped(toleration) for toleration in spec.get("tolerations") or ()]
    for toleration in had.get("tolerations") or ():
        if stripped(toleration) not in now:
            errors.forbidden(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
            return


def _validate_gated(munged: Obj, had: Mapping[str, Any], errors: FieldErrors) -> None:
    """Check changes of a gated pod: they may add labels to nodeSelector and make node affinity narrower."""
    selector, selector_was = munged.get("nodeSelector") or {}, had.get("nodeSelector") or {}
    if selector != selector_was:
        for key, value in selector_was.items():
            if selector.get(key) != value:
                errors.invalid(
                    "spec.nodeSelector",
                    selector,
                    "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
                )
                break
        _copy_key(munged, had, "nodeSelector")
    affinity, affinity_was = munged.get("affinity"), had.get("affinity")
    node = (affinity or {}).get("nodeAffinity")
    node_was = (affinity_was or {}).get("nodeAffinity")
    if node == node_was:
        return
    _validate_node_affinity_change(node, node_was, errors)
    rest = {key: value for key, value in (affinity or {}).items() if key != "nodeAffinity"}
    if node_was is not None:
        rest["nodeAffinity"] = node_was
    if rest or affinity_was is not None:
        munged["affinity"] = rest
    else:
        munged.pop("affinity", None)


def _validate_node_affinity_change(new: Any, old: Any, errors: FieldErrors) -> None:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms_was = ((old or {}).get(key) or {}).get("nodeSelectorTerms")
    if terms_was is None:
        return
    terms = ((new or {}).get(key) or {}).get("nodeSelectorTerms")
    if terms is None:
        errors.invalid(path, None, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    if len(terms) != len(terms_was):
        errors.invalid(
            f"{path}.nodeSelectorTerms",
            terms,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        )
        return
    for at, (term, was) in enumerate(zip(terms, terms_was, strict=True)):
        if not was.get("matchExpressions") and not was.get("matchFields"):
            if term != was:
                errors.invalid(
                    f"{path}.nodeSelectorTerms[{at}]", term, "new terms cannot be added to an empty term"
                )
            continue
        for part in ("matchExpressions", "matchFields"):
            now = term.get(part) or []
            if (was.get(part) or []) != now[: len(was.get(part) or [])]:
                errors.invalid(
                    f"{path}.nodeSelectorTerms[{at}]",
                    term,
                    "only additions are allowed (no mutations or deletions)",
                )
                break
