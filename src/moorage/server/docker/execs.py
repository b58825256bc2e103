"""The commands that users started in containers, in this server's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moorage.api.errors import ErrorCode
from moorage.apimachinery.resources import Obj
from moorage.errors import MoorageError, ServerError
from moorage.server.docker.streams import frame
from moorage.server.problems import Problem

if TYPE_CHECKING:
    from moorage.kube.exec import ExecProcess

KEPT = 1000  # execs that are remembered; the oldest go first


@dataclass(slots=True, kw_only=True)
class Exec:
    """One command, made and perhaps started."""

    id: str
    user: str
    namespace: str
    pod: Obj
    command: list[str]
    stdin: bool
    tty: bool
    running: bool = False
    exit_code: int | None = None
    process: ExecProcess | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Execs:
    """The commands of all users, in memory."""

    def __init__(self) -> None:
        self._execs: dict[str, Exec] = {}
        self._detached: set[asyncio.Task[None]] = set()

    def add(self, exec_: Exec) -> None:
        """Remember a command; beyond KEPT the oldest that does not run is forgotten."""
        while len(self._execs) >= KEPT:
            oldest = next(
                (known.id for known in self._execs.values() if not known.running), next(iter(self._execs))
            )
            del self._execs[oldest]
        self._execs[exec_.id] = exec_

    def of(self, id_: str, user: str) -> Exec:
        """A command of this user. Raises Problem 404."""
        known = self._execs.get(id_)
        if known is None or known.user != user:
            raise Problem(404, ErrorCode.NOT_FOUND, f"No such exec instance: {id_}")
        return known

    def detach(self, exec_: Exec) -> None:
        """Read what a command prints, to nobody, until it has ended."""
        task = asyncio.create_task(_to_nobody(exec_))
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)


async def output_of(one: Exec) -> AsyncIterator[bytes]:
    process = one.process
    assert process is not None
    code = 137
    try:
        async with process:
            async for channel, data in process:
                yield data if one.tty else frame(channel, data)
            code = process.exit_code
    except ServerError:
        return
    finally:
        one.running, one.exit_code = False, code
        one.ended.set()


async def _to_nobody(one: Exec) -> None:
    with suppress(MoorageError):
        async for _ in output_of(one):
            pass
