"""The environment of a container: variables, references to other objects, `$(VAR)`.

Pure: the caller reads the objects in advance (`references` returns which).
https://kubernetes.io/docs/tasks/inject-data-application/
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, AnyStr, NamedTuple

from moorage_kube.errors import MoorageError
from moorage_kube.quantity import amount, parse_quantity
from moorage_kube.resources import Obj
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.podspecs import containers_of


class Ref(NamedTuple):
    """A reference to an object in the pod's namespace. The kind is ConfigMap, Secret or PersistentVolumeClaim."""

    kind: str
    name: str


Lookup = Mapping[Ref, Obj | None]


TEXTS_MAX = 16 * 1024 * 1024  # characters: more than Linux takes with a program (2 MiB), for several containers


class ConfigError(MoorageError):
    """A container's environment or command is invalid; the message is shown in the status of the container."""

    def __init__(self, message: str, *, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


class Room:
    """The characters left for the variables and arguments of a pod, or for the files of its volumes.

    A few lines that refer to each other, or to one ConfigMap many times, would fill the memory of the agent.
    """

    def __init__(self, total: int = TEXTS_MAX) -> None:
        self._total = self._left = total

    def take(self, text: AnyStr) -> AnyStr:
        """Count a text and return it. Raises ConfigError if it exceeds the limit."""
        self._left -= len(text)
        if self._left < 0:
            raise ConfigError(
                f"the referenced values exceed {self._total // 2**20} MiB in all: refer to fewer or shorter ones"
            )
        return text


def references(spec: Mapping[str, Any]) -> set[Ref]:
    """Return the ConfigMaps and Secrets that the containers' variables refer to."""
    refs: set[Ref] = set()
    for container in containers_of(spec):
        for source in container.get("envFrom") or ():
            for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if source.get(field):
                    refs.add(Ref(kind, source[field].get("name") or ""))
        for variable in container.get("env") or ():
            value = variable.get("valueFrom") or {}
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if value.get(field):
                    refs.add(Ref(kind, value[field].get("name") or ""))
    return refs


def variables(
    pod: Obj,
    container: Mapping[str, Any],
    lookup: Lookup,
    allocatable: Mapping[str, str],
    room: Room | None = None,
) -> dict[str, str]:
    """The environment in the pod's own spec. Raises ConfigError with kubelet's words.

    `room`: of all containers of the pod.
    """
    namespace = pod["metadata"].get("namespace") or "default"
    room = room or Room()
    out: dict[str, str] = {}
    # whole ConfigMaps and Secrets first: single variables override them
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            ref = source.get(field)
            if not ref:
                continue
            data = _data(kind, ref, lookup)
            for key, value in (data or {}).items():
                out[prefix + key] = room.take(value).decode("utf-8", "replace")
    # a variable may refer to those before it
    for variable in container.get("env") or ():
        name = variable["name"]
        value = variable.get("valueFrom")
        if not value:
            out[name] = expand(variable.get("value") or "", out, room)
        elif value.get("fieldRef"):
            out[name] = room.take(field_value(pod, value["fieldRef"]["fieldPath"]))
        elif value.get("resourceFieldRef"):
            out[name] = resource_value(pod, container, value["resourceFieldRef"], allocatable)
        else:
            # a missing key is an error unless it is optional
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                ref = value.get(field)
                if not ref:
                    continue
                data = _data(kind, ref, lookup, ref["key"])
                if data is not None and ref["key"] in data:
                    out[name] = room.take(data[ref["key"]]).decode("utf-8", "replace")
                elif data is not None and not ref.get("optional"):
                    raise ConfigError(f"couldn't find key {ref['key']} in {kind} {namespace}/{ref['name']}")
    return out


_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")


def expand(text: str, known: Mapping[str, str], room: Room) -> str:
    """Replace `$(NAME)` by its value. Unknown names do not change; `$$(NAME)` becomes `$(NAME)`.

    Raises ConfigError if the values do not fit into `room`.
    https://github.com/kubernetes/kubernetes/tree/master/third_party/forked/golang/expansion
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return room.take(known.get(match[2], match[0]))

    return _REFERENCE.sub(replace, text)


def field_value(pod: Obj, path: str) -> str:
    """Return a field of the pod for the downward API. Raises ConfigError for unsupported fields."""
    meta, spec = pod["metadata"], pod.get("spec") or {}
    address = (pod.get("status") or {}).get("podIP") or HOST_IP
    subscript = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)
    if subscript:
        return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))
    plain = {
        "metadata.name": meta.get("name"),
        "metadata.namespace": meta.get("namespace") or "default",
        "metadata.uid": meta.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": HOST_IP,
        "status.hostIPs": HOST_IP,
    }
    if path in plain:
        return str(plain[path] or "")
    if path in ("metadata.labels", "metadata.annotations"):
        table = meta.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={json.dumps(str(table[key]), ensure_ascii=False)}" for key in sorted(table))
    raise ConfigError(f"unsupported fieldPath: {path}")


def resource_value(
    pod: Obj, container: Mapping[str, Any], ref: Mapping[str, Any], allocatable: Mapping[str, str]
) -> str:
    """A request or limit in units of the divisor, rounded up; without a limit, the node's amount."""
    wanted = ref.get("containerName")
    if wanted and wanted != container.get("name"):
        named = [container for container in containers_of(pod.get("spec") or {}) if container["name"] == wanted]
        if not named:
            raise ConfigError(f"container {wanted} not found")
        container = named[0]
    side, _, name = str(ref["resource"]).partition(".")
    resources = container.get("resources") or {}
    text = (resources.get(side) or {}).get(name)
    if text is None and side == "requests":
        text = (resources.get("limits") or {}).get(name, "0")
    if text is None:
        text = allocatable.get(name, "0")
    divisor = parse_quantity(ref.get("divisor") or "1") or parse_quantity("1")
    return str(-((-parse_quantity(text) / divisor).__floor__()))


def memory_limit(container: Mapping[str, Any]) -> int | None:
    """Return the memory limit in bytes; None if there is no limit."""
    text = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return amount("memory", text) if text is not None else None


def object_data(kind: str, obj: Mapping[str, Any], key: str | None = None) -> dict[str, bytes]:
    """Return the decoded data of a ConfigMap or Secret; with `key`, only the value of that key."""

    def table(name: str) -> Mapping[str, Any]:
        whole: Mapping[str, Any] = obj.get(name) or {}
        return whole if key is None else {key: whole[key]} if key in whole else {}

    coded, plain = ("data", "stringData") if kind == "Secret" else ("binaryData", "data")
    out = {key: _decode(value) for key, value in table(coded).items()}
    return out | {key: str(value).encode() for key, value in table(plain).items()}


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"illegal base64 data: {error}") from error


def _data(kind: str, ref: Mapping[str, Any], lookup: Lookup, key: str | None = None) -> dict[str, bytes] | None:
    """Return the data of a ConfigMap or Secret; None if it is missing and optional."""
    name = ref.get("name") or ""
    obj = lookup.get(Ref(kind, name))
    if obj is not None:
        return object_data(kind, obj, key)
    if ref.get("optional"):
        return None
    raise ConfigError(f'{kind.lower()} "{name}" not found')
