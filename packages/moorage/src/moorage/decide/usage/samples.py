"""The use of pods, measured every 30 seconds, and the aggregation of old measurements.

A reading becomes a tally of one slot of 30 s; tallies of windows of five minutes are sums of slots, and those of
hours are sums of five minutes. Sums are exact whole numbers, and peaks are preserved: the tally of an hour does
not depend on the sums in between. A slot without a reading has no tally. It is a gap, which is never filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from math import ceil
from operator import attrgetter
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

SLOT_SECONDS = 30  # between two readings of a pod; kubelets themselves measure every 10 to 20 s
BUSY_PERCENT = 5.0  # a GPU that was used at least so much worked; an idle one reports 0 to 2 %
COVERED = 0.75  # of a window that must be measured to say something: a restart of the server costs less
MISSING_SLOTS = 2  # that an hour may miss, wherever they are: each of its windows is COVERED
LATE_SECONDS = 300  # for which a window waits for late readings before it is summed up
KIB = 1024
_CPU_MAX = 10_000_000  # thousandths of a core, which a wrong counter may exceed
_MEMORY_MAX = 1 << 50
_GPU_MEMORY_MAX = 1 << 40
_POWER_MAX = 10_000_000  # milliwatts of one GPU
_GPUS_MAX = 64  # of one pod that are measured
_TENTHS, _MILLI = 10, 1000  # utilisation is stored in tenths of a percent, power in milliwatts
_BUSY_TENTHS = BUSY_PERCENT * _TENTHS
N = TypeVar("N", int, float)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STEPS = (30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Lengths of the windows of a chart, in seconds: each is a multiple of the level that it is made from."""


class Level(IntEnum):
    """The resolution of stored measurements; the value is the length of a window in seconds."""

    SLOT = SLOT_SECONDS
    WINDOW = 300
    HOUR = 3600


class GpuReading(Struct, frozen=True, kw_only=True):
    """The reading of one GPU of a pod at one moment."""

    device: str  # its id as the source names it: a UUID, or NODE/NUMBER
    utilisation: float  # percent of the time in which it computed, 0 to 100
    memory_bytes: int = 0  # in use
    memory_total_bytes: int = 0  # that it has; 0: not reported
    power_watts: float | None = None  # None: not reported


class Reading(Struct, frozen=True, kw_only=True):
    """The use of a pod at one moment, all its containers together. None: not measured."""

    pod_uid: str
    at: datetime
    cpu_milli: int | None = None  # thousandths of a core
    memory_bytes: int | None = None  # the working set, which counts against the limit
    gpus: tuple[GpuReading, ...] = ()
    owner: str = ""  # its user; empty: unknown
    namespace: str = ""


