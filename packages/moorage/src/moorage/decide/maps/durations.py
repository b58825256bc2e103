"""The duration of a map's items, and the time when the last of them is done.

Equal slots take items from a queue. A free slot takes the next item at once (list scheduling in random order).
`WorkTime.until_done` computes when the last item ends, without a simulation of each item. The items of a slot
follow each other as a renewal process. So the renewal function gives the time at which the queue becomes empty.
The end follows from the longest item that started before. Cox, Renewal Theory (1962), chapters 4 and 5.

A distribution from any source is stored as knots of its quantile function, linear in between.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev

from msgspec import Struct

from moorage_kube.errors import UsageError

NORMAL = NormalDist()
RAREST = 1e-9  # one item in a thousand million: the tail is followed to there
PER_DECADE = 40  # knots for each factor of ten of rarity; means of lognormal times are then good to 0.1 %
SAMPLES_FOR_TAIL = 20  # below, the tail's width is taken from all samples; above, from their upper half
SAMPLES_FOR_FAR_TAIL = 200  # from here on, from their upper tenth
ROUGH = 0.25  # squared coefficient of variation under which slots work in step for some rounds
ALMOST = 1e-6  # relative; spreads below count as none
FEW = 1e-4  # terms of a falling sum below this are left out
WIDEST = 2.0  # deviation of logarithms of a tail that is guessed; measured service times have 0.5 to 1.5


@dataclass(frozen=True, slots=True)
class Durations:
    """A distribution of durations in seconds.

    `knots`: pairs (share of items, seconds), both rising; the shares go from 0 to 1. `origin`: the source of
    the data, for display. Raises UsageError for invalid knots.
    """

    knots: tuple[tuple[float, float], ...] = field(repr=False)
    origin: str
    shares: tuple[float, ...] = field(init=False, repr=False, compare=False)
    seconds: tuple[float, ...] = field(init=False, repr=False, compare=False)
    mean: float = field(init=False, compare=False)
    square: float = field(init=False, compare=False)  # mean of the squares

    def __post_init__(self) -> None:
        shares = tuple(share for share, _ in self.knots)
        seconds = tuple(value for _, value in self.knots)
        rising = all(a <= b for values in (shares, seconds) for a, b in pairwise(values))
        if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or not rising or seconds[0] < 0:
            raise UsageError(f"times of items ({self.origin}) do not rise from the shortest to the longest")
        if not 0 < seconds[-1] < math.inf:
            raise UsageError(f"times of items ({self.origin}) must be above 0 and finite")
        pairs = list(pairwise(self.knots))
        put = object.__setattr__
        put(self, "shares", shares)
        put(self, "seconds", seconds)
        put(self, "mean", math.fsum((q2 - q1) * (a + b) / 2 for (q1, a), (q2, b) in pairs))
        put(self, "square", math.fsum((q2 - q1) * (a * a + a * b + b * b) / 3 for (q1, a), (q2, b) in pairs))

    @property
    def shortest(self) -> float:
        return self.seconds[0]

    @property
    def longest(self) -> float:
        """The longest possible duration. An infinite tail is cut at one item in 10^9."""
        return self.seconds[-1]

    @property
    def is_constant(self) -> bool:
        return self.longest - self.shortest <= ALMOST * self.longest

    @property
    def variation(self) -> float:
        """The squared coefficient of variation: 0 for a constant, 1 for exponential durations."""
        return max(0.0, self.square / self.mean**2 - 1) if self.mean else 0.0

    def quantile(self, share: float) -> float:
        """The time in seconds after which this share of the items has ended."""
        at = min(max(bisect_right(self.shares, share), 1), len(self.shares) - 1)
        (low, a), (high, b) = self.knots[at - 1], self.knots[at]
        return b if high <= low else a + (b - a) * min(1.0, max(0.0, (share - low) / (high - low)))

    def share_within(self, seconds: float) -> float:
        """The share of the items that take at most this time."""
        if seconds < self.shortest:
            return 0.0
        at = bisect_right(self.seconds, seconds)
        if at == len(self.seconds):
            return 1.0
        (low, a), (high, b) = self.knots[at - 1], self.knots[at]
        return low + (high - low) * (seconds - a) / (b - a)

    def longest_of(self, items: int, chance: float = 0.5) -> float:
        """The time in seconds that the longest of `items` items does not exceed, with this probability."""
        return self.quantile(chance ** (1 / items))

    def scaled(self, *, factor: float = 1.0, plus: float = 0.0) -> Durations:
        """The durations on another machine: multiplied by `factor`, with `plus` seconds more for each item."""
        return Durations(tuple((share, value * factor + plus) for share, value in self.knots), self.origin)

    def interrupted(self, per_second: float, away_seconds: float) -> Durations:
        """The durations if attempts are interrupted at this rate and start again when a node is back.

        The mean time until an item of x seconds completes is (e^(rate x) - 1) / rate, plus `away_seconds` for each
        interruption. Raises UsageError if the longest items would hardly ever complete.
        """
        if per_second <= 0:
            return self
        if per_second * self.longest > 20:  # e^20 tries; such an item never ends
            raise UsageError(
                f"items of {say(self.longest)} do not get done on nodes taken away every {say(1 / per_second)}",
                hint="use on-demand nodes, or let items save their progress",
            )

        def lasting(value: float) -> float:
            cuts = math.expm1(per_second * value)  # mean number of tries cut off
            return cuts / per_second + cuts * away_seconds

        return Durations(tuple((share, lasting(value)) for share, value in self.knots), self.origin)


def constant(seconds: float, origin: str = "") -> Durations:
    """A distribution in which every item takes the same time."""
    return Durations(((0.0, seconds), (1.0, seconds)), origin or f"{say(seconds)} each")


def from_quantiles(points: Sequence[tuple[float, float]], origin: str = "") -> Durations:
    """Interpolate linearly between points (share, seconds).

    Without shares 0 and 1, the outer points are the ends.
    """
    ordered = sorted(points)
    if not ordered or not all(0 <= share <= 1 for share, _ in ordered):
        raise UsageError("quantiles have shares between 0 and 1")
    knots = list(ordered)
    if knots[0][0] > 0:
        knots.insert(0, (0.0, knots[0][1]))
    if knots[-1][0] < 1:
        knots.append((1.0, knots[-1][1]))
    return Durations(tuple(knots), origin or "quantiles")


def lognormal(
    median: float, sigma: float, *, shortest: float = 0.0, longest: float | None = None, origin: str = ""
) -> Durations:
    """Times with normal logarithms of this deviation; values beyond the ends count as the end."""
    if not 0 < median < math.inf or not 0 <= sigma < 10:
        raise UsageError(f"a lognormal distribution has a median above 0 and a sigma from 0 to 10, not {sigma:g}")
    top = math.inf if longest is None else longest
    if shortest > top:
        raise UsageError(f"the shortest time ({say(shortest)}) is above the longest ({say(top)})")
    knots = [
        (share, min(top, max(shortest, median * math.exp(sigma * NORMAL.inv_cdf(share))))) for share in _levels()
    ]
    knots = [(0.0, knots[0][1]), *knots, (1.0, knots[-1][1])]
    return Durations(tuple(knots), origin or f"lognormal, median {say(median)}, sigma {sigma:g}")


def from_samples(samples: Sequence[float], *, longest: float | None = None, origin: str = "") -> Durations:
    """The distribution of measured items, with a lognormal tail beyond the longest.

    The tail is as wide as the upper part of the sample. Without a tail, a sample of 200 items would
    underestimate the longest of 150,000. Equal items get no tail. `longest` cuts the tail. Raises UsageError
    if there is no sample, or one is not a time.
    """
    if not samples:
        raise UsageError("the sample holds no item")
    ordered = sorted(samples)
    if ordered[0] < 0 or not math.isfinite(ordered[-1]) or ordered[-1] == 0:
        raise UsageError(f"times of the sample go from {ordered[0]:g} to {ordered[-1]:g} s; they must be above 0")
    count = len(ordered)
    last = (count - 0.5) / count
    knots = [(0.0, ordered[0])]
    knots += [((at + 0.5) / count, value) for at, value in enumerate(ordered)]
    sigma = min(WIDEST, _tail_sigma(ordered))
    top, edge = ordered[-1], NORMAL.inv_cdf(last) if count > 1 else 0.0
    if sigma > 0:
        knots += [
            (share, top * math.exp(sigma * (NORMAL.inv_cdf(share) - edge))) for share in _levels() if share > last
        ]
    if longest is not None:
        if longest < ordered[-1]:
            raise UsageError(f"the longest item is given as {say(longest)}, and one of the sample took {say(top)}")
        knots = [(share, min(value, longest)) for share, value in knots]
    knots.append((1.0, knots[-1][1]))
    return Durations(tuple(knots), origin or f"{count} measured items")


def _tail_sigma(ordered: Sequence[float]) -> float:
    """The standard deviation of the logarithms in the upper part of sorted samples; 0 if all are equal."""
    count = len(ordered)
    logs = [math.log(value) for value in ordered if value > 0]
    if count < SAMPLES_FOR_TAIL:
        return pstdev(logs) if len(logs) > 1 else 0.0
    low, high = (0.9, 0.99) if count >= SAMPLES_FOR_FAR_TAIL else (0.5, 0.9)
    a, b = ordered[int(low * count)], ordered[int(high * count)]
    return math.log(b / a) / (NORMAL.inv_cdf(high) - NORMAL.inv_cdf(low)) if a > 0 else 0.0


def _levels() -> list[float]:
    """The shares at which a curve is stored: close in the middle, then by rarity to both sides."""
    rare = [10 ** (-at / PER_DECADE) for at in range(PER_DECADE, round(-math.log10(RAREST)) * PER_DECADE + 1)]
    middle = [at / 200 for at in range(21, 180)]
    return sorted({*rare, *middle, *(1 - share for share in rare)})


_TERM = re.compile(r"(mean|sd|sigma|min|max|p\d+(?:\.\d+)?)=(.+)")
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h|d)")


def parse_seconds(text: str) -> float:
    """Parse a duration to seconds: "4", "0.5", "250ms", "1.5h", "1h30m". Raises UsageError."""
    word = text.strip().lower()
    if _NUMBER.fullmatch(word):
        return float(word)
    parts = _TIME.findall(word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        raise UsageError(f"invalid duration {text!r}", hint="write 4, 250ms, 90s, 20m, 1.5h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def say(seconds: float) -> str:
    """Format seconds for display: 0.25s, 4s, 58.2s, 14m24s, 1h30m."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def parse_durations(text: str, *, longest: float | None = None) -> Durations:
    """Parse the value of `--seconds`: a time, or a distribution.

        4 · 250ms                             every item takes that
        uniform:1..60                         anything in between
        lognormal:mean=4,p99=30[,min=1,max=60]    any two of mean, sd, sigma, p50, p90, …
        quantiles:p0=1,p50=3,p99=30,p100=60   straight lines in between

    Raises UsageError, with the text and the allowed forms.
    """
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        seconds = parse_seconds(kind)
        if seconds <= 0:
            raise UsageError(f"items take {text}, which is not above 0")
        return constant(seconds)
    match kind:
        case "uniform":
            low, dots, high = rest.partition("..")
            if not dots:
                raise UsageError(f"invalid distribution {text!r}", hint="write uniform:1..60")
            return from_quantiles([(0, parse_seconds(low)), (1, parse_seconds(high))], text)
        case "quantiles":
            terms = _terms(text, rest)
            points = [(_share(name), value) for name, value in terms.items() if name.startswith("p")]
            if len(points) != len(terms):
                raise UsageError(f"{text!r}: quantiles are p0 to p100", hint="quantiles:p50=3,p99=30,p100=60")
            if longest is not None:
                points = [(share, value) for share, value in points if share < 1] + [(1.0, longest)]
            return from_quantiles(points, text)
        case "lognormal":
            return _parse_lognormal(text, _terms(text, rest), longest)
    raise UsageError(
        f"invalid distribution {text!r}: {kind!r} is not known", hint="lognormal:, uniform: or quantiles:"
    )


