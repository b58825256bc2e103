"""Errors and warnings about a workflow's manifest, and a list that collects them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from moorage.decide.admission import findings
from moorage.decide.admission.fields import Path, shown_value


class Severity(StrEnum):
    """An error means that the workflow cannot run as written; a warning that it may not do as its author
    intends.
    """

    ERROR = "error"
    WARNING = "warning"


class Finding(findings.Finding, frozen=True):
    """A problem in a field of a manifest. `rule`: one word for its kind, such as "tag"."""

    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


class Gathered(Struct):
    """A list of findings without duplicates, in the order of their creation."""

    items: dict[Finding, None] = field(default_factory=dict)

    def error(self, rule: str, path: Path, message: str, value: Any = "") -> None:
        self.items[Finding(rule, path, _shown(value), message)] = None

    def warning(self, rule: str, path: Path, message: str, value: Any = "") -> None:
        self.items[Finding(rule, path, _shown(value), message, Severity.WARNING)] = None


def _shown(value: Any) -> str:
    return shown_value(value) if value != "" else ""
