"""`moor workflow convert`: convert CronJobs and manifests of older Argo versions to current workflows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moorage.cli import console
from moorage_kube.errors import DocumentError, UsageError

if TYPE_CHECKING:
    from moorage_workflows.decide.workflows.changes import Change, Converted


@console.command(
    examples={
        "moor workflow convert nightly.yaml > cron.yaml": "convert a CronJob, and list the changes",
        "moor workflow convert nightly.yaml --explain": "show the result for each field",
        "kubectl get cronjob nightly -o yaml | moor workflow convert -": "convert an object of the cluster",
    }
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--explain", is_flag=True, help="Print the result for each field, instead of the converted documents."
)
@click.option(
    "--time-zone", default="", metavar="ZONE", help="Time zone of CronJobs that state none, such as Asia/Tokyo."
)
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Output format."
)
def convert(files: tuple[Path, ...], explain: bool, time_zone: str, output: str) -> int:
    """Convert CronJobs to CronWorkflows, and Argo's manifests to the spellings of v4.

    FILE is a YAML or JSON file with any number of documents, or - for stdin. Documents of other kinds are copied
    unchanged. Fields that behave differently afterwards, or that a Workflow does not have, are listed on stderr.
    Comments are lost. The exit code is 1 if a document cannot be converted.
    """
    from moorage_workflows.decide.workflows.convert import convert_documents

    if time_zone:
        _check_zone(time_zone)
    results = [result for file in files for result in convert_documents(_documents(file), time_zone=time_zone)]
    if not results:
        raise UsageError("the files have no documents")
    if explain:
        for result in results:
            _explain(result)
    else:
        documents = [result.document for result in results if result.document is not None]
        if output == "json":
            console.print_document(documents[0] if len(documents) == 1 else documents, "json")
        else:
            console.show_text("---\n".join(console.as_yaml(document) for document in documents), nl=False)
        for result in results:
            for change in result.changes:
                if change.outcome.is_loss:
                    console.say(f"{_name(result)}: {change.outcome}: {_place(change)}: {change.message}")
    console.say(_summary(results))
    return 1 if any(result.is_refused for result in results) else 0


def _documents(file: Path) -> list[object]:
    from moorage.cli.lint import read_text
    from moorage_kube.yamldocuments import parse_yaml_documents

    name, text = read_text(file)
    try:
        return parse_yaml_documents(text)
    except DocumentError as error:
        raise UsageError(f"{name} is not valid YAML: {error.located}") from error


def _check_zone(name: str) -> None:
    from moorage.model.schedule import problem_of_zone

    if problem := problem_of_zone(name):
        raise UsageError(f"--time-zone {name!r} {problem}")


def _explain(result: Converted) -> None:
    console.show(_name(result) + (": passed through" if not result.is_changed else ""))
    rows = [[_place(change), str(change.outcome), change.becomes, change.message] for change in result.changes]
    if rows:
        headers = ["FIELD", "OUTCOME", "BECOMES", "NOTE"]
        console.show_text(console.plain_table_for_terminal(headers, rows, indent="  ", kept=frozenset(headers)))


def _name(result: Converted) -> str:
    return f"{result.kind or 'document'} {result.name}".strip()


def _place(change: Change) -> str:
    return change.field or "document"


def _summary(results: list[Converted]) -> str:
    counts = Counter(
        "refused" if result.is_refused else "converted" if result.is_changed else "passed through"
        for result in results
    )
    return ", ".join(f"{count} {word}" for word, count in counts.items())