def _terms(text: str, rest: str) -> dict[str, float]:
    terms: dict[str, float] = {}
    for part in rest.split(","):
        match = _TERM.fullmatch(part.strip())
        if not match:
            raise UsageError(f"{text!r}: {part!r} is not NAME=TIME", hint="mean, sd, sigma, min, max, p50, p99")
        terms[match[1]] = (
            float(match[2]) if match[1] == "sigma" and _NUMBER.fullmatch(match[2]) else parse_seconds(match[2])
        )
    return terms


def _share(name: str) -> float:
    share = float(name[1:]) / 100
    if not 0 <= share <= 1:
        raise UsageError(f"invalid quantile {name}: use p0 to p100")
    return share


def _parse_lognormal(text: str, terms: dict[str, float], longest: float | None) -> Durations:
    given = {name: value for name, value in terms.items() if name not in ("min", "max")}
    quantiles = sorted((_share(name), value) for name, value in given.items() if name[0] == "p")
    if len(given) != 2 or any(value <= 0 for name, value in given.items() if name not in ("sigma", "sd")):
        raise UsageError(f"{text!r}: a lognormal distribution takes two of mean, sd, sigma, p50, p90, …, above 0")
    if any(not 0 < share < 1 for share, _ in quantiles):
        raise UsageError(f"{text!r}: a lognormal distribution has no p0 and no p100", hint="use min= and max=")
    if len(quantiles) == 2:
        (low, a), (high, b) = quantiles
        sigma = math.log(b / a) / (NORMAL.inv_cdf(high) - NORMAL.inv_cdf(low))
        mu = math.log(a) - sigma * NORMAL.inv_cdf(low)
    elif quantiles:
        share, value = quantiles[0]
        z = NORMAL.inv_cdf(share)
        sigma = given["sigma"] if "sigma" in given else _sigma_of(text, given.get("mean"), z, value)
        mu = math.log(value) - sigma * z
    elif "mean" in given:
        sigma = given.get("sigma", math.sqrt(math.log1p((given.get("sd", 0.0) / given["mean"]) ** 2)))
        mu = math.log(given["mean"]) - sigma * sigma / 2
    else:
        raise UsageError(f"{text!r}: sd and sigma alone do not say how long an item takes")
    if sigma < 0:
        raise UsageError(f"{text!r}: the times fall while the shares rise")
    longest = terms.get("max") if longest is None else longest
    return lognormal(math.exp(mu), sigma, shortest=terms.get("min", 0.0), longest=longest, origin=text)


