"""The local end of a remote command: bytes of stdin, and the mode and size of the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TextIO

PIECE = 32 * 1024
COLUMNS, ROWS = 80, 24  # of a terminal that does not report its size


def is_terminal() -> bool:
    """Whether stdin and stdout are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def size_of_terminal() -> tuple[int, int]:
    """Columns and rows."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return COLUMNS, ROWS
    return (size.columns or COLUMNS, size.lines or ROWS)


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Switch the terminal to raw mode without echo: every key is passed on, also Ctrl-C. Restored at the end."""
    import termios  # here: `moor logs` and `moor wait` use this module without a terminal
    import tty

    fd = sys.stdin.fileno()
    modes = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, modes)


@contextlib.contextmanager
def on_signals(signals: tuple[signal.Signals, ...], act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in the event loop at each of these signals."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def read_stdin() -> AsyncGenerator[bytes]:
    """Yield stdin until its end. Stdin remains blocking, because the shell that started us shares it."""
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except (PermissionError, OSError):  # a file, or /dev/null: it is always ready
        while data := await asyncio.to_thread(os.read, fd, PIECE):
            yield data
        return
    try:
        while True:
            await ready.wait()
            loop.remove_reader(fd)  # else it is called again and again until the data is read
            ready.clear()
            try:
                data = os.read(fd, PIECE)
            except OSError:  # the terminal has hung up
                return
            if not data:
                return
            yield data
            loop.add_reader(fd, ready.set)
    finally:
        loop.remove_reader(fd)


def write_out(data: bytes, *, to_stderr: bool = False) -> None:
    """Write to stdout, or stderr, at once. Raises BrokenPipeError when the reader has closed it."""
    stream = (sys.stderr if to_stderr else sys.stdout).buffer
    stream.write(data)
    stream.flush()


@contextlib.asynccontextmanager
async def ending_with_reader() -> AsyncGenerator[None]:
    """End the block with BrokenPipeError when the reader of our stdout closes it, also while nothing is written.

    For commands that wait, as `moor logs -f NAME | head -1` does. Only Linux reports it; elsewhere the next write
    ends the command.
    """
    if not hasattr(select, "epoll") or not _is_pipe(sys.stdout):
        yield
        return
    loop, me, gone = asyncio.get_running_loop(), asyncio.current_task(), False
    assert me is not None
    with select.epoll() as polled:
        polled.register(sys.stdout.fileno(), 0)  # no event but the error that the other end is closed

        def end() -> None:
            nonlocal gone
            gone = True
            loop.remove_reader(polled.fileno())
            me.cancel()

        loop.add_reader(polled.fileno(), end)
        try:
            yield
        except asyncio.CancelledError:
            if gone and not me.uncancel():
                raise BrokenPipeError(errno.EPIPE, "the reader of stdout has closed it") from None
            raise
        finally:
            loop.remove_reader(polled.fileno())


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # closed, or a stream of a test
        return False
