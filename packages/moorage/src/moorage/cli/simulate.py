"""`moor simulate`: compare packing policies for the workload of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from moorage.cli import console
from moorage.cli.console import output_option, plain_table_for_terminal, print_document, say, show, show_text
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.client.files import replacing
from moorage_kube.errors import UsageError

if TYPE_CHECKING:
    from moorage.extender.replay import Handler
    from moorage.extender.simulation import Churned, Filled, Scheduler, TraceNode, TracePod

LEAST_HISTORY = 20  # pods with GPUs
POLICY_NAMES = ("pack", "fragmentation", "spread", "none")


class Outcome(Struct, frozen=True, kw_only=True):
    """The results of one policy, one entry per seed."""

    policy: str
    fills: tuple[Filled, ...]
    churns: tuple[Churned, ...]

    def as_dict(self) -> dict[str, object]:
        """The means over all seeds; shares from 0 to 1, pods per seed."""
        return {
            "policy": self.policy,
            "seeds": len(self.fills),
            "allocated": _mean([fill.allocated for fill in self.fills]),
            "allocatedBySeed": [round(fill.allocated, 6) for fill in self.fills],
            "largeRefused": _mean([fill.large_refused for fill in self.fills]),
            "largeRefusedBySeed": [fill.large_refused for fill in self.fills],
            "large": _mean([fill.large for fill in self.fills]),
            "fragmented": _mean([fill.fragmented for fill in self.fills]),
            "churnRefused": _mean([churn.refused for churn in self.churns]),
            "churnRefusedBySeed": [round(churn.refused, 6) for churn in self.churns],
            "churnBound": _mean([churn.bound for churn in self.churns]),
            "churnLargeRefused": _mean([churn.large_refused for churn in self.churns]),
            "churnLarge": _mean([churn.large for churn in self.churns]),
            "curve": [[round(x, 4), round(y, 4)] for x, y in mean_curve([fill.curve for fill in self.fills])],
        }


@console.command(
    examples={
        "moor simulate --nodes nodes.csv --pods pods.csv": "compare all policies on a trace",
        "moor simulate --history --policy pack --policy spread": "compare two on this cluster's past",
        "moor simulate --history --plot packing.svg": "draw the comparison",
    }
)
@click.option(
    "--nodes",
    "nodes_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV of nodes: sn, cpu_milli, memory_mib, gpu, model.",
)
@click.option(
    "--pods",
    "pods_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV of pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if known, gpu_spec.",
)
@click.option("--history", is_flag=True, help="Use the cluster's own nodes and past pods instead of files.")
@click.option(
    "--usage-db",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The server's file of past use, for --history.  [default: usage.db of the local cluster's data folder]",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(POLICY_NAMES),
    multiple=True,
    help="Policy to try; repeatable.  [default: all]",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=5, show_default=True, help="Runs of each policy, to average."
)
@click.option(
    "--churn-load",
    type=click.FloatRange(0.05, 2.0),
    default=0.95,
    show_default=True,
    help="GPUs asked for per GPU while pods come and go.",
)
@click.option("--whole-gpus", is_flag=True, help="Leave out pods without GPUs or with a share of a GPU.")
@click.option(
    "--default-scores/--no-default-scores",
    default=True,
    show_default=True,
    help="The scheduler's own resource scores, on in the configuration we ship, off in its GPU profile.",
)
@click.option(
    "--weight",
    type=click.IntRange(1, 100000),
    default=5,
    show_default=True,
    help="Weight of the extender's score.",
)
@click.option(
    "--handler",
    is_flag=True,
    help="Get every answer from the extender's own HTTP handler, as bytes. Slower, with the same outcome; for "
    "traces of whole devices.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot to this file, as SVG.")
@output_option
@target_options
def simulate(
    target: Target,
    nodes_file: Path | None,
    pods_file: Path | None,
    history: bool,
    usage_db: Path | None,
    policies: tuple[str, ...],
    seeds: int,
    churn_load: float,
    whole_gpus: bool,
    default_scores: bool,
    weight: int,
    handler: bool,
    plot: Path | None,
    output: str,
) -> None:
    """Replay a trace under each packing policy, and compare.

    The extender's own code scores the nodes; kube-scheduler's node sampling, random ties and scores are simulated.
    Pods request GPUs, and release none, until the requests reach the number of GPUs. ALLOCATED is the share of
    GPUs in use then; FRAGMENTED is the share that is free but of no use to the trace. CHURN REFUSED is the share
    of demand refused while pods come and go. "no policy beyond" is the share refused if all GPUs were on one node.
    """
    from moorage.extender.simulation import Scheduler, bound

    # check the options
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"invalid --plot {plot.name}: use a name that ends in .svg")
    if history and (nodes_file is not None or pods_file is not None):
        raise UsageError("--history takes nodes and pods from the cluster", hint="leave out --nodes and --pods")
    # the trace: from the cluster's history, or from files
    if history:
        nodes, pods = recall(target, usage_db)
        if whole_gpus:
            pods = [pod for pod in pods if pod.devices]
    elif nodes_file is None or pods_file is None:
        raise UsageError("load missing", hint="give --nodes FILE and --pods FILE, or --history")
    else:
        nodes, pods = load(nodes_file, pods_file, whole=whole_gpus)
    scheduler = Scheduler(weight=weight, default_scores=default_scores)
    # refuse pods that the extender cannot represent before the simulation starts
    if handler:
        from moorage.extender.replay import make_pod

        for pod in pods:
            make_pod("", pod)  # says which asks for a share of a GPU
    # every policy gets the same seeds
    outcomes = run(
        nodes,
        pods,
        policies=policies or POLICY_NAMES,
        seeds=seeds,
        load_=churn_load,
        scheduler=scheduler,
        handler=handler,
    )
    # the bound shows the loss that every policy has
    most = bound(nodes, pods)
    if plot is not None:
        curves = {outcome.policy: mean_curve([fill.curve for fill in outcome.fills]) for outcome in outcomes}
        with replacing(plot) as file:
            file.write(draw(curves, most).encode())
        say(f"plot written to {plot}")
    # documents are for programs; the table for people
    documents = [outcome.as_dict() | {"allocatedBound": most} for outcome in outcomes]
    if output in ("json", "yaml"):
        print_document(documents, output)
        return
    if output == "name":
        for outcome in outcomes:
            show(outcome.policy)
        return
    gpus = sum(node.gpus for node in nodes)
    say(f"{len(nodes)} nodes with {gpus} GPUs, {len(pods)} pods, {seeds} seeds, churn at {churn_load:g}")
    show_text(render(outcomes, most))


def load(nodes_file: Path, pods_file: Path, *, whole: bool) -> tuple[list[TraceNode], list[TracePod]]:
    """Read a trace. Raises UsageError that names file and line."""
    import csv

    from moorage.extender.simulation import read_nodes, read_pods

    def rows(path: Path) -> list[dict[str, str | None]]:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{path} is not a CSV file: {error}") from error

    try:
        nodes = read_nodes(rows(nodes_file))
    except UsageError as error:
        raise UsageError(f"{nodes_file}: {error.message}") from error
    try:
        pods = read_pods(rows(pods_file), whole=whole)
    except UsageError as error:
        raise UsageError(f"{pods_file}: {error.message}") from error
    if not any(node.gpus for node in nodes):
        raise UsageError(f"{nodes_file} has no node with GPUs")
    if not any(pod.demand for pod in pods):
        raise UsageError(
            f"{pods_file} has no pod that asks for GPUs", hint="leave out --whole-gpus" if whole else None
        )
    return nodes, pods


def recall(target: Target, usage_db: Path | None) -> tuple[list[TraceNode], list[TracePod]]:
    """The cluster's nodes, and the pods in its usage history. Raises UsageError if there are too few."""
    from datetime import UTC, datetime

    from moorage.client.datafolder import default_folder
    from moorage.decide.usage.gpus import gpu_type
    from moorage.extender.simulation import node_of, pods_of
    from moorage.usage.store import UsageStore
    from moorage_kube.meta import labels_of
    from moorage_kube.resources import NODES
    from moorage_kube.scheduling import parse_node

    path = usage_db if usage_db is not None else (target.data or default_folder()) / "usage.db"
    if not path.exists():
        raise UsageError(
            f"file {path} not found",
            hint="copy usage.db from the server's data folder and give it with --usage-db",
        )
    store = UsageStore(path)
    try:
        begin, end = (datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 9999))
        pods = pods_of(store.overlapping(begin, end))
    finally:
        store.close()
    known = sum(1 for pod in pods if pod.devices)
    if known < LEAST_HISTORY:
        raise UsageError(
            f"{path} has {known} pods with GPUs; a replay needs at least {LEAST_HISTORY}",
            hint="try again after more runs, or describe the expected load with --nodes and --pods",
        )

    async def work(session: Session) -> list[TraceNode]:
        listed = (await session.api.list(NODES)).items
        return [node_of(parse_node(node), gpu_type(labels_of(node))) for node in listed]

    nodes = in_session(target, work)
    if not any(node.gpus for node in nodes):
        raise UsageError("this cluster has no node with GPUs")
    return nodes, pods