def _sigma_of(text: str, mean: float | None, z: float, value: float) -> float:
    """Solve mean = e^(mu + sigma²/2) and value = e^(mu + z sigma) for sigma; the smaller of both solutions."""
    if mean is None:
        raise UsageError(f"{text!r}: sd needs the mean; with a quantile give the mean, sigma or a second one")
    gap = math.log(value / mean)
    root = z * z - 2 * gap
    if root < 0 or (z <= 0 and gap >= 0):
        raise UsageError(f"{text!r}: a lognormal distribution with this mean and this quantile does not exist")
    return z - math.sqrt(root) if gap >= 0 else z + math.sqrt(root)


class Sample(Struct, frozen=True, kw_only=True):
    """Measured items. `peak_memory`: bytes, None if not measured; `cpu`: mean cores in use."""

    seconds: tuple[float, ...]
    peak_memory: int | None = None
    cpu: float | None = None


def read_sample(text: str) -> Sample:
    """Parse measured items: JSON, JSON lines, CSV with a column `seconds`, or one number per line.

    JSON is a list, or an object with a list `items` or `samples`. Entries are numbers, or objects with
    `seconds` and optionally `cpuSeconds` and `memoryBytes`. Items with `"ok": false` are skipped. Raises
    UsageError.
    """
    stripped = text.strip()
    if not stripped:
        raise UsageError("the sample is empty")
    if stripped[0] in "[{":
        return _sample_of(_json_rows(stripped))
    lines = stripped.splitlines()
    if "," in lines[0] or not _NUMBER.fullmatch(lines[0].strip()):
        import csv

        rows: list[object] = list(csv.DictReader(lines))
        if not rows or "seconds" not in (rows[0] if isinstance(rows[0], dict) else {}):
            raise UsageError("the sample has no column `seconds`", hint="or write one number a line, or JSON")
        return _sample_of(rows)
    return _sample_of([line.strip() for line in lines if line.strip()])


