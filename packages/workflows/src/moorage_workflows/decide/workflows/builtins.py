"""Templates without a user's image: `http` and `data`.

Their pod has one container, `main`, in which `executor` does the work, with the service account of the workflow
and in its network. So the operator never sends a request that a manifest chose.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.executororders import OrderError, numbered_secrets, refuse_fields
from moorage_workflows.decide.workflows.templates import LOCATIONS

TIMEOUT_SECONDS = 30  # of a request, as Argo's documentation has it
LISTED = ("s3", "gcs")  # stores with keys that can be listed, in addition to our own
REQUEST_BYTES = 200 * 1024  # of a request's body: it is in an annotation of the pod


class BuiltIn(Struct, frozen=True):
    """The work of the executor in `main`. `word`: its part, and the key of `document` in the order."""

    word: str
    document: Obj
    secrets: tuple[Mapping[str, Any], ...]


def is_built_in(template: Mapping[str, Any]) -> bool:
    return template.get("http") is not None or template.get("data") is not None


def built_in(template: Mapping[str, Any], *, wants_result: bool) -> BuiltIn | None:
    """Return the built-in work of a template; None for templates of other types. Raises OrderError."""
    if template.get("http") is not None:
        return _request(template["http"], wants_result=wants_result)
    if template.get("data") is not None:
        return _data(template["data"])
    return None


def _request(http: Mapping[str, Any], *, wants_result: bool) -> BuiltIn:
    url = str(http.get("url") or "").strip()
    if not url.startswith(("http://", "https://")):
        raise OrderError("http.url", f"is {url[:200]!r}: it must begin with http:// or https://")
    headers = []
    for number, header in enumerate(http.get("headers") or ()):
        name = str(header.get("name") or "")
        if not name:
            raise OrderError(f"http.headers[{number}].name", "is missing")
        selector = (header.get("valueFrom") or {}).get("secretKeyRef")
        headers.append({"name": name, "value": str(header.get("value") or "") if selector is None else selector})
    body = str(http.get("body") or "").encode()
    if http.get("bodyFrom") is not None:
        try:
            body = base64.b64decode(str(http["bodyFrom"].get("bytes") or ""), validate=True)
        except (binascii.Error, ValueError) as error:
            raise OrderError("http.bodyFrom.bytes", f"is not base64: {error}") from error
    if len(body) > REQUEST_BYTES:
        raise OrderError(
            "http.body" if http.get("bodyFrom") is None else "http.bodyFrom.bytes",
            f"has {len(body)} bytes, and at most {REQUEST_BYTES} are allowed: send it from a container",
        )
    seconds = http.get("timeoutSeconds")
    secrets: list[Mapping[str, Any]] = []
    document: Obj = {
        "method": str(http.get("method") or "GET"),
        "url": url,
        "headers": numbered_secrets(headers, secrets),
        "body": base64.b64encode(body).decode(),
        "isBytes": http.get("bodyFrom") is not None,
        "seconds": TIMEOUT_SECONDS if seconds is None else _whole(seconds, "http.timeoutSeconds"),
        "condition": str(http.get("successCondition") or ""),
        "insecure": http.get("insecureSkipVerify") is True,
        "result": wants_result,
    }
    return BuiltIn("http", document, tuple(secrets))


def _data(data: Mapping[str, Any]) -> BuiltIn:
    paths = (data.get("source") or {}).get("artifactPaths")
    if paths is None:
        raise OrderError("data.source.artifactPaths", "is missing: it says where the list comes from")
    secrets: list[Mapping[str, Any]] = []
    location = numbered_secrets(_place(paths, "data.source.artifactPaths"), secrets)
    steps = [str(step.get("expression") or "") for step in data.get("transformation") or ()]
    document: Obj = {"location": location, "expressions": [step for step in steps if step]}
    return BuiltIn("data", document, tuple(secrets))


def _place(paths: Mapping[str, Any], field: str) -> Obj:
    """One store and its fields, or {"key"} in Moorage's store.

    As in Argo, a bucket without endpoint and credentials is that of the default store, here Moorage's.
    """
    kinds = [kind for kind in LOCATIONS if paths.get(kind) is not None]
    if not kinds:
        return {}
    kind = kinds[0]
    if kind not in LISTED or len(kinds) > 1:
        raise OrderError(f"{field}.{kind}", f"cannot be listed: use {' or '.join(LISTED)}, or no store")
    values = paths[kind]
    if set(values) <= ({"key", "bucket"} if kind == "s3" else {"key"}):
        key = str(values.get("key") or "").strip("/")
        return {"key": key} if key else {}
    if not values.get("bucket"):
        raise OrderError(f"{field}.{kind}.bucket", "is missing")
    refuse_fields(kind, values, f"{field}.{kind}")
    return {kind: dict(values)}


def _whole(value: Any, field: str) -> int:
    text = str(value)
    if not text.isascii() or not text.isdigit() or not int(text[:10]):
        raise OrderError(field, f"is {value!r}: use a whole number of seconds of at least 1")
    return int(text)
