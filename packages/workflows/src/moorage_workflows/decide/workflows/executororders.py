"""The order for the executor in a step's pod: which inputs it fetches, which outputs it saves.

The order is a JSON document in an annotation of the pod; `moorage_workflows.executor` reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.repository import place_of, placed
from moorage_workflows.model.workflow import Artifact

STORES = ("s3", "gcs", "http", "git", "raw")  # locations of artifacts other than our own store
OTHER_STORES = ("artifactory", "azure", "hdfs", "oss", "plugin")  # Argo's, and not ours
WRITABLE_STORES = ("s3", "gcs", "http")
REQUIRED = {"s3": ("bucket", "key"), "gcs": ("bucket", "key"), "http": ("url",), "git": ("repo",), "raw": ()}
UNSUPPORTED = {  # fields of stores; `support` has those that a manifest may have
    "s3": ("encryptionOptions.serverSideCustomerKeySecret",),
    "gcs": (),
    "http": (),
    "git": (),
    "raw": (),
}
ARCHIVES = ("none", "tar", "zip")
_LEVELS = tuple(str(level) for level in range(-1, 10))  # Go's -1: the usual one
LOGS = "main-logs"  # the artifact with the log of main, where logs are archived


class OrderError(MoorageError):
    """Invalid inputs or outputs of a template; `path` is the invalid field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class Input(Struct, frozen=True):
    """An artifact that must exist before main starts.

    `mount`: the volumeMount of main that contains its path, or None.
    """

    field: str
    path: str
    mount: Mapping[str, Any] | None


class Ordered(Struct, frozen=True):
    """The order, and the parts of the pod that it needs.

    Secrets are selectors; the document has their numbers.
    """

    document: Obj
    inputs: tuple[Input, ...]
    input_secrets: tuple[Mapping[str, Any], ...]
    output_secrets: tuple[Mapping[str, Any], ...]
    wraps: bool  # main's command runs in the script


def make_order(
    template: Mapping[str, Any],
    artifacts: Mapping[str, Artifact],
    *,
    workflow: Mapping[str, Any],
    pod: str,
    mounts: Sequence[Mapping[str, Any]],
    wants_result: bool,
    archives_logs: bool,
) -> Ordered:
    """Return the order of the executor. `workflow`: its metadata; `mounts`: volumeMounts of main.

    Raises OrderError.
    """
    # secrets are numbered for init and wait separately: each gets only its own
    archive_location: Mapping[str, Any] = template.get("archiveLocation") or {}
    input_secrets: list[Mapping[str, Any]] = []
    output_secrets: list[Mapping[str, Any]] = []
    inputs: list[Input] = []
    fetched: list[Obj] = []
    # inputs: where each comes from, and how main sees it
    for number, entry in enumerate((template.get("inputs") or {}).get("artifacts") or ()):
        field = f"inputs.artifacts[{number}]"
        location, archive = _source(entry, artifacts.get(entry["name"]), field, archive_location)
        if location is None:
            continue
        path = _checked_path(entry, field)
        mount = _mount_of(path, mounts, field)
        folder = None if mount is None else str(PurePosixPath(path).relative_to(str(mount["mountPath"])))
        fetched.append(
            {
                "name": entry["name"],
                "location": numbered_secrets(location, input_secrets),
                "archive": archive,
                "below": folder,  # of the volume; null: the artifact has its own mount
                **{key: entry[key] for key in ("mode", "recurseMode", "optional") if entry.get(key) is not None},
            }
        )
        inputs.append(Input(f"{field}.path", path, mount))
    # outputs: files that become parameters, and artifacts
    outputs = template.get("outputs") or {}
    parameters = [
        _parameter(entry, f"outputs.parameters[{number}]")
        for number, entry in enumerate(outputs.get("parameters") or ())
        if (entry.get("valueFrom") or {}).get("path")
    ]
    saved = [
        _saved(
            entry, f"outputs.artifacts[{number}]", f"{workflow['name']}/{pod}", archive_location, output_secrets
        )
        for number, entry in enumerate(outputs.get("artifacts") or ())
    ]
    # the document for the executor
    log = _log(archive_location, output_secrets) if archives_logs else {}
    document: Obj = {
        "workflow": workflow["uid"],
        "pod": pod,
        "inputs": fetched,
        "parameters": parameters,
        "artifacts": saved,
        "result": wants_result,
        "logs": archives_logs,
        **({"log": log} if log else {}),  # its location; absent: our own store
    }
    return Ordered(
        document=document,
        inputs=tuple(inputs),
        input_secrets=tuple(input_secrets),
        output_secrets=tuple(output_secrets),
        wraps=bool(parameters or saved or wants_result or archives_logs),
    )


