"""Checks of a resource template that need only the template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage.decide.evaluation import TextError
from moorage_kube.errors import DocumentError, SelectorError
from moorage_kube.yamldocuments import parse_yaml_documents
from moorage_workflows.decide.workflows.findings import Gathered
from moorage_workflows.decide.workflows.linttext import check_choice
from moorage_workflows.decide.workflows.resources import jsonpath
from moorage_workflows.decide.workflows.resources.conditions import parse_condition
from moorage_workflows.decide.workflows.resources.flags import ACTIONS, read_flags
from moorage_workflows.decide.workflows.resources.steps import STRATEGIES
from moorage_workflows.decide.workflows.scopes import has_tag

RULE = "resource"


def check_resource(out: Gathered, template: Mapping[str, Any], path: Path) -> None:
    """Check the resource of a template and the JSONPaths of its outputs. Strings with tags are not checked."""
    resource, at = mapping(template["resource"]), (*path, "resource")
    action = resource.get("action")
    if not action:
        out.error(RULE, (*at, "action"), "is required")
    check_choice(out, action, (*at, "action"), ACTIONS)
    check_choice(out, resource.get("mergeStrategy"), (*at, "mergeStrategy"), STRATEGIES)
    _check_manifest(out, resource, mapping(template.get("inputs")), at)
    _check_flags(out, resource, at)
    for name in ("successCondition", "failureCondition"):
        text = resource.get(name)
        if isinstance(text, str) and not has_tag(text):
            try:
                parse_condition(text)
            except SelectorError as error:
                hint = "write FIELD OPERATOR VALUE, such as status.succeeded > 0, separated by commas"
                out.error(RULE, (*at, name), f"{error.message}: {hint}", text)
    for index, entry in enumerate(sequence(mapping(template.get("outputs")).get("parameters"))):
        text = mapping(mapping(entry).get("valueFrom")).get("jsonPath")
        if isinstance(text, str) and not has_tag(text):
            try:
                jsonpath.parse(text)
            except TextError as error:
                where = (*path, "outputs", "parameters", index, "valueFrom", "jsonPath")
                out.error(RULE, where, error.message, text)


def _check_manifest(out: Gathered, resource: Mapping[str, Any], inputs: Mapping[str, Any], path: Path) -> None:
    action, flags = resource.get("action"), sequence(resource.get("flags"))
    sources = [name for name in ("manifest", "manifestFrom") if resource.get(name)]
    if len(sources) > 1:
        out.error(RULE, path, "has manifest and manifestFrom; use one of them")
    elif not sources and action in ("get", "delete"):
        if not flags:
            out.error(RULE, path, "needs a manifest with kind and name, or flags with KIND and NAME")
    elif not sources:
        out.error(RULE, path, "needs one of manifest and manifestFrom")
    if resource.get("manifestFrom"):
        name = mapping(mapping(resource["manifestFrom"]).get("artifact")).get("name")
        names = [mapping(entry).get("name") for entry in sequence(inputs.get("artifacts"))]
        if name not in names:
            where = (*path, "manifestFrom", "artifact", "name")
            out.error(RULE, where, "must be the name of an artifact in inputs.artifacts", name or "")
    if action == "patch" and resource.get("mergeStrategy") == "json" and not flags:
        out.error(RULE, (*path, "flags"), "a json patch needs the object here: KIND and NAME")
    text = resource.get("manifest")
    if not isinstance(text, str) or not text or has_tag(text):
        return
    try:
        documents = [document for document in parse_yaml_documents(text) if document is not None]
    except DocumentError as error:
        out.error(RULE, (*path, "manifest"), f"is not valid YAML: {error.located}")
        return
    if action == "patch":
        return
    for document in documents:
        missing = [name for name in ("apiVersion", "kind") if not mapping(document).get(name)]
        if missing:
            out.warning(RULE, (*path, "manifest"), f"has no {' and no '.join(missing)}: the step will fail")


def _check_flags(out: Gathered, resource: Mapping[str, Any], path: Path) -> None:
    action, flags = resource.get("action"), sequence(resource.get("flags"))
    if action not in ACTIONS or not flags or any(has_tag(word) for word in flags):
        return
    try:
        read_flags(action, [str(word) for word in flags])
    except TextError as error:
        out.error(RULE, (*path, "flags"), error.message, " ".join(str(word) for word in flags))
