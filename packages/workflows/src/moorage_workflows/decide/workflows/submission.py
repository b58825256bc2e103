"""A submission: a manifest, or a reference to a template, with the additions of the user.

The manifest is changed in the named places only. Fields that Moorage does not know reach Argo's
controller, where that runs, as they were written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from msgspec import Struct, field

from moorage.api.errors import ErrorCode
from moorage.model.argo import (
    CLUSTER_WORKFLOW_TEMPLATES,
    COMPLETED_LABEL,
    CRON_WORKFLOWS,
    INSTANCE_LABEL,
    OUR_INSTANCE,
    PHASE_LABEL,
    SCHEDULED_ANNOTATION,
    WORKFLOW_TEMPLATES,
    WORKFLOWS,
    is_ours,
)
from moorage.model.names import (
    BEATS_ANNOTATION,
    HOST_ENV_ANNOTATION,
    NAME_COMPARED,
    OVER_BUDGET_ANNOTATION,
    OWNER_ANNOTATION,
    REQUEST_ANNOTATION,
    SERVICE_MARKS,
    is_dns_label,
)
from moorage_kube.errors import Conflict, UsageError
from moorage_kube.meta import annotations_of, labels_of, owner_reference
from moorage_kube.resources import Obj, Resource
from moorage_kube.selectors import is_label_key, is_label_value
from moorage_workflows.model.cronworkflow import metadata_of_runs
from moorage_workflows.model.workflow import NAME_MAX, RESUME_ANNOTATION, RETRY_ANNOTATION, TAKE_OVER_ANNOTATION

TEMPLATE_LABEL = "workflows.argoproj.io/workflow-template"  # on a Workflow made from a WorkflowTemplate
CLUSTER_TEMPLATE_LABEL = "workflows.argoproj.io/cluster-workflow-template"
RESUBMITTED_LABEL = "workflows.argoproj.io/resubmitted-from-workflow"
SOURCES: Mapping[str, Resource] = {  # of `--from KIND/NAME`, in Argo's words
    "workflowtemplate": WORKFLOW_TEMPLATES,
    "clusterworkflowtemplate": CLUSTER_WORKFLOW_TEMPLATES,
    "cronworkflow": CRON_WORKFLOWS,
}
_SHORT = {"wftmpl": "workflowtemplate", "cwft": "clusterworkflowtemplate", "cwf": "cronworkflow"}
SUFFIX = 5  # characters that the API server adds to generateName
ARGO_LIMITS = (  # of Argo 4's CustomResourceDefinitions: path, most, noun
    ("spec.templates", 200, "templates"),
    ("spec.arguments.parameters", 500, "parameters"),
)
ARGO_TASKS_MAX = 200  # of one DAG
_SUFFIX = re.compile(r"-[0-9a-z]{5}$")
_OF_A_RUN = (  # labels and annotations of one run, which another run of the same does not have
    PHASE_LABEL,
    COMPLETED_LABEL,
    INSTANCE_LABEL,
    RESUBMITTED_LABEL,
    RESUME_ANNOTATION,
    RETRY_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    REQUEST_ANNOTATION,
    BEATS_ANNOTATION,
    OWNER_ANNOTATION,
    SCHEDULED_ANNOTATION,
    *SERVICE_MARKS,
    OVER_BUDGET_ANNOTATION,
    "workflows.argoproj.io/creator",
    "kubectl.kubernetes.io/last-applied-configuration",
)


class Additions(Struct, frozen=True, kw_only=True):
    """The additions of a user to a manifest. `parameters` and `labels`: "name=value"; None and "": no change.

    `values`: parameters from a file; those in `parameters` win.
    """

    name: str = ""
    generate_name: str = ""
    parameters: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    labels: Sequence[str] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str = ""
    service_account: str = ""
    priority: int | None = None
    priority_class: str = ""
    host_env: bool = False


def source_of(text: str) -> tuple[Resource, str]:
    """Parse KIND/NAME, such as workflowtemplate/train. Raises UsageError."""
    kind, slash, name = text.partition("/")
    kind = kind.lower()
    resource = SOURCES.get(_SHORT.get(kind, kind))
    if not slash or not name or resource is None:
        raise UsageError(
            f"invalid source {text!r}: use {', '.join(f'{known}/NAME' for known in SOURCES)}",
            code=ErrorCode.BAD_REQUEST,
            field="from",
        )
    return resource, name


def workflow_from(resource: Resource, source: Mapping[str, Any]) -> Obj:
    """Return the Workflow that a template or a CronWorkflow starts. Its name begins with that of the source.

    The Workflow of a CronWorkflow sends the heartbeats of the schedule, as the Workflow of a slot does.
    """
    meta = source.get("metadata") or {}
    name = str(meta.get("name") or "")
    made: Obj = {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"generateName": f"{name}-"},
    }
    spec = source.get("spec") or {}
    if resource == CRON_WORKFLOWS:
        # admission writes the submitter as the owner; if an administrator submits, the schedule's owner stays
        labels, annotations = metadata_of_runs(source)
        made["metadata"]["labels"] = labels
        if annotations:
            made["metadata"]["annotations"] = annotations
        made["metadata"]["ownerReferences"] = [owner_reference(source)]
        made["spec"] = json.loads(json.dumps(spec.get("workflowSpec") or {}))
        return made
    reference: Obj = {"name": name}
    if resource == CLUSTER_WORKFLOW_TEMPLATES:
        reference["clusterScope"] = True
    label = CLUSTER_TEMPLATE_LABEL if resource == CLUSTER_WORKFLOW_TEMPLATES else TEMPLATE_LABEL
    made["metadata"]["labels"] = {label: name} if is_label_value(name) else {}
    made["spec"] = {"workflowTemplateRef": reference}
    return made


def with_additions(
    document: Mapping[str, Any],
    additions: Additions,
    *,
    namespace: str,
    ours: bool,
    declared: Mapping[str, Mapping[str, Any]] | None = None,
) -> Obj:
    """Return the Workflow to send. `declared`: parameters of the template that it refers to, by name.

    `ours`: whether Moorage is known to run it; then it gets our label. Raises UsageError with the wrong field.
    """
    # a copy without fields that the API server sets
    made: Obj = json.loads(json.dumps(document))
    meta: Obj = dict(made.get("metadata") or {})
    spec: Obj = dict(made.get("spec") or {})
    made |= {"metadata": meta, "spec": spec}
    _check_namespace(str(meta.get("namespace") or ""), namespace)
    meta["namespace"] = namespace
    for gone in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "generation"):
        meta.pop(gone, None)
    made.pop("status", None)
    # a name excludes a prefix
    if additions.name:
        meta["name"] = additions.name
        meta.pop("generateName", None)
    elif additions.generate_name:
        meta["generateName"] = additions.generate_name
        meta.pop("name", None)
    elif meta.get("name"):
        meta.pop("generateName", None)
    _check_name(meta)
    # labels and annotations of the user; the label that makes it ours does not replace another
    if labels := dict(pairs_of(additions.labels, "labels", "label")):
        _check_labels(labels)
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
    if additions.annotations:
        meta["annotations"] = {**(meta.get("annotations") or {}), **additions.annotations}
    if ours:
        meta["labels"] = {INSTANCE_LABEL: OUR_INSTANCE, **(meta.get("labels") or {})}
    # fields of the spec that have options
    for key, value in (
        ("entrypoint", additions.entrypoint),
        ("serviceAccountName", additions.service_account),
        ("podPriorityClassName", additions.priority_class),
    ):
        if value:
            spec[key] = value
    if additions.priority is not None:
        spec["priority"] = additions.priority
    if additions.host_env:
        pods: Obj = dict(spec.get("podMetadata") or {})
        pods["annotations"] = {**(pods.get("annotations") or {}), HOST_ENV_ANNOTATION: "true"}
        spec["podMetadata"] = pods
    # parameters, where those of the command line win over the file
    values = {**additions.values, **dict(pairs_of(additions.parameters, "parameters", "parameter"))}
    if values:
        spec["arguments"] = _with_parameters(spec, values, declared or {})
    return made


def pairs_of(texts: Iterable[str], field_name: str, noun: str) -> list[tuple[str, str]]:
    """Parse strings "name=value"; a value may contain "=" and may be empty. Raises UsageError."""
    pairs = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(
                f"invalid {noun} {text!r}: use NAME=VALUE", code=ErrorCode.BAD_REQUEST, field=field_name
            )
        pairs.append((name, value))
    return pairs


def _with_parameters(
    spec: Mapping[str, Any], values: Mapping[str, str], declared: Mapping[str, Mapping[str, Any]]
) -> Obj:
    """Return the arguments with these values, which replace existing ones.

    A name that is neither declared nor used is an error: it would change nothing.
    """
    arguments: Obj = dict(spec.get("arguments") or {})
    present = [dict(parameter) for parameter in arguments.get("parameters") or ()]
    known = {str(parameter.get("name")): parameter for parameter in present}
    all_known = {**declared, **known}
    text = json.dumps(spec, ensure_ascii=False)
    for name, value in values.items():
        if name not in all_known and not _is_mentioned(name, text) and "workflowTemplateRef" not in spec:
            raise _unknown_parameter(name, all_known)
        if name not in all_known and declared and not _is_mentioned(name, text):
            raise _unknown_parameter(name, all_known)
        allowed = (all_known.get(name) or {}).get("enum")
        choices = [str(choice) for choice in allowed or ()]
        if choices and value not in choices:
            raise UsageError(
                f"invalid value {value!r} of parameter {name!r}: use {', '.join(choices)}",
                code=ErrorCode.INVALID,
                field=f"spec.arguments.parameters.{name}",
            )
        if name in known:
            known[name].pop("valueFrom", None)
            known[name]["value"] = value
        else:
            present.append({"name": name, "value": value})
    arguments["parameters"] = present
    return arguments


def _is_mentioned(name: str, text: str) -> bool:
    return f"workflow.parameters.{name}" in text or f"workflow.parameters['{name}']" in text


def _unknown_parameter(name: str, known: Iterable[str]) -> UsageError:
    names = sorted(known)
    near = get_close_matches(name[:NAME_COMPARED], names, n=1)
    has = f"it has {', '.join(names)}" if names else "it has none"
    return UsageError(
        f"the workflow has no parameter {name!r}: {has}",
        hint=f"did you mean {near[0]}?" if near else "declare it in spec.arguments.parameters",
        code=ErrorCode.INVALID,
        field=f"spec.arguments.parameters.{name}",
    )


def declared_parameters(spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters that a spec declares for the workflow, by name."""
    parameters = (spec.get("arguments") or {}).get("parameters") or ()
    return {str(each["name"]): each for each in parameters if isinstance(each, Mapping) and each.get("name")}


