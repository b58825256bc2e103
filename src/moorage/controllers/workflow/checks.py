"""What is refused before a workflow begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage.decide.workflows.templates import Library, TemplateKey, stored


def faults_of(document: Mapping[str, Any], others: Mapping[TemplateKey, Mapping[str, Any]]) -> Sequence[str]:
    """What makes a run impossible, as one sentence each."""
    Library(stored(document, others)).entry()
    return ()