def run(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    *,
    policies: Sequence[str],
    seeds: int,
    load_: float,
    scheduler: Scheduler,
    first_seed: int = 42,
    handler: bool = False,
) -> list[Outcome]:
    """Run all simulations on all cores of the machine. The same seeds give the same outcome."""
    import os
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    chosen = list(dict.fromkeys(policies))
    jobs = [
        (policy, seed, load_, scheduler, handler)
        for policy in chosen
        for seed in range(first_seed, first_seed + seeds)
    ]
    cores = min(len(os.sched_getaffinity(0)), len(jobs))
    with ProcessPoolExecutor(
        cores, mp_context=get_context("spawn"), initializer=_begin, initargs=(nodes, pods)
    ) as pool:
        results = list(pool.map(_one, jobs))
    return [
        Outcome(
            policy=policy,
            fills=tuple(filled for filled, _ in results[at * seeds : (at + 1) * seeds]),
            churns=tuple(churned for _, churned in results[at * seeds : (at + 1) * seeds]),
        )
        for at, policy in enumerate(chosen)
    ]


_TRACE: list[tuple[Sequence[TraceNode], Sequence[TracePod]]] = []  # of a worker process, set once


def _begin(nodes: Sequence[TraceNode], pods: Sequence[TracePod]) -> None:
    _TRACE[:] = [(nodes, pods)]