def parameter_values(document: Any) -> dict[str, str]:
    """Return the values of a parameter file: a mapping of names to values, as for Argo's `--parameter-file`.

    Lists and mappings become JSON strings. Raises UsageError.
    """
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise UsageError(
            "invalid parameter file: use a mapping, a line NAME: VALUE for each",
            code=ErrorCode.INVALID,
            field="parameterFile",
        )
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in document.items()
        if value is not None
    }


def _check_namespace(written: str, namespace: str) -> None:
    if written and written != namespace:
        raise UsageError(
            f"the manifest is for namespace {written!r}, the command for {namespace!r}",
            hint=f"submit it there: moor workflow submit FILE -n {written}; or remove metadata.namespace",
            code=ErrorCode.INVALID,
            field="metadata.namespace",
        )


def _check_name(meta: Mapping[str, Any]) -> None:
    name, prefix = str(meta.get("name") or ""), str(meta.get("generateName") or "")
    if not name and not prefix:
        raise UsageError(
            "the workflow has no name",
            hint="set metadata.generateName, or give --name or --generate-name",
            code=ErrorCode.INVALID,
            field="metadata.name",
        )
    if name and (not is_dns_label(name) or len(name) > NAME_MAX):
        raise UsageError(
            f"invalid workflow name {name!r}: use at most {NAME_MAX} of a-z, 0-9 and '-',"
            " with a letter or digit at both ends",
            code=ErrorCode.INVALID,
            field="metadata.name",
        )
    if not name and (len(prefix) > NAME_MAX - SUFFIX or not is_dns_label(f"{prefix}{'x' * SUFFIX}")):
        raise UsageError(
            f"invalid generateName {prefix!r}: use at most {NAME_MAX - SUFFIX} of a-z, 0-9 and '-';"
            f" {SUFFIX} characters are added",
            code=ErrorCode.INVALID,
            field="metadata.generateName",
        )


