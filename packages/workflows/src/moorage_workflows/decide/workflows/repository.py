"""The artifact repository of a workflow: the default place for artifacts.

It is an entry of a ConfigMap in the workflow's namespace, which `spec.artifactRepositoryRef` names, or the entry
that is the default of the ConfigMap `artifact-repositories`. A run keeps the repository of its beginning.
https://argo-workflows.readthedocs.io/en/latest/artifact-repository-ref/
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml
from msgspec import Struct

from moorage_kube.errors import MoorageError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj

REPOSITORY = "moorageRepository"  # the field of a stored document
CONFIGMAP = "artifact-repositories"
DEFAULT_ANNOTATION = "workflows.argoproj.io/default-artifact-repository"
STORES = ("s3", "gcs")  # stores that a repository may be in
KEY_FORMAT = "{{workflow.name}}/{{pod.name}}"
TEXT_CHARACTERS = 64 * 1024


class RepositoryError(MoorageError):
    """An artifact repository cannot be used. The message contains no text of the ConfigMap."""


class Reference(Struct, frozen=True):
    """A reference to a repository. `key`: the entry of the ConfigMap; "": its default entry.

    `is_named`: the workflow itself names the repository.
    """

    config_map: str
    key: str
    is_named: bool


def reference_of(spec: Mapping[str, Any]) -> Reference:
    """Return the repository that a workflow's spec refers to."""
    given = spec.get("artifactRepositoryRef")
    given = given if isinstance(given, Mapping) else {}
    return Reference(str(given.get("configMap") or CONFIGMAP), str(given.get("key") or ""), bool(given))


def read_repository(reference: Reference, config_map: Mapping[str, Any] | None) -> Obj | None:
    """Return the archiveLocation that a repository gives to templates; None for Moorage's own store.

    `config_map` None: the ConfigMap does not exist. Raises RepositoryError.
    """
    what = f"spec.artifactRepositoryRef: ConfigMap {reference.config_map}"
    if config_map is None:
        if reference.is_named:
            raise RepositoryError(f"{what} does not exist in the workflow's namespace")
        return None
    data = config_map.get("data") or {}
    key = reference.key or annotations_of(config_map).get(DEFAULT_ANNOTATION, "")
    if not reference.is_named and not key:
        return None
    if key not in data:
        if not key:
            raise RepositoryError(f"{what} has no default: set `key`, or its annotation {DEFAULT_ANNOTATION}")
        raise RepositoryError(f"{what} has no key {key!r}; its keys: {', '.join(sorted(data)) or 'none'}")
    text = str(data[key])
    if len(text) > TEXT_CHARACTERS:
        raise RepositoryError(f"{what}: key {key!r} has more than {TEXT_CHARACTERS} characters")
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RepositoryError(f"{what}: key {key!r} is not YAML") from error
    if not isinstance(given, Mapping):
        raise RepositoryError(f"{what}: key {key!r} is not a repository: it has no {' or '.join(STORES)}")
    return _location(given, f"{what}: key {key!r}")


def _location(given: Mapping[str, Any], what: str) -> Obj:
    kinds = [name for name, value in given.items() if name != "archiveLogs" and value is not None]
    if len(kinds) != 1 or kinds[0] not in STORES or not isinstance(given[kinds[0]], Mapping):
        raise RepositoryError(f"{what} must have one of {', '.join(STORES)}: other stores are not supported")
    store: Obj = copy.deepcopy(dict(given[kinds[0]]))
    if not store.get("bucket"):
        raise RepositoryError(f"{what} has no {kinds[0]}.bucket")
    prefix = str(store.pop("keyPrefix", None) or "").strip("/")
    usual = f"{prefix}/{KEY_FORMAT}" if prefix else KEY_FORMAT
    store["key"] = str(store.pop("keyFormat", None) or usual)
    logs = given.get("archiveLogs")
    return {kinds[0]: store} | ({} if logs is None else {"archiveLogs": logs is True})


def with_location(
    template: Mapping[str, Any], repository: Mapping[str, Any], spec: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the template with the repository as archiveLocation, unless its own archiveLocation names a store."""
    own = template.get("archiveLocation") or {}
    made = dict(own)
    if not any(own.get(kind) for kind in STORES):
        made |= {kind: repository[kind] for kind in STORES if kind in repository}
    if own.get("archiveLogs") is None and spec.get("archiveLogs") is None and "archiveLogs" in repository:
        made["archiveLogs"] = repository["archiveLogs"]
    return {**template, "archiveLocation": made} if made != own else template


def placed(entry: Mapping[str, Any], archive: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the store of the archiveLocation to an artifact that has a key but no bucket."""
    for kind in STORES:
        given, store = entry.get(kind), archive.get(kind)
        if isinstance(given, Mapping) and isinstance(store, Mapping) and not given.get("bucket"):
            return {**entry, kind: {**store, **{name: value for name, value in given.items() if value}}}
    return entry


def place_of(archive: Mapping[str, Any], file: str) -> Obj:
    """Return the location of a file in the archiveLocation; empty if the archiveLocation names no store."""
    for kind in STORES:
        if isinstance(store := archive.get(kind), Mapping):
            return {kind: {**store, "key": f"{str(store.get('key') or '').rstrip('/')}/{file}".lstrip("/")}}
    return {}
