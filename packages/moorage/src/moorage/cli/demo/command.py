"""`moor demo`: show the platform on this machine; `moor demo --down` removes it again."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import click

from moorage.cli import console
from moorage.cli.demo.runner import Place, Runner, stop_cluster
from moorage_kube.errors import MoorageError

NAME = "moorage-demo"


@console.command(
    examples={
        "moor demo": "show the platform; the cluster keeps running",
        "moor demo --open": "and open its web page in the browser",
        "moor demo --down": "stop the cluster, and remove all that the demo made",
    }
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"Folder of the demo: its cluster and files (default: ~/.local/share/{NAME}).",
)
@click.option("--open", "open_", is_flag=True, help="On a terminal: open the web page in the browser at the end.")
@click.option("--down", is_flag=True, help="Stop the demo's cluster, and remove all that the demo made.")
def demo(folder: Path | None, open_: bool, down: bool) -> int:
    """Show the platform on this machine: runs, a map, a dataset, a workspace, the web page. Under 3 minutes.

    The demo starts a separate cluster with simulated GPUs, on free ports. It does not need root, and it does
    not touch a cluster of `moor up`. The cluster keeps running at the end, so that you can try commands.

    Each demo starts afresh: it removes the cluster and the files of the demo before.
    """
    place = Place((folder or default_folder()).absolute())
    option = f" --folder {shlex.quote(str(place.folder))}" if folder else ""  # absolute: it is typed elsewhere
    if down:
        return _down(place)
    with place.held():
        if place.cluster.exists():
            console.say("removing the files of the previous demo")
            stop_cluster(place)
        place.prepare()
        runner = Runner(place)
        from moorage.cli.demo.script import perform

        try:
            asyncio.run(perform(runner))
        except KeyboardInterrupt:
            console.say("", "interrupted: stopping the demo's cluster")
            stop_cluster(place)
            console.say(f"stopped; start again: moor demo{option}   remove its files: moor demo --down{option}")
            raise
        except MoorageError:
            console.say(f"the demo failed; its cluster still runs. Remove it: moor demo --down{option}")
            raise
        _report(runner, option)
    if open_ and sys.stdout.isatty():
        from moorage.cli.browser import open_browser
        from moorage.cli.demo.script import page_address

        open_browser(page_address(place))
    return 0


def default_folder() -> Path:
    """The demo's default folder: `moorage-demo` in $XDG_DATA_HOME or ~/.local/share."""
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / NAME


def _down(place: Place) -> int:
    if not place.is_ours:
        raise MoorageError(
            f"no demo in {place.folder}",
            hint="make demo has it in the folder .moorage-demo of the clone: moor demo --down --folder FOLDER",
        )
    with place.held():
        if place.cluster.exists():
            stop_cluster(place)
        place.remove()
    console.say(f"stopped and removed: {place.folder}")
    return 0


def _report(runner: Runner, option: str) -> None:
    from moorage.cli.demo.script import next_steps, page_address

    runner.print("")
    runner.print(f"Done in {runner.elapsed:.0f} s. The cluster keeps running. Its page shows all of this, live:")
    runner.print(f"  {page_address(runner.place)}")
    runner.print(
        "  The address logs you in: keep it secret. Jobs first shows only your runs; choose Everybody's there."
    )
    runner.print("")
    runner.print("Try next, in this terminal:")
    for line in next_steps(runner.place, option=option):
        runner.print(f"  {line}")