def _check_labels(labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        if not is_label_key(key) or not is_label_value(value):
            raise UsageError(
                f"invalid label {f'{key}={value}'!r}: Kubernetes does not allow this key or value",
                hint="use letters, digits, '-', '_' and '.', 63 at most",
                code=ErrorCode.INVALID,
                field="labels",
            )


def named_by_mark(document: Mapping[str, Any], mark: str) -> Obj:
    """Replace a generated name by a name computed from `mark`, the idempotency mark of the request."""
    meta = dict(document.get("metadata") or {})
    if mark and not meta.get("name"):
        meta["name"] = f"{meta.pop('generateName')}{mark[:SUFFIX]}"
    return {**document, "metadata": meta}


def resubmitted(document: Mapping[str, Any], *, memoized: bool = False) -> Obj:
    """A new Workflow of the same spec, before additions: its own name, none of the marks of the earlier run.

    `memoized`: it takes over the successful steps. Raises Conflict where nothing can be taken over.
    """
    if memoized:
        _check_takeover(document)
    meta = document.get("metadata") or {}
    name = str(meta.get("name") or "")
    prefix = str(meta.get("generateName") or "") or f"{_SUFFIX.sub('', name)}-"
    labels = {key: value for key, value in labels_of(document).items() if key not in _OF_A_RUN}
    notes = {key: value for key, value in annotations_of(document).items() if key not in _OF_A_RUN}
    spec = {
        key: value for key, value in (document.get("spec") or {}).items() if key not in ("shutdown", "suspend")
    }
    if is_label_value(name):
        labels[RESUBMITTED_LABEL] = name
    made: Obj = {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"generateName": prefix[: NAME_MAX - SUFFIX], "labels": labels, "annotations": notes},
        "spec": json.loads(json.dumps(spec)),
    }
    if memoized:
        notes[TAKE_OVER_ANNOTATION] = str(meta["uid"])
    if references := [
        each for each in meta.get("ownerReferences") or () if each.get("kind") == CRON_WORKFLOWS.kind
    ]:
        made["metadata"]["ownerReferences"] = references
    return made


