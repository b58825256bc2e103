"""Measured use of pods, in SQL: `samples.db` next to `usage.db`, or PostgreSQL, where servers share them.

Readings of 30 s are summed up to windows of five minutes and hours (`decide.usage.samples`); each level has its
own retention. Sums are packed: the slots of a window, and the windows of an hour, are one row for each pod
(`decide.usage.packed`). A step is one transaction that ends with its mark: a process killed at any moment leaves
the state before or after a whole step, and readings that are added again change nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import add
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from moorage.decide.usage.packed import pack, unpack
from moorage.decide.usage.samples import (
    MEASURES,
    MISSING_SLOTS,
    PEAKS,
    GpuReading,
    Hour,
    Level,
    Limits,
    Marks,
    PodUse,
    Point,
    Reading,
    Seen,
    Segment,
    Stretch,
    Sum,
    Tally,
    added_rows,
    corrected,
    extremes_of,
    is_late,
    measures_of,
    moment_of,
    newest_of,
    next_step,
    seconds_of,
    segments,
    tally_from,
    tenths_of,
)
from moorage.model.retention import SAMPLE_HOURS, SAMPLE_WINDOW_DAYS, USAGE_DAYS
from moorage.sql.database import Database, Row, Table
from moorage.sql.migrations import Schema
from moorage.sql.opening import LateDatabase, is_postgres
from moorage.sql.timestamps import from_microseconds, to_microseconds
from moorage_kube.errors import StorageError

SCHEMA = Schema("moorage.usage", "samples.", folder="migrations/samples")
NUMBERS_KEPT = 20_000  # of pods that are remembered; others are read again
LATEST_KEPT = timedelta(days=1)  # the newest reading of a deleted pod
_NUMBERS = ("bigint",) * len(MEASURES)
PODS = Table(
    "sample_pods",
    ("pod_uid", "number", "namespace", "owner", "first_at", "last_at"),
    types=("text", "bigint", "text", "text", "bigint", "bigint"),
    keys=1,
)
LATEST = Table("sample_latest", ("pod", "read_at", "reading"), types=("bigint", "bigint", "text"), keys=1)
SLOTS = Table("sample_slots", ("at", "pod", "read_at", *MEASURES), types=("bigint",) * 3 + _NUMBERS, keys=2)
WINDOWS = Table("sample_windows", ("pod", "at", *MEASURES), types=("bigint",) * 2 + _NUMBERS, keys=2)
HOURS = Table(
    "sample_hours",
    ("pod", "at", *MEASURES, "windows", "gpu_low", "cpu_high"),  # the last three: `extremes_of` its windows
    types=("bigint",) * 2 + _NUMBERS + ("bigint",) * 3,
    keys=2,
)
PACKED_SLOTS = Table("sample_packed_slots", ("pod", "at", "packed"), types=("bigint", "bigint", "bytea"), keys=2)
PACKED_WINDOWS = Table(
    "sample_packed_windows", ("pod", "at", "packed"), types=("bigint", "bigint", "bytea"), keys=2
)
SUMS = Table("sample_sums", ("level", "at", *MEASURES), types=("bigint",) * 2 + _NUMBERS, keys=2)
MARKS = Table("sample_marks", ("name", "at"), types=("text", "bigint"), keys=1)
# Hours of a pod that are alike: for each its number × 16 and how many windows were used, 0 where all were idle.
_ALIKE = """
SELECT pod, {hours}, MIN(CASE WHEN used = 0 THEN gpus END), MAX(CASE WHEN used = 0 THEN cpu END) FROM (
    SELECT s.pod, s.at, s.gpus, {cpu} AS cpu, CASE
        WHEN {low} >= ? THEN {used}
        WHEN s.gpu_peak < ? AND {cpu} < ? AND s.slots >= {slots}
            AND s.gpus > 0 AND s.gpu_count = s.gpus * s.slots AND s.cpu_count = s.slots THEN 0
        END AS used
    FROM sample_hours s WHERE s.pod IN ({pods}) AND s.at >= ? AND s.at < ?
) AS h WHERE used IS NOT NULL GROUP BY pod
"""
_TABLES = {Level.SLOT: SLOTS, Level.WINDOW: WINDOWS, Level.HOUR: HOURS}
_PACKED = {Level.SLOT: (PACKED_SLOTS, Level.WINDOW), Level.WINDOW: (PACKED_WINDOWS, Level.HOUR)}  # rows in one
_MEASURES = ", ".join(f"s.{name}" for name in MEASURES)
_ADDING = {name: f"CAST({'MAX' if name in PEAKS else 'SUM'}(s.{name}) AS BIGINT)" for name in MEASURES}
_ADDED = ", ".join(_ADDING.values())
_GPU_USE = ("slots", "gpu_count", "gpu_sum")
_SEEN_FIELDS = Seen._fields[1:]
_FIRST_SLOT = "SELECT MIN(at) FROM sample_slots WHERE at >= ?"
_SLOTS_OF_WINDOW = (
    f"SELECT s.pod, s.at, s.read_at, {_MEASURES} FROM sample_slots s WHERE s.at >= ? AND s.at < ? ORDER BY s.at"
)
_SUMS_OF_SLOTS = (
    f"SELECT {Level.SLOT:d}, s.at, {_ADDED} FROM sample_slots s WHERE s.at >= ? AND s.at < ? GROUP BY s.at"
)
_SEEN = "UPDATE sample_pods SET last_at = ? WHERE number = ? AND last_at < ?"
# `+` excludes a column from the choice of indexes: SQLite reads the other table first.
_WINDOWS_OF_HOUR = (
    f"SELECT s.pod, s.at, {_MEASURES} FROM sample_pods p JOIN sample_windows s ON s.pod = +p.number"
    " WHERE p.last_at >= ? AND s.at >= ? AND s.at < ? ORDER BY s.at"
)
_OF_RECENT = "pod IN (SELECT number FROM sample_pods WHERE last_at >= ?)"
_MICROSECONDS = 1_000_000
_AT_ONCE = 200  # pods in one statement
_BY_KEYS = 30_000  # slots that are looked up each by its key; more are scanned


class Retention(Struct, frozen=True, kw_only=True):
    """Retention of readings, and of their sums over windows of five minutes and over hours."""

    slots: timedelta = timedelta(hours=SAMPLE_HOURS)
    windows: timedelta = timedelta(days=SAMPLE_WINDOW_DAYS)
    hours: timedelta = timedelta(days=USAGE_DAYS)


class SampleStore:
    """The tables of readings. Methods block for the disk: call them off the event loop. Safe for threads.

    Two servers may read at the same time; only one may add. PostgreSQL is connected at the first use, so its
    outage does not stop a server. Opening a file raises StorageError if it is not a database or was written
    by a newer Moorage, StorageDamaged if acknowledged data is missing. Every method raises StorageError, and
    StorageFull if the disk is full.
    """

    def __init__(self, where: Path | str, *, retention: Retention | None = None) -> None:
        self._lock = threading.Lock()
        self._retention = retention or Retention()
        self._database = LateDatabase(where, SCHEMA, name="the history of pods' usage")
        self._numbers: dict[str, int] = {}  # by uid, of pods that readings were added of
        if not is_postgres(where):
            self._database.use()

    @property
    def _db(self) -> Database:
        return self._database.use()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # --- in

    def add(self, readings: Iterable[Reading]) -> int:
        """Store readings, all or none; return the number of new ones.

        For one pod and slot the newest counts, in any order of arrival. A reading that comes LATE_SECONDS
        after the end of its window, when the window is summed up, is dropped.
        """
        with self._lock:
            numbers: dict[str, int] = {}
            with self._db.transaction():
                marks = self._marks()
                chosen = {
                    key: reading for key, reading in newest_of(readings).items() if not is_late(marks, key[0])
                }
                if not chosen:
                    return 0
                numbers = self._known_numbers(list(chosen.values()))
                slots = {
                    (at, numbers[uid]): (
                        at,
                        numbers[uid],
                        to_microseconds(reading.at),
                        *measures_of(reading),
                    )
                    for (at, uid), reading in chosen.items()
                }
                for stored in self._db.by_keys(SLOTS, list(slots), lock=True):
                    if stored >= slots[stored[:2]]:
                        del slots[stored[:2]]
                self._db.upsert(SLOTS, list(slots.values()))
                self._keep_latest(chosen.values(), numbers)
            self._numbers = numbers if len(self._numbers) > NUMBERS_KEPT else self._numbers | numbers
            return len(slots)

    def _known_numbers(self, readings: Sequence[Reading]) -> dict[str, int]:
        """The numbers of these pods. New pods get a number."""
        numbers = {reading.pod_uid: self._numbers.get(reading.pod_uid, -1) for reading in readings}
        unknown = [(uid,) for uid, number in numbers.items() if number < 0]
        if unknown:
            numbers |= dict(self._db.by_keys(PODS, unknown, columns=("pod_uid", "number")))
        first: dict[str, Reading] = {}
        for reading in readings:
            known = first.get(reading.pod_uid)
            if numbers[reading.pod_uid] < 0 and (known is None or reading.at < known.at):
                first[reading.pod_uid] = reading
        if first:
            ((highest,),) = self._db.rows("SELECT COALESCE(MAX(number), 0) FROM sample_pods")
            numbers |= {uid: number for number, uid in enumerate(first, int(highest) + 1)}
            rows = [
                (uid, numbers[uid], reading.namespace, reading.owner, *(seconds_of(reading.at),) * 2)
                for uid, reading in first.items()
            ]
            self._db.insert(PODS, rows)
        return numbers

    def _keep_latest(self, readings: Iterable[Reading], numbers: Mapping[str, int]) -> None:
        newest: dict[int, Row] = {}
        for reading in readings:
            number = numbers[reading.pod_uid]
            row = (number, to_microseconds(reading.at), _encoded(reading))
            if number not in newest or row > newest[number]:
                newest[number] = row
        for stored in self._db.by_keys(LATEST, [(number,) for number in newest], lock=True):
            if stored >= newest[stored[0]]:
                del newest[stored[0]]
        self._db.upsert(LATEST, list(newest.values()))

    # --- thinned out

    def downsample(self, now: datetime, *, most: int = 1000) -> int:
        """Sum up complete windows and hours, at most so many, and delete expired ones.

        Return the number summed up.
        """
        count = 0
        while count < most and self._sum_up(seconds_of(now)):
            count += 1
        self.forget(now)
        return count

    def _sum_up(self, now: int) -> bool:
        """Sum up one window or hour. Returns whether there was one."""
        with self._lock, self._db.transaction():
            stored = self._marks()
            marks = corrected(stored, now)
            if marks != stored:
                self._unpack(marks)
            ((first_slot,),) = self._db.rows(_FIRST_SLOT, marks.slots_summed)
            step = next_step(marks, first_slot=first_slot, first_hour=self._first_hour(marks), now=now)
            if step is None:
                self._mark(stored, marks)
                return False
            level, after = step
            if level is Level.WINDOW:
                self._sum_up_window(after.slots_summed - level)
            else:
                self._sum_up_hour(after.windows_summed - level)
            self._mark(stored, after)
            return True

    def _sum_up_window(self, start: int) -> None:
        """Convert the slots of a window to one window and one row of packed slots per pod, and sums over all
        pods.
        """
        slots: dict[int, list[Row]] = {}
        seen: dict[int, int] = {}
        end = start + Level.WINDOW
        for number, at, read_at, *measures in self._db.rows(_SLOTS_OF_WINDOW, start, end):
            slots.setdefault(number, []).append(
                ((at - start) // Level.SLOT, read_at - at * _MICROSECONDS, *measures)
            )
            seen[number] = max(seen.get(number, 0), read_at // _MICROSECONDS)
        self._write_sums(
            Level.WINDOW, start, {number: [row[2:] for row in rows] for number, rows in slots.items()}
        )
        self._db.run_each(_SEEN, ((at, number, at) for number, at in seen.items()))
        self._db.upsert(SUMS, self._db.rows(_SUMS_OF_SLOTS, start, end))
        self._db.upsert(PACKED_SLOTS, [(number, start, pack(rows)) for number, rows in slots.items()])
        self._db.run("DELETE FROM sample_slots WHERE at >= ? AND at < ?", start, end)

    def _first_hour(self, marks: Marks) -> int | None:
        if marks.windows_summed:
            return None
        ((first,),) = self._db.rows("SELECT MIN(first_at) FROM sample_pods")
        return None if first is None else int(first)

    def _sum_up_hour(self, start: int) -> None:
        """Convert the windows of an hour to one hour and one row of packed windows per pod, and sums over all
        pods.
        """
        windows: dict[int, list[Row]] = {}
        end = start + Level.HOUR
        for number, at, *measures in self._db.rows(_WINDOWS_OF_HOUR, start, start, end):
            windows.setdefault(number, []).append(((at - start) // Level.WINDOW, *measures))
        self._write_sums(
            Level.HOUR, start, {number: [row[1:] for row in rows] for number, rows in windows.items()}
        )
        self._db.upsert(PACKED_WINDOWS, [(number, start, pack(rows)) for number, rows in windows.items()])
        self._db.run(f"DELETE FROM sample_windows WHERE {_OF_RECENT} AND at >= ? AND at < ?", start, start, end)

    def _write_sums(self, level: Level, start: int, parts: Mapping[int, Sequence[Row]]) -> None:
        """Write the window or hour of each pod from the measures of its parts, and the sum over all pods."""
        rows = {number: added_rows(measures) for number, measures in parts.items()}
        extremes = {number: extremes_of(parts[number]) if level is Level.HOUR else () for number in rows}
        self._db.upsert(_TABLES[level], [(number, start, *row, *extremes[number]) for number, row in rows.items()])
        if rows:
            self._db.upsert(SUMS, [(int(level), start, *added_rows(rows.values()))])

    def _unpack(self, marks: Marks) -> None:
        """Unpack rows after these marks to the tables that are summed up, for a clock that was ahead."""
        for level, mark in ((Level.SLOT, marks.slots_summed), (Level.WINDOW, marks.windows_summed)):
            packed, _ = _PACKED[level]
            rows: list[Row] = []
            for number, start, data in self._db.rows(f"SELECT * FROM {packed.name} WHERE at >= ?", mark):
                for place, *values in self._unpacked(data):
                    at = start + place * level
                    if level is Level.SLOT:
                        offset, *measures = values
                        rows.append((at, number, at * _MICROSECONDS + offset, *measures))
                    else:
                        rows.append((number, at, *values))
            self._db.upsert(_TABLES[level], rows)
            self._db.run(f"DELETE FROM {packed.name} WHERE at >= ?", mark)

    def _unpacked(self, data: bytes, columns: Sequence[int] | None = None) -> list[Row]:
        try:
            return unpack(data, columns)
        except ValueError as error:
            raise StorageError(f"could not read {self._db.name}: {error}") from error

    def forget(self, now: datetime) -> None:
        """Delete expired rows. Rows that are not summed up yet stay."""
        with self._lock, self._db.transaction():
            marks = self._marks()
            slots = min(marks.slots_summed, _floor(now - self._retention.slots, Level.WINDOW))
            windows = min(marks.windows_summed, _floor(now - self._retention.windows, Level.HOUR))
            hours = _floor(now - self._retention.hours, Level.HOUR)
            if slots > marks.slots_from:
                self._db.run("DELETE FROM sample_slots WHERE at < ?", slots)
                self._db.run(
                    f"DELETE FROM sample_packed_slots WHERE {_OF_RECENT} AND at < ?", marks.slots_from, slots
                )
                self._forget_sums(Level.SLOT, slots)
                self._mark(marks, replace(marks, slots_from=slots))
            if windows <= marks.windows_from:
                return
            self._forget_sums(Level.WINDOW, windows)
            self._forget_sums(Level.HOUR, hours)
            for table, end in ((WINDOWS, windows), (PACKED_WINDOWS, windows), (HOURS, hours)):
                pods = "SELECT number FROM sample_pods WHERE first_at < ?"
                self._db.run(f"DELETE FROM {table.name} WHERE pod IN ({pods}) AND at < ?", end, end)
            self._db.run("DELETE FROM sample_latest WHERE read_at < ?", to_microseconds(now - LATEST_KEPT))
            if self._db.run("DELETE FROM sample_pods WHERE last_at < ?", hours):
                self._numbers.clear()
            self._mark(marks, replace(marks, windows_from=windows))

    def _forget_sums(self, level: Level, end: int) -> None:
        self._db.run("DELETE FROM sample_sums WHERE level = ? AND at < ?", int(level), end)

    def _marks(self) -> Marks:
        return Marks(**dict(self._db.rows("SELECT name, at FROM sample_marks")))

    def _mark(self, before: Marks, after: Marks) -> None:
        known = asdict(before)
        self._db.upsert(MARKS, [(name, at) for name, at in asdict(after).items() if at != known[name]])

    # --- out

    def points(
        self,
        uids: str | Iterable[str],
        since: datetime,
        until: datetime,
        step: int,
        *,
        hours: Mapping[str, Iterable[datetime]] | None = None,
    ) -> list[Point]:
        """Use of pods in windows of `step` seconds (one of STEPS) that overlap [since, until), oldest first.

        A window without a reading has no point. Where only coarser sums are stored, points are longer than a step.
        At the edges whole windows of the level that is read count: half a minute, five minutes or an hour. With
        `hours`, only these hours of each pod, as returned by `stretches`.
        """
        with self._lock:
            pods = self._pods(uids)
            names = {number: uid for uid, number, *_ in pods}
            chosen = None
            if hours is not None:
                chosen = [(pod[1], seconds_of(hour)) for pod in pods for hour in hours.get(pod[0], ())]
            gathered: dict[tuple[int, int, int], list[Row]] = {}
            for segment in self._segments(since, until, step):
                length = max(step, segment.level)
                for number, start, row in self._rows(segment, pods, length, hours=chosen):
                    gathered.setdefault((start, number, length), []).append(row)
        points = [
            Point(
                pod_uid=names[number],
                start=moment_of(start),
                length=timedelta(seconds=length),
                tally=tally_from(added_rows(rows) if len(rows) > 1 else rows[0]),
            )
            for (start, number, length), rows in gathered.items()
        ]
        return sorted(points, key=lambda point: (point.start, point.pod_uid))

    def stretches(
        self, uids: Iterable[str], since: datetime, until: datetime, step: int, limits: Limits
    ) -> list[Stretch]:
        """Hours in [since, until) that are alike by these limits, for windows of `step` seconds, at most an hour.

        Only hours that are summed up, with windows that are summed up. Use `points` for all others.
        """
        stretches: list[Stretch] = []
        with self._lock:
            names = {number: uid for uid, number, *_ in self._pods(uids)}
            summed = self._marks().windows_summed
            for segment in self._segments(since, until, step):
                first = -(-max(segment.since, seconds_of(since)) // Level.HOUR) * Level.HOUR
                end = min(segment.until, summed) // Level.HOUR * Level.HOUR
                if segment.level is not Level.SLOT and first < end:
                    hours = Segment(segment.level, first, end)
                    stretches += self._stretches(hours, names, timedelta(seconds=max(step, segment.level)), limits)
        return stretches

    def _stretches(
        self, hours: Segment, names: Mapping[int, str], length: timedelta, limits: Limits
    ) -> Iterator[Stretch]:
        """The stretches of these pods. `hours.level`: the level of the windows."""
        by_hour = hours.level is Level.HOUR  # then the hour is the window
        mean = "CASE WHEN s.cpu_count > 0 THEN (s.cpu_sum + s.cpu_count - 1) / s.cpu_count ELSE 0 END"
        whole = Level.HOUR // Level.WINDOW
        some = "s.windows" if length.seconds <= Level.WINDOW else f"CASE WHEN s.windows = {whole} THEN {whole} END"
        hour, numbers = int(Level.HOUR), list(names)
        moments = {at // hour: moment_of(at) for at in range(hours.since, hours.until + 1, hour)}
        statement = _ALIKE.format(
            hours=self._db.joined(f"h.at / {hour} * 16 + h.used"),
            cpu=mean if by_hour else "s.cpu_high",
            low="s.gpu_peak" if by_hour else "s.gpu_low",
            used=whole if by_hour else some,  # a longer window may be measured in part: then they are looked at
            slots=Level.HOUR // Level.SLOT - MISSING_SLOTS,
            pods="{}",
        )
        for at in range(0, len(numbers), _AT_ONCE):
            part = numbers[at : at + _AT_ONCE]
            for number, joined, gpus, cpu in self._db.rows(
                statement.format(", ".join("?" * len(part))),
                *tenths_of(limits.gpu_percent), limits.cpu_milli, *part, hours.since, hours.until,
            ):  # fmt: skip
                for first, last in _runs(sorted(map(int, joined.split(",")))):
                    start, end = moments[first // 16], moments[last // 16 + 1]
                    used = first % 16
                    hours_of_run = (last - first) // 16 + 1
                    windows = hours_of_run * used if used not in (0, whole) else (end - start) // length
                    yield Stretch(names[number], start, end, length, used > 0, windows, gpus or 0, cpu or 0)

    def hours(
        self, wanted: Mapping[str, Iterable[datetime]], since: datetime, until: datetime, step: int
    ) -> list[Hour]:
        """Windows of five minutes, or hours where only these are stored, of hours from `stretches`.

        `points` returns the same as objects, and takes longer.
        """
        with self._lock:
            names = {pod[1]: pod[0] for pod in self._pods(wanted)}
            keys = [(number, seconds_of(hour)) for number, uid in names.items() for hour in wanted[uid]]
            return [
                Hour(names[number], moment_of(start), timedelta(seconds=segment.level), windows)
                for segment in self._segments(since, until, step)
                if segment.level is not Level.SLOT
                for number, start, windows in self._windows_of(segment, keys)
            ]

    def _windows_of(self, segment: Segment, keys: Sequence[Row]) -> Iterator[tuple[int, int, list[Seen]]]:
        """(pod, start, windows) of these hours, limited to a segment."""
        first = segment.since // Level.HOUR * Level.HOUR
        keys = [key for key in keys if first <= key[1] < segment.until]
        if segment.level is Level.HOUR:
            for number, start, *row in self._db.by_keys(HOURS, keys, columns=("pod", "at", *_SEEN_FIELDS)):
                yield number, start, [Seen(0, *row)]
            return
        places = [0, *(1 + MEASURES.index(name) for name in _SEEN_FIELDS)]
        for number, start, data in self._db.by_keys(PACKED_WINDOWS, keys):
            windows = list(map(Seen._make, self._unpacked(data, places)))
            if start < segment.since or start + Level.HOUR > segment.until:
                begin, end = segment.since - start, segment.until - start
                windows = [seen for seen in windows if begin <= seen.place * Level.WINDOW < end]
            yield number, start, windows

    def use_of(
        self, uids: str | Iterable[str], *, since: datetime | None = None, until: datetime | None = None
    ) -> dict[str, PodUse]:
        """Use of pods over their lives, or in [since, until); pods without a reading there are omitted.

        Hours that have been summed up count whole where they overlap an edge.
        """
        with self._lock:
            pods = self._pods(uids)
            gathered: dict[int, list[Row]] = {}
            for segment in self._segments(since or moment_of(0), until or moment_of(1 << 34), Level.HOUR):
                for number, _, row in self._rows(segment, pods, 0):
                    gathered.setdefault(number, []).append(row)
            latest: dict[int, int] = dict(
                self._db.by_keys(LATEST, [(pod[1],) for pod in pods], columns=("pod", "read_at"))
            )
        uses: dict[str, PodUse] = {}
        for uid, number, namespace, owner, first, last in pods:
            if number in gathered:
                uses[uid] = PodUse(
                    pod_uid=uid,
                    first=moment_of(first),
                    last=moment_of(max(last, latest.get(number, 0) // 1_000_000)),
                    owner=owner,
                    namespace=namespace,
                    tally=tally_from(added_rows(gathered[number])),
                )
        return uses

    def gpu_use_of(self, uids: Iterable[str], *, since: datetime, until: datetime) -> dict[str, Tally]:
        """The measured time and GPU use of pods: only `slots`, `gpu_count` and `gpu_sum`.

        The values equal those of `use_of`, but this is much faster.
        """
        with self._lock:
            pods = self._pods(uids)
            sums: dict[int, list[int]] = {}
            for segment in self._segments(since, until, Level.HOUR):
                for number, _, row in self._rows(segment, pods, 0, measures=_GPU_USE):
                    before = sums.setdefault(number, [0] * len(row))
                    sums[number] = [*map(add, before, row)]
        return {
            uid: Tally(**dict(zip(_GPU_USE, sums[number], strict=True)))
            for uid, number, *_ in pods
            if number in sums
        }

    def latest(
        self, uids: str | Iterable[str] | None = None, *, since: datetime | None = None
    ) -> dict[str, Reading]:
        """The newest reading of each pod of the last day, or of the given pods, if it was taken at `since` or
        later.
        """
        after = 0 if since is None else to_microseconds(since)
        with self._lock:
            if uids is None:
                rows = self._db.rows(
                    "SELECT p.pod_uid, p.namespace, p.owner, s.read_at, s.reading FROM sample_latest s"
                    " JOIN sample_pods p ON p.number = s.pod WHERE s.read_at >= ?",
                    after,
                )
            else:
                pods = {pod[1]: (pod[0], *pod[2:4]) for pod in self._pods(uids)}
                newest = self._db.by_keys(LATEST, [(number,) for number in pods])
                rows = [(*pods[number], at, reading) for number, at, reading in newest if at >= after]
        return {uid: _decoded(uid, namespace, owner, at, text) for uid, namespace, owner, at, text in rows}

    def sums(self, since: datetime, until: datetime, step: int, *, by_owner: bool = False) -> list[Sum]:
        """Use of all pods together in windows of `step` seconds that overlap [since, until), the oldest first.

        With `by_owner` a sum for each owner. Windows and edges are as those of `points`. Peaks are of one pod.
        """
        gathered: dict[tuple[int, str, int], list[Row]] = {}
        with self._lock:
            marks = self._marks()
            for segment in segments(marks, since=seconds_of(since), until=_ceiling(until), step=step):
                length = max(step, segment.level)
                parts = self._sums_of_owners(segment, length) if by_owner else self._sums(segment, length, marks)
                for start, owner, row in parts:
                    gathered.setdefault((start, owner, length), []).append(row)
        return [
            Sum(
                start=moment_of(start),
                length=timedelta(seconds=length),
                owner=owner,
                tally=tally_from(added_rows(rows)),
            )
            for (start, owner, length), rows in sorted(gathered.items())
        ]

    def _sums(self, segment: Segment, length: int, marks: Marks) -> Iterator[tuple[int, str, Row]]:
        """(start of the window of `length` seconds, "", sums over all pods) of a segment."""
        start = f"s.at - s.at % {length}"
        summed = min(segment.until, marks.slots_summed) if segment.level is Level.SLOT else segment.until
        for at, *row in self._db.rows(
            f"SELECT {start}, {_ADDED} FROM sample_sums s WHERE s.level = ? AND s.at >= ? AND s.at < ? GROUP BY 1",
            int(segment.level), segment.since, summed,
        ):  # fmt: skip
            yield at, "", tuple(row)
        if summed < segment.until:
            for at, *row in self._db.rows(
                f"SELECT {start}, {_ADDED} FROM sample_slots s WHERE s.at >= ? AND s.at < ? GROUP BY 1",
                max(segment.since, summed), segment.until,
            ):  # fmt: skip
                yield at, "", tuple(row)

    def _sums_of_owners(self, segment: Segment, length: int) -> Iterator[tuple[int, str, Row]]:
        """(start of the window of `length` seconds, owner, sums over the owner's pods) of a segment."""
        table = _TABLES[segment.level].name
        if segment.level is Level.SLOT:
            joined = f"{table} s JOIN sample_pods p ON p.number = +s.pod"
        else:  # `last_at` is that of the last row: pods that ended before have none here
            joined = f"sample_pods p JOIN {table} s ON s.pod = +p.number AND p.last_at >= {segment.since}"
        statement = (
            f"SELECT s.at - s.at % {length} AS start, p.owner AS who, {_ADDED} FROM {joined}"
            " WHERE s.at >= ? AND s.at < ? GROUP BY 1, 2"
        )
        for start, owner, *sums in self._db.rows(statement, segment.since, segment.until):
            yield start, owner, tuple(sums)
        if segment.level is not Level.HOUR:
            pods: dict[int, str] = dict(
                self._db.rows("SELECT number, owner FROM sample_pods WHERE last_at >= ?", segment.since)
            )
            for number, at, row in self._packed_rows(segment, list(pods)):
                yield at - at % length, pods[number], row

    def _pods(self, uids: str | Iterable[str]) -> list[Row]:
        wanted = {uids} if isinstance(uids, str) else set(uids)
        return self._db.by_keys(PODS, [(uid,) for uid in sorted(wanted)])

    def _segments(self, since: datetime, until: datetime, step: int) -> tuple[Segment, ...]:
        return segments(self._marks(), since=seconds_of(since), until=_ceiling(until), step=step)

    def _rows(
        self,
        segment: Segment,
        pods: Sequence[Row],
        length: int,
        *,
        measures: Sequence[str] = MEASURES,
        hours: Sequence[Row] | None = None,
    ) -> list[tuple[int, int, Row]]:
        """(pod, beginning of its window of `length` seconds, sums) in a segment; `length` 0: one window.

        `hours`: of rows packed by the hour, or hours, only these: (pod, beginning).
        """
        if hours is not None and segment.level is Level.HOUR:
            wanted = [key for key in hours if segment.since <= key[1] < segment.until]
            known_hours = self._db.by_keys(HOURS, wanted, columns=("pod", "at", *measures))
            return [(number, _start(at, length), tuple(row)) for number, at, *row in known_hours]
        known = [number for _, number, _, _, _, last in pods if last >= segment.since]  # `last`: that is summed up
        places = [MEASURES.index(name) for name in measures]
        packed = () if segment.level is Level.HOUR else self._packed_rows(segment, known, hours)
        result = [
            (number, _start(at, length), tuple(row[place] for place in places)) for number, at, row in packed
        ]
        if segment.level is Level.SLOT:
            return result + self._slots(segment, {pod[1] for pod in pods}, length, measures)
        statement = (
            f"SELECT {{}} FROM {_TABLES[segment.level].name} s"
            " WHERE s.pod IN ({}) AND s.at >= ? AND s.at < ? GROUP BY {}"
        )
        for first in range(0, len(known), _AT_ONCE):
            part = known[first : first + _AT_ONCE]
            chosen, groups = _grouped(length, measures)
            rows = self._db.rows(
                statement.format(chosen, ", ".join("?" * len(part)), groups), *part, segment.since, segment.until
            )
            result += [(number, at, tuple(row)) for number, at, *row in rows]
        return result

    def _slots(
        self, segment: Segment, numbers: set[int], length: int, measures: Sequence[str]
    ) -> list[tuple[int, int, Row]]:
        """Like `_rows`, for the slots that are not packed: those of the last minutes."""
        ((first,),) = self._db.rows(_FIRST_SLOT, segment.since)
        if first is None or not numbers:
            return []
        slots = range(first, segment.until, Level.SLOT)
        if len(slots) * len(numbers) <= _BY_KEYS:
            ordered = sorted(numbers)
            keys = [(at, number) for at in slots for number in ordered]
            rows = self._db.by_keys(SLOTS, keys, columns=("pod", "at", *measures))
            return [(number, _start(at, length), tuple(row)) for number, at, *row in rows]
        chosen, groups = _grouped(length, measures)
        statement = f"SELECT {chosen} FROM sample_slots s WHERE s.at >= ? AND s.at < ? GROUP BY {groups}"
        return [
            (number, at, tuple(row))
            for number, at, *row in self._db.rows(statement, first, segment.until)
            if number in numbers
        ]

    def _packed_rows(
        self, segment: Segment, numbers: Sequence[int], hours: Sequence[Row] | None = None
    ) -> Iterator[tuple[int, int, Row]]:
        """(pod, beginning, measures) of the packed slots or windows of a segment.

        `hours`: of rows packed by the hour, only these: (pod, beginning).
        """
        packed, span = _PACKED[segment.level]
        keys = 2 if segment.level is Level.SLOT else 1  # values before the measures
        first = segment.since // span * span
        if hours is not None and span is Level.HOUR:
            rows = iter(self._db.by_keys(packed, [key for key in hours if first <= key[1] < segment.until]))
        else:
            rows = self._packed(packed, numbers, first, segment.until)
        for number, start, data in rows:
            for row in self._unpacked(data):
                at = start + row[0] * segment.level
                if segment.since <= at < segment.until:
                    yield number, at, row[keys:]

    def _packed(self, packed: Table, numbers: Sequence[int], first: int, until: int) -> Iterator[Row]:
        for at in range(0, len(numbers), _AT_ONCE):
            part = numbers[at : at + _AT_ONCE]
            yield from self._db.rows(
                f"SELECT s.pod, s.at, s.packed FROM {packed.name} s"
                f" WHERE s.pod IN ({', '.join('?' * len(part))}) AND s.at >= ? AND s.at < ?",
                *part, first, until,
            )  # fmt: skip


def _runs(codes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Find the ranges in sorted numbers with steps of 16: (first, last) of each."""
    first = last = codes[0]
    for code in codes[1:]:
        if code != last + 16:
            yield first, last
            first = code
        last = code
    yield first, last


def _start(at: int, length: int) -> int:
    """The start of the window of `length` seconds that contains a moment.

    0 if `length` is 0 (one window for all).
    """
    return at - at % length if length else 0


def _grouped(length: int, measures: Sequence[str]) -> tuple[str, str]:
    """The columns to select of rows `s`, by pod and `_start`, and how to group them."""
    start = f"s.at - s.at % {length}" if length else "0"
    added = ", ".join(_ADDING[name] for name in measures)
    return f"s.pod, {start}, {added}", "1, 2" if length else "1"


def _encoded(reading: Reading) -> str:
    gpus = [
        (gpu.device, gpu.utilisation, gpu.memory_bytes, gpu.memory_total_bytes, gpu.power_watts)
        for gpu in reading.gpus
    ]
    return msgspec.json.encode((reading.cpu_milli, reading.memory_bytes, gpus)).decode()


def _decoded(uid: str, namespace: str, owner: str, read_at: int, text: str) -> Reading:
    cpu, memory, gpus = msgspec.json.decode(text)
    return Reading(
        pod_uid=uid,
        at=from_microseconds(read_at),
        cpu_milli=cpu,
        memory_bytes=memory,
        gpus=tuple(
            GpuReading(
                device=device,
                utilisation=utilisation,
                memory_bytes=used,
                memory_total_bytes=total,
                power_watts=power,
            )
            for device, utilisation, used, total, power in gpus
        ),
        owner=owner,
        namespace=namespace,
    )


def _floor(moment: datetime, step: int) -> int:
    return seconds_of(moment) // step * step


def _ceiling(moment: datetime) -> int:
    seconds = seconds_of(moment)
    return seconds if moment == moment_of(seconds) else seconds + 1
