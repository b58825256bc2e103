"""Convert the volumes of the pod's spec to folders and files of this machine.

`render` and `host_path` are pure; `write_files` and `make_ready` touch the disk.
https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj
from moorage_local.nodeagent.environment import (
    ConfigError,
    Lookup,
    Ref,
    Room,
    field_value,
    object_data,
    resource_value,
)
from moorage_local.podspecs import containers_of

TOKEN_SECONDS = 3600  # default lifetime of a projected token
DEFAULT_MODE = 0o644
FILES_MAX = 64 * 1024 * 1024  # bytes of all files that the agent writes for a pod
_KEY_WORDS = {"ConfigMap": "config", "Secret": "secret"}  # as a kubelet calls their keys
CONTENT = ("configMap", "secret", "downwardAPI", "projected")  # kinds whose files the agent writes


class VolumeError(MoorageError):
    """A volume cannot be made ready (yet); the message is written to a FailedMount event."""


class TokenRequest(NamedTuple):
    """A request for a token of the pod's service account, for one file of a projected volume."""

    volume: str
    path: str
    audience: str  # empty: the API server
    seconds: int


@dataclass(frozen=True, slots=True)
class File:
    data: bytes
    mode: int


def references(spec: Mapping[str, Any]) -> set[Ref]:
    """Return the ConfigMaps, Secrets and claims that the pod's volumes refer to."""
    refs: set[Ref] = set()
    for volume in spec.get("volumes") or ():
        for source in _sources(volume):
            if source.get("configMap"):
                refs.add(Ref("ConfigMap", source["configMap"].get("name") or ""))
            if source.get("secret"):
                refs.add(Ref("Secret", source["secret"].get("secretName") or source["secret"].get("name") or ""))
        if volume.get("persistentVolumeClaim"):
            refs.add(Ref("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
    return refs


def token_requests(spec: Mapping[str, Any]) -> list[TokenRequest]:
    return [
        TokenRequest(
            volume["name"],
            source["serviceAccountToken"].get("path") or "token",
            source["serviceAccountToken"].get("audience") or "",
            int(source["serviceAccountToken"].get("expirationSeconds") or TOKEN_SECONDS),
        )
        for volume in spec.get("volumes") or ()
        for source in _sources(volume)
        if source.get("serviceAccountToken")
    ]


def is_refreshed(spec: Mapping[str, Any]) -> bool:
    """Whether the content of a volume may change while the pod runs."""
    return any(volume.get(kind) for volume in spec.get("volumes") or () for kind in CONTENT)


def render(
    volume: Mapping[str, Any],
    pod: Obj,
    lookup: Lookup,
    tokens: Mapping[TokenRequest, str],
    allocatable: Mapping[str, str],
    room: Room | None = None,
) -> dict[str, File] | None:
    """The files of a volume by their path in it; None for a volume with other content than the agent's.

    `room`: of all volumes of the pod. Files of Secrets and tokens are readable by the owner only; their mode is
    ignored. Raises VolumeError.
    """
    if not any(volume.get(kind) is not None for kind in CONTENT):
        return None
    files: dict[str, File] = {}
    room = room or Room(FILES_MAX)
    default = int((volume.get("projected") or {}).get("defaultMode") or DEFAULT_MODE)
    try:
        for source in _sources(volume):
            files.update(_render_source(volume["name"], source, pod, lookup, tokens, allocatable, default, room))
    except ConfigError as error:
        raise _setup_failed(volume["name"], error.message) from error
    for path in files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise _setup_failed(volume["name"], f"invalid path {path!r}: must be relative and without '..'")
    return files


def host_path(volume: Mapping[str, Any], lookup: Lookup, persistent: Mapping[str, Obj | None]) -> tuple[str, bool]:
    """Return (folder or file of this machine, read-only) for a hostPath volume or a claim.

    `persistent`: PersistentVolumes by name. Raises VolumeError for other volumes.
    """
    name = volume["name"]
    if volume.get("hostPath"):
        return volume["hostPath"]["path"], False
    claim = volume.get("persistentVolumeClaim")
    if not claim:
        kinds = sorted(set(volume) - {"name"}) or ["nothing"]
        raise VolumeError(
            f'Unable to attach or mount volume "{name}": this node cannot mount {", ".join(kinds)} volumes'
        )
    stored = lookup.get(Ref("PersistentVolumeClaim", claim["claimName"]))
    if stored is None:
        raise VolumeError(
            f'Unable to attach or mount volume "{name}": persistentvolumeclaim "{claim["claimName"]}" not found'
        )
    bound = (stored.get("spec") or {}).get("volumeName")
    if not bound or (stored.get("status") or {}).get("phase") not in (None, "Bound"):
        raise VolumeError(f'Unable to attach or mount volume "{name}": claim "{claim["claimName"]}" is not bound')
    volume_object = persistent.get(bound)
    if volume_object is None:
        raise VolumeError(f'Unable to attach or mount volume "{name}": persistentvolume "{bound}" not found')
    spec = volume_object.get("spec") or {}
    path = (spec.get("hostPath") or spec.get("local") or {}).get("path")
    if not path:
        raise VolumeError(
            f'Unable to attach or mount volume "{name}": this node cannot mount persistentvolume "{bound}": use'
            " a volume of the type hostPath or local"
        )
    only = (stored.get("spec") or {}).get("accessModes") or []
    return path, bool(claim.get("readOnly")) or only == ["ReadOnlyMany"]


def make_ready(volume: Mapping[str, Any], path: str) -> None:
    """Check or make the file or folder for a hostPath's `type`; folders of claims and untyped paths are made.

    https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types
    """
    kind = (volume.get("hostPath") or {}).get("type") or ""
    try:
        if kind in ("", "DirectoryOrCreate"):
            if not os.path.lexists(path):
                os.makedirs(path)
                os.chmod(path, 0o755)  # independent of our umask
            elif kind and not os.path.isdir(path):
                raise _type_failed(volume["name"], path, "is not a directory")
            return
        if kind == "FileOrCreate" and not os.path.lexists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
            os.chmod(path, 0o644)
            return
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise _setup_failed(volume["name"], f"hostPath {path} doesn't exist") from None
    except OSError as error:
        text = os.strerror(error.errno or 0).lower()
        raise _setup_failed(volume["name"], f"hostPath {path}: {text}") from error
    checks = {
        "Directory": (stat.S_ISDIR, "is not a directory"),
        "File": (stat.S_ISREG, "is not a file"),
        "FileOrCreate": (stat.S_ISREG, "is not a file"),
        "Socket": (stat.S_ISSOCK, "is not a socket file"),
        "CharDevice": (stat.S_ISCHR, "is not a character device"),
        "BlockDevice": (stat.S_ISBLK, "is not a block device"),
    }
    if kind not in checks:
        raise _setup_failed(volume["name"], f"{kind} is an invalid volume type")
    check, message = checks[kind]
    if not check(mode):
        raise _type_failed(volume["name"], path, message)


def write_files(folder: Path, files: Mapping[str, File]) -> bool:
    """Write exactly these files to `folder` and remove all others; each file is replaced in one step.

    Returns True if anything changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changed = False
    for name, file in files.items():
        path = folder / name
        try:
            if path.read_bytes() == file.data and stat.S_IMODE(path.stat().st_mode) == file.mode:
                continue
        except OSError:
            pass  # not there yet
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(file.data)
            os.fchmod(out.fileno(), file.mode)
        temporary.rename(path)
        changed = True
    wanted = {str(PurePosixPath(name)) for name in files}
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_dir() and str(path.relative_to(folder)) not in wanted:
            path.unlink()
            changed = True
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    return changed


def _sources(volume: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    projected = volume.get("projected")
    return list(projected.get("sources") or ()) if projected is not None else [volume]


def _render_source(
    name: str,
    source: Mapping[str, Any],
    pod: Obj,
    lookup: Lookup,
    tokens: Mapping[TokenRequest, str],
    allocatable: Mapping[str, str],
    default_mode: int,
    room: Room,
) -> dict[str, File]:
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if source.get(field) is not None:
            return _object_files(name, kind, source[field], lookup, default_mode, room)
    if source.get("downwardAPI") is not None:
        return _downward_files(name, source["downwardAPI"], pod, allocatable, default_mode, room)
    if source.get("serviceAccountToken"):
        return _token_file(name, source["serviceAccountToken"], tokens)
    return {}


def _object_files(
    name: str, kind: str, source: Mapping[str, Any], lookup: Lookup, default_mode: int, room: Room
) -> dict[str, File]:
    """Return all keys of a ConfigMap or Secret as files, or only those in `items`."""
    wanted = source.get("secretName") or source.get("name") or ""
    obj = lookup.get(Ref(kind, wanted))
    mode = int(source.get("defaultMode") or default_mode)
    if obj is None:
        if source.get("optional"):
            return {}
        raise _setup_failed(name, f'{kind.lower()} "{wanted}" not found')
    items = source.get("items")
    if not items:
        data = object_data(kind, obj)
        return {key: File(room.take(value), _mode(mode, kind)) for key, value in data.items()}
    files = {}
    for item in items:
        data = object_data(kind, obj, item["key"])
        if data:
            mode_of = int(item.get("mode") or mode)
            files[item["path"]] = File(room.take(data[item["key"]]), _mode(mode_of, kind))
        elif not source.get("optional"):
            raise _setup_failed(name, f"references non-existent {_KEY_WORDS[kind]} key: {item['key']}")
    return files


def _downward_files(
    name: str, source: Mapping[str, Any], pod: Obj, allocatable: Mapping[str, str], default_mode: int, room: Room
) -> dict[str, File]:
    """Return fields of the pod, and requests and limits of its containers, as files."""
    mode = int(source.get("defaultMode") or default_mode)
    files = {}
    for item in source.get("items") or ():
        if item.get("fieldRef"):
            text = field_value(pod, item["fieldRef"]["fieldPath"])
        else:
            owner = item["resourceFieldRef"].get("containerName") or ""
            named = [container for container in containers_of(pod["spec"]) if container["name"] == owner]
            if not named:
                raise _setup_failed(name, f"container {owner!r} not found")
            text = resource_value(pod, named[0], item["resourceFieldRef"], allocatable)
        files[item["path"]] = File(room.take(text.encode()), int(item.get("mode") or mode) & 0o777)
    return files


def _token_file(name: str, source: Mapping[str, Any], tokens: Mapping[TokenRequest, str]) -> dict[str, File]:
    """Return the token that was requested for this path of the volume, as a file that only its owner can read."""
    wanted = source.get("path") or "token"
    for request, token in tokens.items():
        if request.volume == name and request.path == wanted:
            return {wanted: File(token.encode(), 0o600)}
    raise _setup_failed(name, "no token for the service account")


def _mode(mode: int, kind: str) -> int:
    return mode & (0o700 if kind == "Secret" else 0o777)


def _setup_failed(volume: str, why: str) -> VolumeError:
    return VolumeError(f'MountVolume.SetUp failed for volume "{volume}" : {why}')


def _type_failed(volume: str, path: str, why: str) -> VolumeError:
    return _setup_failed(volume, f"hostPath type check failed: {path} {why}")
