"""Checks before a workflow begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moorage_workflows.decide.workflows.lint import check
from moorage_workflows.decide.workflows.support import unsupported
from moorage_workflows.decide.workflows.templates import TemplateKey

FAULTS_SHOWN = 20  # in the message of a workflow


def faults_of(document: Mapping[str, Any], others: Mapping[TemplateKey, Mapping[str, Any]]) -> Sequence[str]:
    """Return why a normalised Workflow cannot run: a sentence for each fault and each unsupported field."""
    findings = [finding for finding in check(document, others, is_run=True) if finding.is_error]
    if not findings:
        documents = [document, *others.values()]
        findings = [finding for each in documents for finding in unsupported(each) if finding.is_error]
    shown = [str(finding) for finding in findings[:FAULTS_SHOWN]]
    return (*shown, f"and {len(findings) - FAULTS_SHOWN} more") if len(findings) > FAULTS_SHOWN else tuple(shown)
