"""Limits wrong passwords. A try is counted before the password is checked.

Who logs in from a new place may have to wait, up to an hour, while others guess at this name. A try is judged by
where it comes from:

- a device that this person logged in on before (a cookie tells, see `Sealer`): by that device's own wrong tries;
- an address that this person logged in from before: by this name's wrong tries from this address;
- anywhere else: by those, by the wrong tries at this name from all such places, after which the wait grows from
  30 seconds to an hour, and by a rate for the whole address, which many people may share.

An IPv6 address counts as its /64, see `client_network`.

The waits and the exception for known places: NIST SP 800-63B, 5.2.2
(https://pages.nist.gov/800-63-3/sp800-63b.html#throttle). Devices:
https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

from __future__ import annotations

from dataclasses import dataclass

from moorage.apimachinery.addresses import client_network
from moorage.apimachinery.backoff import DoublingDelay
from moorage.apimachinery.cache import BoundedCache
from moorage.clock import Clock
from moorage.decide.rates import Bucket, Rate, give_back, take

PLACE = Rate(
    per_second=5 / 900, burst=5
)  # wrong tries of one name from one address or device: 5, then one in 3 min
ADDRESS = Rate(per_second=1.0, burst=60)  # tries of strangers from one address, whatever names they say
FREE_FAILURES = 10  # wrong tries at one name from places it never logged in from; after these it waits
WAITS = DoublingDelay(30.0, 3600.0)  # NIST: "30 seconds up to an hour"
FORGIVEN_SECONDS = 3600.0  # a wrong try at a name is forgotten for each of these that passes
KEPT = 50_000  # counts of each kind; the longest untouched go first


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a try comes from. `device`: of one that this person logged in on before; empty: unknown.

    `known`: this person has logged in from this address before.
    """

    name: str
    address: str
    device: str = ""
    known: bool = False


@dataclass(frozen=True, slots=True)
class Failures:
    """Wrong tries at a name from strange places: how many count, and when the last was (monotonic seconds)."""

    count: float
    at: float

    def now(self, now: float) -> float:
        return max(0.0, self.count - max(0.0, now - self.at) / FORGIVEN_SECONDS)

    def wait(self, now: float) -> float:
        """Seconds until the next try: none for the first, then 30 s, doubled by each up to an hour."""
        return max(0.0, self.at + WAITS.after(round(self.count) - FREE_FAILURES + 1) - now)


class Attempts:
    """Counts of tries, in memory: a restart of the server forgives them."""

    def __init__(self, clock: Clock, *, kept: int = KEPT) -> None:
        self._clock = clock
        self._places: BoundedCache[str, Bucket] = BoundedCache(kept)
        self._addresses: BoundedCache[str, Bucket] = BoundedCache(kept)
        self._names: BoundedCache[str, Failures] = BoundedCache(kept)

    def begin(self, origin: Origin) -> float:
        """Count a try and return 0, or return the seconds to wait and count nothing.

        Call `succeeded` after the right password, `undo` where the password was not checked, nothing after a
        wrong one.
        """
        now = self._clock.monotonic()
        place, place_wait = take(self._places.get(_place(origin)), PLACE, now)
        if place_wait:
            return place_wait
        if not _is_strange(origin):
            self._places.put(_place(origin), place)
            return 0.0
        failures = self._names.get(origin.name) or Failures(0.0, now)
        if name_wait := failures.wait(now):
            return name_wait
        address, address_wait = take(self._addresses.get(client_network(origin.address)), ADDRESS, now)
        if address_wait:
            return address_wait
        self._places.put(_place(origin), place)
        self._addresses.put(client_network(origin.address), address)
        self._names.put(origin.name, Failures(failures.now(now) + 1.0, now))
        return 0.0

    def succeeded(self, origin: Origin) -> None:
        """The right password: what went wrong before from this place is forgotten, other places' tries are not."""
        self.undo(origin)
        self._places.drop(_place(origin))

    def undo(self, origin: Origin) -> None:
        """A try that was begun counts no more. What is zero again goes: it would push out others' counts."""
        self._give_back(self._places, _place(origin), PLACE)
        if not _is_strange(origin):
            return
        self._give_back(self._addresses, client_network(origin.address), ADDRESS)
        failures = self._names.get(origin.name)
        if failures is not None:
            left = failures.count - 1.0
            if left > 0:
                self._names.change(origin.name, Failures(left, failures.at))
            else:
                self._names.drop(origin.name)

    def _give_back(self, buckets: BoundedCache[str, Bucket], key: str, rate: Rate) -> None:
        bucket = buckets.get(key)
        if bucket is not None:
            left = give_back(bucket, rate)
            if left.tokens < rate.burst:
                buckets.change(key, left)
            else:
                buckets.drop(key)


def _is_strange(origin: Origin) -> bool:
    return not origin.device and not origin.known


def _place(origin: Origin) -> str:
    return f"device {origin.device}" if origin.device else f"{origin.name}\0{client_network(origin.address)}"
