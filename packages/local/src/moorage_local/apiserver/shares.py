"""Limit the concurrent work of each user: priority and fairness in its simplest form.

Each user has SEATS. A request takes one, a list more by its bytes. A request without a free seat waits in the
user's own queue; if the queue is full it is refused with 429. Watches, logs and streams into pods take no seat:
they mostly wait. https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from moorage_kube.errors import TooManyRequests
from moorage_local.apiserver.auth.users import User

SEATS = 32  # of one user; the real server has 600 for all, and at most some 200 for one flow
LIST_SEATS = 16  # the most that a list takes: two large ones of a user are under way at once
SEAT_BYTES = 2**20  # of a list, for each seat beyond the first
WAITING = 256  # requests of one user that wait; clients repeat a refused request after RETRY_SECONDS
RETRY_SECONDS = 1
EXEMPT = frozenset({"system:masters", "system:nodes"})  # groups
OUR_ACCOUNTS = ("system:serviceaccount:kube-system:", "system:serviceaccount:moorage-system:")


@dataclass(slots=True)
class _Flow:
    """One user's requests."""

    taken: int = 0
    waiting: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)


class Shares:
    """The seats of all users. Requests of the platform itself are exempt."""

    def __init__(self, *, seats: int = SEATS, waiting: int = WAITING) -> None:
        self._seats = seats
        self._waiting = waiting
        self._flows: dict[str, _Flow] = {}

    @contextlib.asynccontextmanager
    async def turn(self, user: User, list_bytes: int = 0) -> AsyncGenerator[None]:
        """Hold the seats of a request; `list_bytes`: of the objects that it lists. Raises TooManyRequests."""
        if EXEMPT.intersection(user.groups) or user.name.startswith(OUR_ACCOUNTS):
            yield
            return
        seats = min(1 + list_bytes // SEAT_BYTES, LIST_SEATS, self._seats)
        flow = self._flows.setdefault(user.name, _Flow())
        if flow.waiting or flow.taken + seats > self._seats:
            if len(flow.waiting) >= self._waiting:
                raise TooManyRequests(
                    f"too many requests: {self._waiting} of user {user.name} wait already",
                    hint="send fewer at once",
                    details={"retryAfterSeconds": RETRY_SECONDS},
                )
            await self._wait(user.name, flow, seats)
        else:
            flow.taken += seats
        try:
            yield
        finally:
            self._leave(user.name, flow, seats)

    async def _wait(self, name: str, flow: _Flow, seats: int) -> None:
        mine = asyncio.get_running_loop().create_future()
        flow.waiting.append((mine, seats))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._leave(name, flow, seats)
            else:
                flow.waiting.remove((mine, seats))
                self._leave(name, flow, 0)
            raise

    def _leave(self, name: str, flow: _Flow, seats: int) -> None:
        flow.taken -= seats
        while flow.waiting and flow.taken + flow.waiting[0][1] <= self._seats:
            turn, more = flow.waiting.popleft()
            flow.taken += more
            turn.set_result(None)
        if not flow.taken and not flow.waiting:
            self._flows.pop(name, None)
