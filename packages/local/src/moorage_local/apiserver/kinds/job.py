"""Jobs, and the job template of CronJobs.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage_kube.clock import format_duration, parse_rfc3339
from moorage_kube.meta import is_condition_true
from moorage_kube.resources import Obj
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.kinds.cells import created, selector_text, spec_of, status_of, template_containers
from moorage_local.apiserver.kinds.common import immutable, not_negative, own_spec, validate_selector
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.podspec.checks import validate_pod_spec
from moorage_local.apiserver.kinds.workloads import default_selected
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import name_problems
from moorage_local.podspecs import containers_of

JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
JOB_UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    _default_job_spec(spec)
    default_selected(obj)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _default_job_spec(spec: Obj) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if spec.get("backoffLimitPerIndex") is not None else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    policy = spec.get("podFailurePolicy")
    spec.setdefault("podReplacementPolicy", "Failed" if policy is not None else "TerminatingOrFailed")
    spec.setdefault("manualSelector", False)
    default_failure_policy(policy)


def default_failure_policy(policy: Any) -> None:
    for rule in (policy or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")


def _prepare(obj: Obj) -> None:
    spec, meta = own_spec(obj), obj["metadata"]
    obj["status"] = {}
    if spec.get("manualSelector"):
        return
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for label in JOB_NAME_LABELS:
        labels.setdefault(label, meta.get("name", ""))
    for label in JOB_UID_LABELS:
        labels.setdefault(label, meta["uid"])
    selector = spec.setdefault("selector", {})
    selector.setdefault("matchLabels", {}).setdefault(JOB_UID_LABELS[0], meta["uid"])
    if not meta.get("labels"):
        meta["labels"] = dict(labels)  # the real server defaults them when it reads the Job back


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec, meta = own_spec(obj), obj["metadata"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not spec.get("manualSelector"):
        for label, wanted in [(label, meta.get("uid")) for label in JOB_UID_LABELS] + [
            (label, meta.get("name")) for label in JOB_NAME_LABELS
        ]:
            if labels.get(label) != wanted:
                path = f"spec.template.metadata.labels[{label}]"
                if label in labels:
                    errors.invalid(path, labels[label], f"must be '{wanted}'")
                else:
                    errors.required(path, f"must be '{wanted}'")
        generated = {"matchLabels": {JOB_UID_LABELS[0]: meta.get("uid")}}
        if "selector" in spec and spec["selector"] != generated:
            errors.invalid("spec.selector", spec["selector"], "`selector` not auto-generated")
    validate_job_spec(spec, "spec", errors)
    selector = spec.get("selector")
    if selector is None:
        errors.required("spec.selector")
    elif not validate_selector(selector, "spec.selector", errors) and not label_selector_of(selector).matches(
        labels
    ):
        errors.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    completions = spec.get("completions")
    if spec.get("completionMode") == "Indexed" and completions and meta.get("name"):
        longest = f"{meta['name']}-{completions - 1}"
        if name_problems(longest, "label"):
            errors.invalid(
                "metadata.name", meta["name"], f"will not able to create pod with invalid DNS label: {longest}"
            )


def validate_job_spec(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    # numbers
    not_negative(
        spec,
        (
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
            "backoffLimitPerIndex",
            "maxFailedIndexes",
        ),
        path,
        errors,
    )
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        errors.required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    # fields that need, or do not allow, indexes
    indexed = spec.get("completionMode") == "Indexed"
    if indexed:
        if spec.get("completions") is None:
            errors.required(f"{path}.completions", "when completion mode is Indexed")
        if (spec.get("parallelism") or 0) > 100_000:
            errors.invalid(
                f"{path}.parallelism",
                spec["parallelism"],
                "must be less than or equal to 100000 when completion mode is Indexed",
            )
    else:
        for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(key) is not None:
                errors.invalid(f"{path}.{key}", spec[key], "requires indexed completion mode")
        if spec.get("successPolicy") is not None:
            errors.invalid(f"{path}.successPolicy", spec["successPolicy"], "requires indexed completion mode")
    # policies
    _validate_failure_policy(spec, f"{path}.podFailurePolicy", errors)
    if spec.get("podFailurePolicy") is not None and spec.get("podReplacementPolicy") not in (None, "Failed"):
        errors.unsupported(f"{path}.podReplacementPolicy", spec["podReplacementPolicy"], ["Failed"])
    # the pod template, which must not restart for ever
    pod = spec["template"].get("spec") or {}
    validate_pod_spec(pod, f"{path}.template.spec", errors)
    where = f"{path}.template.spec.restartPolicy"
    policy = pod.get("restartPolicy", "")
    if policy in ("", "Always"):
        errors.required(where, 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        errors.unsupported(where, policy, ["OnFailure", "Never"])
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        errors.invalid(where, policy, 'only "Never" is supported when podFailurePolicy is specified')


def _validate_failure_policy(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    policy = spec.get("podFailurePolicy")
    if policy is None:
        return
    rules = policy.get("rules") or ()
    if not rules:
        errors.required(f"{path}.rules", "there must be at least one rule")
    containers = {container.get("name") for container in containers_of((spec["template"].get("spec")) or {})}
    for at, rule in enumerate(rules):
        where = f"{path}.rules[{at}]"
        action = rule.get("action")
        if not action:
            errors.required(f"{where}.action", 'valid values: "Count", "FailIndex", "FailJob", "Ignore"')
        elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            errors.invalid(f"{where}.action", action, "requires the backoffLimitPerIndex to be set")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if codes is not None and conditions:
            errors.plain(where, "specifying both OnExitCodes and OnPodConditions is not supported")
        if codes is None and not conditions:
            errors.plain(where, "specifying one of OnExitCodes and OnPodConditions is required")
        if codes is not None:
            _validate_exit_codes(codes, f"{where}.onExitCodes", containers, errors)
        for index, pattern in enumerate(conditions or ()):
            if not pattern.get("type"):
                errors.required(f"{where}.onPodConditions[{index}].type")


def _validate_exit_codes(
    codes: Mapping[str, Any], path: str, containers: set[str | None], errors: FieldErrors
) -> None:
    operator, values = codes.get("operator"), codes.get("values") or ()
    if not operator:
        errors.required(f"{path}.operator", 'valid values: "In", "NotIn"')
    name = codes.get("containerName")
    if name is not None and name not in containers:
        errors.invalid(
            f"{path}.containerName",
            name,
            "must be one of the container or initContainer names in the pod template",
        )
    if not values:
        errors.invalid(f"{path}.values", [], "at least one value is required")
    elif len(values) > 255:
        errors.invalid(f"{path}.values", len(values), "must have at most 255 items")
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            errors.invalid(f"{path}.values[{index}]", value, "must not be 0 for the In operator")
        if value in values[:index]:
            errors.duplicate(f"{path}.values[{index}]", value)
    if list(values) != sorted(values):
        errors.invalid(f"{path}.values", values, "must be ordered")


def _validate_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = own_spec(new), own_spec(old)
    elastic = (
        had.get("completionMode") == "Indexed"
        and spec.get("completions") is not None
        and spec.get("completions") == spec.get("parallelism")
        and had.get("completions") == had.get("parallelism")
    )
    if not elastic:
        immutable(spec.get("completions"), had.get("completions"), "spec.completions", errors)
    for key in (
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ):
        immutable(spec.get(key), had.get(key), f"spec.{key}", errors)
    template, template_was = spec.get("template") or {}, had.get("template") or {}
    if had.get("suspend") and not (old.get("status") or {}).get("startTime"):
        template, template_was = _without_scheduling(template), _without_scheduling(template_was)
    immutable(template, template_was, "spec.template", errors)


def _without_scheduling(template: Mapping[str, Any]) -> Obj:
    """Return a template without the fields that may change while its Job is suspended and never ran."""
    spec = {**(template.get("spec") or {})}
    for key in ("nodeSelector", "tolerations", "schedulingGates"):
        spec.pop(key, None)
    affinity = {key: value for key, value in (spec.pop("affinity", None) or {}).items() if key != "nodeAffinity"}
    if affinity:
        spec["affinity"] = affinity
    meta = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key not in ("labels", "annotations")
    }
    return {"metadata": meta, "spec": spec}


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    succeeded = status.get("succeeded", 0)
    parallelism = spec.get("parallelism") or 0
    if spec.get("completions") is not None:
        completions = f"{succeeded}/{spec['completions']}"
    elif parallelism > 1:
        completions = f"{succeeded}/1 of {parallelism}"
    else:
        completions = f"{succeeded}/1"
    took = ""
    if status.get("startTime"):
        end = parse_rfc3339(status["completionTime"]) if status.get("completionTime") else now
        took = format_duration(end - parse_rfc3339(status["startTime"]))
    status_text = "Running"
    for word, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if is_condition_true(obj, word):
            status_text = shown
            break
    else:
        if obj["metadata"].get("deletionTimestamp"):
            status_text = "Terminating"
        else:
            for word in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
                if is_condition_true(obj, word):
                    status_text = word
                    break
    names, images = template_containers(spec.get("template"))
    return (
        obj["metadata"]["name"],
        status_text,
        completions,
        took,
        created(obj, now),
        names,
        images,
        selector_text(spec.get("selector")),
    )


RULES = {
    ("batch", "jobs"): Rules(
        default=_default,
        prepare_create=_prepare,
        validate=_validate,
        validate_update=_validate_update,
        generation=spec_changed,
        orphan_by_default=True,
        field_selectors=frozenset({"status.successful"}),
        cells=_cells,
    ),
}
