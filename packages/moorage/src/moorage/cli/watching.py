"""`--watch`: a listing that follows the cluster.

On a terminal each change redraws the table, on the alternate screen: it survives a new size of the window, and the
lines above remain untouched. Ctrl-C ends it with exit code 0, and the last table remains. In a pipe, changed rows
are appended, as by kubectl.

Objects are watched, not polled, where the command lists them itself and the user may list them. The server is
polled.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from moorage.cli import console
from moorage.cli.listing import Listing
from moorage.cli.session import Session
from moorage.cli.tables import SEPARATOR, text_width
from moorage_kube.errors import Forbidden, Unauthorized
from moorage_kube.informer import Informer
from moorage_kube.resources import Obj, Resource
from moorage_kube.texts import visible

TOGETHER_SECONDS = 0.2  # changes of this time are shown at once: a run's Job and pod change together
AGES_SECONDS = 5.0  # on a terminal ages are drawn again after this time
POLL_SECONDS = 2.0  # where nothing can be watched
VOLATILE = frozenset(  # columns that time alone changes
    {
        *("AGE", "RAN", "SINCE", "EXPECTED-UNTIL", "TIME-LEFT", "CHECKPOINT"),
        *("GPU-HOURS", "CPU-HOURS", "MEMORY-GIB-HOURS"),
    }
)
ENTER, LEAVE, REDRAW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H\x1b[J"


class Source(Struct, frozen=True):
    """The objects on which a listing depends."""

    resource: Resource
    namespace: str | None = None


async def follow(
    session: Session, sources: Sequence[Source], read: Callable[[], Awaitable[Listing]], *, output: str
) -> int:
    """Show a listing, and show it again after each change, until interrupted. Return the exit code.

    Without sources, the listing is read again every POLL_SECONDS.
    """
    screen = Screen() if output in console.TABLES and sys.stdout.isatty() else Appended(output)
    changed = asyncio.Event()
    listing = await read()
    watched = bool(sources) and await can_watch(session, sources)
    tasks = [asyncio.create_task(_watch(session, source, changed)) for source in sources if watched]
    try:
        screen.start()
        while True:
            screen.draw(listing, output)
            if await _wait(session, changed, None if not watched else AGES_SECONDS if screen.ages else 0.0):
                listing = await read()
    except asyncio.CancelledError:  # Ctrl-C
        return 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        screen.end(listing, output)


async def can_watch(session: Session, sources: Sequence[Source]) -> bool:
    """Whether the user may list all of these objects."""
    try:
        for source in sources:
            await session.api.list(source.resource, source.namespace, limit=1)
    except (Forbidden, Unauthorized):
        return False
    return True


class Screen:
    """Output to a terminal: the whole table is redrawn in place."""

    ages = True

    def start(self) -> None:
        console.raw(ENTER, nl=False)

    def draw(self, listing: Listing, output: str) -> None:
        lines = self._lines(listing, output)
        height = console.terminal_height()
        if len(lines) > height - 1:
            lines = [*lines[: height - 2], f"… {len(lines) - height + 2} more rows"]
        console.raw(REDRAW + "\n".join(lines), nl=False)

    def end(self, listing: Listing, output: str) -> None:
        console.raw(LEAVE + "\n".join(self._lines(listing, output)))

    def _lines(self, listing: Listing, output: str) -> list[str]:
        if not listing.items:
            return [listing.nothing]
        return console.table_for_terminal(listing.headers, listing.rows(), whole=output == "wide").split("\n")


class Appended:
    """Output to a pipe or a file: all rows once, then each changed row."""

    ages = False

    def __init__(self, output: str) -> None:
        self._output = output
        self._before: dict[str, list[str]] = {}
        self._items: dict[str, Mapping[str, Any]] = {}
        self._widths: list[int] = []

    def start(self) -> None:
        pass

    def draw(self, listing: Listing, output: str) -> None:
        rows, items = listing.rows_by_key(), listing.items_by_key()
        changed = changed_rows(listing.headers, self._before, rows)
        if output in console.TABLES and changed:
            new = not self._widths
            shown = [list(listing.headers), *changed.values()]
            widths = self._widths or [0] * len(listing.headers)
            self._widths = [max(old, *(text_width(row[at]) for row in shown)) for at, old in enumerate(widths)]
            for row in shown if new else shown[1:]:
                self._show(row)
        elif output not in console.TABLES:
            for key in (key for key in changed if key in items):
                if output == "name":
                    console.show(visible(key))
                else:
                    console.print_document([items[key]] if output == "yaml" else items[key], output)
        self._before, self._items = rows, items
        sys.stdout.flush()

    def end(self, listing: Listing, output: str) -> None:
        pass

    def _show(self, row: Sequence[str]) -> None:
        cells = [cell + " " * (width - text_width(cell)) for cell, width in zip(row, self._widths, strict=True)]
        console.show(SEPARATOR.join(cells).rstrip())


def changed_rows(
    headers: Sequence[str], before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return rows that are new, that differ in more than time, or that were deleted.

    Their state is then Deleted.
    """
    steady = [at for at, header in enumerate(headers) if header not in VOLATILE]
    state = next((at for at, header in enumerate(headers) if header in console.COLOURED_COLUMNS), None)
    changed = {
        key: list(row)
        for key, row in after.items()
        if key not in before or any(row[at] != before[key][at] for at in steady)
    }
    for key in before.keys() - after.keys():
        row = list(before[key])
        if state is not None:
            row[state] = "Deleted"
        changed[key] = row
    return changed


async def _watch(session: Session, source: Source, changed: asyncio.Event) -> None:
    informer = Informer(session.api, source.resource, source.namespace)

    def heard(before: Obj | None, after: Obj | None) -> None:
        del before, after
        changed.set()

    informer.on_change(heard)
    await informer.run()


async def _wait(session: Session, changed: asyncio.Event, ages_seconds: float | None) -> bool:
    """Wait until the listing is to be read again (True), or only its ages are to be drawn again (False).

    `ages_seconds` None: the listing is not watched, so it is read again after a while. 0: ages do not matter.
    """
    if ages_seconds is None:
        await session.clock.sleep(POLL_SECONDS)
        return True
    if ages_seconds:
        waiting = asyncio.ensure_future(changed.wait())
        ages = asyncio.ensure_future(session.clock.sleep(ages_seconds))
        try:
            await asyncio.wait((waiting, ages), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            ages.cancel()
        if not changed.is_set():
            return False
    else:
        await changed.wait()
    await session.clock.sleep(TOGETHER_SECONDS)
    changed.clear()
    return True