def _json_rows(text: str) -> list[object]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UsageError(f"the sample is not JSON: {whole}") from whole
    if isinstance(document, dict):
        rows = document.get("items", document.get("samples"))
        document = rows if rows is not None else [document]
    if not isinstance(document, list):
        raise UsageError("the sample is not a list of items", hint='[{"seconds": 4.1, "memoryBytes": 200000000}]')
    return document


def _sample_of(rows: Sequence[object]) -> Sample:
    seconds, memory, cpu = [], [], []
    for number, row in enumerate(rows, 1):
        fields = row if isinstance(row, dict) else {"seconds": row}
        if str(fields.get("ok", True)).lower() in ("false", "0"):
            continue
        took = _sample_number(fields.get("seconds"), number, "seconds")
        if took is None or took <= 0:
            raise UsageError(
                f"item {number} of the sample took {fields.get('seconds')!r} seconds: it must be more than 0"
            )
        seconds.append(took)
        used = _sample_number(fields.get("cpuSeconds"), number, "cpuSeconds")
        peak = _sample_number(fields.get("memoryBytes"), number, "memoryBytes")
        if used is not None:
            cpu.append(used / took)
        if peak is not None:
            memory.append(round(peak))
    if not seconds:
        raise UsageError("the sample has no successful item")
    return Sample(
        seconds=tuple(seconds),
        peak_memory=max(memory) if memory else None,
        cpu=fmean(cpu) if cpu else None,
    )


