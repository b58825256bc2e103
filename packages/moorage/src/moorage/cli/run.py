"""`moor run`: run a command as a guarded Job."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from moorage.actions.runinputs import read_caller, read_cluster_nodes
from moorage.actions.submit import read_request
from moorage.api.explain import Explanation, PodQuestion
from moorage.cli import console
from moorage.cli.commands import TYPED
from moorage.cli.runcode import packed
from moorage.cli.runoptions import request_from, run_options
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cluster.serverurl import server_url
from moorage.decide.runs.code import Code, code_of
from moorage.decide.runs.names import generated_name
from moorage.decide.runs.request import RunRequest
from moorage.decide.runs.runfile import parse_run_file
from moorage_kube.errors import Forbidden, NotReady, Problems, ServerError, Unauthorized, UsageError
from moorage_kube.yamldocuments import parse_yaml

if TYPE_CHECKING:
    from moorage.actions.submit import Submitted


@console.command(
    context_settings={"allow_interspersed_args": False},
    examples={
        "moor run -- python train.py": "a command, with the limits of your tenant",
        "moor run --gpus 1 --memory 8Gi --time 2h -- python train.py": "on a GPU, for two hours at most",
        "moor run --follow --checkpoint runs -- python train.py": "keep checkpoints, and follow the logs",
        "moor run -f train.yaml --gpus 2": "the options of a file, with two GPUs",
    },
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default=None,
    help="YAML file with `command` and options, such as gpuType; options typed here win. `-`: standard input.",
)
@run_options
@target_options
def run(
    target: Target, command: tuple[str, ...], path: Path | None, follow: bool, dry_run: bool, **given: Any
) -> int:
    """Run a command as a Job, with limits, on the GPUs it requests.

    Prints the run's name and returns once the run is submitted. The run uses the files of the current folder as
    they are now. On a cluster they are sent to the pod. On a local cluster the run starts in a copy of the folder
    below .moorage, and its relative outputs are there. A notebook is run from top to bottom, in an image with
    Jupyter: moor run train.ipynb -p epochs=3; with --checkpoint it is stored there with its outputs.
    """
    base, namespace = _read_file(path) if path is not None else (None, None)
    request = request_from(base, given, command)
    if not request.command:
        hint = (
            f"write `command` in {path}, or type it"
            if path is not None
            else "moor run [OPTIONS] -- python train.py"
        )
        raise UsageError("no command given", hint=hint)
    target = replace(target, namespace=target.namespace or namespace)
    _note_misplaced(command)

    async def work(session: Session) -> int:
        return await submit(session, _of_notebook(request), follow=follow, dry_run=dry_run)

    return in_session(target, work)


def _note_misplaced(command: Sequence[str]) -> None:
    """Warn about options of `moor run` after the command: the command gets them.

    `--` before it turns the warning off.
    """
    context = click.get_current_context()
    if "--" in context.meta.get(TYPED, ()):
        return
    known = {option for parameter in context.command.params for option in parameter.opts}
    long = [word for word in command[1:] if word.startswith("--")]
    options = [word for word in long if word.partition("=")[0] in known]
    if options:
        console.note(
            f"after the command, {' and '.join(options)} is passed to {command[0]}, not to moor;"
            " options of moor run come before the command"
        )


@console.command(
    context_settings={"allow_interspersed_args": True},
    examples={
        "moor rerun train-7f3a": "the same again, under a new name",
        "moor rerun train-7f3a --memory 16Gi": "with more memory",
        "moor rerun train-7f3a --name long -- python train.py --epochs 90": "with another command",
    },
)
@click.argument("run", metavar="NAME")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@run_options
@target_options
def rerun(target: Target, run: str, command: tuple[str, ...], follow: bool, dry_run: bool, **given: Any) -> int:
    """Run the command of a run again, also of one that has ended. Options typed here replace those of that run.

    On a cluster, the files of the current directory are sent along. On a local cluster, it starts in a new copy of
    the code of that run.
    """

    async def work(session: Session) -> int:
        again = await read_request(session.api, session.namespace, run)
        request = request_from(replace(again.request, name=None), given, command)
        claim = (again.request.checkpoint or "").partition(":")[0]
        if command and claim and request.checkpoint == again.request.checkpoint:
            console.note(
                f"the command is another one, and continues on the checkpoint volume {claim} of run {run};"
                f" to start from the beginning: moor rerun {run} --checkpoint NEW-NAME -- COMMAND"
            )
        if again.branch and request.git == again.request.git:
            console.note(
                f"it uses the commit of run {run}: {request.git};"
                f" for the newest: moor rerun {run} --git {shlex.quote(again.branch)}"
            )
        with contextlib.suppress(OSError):
            os.chdir(again.directory or ".")
        code = again.code if again.code is not None and again.code.folder else None
        return await submit(session, _of_notebook(request), follow=follow, dry_run=dry_run, code=code)

    return in_session(target, work)


def _read_file(path: Path) -> tuple[RunRequest, str | None]:
    """Read a request and its namespace from a file. Raises UsageError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        options = parse_run_file(parse_yaml(data))
    except Problems as problems:
        raise Problems([(f"{path}: {message}", hint) for message, hint in problems.problems]) from problems
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    command = options.pop("command", ())
    return RunRequest(command=command, shown=command, **options), options.get("namespace")


