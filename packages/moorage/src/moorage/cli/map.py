"""`moor map`: run one command or function over many items."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import ApiError
from moorage_kube.quantity import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moorage.client.maps import MapClient

STATES = ("waiting", "ready", "running", "done", "failed")
FAILED = "failed"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@console.group(
    examples={
        "moor map create squares --range 0:1000 -- python square.py {item}": "run a command once for each number",
        "moor map status squares": "how far it is",
        "moor map results squares -o squares.jsonl": "the results of the items",
    }
)
def map() -> None:
    """Run a command or a function once for each of many items, on many workers."""


name_argument = click.argument("name", shell_complete=complete("maps"))


def item_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for the source of items."""
    # reversed, so that the help shows them in this order: decorators apply from the last to the first
    for option in reversed(
        (
            click.option(
                "-f",
                "--file",
                "file",
                default=None,
                metavar="FILE",
                help="Items: text lines, .jsonl, .csv or .parquet; - for stdin.",
            ),
            click.option(
                "--glob", "pattern", default=None, help="Items: paths of matching files; ** matches all folders."
            ),
            click.option(
                "--range",
                "range_",
                default=None,
                metavar="A:B[:STEP]",
                help="Items: numbers from A to B - 1, as Python counts; 0:10 gives 0 to 9.",
            ),
            click.option(
                "--query",
                default=None,
                metavar="SQL",
                help="Items: rows of a query, or the values of a single column.",
            ),
            click.option(
                "--database",
                default=None,
                metavar="URL",
                help="Database of --query: sqlite:///file.db or postgresql://…",
            ),
            click.option(
                "--format",
                "format_",
                type=click.Choice(["lines", "jsonl", "csv", "parquet"]),
                default=None,
                help="Format of FILE (default: from its name).",
            ),
            click.option(
                "--item-seconds", default=None, metavar="FIELD", help="Field with the expected seconds of an item."
            ),
        )
    ):
        command = option(command)
    return command


