"""One leader at a time, by a Lease.

A candidate never compares its own wall clock with another's: it takes the lease only after it has itself
watched the same record unchanged for the whole lease time. The holder gives up after RENEW_DEADLINE_SECONDS
without a renewal, counted from when the last successful renewal was *sent*. So two never lead at once while clocks
run less than LEASE_SECONDS / RENEW_DEADLINE_SECONDS (1.5) times apart in speed.

A process that was suspended (SIGSTOP, a machine that slept) wakes with unfinished work: timers are due, answers
and changes wait to be read, and all of it continues before its campaign notices that the lease expired. So each
write as the leader calls `Elector.check` right before it is sent (`KubeClient.guarded`). Suspended between that
and the write (25 microseconds, as measured), it sends that one write on waking: Kubernetes has no write that
depends on a Lease. https://kubernetes.io/docs/concepts/architecture/leases/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from moorage_kube.api import Api
from moorage_kube.clock import Clock, rfc3339_micro
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, LeaseLost, NotFound
from moorage_kube.resources import LEASES, Obj
from moorage_kube.tasks import CANCEL_AGAIN_SECONDS, end_task

log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0  # these three are client-go's defaults
RENEW_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """In seconds. `renew_deadline`: without a renewal for so long, the holder gives up; less than `lease`.

    `cancel_again`: work that was cancelled and did not end is cancelled again after this time.
    """

    lease: float = LEASE_SECONDS
    renew_deadline: float = RENEW_DEADLINE_SECONDS
    retry: float = RETRY_SECONDS
    cancel_again: float = CANCEL_AGAIN_SECONDS


@dataclass(frozen=True, slots=True)
class Seen:
    """The last reading of the lease, and the time (our monotonic clock) of the first reading in this state."""

    holder: str
    lease_seconds: float
    resource_version: str
    since: float


@dataclass(frozen=True, slots=True)
class Take:
    """Write our name into the lease, provided that the lease has not changed since it was read."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another candidate may be leading; read the lease again later."""


def decide(me: str, seen: Seen | None, *, now: float) -> Take | Wait:
    """Whether `me` may write the lease.

    `now` is our monotonic clock in seconds; `seen` is None if there is no lease.

    Our own name in it does not prove that we lead (an earlier process may have had it), but a write is right.
    """
    if seen is None or not seen.holder or seen.holder == me:
        return Take()
    return Take() if now - seen.since >= seen.lease_seconds else Wait()


def observe(before: Seen | None, lease: Mapping[str, Any] | None, *, now: float) -> Seen | None:
    """Add a reading of the lease: an unchanged record retains the time of its first reading."""
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    version = str(lease["metadata"].get("resourceVersion") or "")
    if before is not None and before.resource_version == version:
        return before
    return Seen(
        holder=str(spec.get("holderIdentity") or ""),
        lease_seconds=float(spec.get("leaseDurationSeconds") or LEASE_SECONDS),
        resource_version=version,
        since=now,
    )


