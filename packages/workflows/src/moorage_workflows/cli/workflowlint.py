"""`moor workflow lint`: check manifests in Argo's format before they are submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage.cli import console

if TYPE_CHECKING:
    from moorage_workflows.actions.workflowcheck import Located, Report


@console.command(
    examples={
        "moor workflow lint train.yaml": "check a workflow",
        "moor workflow lint workflows/ --strict": "check a folder in CI; warnings fail, too",
        "kubectl get workflowtemplate etl -o yaml | moor workflow lint -": "check an object of the cluster",
    }
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings are failures, too.")
@console.document_option
def lint(files: tuple[Path, ...], strict: bool, output: str) -> int:
    """Check workflows in Argo's format: their fields, names, tags, arguments and schedules.

    FILE is a YAML or JSON file with any number of documents, a folder (all such files in it), or - for stdin.
    Templates in any of the files are known to all. Fields that Moorage does not run are errors. The cluster is not
    asked: a reference to a template that is in none of the files is a warning.
    The exit code is 1 if there are errors, with --strict also if there are warnings.
    """
    from moorage.cli.lint import texts_in
    from moorage_workflows.actions.workflowcheck import check_texts
    from moorage_workflows.decide.workflows.findings import Severity

    report = check_texts(texts_in(files))
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    if output == "text":
        for located in report.findings:
            console.show(_line(located))
        console.say(_summary(report, errors, warnings))
    else:
        console.print_document(_document(report), output)
    return 1 if errors or (strict and warnings) else 0


def _line(located: Located) -> str:
    finding = located.finding
    place = f"{finding.field}: " if finding.field else ""
    value = f" (found {finding.value})" if finding.value else ""
    head = f"{located.file}:{located.line}: {finding.severity} {finding.rule}"
    return f"{head}: {place}{finding.message}{value}"


def _summary(report: Report, errors: int, warnings: int) -> str:
    parts = [f"{report.checked} checked", f"{report.skipped} others skipped"]
    parts += [f"{count} {word}" for count, word in ((errors, "errors"), (warnings, "warnings")) if count]
    return ", ".join(parts)


def _document(report: Report) -> dict[str, Any]:
    return {
        "findings": [
            {
                "file": located.file,
                "line": located.line,
                "kind": located.kind,
                "name": located.name,
                "rule": located.finding.rule,
                "severity": str(located.finding.severity),
                "field": located.finding.field,
                "value": located.finding.value,
                "message": located.finding.message,
            }
            for located in report.findings
        ],
        "checked": report.checked,
        "skipped": report.skipped,
    }