@map.command(
    examples={
        "moor map create squares --range 0:1000 -- python square.py {item}": "one item for each number",
        "moor map create features -f dates.txt -- python make.py {item}": "one for each line of a file",
        "moor map create images --glob 'in/**/*.jpg' --function resize:main --wait": "a function for each file",
        "moor map create embed -f t.jsonl --gpus 1 --dry-run -- ./embed {item.id}": "only print it",
    },
    context_settings={"allow_interspersed_args": True},
)
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@item_options
@click.option(
    "--function",
    default=None,
    metavar="MODULE:NAME",
    help="Call this Python function for each item; a worker loads it once.",
)
@click.option("--parallelism", type=int, default=1, show_default=True, help="Maximum number of workers.")
@click.option(
    "--slots",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Items that a worker runs at the same time.",
)
@click.option("--cpu", default=None, help="CPUs of a worker, such as 4 or 500m (default: the tenant's, or 1).")
@click.option(
    "--memory", default=None, help="Memory limit of a worker, such as 8Gi (default: the tenant's, or 2Gi)."
)
@click.option("--gpus", type=int, default=0, help="GPUs of a worker.")
@click.option("--gpu-type", default=None, help="GPU type, such as a100; `moor gpus` lists them.")
@click.option(
    "--gpu-resource", default=None, help="Resource that counts as a GPU, such as nvidia.com/mig-1g.10gb."
)
@click.option(
    "--gpu-claim",
    default=None,
    metavar="TEMPLATE",
    help="Claim GPUs by this ResourceClaimTemplate, not by number.",
)
@click.option("--volume", "volumes", multiple=True, metavar="NAME:/PATH[:ro]", help="Mount a volume. Repeatable.")
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    metavar="[NAMESPACE/]NAME:/PATH",
    help="Mount a dataset, read-only. Repeatable.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable, or pass on your value. Repeatable.",
)
@click.option("--working-dir", default=None, metavar="NAME:PATH", help="Start in this folder of a volume.")
@click.option("--image", default=None, help="Container image; it needs python3.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="[VARIABLE=]NAME[:KEY]",
    help="Set variables from a secret: all its keys, or one. NAME:/PATH: mount it as files. Repeatable.",
)
@click.option("--host-env", is_flag=True, help="On a local cluster: run in this machine's environment.")
@click.option("--priority-class", default=None, help="PriorityClass of the workers.")
@click.option(
    "--queue", default=None, metavar="NAME", help="Queue of Kueue (a LocalQueue) that the workers wait in."
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME[=CAPACITY]",
    help="Named limit; each running item holds a token. Repeatable.",
)
@click.option("--rate", type=float, default=None, help="Maximum number of items started per second.")
@click.option(
    "--retries",
    type=click.IntRange(0, 1000),
    default=None,
    help="Retries of a failed item (default 3; with --function 0).",
)
@click.option("--time", default=None, metavar="TIME", help="Longest time of an item: 30s, 5m.")
@click.option("--max-memory", default=None, help="Retry an item that ran out of memory with more, up to this.")
@click.option("--idempotent", is_flag=True, help="Slow items may run twice; the first result counts.")
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, help="Priority of the map among others.")
@click.option("--spot", is_flag=True, help="Workers may run on preemptible nodes.")
@click.option(
    "--restart-limit", type=click.IntRange(0), default=None, help="Maximum number of lost workers to replace."
)
@click.option(
    "--preflight-read",
    multiple=True,
    metavar="PATH",
    help="Path that must be readable (default: volumes with :ro). Repeatable.",
)
@click.option(
    "--preflight-write",
    multiple=True,
    metavar="PATH",
    help="Path that must be writable (default: other volumes). Repeatable.",
)
@click.option(
    "--notify",
    multiple=True,
    metavar="TARGET",
    help="Send a notice of the first failure and of the end: https://… or mailto:ADDRESS. Repeatable.",
)
@click.option("--open", "open_", is_flag=True, help="More items will be added; see `moor map add`.")
@click.option(
    "--machines", type=_FILE, default=None, help="Machine types with prices, for a plan; see `moor plan`."
)
@click.option("--seconds", default=None, help="Time of an item, for the plan: 4, lognormal:mean=4,p99=30.")
@click.option(
    "--sample", type=click.IntRange(1), default=None, help="Run this number of items first, then plan the rest."
)
@click.option("--deadline", default=None, metavar="TIME", help="For the plan: the map must end within this time.")
@click.option("--budget", type=float, default=None, help="For the plan: the map must not cost more.")
@click.option("--yes", is_flag=True, help="Continue after --sample without asking.")
@click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar; exit with 1 if an item failed.")
@click.option("--dry-run", is_flag=True, help="Print the MapJob, and the plan; create nothing.")
@target_options
def create(target: Target, **given: Any) -> int:
    """Create a map: its workers, and its items from a file, a glob, a range or a query.

    In the command, {item} is the item, {item.FIELD} is a field of it, and {index} is its number. The command
    writes the item's result to the file $MOORAGE_RESULT.
    """
    from moorage.cli.mapcreate import create as made

    return in_session(target, lambda session: made(session, given))


@map.command(
    examples={
        "moor map add features -f more-dates.txt": "add the lines of a file",
        "moor map add features --range 1000:2000 --close": "add numbers; then the map takes no more items",
    }
)
@name_argument
@item_options
@click.option(
    "--resume", is_flag=True, help="Continue an interrupted upload of the same items; none is added twice."
)
@click.option("--close", is_flag=True, help="Close the map: it takes no more items.")
@target_options
def add(target: Target, name: str, resume: bool, close: bool, **given: Any) -> int:
    """Add items to an open map."""
    from moorage.cli.mapcreate import add as added

    return in_session(target, lambda session: added(session, name, given, resume=resume, close=close or resume))


@map.command(
    examples={
        "moor map status features": "items, rate and time left",
        "moor map status features --watch": "keep it up to date until the map ends",
    }
)
@name_argument
@click.option("-w", "--watch", is_flag=True, help="Update the output until the map ends.")
@console.document_option
@target_options
def status(target: Target, name: str, watch: bool, output: str) -> int:
    """Show the status of a map: items, rate, time left, workers, and the plan next to the real figures."""
    from moorage.cli.mapshow import status as shown

    return in_session(target, lambda session: shown(session, name, output=output, watch=watch))


