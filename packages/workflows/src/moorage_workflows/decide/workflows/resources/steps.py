"""Convert a step with a resource template into a step with a container that runs the executor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from moorage.decide.evaluation import TextError
from moorage.model.argo import WORKFLOWS
from moorage_kube.errors import SelectorError
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.executororders import OrderError
from moorage_workflows.decide.workflows.resources import jsonpath
from moorage_workflows.decide.workflows.resources.conditions import parse_condition
from moorage_workflows.decide.workflows.resources.flags import ACTIONS, read_flags

ANSWERS_PATH = "/moorage/answers"  # of main: a file for each output parameter
STRATEGIES = ("strategic", "merge", "json")


def order_of(
    template: Mapping[str, Any], *, workflow: Mapping[str, Any], node: str, retries: int, manifest_path: str
) -> Obj:
    """The order in the form that the executor reads. `workflow`: its metadata. `retries`: how often it was
    retried.

    `manifest_path`: where main finds the manifest of the template. Raises OrderError.
    """
    # words from fixed lists
    resource = template["resource"]
    action = str(resource.get("action") or "")
    if action not in ACTIONS:
        raise OrderError("resource.action", f"is {action!r}: use one of {', '.join(ACTIONS)}")
    strategy = str(resource.get("mergeStrategy") or "strategic")
    if strategy not in STRATEGIES:
        raise OrderError("resource.mergeStrategy", f"is {strategy!r}: use one of {', '.join(STRATEGIES)}")
    # flags and conditions are parsed here, so that an error ends the step without a pod
    flags = [str(word) for word in resource.get("flags") or ()]
    try:
        read_flags(action, flags)
    except TextError as error:
        raise OrderError("resource.flags", error.message) from error
    for name in ("successCondition", "failureCondition"):
        try:
            parse_condition(str(resource.get(name) or ""))
        except SelectorError as error:
            raise OrderError(f"resource.{name}", error.message) from error
    return {
        "action": action,
        "namespace": str(workflow.get("namespace") or "default"),
        "mark": f"{workflow['uid']}/{node}/{retries}",
        "manifest": _manifest_path(template, manifest_path),
        "mergeStrategy": strategy,
        "flags": flags,
        "owner": _owner(workflow) if resource.get("setOwnerReference") else None,
        "success": str(resource.get("successCondition") or ""),
        "failure": str(resource.get("failureCondition") or ""),
        "outputs": [
            _output(entry, number, f"outputs.parameters[{number}]")
            for number, entry in enumerate((template.get("outputs") or {}).get("parameters") or ())
            if entry.get("valueFrom") is not None
        ],
    }


def as_container(template: Mapping[str, Any], order: Mapping[str, Any], container: Mapping[str, Any]) -> Obj:
    """Replace the resource of a template by a container, which writes a file for each output parameter."""
    made: Obj = copy.deepcopy({key: value for key, value in template.items() if key != "resource"})
    made["container"] = copy.deepcopy(dict(container))
    outputs = made.get("outputs") or {}
    paths = {entry["name"]: entry["path"] for entry in order["outputs"]}
    parameters = [
        {"name": entry["name"], "valueFrom": {"path": paths[entry["name"]]}}
        for entry in outputs.get("parameters") or ()
        if entry["name"] in paths
    ]
    made["outputs"] = {**outputs, "parameters": parameters}
    return made


def account_of(template: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return the service account of the executor; "" for the service account of the pod."""
    for holder in (template, spec):
        name = (holder.get("executor") or {}).get("serviceAccountName")
        if name:
            return str(name)
    return ""


def _manifest_path(template: Mapping[str, Any], usual: str) -> str:
    """Return the path of the manifest: that of the template, or an input artifact; "" if there is none."""
    resource = template["resource"]
    source = resource.get("manifestFrom")
    if not source:
        return usual if resource.get("manifest") else ""
    name = ((source.get("artifact") or {}).get("name")) if isinstance(source, Mapping) else None
    for entry in (template.get("inputs") or {}).get("artifacts") or ():
        if entry.get("name") == name:
            return str(entry.get("path") or "")
    raise OrderError(
        "resource.manifestFrom.artifact.name", f"is {name!r}, and there is no input artifact of this name"
    )


def _owner(workflow: Mapping[str, Any]) -> Obj:
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "name": workflow["name"],
        "uid": workflow["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _output(entry: Mapping[str, Any], number: int, field: str) -> Obj:
    source = entry["valueFrom"]
    path, program = source.get("jsonPath"), source.get("jqFilter")
    if not path and not program and source.get("default") is None:
        raise OrderError(f"{field}.valueFrom", "needs one of jsonPath and jqFilter")
    if path:
        try:
            jsonpath.parse(str(path))
        except TextError as error:
            raise OrderError(f"{field}.valueFrom.jsonPath", error.message) from error
    made: Obj = {"name": entry["name"], "path": f"{ANSWERS_PATH}/{number}"}
    if path:
        made["jsonPath"] = str(path)
    elif program:
        made["jqFilter"] = str(program)
    if source.get("default") is not None:
        made["default"] = str(source["default"])
    return made