def location_of(entry: Mapping[str, Any], field: str) -> Obj:
    """The location of an artifact in the manifest: one store and its fields; empty: our own store.

    A key of a bucket without a bucket is in our own store: see `own_key`.

    Raises OrderError for a store that Moorage does not know, or a field that is missing.
    """
    location: Obj = {}
    for kind in (*STORES, *OTHER_STORES):
        if entry.get(kind) is not None:
            if kind not in STORES:
                raise OrderError(
                    f"{field}.{kind}", f"is not supported: use one of {', '.join(STORES)}, or no store"
                )
            location[kind] = copy.deepcopy(entry[kind])
    if len(location) > 1:
        raise OrderError(field, f"has the stores {' and '.join(location)}: an artifact is in one store")
    for kind, values in location.items():
        for name in REQUIRED[kind] if not own_key(location) else ():
            if not values.get(name):
                raise OrderError(f"{field}.{kind}.{name}", "is missing")
        refuse_fields(kind, values, f"{field}.{kind}")
    return location


def refuse_fields(kind: str, values: Mapping[str, Any], field: str) -> None:
    """Raise OrderError if a store has a field that is not supported."""
    for name in UNSUPPORTED[kind]:
        first, _, second = name.partition(".")
        value = values.get(first)
        if value and (not second or (isinstance(value, Mapping) and value.get(second))):
            raise OrderError(f"{field}.{name}", "is not supported")


def own_key(location: Mapping[str, Any]) -> str:
    """Return the key in our own store for a location with a key but without a bucket; "" for other locations.

    https://argo-workflows.readthedocs.io/en/latest/key-only-artifacts/
    """
    for kind in ("s3", "gcs"):
        values = location.get(kind)
        if isinstance(values, Mapping) and values.get("key") and not values.get("bucket"):
            return str(values["key"]).strip("/")
    return ""


def _source(
    entry: Mapping[str, Any], artifact: Artifact | None, field: str, archive_location: Mapping[str, Any]
) -> tuple[Obj | None, str]:
    """Return the location of an input and its packing. Without a location the input is missing.

    A packing of "" is found out when the artifact is read.
    """
    declared = _archive(entry, field, usual="")
    if artifact is not None and not artifact.location and not artifact.digest:
        # a key that the manifest gives is one of the repository, where there is one
        place = placed({"s3": {"key": artifact.key}}, archive_location)
        place = placed({"gcs": {"key": artifact.key}}, archive_location) if "gcs" in archive_location else place
        if not own_key(place):
            artifact = Artifact(name=artifact.name, archive=artifact.archive, location=place)
    if artifact is not None and not artifact.location:
        if artifact.files:
            return {"key": f"{artifact.key}/"}, declared or artifact.archive
        digest = {"digest": artifact.digest} if artifact.digest else {}
        return {"key": artifact.key, **digest}, declared or artifact.archive
    places = entry if artifact is None else artifact.location
    if artifact is not None and artifact.files:  # the key itself may hold another artifact
        places = {
            kind: {**place, "key": f"{str(place['key']).rstrip('/')}/"}
            for kind, place in artifact.location.items()
        }
    is_blank = entry.get("optional") and _is_blank(places)
    location = {} if is_blank else location_of(placed(places, archive_location), field)
    if not location:
        if entry.get("optional"):
            return None, ""
        raise OrderError(field, f"{entry['name']!r} was not supplied, and it is not optional")
    if key := own_key(location):
        location = {"key": key}
    if declared:
        return location, declared
    return location, artifact.archive if artifact is not None and artifact.archive != "tar" else ""


def _is_blank(places: Mapping[str, Any]) -> bool:
    """Whether the locations name stores without a value for their required fields.

    A tag with an empty value leaves such a location.
    """
    named = [kind for kind in (*STORES, *OTHER_STORES) if places.get(kind) is not None]
    return all(
        kind in STORES and REQUIRED[kind] and not any(places[kind].get(name) for name in REQUIRED[kind])
        for kind in named
    )


def _parameter(entry: Mapping[str, Any], field: str) -> Obj:
    source = entry["valueFrom"]
    path = _checked_path({"path": source["path"]}, f"{field}.valueFrom")
    default = {"default": str(source["default"])} if source.get("default") is not None else {}
    return {"name": entry["name"], "path": path, **default}


