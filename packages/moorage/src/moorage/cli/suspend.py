"""`moor suspend`, `moor resume`: free a run's GPUs for a while, and continue the run later."""

from __future__ import annotations

import click

from moorage.actions.suspension import resume_run, suspend_run
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options


@console.command(
    examples={
        "moor suspend train-7f3a": "its pod ends after its grace period; it holds no GPU",
        "moor resume train-7f3a": "start it again from its checkpoint",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("runs"))
@target_options
def suspend(target: Target, names: tuple[str, ...]) -> int:
    """Suspend runs: their pods get their grace period, and none starts until the run is resumed.

    A run resumes from its newest checkpoint. Without one it begins again from the start.
    """

    async def work(session: Session) -> int:
        for name in dict.fromkeys(names):
            done = await suspend_run(
                session.api, session.namespace, name, by=await session.user(), clock=session.clock
            )
            console.show(f"{name} {'suspended' if done.changed else 'is suspended already'}")
            if not done.checkpoint_at:
                console.note(f"{name} has no checkpoint: it will begin again from the start")
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor resume train-7f3a": "start it again from its checkpoint",
        "moor resume sweep-1 sweep-2": "several runs",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("runs"))
@target_options
def resume(target: Target, names: tuple[str, ...]) -> int:
    """Resume suspended runs. The program starts again and finds its checkpoint folder unchanged."""

    async def work(session: Session) -> int:
        for name in dict.fromkeys(names):
            done = await resume_run(session.api, session.namespace, name, clock=session.clock)
            if not done.changed:
                console.show(f"{name} is not suspended")
                continue
            where = f" from its checkpoint of {done.checkpoint_at}" if done.checkpoint_at else " from the start"
            console.show(f"{name} resumes{where}")
        return 0

    return in_session(target, work)
