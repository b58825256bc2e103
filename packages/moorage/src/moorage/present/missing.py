"""The command to type when an object that a pod needs is missing, or its volume cannot be mounted. Pure."""

from __future__ import annotations

import re

from moorage.decide.explain.mounts import FAILED_ATTACH, FailedMount, Source

_NAME = r'"?(?P<name>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)"?'  # of an object: safe to type
_MISSING = re.compile(rf"\b(?P<kind>secret|configmap|persistentvolumeclaim)s? {_NAME} not found")
_KEY_OF = re.compile(
    rf"couldn't find key (?P<key>[-._a-zA-Z0-9]+) in (?P<kind>Secret|ConfigMap) (?:[-a-z0-9]+/){_NAME}"
)
_KEY = re.compile(r"references non-existent (?P<kind>secret|config) key: (?P<key>[-._a-zA-Z0-9]+)")
_IN_USE = ("Multi-Attach error", "already used by pod", "already exclusively attached")
THEN = "the pod then starts by itself"


def way_to_objects(message: str, namespace: str) -> str:
    """How to create an object that a message reports as missing; "" if it reports none."""
    if missing := _MISSING.search(message):
        return _create(missing["kind"], missing["name"], namespace)
    if key := _KEY_OF.search(message):
        return _add_key(Source(kind=key["kind"], name=key["name"]), key["key"], namespace)
    return ""


def way_to_mount(mount: FailedMount, namespace: str, pod: str) -> str:
    """How to repair a volume that cannot be mounted."""
    source = mount.source
    if way := way_to_objects(mount.message, namespace):
        return way
    key = _KEY.search(mount.message)
    if key is not None and source is not None and source.kind != "PersistentVolumeClaim":
        return _add_key(source, key["key"], namespace)
    events = f"every try is in its events: `kubectl describe pod {pod} -n {namespace}`"
    if source is None or source.kind != "PersistentVolumeClaim":
        return f"Its node tries again by itself; {events}"
    users = f"`moor volume list -n {namespace}` shows the pods that mount it"
    if mount.reason == FAILED_ATTACH and any(words in mount.message for words in _IN_USE):
        return f"The volume {source.name} is in use on another node, and must be free there first: {users}"
    return f"Its node tries again by itself: {users}, and {events}"


def _create(kind: str, name: str, namespace: str) -> str:
    if kind == "persistentvolumeclaim":
        return (
            f"The volume {name} does not exist: create it with `moor volume create {name} -n {namespace}`; {THEN}"
        )
    if kind == "secret":
        command = f"moor secret create {name} KEY -n {namespace}"
        return f"The Secret {name} does not exist: create it with `{command}`; {THEN}"
    return (
        f"The ConfigMap {name} does not exist: create it with"
        f" `kubectl create configmap {name} -n {namespace} --from-file=KEY=FILE`; {THEN}"
    )


def _add_key(source: Source, key: str, namespace: str) -> str:
    if source.kind == "Secret":  # members of a tenant may replace it, and not read it
        return (
            f"The Secret {source.name} has no key {key}: replace it, with all its keys:"
            f" `moor secret create {source.name} {key} -n {namespace} --replace`; {THEN}"
        )
    return (
        f"The {source.kind} {source.name} has no key {key}: add it with"
        f" `kubectl edit configmap {source.name} -n {namespace}`; {THEN}"
    )
