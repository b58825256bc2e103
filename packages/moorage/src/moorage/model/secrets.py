"""Secrets of a team: a Kubernetes Secret with the values, and a ConfigMap with the names of its keys.

Members of a tenant may create Secrets, and not read them: an answer to `list` has the values. So the names are in
the ConfigMap. It owns the Secret: after it is deleted, Kubernetes' garbage collector deletes the Secret.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, SECRET_LABEL, label_value
from moorage_kube.resources import CONFIGMAPS, SECRETS, Obj


def make_secret(name: str, namespace: str, owner: str, values: Mapping[str, bytes]) -> tuple[Obj, Obj]:
    """The ConfigMap with the keys, and the Secret; the Secret has no owner yet."""
    labels = {SECRET_LABEL: name, OWNER_LABEL: label_value(owner)}
    common: Obj = {"namespace": namespace, "labels": labels, "annotations": {OWNER_ANNOTATION: owner}}
    keys = {
        "apiVersion": CONFIGMAPS.api_version,
        "kind": CONFIGMAPS.kind,
        "metadata": {"name": keys_name(name), **common},
        "data": dict.fromkeys(sorted(values), ""),
    }
    secret = {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {"name": name, **common},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in values.items()},
    }
    return keys, secret


def keys_name(name: str) -> str:
    """The name of the ConfigMap with the keys of a secret."""
    return f"{name}.secret-keys"


def used_secrets(value: Any) -> Iterator[str]:
    """The names of the Secrets in a pod's spec, or in an object that has one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("secretRef", "secretKeyRef", "secret") and isinstance(item, Mapping):
                yield str(item.get("secretName") or item.get("name") or "")
            else:
                yield from used_secrets(item)
    elif isinstance(value, list):
        for item in value:
            yield from used_secrets(item)
