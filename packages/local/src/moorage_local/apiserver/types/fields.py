"""Collect errors of fields, with the real server's messages.

https://pkg.go.dev/k8s.io/apimachinery/pkg/util/validation/field
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moorage_kube.errors import Invalid
from moorage_kube.resources import Obj, Resource

CAUSES_MAX = 100  # of one refusal: each repeats the value, and tens of thousands fit into an object


@dataclass(frozen=True, slots=True)
class Cause:
    """One error of one field. `reason` is a CauseType of metav1; `message` does not repeat the path."""

    reason: str
    path: str
    message: str

    def to_obj(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.path}

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class FieldErrors:
    """The errors in one object; if there are more than CAUSES_MAX, the first ones."""

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.warnings: list[str] = []  # shown to the client of a valid object

    def __bool__(self) -> bool:
        return bool(self.causes)

    def required(self, path: str, detail: str = "") -> None:
        self._add("FieldValueRequired", path, "Required value", detail)

    def invalid(self, path: str, value: Any, detail: str) -> None:
        self._add("FieldValueInvalid", path, f"Invalid value: {shown(value)}", detail)

    def unsupported(self, path: str, value: Any, supported: Iterable[str]) -> None:
        allowed = ", ".join(json.dumps(choice) for choice in supported)
        self._add(
            "FieldValueNotSupported", path, f"Unsupported value: {shown(value)}", f"supported values: {allowed}"
        )

    def duplicate(self, path: str, value: Any) -> None:
        self._add("FieldValueDuplicate", path, f"Duplicate value: {shown(value)}", "")

    def forbidden(self, path: str, detail: str) -> None:
        self._add("FieldValueForbidden", path, "Forbidden", detail)

    def not_found(self, path: str, value: Any) -> None:
        self._add("FieldValueNotFound", path, f"Not found: {shown(value)}", "")

    def too_long(self, path: str, most: int) -> None:
        self._add("FieldValueTooLong", path, "Too long", f"may not be more than {most} bytes")

    def plain(self, path: str, detail: str) -> None:
        """Add an error of an invalid value that is too large to show."""
        self._add("FieldValueInvalid", path, "Invalid value", detail)

    def raise_if_any(self, resource: Resource, name: str) -> None:
        """Raise Invalid with all causes, if there are any."""
        if self.causes:
            raise invalid(resource, name, self.causes)

    def _add(self, reason: str, path: str, message: str, detail: str) -> None:
        if len(self.causes) >= CAUSES_MAX:
            return
        self.causes.append(Cause(reason, path, f"{message}: {detail}" if detail else message))


def invalid(resource: Resource, name: str, causes: list[Cause]) -> Invalid:
    """Return the 422 error of an object; `name` may be empty (generateName)."""
    problems = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(str(cause) for cause in causes) + "]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details: Obj = {"causes": [cause.to_obj() for cause in causes]}
    if resource.kind:
        details["kind"] = resource.kind
    if name:
        details["name"] = name
    if resource.group:
        details["group"] = resource.group
    return Invalid(
        f"{kind} {json.dumps(name)} is invalid: {problems}",
        details=details,
    )


def shown(value: Any) -> str:
    """Format a value like the real server: strings in quotes, numbers without, everything else as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
