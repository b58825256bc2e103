"""The resource use of past runs, from the server's stores: owner and requests, outcome, measurements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from moorage.api.storedrecords import StoredPod
from moorage.attempts.keeper import Keeper
from moorage.decide.usage.intervals import Interval
from moorage.decide.usage.rightsizing import Asked, Past, Work, asked_now, key_of, works_of
from moorage.decide.usage.samples import PodUse
from moorage.server.identity.auth import Auth, User
from moorage.server.namespaces import by_namespace, created_at, is_too_old
from moorage.usage.store import UsageStore
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.errors import ServerError, StorageError
from moorage_kube.resources import JOBS

WINDOW = timedelta(days=30)  # older runs are a poor estimate for current runs
ROWS = 5_000  # the newest of them
CACHE_SECONDS = 5.0  # how long a result is used before the next read
OUT_OF_MEMORY = "OOMKilled"

UseOf = Callable[[Sequence[str]], Mapping[str, PodUse]]


class Rightsizing:
    """Past runs, grouped by work, read at most once in CACHE_SECONDS."""

    def __init__(self, api: Api, usage: UsageStore, keeper: Keeper, use_of: UseOf, *, clock: Clock) -> None:
        self.api = api
        self.read = clock.now()
        self._usage, self._keeper, self._use_of, self._clock = usage, keeper, use_of, clock
        self._works: tuple[Work, ...] = ()
        self._read_at: float | None = None
        self._lock = asyncio.Lock()

    async def works(self) -> tuple[Work, ...]:
        """All work of the last days, with its advice. Raises ServerError while a store is down."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at >= CACHE_SECONDS:
                try:
                    self._works = await self._read()
                except StorageError as error:
                    raise ServerError(f"past runs cannot be read: {error.message}", status=503) from error
                self._read_at = now
            return self._works

    async def _read(self) -> tuple[Work, ...]:
        self.read = self._clock.now()
        rows = await asyncio.to_thread(self._usage.ended, self.read - WINDOW, limit=ROWS)
        rows = await by_namespace(self.api, (row for row in rows if row.run))
        uids = [row.pod_uid for row in rows]
        kept = await self._keeper.read_known(uids)
        uses = await asyncio.to_thread(self._use_of, uids)
        return works_of(
            past
            for row in rows
            if (past := past_of(row, kept.get(row.pod_uid), uses.get(row.pod_uid))) is not None
        )


def past_of(row: Interval, kept: StoredPod | None, use: PodUse | None) -> Past | None:
    """The data of one pod that the advice needs; None if the pod has not ended."""
    if row.ended_at is None:
        return None
    limit = kept.memory_limit_bytes if kept is not None else None
    tally = use.tally if use is not None else None
    peaks = (kept.peak_memory_bytes if kept else None, tally.memory_bytes_peak if tally else None)
    return Past(
        namespace=row.namespace,
        owner=row.owner,
        run=row.run,
        work=row.work,
        asked=Asked(
            cpu_milli=row.cpu_milli, memory_bytes=row.memory_bytes if limit is None else limit, gpus=row.gpus
        ),
        started=row.started_at,
        ended=row.ended_at,
        well=kept is not None and kept.exit_code == 0,
        killed=kept is not None and kept.reason == OUT_OF_MEMORY,
        memory_peak=max((peak for peak in peaks if peak is not None), default=None),
        cpu_peak=tally.cpu_milli_peak if tally else None,
        cpu_mean=tally.cpu_milli if tally else None,
        gpu_mean=tally.gpu_utilisation if tally else None,
        gpu_seconds=tally.gpu_seconds if tally else 0,
        gpus_measured=tally.gpus if tally else 0,
        gpus_busy=tally.busy_gpus if tally else 0,
    )


async def readable_works(past: Rightsizing, auth: Auth, user: User, *, namespace: str = "") -> tuple[Work, ...]:
    """The work that the user may read: their own, and that of namespaces in which they may list Jobs."""
    works = [work for work in await past.works() if namespace in ("", work.namespace)]
    allowed = {
        place: await auth.may(user, "list", JOBS.plural, group=JOBS.group, namespace=place)
        for place in {work.namespace for work in works}
    }
    created = await created_at(past.api, (place for place, may in allowed.items() if may))
    allowed |= {place: False for place, at in created.items() if is_too_old(past.read, at)}  # recreated since
    return tuple(work for work in works if allowed[work.namespace] or work.owner == user.name)


def work_of_run(works: Sequence[Work], namespace: str, run: str) -> Work | None:
    """The work that contains a past run of this name; None if the run is unknown."""
    of_run = [
        work for work in works if work.namespace == namespace and any(past.run == run for past in work.pasts)
    ]
    return max(of_run, key=lambda work: work.ended, default=None)


def work_of_new(
    works: Sequence[Work], namespace: str, owner: str, hash_: str, run: str, asked: Asked
) -> Work | None:
    """The work of a run that is not submitted yet, with advice for its requests."""
    key = key_of(namespace, owner, hash_, run)
    same = next((work for work in works if key_of(work.namespace, work.owner, work.work, work.name) == key), None)
    return None if same is None else asked_now(same, asked)