def _check_takeover(document: Mapping[str, Any]) -> None:
    name = str((document.get("metadata") or {}).get("name") or "")
    phase = str((document.get("status") or {}).get("phase") or "")
    if phase not in ("Failed", "Error"):
        raise Conflict(
            f"workflow {name!r} is {phase or 'Pending'}: only results of a workflow that is Failed or in Error"
            " can be taken over",
            hint=f"run every step: moor workflow resubmit {name}",
            code=ErrorCode.CONFLICT,
        )
    if not is_ours(document):
        raise Conflict(
            f"Argo ran workflow {name!r}: Moorage has no records of its steps",
            hint=f"use Argo's own command: argo resubmit --memoized {name}",
            code=ErrorCode.CONFLICT,
        )


def check_retry(phase: str, name: str, *, restart_successful: bool, selector: str) -> None:
    """Raise Conflict for a workflow that cannot be retried, UsageError for incompatible options."""
    if selector and not restart_successful:
        raise UsageError(
            "a node field selector chooses among nodes that succeeded: it needs --restart-successful",
            hint=f"moor workflow retry {name} --restart-successful --node-field-selector {selector}",
            code=ErrorCode.INVALID,
            field="nodeFieldSelector",
        )
    if phase in ("Failed", "Error") or (phase == "Succeeded" and restart_successful and selector):
        return
    if phase == "Succeeded":
        raise Conflict(
            f"workflow {name!r} has succeeded: nothing of it failed",
            hint=f"run it again: moor workflow resubmit {name}; or from a step:"
            f" moor workflow retry {name} --restart-successful --node-field-selector displayName=STEP",
            code=ErrorCode.CONFLICT,
        )
    raise Conflict(
        f"workflow {name!r} is {phase or 'Pending'}: only one that has ended can be retried",
        hint=f"wait for it: moor workflow wait {name}; or stop it: moor workflow stop {name}",
        code=ErrorCode.CONFLICT,
    )


def argo_limits(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a Workflow that are too large for Argo 4's own definitions, each with its field path.

    https://github.com/argoproj/argo-workflows/blob/main/pkg/apis/workflow/v1alpha1/workflow_types.go
    """
    problems = []
    for path, most, noun in ARGO_LIMITS:
        value: Any = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, list) and len(value) > most:
            problems.append(f"{path}: {len(value)} {noun}; Argo 4 allows {most}")
    templates = (document.get("spec") or {}).get("templates") or ()
    for at, template in enumerate(templates):
        tasks = ((template.get("dag") or {}).get("tasks") or ()) if isinstance(template, Mapping) else ()
        if len(tasks) > ARGO_TASKS_MAX:
            problems.append(f"spec.templates[{at}].dag.tasks: {len(tasks)} tasks; Argo 4 allows {ARGO_TASKS_MAX}")
    return tuple(problems)
