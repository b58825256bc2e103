"""`moor run`: a command becomes a guarded Job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from moorage.actions.around import read_around, read_caller
from moorage.api.explain import Explanation, PodQuestion
from moorage.apimachinery.resources import Obj
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs.names import generated_name
from moorage.decide.runs.request import RunPlan, RunRequest
from moorage.errors import (
    Forbidden,
    MethodNotAllowed,
    NotFound,
    NotReady,
    ServerError,
    Unauthorized,
)
from moorage.kube.serverurl import server_url

if TYPE_CHECKING:
    from moorage.actions.runfacts import RunFacts
    from moorage.actions.submit import Submitted


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example: moor run --gpus 1 --memory 8Gi --time 2h -- python train.py",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--name", default=None, help="Name of the run (default: made from the command).")
@click.option("--gpus", type=int, default=0, help="Number of GPUs.")
@click.option("--gpu-type", default=None, help="GPU type, such as a100; `moor gpus` lists them.")
@click.option(
    "--gpu-resource",
    default=None,
    help="What is counted as a GPU, such as a slice: nvidia.com/mig-1g.10gb, or mig-1g.10gb.",
)
@click.option("--cpu", default=None, help="CPUs, such as 4 or 500m (default: the tenant's, or 1).")
@click.option(
    "--memory",
    default=None,
    help="Memory limit, such as 8Gi (default: the tenant's, or 2Gi); `none`: no limit, and no restarts.",
)
@click.option("--time", "time_limit", default=None, help="Longest running time: 2h, 90m, 1d12h.")
@click.option("--volume", "volumes", multiple=True, metavar="NAME:/PATH[:ro]", help="Mount a volume. Repeatable.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="[NAMESPACE/]NAME:/PATH", help="Mount a dataset, read-only."
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable, or pass on your value. Repeatable.",
)
@click.option(
    "--checkpoint",
    default=None,
    metavar="NAME[:SIZE]",
    help="Keep $MOORAGE_CHECKPOINT_DIR on this volume, created if missing (10Gi); restarts reuse it.",
)
@click.option("--workdir", default=None, metavar="NAME:PATH", help="Start in this folder of a volume.")
@click.option("--image", default=None, help="Container image.")
@click.option(
    "--host-env", is_flag=True, help="On a local cluster: run an image's command in this machine's environment."
)
@click.option(
    "--grace", type=int, default=None, help="Seconds between SIGTERM and SIGKILL (30; 120 with --checkpoint)."
)
@click.option("--priority-class", default=None, help="PriorityClass of the pods.")
@click.option("--retries", type=int, default=0, help="Try again after a failure, but not after a kill for memory.")
@click.option(
    "--restart-limit", type=int, default=None, help="Restarts after preemption, drain or node loss (default 20)."
)
@click.option("--follow", is_flag=True, help="Print the logs, and exit with the job's exit code. Ctrl-C detaches.")
@click.option("--dry-run", is_flag=True, help="Print the manifest and the node it would run on; create nothing.")
@target_options
def run(
    target: Target,
    command: tuple[str, ...],
    name: str | None,
    gpus: int,
    gpu_type: str | None,
    gpu_resource: str | None,
    cpu: str | None,
    memory: str | None,
    time_limit: str | None,
    volumes: tuple[str, ...],
    datasets: tuple[str, ...],
    env: tuple[str, ...],
    checkpoint: str | None,
    workdir: str | None,
    image: str | None,
    host_env: bool,
    grace: int | None,
    priority_class: str | None,
    retries: int,
    restart_limit: int | None,
    follow: bool,
    dry_run: bool,
) -> int:
    """Run a command as a Job, with limits, on the GPUs it requests.

    Prints the run's name and returns once the run is submitted. A notebook is run from top to bottom, in an image
    with Jupyter: moor run train.ipynb -p epochs=3; with --checkpoint it is kept there with its outputs.
    """
    from moorage.cli.runnotebook import check_source, is_notebook, notebook_command

    typed = command
    if is_notebook(command):
        if workdir is None:
            check_source(command[0])
        command = notebook_command(command)
        name = name or generated_name((typed[0].removesuffix(".ipynb"),), token_hex(8), frozenset())
    request = RunRequest(
        command=command,
        shown=typed,
        name=name,
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_resource=gpu_resource,
        cpu=cpu,
        memory=memory,
        time=time_limit,
        volumes=volumes,
        datasets=datasets,
        env=env,
        checkpoint=checkpoint,
        workdir=workdir,
        image=image,
        host_env=host_env,
        grace=grace,
        priority_class=priority_class,
        retries=retries,
        restart_limit=restart_limit,
    )

    async def work(session: Session) -> int:
        return await _run(session, request, follow=follow, dry_run=dry_run)

    return in_session(target, work)


async def _run(session: Session, request: RunRequest, *, follow: bool, dry_run: bool) -> int:
    from moorage.actions.submit import submit_run

    request = replace(request, namespace=session.namespace)
    caller = read_caller(request.command, await session.user())
    submitted = await submit_run(
        session.api,
        request,
        caller,
        around=read_around(session.api, session.server, request.namespace),
        url=server_url(session.api),
        clock=session.clock,
        note=console.note,
        dry_run=dry_run,
        pack=lambda: _packed(caller.cwd),
    )
    [job] = submitted.jobs
    name = str(job["metadata"]["name"])
    if dry_run:
        await _show_dry_run(session, submitted)
        return 0
    if not follow:
        console.show(name)
        console.say(f"submitted; follow it with: moor logs -f {name}")
        return 0
    console.say(f"submitted {name}; Ctrl-C detaches; the run continues")
    from moorage.cli.logs import follow_to_the_end

    return await follow_to_the_end(session, name)


def _packed(directory: str) -> bytes | None:
    """The directory, as it goes into the pod; says which files do not."""
    from moorage.cli.shipping import pack

    shipment = pack(Path(directory))
    for path in shipment.left_out:
        console.note(f"{path} is not sent: its link leads outside {directory}")
    return shipment.archive


async def _show_dry_run(session: Session, submitted: Submitted) -> None:
    """Print what would be created, and say where its pod would land now, or why it would wait."""
    from moorage.actions.explain import pod_to_be

    plan, [job] = submitted.plan, submitted.jobs
    if plan is None or plan.job is None:
        return
    documents = [*plan.claims, *([plan.secret] if plan.secret else []), plan.job]
    console.show("---\n".join(console.as_yaml(_shown(document)) for document in documents), nl=False)
    pod, refused = await pod_to_be(session.api, job, session.namespace)
    console.say((await _why(session, pod, refused, submitted.facts, plan)).rstrip("\n"))


async def _why(session: Session, pod: Obj, refused: str, seen: RunFacts, plan: RunPlan) -> str:
    """The server's answer, for it knows the whole cluster and past runs; else what this user may read tells."""
    claims = [*seen.claims, *plan.claims] if seen.facts.claims is not None else None
    try:
        question = PodQuestion(pod=pod, claims=claims, refused=refused)
        return (await session.server.ask(Explanation, "POST", "/api/v1/explain", body=question)).text
    except (NotReady, ServerError, Unauthorized, Forbidden, NotFound, MethodNotAllowed):
        pass
    if seen.facts.nodes is None:
        return "where it would land is not known: you may not list this cluster's nodes, and no server answered"
    from moorage.decide.explain.explainer import explain
    from moorage.decide.explain.storage import storage_of
    from moorage.present.explanation import explain_text

    events = [{"reason": "FailedCreate", "message": refused}] if refused else []
    explanation = explain(
        pod,
        nodes=seen.nodes,
        pods=seen.pods,
        now=session.clock.now(),
        storage=storage_of(claims),
        events=events,
    )
    return explain_text(explanation)


def _shown(obj: dict[str, object]) -> dict[str, object]:
    """A manifest fit to be shown: of a Secret only the names of what it holds."""
    if obj.get("kind") != "Secret":
        return obj
    data = obj.get("data")
    return obj | {"data": {key: "" for key in data} if isinstance(data, dict) else {}}