def _saved(
    entry: Mapping[str, Any],
    field: str,
    prefix: str,
    archive_location: Mapping[str, Any],
    secrets: list[Mapping[str, Any]],
) -> Obj:
    archive = _archive(entry, field, usual="tar")
    ending = {"tar": ".tgz", "zip": ".zip", "none": ""}[archive]
    given = {kind: entry[kind] for kind in entry if kind not in ("raw",)}
    for kind in ("s3", "gcs"):
        if isinstance(given.get(kind), Mapping) and given[kind].get("bucket") and not given[kind].get("key"):
            given[kind] = {**given[kind], "key": f"{prefix}/{entry['name']}{ending}"}
    location = location_of(placed(given, archive_location), field)
    if not location:
        location = location_of(place_of(archive_location, f"{entry['name']}{ending}"), "archiveLocation")
    for kind in location:
        if kind not in WRITABLE_STORES:
            raise OrderError(f"{field}.{kind}", f"cannot be written: use one of {', '.join(WRITABLE_STORES)}")
    key = own_key(location)
    if key:
        location = {}
    level = (((entry.get("archive") or {}).get("tar")) or {}).get("compressionLevel")
    if level is not None and str(level) not in _LEVELS:
        raise OrderError(f"{field}.archive.tar.compressionLevel", f"is {level!r}: use a number from -1 to 9")
    return {
        "name": entry["name"],
        "path": _checked_path(entry, field),
        "archive": archive,
        "location": numbered_secrets(location, secrets),
        "kept": copy.deepcopy(location),  # for later steps: secrets by name
        **({"key": key} if key else {}),
        **({"optional": True} if entry.get("optional") else {}),
        **({"mode": entry["mode"]} if entry.get("mode") is not None else {}),
        **({"level": int(level)} if level is not None else {}),
    }


def output_fault(entry: Mapping[str, Any]) -> OrderError | None:
    """Return the reason why pods cannot save this output artifact.

    None if the output has no known error before the pod runs.
    """
    try:
        _saved(entry, "", "workflow/pod", {}, [])
    except OrderError as error:
        return error
    return None


def _log(archive_location: Mapping[str, Any], secrets: list[Mapping[str, Any]]) -> Obj:
    """The location for the log of main; empty: our own store."""
    location = location_of(place_of(archive_location, f"{LOGS}.txt"), "archiveLocation")
    if not location or own_key(location):
        return {}
    return {"location": numbered_secrets(location, secrets), "kept": copy.deepcopy(location)}


def _archive(entry: Mapping[str, Any], field: str, *, usual: str) -> str:
    """Return the packing from a field such as `archive: {none: {}}`. Raises OrderError."""
    given = entry.get("archive")
    if not given:
        return usual
    words = [word for word in given if given[word] is not None]
    if len(words) != 1 or words[0] not in ARCHIVES:
        raise OrderError(f"{field}.archive", f"must be one of {', '.join(ARCHIVES)}")
    return str(words[0])


def _checked_path(entry: Mapping[str, Any], field: str) -> str:
    text = str(entry.get("path") or "")
    if not text:
        raise OrderError(f"{field}.path", "is missing")
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or str(path) in ("/", "//") or "\n" in text or "\0" in text:
        raise OrderError(f"{field}.path", f"is {text!r}: use an absolute path without '..', and not / itself")
    return "/" + "/".join(path.parts[1:])


def _mount_of(path: str, mounts: Sequence[Mapping[str, Any]], field: str) -> Mapping[str, Any] | None:
    """Return the volumeMount that contains a path, the deepest one; None if there is none. Raises OrderError."""
    best: Mapping[str, Any] | None = None
    pure = PurePosixPath(path)
    for mount in mounts:
        place = PurePosixPath(str(mount["mountPath"]))
        if pure.is_relative_to(place) and (best is None or place.is_relative_to(str(best["mountPath"]))):
            best = mount
    if best is not None and (best.get("readOnly") or best.get("subPathExpr")):
        why = "is mounted read-only" if best.get("readOnly") else "has a subPathExpr"
        raise OrderError(f"{field}.path", f"is {path!r}, in the volume {best['name']!r}, which {why}")
    return best


def numbered_secrets(location: Any, secrets: list[Mapping[str, Any]]) -> Any:
    """Return the location with each selector of a Secret's key replaced by {"secret": number}."""
    if isinstance(location, Mapping):
        if "key" in location and "name" in location and set(location) <= {"name", "key", "optional"}:
            selector = dict(location)
            if selector not in secrets:
                secrets.append(selector)
            return {"secret": secrets.index(selector)}
        return {key: numbered_secrets(value, secrets) for key, value in location.items()}
    if isinstance(location, list):
        return [numbered_secrets(item, secrets) for item in location]
    return location
