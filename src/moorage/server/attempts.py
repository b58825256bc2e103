"""Who may try a password now. A try is counted before it is looked at, so that many at once count as many.

Nobody is locked out by what strangers do. A try is judged by where it comes from:

- a device that this person logged in on before (a cookie tells, see `Sealer`): by that device's own wrong tries;
- an address that this person logged in from before: by this name's wrong tries from this address;
- anywhere else: by those, by the wrong tries at this name from all such places, after which the wait grows from
  30 seconds to an hour, and by a rate for the whole address, which many people may share.

The waits and the exception for known places: NIST SP 800-63B, 5.2.2
(https://pages.nist.gov/800-63-3/sp800-63b.html#throttle). Devices:
https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from moorage.clock import Clock
from moorage.decide.rates import Bucket, Rate, give_back, take

PLACE = Rate(
    per_second=5 / 900, burst=5
)  # wrong tries of one name from one address or device: 5, then one in 3 min
ADDRESS = Rate(per_second=1.0, burst=60)  # tries of strangers from one address, whatever names they say
FREE_FAILURES = 10  # wrong tries at one name from places it never logged in from; after these it waits
WAIT_SECONDS, WAIT_SECONDS_MAX = 30.0, 3600.0  # NIST: "30 seconds up to an hour"
FORGIVEN_SECONDS = 3600.0  # a wrong try at a name is forgotten for each of these that passes
KEPT = 50_000  # counts of each kind; the longest untouched go first

T = TypeVar("T")


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
        if round(self.count) < FREE_FAILURES:
            return 0.0
        doubled = min(WAIT_SECONDS_MAX, math.ldexp(WAIT_SECONDS, min(30, round(self.count) - FREE_FAILURES)))
        return max(0.0, self.at + doubled - now)


class Attempts:
    """Counts of tries, in memory: a restart of the server forgives them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places: OrderedDict[str, Bucket] = OrderedDict()
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._names: OrderedDict[str, Failures] = OrderedDict()

    def begin(self, origin: Origin) -> float:
        """Count a try, and 0; or count nothing, and in how many seconds to come again.

        Whatever comes of the try is told next: nothing after a wrong password, `good` after the right one,
        `undo` where nobody could tell.
        """
        now = self._clock.monotonic()
        place, place_wait = take(self._places.get(_place(origin)), PLACE, now)
        if place_wait:
            return place_wait
        if not _is_strange(origin):
            _keep(self._places, _place(origin), place)
            return 0.0
        failures = self._names.get(origin.name, Failures(0.0, now))
        if name_wait := failures.wait(now):
            return name_wait
        address, address_wait = take(self._addresses.get(origin.address), ADDRESS, now)
        if address_wait:
            return address_wait
        _keep(self._places, _place(origin), place)
        _keep(self._addresses, origin.address, address)
        _keep(self._names, origin.name, Failures(failures.now(now) + 1.0, now))
        return 0.0

    def good(self, origin: Origin) -> None:
        """The right password: what went wrong before from this place is forgotten, other places' tries are not."""
        self.undo(origin)
        self._places.pop(_place(origin), None)

    def undo(self, origin: Origin) -> None:
        """A try that was begun counts no more."""
        _change(self._places, _place(origin), lambda bucket: give_back(bucket, PLACE))
        if _is_strange(origin):
            _change(self._addresses, origin.address, lambda bucket: give_back(bucket, ADDRESS))
            _change(self._names, origin.name, lambda one: Failures(max(0.0, one.count - 1.0), one.at))


def _is_strange(origin: Origin) -> bool:
    return not origin.device and not origin.known


def _place(origin: Origin) -> str:
    return f"device {origin.device}" if origin.device else f"{origin.name}\0{origin.address}"


def _keep(kept: OrderedDict[str, T], key: str, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > KEPT:
        kept.popitem(last=False)


def _change(kept: OrderedDict[str, T], key: str, change: Callable[[T], T]) -> None:
    if (value := kept.get(key)) is not None:
        kept[key] = change(value)
