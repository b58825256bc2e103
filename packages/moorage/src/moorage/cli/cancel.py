"""`moor cancel`: stop runs."""

from __future__ import annotations

import asyncio

import click

from moorage.actions.runs import cancel_run
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Problems, Session, Target, in_session, target_options
from moorage.cli.storedrecords import erase_records
from moorage_kube.errors import ApiError, NotFound


@console.command(
    examples={
        "moor cancel train-7f3a": "stop a run; its checkpoint remains",
        "moor cancel sweep-1 sweep-2 sweep-3": "stop several runs",
        "moor cancel --delete train-7f3a": "delete it too, so that its name is free again",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("runs"))
@click.option(
    "--delete",
    is_flag=True,
    help="Also delete the runs with their pods; their names are free again. Stored logs remain on the server.",
)
@click.option("--forget", is_flag=True, help="Also delete the runs, and erase the server's records of them.")
@target_options
def cancel(target: Target, names: tuple[str, ...], delete: bool, forget: bool) -> int:
    """Stop runs: their pods get their grace period, and no new attempt starts. Checkpoints remain."""

    async def work(session: Session) -> int:
        done = await asyncio.gather(
            *(_cancel(session, name, delete=delete, forget=forget) for name in dict.fromkeys(names)),
            return_exceptions=True,
        )
        problems: list[tuple[str, str | None]] = []
        for outcome in done:
            if isinstance(outcome, ApiError):
                problems.append((outcome.message, outcome.hint))
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                console.show(outcome)
        if problems:
            error = Problems(problems)
            error.exit_code = 1  # type: ignore[misc]
            raise error
        return 0

    return in_session(target, work)


async def _cancel(session: Session, name: str, *, delete: bool, forget: bool) -> str:
    """Stop one run. Returns the result as a sentence."""
    missing: NotFound | None = None
    outcome = ""
    try:
        done = await cancel_run(
            session.api,
            session.namespace,
            name,
            by=await session.user(),
            delete=delete or forget,
        )
        outcome = f"{name} {done.outcome}"
    except NotFound as error:
        if not forget:
            raise
        missing = error
    if not forget:
        return outcome
    pods = await erase_records(session, name)
    if missing is not None and not pods:
        raise missing
    erased = f"records of {pods} {'pod' if pods == 1 else 'pods'} erased"
    return f"{outcome}; {erased}" if outcome else f"{name} was deleted before; {erased}"
