"""Inputs of a template: the values of its caller, its own values, defaults, and values of ConfigMaps."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.scopes import as_document, inputs_scope
from moorage_workflows.decide.workflows.templates import places_of
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.tags import substitute, substitute_text
from moorage_workflows.model.workflow import Artifact

LOCATIONS = ("s3", "gcs", "http", "git", "raw")
_TAG = re.compile(r"^{{([^{}=][^{}]*)}}$")

ConfigMapReader = Callable[[str, str], Awaitable[str]]


class Inputs(Struct, frozen=True, kw_only=True):
    """A template's inputs with their values.

    `document`: the template's field `inputs` with values, for the pod.
    """

    parameters: Mapping[str, str]
    artifacts: Mapping[str, Artifact]
    document: Mapping[str, Any]
    scope: Mapping[str, str]
    missing: frozenset[str] = frozenset()  # optional artifacts that are missing

    @property
    def artifact_scope(self) -> dict[str, Artifact]:
        return {f"inputs.artifacts.{name}": artifact for name, artifact in self.artifacts.items()}

    def as_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if self.parameters:
            record["parameters"] = dict(self.parameters)
        if self.artifacts:
            record["artifacts"] = {name: as_document(artifact) for name, artifact in self.artifacts.items()}
        return record


async def resolve_inputs(
    template: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    given: Mapping[str, Artifact],
    absent: Iterable[str],
    scope: Mapping[str, str],
    kept: Mapping[str, str],
    config_map: ConfigMapReader,
) -> Inputs:
    """Return the inputs of a template that is called with these arguments.

    `given`: artifacts of the arguments. `absent`: arguments whose producer was skipped. `kept`: stored values
    of an earlier evaluation, which win. Then a value of the caller wins over the template's own value, and
    this over a default. Raises TextError for an input without a value.
    """
    # parameters: an earlier look, the caller, the template, then the default
    declared = template.get("inputs") or {}
    by_name = {str(argument.get("name")): argument for argument in arguments.get("parameters") or ()}
    missing = frozenset(absent)
    parameters: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    own: list[str] = []  # those whose value is the template's, which may refer to the other inputs
    for parameter in declared.get("parameters") or ():
        name = str(parameter.get("name"))
        if name in kept:
            value: str | None = str(kept[name])
        else:
            value = await _value_of(by_name.get(name), config_map)
            if value is None:
                value = await _value_of(parameter, config_map, scope)
                own.append(name)
        if value is None and parameter.get("default") is not None:
            value = substitute_text(str(parameter["default"]), scope)
            own.append(name)
        if value is None:
            if name in missing:
                raise TextError(
                    f"inputs.parameters.{name} of template {template.get('name')} has an absent optional output:"
                    " the step that makes it was skipped. Give the output or the input a default"
                )
            raise TextError(
                f"inputs.parameters.{name} of template {template.get('name')} was not supplied:"
                " add it to the arguments, or give it a default"
            )
        # an enum limits the values
        allowed = parameter.get("enum")
        if allowed and value not in [str(word) for word in allowed]:
            raise TextError(
                f"inputs.parameters.{name} of template {template.get('name')} is {value!r};"
                f" allowed: {', '.join(map(str, allowed))}"
            )
        parameters[name] = value
        rows.append({key: part for key, part in parameter.items() if key != "valueFrom"} | {"value": value})
    # own values may refer to other inputs, so they are substituted after all are known
    for row in rows:
        if row["name"] in own and "{{" in row["value"]:
            values = dict(scope) | inputs_scope(parameters, ())
            parameters[row["name"]] = row["value"] = substitute_text(row["value"], values)
    # artifacts: the caller's, else the location in the template
    artifacts: dict[str, Artifact] = {}
    kept_rows: list[Mapping[str, Any]] = []
    values = dict(scope) | inputs_scope(parameters, ())  # places may be named by parameters
    for artifact in declared.get("artifacts") or ():
        name = str(artifact.get("name"))
        artifact_given = given.get(name) or artifact_of(substitute(_plain(artifact), values), values, {})
        if artifact_given is None:
            if artifact.get("optional"):
                continue
            raise TextError(
                f"inputs.artifacts.{name} of template {template.get('name')} was not supplied:"
                " add it to the arguments, or mark it as optional"
            )
        artifacts[name] = artifact_given
        kept_rows.append(artifact)
    # the record has values, not their sources
    inputs: dict[str, Any] = {}
    if rows:
        inputs["parameters"] = rows
    if kept_rows:
        inputs["artifacts"] = list(kept_rows)
    document = {"inputs": inputs} if declared else {}
    return Inputs(
        parameters=parameters,
        artifacts=artifacts,
        missing=frozenset(
            f"inputs.artifacts.{artifact.get('name')}"
            for artifact in declared.get("artifacts") or ()
            if str(artifact.get("name")) not in artifacts
        ),
        document=document,
        scope=inputs_scope(parameters, kept_rows),
    )


async def _value_of(
    parameter: Mapping[str, Any] | None, config_map: ConfigMapReader, scope: Mapping[str, str] | None = None
) -> str | None:
    if parameter is None:
        return None
    if parameter.get("value") is not None:
        text = str(parameter["value"])
        return text if scope is None else substitute_text(text, scope)
    source = parameter.get("valueFrom") or {}
    key = source.get("configMapKeyRef")
    if key:
        name, entry = str(key.get("name")), str(key.get("key"))
        if scope is not None:
            name, entry = substitute_text(name, scope), substitute_text(entry, scope)
        try:
            return await config_map(name, entry)
        except TextError:
            if source.get("default") is not None:
                return str(source["default"])
            if key.get("optional"):
                return None
            raise
    if source.get("default") is not None:
        return str(source["default"])
    return None


def _plain(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in artifact.items() if key not in ("from", "fromExpression")}


def artifact_of(
    artifact: Mapping[str, Any],
    scope: Mapping[str, str | None],
    artifacts: Mapping[str, Artifact],
    missing: frozenset[str] = frozenset(),
) -> Artifact | None:
    """Return the artifact that a document refers to by a tag, an expression or a location; None if there is none.

    A value None in the scope is an absent output. Raises TextError, also for a tag of an absent output.
    """
    if source := artifact.get("from"):
        text = substitute_text(str(source), scope)
        match = _TAG.match(text.strip())
        name = (match[1] if match else text).strip()
        if name in missing:
            return None
        if name not in artifacts:
            raise TextError(f"artifact {artifact.get('name')} is from {source}, which was not made")
        return _below(artifacts[name], artifact, scope)
    if expression := artifact.get("fromExpression"):
        value = evaluate(str(expression), {**scope, **artifacts})
        if not isinstance(value, Artifact):
            raise TextError(f"artifact {artifact.get('name')}: {expression} is not an artifact, but {value!r}")
        return _below(value, artifact, scope)
    location = {key: artifact[key] for key in places_of(artifact) if key in LOCATIONS}
    if location:
        location = substitute(location, scope)
        archive = next(iter(artifact.get("archive") or {"": None}))
        key = _own_key(location)
        if key:
            return Artifact(name=str(artifact.get("name")), key=key, archive=archive)
        return Artifact(name=str(artifact.get("name")), archive=archive, location=location)
    return None


def _own_key(location: Mapping[str, Any]) -> str:
    """Return the key of a location without a bucket, which is in our own store; "" for other locations."""
    for kind in ("s3", "gcs"):
        place = location.get(kind) or {}
        if place and not place.get("bucket"):
            return str(place.get("key") or "").strip("/")
    return ""


def _below(value: Artifact, artifact: Mapping[str, Any], scope: Mapping[str, str | None]) -> Artifact:
    """Return the part of an artifact that `subPath` selects. Raises TextError for a path with ".."."""
    if not artifact.get("subPath"):
        return value
    below = substitute_text(str(artifact["subPath"]), scope).strip("/")
    if ".." in below.split("/"):
        raise TextError(f"subPath of artifact {artifact.get('name')} must stay in it, and is {below!r}")
    if value.location:
        kind, place = next(iter(value.location.items()))
        location = {kind: {**place, "key": f"{str(place.get('key', '')).rstrip('/')}/{below}"}}
        return Artifact(name=value.name, archive="", location=location)
    return Artifact(name=value.name, key=f"{value.key.rstrip('/')}/{below}", archive="")
