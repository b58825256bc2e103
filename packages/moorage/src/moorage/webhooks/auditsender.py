"""Send audit records from the webhook to the server: a bounded queue, sent in batches, with retries.

A review is answered before its record is sent, so an unreachable server causes no delay. Records are lost only
when the queue is full. Lost records are counted, and the next batch contains the count.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from moorage.api.auditrecords import RECORDS_MAX, RECORDS_PATH, TEXT_MAX, AuditRecord, AuditRecords
from moorage.decide.audit.changes import Change, action_of, client_of, is_recorded, path_of, target_of
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import MoorageError, ServerError

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

WAITING_MAX = 20_000  # records, 0.7 kB each at most: some 14 MB
SEND_SECONDS = 0.5  # between two batches
RETRY_SECONDS, RETRY_MAX_SECONDS = 1.0, 30.0  # doubled with each failure
ANSWER_SECONDS = 10.0
REREAD_SECONDS = 5.0  # of the file with the token, at most so often
LAST_SECONDS = 2.0  # to send waiting records when the process ends

Send = Callable[[AuditRecords], Awaitable[None]]
"""Hands records over. Raises MoorageError where they are to be sent again, ValueError where they never fit."""


class AuditSender:
    """`note` never waits; `run` sends until it is cancelled, then a last time."""

    def __init__(self, send: Send, *, clock: Clock = SYSTEM) -> None:
        self._send, self._clock = send, clock
        self._waiting: deque[AuditRecord] = deque()
        self.lost = 0  # since the last batch that was taken

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, change: Change, *, account: str, status: int = 200) -> None:
        """Queue the record of a request, unless a component of the cluster sent it or it changes nothing.

        When the queue is full it is counted and dropped: the oldest stay, because they show the beginning.
        """
        try:
            if not is_recorded(account) or not (action := action_of(change)):
                return
            record = AuditRecord(
                at=self._clock.now(),
                account=account[:TEXT_MAX],
                verb=change.operation.lower(),
                path=path_of(change),
                action=action[:TEXT_MAX],
                target=target_of(change)[:TEXT_MAX],
                client=client_of(change),
                status=status,
            )
        except Exception:  # an unexpected object must not block its review
            log.exception("a request could not be recorded", extra={"user": account, "resource": change.plural})
            return
        if len(self._waiting) >= WAITING_MAX:
            self.lost += 1
            return
        self._waiting.append(record)

    async def run(self) -> None:
        wait = SEND_SECONDS
        try:
            while True:
                await self._clock.sleep(wait)
                longer = min(max(wait * 2, RETRY_SECONDS), RETRY_MAX_SECONDS)
                wait = SEND_SECONDS if await self.flush() else longer
        finally:
            try:
                async with asyncio.timeout(LAST_SECONDS):
                    await self.flush()
            except TimeoutError:
                log.warning("audit records are lost with this process", extra={"records": len(self)})

    async def flush(self) -> bool:
        """Send the queue, a batch at a time; False.

        Some records still wait, because the server does not accept them.
        """
        while self._waiting or self.lost:
            batch = [self._waiting[at] for at in range(min(RECORDS_MAX, len(self._waiting)))]
            lost = self.lost
            try:
                await self._send(AuditRecords(records=tuple(batch), lost=lost))
            except MoorageError as error:
                log.warning("audit records wait to be sent", extra={"records": len(self), "error": error.message})
                return False
            except ValueError as error:
                log.error("the server refuses audit records", extra={"records": len(batch), "error": str(error)})
            for _ in batch:
                self._waiting.popleft()
            self.lost -= lost
        return True


class TokenFile:
    """The token in a file. If another token arrives, the file is read again: it may be newer than this process."""

    def __init__(self, path: Path, *, clock: Clock = SYSTEM) -> None:
        self._path, self._clock = path, clock
        self._token, self._read_at = b"", -REREAD_SECONDS

    def __call__(self, token: str) -> bool:
        """Whether this is the token in the file. False if the file has none."""
        if self._is(token):
            return True
        if not token or self._clock.monotonic() - self._read_at < REREAD_SECONDS:
            return False
        self._read_at = self._clock.monotonic()
        try:
            self._token = self._path.read_bytes().strip()
        except OSError as error:
            log.warning("nothing is recorded: the token cannot be read", extra={"error": str(error)})
        return self._is(token)

    def _is(self, token: str) -> bool:
        return bool(self._token) and hmac.compare_digest(self._token, token.encode())


class _Cluster(Protocol):
    async def authorization(self) -> str: ...


class ServerPost:
    """Sends records to the server, with the service's token. The caller closes it."""

    def __init__(self, api: _Cluster, address: Callable[[], str]) -> None:
        """`address`: the URL of the server, such as http://moorage-server.moorage-system.svc; "": unknown."""
        self._api, self._address = api, address
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, records: AuditRecords) -> None:
        import aiohttp

        if not (address := self._address()):
            raise ServerError("the address of the server is not known yet", status=0)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS))
        headers = {"authorization": await self._api.authorization(), "content-type": "application/json"}
        url = address.rstrip("/") + RECORDS_PATH
        try:
            async with self._session.post(
                url, data=msgspec.json.encode(records), headers=headers, allow_redirects=False
            ) as answer:
                text = (await answer.content.read(300)).decode(errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServerError(f"POST {url}: {str(error) or type(error).__name__}", status=0) from error
        if answer.status in (400, 413, 422):  # it can read none of it, now or later
            raise ValueError(f"POST {url}: HTTP {answer.status}: {text}")
        if answer.status >= 300:
            raise ServerError(f"POST {url}: HTTP {answer.status}: {text}", status=answer.status)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
