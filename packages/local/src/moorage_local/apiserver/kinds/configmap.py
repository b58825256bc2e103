"""ConfigMaps and Secrets.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import created, size
from moorage_local.apiserver.kinds.common import immutable
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors

MAX_BYTES = 1024 * 1024
_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _default_configmap(obj: Obj) -> None:
    if obj.get("immutable") is None:
        obj.pop("immutable", None)


def _validate_configmap(obj: Obj, errors: FieldErrors) -> None:
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (obj.get(part) or {}).items():
            size += len(value)
            _validate_key(key, f"{part}[{key}]", errors)
    if size > MAX_BYTES:
        errors.too_long("", MAX_BYTES)


def _validate_key(key: str, path: str, errors: FieldErrors) -> None:
    if not key or len(key) > 253 or not all(char.isalnum() or char in "-_." for char in key):
        errors.invalid(
            path,
            key,
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or"
            " 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        )


def _immutable_data(new: Obj, old: Obj, errors: FieldErrors) -> None:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        errors.forbidden("immutable", "field is immutable when `immutable` is set")
    for part in ("data", "binaryData"):
        if new.get(part) != old.get(part):
            errors.forbidden(part, "field is immutable when `immutable` is set")


def _default_secret(obj: Obj) -> None:
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()
    obj.setdefault("type", "Opaque")


def _validate_secret(obj: Obj, errors: FieldErrors) -> None:
    data = obj.get("data") or {}
    for key in data:
        _validate_key(key, f"data[{key}]", errors)
    if sum(len(value) * 3 // 4 for value in data.values()) > MAX_BYTES:
        errors.too_long("data", MAX_BYTES)
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in data:
            errors.required(f"data[{key}]")


def _validate_secret_update(new: Obj, old: Obj, errors: FieldErrors) -> None:
    immutable(new.get("type"), old.get("type"), "type", errors)
    _immutable_data(new, old, errors)


def _configmap_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], size(obj, "data") + size(obj, "binaryData"), created(obj, now)


def _secret_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], obj.get("type", ""), size(obj, "data"), created(obj, now)


RULES = {
    ("", "configmaps"): Rules(
        default=_default_configmap,
        validate=_validate_configmap,
        validate_update=_immutable_data,
        cells=_configmap_cells,
    ),
    ("", "secrets"): Rules(
        default=_default_secret,
        validate=_validate_secret,
        validate_update=_validate_secret_update,
        field_selectors=frozenset({"type"}),
        cells=_secret_cells,
    ),
}