def _sample_number(value: object, number: int, name: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        result = float(value)
        if not 0 <= result < math.inf:
            raise ValueError
    except ValueError:
        raise UsageError(f"item {number} of the sample: {name} is {value!r}, no number of at least 0") from None
    return result


class WorkTime:
    """The end of the work, for one distribution and any number of items and slots. Caches costly values."""

    def __init__(self, durations: Durations) -> None:
        self.durations = durations
        seconds, shares = durations.seconds, durations.shares
        logs = [-math.log(max(share, 1e-300)) for share in shares]
        above = [0.0]  # ∫ from the knot to the longest of -log(share within)
        for at in range(len(seconds) - 1, 0, -1):
            above.append(above[-1] + (seconds[at] - seconds[at - 1]) * (logs[at] + logs[at - 1]) / 2)
        self._above = above[::-1]
        self._logs = logs
        self._settled = 2.0 + max(ROUGH / max(durations.variation, 1e-12), min(100.0, 10 * durations.variation))

    def until_done(self, items: int, slots: float, chance: float = 0.5) -> float:
        """Seconds until the last of `items` items ends on `slots` slots, with this probability.

        With more slots, the result is never larger. Slots beyond the number of items have no effect. A fraction
        of a slot counts as a slower slot. The result can differ from a simulation of each item: by at most
        `TOLERANCE` of the tests.
        """
        times = self.durations
        slots = min(float(slots), float(items))
        if items <= 0:
            return 0.0
        if times.is_constant:
            return math.ceil(items / slots - 1e-9) * times.longest
        if slots >= items:
            return times.longest_of(items, chance)
        rest = items - slots
        last_start = self._last_start(items / slots)
        if last_start <= 0:
            return times.longest_of(items, chance)
        enough = -math.log(chance)
        low, high = last_start + times.shortest, last_start + times.longest
        for _ in range(44):  # to 10^-13 of the longest item
            middle = (low + high) / 2
            late = slots * -math.log(max(times.share_within(middle), 1e-300))
            late += rest / last_start * (self._over(middle - last_start) - self._over(middle))
            low, high = (middle, high) if late > enough else (low, middle)
        return high + NORMAL.inv_cdf(chance) * math.sqrt(rest * times.variation) * times.mean / slots

    def _over(self, start: float) -> float:
        """The integral of -log(share within) from `start` to the longest duration."""
        seconds = self.durations.seconds
        if start >= seconds[-1]:
            return 0.0
        at = bisect_left(seconds, start)
        if at == 0:
            return self._above[0]
        gap = seconds[at] - seconds[at - 1]
        part = (seconds[at] - start) / gap if gap > 0 else 0.0
        log = self._logs[at] + (self._logs[at - 1] - self._logs[at]) * part
        return self._above[at] + (seconds[at] - start) * (self._logs[at] + log) / 2

    def _last_start(self, rounds: float) -> float:
        """The time at which the queue becomes empty, for `rounds` items per slot.

        The renewal function is rounds - 1.
        """
        mean, variation = self.durations.mean, self.durations.variation
        settled = mean * (rounds - (1 + variation) / 2)
        if rounds >= self._settled:
            return max(0.0, settled)
        at_most = max(0.0, mean * (self._settled - (1 + variation) / 2))
        low, high = 0.0, mean * rounds  # the last start is never later than an even share of the work
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._has_ended(middle, rounds - 1) else (middle, high)
        return min(high, at_most)

    def _has_ended(self, seconds: float, wanted: float) -> bool:
        """Whether a slot has completed `wanted` items by then, on average.

        Sums of items are treated as lognormal.
        """
        mean, variation = self.durations.mean, self.durations.variation
        rounds = seconds / mean
        count = max(2, int(rounds - 8 * math.sqrt(variation * rounds)) - 1)  # those before have all ended
        ended = count - 2 + self.durations.share_within(seconds)
        while seconds > 0 and ended < wanted:
            spread = math.log1p(variation / count)
            share = NORMAL.cdf((math.log(seconds / (count * mean)) + spread / 2) / math.sqrt(spread))
            ended += share
            if share < FEW:
                break
            count += 1
        return ended >= wanted
