"""`moor doctor nodes`: why the autoscaler keeps a node. `moor doctor install`: whether a cluster is ready."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import click

from moorage import __version__
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import ApiError, NotFound
from moorage_kube.resources import NODES, PDBS, PODS, Obj

if TYPE_CHECKING:
    from moorage.actions.installfacts import InstallApi


@console.group(
    examples={
        "moor doctor nodes": "why the autoscaler keeps each node",
        "moor doctor nodes node-1": "the same for one node",
        "moor doctor install": "whether the cluster is ready for Moorage, or its installation works",
    }
)
def doctor() -> None:
    """Find problems of a cluster, and print how to fix them."""


@doctor.command(
    examples={
        "moor doctor nodes": "why the autoscaler keeps each node",
        "moor doctor nodes node-1": "the same for one node",
        "moor doctor nodes --threshold 0.6": "with another threshold of use",
    }
)
@click.argument("node", required=False, shell_complete=complete("nodes"))
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True,
    help="The autoscaler's --scale-down-utilization-threshold.",
)  # fmt: skip
@click.option(
    "--gpu-threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True,
    help="The autoscaler's --scale-down-gpu-utilization-threshold, for nodes with GPUs.",
)  # fmt: skip
@console.document_option
@target_options
def nodes(target: Target, node: str | None, threshold: float, gpu_threshold: float, output: str) -> int:
    """Explain why the cluster autoscaler keeps a node.

    Names the pods that hold it and the rule each breaks, as the cluster autoscaler judges. Facts that only
    the autoscaler knows (minimum sizes of node groups, its waiting times) are not judged. Needs the right to
    list nodes and pods.
    """

    async def work(session: Session) -> int:
        from moorage.cli.doctortext import report_json, report_text
        from moorage.decide.tools.doctor import diagnose

        api = session.api
        all_nodes, pods, budgets = await asyncio.gather(api.list(NODES), api.list(PODS), _budgets(session))
        names = sorted(item["metadata"]["name"] for item in all_nodes.items)
        if node is not None and node not in names:
            raise NotFound(f"node {node!r} not found", hint=f"there are: {', '.join(names)}")
        reports = [
            report
            for report in diagnose(
                all_nodes.items, pods.items, budgets, threshold=threshold, gpu_threshold=gpu_threshold
            )
            if node in (None, report.node)
        ]
        if output == "text":
            for line in report_text(reports):
                console.show(line)
        else:
            console.print_document(report_json(reports), output)
        return 0

    return in_session(target, work)


async def _budgets(session: Session) -> list[Obj]:
    try:
        return (await session.api.list(PDBS)).items
    except ApiError as error:
        from moorage.present.forbidden import plain

        console.note(f"disruption budgets cannot be read, and are left out: {plain(error.message)}")
        return []


@doctor.command(
    examples={
        "moor doctor install": "before an installation, or after it",
        "moor doctor install --probe --image registry.example.org/moorage:0.1.0": "also try to pull the image",
        "moor doctor install -o json": "for programs",
    }
)
@click.option("--probe", is_flag=True, help="Start a pod of the image, to try whether nodes can pull it.")
@click.option("--image", metavar="IMAGE", help="Image of the services, for --probe.")
@click.option(
    "--image-pull-secret", "image_pull_secrets", multiple=True, metavar="NAME",
    help="Secret with which the pod of --probe pulls the image. May be repeated.",
)  # fmt: skip
@console.document_option
@target_options
def install(
    target: Target, probe: bool, image: str | None, image_pull_secrets: tuple[str, ...], output: str
) -> int:
    """Check a cluster before Moorage is installed, or an installation after it.

    Each check reports its result, the missing or wrong part, why it matters and how to fix it. The exit code is 1
    when something required is missing or wrong. Nothing is changed: the pod of --probe is deleted again.
    """
    if probe and not image:
        raise click.UsageError("--probe needs --image IMAGE")
    if (image or image_pull_secrets) and not probe:
        raise click.UsageError("--image and --image-pull-secret go with --probe")

    async def work(session: Session) -> int:
        # imported here, because `moor doctor nodes` does not need them
        from moorage.actions.imageprobe import probe_image
        from moorage.actions.installfacts import read_facts
        from moorage.cli.doctortext import verdicts_json, verdicts_text
        from moorage.client.logins import Known
        from moorage.decide.installcheck.checks import judge

        # the probe is optional: it creates a pod
        api = cast("InstallApi", session.api)
        pulled = (
            await probe_image(api, image, session.namespace, clock=session.clock, pull_secrets=image_pull_secrets)
            if image
            else None
        )
        # certificate authorities of logins, to check the public address as users do
        facts = await read_facts(
            api,
            clock=session.clock,
            cli_version=__version__,
            probe=pulled,
            authorities={login.url: login.ca for login in Known.read().logins.values()},
        )
        # the exit code is for scripts
        verdicts = judge(facts)
        if output == "text":
            for line in verdicts_text(facts, verdicts):
                console.show(line)
        else:
            console.print_document(verdicts_json(facts, verdicts), output)
        return int(any(verdict.failed for verdict in verdicts))

    return in_session(target, work)
