"""Selectors, versions and continue tokens of lists and watches."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, BadRequest, NumberError, SelectorError
from moorage_kube.integers import UINT64_MAX, parse_integer
from moorage_kube.resources import Obj
from moorage_kube.selectors import LabelSelector, field_selector_paths, parse_field_selector, parse_label_selector
from moorage_local.apiserver.kinds.kind import Kind


class Matcher:
    """The label and field selectors of one request."""

    def __init__(self, kind: Kind, label_selector: str | None, field_selector: str | None) -> None:
        self._labels: LabelSelector | None = None
        self._fields: Callable[[Mapping[str, Any]], bool] | None = None
        try:
            if label_selector:
                self._labels = parse_label_selector(label_selector)
            if field_selector:
                allowed = kind.rules.field_selectors | {"metadata.name"}
                if kind.resource.namespaced:
                    allowed |= {"metadata.namespace"}
                for path in field_selector_paths(field_selector):
                    if path not in allowed:
                        raise BadRequest(f"field label not supported: {path}")
                self._fields = parse_field_selector(field_selector)
        except SelectorError as error:
            raise BadRequest(f"unable to parse requirement: {error.message}", hint=error.hint) from error

    @property
    def everything(self) -> bool:
        return self._labels is None and self._fields is None

    def matches(self, obj: Obj) -> bool:
        if self._labels is not None and not self._labels.matches(obj["metadata"].get("labels")):
            return False
        return self._fields is None or self._fields(obj)


def named_by(field_selector: str | None) -> str:
    """Return the name if a field selector selects a single object by name, else "".

    RBAC rules for that name then apply.
    """
    terms = [term for term in (field_selector or "").split(",") if term.startswith("metadata.name=")]
    return terms[0].partition("=")[2].lstrip("=") if len(terms) == 1 else ""


def parse_version(text: str) -> int:
    """Parse a resourceVersion into a revision of the store. Raises BadRequest."""
    try:
        return parse_integer(text, maximum=UINT64_MAX, signed=False)
    except NumberError:
        shown = json.dumps(text[:100])
        raise BadRequest(
            f"resourceVersion: Invalid value: {shown}: strconv.ParseUint: parsing {shown}: invalid syntax"
        ) from None


def listed_version(text: str) -> int:
    try:
        return parse_version(text)
    except BadRequest as error:
        raise BadRequest(f"invalid resource version: {error.message}") from None


def from_the_future(wanted: int, current: int) -> ApiError:
    return ApiError(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        status=504,
        reason="Timeout",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def continue_at(revision: int, after: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": 1, "rv": revision, "after": after})).decode()


def continue_from(token: str) -> tuple[int, str]:
    try:
        position = parse_json(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError):
        position = None
    if isinstance(position, dict):
        revision, after = position.get("rv"), position.get("after")
        if type(revision) is int and 0 <= revision <= UINT64_MAX and isinstance(after, str):
            return revision, after
    raise BadRequest("invalid continue token: continue key is not valid")