@map.command(
    "list",
    examples={
        "moor map list": "the maps of your namespace",
        "moor map list -A": "the maps of all namespaces",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Maps of all namespaces.")
@console.output_option
@target_options
def list_(target: Target, all_namespaces: bool, output: str) -> int:
    """List maps and their states."""
    from moorage.cli.mapshow import listing

    return in_session(target, lambda session: listing(session, output=output, everywhere=all_namespaces))


@map.command(
    examples={
        "moor map items features --failed": "which items failed, and why",
        "moor map items features --state running": "the items that run now",
    }
)
@name_argument
@click.option("--failed", is_flag=True, help="Only items that failed and have no retries left.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="|".join(STATES),
    shell_complete=lambda *_: list(STATES),
    help="Only items in this state; running: a worker has it, failed: for good. Repeatable.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=None, help="Maximum number of items (default: 100 in a table)."
)
@console.output_option
@target_options
def items(target: Target, name: str, failed: bool, states: tuple[str, ...], limit: int | None, output: str) -> int:
    """List items: index, value, state, tries, time, and why they failed.

    INDEX is the number of the item in the map, from 0: {index} in the command. ITEM is its value: {item} in the
    command. TRIES counts how often it was started.
    """
    from moorage.cli.mapshow import items as shown

    wanted = dict.fromkeys((*states, *((FAILED,) if failed else ())))
    return in_session(target, lambda session: shown(session, name, states=wanted, limit=limit, output=output))


@map.command(
    examples={
        "moor map logs features": "the output of all items",
        "moor map logs features 42": "the output of the item with index 42",
        "moor map logs -f features": "follow it until the map ends",
    }
)
@name_argument
@click.argument("item", metavar="[INDEX]", type=click.IntRange(0), required=False)
@click.option("-f", "--follow", is_flag=True, help="Print new output until the map ends.")
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Start lines with the item's number (default: if there are several items).",
)
@target_options
def logs(target: Target, name: str, item: int | None, follow: bool, prefix: bool | None) -> int:
    """Print the output of all items or of one item, also after their pods are deleted.

    INDEX is the number of the item in the map, from 0: the first column of `moor map items`.
    """
    from moorage.cli.mapshow import logs as shown

    prefixed = item is None if prefix is None else prefix
    return in_session(target, lambda session: shown(session, name, item=item, follow=follow, prefix=prefixed))


@map.command(
    examples={
        "moor map results features": "print the results so far",
        "moor map results features -o features.parquet": "write them to a file",
    }
)
@name_argument
@click.option(
    "-o",
    "--output",
    default="-",
    show_default=True,
    metavar="FILE",
    help="File to write: .jsonl, .csv or .parquet; - for stdout.",
)
@target_options
def results(target: Target, name: str, output: str) -> int:
    """Write the results so far, in the order of the items, and print how many are missing.

    Exit code 1 if items are missing. A file is written completely or not at all.
    """
    from moorage.cli.mapresults import write

    return in_session(target, lambda session: write(session, name, output))


@map.command(
    examples={
        "moor map retry features": "run the failed items again",
        "moor map items features --failed": "see first why they failed",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("maps"))
@target_options
def retry(target: Target, names: tuple[str, ...]) -> int:
    """Run failed items again; finished items remain. A cancelled or paused map continues."""

    async def retry_map(session: Session, client: MapClient, name: str) -> str:
        count = await client.retry(session.namespace, name)
        return f"{name}: {counted(count, 'item')} will be run again"

    return _each(target, names, retry_map)


def _changing(state: str, outcome: str) -> Callable[[Session, MapClient, str], Awaitable[str]]:
    async def change_map(session: Session, client: MapClient, name: str) -> str:
        from moorage.api.maps import MapChange, MapState

        changed = await client.change(session.namespace, name, MapChange(state=MapState(state)))
        return f"{name} has already finished" if changed.is_finished else f"{name} {outcome}"

    return change_map


@map.command(
    examples={
        "moor map cancel features": "stop a map; its results remain",
        "moor map retry features": "continue it later",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("maps"))
@target_options
def cancel(target: Target, names: tuple[str, ...]) -> int:
    """Stop maps now. Results remain; `moor map retry` continues the map."""
    return _each(target, names, _changing("cancelled", "cancelled"))


@map.command(
    examples={
        "moor map pause features": "start no new items",
        "moor map resume features": "continue",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("maps"))
@target_options
def pause(target: Target, names: tuple[str, ...]) -> int:
    """Pause maps: no new items start, and running items finish."""
    return _each(target, names, _changing("paused", "paused"))


@map.command(
    examples={
        "moor map resume features": "continue a paused or cancelled map",
        "moor map status features --watch": "see it go on",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("maps"))
@target_options
def resume(target: Target, names: tuple[str, ...]) -> int:
    """Resume paused or cancelled maps."""
    return _each(target, names, _changing("running", "resumed"))


@map.command(
    examples={
        "moor map scale features 40": "up to 40 workers from now on, also while it runs",
        "moor map scale features 1": "release all but one; items are not lost",
    }
)
@name_argument
@click.argument("workers", type=click.IntRange(1, 10_000), metavar="WORKERS")
@target_options
def scale(target: Target, name: str, workers: int) -> int:
    """Change the maximum number of workers of a map, also while it runs.

    More start at once. When there are fewer, a worker ends its item within its grace period and leaves; another
    worker takes an item that needs longer. A map has no more workers than its items can use.
    """
    from moorage.actions import mapjobs

    async def work(session: Session) -> int:
        await mapjobs.set_workers(session.api, session.namespace, name, workers)
        console.show(f"{name} may have {counted(workers, 'worker')}")
        return 0

    return in_session(target, work)


@map.command(
    examples={
        "moor map delete features": "delete a map with its results",
        "moor map delete test-1 test-2": "delete several maps",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("maps"))
@target_options
def delete(target: Target, names: tuple[str, ...]) -> int:
    """Delete maps with their items, results and output."""
    from moorage.actions import mapjobs

    async def delete_map(session: Session, client: MapClient, name: str) -> str:
        forget = functools.partial(client.delete, session.namespace, name)
        await mapjobs.delete_map(session.api, session.namespace, name, forget=forget)
        return f"{name} deleted"

    return _each(target, names, delete_map)


@map.group(
    invoke_without_command=True,
    examples={
        "moor map limits": "which limits there are, and how many tokens are held",
        "moor map limits set database 20": "let 20 items at a time use the database",
    },
)
@console.output_option
@target_options
@click.pass_context
def limits(ctx: click.Context, target: Target, output: str) -> int:
    """List named limits: how many tokens there are, and how many are held."""
    if ctx.invoked_subcommand is not None:
        return 0

    from moorage.cli.mapshow import as_json

    async def work(session: Session) -> int:
        async with await session.maps() as client:
            named = await client.limits()
        console.print_listing(
            output,
            headers=("NAME", "CAPACITY", "HELD"),
            rows=lambda: [[limit.name, f"{limit.capacity:,}", f"{limit.held:,}"] for limit in named],
            items=[as_json(limit) for limit in named],
            names=[limit.name for limit in named],
            nothing="no limits; create one: moor map limits set mysql 100",
        )
        return 0

    return in_session(target, work)


@limits.command(
    "set",
    examples={
        "moor map limits set database 20": "let 20 items at a time use the database",
        "moor map limits set database 0": "start no new items that need it",
    },
)
@click.argument("name")
@click.argument("capacity", type=click.IntRange(0, 1_000_000))
@target_options
def set_(target: Target, name: str, capacity: int) -> int:
    """Set how many tokens a limit has, for all maps. Items that run keep theirs."""

    async def work(session: Session) -> int:
        async with await session.maps() as client:
            await client.set_limit(name, capacity)
        console.show(f"{name} has {capacity:,} tokens")
        return 0

    return in_session(target, work)


def _each(
    target: Target, names: Sequence[str], action: Callable[[Session, MapClient, str], Awaitable[str]]
) -> int:
    """Do the same for each map; report all failures at the end."""
    from moorage.cli.session import Problems

    async def work(session: Session) -> int:
        problems: list[tuple[str, str | None]] = []
        async with await session.maps() as client:
            for name in dict.fromkeys(names):
                try:
                    console.show(await action(session, client, name))
                except ApiError as error:
                    problems.append((error.message, error.hint))
        if problems:
            raised = Problems(problems)
            raised.exit_code = 1  # type: ignore[misc]
            raise raised
        return 0

    return in_session(target, work)
