"""`moor workflow submit` and `resubmit`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from moorage.cli import console
from moorage.cli.lint import read_text
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import ApiError, DocumentError, UsageError
from moorage_kube.resources import NODES, Obj
from moorage_kube.yamldocuments import parse_yaml_documents
from moorage_workflows.decide.workflows.controllers import Controller
from moorage_workflows.decide.workflows.submission import Additions, parameter_values

R = TypeVar("R", bound=Callable[..., Any])
TEMPLATES = ("WorkflowTemplate", "ClusterWorkflowTemplate")
NODES_MAX = 20  # a local cluster has few

ADDITIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Argument. Repeatable."
    ),
    click.option("--name", default="", help="Name of the workflow."),
    click.option("--generate-name", default="", help="Prefix of its name; 5 characters are added."),
    click.option(
        "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label of the workflow. Repeatable."
    ),
    click.option("--entrypoint", default="", help="Template to begin with."),
    click.option(
        "--service-account", "--serviceaccount", "service_account", default="", help="ServiceAccount of its pods."
    ),
    click.option("--priority", type=int, default=None, help="Higher starts first among workflows that wait."),
    click.option("--priority-class", default="", help="PriorityClass of its pods."),
    click.option(
        "--host-env", is_flag=True, help="On a local cluster: run images' commands in this machine's environment."
    ),
)
AFTER: tuple[Callable[[Any], Any], ...] = (
    click.option("--wait", is_flag=True, help="Wait until it has ended; exit with 1 if it did not succeed."),
    click.option("--watch", is_flag=True, help="Show its steps until it has ended."),
    click.option("--follow", "--log", "follow", is_flag=True, help="Print its logs until it has ended."),
)


def with_options(options: Sequence[Callable[[R], R]]) -> Callable[[R], R]:
    """Return a decorator that adds several options to a command."""

    def decorate(command: R) -> R:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@console.command(
    examples={
        "moor workflow submit train.yaml": "submit a workflow; its name is printed",
        "moor workflow submit train.yaml -p epochs=3 --watch": "with an argument, and watch its steps",
        "moor workflow submit --from workflowtemplate/train -p epochs=3": "from a template that is stored",
        "moor workflow submit train.yaml --follow": "print the logs of its steps until it has ended",
    }
)
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    default=None,
    metavar="KIND/NAME",
    help="Submit from workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME.",
)
@click.option(
    "--parameter-file",
    type=click.Path(path_type=Path),
    default=None,
    help="YAML or JSON file with arguments, a line NAME: VALUE for each. -p wins.",
)
@with_options(ADDITIONS)
@with_options(AFTER)
@click.option("--dry-run", is_flag=True, help="Check the workflow, print it; create nothing.")
@click.option(
    "-o", "--output", type=click.Choice(("name", "json", "yaml")), default="name", show_default=True,
    help="Output format.",
)  # fmt: skip
@target_options
def submit(
    target: Target,
    files: tuple[Path, ...],
    source: str | None,
    parameter_file: Path | None,
    wait: bool,
    watch: bool,
    follow: bool,
    dry_run: bool,
    output: str,
    **given: Any,
) -> int:
    """Submit workflows from files, or from a template.

    FILE is a YAML or JSON file with any number of documents, or - for stdin. WorkflowTemplates in the files are
    created first, or changed where they exist. Where Argo's controller runs, it runs the workflow.
    """
    # exactly one source
    if bool(files) == bool(source):
        raise UsageError(
            "submit needs a FILE, or --from KIND/NAME" if not files else "use FILE or --from, not both",
            hint="moor workflow submit train.yaml; or moor workflow submit --from workflowtemplate/train",
        )
    # templates are applied before the workflows that refer to them
    documents = [document for file in files for document in read_documents(file)]
    templates, manifests = sorted_documents(documents)
    if files and not manifests:
        raise UsageError("the files have no Workflow", hint="create templates: moor workflow template create FILE")
    values = parameter_values(_one_document(parameter_file)) if parameter_file else {}
    additions = Additions(values=values, **given)
    # these options need exactly one workflow
    if len(manifests) > 1 and (additions.name or watch or follow):
        raise UsageError(
            f"the files have {len(manifests)} workflows: use --name, --watch and --follow with only one",
            hint="submit each on its own, or use --wait",
        )

    async def work(session: Session) -> int:
        from moorage_workflows.actions.workflows import read_source

        # templates are written only when it is not a dry run; the lint sees them either way
        texts = [await read_source(session.api, session.namespace, source)] if source else manifests
        if not dry_run:
            await _apply(session, templates)
        return await submit_all(
            session,
            texts,
            additions,
            templates=templates,
            dry_run=dry_run,
            output=output,
            wait=wait,
            watch=watch,
            follow=follow,
        )

    return in_session(target, work)


@console.command(
    examples={
        "moor workflow resubmit train-x7k2p": "run the same spec again, as a new workflow",
        "moor workflow resubmit @latest -p epochs=9 --watch": "the newest one, with another argument",
        "moor workflow resubmit --memoized train-x7k2p": "a failed one: run only the steps that did not succeed",
    }
)
@click.argument("name", shell_complete=complete("workflows"))
@click.option("-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="Argument. Repeatable.")
@click.option(
    "--memoized", is_flag=True, help="Take over the successful steps of a failed workflow, with their outputs."
)
@with_options(AFTER)
@target_options
def resubmit(
    target: Target,
    name: str,
    parameters: tuple[str, ...],
    memoized: bool,
    wait: bool,
    watch: bool,
    follow: bool,
) -> int:
    """Submit the spec of a workflow again, as a new one; also of a deleted one.

    Every step runs, except those that --memoized takes over. To continue the same workflow, use
    `moor workflow retry`.
    """

    async def work(session: Session) -> int:
        from moorage_workflows.actions.workflows import get_workflow
        from moorage_workflows.cli.workflowsession import ServerRecords
        from moorage_workflows.decide.workflows.submission import resubmitted

        earlier = await get_workflow(session.api, session.namespace, name, ServerRecords(session))
        return await submit_all(
            session,
            [resubmitted(earlier, memoized=memoized)],
            Additions(parameters=parameters),
            dry_run=False,
            output="name",
            wait=wait,
            watch=watch,
            follow=follow,
        )

    return in_session(target, work)


def read_documents(file: Path) -> list[Obj]:
    """The documents of a file that are objects. Raises UsageError with the place of an unreadable document."""
    name, text = read_text(file)
    try:
        documents = [document for document in parse_yaml_documents(text) if document is not None]
    except DocumentError as error:
        raise UsageError(f"{name}: {error.located}", hint=error.hint) from error
    flat: list[Obj] = []
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        flat += items if isinstance(items, list) else [document]
    for at, document in enumerate(flat):
        if not isinstance(document, dict):
            raise UsageError(
                f"{name}: document {at + 1} is not an object", hint="it needs apiVersion, kind and spec"
            )
    return flat


def _one_document(file: Path) -> Any:
    name, text = read_text(file)
    try:
        documents = parse_yaml_documents(text)
    except DocumentError as error:
        raise UsageError(f"{name}: {error.located}", hint=error.hint) from error
    return documents[0] if documents else None


def sorted_documents(documents: Sequence[Obj]) -> tuple[list[Obj], list[Obj]]:
    """The templates, and all other documents; the submission reports wrong kinds."""
    templates = [document for document in documents if document.get("kind") in TEMPLATES]
    return templates, [document for document in documents if document.get("kind") not in TEMPLATES]


async def _apply(session: Session, templates: Sequence[Mapping[str, Any]]) -> None:
    from moorage.evaluator.pool import InPlace
    from moorage_workflows.actions.workflowlints import checks_of
    from moorage_workflows.actions.workflowtemplates import Applied, apply_template

    check = checks_of(session.api, session.namespace, templates, evaluation=InPlace())

    for template in templates:
        stored, what = await apply_template(session.api, session.namespace, template, check=check)
        if what is not Applied.UNCHANGED:
            console.say(f"{stored['kind']} {stored['metadata']['name']}: {what}")


async def submit_all(
    session: Session,
    documents: Sequence[Mapping[str, Any]],
    additions: Additions,
    *,
    templates: Sequence[Mapping[str, Any]] = (),
    dry_run: bool,
    output: str,
    wait: bool,
    watch: bool,
    follow: bool,
) -> int:
    """Submit Workflows, print them, and follow them if the options say so. Returns the exit code."""
    from moorage.evaluator.pool import InPlace
    from moorage_workflows.actions.workflowlints import checks_of
    from moorage_workflows.actions.workflows import submit_workflow
    from moorage_workflows.cli.workflowsession import controller_here

    # Argo checks its own workflows; ours are linted before they are created
    controller = await controller_here(session)
    nodes: list[Obj] = []
    with contextlib.suppress(ApiError):  # members may not list nodes; then a pod whose image does not run says so
        nodes = (await session.api.list(NODES, limit=NODES_MAX)).items
    check = checks_of(session.api, session.namespace, templates, evaluation=InPlace(), nodes=nodes)
    names: list[str] = []
    # print each name at once: a later failure does not hide workflows that exist
    for document in documents:
        submitted = await submit_workflow(
            session.api,
            session.namespace,
            document,
            additions,
            controller=controller,
            check=check,
            dry_run=dry_run,
        )
        for text in submitted.notes:
            console.note(text)
        names.append(str(submitted.workflow["metadata"]["name"]))
        if dry_run or output != "name":
            console.print_document(submitted.workflow, "json" if output == "json" else "yaml")
        else:
            console.show(names[-1])
    if dry_run:
        return 0
    # then wait, or print the next commands
    if controller is Controller.ARGO:
        console.note("Argo's controller runs workflows on this cluster")
    if follow or watch or wait:
        return await _after(session, names, watch=watch, follow=follow)
    console.say(f"look at it: moor workflow get {names[0]}; its logs: moor workflow logs {names[0]} --follow")
    return 0


async def _after(session: Session, names: Sequence[str], *, watch: bool, follow: bool) -> int:
    from moorage_workflows.cli.workflowget import wait_for, watch_one
    from moorage_workflows.cli.workflowlogs import follow_logs

    if follow:
        await follow_logs(session, names[0])
    elif watch:
        await watch_one(session, names[0])
    return 0 if await wait_for(session, names) else 1
