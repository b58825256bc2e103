"""`moor cost`: the cost of nodes and each user's share of it, two ways of billing, and the installed prices."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from moorage.api.costs import Compared, Costs, InstalledPrices, PriceSource
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.model.names import PRICES_CONFIGMAP, PRICES_KEY, SYSTEM_NAMESPACE
from moorage_kube.errors import DocumentError, NotFound, UsageError
from moorage_kube.moments import rfc3339
from moorage_kube.resources import CONFIGMAPS, Obj

BY = ("tenant", "user", "run", "namespace", "day", "node", "type")
COLUMNS = ("total", "allocated", "used", "unused", "not_measured", "reserved", "idle")
JOBS_SHOWN = 20
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_since_option = click.option(
    "--since",
    default="30d",
    show_default=True,
    help="Start of the period: 24h or 30d ago, a day such as 2026-01-31, or an RFC 3339 time.",
)
_until_option = click.option("--until", default=None, help="End of the period, written as --since (default: now).")


@console.group(
    examples={
        "moor cost prices prices.yaml": "install the prices of this cluster",
        "moor cost report --by tenant": "the money of the last 30 days",
        "moor cost compare --pod-billing autopilot.yaml": "the cost of another way of billing",
    }
)
def cost() -> None:
    """Show the cost of nodes, and the share of each user and team."""


@cost.command(
    examples={
        "moor cost report": "the last 30 days, by user",
        "moor cost report --by tenant --since 2026-04-01 --until 2026-05-01": "a month, by tenant",
        "moor cost report --by day -o csv": "a file for a spreadsheet",
        "moor cost report --prices other.yaml": "with other prices than the installed ones",
    }
)
@click.option(
    "--by", type=click.Choice(BY), default="user", show_default=True, help="Print one row for each of these."
)
@_since_option
@_until_option
@click.option("--time-zone", default="UTC", show_default=True, help="Time zone in which days begin.")
@click.option("--prices", type=_FILE, default=None, help="Price file to use (default: the installed one).")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "csv", "name"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@target_options
def report(target: Target, output: str, prices: Path | None, **asked: str | None) -> int:
    """Show the money of a period: used, allocated and idle.

    Pods share a node's price in proportion to their requests; the rest is IDLE. Of pods with GPUs, money is
    USED as far as their GPUs were busy, and UNUSED as far as they were not. NOT-MEASURED are pods without
    GPUs or samples. Rows add up to the total. Members see themselves and their team by name, and all others
    as (others).
    """
    query = {"by": asked["by"], "since": asked["since"], "until": asked["until"], "timeZone": asked["time_zone"]}
    query = {name: value for name, value in query.items() if value is not None}

    async def work(session: Session) -> int:
        if prices is None:
            answer = await session.server.ask(Costs, "GET", "/api/v1/cost", params=query)
        else:
            body = query | {"prices": read_prices(prices)}
            answer = await session.server.ask(Costs, "POST", "/api/v1/cost", body=body)
        show_costs(answer, output)
        return 0

    return in_session(target, work, asks_once=True)


@cost.command(
    examples={
        "moor cost compare --pod-billing autopilot.yaml": "the last 30 days, billed by nodes and by pods",
        "moor cost compare --node-billing gke.yaml --pod-billing autopilot.yaml": "with two price files",
        "moor cost compare --pod-billing autopilot.yaml --sample lab/nightly --times 30": "one run, scaled up",
        "moor cost compare --pod-billing autopilot.yaml --jobs jobs.yaml": "work that is described in a file",
    }
)
@click.option("--node-billing", type=_FILE, default=None, help="Price file of nodes (default: the installed one).")
@click.option("--pod-billing", type=_FILE, required=True, help="Price file with prices of pods.")
@click.option(
    "--sample",
    multiple=True,
    metavar="NAMESPACE/NAME",
    help="Only this run of the period, scaled up to a month. Repeatable.",
)
@click.option(
    "--times", type=click.FloatRange(0, min_open=True), default=1, show_default=True,
    help="How often each run of the sample runs in a month.",
)  # fmt: skip
@click.option(
    "--jobs", type=_FILE, default=None, help="File with a list of jobs: name, cpu, memory, seconds, times."
)
@_since_option
@_until_option
@console.output_option
@target_options
def compare(target: Target, output: str, **given: Any) -> int:
    """Compare the cost of nodes with that of a cluster that bills pods.

    Pods are billed by their requests, with the file's minimums, steps and defaults. Without --sample and --jobs,
    both are of the period. With them, the nodes' money is that of 30 days at the period's rate, and the work is
    counted by the month.
    """
    body: dict[str, Any] = {
        "since": given["since"],
        "podPrices": read_prices(given["pod_billing"]),
        "sample": list(given["sample"]),
        "times": given["times"],
    }
    if given["node_billing"]:
        body["nodePrices"] = read_prices(given["node_billing"])
    if given["until"]:
        body["until"] = given["until"]
    if given["jobs"]:
        body["jobs"] = _jobs(given["jobs"])

    async def work(session: Session) -> int:
        answer = await session.server.ask(Compared, "POST", "/api/v1/cost/compare", body=body)
        if output in console.TABLES:
            show_compared(answer)
        elif output == "name":
            for job in answer.jobs:
                console.show(job.name)
        else:
            console.print_document(msgspec.to_builtins(answer), output)
        return 0

    return in_session(target, work, asks_once=True)


@cost.command(
    examples={
        "moor cost prices": "print the installed prices",
        "moor cost prices prices.yaml": "check a file, and install it",
    }
)
@click.argument("file", type=_FILE, required=False)
@click.option("--dry-run", is_flag=True, help="Check the file and install nothing.")
@target_options
def prices(target: Target, file: Path | None, dry_run: bool) -> int:
    """Print the prices of this installation, or install a price file.

    Reports, pages and the SDK use the same prices. They are in the ConfigMap moorage-prices in moorage-system.
    """
    text = read_prices(file) if file is not None else ""

    async def work(session: Session) -> int:
        if file is None:
            installed = await session.server.ask(InstalledPrices, "GET", "/api/v1/cost/prices")
            if not installed.text:
                raise NotFound("prices are not installed", hint="install them: moor cost prices FILE")
            console.show_text(installed.text, nl=not installed.text.endswith("\n"))
            return 0
        if not dry_run:
            await install(session, text)
        console.say(f"{'valid' if dry_run else 'installed'}: {_source(_source_in(text))}")
        return 0

    return in_session(target, work, asks_once=file is None)


async def install(session: Session, text: str) -> None:
    """Write the price ConfigMap. Raises Forbidden if the user may not."""
    from moorage_kube.changes import write_as_read

    labels = {"app.kubernetes.io/part-of": "moorage"}

    async def read() -> Any:
        try:
            installed: Obj | None = await session.api.get(CONFIGMAPS, PRICES_CONFIGMAP, SYSTEM_NAMESPACE)
        except NotFound:
            installed = None

        async def write() -> Obj:
            if installed is not None:
                return await session.api.update(CONFIGMAPS, {**installed, "data": {PRICES_KEY: text}})
            meta = {"name": PRICES_CONFIGMAP, "namespace": SYSTEM_NAMESPACE, "labels": labels}
            obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {PRICES_KEY: text}}
            return await session.api.create(CONFIGMAPS, obj, SYSTEM_NAMESPACE)

        return write

    await write_as_read(read, clock=session.clock)


def read_prices(path: Path) -> str:
    """Read and check a price file; return its text. Raises UsageError that names file and field."""
    try:
        text = path.read_text(encoding="utf-8")
        _source_in(text)
    except (UnicodeDecodeError, DocumentError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(f"{path} is neither YAML nor JSON: {first}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    return text


def show_costs(answer: Costs, output: str) -> None:
    """Print a report on stdout, with the source of prices and remarks on stderr."""
    rows = [*answer.rows, *([answer.total] if answer.total else [])]
    cells = [
        [row.name, *(getattr(row, column) for column in COLUMNS), f"{row.gpu_hours:.2f}", str(row.pods)]
        for row in rows
    ]
    heads = [answer.by.upper(), *(column.upper().replace("_", "-") for column in COLUMNS), "GPU-HOURS", "PODS"]
    if output in ("json", "yaml"):
        console.print_document(msgspec.to_builtins(answer), output)
    elif output == "csv":
        console.show_text(_csv(["name", *COLUMNS, "gpu_hours", "pods", "currency"],
                          [[*row, answer.prices.currency] for row in cells]), nl=False)  # fmt: skip
    elif output == "name":
        for row in answer.rows:
            console.show(row.name)
    else:
        console.say(f"{rfc3339(answer.since)} to {rfc3339(answer.until)}, {_source(answer.prices)}")
        console.show_text(console.plain_table_for_terminal(heads, cells))
    for unpriced in answer.unpriced:
        console.note(f"no price for {unpriced.name}: {unpriced.node_hours:.2f} node-hours are not counted")
    for text in answer.notes:
        console.note(text)


def show_compared(answer: Compared) -> None:
    """Print both sums, and the most expensive work."""
    what = "a month of 30 days" if answer.is_month else f"{rfc3339(answer.since)} to {rfc3339(answer.until)}"
    saved = "" if answer.saved_percent is None else f"{answer.saved_percent:+.1f} %"
    console.say(f"nodes: {_source(answer.node_prices)}")
    console.say(f"pods: {_source(answer.pod_prices)}")
    heads = ["FOR", "NODES", "OF-THIS-IDLE", "PODS", "SAVED-BY-PODS"]
    console.show_text(
        console.plain_table_for_terminal(heads, [[what, answer.nodes, answer.idle, answer.pods, saved]])
    )
    if answer.jobs:
        rows = [[job.name, f"{job.times:g}", job.money] for job in answer.jobs[:JOBS_SHOWN]]
        console.show("")
        console.show_text(console.plain_table_for_terminal(["BY-PODS", "TIMES", "MONEY"], rows))
    for name in answer.unpriced:
        console.note(f"no price for {name}: these nodes are not counted")
    for text in answer.notes:
        console.note(text)


def _source(prices: PriceSource) -> str:
    where = prices.source or "prices without a source"
    return f"{prices.currency} by {where}{f' of {prices.date}' if prices.date else ''}"


def _source_in(text: str) -> PriceSource:
    from moorage.model.prices import parse_sheet
    from moorage_kube.documents import parse_document

    sheet = parse_sheet(parse_document(text))
    date = sheet.read_on.isoformat() if sheet.read_on else ""
    return PriceSource(source=sheet.source, date=date, currency=sheet.currency)


def _jobs(path: Path) -> list[dict[str, Any]]:
    """Return the list of jobs in a file, unchanged; quantities may be numbers, as in a price file.

    Raises UsageError.
    """
    from moorage.api.costs import CompareJob
    from moorage_kube.documents import parse_document

    try:
        rows = msgspec.convert(parse_document(path.read_text(encoding="utf-8")), list[dict[str, Any]])
        jobs = msgspec.convert([_with_texts(row) for row in rows], list[CompareJob], strict=False)
    except (UnicodeDecodeError, DocumentError, msgspec.ValidationError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"{path} is not a list of jobs: {first}",
            hint="- {name: nightly, cpu: 4, memory: 8Gi, seconds: 3600, times: 30}",
        ) from error
    return [msgspec.to_builtins(job) for job in jobs]


def _with_texts(job: dict[str, Any]) -> dict[str, Any]:
    texts = {key: str(job[key]) for key in ("cpu", "memory", "storage") if isinstance(job.get(key), (int, float))}
    return job | texts


def _csv(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([heads, *rows])
    return text.getvalue()
