"""The rules of the built-in kinds, by (group, plural).

Defaults and checks follow the real server's `defaults.go`, `validation.go` and `strategy.go` of each kind.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moorage.apimachinery.integers import INT32_MAX, integer_or
from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import Obj
from moorage.apimachinery.selectors import label_selector_of
from moorage.localcluster.apiserver.fields import FieldErrors
from moorage.localcluster.apiserver.kinds import podspec
from moorage.localcluster.apiserver.kinds.cells import CELLS, pod_row_conditions
from moorage.localcluster.apiserver.kinds.event import prepare_core, to_core, to_new
from moorage.localcluster.apiserver.kinds.ingress import validate_ingress, validate_new_ingress
from moorage.localcluster.apiserver.kinds.kind import Rules, spec_changed
from moorage.localcluster.apiserver.metadata import label_value_problems, name_problems, qualified_name_problems

JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
JOB_UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
SYSTEM_PRIORITY = 1_000_000_000  # user priority classes lie at or below it
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
SECRET_MAX_BYTES = 1024 * 1024
IMMUTABLE = "field is immutable"


def _spec(obj: Obj) -> Obj:
    found: Obj = obj.setdefault("spec", {})
    return found


def immutable(new: Any, old: Any, path: str, errors: FieldErrors) -> None:
    if new != old:
        errors.invalid(path, new, IMMUTABLE)


def _not_negative(spec: Mapping[str, Any], keys: tuple[str, ...], path: str, errors: FieldErrors) -> None:
    for key in keys:
        value = spec.get(key)
        if value is not None and value < 0:
            errors.invalid(f"{path}.{key}", value, "must be greater than or equal to 0")


# --- pods


def _prepare_pod(obj: Obj) -> None:
    spec = _spec(obj)
    status: Obj = {"phase": "Pending", "qosClass": podspec.qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": obj["metadata"].get("creationTimestamp"),
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
        status["conditions"][0].pop("lastProbeTime")
    obj["status"] = status


def _prepare_pod_status(new: Obj, old: Obj) -> None:
    meta = new["metadata"]
    if "ownerReferences" in old["metadata"]:
        meta["ownerReferences"] = old["metadata"]["ownerReferences"]
    else:
        meta.pop("ownerReferences", None)
    status = new.setdefault("status", {})
    if not status.get("qosClass") and (old.get("status") or {}).get("qosClass"):
        status["qosClass"] = old["status"]["qosClass"]


def _prepare_pod_update(new: Obj, old: Obj) -> None:
    spec, had = _spec(new), _spec(old)
    for key in ("priority", "preemptionPolicy"):
        if spec.get(key) is None and had.get(key) is not None:
            spec[key] = had[key]


def _validate_pod(obj: Obj, errors: FieldErrors) -> None:
    podspec.validate_pod_spec(_spec(obj), "spec", errors)


def _validate_pod_create(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _validate_pod_status(new: Obj, old: Obj, errors: FieldErrors) -> None:
    status, had = new.get("status") or {}, old.get("status") or {}
    if had.get("qosClass") and status.get("qosClass") != had["qosClass"]:
        errors.invalid("status.qosClass", status.get("qosClass", ""), "field is immutable")
    if had.get("phase") in ("Failed", "Succeeded") and status.get("phase") != had["phase"]:
        policy = _spec(old).get("restartPolicy")
        if policy == "Never" and status.get("phase") in ("Pending", "Running"):
            return  # a kubelet that lost its state may do this; the real server lets it


def _pod_grace(obj: Obj, asked: int | None) -> int:
    spec = _spec(obj)
    period = asked if asked is not None else spec.get("terminationGracePeriodSeconds") or 0
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        period = 0
    return 1 if period < 0 else int(period)


# --- workloads


def _default_selected(obj: Obj) -> None:
    podspec.default_template(_spec(obj).setdefault("template", {}))


def _validate_selected(obj: Obj, errors: FieldErrors) -> None:
    """A selector, not empty, that matches the labels of the template."""
    spec = _spec(obj)
    selector, template = spec.get("selector"), spec.get("template") or {}
    _not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"), "spec", errors)
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
    podspec.validate_pod_spec(pod, "spec.template.spec", errors)


def validate_selector(selector: Mapping[str, Any], path: str, errors: FieldErrors) -> bool:
    """A `metav1.LabelSelector`; whether anything was wrong."""
    before = len(errors.causes)
    for key, value in (selector.get("matchLabels") or {}).items():
        for problem in qualified_name_problems(key):
            errors.invalid(f"{path}.matchLabels", key, problem)
        for problem in label_value_problems(value):
            errors.invalid(f"{path}.matchLabels", value, problem)
    for at, one in enumerate(selector.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator, values = one.get("operator", ""), one.get("values") or ()
        if operator in ("In", "NotIn"):
            if not values:
                errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                errors.forbidden(
                    f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        for problem in qualified_name_problems(one.get("key", "")):
            errors.invalid(f"{where}.key", one.get("key", ""), problem)
    return len(errors.causes) > before


def _selector_immutable(new: Obj, old: Obj, errors: FieldErrors) -> None:
    immutable(_spec(new).get("selector"), _spec(old).get("selector"), "spec.selector", errors)


def _default_deployment(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _default_selected(obj)


def _validate_deployment(obj: Obj, errors: FieldErrors) -> None:
    _validate_selected(obj, errors)
    strategy = _spec(obj).get("strategy") or {}
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        errors.forbidden("spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'")
    rolling = strategy.get("rollingUpdate") or {}
    if strategy.get("type") == "RollingUpdate" and all(
        str(rolling.get(key)) in ("0", "0%") for key in ("maxUnavailable", "maxSurge")
    ):
        errors.invalid(
            "spec.strategy.rollingUpdate.maxUnavailable",
            rolling.get("maxUnavailable"),
            "may not be 0 when `maxSurge` is 0",
        )


def _spec_or_annotations_changed(new: Obj, old: Obj) -> bool:
    return spec_changed(new, old) or new["metadata"].get("annotations") != old["metadata"].get("annotations")


def _default_replicaset(obj: Obj) -> None:
    _spec(obj).setdefault("replicas", 1)
    _default_selected(obj)


def _default_statefulset(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    update = spec.setdefault("updateStrategy", {})
    if not update.get("type"):
        update["type"] = "RollingUpdate"
        update.setdefault("rollingUpdate", {})
    if update["type"] == "RollingUpdate" and "rollingUpdate" in update:
        update["rollingUpdate"].setdefault("partition", 0)
        update["rollingUpdate"].pop("maxUnavailable", None)  # dropped: its feature gate is off in 1.36
    policy = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    policy.setdefault("whenDeleted", "Retain")
    policy.setdefault("whenScaled", "Retain")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("serviceName", "")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.setdefault("kind", "PersistentVolumeClaim")
        claim.setdefault("apiVersion", "v1")
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {})["phase"] = "Pending"
    if spec["serviceName"] == "":
        del spec["serviceName"]
    _default_selected(obj)


_STATEFULSET_MUTABLE = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    }
)


def _validate_statefulset_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = _spec(new), _spec(old)
    changed = [key for key in {*spec, *had} if key not in _STATEFULSET_MUTABLE and spec.get(key) != had.get(key)]
    if changed:
        errors.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals',"
            " 'template', 'updateStrategy',"
            " 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        )


def _default_daemonset(obj: Obj) -> None:
    spec = _spec(obj)
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        rolling = update.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    _default_selected(obj)


TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"


def _prepare_daemonset(obj: Obj) -> None:
    born = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    obj["status"] = dict.fromkeys(born, 0)
    obj["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = "1"


def _prepare_daemonset_update(new: Obj, old: Obj) -> None:
    was = integer_or((old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION), 0)
    changed = _spec(new).get("template") != _spec(old).get("template")
    new["metadata"].setdefault("annotations", {})[TEMPLATE_GENERATION] = str(was + changed)


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
    _default_failure_policy(policy)


def _default_failure_policy(policy: Any) -> None:
    for rule in (policy or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")


def _default_job(obj: Obj) -> None:
    spec = _spec(obj)
    _default_job_spec(spec)
    _default_selected(obj)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)


def _prepare_job(obj: Obj) -> None:
    spec, meta = _spec(obj), obj["metadata"]
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


def _validate_job(obj: Obj, errors: FieldErrors) -> None:
    spec, meta = _spec(obj), obj["metadata"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not spec.get("manualSelector"):
        for label, wanted in [(one, meta.get("uid")) for one in JOB_UID_LABELS] + [
            (one, meta.get("name")) for one in JOB_NAME_LABELS
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
    _validate_job_spec(spec, "spec", errors)
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


def _validate_job_spec(spec: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    _not_negative(
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
    _validate_failure_policy(spec, f"{path}.podFailurePolicy", errors)
    if spec.get("podFailurePolicy") is not None and spec.get("podReplacementPolicy") not in (None, "Failed"):
        errors.unsupported(f"{path}.podReplacementPolicy", spec["podReplacementPolicy"], ["Failed"])
    pod = spec["template"].get("spec") or {}
    podspec.validate_pod_spec(pod, f"{path}.template.spec", errors)
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
    containers = {one.get("name") for one in podspec.containers_of((spec["template"].get("spec")) or {})}
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
            operator, values = codes.get("operator"), codes.get("values") or ()
            if not operator:
                errors.required(f"{where}.onExitCodes.operator", 'valid values: "In", "NotIn"')
            name = codes.get("containerName")
            if name is not None and name not in containers:
                errors.invalid(
                    f"{where}.onExitCodes.containerName",
                    name,
                    "must be one of the container or initContainer names in the pod template",
                )
            if not values:
                errors.invalid(f"{where}.onExitCodes.values", [], "at least one value is required")
            elif len(values) > 255:
                errors.invalid(f"{where}.onExitCodes.values", len(values), "must have at most 255 items")
            for index, value in enumerate(values):
                if operator == "In" and value == 0:
                    errors.invalid(
                        f"{where}.onExitCodes.values[{index}]", value, "must not be 0 for the In operator"
                    )
                if value in values[:index]:
                    errors.duplicate(f"{where}.onExitCodes.values[{index}]", value)
            if list(values) != sorted(values):
                errors.invalid(f"{where}.onExitCodes.values", values, "must be ordered")
        for index, pattern in enumerate(conditions or ()):
            if not pattern.get("type"):
                errors.required(f"{where}.onPodConditions[{index}].type")


def _validate_job_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = _spec(new), _spec(old)
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
    """A template less what may change while its Job is suspended and never ran."""
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


def _default_cronjob(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    job = spec.setdefault("jobTemplate", {})
    job.setdefault("metadata", {})
    inner = job.setdefault("spec", {})
    podspec.default_template(inner.setdefault("template", {}))
    _default_failure_policy(inner.get("podFailurePolicy"))


def _validate_cronjob(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    schedule = spec.get("schedule")
    if not schedule:
        errors.required("spec.schedule")
    elif problem := schedule_problem(schedule):
        errors.invalid("spec.schedule", schedule, problem)
    zone = spec.get("timeZone")
    if zone is not None and (problem := _zone_problem(zone)):
        errors.invalid("spec.timeZone", zone, problem)
    _not_negative(
        spec, ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"), "spec", errors
    )
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    _validate_job_spec(job, "spec.jobTemplate.spec", errors)
    name = obj["metadata"].get("name") or ""
    if len(name) > 52:
        errors.invalid("metadata.name", name, "must be no more than 52 characters")


_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_CRON_NAMES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
)


def schedule_problem(text: str) -> str | None:
    """What is wrong with a cron line of five fields or a macro; None when nothing is."""
    if "TZ" in text:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if text.startswith("@"):
        if text in _CRON_MACROS or text.startswith("@every "):
            return None
        return f"unrecognized descriptor: {text}"
    fields = text.split()
    if len(fields) != 5:
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for field, (low, high), names in zip(fields, _CRON_RANGES, _CRON_NAMES, strict=True):
        for part in field.split(","):
            span, _, step = part.partition("/")
            if step and not integer_or(step, 0, maximum=INT32_MAX):
                return f"step of range should be a positive number: {part}"
            if span in ("*", "?"):
                continue
            ends = span.split("-")
            if len(ends) > 2:
                return f"too many hyphens: {part}"
            numbers = []
            for end in ends:
                if end.lower() in names:
                    numbers.append(names.index(end.lower()) + (low if low else 0))
                elif (number := integer_or(end, -1, maximum=INT32_MAX)) >= 0:
                    numbers.append(number)
                else:
                    return f"failed to parse int from {end}"
            if numbers[0] < low:
                return f"beginning of range ({numbers[0]}) below minimum ({low}): {part}"
            if numbers[-1] > high:
                return f"end of range ({numbers[-1]}) above maximum ({high}): {part}"
            if numbers[0] > numbers[-1]:
                return f"beginning of range ({numbers[0]}) beyond end of range ({numbers[-1]}): {part}"
    return None


def _zone_problem(zone: str) -> str | None:
    import zoneinfo

    if not zone:
        return "timeZone must be nil or non-empty string"
    if zone.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return f"unknown time zone {zone}"
    return None


# --- core


def _default_namespace(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        labels = obj["metadata"].setdefault("labels", {})
        labels[NAMESPACE_LABEL] = name


def _prepare_namespace(obj: Obj) -> None:
    _default_namespace(obj)
    finalizers = _spec(obj).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _prepare_namespace_update(new: Obj, old: Obj) -> None:
    if "finalizers" in _spec(old):
        _spec(new)["finalizers"] = _spec(old)["finalizers"]
    else:
        _spec(new).pop("finalizers", None)


def _namespace_pending(obj: Obj) -> bool:
    return bool((obj.get("spec") or {}).get("finalizers"))


def _namespace_deleted(obj: Obj) -> None:
    obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    obj["metadata"].pop("deletionGracePeriodSeconds", None)


_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


def _prepare_node(obj: Obj) -> None:
    status = obj.setdefault("status", {})
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status["nodeInfo"] = dict.fromkeys(_NODE_INFO, "") | (status.get("nodeInfo") or {})


def _default_node(obj: Obj) -> None:
    status = obj.get("status")
    if status and "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def _validate_node(obj: Obj, errors: FieldErrors) -> None:
    seen: set[tuple[str, str]] = set()
    for at, taint in enumerate(_spec(obj).get("taints") or ()):
        path = f"metadata.taints[{at}]"  # as the real server says
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for problem in qualified_name_problems(key):
            errors.invalid(f"{path}.key", key, problem)
        for problem in label_value_problems(taint.get("value") or ""):
            errors.invalid(f"{path}.value", taint["value"], problem)
        if not effect:
            errors.required(f"{path}.effect")
        if (key, effect) in seen:
            errors.duplicate(path, taint)
        seen.add((key, effect))


def _default_configmap(obj: Obj) -> None:
    if obj.get("immutable") is None:
        obj.pop("immutable", None)


def _validate_configmap(obj: Obj, errors: FieldErrors) -> None:
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            size += len(value)
            _validate_key(key, f"{part}[{key}]", errors)
    if size > SECRET_MAX_BYTES:
        errors.too_long("", SECRET_MAX_BYTES)


def _validate_key(key: str, path: str, errors: FieldErrors) -> None:
    if not key or len(key) > 253 or not all(char.isalnum() or char in "-_." for char in key):
        errors.invalid(
            path,
            key,
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or"
            " 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        )


def _immutable_data(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        errors.forbidden("immutable", "field is immutable when `immutable` is set")
    for part in ("data", "binaryData"):
        if new.get(part) != old.get(part):
            errors.forbidden(part, "field is immutable when `immutable` is set")


def _default_secret(obj: Obj) -> None:
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()
    obj.setdefault("type", "Opaque")


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _validate_secret(obj: Obj, errors: FieldErrors) -> None:
    data = obj.get("data") or {}
    for key in data:
        _validate_key(key, f"data[{key}]", errors)
    if sum(len(value) * 3 // 4 for value in data.values()) > SECRET_MAX_BYTES:
        errors.too_long("data", SECRET_MAX_BYTES)
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in data:
            errors.required(f"data[{key}]")


def _validate_secret_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    immutable(new.get("type"), old.get("type"), "type", errors)
    _immutable_data(new, old, errors)


def _default_service(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("sessionAffinity", "None")
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
    else:
        spec.pop("sessionAffinityConfig", None)
    kind = spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, 0, "") and "port" in port:
            port["targetPort"] = port["port"]
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _prepare_service(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}


def _prepare_service_update(new: Obj, old: Obj) -> None:
    spec, had = _spec(new), _spec(old)
    if spec.get("type") != "ExternalName" and had.get("type") != "ExternalName":
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not spec.get(key) and key in had:
                spec[key] = had[key]
    had_ports = {(one.get("port"), one.get("protocol")): one for one in had.get("ports") or ()}
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        for port in spec.get("ports") or ():
            was = had_ports.get((port.get("port"), port.get("protocol"))) or {}
            if not port.get("nodePort") and was.get("nodePort"):
                port["nodePort"] = was["nodePort"]


def _validate_service(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    ports = spec.get("ports") or ()
    headless = spec.get("clusterIP") == "None"
    if not ports and not headless and spec.get("type") != "ExternalName":
        errors.required("spec.ports")
    names: set[str] = set()
    for at, port in enumerate(ports):
        path = f"spec.ports[{at}]"
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            errors.required(f"{path}.name")
        elif name:
            for problem in name_problems(name, "label"):
                errors.invalid(f"{path}.name", name, problem)
            if name in names:
                errors.duplicate(f"{path}.name", name)
            names.add(name)
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            errors.invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive")
        target = port.get("targetPort")
        if isinstance(target, int) and not 1 <= target <= 65535:
            errors.invalid(f"{path}.targetPort", target, "must be between 1 and 65535, inclusive")
    if spec.get("type") == "ExternalName" and not spec.get("externalName"):
        errors.required("spec.externalName")


def _validate_service_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = _spec(new), _spec(old)
    if spec.get("type") != "ExternalName" and had.get("clusterIP") and spec.get("clusterIP") != had["clusterIP"]:
        errors.invalid("spec.clusterIPs[0]", [spec.get("clusterIP")], "may not change once set")


def _default_pvc(obj: Obj) -> None:
    _spec(obj).setdefault("volumeMode", "Filesystem")


def _prepare_pvc(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


def _validate_pvc(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    modes = spec.get("accessModes") or ()
    if not modes:
        errors.required("spec.accessModes", "at least 1 access mode is required")
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        errors.forbidden("spec.accessModes", "may not use ReadWriteOncePod with other access modes")
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if size is None:
        errors.required("spec.resources[storage]")
    elif parse_quantity(size) <= 0:
        errors.invalid("spec.resources[storage]", size, "must be greater than zero")
    name = spec.get("storageClassName")
    if name:
        for problem in name_problems(name, "subdomain"):
            errors.invalid("spec.storageClassName", name, problem)


def _validate_pvc_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    spec, had = {**_spec(new)}, {**_spec(old)}
    if not had.get("volumeName"):
        spec.pop("volumeName", None)  # a controller or a user binds it once
        had.pop("volumeName", None)
    if had.get("storageClassName") is None:
        spec.pop("storageClassName", None)  # the default class may be filled in later
    size = ((spec.pop("resources", None) or {}).get("requests") or {}).get("storage")
    size_was = ((had.pop("resources", None) or {}).get("requests") or {}).get("storage")
    for key in ("volumeAttributesClassName",):
        spec.pop(key, None)
        had.pop(key, None)
    if spec != had:
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and"
            " volumeAttributesClassName for bound claims",
        )
        return
    if size == size_was:
        return
    bound = (old.get("status") or {}).get("phase") == "Bound"
    if not bound:
        errors.forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and"
            " volumeAttributesClassName for bound claims",
        )
    elif size is None or (size_was is not None and parse_quantity(size) < parse_quantity(size_was)):
        capacity = ((old.get("status") or {}).get("capacity") or {}).get("storage")
        if size is None or capacity is None or parse_quantity(size) <= parse_quantity(capacity):
            errors.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity")


def _default_pv(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")


def _prepare_pv(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": obj["metadata"]["creationTimestamp"]}


def _validate_pv(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    if not spec.get("accessModes"):
        errors.required("spec.accessModes")
    if not spec.get("capacity"):
        errors.required("spec.capacity")
        errors.unsupported("spec.capacity", None, ["storage"])
    known = {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
    sources = [key for key in spec if key not in known]
    if not sources:
        errors.required("spec", "must specify a volume type")
    for extra in sources[1:]:
        errors.forbidden(f"spec.{extra}", "may not specify more than 1 volume type")


def _default_storageclass(obj: Obj) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _validate_storageclass(obj: Obj, errors: FieldErrors) -> None:
    if not obj.get("provisioner"):
        errors.required("provisioner")


def _born_with(**status: Any) -> Callable[[Obj], None]:
    """A prepare hook that gives the status of a new object, whatever the client sent."""

    def prepare(obj: Obj) -> None:
        obj["status"] = dict(status)

    return prepare


def _fixed(*keys: str) -> Callable[[Obj, Obj, FieldErrors], None]:
    def check(new: Obj, old: Obj, errors: FieldErrors) -> None:
        for key in keys:
            if new.get(key) != old.get(key):
                if key == "provisioner":
                    immutable(new.get(key), old.get(key), key, errors)
                else:
                    errors.forbidden(key, f"updates to {key} are forbidden.")

    return check


def _default_priorityclass(obj: Obj) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def _validate_priorityclass(obj: Obj, errors: FieldErrors) -> None:
    name, value = obj["metadata"].get("name") or "", obj.get("value", 0)
    if name.startswith("system-"):
        if name not in ("system-cluster-critical", "system-node-critical"):
            errors.forbidden(
                "metadata.name",
                "priority class names with 'system-' prefix are reserved for system use only. error:"
                f" {name} is not a known system priority class",
            )
    elif value > SYSTEM_PRIORITY:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {SYSTEM_PRIORITY}")


def _validate_priorityclass_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if new.get("value") != old.get("value"):
        errors.forbidden("value", "may not be changed in an update.")
    immutable(new.get("preemptionPolicy"), old.get("preemptionPolicy"), "preemptionPolicy", errors)


def _validate_pdb(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        errors.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    for key in ("minAvailable", "maxUnavailable"):
        value = spec.get(key)
        if isinstance(value, int) and value < 0:
            errors.invalid(f"spec.{key}", value, "must be greater than or equal to 0")
        elif isinstance(value, str) and not (
            value.endswith("%") and integer_or(value[:-1], -1, maximum=100, signed=False) >= 0
        ):
            errors.invalid(
                f"spec.{key}",
                value,
                "a valid percent string must be a numeric string followed by an ending '%'"
                " (e.g. '1%',  or '93%', regex"
                " used for validation is '[0-9]+%')",
            )
    if spec.get("selector"):
        validate_selector(spec["selector"], "spec.selector", errors)


def _default_lease(obj: Obj) -> None:
    _spec(obj)


def _validate_lease(obj: Obj, errors: FieldErrors) -> None:
    spec = _spec(obj)
    if spec.get("leaseDurationSeconds", 1) <= 0:
        errors.invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if (spec.get("leaseTransitions") or 0) < 0:
        errors.invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _default_hpa(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("minReplicas", 1)
    target = {"type": "Utilization", "averageUtilization": 80}
    spec.setdefault("metrics", [{"type": "Resource", "resource": {"name": "cpu", "target": target}}])


def _default_ingress(obj: Obj) -> None:
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _default_netpol(obj: Obj) -> None:
    spec = _spec(obj)
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")


def _default_endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


def _default_endpointslice(obj: Obj) -> None:
    obj.setdefault("endpoints", [])
    obj.setdefault("ports", [])
    for endpoint in obj["endpoints"]:
        endpoint.setdefault("conditions", {})
    for port in obj["ports"]:
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def _slice_changed(new: Obj, old: Obj) -> bool:
    return any(new.get(key) != old.get(key) for key in ("endpoints", "ports", "addressType"))


def _default_limitrange(obj: Obj) -> None:
    for one in _spec(obj).get("limits") or ():
        if one.get("type") != "Container":
            continue
        default = {**(one.get("max") or {}), **(one.get("default") or {})}
        request = {**(one.get("min") or {}), **default, **(one.get("defaultRequest") or {})}
        if default:
            one["default"] = default
        if request:
            one["defaultRequest"] = request


def _default_webhooks(obj: Obj) -> None:
    for hook in obj.get("webhooks") or ():
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if obj.get("kind") == "MutatingWebhookConfiguration":
            hook.setdefault("reinvocationPolicy", "Never")
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        if "service" in (hook.get("clientConfig") or {}):
            hook["clientConfig"]["service"].setdefault("port", 443)


def _validate_webhooks(obj: Obj, errors: FieldErrors) -> None:
    seen: set[str] = set()
    for at, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{at}]"
        name = hook.get("name", "")
        if name in seen:
            errors.duplicate(f"{path}.name", name)
        seen.add(name)
        problems = name_problems(name, "subdomain")
        if not problems and name.count(".") < 2:
            problems = ["should be a domain with at least three segments separated by dots"]
        for problem in problems:
            errors.invalid(f"{path}.name", name, problem)
        if not hook.get("sideEffects"):
            errors.required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
        elif hook["sideEffects"] not in ("None", "NoneOnDryRun"):
            errors.unsupported(f"{path}.sideEffects", hook["sideEffects"], ["None", "NoneOnDryRun"])
        versions = hook.get("admissionReviewVersions")
        if not versions:
            errors.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        elif "v1" not in versions:
            errors.invalid(f"{path}.admissionReviewVersions", versions, "must include at least one of v1, v1beta1")
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            errors.invalid(
                f"{path}.timeoutSeconds",
                hook["timeoutSeconds"],
                "the timeout value must be between 1 and 30 seconds",
            )
        if hook.get("matchConditions"):
            errors.forbidden(f"{path}.matchConditions", "CEL is not evaluated by the local cluster")
        config = hook.get("clientConfig") or {}
        if ("url" in config) == ("service" in config):
            errors.required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif "service" in config:
            errors.invalid(
                f"{path}.clientConfig.service",
                config["service"],
                "the local cluster has no service network; use `url`",
            )
        elif not config["url"].startswith("https://"):
            errors.invalid(
                f"{path}.clientConfig.url",
                config["url"].partition(":")[0],
                "'https' is the only allowed URL scheme; desired format: https://host[/path]",
            )


def _webhooks_changed(new: Obj, old: Obj) -> bool:
    return bool(new.get("webhooks") != old.get("webhooks"))


def _validate_rolebinding(obj: Obj, errors: FieldErrors) -> None:
    ref = obj.get("roleRef") or {}
    if not ref.get("name"):
        errors.required("roleRef.name")
    if ref.get("kind") not in ("Role", "ClusterRole"):
        errors.unsupported("roleRef.kind", ref.get("kind", ""), ["Role", "ClusterRole"])


def _default_rolebinding(obj: Obj) -> None:
    if obj.get("roleRef"):
        obj["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")
    for one in obj.get("subjects") or ():
        if one.get("kind") in ("User", "Group"):
            one.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _validate_rolebinding_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if new.get("roleRef") != old.get("roleRef"):
        errors.invalid("roleRef", new.get("roleRef"), "cannot change roleRef")


def _default_event(obj: Obj) -> None:
    if obj.get("apiVersion") == "v1":
        prepare_core(obj)


def _validate_event(obj: Obj, errors: FieldErrors) -> None:
    target = obj.get("involvedObject") or obj.get("regarding") or {}
    namespace = obj["metadata"].get("namespace")
    wanted = target.get("namespace")
    if (wanted or "default") != namespace and not (wanted is None and namespace in ("default", "kube-system")):
        errors.invalid("involvedObject.namespace", wanted or "", "does not match event.namespace")


_POD_FIELDS = frozenset(
    {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    }
)
_EVENT_FIELDS = frozenset(
    {
        *(
            f"involvedObject.{key}"
            for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        ),
        "reason",
        "reportingComponent",
        "source",
        "source.component",
        "type",
    }
)
_ROLE = Rules(name_form="path", create_on_update=True)
_BINDING = Rules(
    name_form="path",
    create_on_update=True,
    default=_default_rolebinding,
    validate=_validate_rolebinding,
    validate_update=_validate_rolebinding_update,
)
_WEBHOOKS = Rules(
    default=_default_webhooks,
    validate=_validate_webhooks,
    generation=_webhooks_changed,
    unconditional_update=False,
)
_REVIEW = Rules(virtual=True)

_RULES: dict[tuple[str, str], Rules] = {
    ("", "pods"): Rules(
        default=podspec.default_pod,
        prepare_create=_prepare_pod,
        prepare_update=_prepare_pod_update,
        prepare_status=_prepare_pod_status,
        validate=_validate_pod,
        validate_create=_validate_pod_create,
        validate_update=podspec.validate_pod_update,
        validate_status=_validate_pod_status,
        generation=spec_changed,
        graceful=_pod_grace,
        field_selectors=_POD_FIELDS,
        row_conditions=pod_row_conditions,
    ),
    ("", "nodes"): Rules(
        default=_default_node,
        prepare_create=_prepare_node,
        validate=_validate_node,
        keep_status_on_create=True,
        field_selectors=frozenset({"spec.unschedulable"}),
    ),
    ("", "namespaces"): Rules(
        default=_default_namespace,
        prepare_create=_prepare_namespace,
        prepare_update=_prepare_namespace_update,
        name_form="label",
        pending=_namespace_pending,
        on_deletion=_namespace_deleted,
        field_selectors=frozenset({"status.phase"}),
    ),
    ("", "configmaps"): Rules(
        default=_default_configmap, validate=_validate_configmap, validate_update=_immutable_data
    ),
    ("", "secrets"): Rules(
        default=_default_secret,
        validate=_validate_secret,
        validate_update=_validate_secret_update,
        field_selectors=frozenset({"type"}),
    ),
    ("", "services"): Rules(
        default=_default_service,
        prepare_create=_prepare_service,
        prepare_update=_prepare_service_update,
        validate=_validate_service,
        validate_update=_validate_service_update,
        name_form="label",
        create_on_update=True,
        field_selectors=frozenset({"spec.clusterIP", "spec.type"}),
    ),
    ("", "events"): Rules(
        default=_default_event,
        validate=_validate_event,
        name_form="path",
        create_on_update=True,
        field_selectors=_EVENT_FIELDS,
    ),
    ("events.k8s.io", "events"): Rules(
        name_form="path",
        validate=_validate_event,
        create_on_update=True,
        to_storage=to_core,
        from_storage=to_new,
        converts=True,
        field_selectors=frozenset(
            {
                "reason",
                "type",
                "reportingController",
                "regarding.kind",
                "regarding.name",
                "regarding.namespace",
                "regarding.uid",
            }
        ),
    ),
    ("", "endpoints"): Rules(default=_default_endpoints, create_on_update=True),
    ("discovery.k8s.io", "endpointslices"): Rules(default=_default_endpointslice, generation=_slice_changed),
    ("", "resourcequotas"): Rules(prepare_create=_born_with()),
    ("", "limitranges"): Rules(default=_default_limitrange, create_on_update=True),
    ("", "persistentvolumeclaims"): Rules(
        default=_default_pvc,
        prepare_create=_prepare_pvc,
        validate=_validate_pvc,
        validate_update=_validate_pvc_update,
    ),
    ("", "persistentvolumes"): Rules(default=_default_pv, prepare_create=_prepare_pv, validate=_validate_pv),
    ("storage.k8s.io", "storageclasses"): Rules(
        default=_default_storageclass,
        validate=_validate_storageclass,
        validate_update=_fixed("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    ),
    ("apps", "deployments"): Rules(
        default=_default_deployment,
        prepare_create=_born_with(),
        validate=_validate_deployment,
        validate_update=_selector_immutable,
        generation=_spec_or_annotations_changed,
    ),
    ("apps", "replicasets"): Rules(
        default=_default_replicaset,
        prepare_create=_born_with(replicas=0),
        validate=_validate_selected,
        validate_update=_selector_immutable,
        generation=spec_changed,
        field_selectors=frozenset({"status.replicas"}),
    ),
    ("apps", "statefulsets"): Rules(
        default=_default_statefulset,
        prepare_create=_born_with(replicas=0, availableReplicas=0),
        validate=_validate_selected,
        validate_update=_validate_statefulset_update,
        generation=spec_changed,
    ),
    ("apps", "daemonsets"): Rules(
        default=_default_daemonset,
        prepare_create=_prepare_daemonset,
        prepare_update=_prepare_daemonset_update,
        validate=_validate_selected,
        validate_update=_selector_immutable,
        generation=spec_changed,
    ),
    ("batch", "jobs"): Rules(
        default=_default_job,
        prepare_create=_prepare_job,
        validate=_validate_job,
        validate_update=_validate_job_update,
        generation=spec_changed,
        orphan_by_default=True,
        field_selectors=frozenset({"status.successful"}),
    ),
    ("batch", "cronjobs"): Rules(
        default=_default_cronjob, prepare_create=_born_with(), validate=_validate_cronjob, generation=spec_changed
    ),
    ("coordination.k8s.io", "leases"): Rules(
        default=_default_lease, validate=_validate_lease, create_on_update=True, unconditional_update=False
    ),
    ("scheduling.k8s.io", "priorityclasses"): Rules(
        default=_default_priorityclass,
        validate=_validate_priorityclass,
        validate_update=_validate_priorityclass_update,
        generation=lambda _new, _old: False,
    ),
    ("policy", "poddisruptionbudgets"): Rules(
        validate=_validate_pdb,
        prepare_create=_born_with(disruptionsAllowed=0, currentHealthy=0, desiredHealthy=0, expectedPods=0),
        generation=spec_changed,
        unconditional_update=False,
    ),
    ("autoscaling", "horizontalpodautoscalers"): Rules(
        default=_default_hpa, prepare_create=_born_with(desiredReplicas=0)
    ),
    ("networking.k8s.io", "ingresses"): Rules(
        default=_default_ingress,
        validate=validate_ingress,
        validate_create=validate_new_ingress,
        generation=spec_changed,
    ),
    ("networking.k8s.io", "ingressclasses"): Rules(generation=spec_changed),
    ("networking.k8s.io", "networkpolicies"): Rules(default=_default_netpol, generation=spec_changed),
    ("rbac.authorization.k8s.io", "roles"): _ROLE,
    ("rbac.authorization.k8s.io", "clusterroles"): _ROLE,
    ("rbac.authorization.k8s.io", "rolebindings"): _BINDING,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _BINDING,
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _WEBHOOKS,
    ("authentication.k8s.io", "tokenreviews"): _REVIEW,
    ("authentication.k8s.io", "selfsubjectreviews"): _REVIEW,
    ("authorization.k8s.io", "subjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "localsubjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "selfsubjectaccessreviews"): _REVIEW,
    ("authorization.k8s.io", "selfsubjectrulesreviews"): _REVIEW,
}


def _with_cells() -> dict[tuple[str, str], Rules]:
    out = dict(_RULES)
    for key, cells in CELLS.items():
        out[key] = replace(out.get(key, Rules()), cells=cells)
    return out


RULES: Mapping[tuple[str, str], Rules] = _with_cells()
