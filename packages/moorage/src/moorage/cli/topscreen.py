"""`moor top` on a terminal: the present use of every pod, refreshed as `top` does for processes.

Keys: q quits; g, u, c, m sort by GPUs, utilisation, CPU, memory; o by owner. Any other key refreshes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from moorage.api.use import PodNow, UseNow
from moorage.cli import console
from moorage.cli.session import Session
from moorage.cli.watching import ENTER, LEAVE, REDRAW
from moorage.present.sizes import bytes_text
from moorage_kube.errors import MoorageError
from moorage_kube.moments import format_duration
from moorage_kube.texts import as_lines, visible

DRAW_SECONDS = 5.0  # readings are made every 30 s
HEADERS = ("OWNER", "WHAT", "KIND", "NODE", "GPUS", "GPU", "CPU", "MEMORY", "GPU-MEMORY", "POWER")
SORTS: dict[str, tuple[str, Callable[[PodNow], Any]]] = {
    "g": ("GPUs", lambda pod: (-pod.gpus, -(pod.gpu_percent or 0.0))),
    "u": ("utilisation", lambda pod: (-(pod.gpu_percent if pod.gpu_percent is not None else -1.0), -pod.gpus)),
    "c": ("CPU", lambda pod: -(pod.cpu or 0.0)),
    "m": ("memory", lambda pod: -(pod.memory_bytes or 0)),
    "o": ("owner", lambda pod: (pod.owner, -pod.gpus)),
}
QUIT = frozenset({"q", "Q", "\x03", "\x04", ""})


def frame(use: UseNow, *, sort: str, width: int | None, height: int) -> str:
    """Return the text for a terminal of this size."""
    pods = sorted(use.pods, key=lambda pod: (SORTS[sort][1](pod), pod.namespace, pod.pod))
    room = max(1, height - 4)
    shown, hidden = pods[:room], len(pods) - room
    lines = [
        _summary(use),
        f"sorted by {SORTS[sort][0]}; keys: q quit, sort by g GPUs, u utilisation, c CPU, m memory, o owner",
    ]
    lines = [line if width is None else line[:width] for line in lines]
    if not pods:
        return as_lines([*lines, "", "nothing that is measured runs now"])
    table = console.table_for_terminal(HEADERS, [_row(pod) for pod in shown]).split("\n")
    if hidden > 0:
        table = [*table[:-1], f"… {hidden + 1} more"]
    return "\n".join([as_lines(lines), *table])


async def follow_use(session: Session) -> int:
    """Draw until q or Ctrl-C. Raises MoorageError if the first request to the server fails."""
    use, sort, note = await _read(session), "u", ""
    with _keys() as keys:
        console.raw(ENTER, nl=False)
        try:
            while True:
                text = frame(
                    use, sort=sort, width=console.terminal_width(sys.stdout), height=console.terminal_height()
                )
                console.raw(REDRAW + text + (f"\n{note}" if note else ""), nl=False)
                key = await _next_key(keys, session)
                if key in QUIT:
                    return 0
                sort = key if key in SORTS else sort
                try:
                    use, note = await _read(session), ""
                except MoorageError as error:
                    note = f"not up to date: {visible(error.message)}"
        except asyncio.CancelledError:  # Ctrl-C
            return 0
        finally:
            console.raw(LEAVE, nl=False)


async def _read(session: Session) -> UseNow:
    return await session.server.ask(UseNow, "GET", "/api/v1/use")


async def _next_key(keys: asyncio.Queue[str], session: Session) -> str:
    """Return the next key, or a blank after DRAW_SECONDS."""
    key = asyncio.ensure_future(keys.get())
    tick = asyncio.ensure_future(session.clock.sleep(DRAW_SECONDS))
    try:
        await asyncio.wait({key, tick}, return_when=asyncio.FIRST_COMPLETED)
        return key.result() if key.done() else " "
    finally:
        key.cancel()
        tick.cancel()


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Queue[str]]:
    """Yield keys as they are pressed, without Enter; an empty one when the terminal hangs up.

    Restores the terminal.
    """
    keys: asyncio.Queue[str] = asyncio.Queue()
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()

    def read() -> None:
        data = os.read(fd, 64).decode("utf-8", "replace")
        for key in data if not data.startswith("\x1b") else " ":  # an arrow is several characters
            keys.put_nowait(key)
        if not data:
            keys.put_nowait("")

    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield keys
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _summary(use: UseNow) -> str:
    pods = use.pods
    gpus = sum(pod.gpus for pod in pods)
    measured = [(pod.gpus, pod.gpu_percent) for pod in pods if pod.gpu_percent is not None and pod.gpus]
    mean = (
        sum(count * percent for count, percent in measured) / sum(count for count, _ in measured)
        if measured
        else None
    )
    parts = [
        f"{len(pods)} {'pod' if len(pods) == 1 else 'pods'}",
        f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} held" + (f", used {mean:.0f} %" if mean is not None else ""),
        f"CPU {sum(pod.cpu or 0.0 for pod in pods):.1f}",
        f"memory {bytes_text(sum(pod.memory_bytes or 0 for pod in pods))}",
    ]
    return f"{', '.join(parts)}; measured {_age(use)} ago" if pods else ", ".join(parts)


def _age(use: UseNow) -> str:
    newest: datetime = max(pod.at for pod in use.pods)
    return format_duration(max(use.now - newest, use.now - use.now))


def _row(pod: PodNow) -> Sequence[str]:
    memory = pod.gpu_memory_bytes
    total = f" of {bytes_text(pod.gpu_memory_total_bytes)}" if pod.gpu_memory_total_bytes else ""
    return (
        pod.owner,
        f"{pod.namespace}/{pod.title}",
        pod.kind,
        pod.node,
        str(pod.gpus) if pod.gpus else "",
        f"{pod.gpu_percent:.0f} %" if pod.gpu_percent is not None else "",
        f"{pod.cpu:.2f}" if pod.cpu is not None else "",
        bytes_text(pod.memory_bytes) if pod.memory_bytes is not None else "",
        f"{bytes_text(memory)}{total}" if memory is not None else "",
        f"{pod.power_watts:.0f} W" if pod.power_watts is not None else "",
    )
