"""The findings of `moor lint` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from moorage.decide.tools.lint import Report
from moorage_kube.resources import Obj


def report_json(report: Report) -> Obj:
    """The report as JSON."""
    return {
        "findings": [
            {
                "file": finding.file,
                "line": finding.line,
                "kind": finding.kind,
                "namespace": finding.namespace,
                "name": finding.name,
                "rule": finding.rule,
                "level": finding.level,
                "field": finding.field,
                "value": finding.value,
                "message": finding.message,
                "fix": finding.fix,
                "target": finding.target,
                "fixable": finding.edit is not None,
            }
            for finding in report.findings
        ],
        "judged": report.judged,
        "skipped": report.skipped,
    }


def report_text(report: Report) -> Iterator[str]:
    """Yield one line per finding, and the fix at its first occurrence in an object."""
    explained: set[tuple[str, str, str, str]] = set()
    for finding in report.findings:
        text = f" (found {finding.value})" if finding.value else ""
        place = f"{finding.field}: " if finding.field else ""
        yield f"{finding.file}:{finding.line}: {finding.level} {finding.rule}: {place}{finding.message}{text}"
        if finding.level == "fill":
            continue
        key = (finding.file, finding.kind, finding.name, finding.rule)
        if finding.fix and key not in explained:
            explained.add(key)
            yield f"    fix: {finding.fix}"
