"""`python -m moorage_local.ingress --data FOLDER --fds JSON`: run the proxy on an inherited socket."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
from pathlib import Path

from moorage_kube.clock import SYSTEM
from moorage_kube.connections import bounds, raise_file_limit
from moorage_kube.logs import set_up_logging
from moorage_kube.parent import answer_parent, end_with_parent, tell_parent
from moorage_local.ingress.proxy import Limits, Proxy
from moorage_local.ingress.table import Router

log = logging.getLogger("moorage.ingress")

LOOK_SECONDS = 0.1  # between two looks at the table's file: how late a new pod is known
SWEEP_LOOKS = 10  # looks between two sweeps of idle connections
TABLE = "run/ingress.json"  # in the data folder


async def run(path: Path, sock: socket.socket, ready_fd: int | None, alive_fd: int | None = None) -> None:
    """Serve until SIGTERM or SIGINT; load the table at `path` again after each change."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    answer_parent(alive_fd)
    most = bounds(raise_file_limit(), files_of_connection=2)
    proxy = Proxy(Router(), Limits(connections=most.total, of_address=most.of_address))

    def ready() -> None:
        if ready_fd is not None:
            tell_parent(ready_fd, "ingress ready")
        log.info("ready", extra={"port": proxy.port})

    serving = asyncio.create_task(proxy.serve(sock, ready=ready))
    following = asyncio.create_task(follow(path, proxy))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, following, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, following, stopping):
        task.cancel()
    await asyncio.gather(serving, following, stopping, return_exceptions=True)
    log.info("stopped")


async def follow(path: Path, proxy: Proxy) -> None:
    """Load the table after each change of its file; an unreadable table changes nothing."""
    seen: tuple[int, int] | None = None
    looks = 0
    while True:
        try:
            status = os.stat(path)
            mark = (status.st_ino, status.st_mtime_ns)
            if mark != seen:
                proxy.router = _read(path)
                seen = mark
        except FileNotFoundError:
            pass  # the control plane has not written one yet
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the table of routes cannot be read", extra={"path": str(path), "error": str(error)})
        looks += 1
        if looks % SWEEP_LOOKS == 0:
            proxy.sweep()
        await SYSTEM.sleep(LOOK_SECONDS)


def _read(path: Path) -> Router:
    return Router(json.loads(path.read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fds", type=json.loads, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--alive-fd", type=int)
    options = parser.parse_args()
    end_with_parent()
    os.umask(0o077)
    set_up_logging()
    for name, fd in options.fds.items():
        if name != "ingress":
            os.close(fd)
    sock = socket.socket(fileno=options.fds["ingress"])
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asyncio.run(run(options.data / TABLE, sock, options.ready_fd, options.alive_fd))


if __name__ == "__main__":
    main()
