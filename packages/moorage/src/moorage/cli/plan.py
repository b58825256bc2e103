"""`moor plan`: nodes, time and cost of a map before it starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import DocumentError, Forbidden, MoorageError, QuantityError, UsageError

if TYPE_CHECKING:
    from moorage.decide.maps.durations import Durations, Sample
    from moorage.decide.maps.plan import Choice, MapPlan, Terms, Work
    from moorage.model.prices import NodeType, PriceSheet

MARGIN = 1.2  # on the largest memory that a sample was seen to use
OLD_DAYS = 180  # prices older than that are remarked on
ROWS = 20  # of the table; -o json has all

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@console.command(
    examples={
        "moor plan --items 150000 --seconds 4 --machines types.yaml": "nodes, time and money for a map",
        "moor plan --items 9000 --sample t.csv --machines types.yaml --deadline 6h": "for a deadline",
        "moor plan --items 9000 --seconds 4 --machines types.yaml --budget 50": "the fastest within a budget",
    }
)
@click.option("--items", type=int, required=True, help="Number of items.")
@click.option(
    "--seconds",
    default=None,
    help="Time of an item: 4, 250ms, uniform:1..60, lognormal:mean=4,p99=30, quantiles:p50=3,p99=30,p100=60.",
)
@click.option(
    "--sample", type=_FILE, default=None, help="Measured items: JSON, JSON lines, CSV or one number per line."
)
@click.option(
    "--from-run",
    default=None,
    metavar="nodes=N,machine=TYPE,time=TIME[,items=N]",
    help="Learn the time from an earlier run with busy nodes.",
)
@click.option("--longest", default=None, metavar="TIME", help="Longest time of an item.")
@click.option("--cpu", default="1", show_default=True, help="CPUs for each item.")
@click.option("--memory", default=None, help="Memory for each item (default: the sample's largest plus 20 %).")
@click.option("--gpus", type=click.IntRange(0), default=0, help="GPUs for each item.")
@click.option("--parallelism", type=int, default=None, help="Maximum number of items at the same time.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=TOKENS[:SHARE]",
    help="Named limit, and the share of an item's time it is held (1, or 25%). Repeatable.",
)
@click.option("--rate", type=float, default=None, help="Maximum number of items started per second.")
@click.option("--machines", type=_FILE, required=True, help="Machine types with prices: YAML, JSON or CSV.")
@click.option("--region", "regions", multiple=True, help="Only offers of this region. Repeatable.")
@click.option(
    "--market", type=click.Choice(["spot", "on-demand"]), default=None, help="Only offers of this market."
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="[REGION/][spot-]RESOURCE=N",
    help="Limit of your provider, such as us-west1/cpus=576. Repeatable.",
)
@click.option("--nodes", "nodes", type=int, multiple=True, help="Exactly this number of nodes. Repeatable.")
@click.option(
    "--deadline", default=None, metavar="TIME", help="The map must end within this time, in 9 of 10 cases."
)
@click.option("--budget", type=float, default=None, help="Maximum cost, in the file's currency.")
@click.option(
    "--node-start", default="0", metavar="TIME", help="Time until a node is ready, if its type gives none."
)
@click.option("--pod-start", default="0", metavar="TIME", help="Time until a pod can work: image pull, imports.")
@click.option("--release", default="0", metavar="TIME", help="Time from the last item until nodes are released.")
@click.option("--hold", default="0", metavar="TIME", help="Minimum time for which a node is billed.")
@click.option("--item-overhead", default="0", metavar="TIME", help="Extra time for each item: claim, report.")
@click.option(
    "--interruptions",
    type=float,
    default=0.0,
    help="Interruptions of a spot node per hour, if its type gives none.",
)
@click.option("--daemon-cpu", default="0", help="CPUs that DaemonSets use on each node.")
@click.option("--daemon-memory", default="0", help="Memory that DaemonSets use on each node.")
@click.option("--disk", default="0", help="Scratch disk for each pod.")
@click.option("--node-data", default="0", metavar="SIZE", help="Data fetched once for each node.")
@click.option("--pod-data", default="0", metavar="SIZE", help="Data fetched by each pod for itself.")
@click.option("--read", default="0", metavar="SIZE", help="Data read by each item.")
@click.option("--write", default="0", metavar="SIZE", help="Data written by each item.")
@click.option("--data-region", default="", help="Region of the data (default: that of the nodes).")
@click.option(
    "--from-cluster",
    is_flag=True,
    help="Only machine types of the cluster's nodes, without the requests of DaemonSets.",
)
@console.output_option
@target_options
def plan(target: Target, from_cluster: bool, output: str, **given: Any) -> int:
    """Estimate how many nodes a map needs, how long it takes, and its cost.

    The best choice is marked. With a deadline, it is the cheapest choice that meets it; with a budget, the fastest
    choice within it. With neither, it is the cheapest choice with the requested parallelism, or else the one with
    the least money × time. BINDS names the limit of a choice. Assumptions are printed on stderr. Exit code 1 if no
    choice meets the deadline or budget.
    """
    from moorage.decide.maps.plan import plan_map

    sheet = load_sheet(given["machines"])
    if from_cluster:
        sheet = in_session(target, lambda session: _of_cluster(session, sheet))
    sheet = _chosen(sheet, given["regions"], given["market"])
    work, terms, notes = request_of(sheet, given)
    map_plan = plan_map(work, sheet, terms)
    notes = (*map_plan.assumed, *notes, *_of_age(sheet))
    if output in ("json", "yaml"):
        console.print_document(as_document(map_plan, sheet, notes), output)
    elif output == "name":
        for choice in map_plan.choices:
            console.show(f"{choice.nodes}x{choice.offer.name}")
    elif map_plan.choices:
        for line in notes:
            console.note(line)
        for name, reason in map_plan.refused:
            console.note(f"{name} is left out: {reason}")
        console.show_text(render(map_plan, sheet.currency))
        if map_plan.best is not None:
            for bind in map_plan.best.binds:
                console.say(f"best: {bind.what}: {bind.why}")
    if map_plan.best is None:
        raise MoorageError(map_plan.impossible, hint=map_plan.hint or None)
    return 0


def render(map_plan: MapPlan, currency: str) -> str:
    """The plan as a table; * marks the best option."""
    from moorage.decide.maps.durations import say

    rows = [
        [
            "*" if choice is map_plan.best else " ",
            choice.offer.machine.name,
            choice.offer.region,
            choice.offer.market,
            f"{choice.nodes:,}",
            f"{choice.pods:,}",
            say(choice.seconds),
            say(choice.late_seconds),
            f"{choice.money:,.2f}",
            ", ".join(bind.what for bind in choice.binds),
            choice.misses,
        ]
        for choice in map_plan.choices[:ROWS]
    ]
    heads = [
        "",
        "MACHINE",
        "REGION",
        "MARKET",
        "NODES",
        "PODS",
        "TIME",
        "9 IN 10",
        currency.upper(),
        "BINDS",
        "MISSES",
    ]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return console.plain_table_for_terminal(heads, rows)


def as_document(map_plan: MapPlan, sheet: PriceSheet, notes: tuple[str, ...]) -> dict[str, Any]:
    """The plan as a JSON document: times in seconds, costs in `currency`."""

    def choice(choice: Choice) -> dict[str, Any]:
        return {
            "machine": choice.offer.machine.name,
            "region": choice.offer.region,
            "market": choice.offer.market,
            "nodes": choice.nodes,
            "pods": choice.pods,
            "podsPerNode": choice.pods_per_node,
            "startSeconds": round(choice.start_seconds, 3),
            "seconds": round(choice.seconds, 3),
            "lateSeconds": round(choice.late_seconds, 3),
            "billedSeconds": round(choice.billed_seconds, 3),
            "pricePerHour": choice.offer.price_per_hour,
            "money": round(choice.money, 4),
            "transferMoney": round(choice.transfer_money, 4),
            "interruptions": round(choice.interruptions, 3),
            "redoneSeconds": round(choice.redone_seconds, 1),
            "binds": [{"what": bind.what, "why": bind.why} for bind in choice.binds],
            "misses": choice.misses,
            "best": choice is map_plan.best,
        }

    return {
        "currency": sheet.currency,
        "best": choice(map_plan.best) if map_plan.best else None,
        "impossible": map_plan.impossible,
        "choices": [choice(option) for option in map_plan.choices],
        "refused": [{"offer": name, "reason": reason} for name, reason in map_plan.refused],
        "assumed": list(notes),
    }


def load_sheet(path: Path) -> PriceSheet:
    """Read a price file. Raises UsageError that names file and field."""
    import csv

    from moorage.model.prices import parse_rows, parse_sheet
    from moorage_kube.documents import parse_document

    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".csv":
            return parse_rows(csv.DictReader(text.splitlines()))
        sheet = parse_sheet(parse_document(text))
        if not sheet.offers:
            raise UsageError("the file has no machines: machines is empty")
        return sheet
    except (UnicodeDecodeError, DocumentError, csv.Error) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"{path} is neither YAML, JSON nor CSV: {first}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error


def request_of(sheet: PriceSheet, given: dict[str, Any]) -> tuple[Work, Terms, tuple[str, ...]]:
    """Return the parsed options, and the assumptions made. Raises UsageError naming the option."""
    from moorage.decide.maps.durations import constant
    from moorage.decide.maps.plan import Terms, Work
    from moorage.model.prices import parse_quota

    # memory: as given, else from the sample with a margin, else ignored; each assumption is noted
    notes: list[str] = []
    sample = _sample(given["sample"])
    memory = _amount(given, "memory") if given["memory"] else 0
    if not given["memory"] and sample is not None and sample.peak_memory:
        from moorage_kube.quantity import format_bytes

        memory = round(sample.peak_memory * MARGIN)
        notes.append(f"memory: {format_bytes(memory)} for each item, 20 % above the largest of the sample")
    elif not memory:
        notes.append("memory is ignored: none is given")
    # the CPU use of a sample is only noted
    cpu = _amount(given, "cpu")
    if sample is not None and sample.cpu is not None:
        notes.append(f"the sample used {sample.cpu:.2g} CPUs on average; {cpu / 1000:g} are requested")
    # the work
    work = Work(
        items=given["items"],
        durations=constant(1.0),
        cpu_milli=cpu,
        memory_bytes=memory,
        gpus=given["gpus"],
        disk_bytes=_amount(given, "disk") + _amount(given, "pod_data"),
        node_data_bytes=_amount(given, "node_data"),
        pod_data_bytes=_amount(given, "pod_data"),
        read_bytes=_amount(given, "read"),
        write_bytes=_amount(given, "write"),
        data_region=given["data_region"],
        item_overhead_seconds=_time(given, "item_overhead") or 0.0,
        parallelism=given["parallelism"],
        limits=tuple(parse_limit(text) for text in given["limits"]),
        rate_per_second=given["rate"],
    )
    # the cluster and the limits of the plan
    terms = Terms(
        node_start_seconds=_time(given, "node_start") or 0.0,
        pod_start_seconds=_time(given, "pod_start") or 0.0,
        release_seconds=_time(given, "release") or 0.0,
        hold_seconds=_time(given, "hold") or 0.0,
        interruptions_per_hour=given["interruptions"],
        daemon_cpu_milli=_amount(given, "daemon_cpu"),
        daemon_memory_bytes=_amount(given, "daemon_memory"),
        deadline_seconds=_time(given, "deadline"),
        budget=given["budget"],
        nodes=given["nodes"],
        quotas=tuple(parse_quota(text) for text in given["quotas"]),
    )
    # durations last: --from-run derives them from the work and the terms
    return replace(work, durations=_durations(sheet, given, sample, work, terms)), terms, tuple(notes)


def _durations(
    sheet: PriceSheet, given: dict[str, Any], sample: Sample | None, work: Work, terms: Terms
) -> Durations:
    from moorage.decide.maps.durations import from_samples, parse_durations, parse_seconds
    from moorage.decide.maps.plan import durations_of_run

    sources = [name for name in ("seconds", "sample", "from_run") if given[name] is not None]
    if len(sources) != 1:
        raise UsageError("the time of an item comes from one of --seconds, --sample and --from-run")
    longest = _time(given, "longest")
    if sample is not None:
        origin = f"as {len(sample.seconds):,} measured ones"
        return from_samples(sample.seconds, longest=longest, origin=origin)
    if given["seconds"] is not None:
        return parse_durations(given["seconds"], longest=longest)
    text: str = given["from_run"]
    terms_ = dict(part.partition("=")[::2] for part in text.split(","))
    try:
        nodes, machine, took = int(terms_.pop("nodes")), terms_.pop("machine"), parse_seconds(terms_.pop("time"))
        items = int(terms_.pop("items", work.items))
    except (KeyError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"invalid --from-run {text}: use nodes=N,machine=TYPE,time=TIME[,items=N]") from error
    if terms_:
        raise UsageError(f"unknown part {next(iter(terms_))!r} of --from-run: use nodes, machine, time and items")
    types = {offer.machine.name: offer.machine for offer in sheet.offers}
    if machine not in types:
        raise UsageError(
            f"machine type {machine!r} of --from-run not found; the price file has {', '.join(sorted(types))}"
        )
    return durations_of_run(nodes=nodes, machine=types[machine], seconds=took, items=items, work=work, terms=terms)


_LIMIT = re.compile(r"(?P<name>[^=\s]+)=(?P<tokens>\d+)(?::(?P<share>\d+(?:\.\d+)?)(?P<percent>%)?)?")


def parse_limit(text: str) -> Any:
    """Parse NAME=TOKENS[:SHARE]: mysql=100, mysql=100:0.25, mysql=100:25%. Raises UsageError."""
    from moorage.decide.maps.plan import Limit

    match = _LIMIT.fullmatch(text)
    if not match:
        raise UsageError(
            f"invalid --limit {text}: use NAME=TOKENS or NAME=TOKENS:SHARE", hint="mysql=100, or mysql=100:25%"
        )
    share = float(match["share"] or 1) / (100 if match["percent"] else 1)
    return Limit(name=match["name"], tokens=int(match["tokens"]), share=share)


def _sample(path: Path | None) -> Sample | None:
    from moorage.decide.maps.durations import read_sample

    if path is None:
        return None
    try:
        return read_sample(path.read_text(encoding="utf-8"))
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: {error}") from error


def _of_age(sheet: PriceSheet) -> list[str]:
    from moorage_kube.clock import SYSTEM

    days = (SYSTEM.now().date() - sheet.read_on).days if sheet.read_on else 0
    return [f"the prices are {days:,} days old; check that they are still right"] if days > OLD_DAYS else []


def _chosen(sheet: PriceSheet, regions: tuple[str, ...], market: str | None) -> PriceSheet:
    kept = tuple(
        offer
        for offer in sheet.offers
        if (not regions or offer.region in regions) and (market is None or offer.market == market)
    )
    if not kept:
        there = ", ".join(sorted({offer.name for offer in sheet.offers})) or "none"
        raise UsageError("no offer matches --region and --market", hint=f"offers: {there}")
    return replace(sheet, offers=kept)


async def _of_cluster(session: Session, sheet: PriceSheet) -> PriceSheet:
    """Return the sheet with the offers of the cluster only.

    Pods that the user may not list count as no daemons.
    """
    from moorage.model.prices import node_types, offers_of_cluster
    from moorage_kube.resources import NODES, PODS

    nodes = (await session.api.list(NODES)).items
    try:
        pods = (await session.api.list(PODS)).items
    except Forbidden:
        console.note("you may not list all pods, so daemons of the cluster's nodes are not known")
        pods = []
    types, untyped = node_types(nodes, pods)
    priced, unpriced = offers_of_cluster(sheet, types)
    if untyped:
        console.note(f"nodes without the label of an instance type are left out: {untyped} of {len(nodes)}")
    for name in unpriced:
        console.note(f"the price file has no price for {name}")
    if not priced.offers:
        raise UsageError(f"the price file has no price for any machine type of the cluster: {_types(types)}")
    return priced


def _types(types: tuple[NodeType, ...]) -> str:
    return (
        ", ".join(
            f"{node_type.name} in {node_type.region}" if node_type.region else node_type.name
            for node_type in types
        )
        or "it has none"
    )


def _time(given: dict[str, Any], name: str) -> float | None:
    from moorage.decide.maps.durations import parse_seconds

    if given[name] is None:
        return None
    try:
        return parse_seconds(given[name])
    except UsageError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error.message}", hint=error.hint) from error


def _amount(given: dict[str, Any], name: str) -> int:
    from moorage_kube.quantity import parse_count, parse_milli

    try:
        milli = parse_milli(given[name]) if name in ("cpu", "daemon_cpu") else parse_count(given[name])
    except QuantityError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error.message}", hint=error.hint) from error
    if milli < 0:
        raise UsageError(f"invalid --{name.replace('_', '-')} {given[name]}: use 0 or more")
    return milli
