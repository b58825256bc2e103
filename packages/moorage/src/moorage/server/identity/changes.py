"""Entries of the audit log from changes in the Kubernetes API, which the admission webhook reports.

Writes of this server for a user are in the log already, by the user's request. `OwnWrites` remembers them, so
that each is in the log once. Repeated actions of a person on the same object are one entry until a pause of
REPEAT: a patch that collides is admitted again, an eviction is tried until the budget allows it, each Job of a
run is deleted by itself. Sessions in pods are counted one by one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import datetime, timedelta
from urllib.parse import unquote

from moorage.api.auditrecords import AuditRecord, AuditRecords
from moorage.decide.rates import Bucket, Rate, take
from moorage.model.people import account_in, person_in
from moorage.server.identity.audit import AuditLog
from moorage.server.identity.people import People
from moorage.server.identity.sessions import Sessions, SessionStore
from moorage.server.identity.shared import Key, Kind, Value
from moorage.sql.timestamps import from_microseconds, to_microseconds
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, StorageError

log = logging.getLogger(__name__)

OWN_MAX = 20_000  # writes that are remembered
OWN_WRITE = Kind("own write", 20_000)
TELL_SECONDS = 0.1  # for the writes of a moment to go together; webhooks send records after half a second
UNTOLD_MAX = 10_000
OWN_SECONDS = 600.0  # a record may wait so long at a webhook, and is still known
SAME_WRITE = timedelta(seconds=10)  # between our writing and its admission, and between two machines' clocks
REPEAT = timedelta(seconds=10)  # a drain asks every five
REPEATS_MAX = 10_000
PROGRAMS = Rate(per_second=0.1, burst=1000)  # entries of one ServiceAccount without a person; the log has them all
PROGRAMS_MAX = 4096
SERVICE_ACCOUNT = "system:serviceaccount:"

_PATH = re.compile(r"/(?:api|apis/[^/]+)/[^/]+/(.+)")
_VERBS = {
    "POST": "write",
    "PUT": "write",
    "PATCH": "write",
    "create": "write",
    "update": "write",
    "DELETE": "delete",
}


class OwnWrites:
    """Writes that servers sent for their users; by account, verb and object, without the version of the API.

    `sessions`: set where servers share a database; `run` shares the writes through it. A webhook sends a record to
    one of the servers only, and sends it later.
    """

    def __init__(self, *, sessions: Sessions | None = None, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._sessions = sessions
        self._untold: dict[Key, Value] = {}
        self._news = asyncio.Event()
        self._writes: BoundedCache[tuple[str, str, str], datetime] = BoundedCache(
            OWN_MAX, keep_seconds=OWN_SECONDS, clock=clock
        )

    def note(self, account: str, method: str, path: str) -> None:
        key, now = _key(account, method, unquote(path)), self._clock.now()
        self._writes.put(key, now)
        if self._sessions is not None and len(self._untold) < UNTOLD_MAX:
            end = now + timedelta(seconds=OWN_SECONDS)
            self._untold[Key(OWN_WRITE, "\0".join(key))] = Value(str(to_microseconds(now)).encode(), end)
            self._news.set()

    async def run(self) -> None:
        """Share writes with the other servers, until cancelled; none while the database is down."""
        while True:
            await self._news.wait()
            await self._clock.sleep(TELL_SECONDS)
            await self.tell()

    async def tell(self) -> None:
        """Write the new ones to the database."""
        self._news.clear()
        untold, self._untold = self._untold, {}
        if self._sessions is None or not untold:
            return

        def work(store: SessionStore) -> None:
            for key, value in untold.items():
                store.shared.put(key, value, self._clock.now())

        try:
            await self._sessions.do(work)
        except StorageError as error:
            log.warning(
                "other servers do not know of writes", extra={"writes": len(untold), "error": error.message}
            )

    async def another_has(self, record: AuditRecord) -> bool:
        """Whether any server on the database made the write of a record."""
        if self._sessions is None:
            return False
        key, now = Key(OWN_WRITE, "\0".join(_key(record.account, record.verb, record.path))), self._clock.now()
        try:
            body = await self._sessions.do(lambda store: store.shared.get(key, now))
        except StorageError:
            return False
        return body is not None and abs(record.at - from_microseconds(int(body))) <= SAME_WRITE

    def has(self, record: AuditRecord) -> bool:
        """Whether this server made the write of a record."""
        written = self._writes.get(_key(record.account, record.verb, record.path))
        return written is not None and abs(record.at - written) <= SAME_WRITE


class Changes:
    """Writes new audit records of the cluster into the audit log, with the name of the user."""

    def __init__(self, audit: AuditLog, own: OwnWrites, people: People, *, clock: Clock = SYSTEM) -> None:
        self._audit, self._own, self._people, self._clock = audit, own, people, clock
        # the last action of an account on an object
        self._recent: BoundedCache[tuple[str, str], AuditRecord] = BoundedCache(
            REPEATS_MAX, keep_seconds=OWN_SECONDS, clock=clock
        )
        self._programs: BoundedCache[str, Bucket] = BoundedCache(PROGRAMS_MAX, clock=clock)
        self.lost = 0  # records that had no room at a webhook

    async def take(self, batch: AuditRecords) -> None:
        """Add records to the audit log. On return they are stored in the database, or wait to be stored."""
        for record in batch.records:
            if self._own.has(record) or await self._own.another_has(record) or self._is_repeated(record):
                continue
            self._audit.note(
                person=await self._person(record.account),
                method=record.verb,
                path=record.path,
                what=record.action,
                address="",
                status=record.status,
                client=record.client,
                at=record.at,
                only_log=self._is_too_often(record.account),
            )
        if batch.lost:
            self.lost += batch.lost
            what = f"{batch.lost} changes in the Kubernetes API are not recorded: the server was away too long"
            self._audit.note(person="", method="", path="", what=what, address="", status=0)
        await self._audit.flush()

    async def _person(self, account: str) -> str:
        try:
            obj = await self._people.behind(account) if account_in(account) else None
        except ApiError:
            obj = None
        return (person_in(obj) if obj is not None else "") or account

    def _is_repeated(self, record: AuditRecord) -> bool:
        if record.verb == "connect":
            return False
        key = (record.account, record.target)
        before = self._recent.get(key)
        self._recent.put(key, record)
        return (
            before is not None
            and (before.action, before.status) == (record.action, record.status)
            and abs(record.at - before.at) <= REPEAT
        )

    def _is_too_often(self, account: str) -> bool:
        if not account.startswith(SERVICE_ACCOUNT) or account_in(account):
            return False
        bucket, wait = take(self._programs.get(account), PROGRAMS, self._clock.monotonic())
        self._programs.put(account, bucket)
        return bool(wait)


def _key(account: str, verb: str, path: str) -> tuple[str, str, str]:
    match = _PATH.fullmatch(path)
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    return account, _VERBS.get(verb, verb.lower()), f"{group}/{match.group(1) if match else path}"