def _one(job: tuple[str, int, float, Scheduler, bool]) -> tuple[Filled, Churned]:
    from moorage.extender.simulation import churn, fill

    policy, seed, load_, scheduler, handler = job
    nodes, pods = _TRACE[0]

    def extender() -> Handler | None:
        if not handler:
            return None
        from moorage.extender.replay import Handler

        return Handler(nodes, policy)

    return (
        fill(nodes, pods, policy=policy, seed=seed, scheduler=scheduler, extender=extender()),
        churn(nodes, pods, policy=policy, seed=seed, scheduler=scheduler, load=load_, extender=extender()),
    )


def render(outcomes: Sequence[Outcome], most: float) -> str:
    """The table of `moor simulate`."""
    rows = []
    for outcome in outcomes:
        means = outcome.as_dict()
        rows.append(
            [
                outcome.policy,
                f"{100 * _mean([fill.allocated for fill in outcome.fills]):.2f} %",
                f"{means['largeRefused']:g} of {means['large']:g}",
                f"{100 * _mean([fill.fragmented for fill in outcome.fills]):.2f} %",
                f"{100 * _mean([churn.refused for churn in outcome.churns]):.3f} %",
                f"{means['churnLargeRefused']:g} of {means['churnLarge']:g}",
            ]
        )
    least = _mean([churn.bound for churn in outcomes[0].churns]) if outcomes else 0.0
    rows.append(["(no policy beyond)", f"{100 * most:.2f} %", "", "", f"{100 * least:.3f} %", ""])
    return plain_table_for_terminal(
        ["POLICY", "ALLOCATED", "8-GPU REFUSED", "FRAGMENTED", "CHURN REFUSED", "8-GPU REFUSED"], rows
    )


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of several curves, point by point, up to the length of the shortest curve."""
    return [
        (_mean([point[0] for point in points]), _mean([point[1] for point in points]))
        for points in zip(*curves, strict=False)
    ]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6) if values else 0.0


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # distinct for colour-blind readers (Okabe and Ito)
WIDTH, HEIGHT, MARGIN = 640, 420, 60  # pixels


def draw(curves: Mapping[str, Sequence[tuple[float, float]]], most: float) -> str:
    """Draw allocation over arrivals as SVG. The axes begin shortly before the curves differ."""
    # begin the axes shortly before the curves differ
    parting = min((x for curve in curves.values() for x, y in curve if x - y > 0.005), default=1.0)
    low = max(0.0, min(0.9, int(parting * 20) / 20 - 0.05))
    step = next(width for width in (0.01, 0.02, 0.05, 0.1, 0.2) if (1 - low) / width < 6)

    # transform fractions to pixels; y grows downwards in SVG
    def x(value: float) -> float:
        return MARGIN + (value - low) / (1 - low) * (WIDTH - 2 * MARGIN)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (value - low) / (1 - low) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    # grid with its labels
    for tick in (1 - at * step for at in range(int((1 - low) / step + 1e-6) + 1)):
        parts.append(
            f'<path d="M{x(tick):.1f} {y(low):.1f}V{y(1):.1f}M{x(low):.1f} {y(tick):.1f}H{x(1):.1f}" '
            'stroke="#ddd"/>'
            f'<text x="{x(tick):.1f}" y="{y(low) + 18:.1f}" text-anchor="middle">{tick:.0%}</text>'
            f'<text x="{x(low) - 8:.1f}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.0%}</text>'
        )
    # the bound of all policies
    parts.append(
        f'<path d="M{x(low):.1f} {y(max(low, most)):.1f}H{x(1):.1f}" stroke="#000" stroke-dasharray="4 3"/>'
        f'<text x="{x(low) + 4:.1f}" y="{y(max(low, most)) - 6:.1f}">no policy beyond {most:.1%}</text>'
    )
    # a curve and an entry of the key per policy
    for at, (policy, curve) in enumerate(curves.items()):
        colour = COLOURS[at % len(COLOURS)]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve if a >= low and b >= low)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        key_x, key_y = WIDTH - MARGIN - 150, HEIGHT - MARGIN - 20 - 18 * (len(curves) - 1 - at)
        parts.append(
            f'<path d="M{key_x} {key_y - 4}h20" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{key_x + 26}" y="{key_y}">{policy}</text>'
        )
    # titles of the axes
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">GPUs asked for, of all</text>'
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GPUs in use, of all</text>'
        "</svg>\n"
    )
    return "\n".join(parts)
