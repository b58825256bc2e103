"""`moor exec`: a command or a shell in the container of a run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Protocol, cast

import click

from moorage.actions.runpods import running_pod_of_run
from moorage.cli import console, terminal
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import ServerError, UsageError
from moorage_kube.remote.exec import STDERR, ExecProcess

SHELL = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")
SHELL_MISSING = 127  # exit code of a shell for a command that does not exist


class ExecApi(Protocol):
    """Starts commands in containers; `KubeClient` implements it."""

    async def exec(
        self,
        pod: str,
        namespace: str,
        command: list[str],
        *,
        container: str | None = None,
        stdin: bool = False,
        tty: bool = False,
    ) -> ExecProcess: ...


@console.command(
    "exec",
    examples={
        "moor exec train-7f3a": "a shell in the run; `exit` leaves it",
        "moor exec train-7f3a -- nvidia-smi": "one command",
        "moor exec -it train-7f3a -- python": "a command that needs a terminal",
        "moor exec -i train-7f3a -- tar xf - < data.tar": "pass a file on as standard input",
    },
)
@click.argument("name", shell_complete=complete("runs"))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on to the command.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option("--attempt", type=click.IntRange(1), default=None, help="Only this attempt (default: the newest).")
@click.option("--pod", default=None, help="A pod of the run (default: the newest that runs).")
@click.option("-c", "--container", default=None, help="A container of the pod (default: the run's).")
@target_options
def exec_(
    target: Target,
    name: str,
    command: tuple[str, ...],
    stdin: bool,
    tty: bool,
    attempt: int | None,
    pod: str | None,
    container: str | None,
) -> int:
    """Run another command in the container of a run. Without a command: a shell.

    It exits with the exit code of the command.
    """
    # without a command, a shell with a terminal
    if not command:
        if not terminal.is_terminal():
            raise UsageError(
                "no command given, and there is no terminal for a shell",
                hint=f"give a command: moor exec {name} -- nvidia-smi",
            )
        command, stdin, tty = SHELL, True, True
    # in a pipe a terminal would add control characters to the output
    if tty and not terminal.is_terminal():
        console.note("-t is left out: standard input and output are not a terminal")
        tty = False

    async def work(session: Session) -> int:
        # the newest pod that runs, unless the options name another
        place = await running_pod_of_run(session.api, session.namespace, name, attempt=attempt, pod=pod)
        process = await cast(ExecApi, session.api).exec(
            place.pod,
            session.namespace,
            list(command),
            container=container or place.container or None,
            stdin=stdin,
            tty=tty,
        )
        async with process, terminal.ending_with_reader():
            code = await (_with_terminal(process) if tty else _pass(process, stdin=stdin))
        # the shell's own exit code says that it is missing; other commands report it themselves
        if code == SHELL_MISSING and command is SHELL:
            console.say("the container has no shell")
        return code

    return in_session(target, work)


async def _with_terminal(process: ExecProcess) -> int:
    """Connect this terminal to the command's terminal until the command ends; return its exit code."""
    resizing: set[asyncio.Task[None]] = set()

    async def tell_size() -> None:
        with contextlib.suppress(ServerError):  # the command has ended
            await process.resize(*terminal.size_of_terminal())

    def resize() -> None:
        task = asyncio.get_running_loop().create_task(tell_size())
        resizing.add(task)
        task.add_done_callback(resizing.discard)

    me = asyncio.current_task()
    assert me is not None
    with (
        terminal.raw_terminal(),
        terminal.on_signals((signal.SIGWINCH,), resize),
        terminal.on_signals((signal.SIGTERM, signal.SIGHUP), me.cancel),
    ):
        await tell_size()
        return await _pass(process, stdin=True)


async def _pass(process: ExecProcess, *, stdin: bool) -> int:
    """Copy bytes in both directions until the command ends; return its exit code."""
    sending = asyncio.create_task(_send(process)) if stdin else None
    try:
        async for channel, data in process:
            terminal.write_out(data, to_stderr=channel == STDERR)
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return process.exit_code


async def _send(process: ExecProcess) -> None:
    """Send stdin, and its end."""
    with contextlib.suppress(ServerError):  # the command has ended, or the server cannot receive the end
        async with contextlib.aclosing(terminal.read_stdin()) as pieces:
            async for data in pieces:
                await process.write(data)
        await process.close_stdin()
