"""Limits wrong passwords. A try is counted before the password is checked.

A user who logs in from a new place may have to wait, up to an hour, while others guess at this name. The limit
of a try depends on its origin:

- a device on which this person logged in before (by a cookie, see `Sealer`): wrong tries of that device;
- an address from which this person logged in before: wrong tries at this name from this address;
- any other place: the same, and also the wrong tries at this name from all such places, after which the wait
  grows from 30 seconds to an hour, and a rate for the whole address, which many people may share.

An IPv6 address counts as its /64, see `client_network`. Counts are in the people's database, so tries at several
servers count together, and a restart does not reset them.

The waits and the exception for known places: NIST SP 800-63B, 5.2.2
(https://pages.nist.gov/800-63-3/sp800-63b.html#throttle). Devices:
https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from moorage.decide.rates import Bucket, Rate, give_back, take
from moorage.server.identity.shared import Key, Kind, Value
from moorage_kube.addresses import client_network
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import Clock

PLACE = Rate(
    per_second=5 / 900, burst=5
)  # wrong tries of one name from one address or device: 5, then one in 3 min
ADDRESS = Rate(per_second=1.0, burst=60)  # tries of strangers from one address, for any names
FREE_FAILURES = 10  # wrong tries at one name from places it never logged in from; after these it waits
WAITS = DoublingDelay(30.0, 3600.0)  # NIST: "30 seconds up to an hour"
FORGIVEN_SECONDS = 3600.0  # a wrong try at a name is forgotten for each of these that passes
KEPT = 50_000  # counts of each kind; those that are forgotten soonest go first
PLACES, ADDRESSES, NAMES = (
    Kind("tries of a place", KEPT),
    Kind("tries of an address", KEPT),
    Kind("tries of a name", KEPT),
)

T = TypeVar("T")


class CountStore(Protocol):
    """The store of the counts. See `SharedValues`."""

    def get(self, key: Key, now: datetime) -> bytes | None: ...

    def change(
        self,
        keys: Sequence[Key],
        work: Callable[[list[bytes | None]], tuple[Sequence[Value | None], T]],
        now: datetime,
    ) -> T: ...


class Origin(Struct, frozen=True, kw_only=True):
    """The origin of a login attempt. `device`: a device from which this user logged in before; "" if unknown.

    `known`: this user has logged in from this address before.
    """

    name: str
    address: str
    device: str = ""
    known: bool = False


class Failures(Struct, frozen=True):
    """Failed attempts at a name from unknown places: their count, and the time of the last one (Unix seconds)."""

    count: float
    at: float

    def now(self, now: float) -> float:
        return max(0.0, self.count - max(0.0, now - self.at) / FORGIVEN_SECONDS)

    def wait(self, now: float) -> float:
        """Seconds until the next attempt.

        0 after the first failures, then 30 s, doubled by each failure up to 1 h.
        """
        return max(0.0, self.at + WAITS.after(round(self.count) - FREE_FAILURES + 1) - now)


class Counts(Struct, frozen=True):
    """The counts that limit one try. Strangers have all three, others only `place`; None if nothing counts."""

    place: Bucket | None = None
    address: Bucket | None = None
    name: Failures | None = None


class Attempts:
    """Counts of login attempts, shared by all servers on one database. A refused attempt writes nothing."""

    def __init__(self, store: CountStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def begin(self, origin: Origin) -> float:
        """Count an attempt and return 0, or return the seconds to wait and count nothing.

        Then call `succeeded` if the password was right, or `undo` if the password was not checked. If the
        password was wrong, call nothing.
        """
        now = self._clock.now()
        counts = _decoded(origin, [self._store.get(key, now) for key in _keys(origin)])
        _, wait = begin(origin, counts, now.timestamp())
        if wait:
            return wait
        return self._change(origin, lambda counts: begin(origin, counts, now.timestamp()), now)

    def succeeded(self, origin: Origin) -> None:
        """Reset the wrong tries from this place after the right password; tries from other places still count."""
        self._change(origin, lambda counts: (Counts(None, *_undone(counts)), None), self._clock.now())

    def undo(self, origin: Origin) -> None:
        """Remove a try from the counts. A count of zero is deleted, so that it does not push out other counts."""

        def undone(counts: Counts) -> tuple[Counts, None]:
            return Counts(_returned(counts.place, PLACE), *_undone(counts)), None

        self._change(origin, undone, self._clock.now())

    def _change(self, origin: Origin, work: Callable[[Counts], tuple[Counts, T]], now: datetime) -> T:
        def changed(bodies: list[bytes | None]) -> tuple[Sequence[Value | None], T]:
            counts, outcome = work(_decoded(origin, bodies))
            return _encoded(origin, counts), outcome

        return self._store.change(_keys(origin), changed, now)


def begin(origin: Origin, counts: Counts, now: float) -> tuple[Counts, float]:
    """Count an attempt; return the new counts and 0, or the old counts and the seconds to wait.

    `now`: seconds since 1970.
    """
    place, place_wait = take(counts.place, PLACE, now)
    if place_wait:
        return counts, place_wait
    if not _is_strange(origin):
        return Counts(place), 0.0
    failures = counts.name or Failures(0.0, now)
    if name_wait := failures.wait(now):
        return counts, name_wait
    address, address_wait = take(counts.address, ADDRESS, now)
    if address_wait:
        return counts, address_wait
    return Counts(place, address, Failures(failures.now(now) + 1.0, now)), 0.0


def _undone(counts: Counts) -> tuple[Bucket | None, Failures | None]:
    """The counts of an address and a name without the last attempt."""
    name = counts.name
    if name is not None:
        name = Failures(name.count - 1.0, name.at) if name.count > 1.0 else None
    return _returned(counts.address, ADDRESS), name


def _returned(bucket: Bucket | None, rate: Rate) -> Bucket | None:
    """The bucket with one try returned to it; None when it is full."""
    if bucket is None:
        return None
    returned = give_back(bucket, rate)
    return returned if returned.tokens < rate.burst else None


def _is_strange(origin: Origin) -> bool:
    return not origin.device and not origin.known


def _keys(origin: Origin) -> list[Key]:
    network = client_network(origin.address)
    place = f"device {origin.device}" if origin.device else f"{origin.name}\0{network}"
    keys = [Key(PLACES, place)]
    return [*keys, Key(ADDRESSES, network), Key(NAMES, origin.name)] if _is_strange(origin) else keys


def _decoded(origin: Origin, bodies: Sequence[bytes | None]) -> Counts:
    place, address, name = bodies if _is_strange(origin) else (bodies[0], None, None)
    return Counts(
        msgspec.json.decode(place, type=Bucket) if place else None,
        msgspec.json.decode(address, type=Bucket) if address else None,
        msgspec.json.decode(name, type=Failures) if name else None,
    )


def _encoded(origin: Origin, counts: Counts) -> list[Value | None]:
    place = _bucket_value(counts.place, PLACE)
    if not _is_strange(origin):
        return [place]
    name = counts.name
    forgiven_at = 0.0 if name is None else name.at + name.count * FORGIVEN_SECONDS
    return [place, _bucket_value(counts.address, ADDRESS), None if name is None else _value(name, forgiven_at)]


def _bucket_value(bucket: Bucket | None, rate: Rate) -> Value | None:
    """A bucket as a stored value, which ends when the bucket is full again; None for None."""
    if bucket is None:
        return None
    return _value(bucket, bucket.at + (rate.burst - bucket.tokens) / rate.per_second)


def _value(count: Bucket | Failures, end: float) -> Value:
    return Value(msgspec.json.encode(count), datetime.fromtimestamp(end, UTC))