class Tally(Struct, frozen=True, kw_only=True):
    """Sums and peaks over slots of one pod, or of several. Whole numbers, so that sums are exact.

    Counts differ where a source did not report all values. GPU counts and sums are over devices: two GPUs in one
    slot count two.
    """

    slots: int = 0  # with a reading; × SLOT_SECONDS: the time measured
    cpu_count: int = 0
    cpu_sum: int = 0  # thousandths of a core
    cpu_peak: int = 0
    memory_count: int = 0
    memory_sum: int = 0  # KiB
    memory_peak: int = 0
    gpu_count: int = 0
    gpu_sum: int = 0  # utilisation, tenths of a percent
    gpu_peak: int = 0  # of a single GPU
    gpu_memory_sum: int = 0  # KiB
    gpu_memory_peak: int = 0  # of a single GPU
    power_count: int = 0
    power_sum: int = 0  # milliwatts
    power_peak: int = 0  # of all its GPUs in one slot
    gpus: int = 0  # the most that were measured in one slot
    busy_gpus: int = 0  # the most that were used at least BUSY_PERCENT in one slot

    @property
    def seen(self) -> Seen:
        return Seen(0, self.slots, self.cpu_count, self.cpu_sum, self.gpu_count, self.gpu_peak, self.gpus)

    @property
    def seconds(self) -> int:
        """The number of seconds with readings."""
        return self.slots * SLOT_SECONDS

    @property
    def cpu_milli(self) -> float | None:
        """The mean CPU use in millicores; None: not measured."""
        return self.cpu_sum / self.cpu_count if self.cpu_count else None

    @property
    def cpu_milli_peak(self) -> int | None:
        return self.cpu_peak if self.cpu_count else None

    @property
    def memory_bytes(self) -> int | None:
        return self.memory_sum * KIB // self.memory_count if self.memory_count else None

    @property
    def memory_bytes_peak(self) -> int | None:
        return self.memory_peak * KIB if self.memory_count else None

    @property
    def gpu_utilisation(self) -> float | None:
        """The mean utilisation of all GPUs and slots, in percent; None: not measured."""
        return self.gpu_sum / self.gpu_count / _TENTHS if self.gpu_count else None

    @property
    def gpu_utilisation_peak(self) -> float | None:
        """The highest utilisation of a single GPU in one slot, in percent."""
        return self.gpu_peak / _TENTHS if self.gpu_count else None

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The mean memory use of one GPU."""
        return self.gpu_memory_sum * KIB // self.gpu_count if self.gpu_count else None

    @property
    def gpu_seconds(self) -> int:
        """The sum of the measured time of all GPUs."""
        return self.gpu_count * SLOT_SECONDS

    @property
    def gpu_busy_seconds(self) -> float:
        """GPUs × time, times their utilisation."""
        return self.gpu_sum * SLOT_SECONDS / (100 * _TENTHS)

    @property
    def power_watts(self) -> float | None:
        """The mean power of one GPU; None: not measured."""
        return self.power_sum / self.power_count / _MILLI if self.power_count else None


NOTHING = Tally()
MEASURES = Tally.__struct_fields__
PEAKS = frozenset({"gpus", "busy_gpus", *(name for name in MEASURES if name.endswith("_peak"))})
_VALUES = attrgetter(*MEASURES)
_ARE_PEAKS = tuple(name in PEAKS for name in MEASURES)
_GPU_PEAK, _CPU_SUM, _CPU_COUNT = map(MEASURES.index, ("gpu_peak", "cpu_sum", "cpu_count"))


class Point(Struct, frozen=True, kw_only=True):
    """The use of one pod in a window that begins at `start`. A window without a reading has no point."""

    pod_uid: str
    start: datetime
    length: timedelta
    tally: Tally


class PodUse(Struct, frozen=True, kw_only=True):
    """The use of one pod over its life, or over the requested part of it."""

    pod_uid: str
    first: datetime  # when its first reading was taken, and its last, over its whole life
    last: datetime
    owner: str
    namespace: str
    tally: Tally


class Limits(Struct, frozen=True, kw_only=True):
    """The limits between use and idleness of a window."""

    gpu_percent: float  # of a GPU at its highest
    cpu_milli: float  # of all containers, as the mean; thousandths of a core


class Stretch(NamedTuple):
    """Consecutive whole hours in which all windows of a pod with readings have the same use by some `Limits`.

    If the pod is used: in each window a GPU had at least BUSY_PERCENT and the limit. Otherwise: in each
    window, CPU and `gpus` GPUs were measured for at least the share COVERED, and stayed below both limits.
    """

    pod_uid: str
    start: datetime
    end: datetime
    length: timedelta  # of a window
    is_used: bool
    windows: int  # with readings
    gpus: int  # that were measured in each slot, at least; 0 for one that is used
    cpu_milli: int  # no mean of a window is above it; 0 for one that is used

    @property
    def is_whole(self) -> bool:
        """Whether every window has readings."""
        return self.windows * self.length == self.end - self.start


class Seen(NamedTuple):
    """The fields of a Tally that decide between use and idleness."""

    place: int  # number of the window in its hour, from 0
    slots: int
    cpu_count: int
    cpu_sum: int
    gpu_count: int
    gpu_peak: int
    gpus: int

    @classmethod
    def joined(cls, place: int, parts: Iterable[Seen]) -> Seen:
        """Merge several windows of one pod."""
        _, slots, cpu_count, cpu_sum, gpu_count, gpu_peak, gpus = zip(*parts, strict=True)
        return cls(place, sum(slots), sum(cpu_count), sum(cpu_sum), sum(gpu_count), max(gpu_peak), max(gpus))

    def gpu_percent(self, gpus: int, slots: float) -> float | None:
        """The highest GPU reading in a window of `slots` slots, for a pod with `gpus` GPUs; in percent.

        A single busy reading is enough. Otherwise None unless all GPUs were measured for the share COVERED of
        the window.
        """
        if self.gpu_peak < _BUSY_TENTHS and (
            self.slots < COVERED * slots or self.gpus < gpus or self.gpu_count < gpus * self.slots
        ):
            return None
        return self.gpu_peak / _TENTHS

    def cpu_milli(self, slots: float) -> float | None:
        """The mean CPU use. None unless it was measured for the share COVERED of a window of `slots` slots."""
        if not self.cpu_count or self.slots < COVERED * slots or self.cpu_count < self.slots:
            return None
        return self.cpu_sum / self.cpu_count


class Hour(NamedTuple):
    """The windows with readings of one pod in one hour, oldest first."""

    pod_uid: str
    start: datetime
    length: timedelta  # of a window
    windows: list[Seen]


class Sum(Struct, frozen=True, kw_only=True):
    """The use of all pods of one owner in a window; `owner` empty: all pods, or pods of unknown owners."""

    start: datetime
    length: timedelta
    owner: str
    tally: Tally


def tally_of(reading: Reading) -> Tally:
    """A reading as a tally of one slot. Impossible values are cut to possible ones."""
    return tally_from(measures_of(reading))


def measures_of(reading: Reading) -> tuple[int, ...]:
    """`tally_of` as a tuple in the order of MEASURES, for the store."""
    gpus = reading.gpus[:_GPUS_MAX]
    use = [round(_within(gpu.utilisation, 100) * _TENTHS) for gpu in gpus]
    held = [_kib(_within(gpu.memory_bytes, _GPU_MEMORY_MAX)) for gpu in gpus]
    power = [round(_within(gpu.power_watts * _MILLI, _POWER_MAX)) for gpu in gpus if gpu.power_watts is not None]
    cpu = 0 if reading.cpu_milli is None else _within(reading.cpu_milli, _CPU_MAX)
    memory = 0 if reading.memory_bytes is None else _kib(_within(reading.memory_bytes, _MEMORY_MAX))
    watts = sum(power)
    return (
        1,  # slots
        int(reading.cpu_milli is not None),
        *(cpu, cpu),
        int(reading.memory_bytes is not None),
        *(memory, memory),
        len(gpus),
        *(sum(use), max(use, default=0)),
        *(sum(held), max(held, default=0)),
        len(power),
        *(watts, watts),
        len(gpus),
        sum(tenths >= _BUSY_TENTHS for tenths in use),
    )


def added(tallies: Iterable[Tally]) -> Tally:
    """Sums of sums, peaks of peaks. The order and grouping do not change the result."""
    return tally_from(added_rows(map(row_of, tallies)))


def added_rows(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Like `added`, for tallies as tuples in the order of MEASURES."""
    columns = list(zip(*rows, strict=True))
    if not columns:
        return row_of(NOTHING)
    return tuple(max(values) if peak else sum(values) for values, peak in zip(columns, _ARE_PEAKS, strict=True))


