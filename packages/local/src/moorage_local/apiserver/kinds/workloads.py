"""The common rules of Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs: selector and template."""

from __future__ import annotations

from moorage_kube.resources import Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.kinds.common import immutable, not_negative, own_spec, validate_selector
from moorage_local.apiserver.kinds.podspec.checks import validate_pod_spec
from moorage_local.apiserver.kinds.podspec.defaults import default_template
from moorage_local.apiserver.types.fields import FieldErrors


def default_selected(obj: Obj) -> None:
    default_template(own_spec(obj).setdefault("template", {}))


def validate_selected(obj: Obj, errors: FieldErrors) -> None:
    """Check that the selector is not empty and matches the labels of the template."""
    spec = own_spec(obj)
    selector, template = spec.get("selector"), spec.get("template") or {}
    not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"), "spec", errors)
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector is None:
        errors.required("spec.selector")
        errors.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    elif not validate_selector(selector, "spec.selector", errors):
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            errors.invalid("spec.selector", selector, "empty selector is invalid for deployment")
        if not label_selector_of(selector).matches(labels):
            errors.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    pod = template.get("spec") or {}
    if pod.get("restartPolicy") not in (None, "Always"):
        errors.unsupported("spec.template.spec.restartPolicy", pod["restartPolicy"], ["Always"])
    if pod.get("activeDeadlineSeconds") is not None:
        errors.forbidden(
            "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
        )
    validate_pod_spec(pod, "spec.template.spec", errors)


def selector_immutable(new: Obj, old: Obj, errors: FieldErrors) -> None:
    immutable(own_spec(new).get("selector"), own_spec(old).get("selector"), "spec.selector", errors)
