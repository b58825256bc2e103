"""Inputs and outputs of a rule: the template, the findings and the values to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path, field_of
from moorage.decide.admission.gpufacts import Facts
from moorage.decide.admission.templates import Template
from moorage_kube.resources import Obj


class Finding(Struct, frozen=True):
    """A field that breaks a rule. `value`: the present value as text; empty if there is none."""

    rule: str
    path: Path
    value: str
    message: str

    @property
    def field(self) -> str:
        """The path in the notation of the API server."""
        return field_of(self.path)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" + (f" (found {self.value})" if self.value else "")


class Filled(Struct, frozen=True):
    """A value to set at the path of a finding."""

    finding: Finding
    value: Any


class Subject(Struct, frozen=True, kw_only=True):
    """One pod template and everything else that a guardrail rule may read."""

    template: Template
    settings: Mapping[str, Any]
    facts: Facts | None = None  # None: the cluster was not asked
    away: tuple[Obj, ...] = ()  # label expressions that keep off GPU nodes; empty: there is no other place