def extremes_of(windows: Sequence[tuple[int, ...]]) -> tuple[int, int, int]:
    """The number of windows of an hour, their lowest GPU peak, and their highest mean CPU, rounded up.

    Each window is a tuple in the order of MEASURES. CPU is in millicores.
    """
    means = [-(-window[_CPU_SUM] // window[_CPU_COUNT]) for window in windows if window[_CPU_COUNT]]
    return len(windows), min(window[_GPU_PEAK] for window in windows), max(means, default=0)


def tenths_of(percent: float) -> tuple[int, int]:
    """A limit of `Limits` in the units of `gpu_peak`: a GPU was used at the first or more, not used below the
    second.
    """
    return ceil(max(percent, BUSY_PERCENT) * _TENTHS), int(percent * _TENTHS)


def row_of(tally: Tally) -> tuple[int, ...]:
    """Convert a tally to a tuple in the order of MEASURES. `tally_from` converts it back."""
    row: tuple[int, ...] = _VALUES(tally)
    return row


def tally_from(row: Iterable[int]) -> Tally:
    return Tally(**dict(zip(MEASURES, row, strict=True)))


def floor(moment: datetime, step: int) -> datetime:
    """The start of the window of `step` seconds that contains a moment. Days start at midnight UTC."""
    return _EPOCH + timedelta(seconds=seconds_of(moment) // step * step)


def seconds_of(moment: datetime) -> int:
    """The moment in whole seconds since 1970-01-01 UTC."""
    return (moment - _EPOCH) // timedelta(seconds=1)


def moment_of(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


class Marks(Struct, frozen=True, kw_only=True):
    """The progress of the aggregation, in seconds since 1970. 0: nothing yet.

    Slots before `slots_summed` are also stored in windows of five minutes, and windows before `windows_summed` in
    hours. Slots before `slots_from` and windows before `windows_from` are deleted.
    """

    slots_summed: int = 0
    windows_summed: int = 0
    slots_from: int = 0
    windows_from: int = 0


class Segment(Struct, frozen=True):
    """A query: the rows of this level that start in [since, until)."""

    level: Level
    since: int
    until: int


def segments(marks: Marks, *, since: int, until: int, step: int) -> tuple[Segment, ...]:
    """The rows to read for [since, until), for windows of `step` seconds; the oldest first.

    Each slot is in one segment, so nothing counts twice. Where the finest rows for a step are deleted, coarser
    ones are used. A row of a level begins before `since` if `since` is in the middle of it.
    """
    if step >= Level.HOUR:
        hours_end, windows_end = marks.windows_summed, marks.slots_summed
    elif step >= Level.WINDOW:
        hours_end, windows_end = marks.windows_from, marks.slots_summed
    else:
        hours_end, windows_end = marks.windows_from, marks.slots_from
    windows_end = max(windows_end, hours_end)
    edges = ((Level.HOUR, 0, hours_end), (Level.WINDOW, hours_end, windows_end), (Level.SLOT, windows_end, until))
    parts = []
    for level, start, end in edges:
        first, last = max(start, since // level * level), min(end, until)
        if first < last:
            parts.append(Segment(level, first, last))
    return tuple(parts)


def next_step(
    marks: Marks, *, first_slot: int | None, first_hour: int | None, now: int
) -> tuple[Level, Marks] | None:
    """The next window or hour to sum up; it ends at the returned mark of its level. None if none is complete.

    `first_slot`: the first slot that is in no window yet. `first_hour`: the hour of the first window that is in no
    hour yet, if nothing was summed up before. None: there is none. Windows without slots are skipped.
    """
    ready = (now - LATE_SECONDS) // Level.WINDOW * Level.WINDOW
    if first_slot is not None:
        end = first_slot // Level.WINDOW * Level.WINDOW + Level.WINDOW
        if end <= ready:
            return Level.WINDOW, replace(marks, slots_summed=end)
        ready = min(ready, end - Level.WINDOW)
    start = marks.windows_summed or first_hour
    if start is None:
        return None
    end = start // Level.HOUR * Level.HOUR + Level.HOUR
    if end > ready:
        return None
    return Level.HOUR, replace(marks, slots_summed=max(marks.slots_summed, end), windows_summed=end)


def corrected(marks: Marks, now: int) -> Marks:
    """The marks; those of `now` if a fast clock has moved them beyond it.

    Rows that are summed up again then replace the earlier ones.
    """
    if marks.slots_summed <= now:
        return marks
    windows, hours = now // Level.WINDOW * Level.WINDOW, now // Level.HOUR * Level.HOUR
    return Marks(
        slots_summed=windows,
        windows_summed=min(marks.windows_summed, hours),
        slots_from=min(marks.slots_from, windows),
        windows_from=min(marks.windows_from, hours),
    )


def is_late(marks: Marks, at: int) -> bool:
    """Whether a reading comes after its window was summed up. Such a reading no longer counts."""
    return at < marks.slots_summed


def newest_of(readings: Iterable[Reading]) -> dict[tuple[int, str], Reading]:
    """The newest reading for each slot (its start in seconds) and pod.

    The order of the readings does not matter.
    """
    chosen: dict[tuple[int, str], Reading] = {}
    for reading in readings:
        key = (seconds_of(reading.at) // SLOT_SECONDS * SLOT_SECONDS, reading.pod_uid)
        known = chosen.get(key)
        if known is None or (reading.at >= known.at and _order(reading) > _order(known)):
            chosen[key] = reading
    return chosen


def step_for(span: timedelta, *, most: int = 240) -> int:
    """The window length (seconds) of a chart over `span`, so that the chart has at most `most` windows if
    possible.
    """
    for step in STEPS:
        if span.total_seconds() / step <= most:
            return step
    return STEPS[-1]


def by_pod(points: Iterable[Point]) -> Mapping[str, list[Point]]:
    """The points of each pod, oldest first."""
    grouped: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda point: (point.start, point.pod_uid)):
        grouped.setdefault(point.pod_uid, []).append(point)
    return grouped


def _within(value: N, most: int) -> N | int:
    return value if 0 <= value <= most else most if value > most else 0  # 0 for values that are not numbers


def _kib(size: int) -> int:
    return -(-size // KIB)


def _order(reading: Reading) -> tuple[datetime, tuple[int, ...], str]:
    return (reading.at, measures_of(reading), repr(reading.gpus))
