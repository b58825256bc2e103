"""The findings of `moor lint`, as people and programs read them."""

from __future__ import annotations

from collections.abc import Iterator

from moorage.apimachinery.resources import Obj
from moorage.decide.tools.lint import Report


def report_json(report: Report) -> Obj:
    """The report for programs."""
    return {
        "findings": [
            {
                "file": one.file,
                "line": one.line,
                "kind": one.kind,
                "namespace": one.namespace,
                "name": one.name,
                "rule": one.rule,
                "level": one.level,
                "field": one.field,
                "value": one.value,
                "message": one.message,
                "fix": one.fix,
            }
            for one in report.findings
        ],
        "judged": report.judged,
        "skipped": report.skipped,
    }


def report_text(report: Report) -> Iterator[str]:
    """One line per finding, and what to do about it where it is said for the first time in an object."""
    told: set[tuple[str, str, str, str]] = set()
    for one in report.findings:
        found = f" (found {one.value})" if one.value else ""
        place = f"{one.field}: " if one.field else ""
        yield f"{one.file}:{one.line}: {one.level} {one.rule}: {place}{one.message}{found}"
        if one.level == "fill":
            continue
        key = (one.file, one.kind, one.name, one.rule)
        if one.fix and key not in told:
            told.add(key)
            yield f"    fix: {one.fix}"