class Elector:
    """A candidate for one lease. `identity` must differ between processes, also after a restart."""

    def __init__(
        self, api: Api, *, clock: Clock, name: str, namespace: str, identity: str, times: Times | None = None
    ) -> None:
        self._api, self._clock, self._times = api, clock, times or Times()
        self._name, self._namespace, self._identity = name, namespace, identity
        self._seen: Seen | None = None
        self._lease: Obj | None = None
        self._sent = 0.0  # while leading: when the last renewal was sent, by our monotonic clock
        self.leading = False

    def check(self) -> None:
        """Raise LeaseLost unless the lease counts as ours now; the election may notice the loss later."""
        if not self.leading or self._left() <= 0:
            raise LeaseLost(f"the lease {self._namespace}/{self._name} is no longer ours: nothing was written")

    def _left(self) -> float:
        """Return the seconds for which the lease counts as ours without another renewal."""
        return self._sent + self._times.renew_deadline - self._clock.monotonic()

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `lead` whenever, and as long as, the lease is ours; for ever, or until `lead` returns or raises.

        When the lease cannot be renewed in time `lead` is cancelled, and the campaign starts again. Cancelled
        itself, it cancels `lead`, waits for it, and releases the lease so that other candidates need not wait.
        """
        while True:
            self._sent = await self._acquire()
            log.info("leading", extra={"lease": self._name, "identity": self._identity})
            self.leading = True
            work = asyncio.create_task(lead())
            renewing = asyncio.create_task(self._renew_until_late())
            try:
                await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    await work
                    return
                log.error("lost the lease; stopping work", extra={"lease": self._name, "identity": self._identity})
            finally:
                self.leading = False
                await end_task(renewing, ApiError)
                await end_task(work, ApiError, again_seconds=self._times.cancel_again)
                await self._release()

    async def _acquire(self) -> float:
        """Wait until the lease is ours; return the time when the successful write was sent."""
        is_sent = False
        try:
            while True:
                try:
                    await self._look()
                    if isinstance(decide(self._identity, self._seen, now=self._clock.monotonic()), Take):
                        sent, is_sent = self._clock.monotonic(), True
                        await self._write(taking=True)
                        if self._clock.monotonic() - sent < self._times.renew_deadline:
                            return sent
                except (Conflict, AlreadyExists):
                    pass  # another was faster
                except ApiError as error:
                    log.warning("cannot campaign", extra={"lease": self._name, "error": str(error)})
                await self._clock.sleep(self._times.retry)
        except asyncio.CancelledError:
            if is_sent:  # it may have arrived, also without an answer
                await self._release()
            raise

    async def _renew_until_late(self) -> None:
        """Renew again and again; return as soon as the lease may no longer count as ours."""
        while True:
            await self._clock.sleep(min(self._times.retry, self._left()))
            started, left = self._clock.monotonic(), self._left()
            if left <= 0:
                return
            try:
                if not await self._within(left, self._renew()):
                    return
                self._sent = started
            except (Conflict, NotFound):
                return  # another candidate wrote it and owns it
            except ApiError as error:
                log.warning("cannot renew the lease", extra={"lease": self._name, "error": str(error)})

    async def _renew(self) -> None:
        try:
            await self._write(taking=False)
        except Conflict:
            # either another candidate took it, or our last write arrived and its answer did not
            await self._look()
            if self._seen is None or self._seen.holder != self._identity:
                raise
            await self._write(taking=False)

    async def _within(self, seconds: float, step: Awaitable[None]) -> bool:
        """Whether `step` ended within `seconds`, measured with `clock`. Otherwise `step` is cancelled."""
        doing = asyncio.ensure_future(step)
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({doing, timer}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                return False
            await doing
            return True
        finally:
            await end_task(doing, ApiError)
            await end_task(timer, ApiError)

    async def _look(self) -> None:
        try:
            self._lease = await self._api.get(LEASES, self._name, self._namespace)
        except NotFound:
            self._lease = None
        self._seen = observe(self._seen, self._lease, now=self._clock.monotonic())

    async def _write(self, *, taking: bool) -> None:
        now = self._clock.now()
        lease = make_lease(
            self._name, self._namespace, holder=self._identity, now=now, before=self._lease, taking=taking,
            seconds=self._times.lease,
        )  # fmt: skip
        if self._lease is None:
            self._lease = await self._api.create(LEASES, lease)
        else:
            self._lease = await self._api.update(LEASES, lease)
        self._seen = observe(self._seen, self._lease, now=self._clock.monotonic())

    async def _release(self) -> None:
        """Release the lease at once if it is ours; otherwise another process takes the lease after it expires."""
        with contextlib.suppress(ApiError):
            await self._within(self._times.renew_deadline, self._give_back())
        self._lease, self._seen = None, None

    async def _give_back(self) -> None:
        """Release the lease.

        It is read again before each try: a cancelled write of ours may have arrived, or may still.
        """
        while True:
            await self._look()
            if self._lease is None or (self._lease.get("spec") or {}).get("holderIdentity") != self._identity:
                return
            given = self._lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}
            with contextlib.suppress(Conflict):
                await self._api.update(LEASES, self._lease | {"spec": given})
                return


def make_lease(
    name: str, namespace: str, *, holder: str, now: datetime, before: Obj | None = None, taking: bool = True,
    seconds: float = LEASE_SECONDS,
) -> Obj:  # fmt: skip
    """Return the lease with a new renewal time.

    With `before`, an update guarded by the resourceVersion of `before`.
    """
    moment = rfc3339_micro(now)
    was = (before or {}).get("spec") or {}
    changed = was.get("holderIdentity") != holder
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": int(seconds),
        "acquireTime": moment if taking or not was.get("acquireTime") else was["acquireTime"],
        "renewTime": moment,
        "leaseTransitions": int(was.get("leaseTransitions") or 0) + (1 if before is not None and changed else 0),
    }
    if before is not None:
        return before | {"spec": spec}
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
