"""`moor workflow stop`, `terminate`, `suspend`, `resume`, `node set`, `retry` and `delete`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.cli.storedrecords import erase_step_records
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.resources import Obj
from moorage_workflows.actions import workflows
from moorage_workflows.cli.workflowsession import ServerRecords
from moorage_workflows.decide.workflows.submission import pairs_of
from moorage_workflows.model.workflow import Resume, Retry

names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("workflows")
)
name_argument = click.argument("name", shell_complete=complete("workflows"))
selector_option = click.option(
    "--node-field-selector",
    default="",
    metavar="SELECTOR",
    help="Only these nodes, such as displayName=approve or templateName=train,phase=Failed.",
)


@console.command(
    examples={
        "moor workflow stop train-x7k2p": "end its steps; its exit handler runs",
        "moor workflow stop train-x7k2p --node-field-selector displayName=approve": "refuse an approval",
    }
)
@names_argument
@selector_option
@click.option("--message", default="", help="Why; shown at the nodes that fail.")
@target_options
def stop(target: Target, names: tuple[str, ...], node_field_selector: str, message: str) -> int:
    """Stop workflows: running steps end, further steps do not begin, the exit handler runs.

    With a selector, fail those nodes.
    """

    async def halt(session: Session, name: str) -> Obj:
        if node_field_selector:
            resume = Resume(selector=node_field_selector, message=message, is_failure=True)
            return await _resume(session, name, resume)
        return await workflows.stop_workflow(session.api, session.namespace, name)

    return _each(target, names, halt, "is stopping" if not node_field_selector else "goes on")


@console.command(
    examples={
        "moor workflow terminate train-x7k2p": "end it at once, without its exit handler",
        "moor workflow terminate a b": "end several workflows",
    }
)
@names_argument
@target_options
def terminate(target: Target, names: tuple[str, ...]) -> int:
    """Stop workflows at once. Their exit handlers do not run."""

    async def end(session: Session, name: str) -> Obj:
        return await workflows.stop_workflow(session.api, session.namespace, name, terminate=True)

    return _each(target, names, end, "is stopping")


@console.command(
    examples={
        "moor workflow suspend train-x7k2p": "stop further steps",
        "moor workflow suspend a b": "hold several workflows",
    }
)
@names_argument
@target_options
def suspend(target: Target, names: tuple[str, ...]) -> int:
    """Suspend workflows: further steps do not begin. Running steps continue."""

    async def hold(session: Session, name: str) -> Obj:
        return await workflows.suspend_workflow(session.api, session.namespace, name)

    return _each(target, names, hold, "is suspended")


@console.command(
    examples={
        "moor workflow resume train-x7k2p": "resume it, with all its steps that wait for a person",
        "moor workflow resume train-x7k2p --node-field-selector displayName=approve": "one step",
    }
)
@names_argument
@selector_option
@click.option("--message", default="", help="Why; shown at the nodes.")
@target_options
def resume(target: Target, names: tuple[str, ...], node_field_selector: str, message: str) -> int:
    """Resume suspended workflows, and steps that wait for a person."""

    async def go_on(session: Session, name: str) -> Obj:
        return await _resume(session, name, Resume(selector=node_field_selector, message=message))

    return _each(target, names, go_on, "goes on")


@console.group(
    examples={
        "moor workflow node set train-x7k2p --output-parameter approved=yes": "answer, and resume it",
        "moor workflow node set train-x7k2p --phase Failed": "refuse",
    }
)
def node() -> None:
    """Set the outputs of steps that wait for a person."""


@node.command(
    "set",
    examples={
        "moor workflow node set train-x7k2p --output-parameter approved=yes": "answer, and resume it",
        "moor workflow node set train-x7k2p --phase Failed --message 'too large'": "refuse",
    },
)
@name_argument
@click.option(
    "--output-parameter",
    "output_parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Output that the template declares as supplied. Repeatable.",
)
@selector_option
@click.option("--message", default="", help="Shown at the node.")
@click.option(
    "--phase",
    type=click.Choice(("Succeeded", "Failed")),
    default="Succeeded",
    show_default=True,
    help="New state of the step.",
)
@target_options
def set_(
    target: Target,
    name: str,
    output_parameters: tuple[str, ...],
    node_field_selector: str,
    message: str,
    phase: str,
) -> int:
    """Set the outputs of a step that waits for a person, and resume it or fail it."""
    values = dict(pairs_of(output_parameters, "outputParameters", "output parameter"))
    wanted = Resume(selector=node_field_selector, parameters=values, message=message, is_failure=phase == "Failed")

    async def answer(session: Session, name: str) -> Obj:
        return await _resume(session, name, wanted)

    return _each(target, (name,), answer, "goes on")


@console.command(
    examples={
        "moor workflow retry train-x7k2p": "run the failed steps again",
        "moor workflow retry a b": "several workflows",
    }
)  # fmt: skip
@names_argument
@click.option("--restart-successful", is_flag=True, help="Also run selected steps again that succeeded.")
@selector_option
@target_options
def retry(target: Target, names: tuple[str, ...], restart_successful: bool, node_field_selector: str) -> int:
    """Run the failed steps of ended workflows again, and the steps after them."""
    wanted = Retry(selector=node_field_selector, restart_successful=restart_successful)

    async def again(session: Session, name: str) -> Obj:
        return await workflows.retry_workflow(
            session.api, session.namespace, name, wanted, records=ServerRecords(session)
        )

    return _each(target, names, again, "runs again")


@console.command(
    examples={
        "moor workflow delete train-x7k2p": "delete a workflow with its pods",
        "moor workflow delete a b": "delete several workflows",
        "moor workflow delete --forget train-x7k2p": "and erase the stored logs of its steps",
    }
)
@names_argument
@click.option("--forget", is_flag=True, help="Also erase the stored logs and records of its pods.")
@target_options
def delete(target: Target, names: tuple[str, ...], forget: bool) -> int:
    """Delete workflows with their pods. The server retains their records for a time."""

    async def remove(session: Session, name: str) -> Obj:
        known = ""
        try:
            known = await workflows.delete_workflow(session.api, session.namespace, name)
        except NotFound:
            if not forget or not await erase_step_records(session, name):
                raise
        else:
            if forget:
                await erase_step_records(session, known)
        return {"metadata": {"name": known or name}}

    return _each(
        target, names, remove, "deleted; the stored logs of its steps are erased" if forget else "deleted"
    )


async def _resume(session: Session, name: str, wanted: Resume) -> Obj:
    return await workflows.resume_workflow(
        session.api,
        session.namespace,
        name,
        wanted,
        now=session.clock.now(),
        records=ServerRecords(session),
    )


def _each(
    target: Target, names: tuple[str, ...], act: Callable[[Session, str], Awaitable[Obj]], outcome: str
) -> int:
    """Run `act` for each name and print the outcome. Print all failures at the end; the exit code is then 1."""

    async def work(session: Session) -> int:
        problems: list[tuple[str, str | None]] = []
        for name in dict.fromkeys(names):
            try:
                changed = await act(session, name)
            except ApiError as error:
                if len(names) == 1:
                    raise
                problems.append((error.message, error.hint))
            else:
                console.show(f"{changed['metadata']['name']} {outcome}")
        if problems:
            failed = Problems(problems)
            failed.exit_code = 1  # type: ignore[misc]
            raise failed
        return 0

    return in_session(target, work)