def _of_notebook(request: RunRequest) -> RunRequest:
    """The same request, with a command that runs its notebook. Raises UsageError."""
    from moorage.cli.runnotebook import check_source, is_notebook, notebook_command

    typed = request.command
    if not is_notebook(typed):
        return request
    if request.working_dir is None and request.git is None:
        check_source(typed)
    name = request.name or generated_name((typed[0].removesuffix(".ipynb"),), token_hex(8), frozenset())
    return replace(request, command=notebook_command(typed), shown=typed, name=name)


async def submit(
    session: Session, request: RunRequest, *, follow: bool, dry_run: bool, code: Code | None = None
) -> int:
    """Submit a run, print its name, and follow it with `follow`; return the exit code.

    `code`: the stored code that it uses; None: that of the current directory.
    """
    from moorage.actions.submit import submit_run
    from moorage.cli.advice import advice_for

    request = replace(request, namespace=session.namespace)
    caller = read_caller(request.command, await session.user())
    submitted = await submit_run(
        session.api,
        request,
        caller,
        cluster_nodes=read_cluster_nodes(session.api, session.server, request.namespace),
        url=server_url(session.api),
        note=console.note,
        dry_run=dry_run,
        pack=partial(packed, Path(caller.cwd), stored=code),
        advise=partial(advice_for, session),
    )
    [job] = submitted.jobs
    name = str(job["metadata"]["name"])
    if dry_run:
        await _show_dry_run(session, submitted)
        return 0
    if (of_run := code_of(job)) is not None and of_run.outputs:
        console.say(f"the run starts in {of_run.outputs}: its relative outputs are there")
    if not follow:
        console.show(name)
        console.say(f"submitted; follow it with: moor logs -f {name}")
        return 0
    console.say(f"submitted {name}; Ctrl-C detaches; the run continues")
    from moorage.cli.logs import follow_to_the_end

    return await follow_to_the_end(session, name)


async def _show_dry_run(session: Session, submitted: Submitted) -> None:
    """Print the objects that would be created, and the node where its pod would start now, or why it would
    wait.
    """
    from moorage.actions.explain import pod_to_be

    plan, [job] = submitted.plan, submitted.jobs
    if plan is None or plan.job is None:
        return
    documents = [*plan.claims, *([plan.secret] if plan.secret else []), plan.job]
    console.show_text("---\n".join(console.as_yaml(_shown(document)) for document in documents), nl=False)
    pod, refused = await pod_to_be(session.api, job, session.namespace)
    seen = submitted.facts
    claims = [*seen.claims, *plan.claims] if seen.facts.claims is not None else None
    why = await _why(session, PodQuestion(pod=pod, claims=claims, refused=refused))
    console.say(*why.rstrip("\n").split("\n"))


async def _why(session: Session, question: PodQuestion) -> str:
    try:
        return (await session.server.ask(Explanation, "POST", "/api/v1/explain", body=question)).text
    except (NotReady, ServerError, Unauthorized, Forbidden) as error:
        return f"where it would land is not known: {error.message}"


def _shown(obj: dict[str, object]) -> dict[str, object]:
    """Return a manifest for display: a Secret without its values."""
    if obj.get("kind") != "Secret":
        return obj
    data = obj.get("data")
    return obj | {"data": {key: "" for key in data} if isinstance(data, dict) else {}}
