"""All statements of the queue; each method is one transaction.

Methods load rows, decide (`decide.maps.leasing`), and apply the changes. They block: call them off the event loop.
The file is long because its statements belong to one schema and must fit together.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from moorage.api.errors import ErrorCode
from moorage.api.maps import ItemFailure, MapItem, MapResult, NewItem
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import (
    COUNTERS,
    Call,
    Candidate,
    Changes,
    Counts,
    Item,
    Lease,
    Limit,
    Loaded,
    Map,
    MapState,
    Policy,
    Reply,
    Session,
    State,
)
from moorage.queue.quota import ITEM_BYTES, NONE, Quota, Used, check_items, check_map
from moorage.queue.tables import FAILURES, INPUTS, ITEMS, QUEUE, RESULTS, SESSIONS
from moorage.sql.database import Database, Row
from moorage.sql.opening import open_database
from moorage_kube.cache import BoundedCache
from moorage_kube.errors import AlreadyExists, Conflict, NotFound, UsageError

STRAGGLER_LOOK_MS = 1000  # how often the sessions of a map are searched for stragglers
LAPSE_AT_ONCE = 500  # sessions per transaction
PAGE_ROWS = 1000
POLICIES_KEPT = 1000  # parsed
STRAGGLERS_AT_ONCE = 100
CANDIDATES_AT_ONCE = 20_000

_MAP_COLUMNS = (
    "id",
    "uid",
    "namespace",
    "name",
    "owner",
    "state",
    "closed",
    "priority",
    "policy",
    "created_at",
    "rate_level",
    "rate_at",
    *COUNTERS,
)
_MAPS = f"SELECT {', '.join(_MAP_COLUMNS)} FROM maps"
_ITEM = ", ".join(f"i.{column}" for column in ITEMS.columns[1:])
_READY = f"""
SELECT {_ITEM}, n.value FROM items AS i JOIN inputs AS n ON n.map = i.map AND n.seq = i.seq
WHERE i.map = ? AND i.state = 1 ORDER BY i.rank, i.seq LIMIT ?"""
_LARGE = f"""
SELECT {_ITEM}, n.value FROM items AS i JOIN inputs AS n ON n.map = i.map AND n.seq = i.seq
WHERE i.map = ? AND i.state = 5 AND i.memory_bytes <= ? ORDER BY i.memory_bytes, i.rank, i.seq LIMIT ?"""
_SKIP_LOCKED = " FOR UPDATE OF i SKIP LOCKED"
_LIMITS = """
SELECT l.name, l.capacity, COALESCE(SUM(m.leases * w.weight), 0) FROM limits AS l
LEFT JOIN map_limits AS w ON w.name = l.name LEFT JOIN maps AS m ON m.id = w.map
GROUP BY l.name, l.capacity ORDER BY l.name"""
_WAITING = """
SELECT w.name, w.waits_since, w.map FROM map_limits AS w JOIN maps AS m ON m.id = w.map
JOIN limits AS l ON l.name = w.name
WHERE w.waits_until > ? AND w.weight <= l.capacity
    AND m.state = 'running' AND m.ready + m.large > 0 AND m.workers > 0
ORDER BY w.waits_since, w.map"""
_TURN = "UPDATE map_limits SET waits_since = ?, waits_until = ? WHERE map = ? AND name = ?"
_COUNT = f"UPDATE maps SET {', '.join(f'{counter} = {counter} + ?' for counter in COUNTERS)} WHERE id = ?"
_READY_AGAIN = "state = CASE WHEN memory_bytes > 0 THEN 5 ELSE 1 END"  # as `leasing.ready_state`
_DUE = """
SELECT map, CASE WHEN memory_bytes > 0 THEN 5 ELSE 1 END AS next, COUNT(*) FROM items
WHERE state = 0 AND ready_at <= ? GROUP BY map, next"""
_PROMOTE = f"UPDATE items SET {_READY_AGAIN}, ready_at = 0 WHERE map = ? AND state = 0 AND ready_at <= ?"
_EXPIRED = f"SELECT {', '.join(SESSIONS.columns)} FROM sessions WHERE expires_at < ? ORDER BY map, name LIMIT ?"
_OF_ITEM = """
SELECT i.seq, n.key, i.state, i.tries, i.losses, i.memory_bytes, i.ready_at, i.fence, n.value,
       r.at, r.seconds, r.memory, r.path, f.at, f.cause, f.message, f.exit, f.tries, LENGTH(f.output)
FROM items AS i JOIN inputs AS n ON n.map = i.map AND n.seq = i.seq
LEFT JOIN results AS r ON r.map = i.map AND r.seq = i.seq
LEFT JOIN failures AS f ON f.map = i.map AND f.seq = i.seq
WHERE i.map = ?"""
_RESULTS = """
SELECT r.seq, n.key, n.value, r.value, r.path, r.seconds, r.memory, r.at FROM results AS r
JOIN inputs AS n ON n.map = r.map AND n.seq = r.seq WHERE r.map = ? AND r.seq > ? ORDER BY r.seq LIMIT ?"""
_RETRY = f"UPDATE items SET {_READY_AGAIN}, tries = 0, losses = 0, ready_at = 0 WHERE map = ? AND state = 4"
_WORKING = "items", "inputs", "sessions", "results", "failures", "additions", "map_limits", "map_sizes"


class Stored(Struct, frozen=True, kw_only=True):
    """A map with the fields that the queue itself does not use."""

    map: Map
    uid: str
    namespace: str
    name: str
    owner: str
    created_at: int


class Answered(Struct, frozen=True, kw_only=True):
    """The result of a group of calls, and the waiting requests that it concerns.

    `fresh` counts the items of each map that have become ready, `freed` the leases that ended in maps with limits.
    """

    replies: list[Reply | NotFound]
    fresh: dict[int, int]
    freed: int = 0
    finished: frozenset[int] = frozenset()
    limited: frozenset[int] = frozenset()  # maps with limits
    rated: frozenset[int] = frozenset()  # maps with a rate


class Store:
    """The tables of the queue. Use them from one thread at a time."""

    def __init__(self, database: Database, quota: Quota = NONE) -> None:
        self._db = database
        self._quota = quota
        self._policies: BoundedCache[str, Policy] = BoundedCache(POLICIES_KEPT)  # by their JSON
        self._looked: dict[int, int] = {}  # when stragglers of a map were last looked for
        self._ticked_at = 0

    @property
    def name(self) -> str:
        return self._db.name

    def close(self) -> None:
        self._db.close()

    # -- workers -----------------------------------------------------------------------------------------------

    def exchange(self, calls: Sequence[Call], now: int) -> Answered:
        """Answer the calls in one transaction; a call of a deleted map is answered with NotFound.

        All calls must be of different sessions.
        """
        with self._db.transaction():
            maps = self._maps({call.map for call in calls}, lock=True)
            known = [call for call in calls if call.map in maps]
            loaded = self._load(known, maps, now)
            changes = leasing.step(loaded, known, now)
            self._apply(changes, now)
        replies = iter(changes.replies)
        gone = NotFound("the map was deleted", hint="stop the worker")
        return _answered(loaded.maps, changes, [next(replies) if call.map in maps else gone for call in calls])

    def tick(self, now: int) -> Answered:
        """The effects of time: back-offs end, silent sessions lapse, leases are extended by our downtime."""
        # items whose back-off has ended become ready
        with self._db.transaction():
            self._make_good(now)
            promoted: dict[int, Counts] = {}
            for of, state, some in self._db.rows(_DUE, now):
                counts = promoted.setdefault(of, Counts())
                counts.waiting -= some
                if state == State.LARGE:
                    counts.large += some
                else:
                    counts.ready += some
            for of in promoted:
                self._db.run(_PROMOTE, of, now)
            self._count(promoted)
        # sessions without a heartbeat lose their leases, some at a time: each transaction is short
        lapsed: dict[int, Counts] = {}
        while True:
            with self._db.transaction():
                expired = self._db.rows(_EXPIRED + self._db.locking(" FOR UPDATE SKIP LOCKED"), now, LAPSE_AT_ONCE)
                if expired:
                    loaded = self._load_sessions(expired)
                    changes = leasing.lapse(loaded, now)
                    self._apply(changes, now)
                    for of, counts in changes.counts.items():
                        total = lapsed.setdefault(of, Counts())
                        total.ready += counts.ready
                        total.large += counts.large
                        total.leases += counts.leases
            if len(expired) < LAPSE_AT_ONCE:
                break
        # workers that wait for items are woken for these maps
        fresh = {of: counts.ready + counts.large for of, counts in promoted.items()}
        for of, counts in lapsed.items():
            fresh[of] = fresh.get(of, 0) + counts.ready + counts.large
        maps_now = self._maps(set(lapsed))
        return Answered(
            replies=[],
            fresh=fresh,
            freed=sum(-counts.leases for of, counts in lapsed.items() if maps_now[of].policy.limits),
            finished=frozenset(
                of for of, queue_map in maps_now.items() if leasing.is_finished(queue_map, queue_map.counts)
            ),
        )

    def waiting_for(self, maps: Iterable[int]) -> dict[int, int | None]:
        """How many requests that wait in each map may find an item now; None.

        All are answered, because the map ended.
        """
        wanted = set(maps)
        known = self._maps(wanted)
        free = {limit.name: limit.capacity - limit.held for limit in self.limits()}
        return {of: _may_start(known[of], free) if of in known else None for of in wanted}

    def _make_good(self, now: int) -> None:
        """Extend all leases by the time in which the queue was down.

        The first tick of a process finds the long one.
        """
        rows = self._db.rows("SELECT value FROM meta WHERE name = 'alive_at'" + self._db.locking(" FOR UPDATE"))
        alive = max(int(rows[0][0]) if rows else 0, self._ticked_at)
        gap = leasing.away_ms(last_alive=alive, now=now)
        held = self._db.rows("SELECT 1 FROM sessions LIMIT 1")
        if gap and held:
            self._db.run("UPDATE sessions SET expires_at = expires_at + ?", gap)
        if held or not self._ticked_at:
            self._set_meta("alive_at", str(max(now, alive)))
        self._ticked_at = max(now, alive)

    def _load(self, calls: Sequence[Call], maps: dict[int, Map], now: int) -> Loaded:
        # rows are locked in a fixed order, so that two transactions cannot deadlock
        keys = sorted({(call.map, call.exchange.session) for call in calls})
        sessions = {(row[0], row[1]): _session(row) for row in self._db.by_keys(SESSIONS, keys, lock=True)}
        # items that the calls name, and those of a request that is repeated
        needed: set[tuple[int, int]] = set()
        replayed: set[tuple[int, int]] = set()
        for call in calls:
            of, asked = call.map, call.exchange
            session = sessions.get((of, asked.session))
            policy = maps[of].policy
            idempotent = policy.idempotent or bool(policy.limits)  # those that hold tokens may be taken back
            needed |= {(of, seq) for seq in leasing.needed_items(call, session, idempotent=idempotent)}
            if session is not None and asked.request and asked.request == session.request:
                replayed |= {(of, lease.item) for lease in session.leases}
        # limits are shared by maps: lock all of them, in the order of their names
        limits = {}
        if any(queue_map.policy.limits for queue_map in maps.values()):
            self._db.rows("SELECT name FROM limits ORDER BY name" + self._db.locking(" FOR UPDATE"))
            waiting: dict[str, list[tuple[int, int]]] = {}
            for name, since, of in self._db.rows(_WAITING, now):
                waiting.setdefault(name, []).append((since, of))
            limits = {
                limit.name: msgspec.structs.replace(limit, waiting=tuple(waiting.get(limit.name, ())))
                for limit in self.limits()
            }
        # candidates for new leases; rows that another transaction has locked are skipped
        items = self._items(needed, values_of=replayed)
        ready: dict[int, list[Candidate]] = {}
        large: dict[int, list[Candidate]] = {}
        stragglers: dict[int, list[Candidate]] = {}
        skip = self._db.locking(_SKIP_LOCKED)
        for of, wanted in leasing.wanted_candidates(calls, maps).items():
            queue_map, most = maps[of], min(wanted, CANDIDATES_AT_ONCE)
            if queue_map.counts.large:
                memory = max(call.exchange.memory for call in calls if call.map == of)
                large[of] = [_candidate(row) for row in self._db.rows(_LARGE + skip, of, memory, most)]
            ready[of] = [_candidate(row) for row in self._db.rows(_READY + skip, of, most)]
            if queue_map.policy.idempotent and not ready[of]:
                stragglers[of] = self._stragglers(queue_map, now)
        return Loaded(
            maps=maps,
            sessions=sessions,
            items=items,
            ready=ready,
            large=large,
            stragglers=stragglers,
            limits=limits,
            hold_seconds=self._quota.hold_seconds,
        )

    def _load_sessions(self, rows: Sequence[Row]) -> Loaded:
        sessions = {(row[0], row[1]): _session(row) for row in rows}
        maps = self._maps({of for of, _ in sessions})
        held = {(of, lease.item) for (of, _), session in sessions.items() for lease in session.leases}
        return Loaded(maps=maps, sessions=sessions, items=self._items(held))

    def _stragglers(self, queue_map: Map, now: int) -> list[Candidate]:
        if now - self._looked.get(queue_map.id, 0) < STRAGGLER_LOOK_MS:
            return []
        self._looked[queue_map.id] = now
        mean = leasing.mean_ms(queue_map.counts)
        old: list[tuple[int, int]] = []
        for (leases,) in self._db.rows("SELECT leases FROM sessions WHERE map = ?", queue_map.id):
            old += [
                (lease.at, lease.item)
                for lease in _LEASES.decode(leases)
                if leasing.is_straggler(lease, mean=mean, now=now)
            ]
        keys = {(queue_map.id, item) for _, item in sorted(old)[:PAGE_ROWS]}
        known = self._items(keys, values_of=keys)
        return [known[queue_map.id, item] for _, item in sorted(old) if (queue_map.id, item) in known]

    def _items(
        self, keys: set[tuple[int, int]], *, values_of: set[tuple[int, int]] | None = None
    ) -> dict[tuple[int, int], Candidate]:
        if not keys:
            return {}
        values: dict[tuple[int, int], bytes] = {}
        if values_of:
            columns = ("map", "seq", "value")
            values = {
                (row[0], row[1]): row[2] for row in self._db.by_keys(INPUTS, sorted(values_of), columns=columns)
            }
        rows = self._db.by_keys(ITEMS, sorted(keys), lock=True)
        return {(row[0], row[1]): Candidate(_item(row[1:]), values.get((row[0], row[1]), b"")) for row in rows}

    def _apply(self, changes: Changes, now: int) -> None:
        self._db.update(ITEMS, [_item_row(of, item) for (of, _), item in sorted(changes.items.items())])
        # results and failures of items
        self._db.insert(
            RESULTS,
            [
                (
                    result.map,
                    result.item,
                    result.lease,
                    result.at,
                    result.seconds,
                    result.memory,
                    result.value,
                    result.path,
                )
                for result in changes.results
            ],
        )
        self._db.upsert(
            FAILURES,
            [
                (
                    failure.map,
                    failure.item,
                    failure.lease,
                    failure.at,
                    failure.cause,
                    failure.message,
                    failure.exit,
                    failure.output,
                    failure.tries,
                )
                for failure in changes.failures.values()
            ],
        )
        # sessions with their leases
        kept = [(key, session) for key, session in sorted(changes.sessions.items()) if session is not None]
        self._db.upsert(
            SESSIONS,
            [
                (of, name, session.expires_at, session.request, msgspec.json.encode(session.leases))
                for (of, name), session in kept
            ],
        )
        for (of, name), session in changes.sessions.items():
            if session is None:
                self._db.run("DELETE FROM sessions WHERE map = ? AND name = ?", of, name)
        # turns and rates of limits
        for (of, name), since in changes.turns.items():
            self._db.run(_TURN, since, now + 1000 * leasing.TURN_SECONDS if since else 0, of, name)
        for of, (level, at) in changes.rates.items():
            self._db.run("UPDATE maps SET rate_level = ?, rate_at = ? WHERE id = ?", level, at, of)
        # the time of the last sign of a worker, to compute our own downtime after a restart
        if self._ticked_at and any(counts.workers > 0 for counts in changes.counts.values()):
            self._set_meta("alive_at", str(max(now, self._ticked_at)))
        # counts and sizes of the maps
        self._count(changes.counts)
        sizes: dict[int, int] = {}
        for result in changes.results:
            sizes[result.map] = sizes.get(result.map, 0) + len(result.value or b"")
        self._grow(sizes)

    def _count(self, changed: dict[int, Counts]) -> None:
        for of, counts in sorted(changed.items()):
            values = msgspec.structs.astuple(counts)
            if any(values):
                self._db.run(_COUNT, *values, of)

    # -- users -------------------------------------------------------------------------------------------------

    def create_map(
        self,
        *,
        namespace: str,
        name: str,
        owner: str,
        policy: Policy,
        request: str,
        limits: dict[str, int],
        priority: int,
        now: int,
        since: int = 0,
    ) -> Stored:
        """Make a map without items; the same `request` again finds it. `limits`: capacities of new named limits.

        `since`: when the namespace was created. Older maps are moved to a name that cannot be a namespace:
        they do not use names or quota of the new one.

        Raises AlreadyExists for another of that name, UsageError for an undefined limit.
        """
        with self._db.transaction():
            # maps of a deleted namespace of the same name must not be visible in the new one
            self._db.run(
                "UPDATE maps SET namespace = ? WHERE namespace = ? AND created_at < ?",
                f"{namespace}@{since}",
                namespace,
                since,
            )
            # the same request again returns its map
            rows = self._db.rows("SELECT id, request FROM maps WHERE namespace = ? AND name = ?", namespace, name)
            if rows:
                if rows[0][1] == request:
                    return self._stored_by_id(rows[0][0])
                raise AlreadyExists(f"map {namespace}/{name} exists", hint="delete it, or use another name")
            # new limits are created; those that the map uses must exist
            check_map(self._quota, self._used(namespace), namespace)
            for limit, capacity in limits.items():
                self._db.run(
                    "INSERT INTO limits (name, capacity) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                    limit,
                    capacity,
                )
            known = {row[0] for row in self._db.rows("SELECT name FROM limits")}
            for limit in policy.limits:
                if limit not in known:
                    raise UsageError(
                        f"the limit {limit!r}, which map {namespace}/{name} uses, does not exist",
                        hint=f"set its capacity: moor map limits set {limit} 20",
                        code=ErrorCode.INVALID,
                        field="limits",
                    )
            # the map, and its use of limits
            created = self._db.rows(
                "INSERT INTO maps (uid, namespace, name, owner, request, state, closed, priority, policy,"
                " created_at, rate_level, rate_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                secrets.token_hex(16),
                namespace,
                name,
                owner,
                request,
                MapState.RUNNING.value,
                0,
                priority,
                json.dumps(asdict(policy), sort_keys=True),
                max(now, since),
                1.0,
                now,
            )
            for limit, weight in policy.limits.items():
                self._db.run(
                    "INSERT INTO map_limits (map, name, weight) VALUES (?, ?, ?)", created[0][0], limit, weight
                )
            return self._stored_by_id(created[0][0])

    def add_items(
        self, of: int, items: Sequence[NewItem], *, first: int | None = None, request: str | None = None
    ) -> tuple[int, int]:
        """Append items. Returns the number of the first item and how many were new.

        With `first`, the caller numbers the items: existing numbers are skipped, and a gap is refused. A
        repeated `request` adds nothing. Raises NotFound and UsageError.
        """
        with self._db.transaction():
            # lock the map: numbers of items have no gaps
            map_rows = self._db.rows(
                f"SELECT total, closed, namespace FROM maps WHERE id = ?{self._db.locking(' FOR UPDATE')}", of
            )
            if not map_rows:
                raise NotFound("the map was deleted")
            total, closed, namespace = map_rows[0]
            # the same lines again add nothing
            if request is not None and (
                additions := self._db.rows(
                    "SELECT first, items FROM additions WHERE map = ? AND request = ?", of, request
                )
            ):
                return additions[0][0], 0
            # the caller may number the items itself: known ones are not added again
            start = total if first is None else first
            if start > total:
                raise UsageError(
                    f"items from {start} on cannot be added: the map has {total}",
                    hint="send the missing ones first",
                )
            fresh = items[total - start :]
            if fresh and closed:
                raise Conflict(
                    "the map is closed: it accepts no more items",
                    hint="make maps that take more: moor map create --open",
                    code=ErrorCode.CONFLICT,
                )
            # check the quota of the namespace before the first row
            size = sum(ITEM_BYTES + len(bytes(item.value)) + len((item.key or "").encode()) for item in fresh)
            if fresh:
                check_items(self._quota, self._used(namespace), namespace, items=len(fresh), size=size)
            if request is not None:
                self._db.run("INSERT INTO additions VALUES (?, ?, ?, ?)", of, request, start, len(items))
            if not fresh:
                return start, 0
            # rows for the items and their inputs
            large = 0
            hinted, hinted_ms = 0, 0
            rows: list[Row] = []
            inputs: list[Row] = []
            for seq, item in enumerate(fresh, total):
                state = leasing.ready_state(item.memory)
                large += item.memory > 0
                if item.seconds is not None:
                    hinted += 1
                    hinted_ms += round(item.seconds * 1000)
                rank = leasing.rank_of(priority=item.priority, seconds=item.seconds)
                rows.append((of, seq, int(state), rank, 0, 0, 0, 0, 0, 0, item.memory, 0))
                inputs.append((of, seq, item.key, bytes(item.value)))
            self._db.insert(ITEMS, rows)
            self._db.insert(INPUTS, inputs)
            # counts and size of the map
            counts = Counts(
                total=len(rows), ready=len(rows) - large, large=large, hinted=hinted, hinted_ms=hinted_ms
            )
            self._count({of: counts})
            self._grow({of: size})
            return start, len(rows)

    def _used(self, namespace: str) -> Used:
        """The use of the maps of a namespace; not counted where there is no quota."""
        if self._quota == NONE:
            return Used(maps=0, items=0, bytes=0)
        row = self._db.rows(
            "SELECT COUNT(*), COALESCE(SUM(m.total), 0), COALESCE(SUM(s.bytes), 0) FROM maps AS m"
            " LEFT JOIN map_sizes AS s ON s.map = m.id WHERE m.namespace = ?",
            namespace,
        )[0]
        return Used(maps=int(row[0]), items=int(row[1]), bytes=int(row[2]))

    def _grow(self, sizes: Mapping[int, int]) -> None:
        """Add to the stored sizes of maps.

        Call it last in a transaction, after `_count`: see the lock order in `sql.postgres`.
        """
        for of, size in sorted(sizes.items()):
            if not size:
                continue
            self._db.run(
                "INSERT INTO map_sizes (map, bytes) VALUES (?, ?)"
                " ON CONFLICT (map) DO UPDATE SET bytes = map_sizes.bytes + excluded.bytes",
                of,
                size,
            )

    def change_map(
        self,
        of: int,
        *,
        state: MapState | None = None,
        closed: bool | None = None,
        priority: int | None = None,
        rate: float | None = None,
    ) -> Stored:
        """Pause, resume, cancel, close, reopen, or set the priority or the rate (0: none). Raises NotFound."""
        with self._db.transaction():
            stored = self._stored_by_id(of, lock=True)
            policy = stored.map.policy
            if rate is not None:
                policy = replace(policy, rate=rate or None)
            self._db.run(
                "UPDATE maps SET state = ?, closed = ?, priority = ?, policy = ? WHERE id = ?",
                (state or stored.map.state).value,
                int(stored.map.closed if closed is None else closed),
                stored.map.priority if priority is None else priority,
                json.dumps(asdict(policy), sort_keys=True),
                of,
            )
            return self._stored_by_id(of)

    def retry(self, of: int) -> int:
        """Make all dead items ready again, with all their attempts. Returns their number. Raises NotFound."""
        with self._db.transaction():
            self._stored_by_id(of)
            self._lock_as_exchange(of)
            large = self._db.run(f"{_RETRY} AND memory_bytes > 0", of)
            ready = self._db.run(_RETRY, of)
            self._count({of: Counts(dead=-large - ready, ready=ready, large=large)})
            return large + ready

    def delete_map(self, of: int) -> None:
        """Delete a map with all its data; its workers get NotFound."""
        with self._db.transaction():
            self._lock_as_exchange(of)
            self._db.run("DELETE FROM items WHERE map = ?", of)
            self._db.run("DELETE FROM maps WHERE id = ?", of)
            for table in _WORKING:  # items too: some may have been added meanwhile, and none can be any more
                self._db.run(f"DELETE FROM {table} WHERE map = ?", of)
        self._looked.pop(of, None)

    def _lock_as_exchange(self, of: int) -> None:
        """Wait for the running exchanges of a map, before this transaction takes locks that they take later."""
        self._maps({of}, lock=True)
        if clause := self._db.locking(" FOR UPDATE"):
            self._db.rows(f"SELECT name FROM sessions WHERE map = ? ORDER BY name{clause}", of)

    def set_limit(self, name: str, capacity: int) -> None:
        with self._db.transaction():
            self._db.run(
                "INSERT INTO limits (name, capacity) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET capacity = excluded.capacity",
                name,
                capacity,
            )

    def secret(self) -> bytes:
        """The key for worker tokens. It is created once and is the same for every server on this database."""
        with self._db.transaction():
            self._db.run(
                "INSERT INTO meta (name, value) VALUES ('token_key', ?) ON CONFLICT (name) DO NOTHING",
                secrets.token_hex(32),
            )
            return bytes.fromhex(self._db.rows("SELECT value FROM meta WHERE name = 'token_key'")[0][0])

    # -- reads -------------------------------------------------------------------------------------------------

    def limits(self) -> list[Limit]:
        return [Limit(name, capacity, int(held)) for name, capacity, held in self._db.rows(_LIMITS)]

    def find_map(self, namespace: str, name: str) -> Stored | None:
        return self._first(self._db.rows(f"{_MAPS} WHERE namespace = ? AND name = ?", namespace, name))

    def find_uid(self, uid: str) -> Stored | None:
        return self._first(self._db.rows(f"{_MAPS} WHERE uid = ?", uid))

    def list_maps(self, namespace: str | None = None) -> list[Stored]:
        rows = (
            self._db.rows(f"{_MAPS} ORDER BY id")
            if namespace is None
            else self._db.rows(f"{_MAPS} WHERE namespace = ? ORDER BY id", namespace)
        )
        return [self._stored(row) for row in rows]

    def list_items(
        self, of: int, *, states: Sequence[State] = (), after: int = -1, limit: int = PAGE_ROWS
    ) -> list[MapItem]:
        """Items in order, after the number `after`, at most `limit`."""
        marks = f" AND i.state IN ({', '.join(str(int(state)) for state in states)})" if states else ""
        statement = f"{_OF_ITEM}{marks} AND i.seq > ? ORDER BY i.seq LIMIT ?"
        return [_item_view(row) for row in self._db.rows(statement, of, after, min(limit, PAGE_ROWS))]

    def get_item(self, of: int, seq: int) -> tuple[MapItem, bytes] | None:
        """One item, and the last part of the output of its last failure."""
        rows = self._db.rows(f"{_OF_ITEM} AND i.seq = ?", of, seq)
        if not rows:
            return None
        output = self._db.rows("SELECT output FROM failures WHERE map = ? AND seq = ?", of, seq)
        return _item_view(rows[0]), bytes(output[0][0]) if output else b""

    def results(
        self, of: int, *, after: int = -1, limit: int = PAGE_ROWS, inputs: bool = False
    ) -> list[MapResult]:
        return [
            MapResult(
                item=seq,
                key=key,
                value=msgspec.UNSET if path is not None else msgspec.Raw(bytes(value) or b"null"),
                path=path,
                input=msgspec.Raw(bytes(given)) if inputs else msgspec.UNSET,
                seconds=seconds,
                peak_bytes=memory,
                at_ms=at,
            )
            for seq, key, given, value, path, seconds, memory, at in self._db.rows(_RESULTS, of, after, limit)
        ]

    # -- rows --------------------------------------------------------------------------------------------------

    def _maps(self, ids: set[int], *, lock: bool = False) -> dict[int, Map]:
        """The maps with these ids.

        With `lock`, only maps with counted tokens are locked: other servers need not wait.
        """
        if not ids:
            return {}
        wanted = sorted(ids)
        statement = f"{_MAPS} WHERE id IN ({', '.join('?' * len(wanted))})"
        maps = {row[0]: self._stored(row).map for row in self._db.rows(statement, *wanted)}
        clause = self._db.locking(" ORDER BY id FOR UPDATE")
        counted = [
            of for of, queue_map in maps.items() if queue_map.policy.limits or queue_map.policy.rate is not None
        ]
        if lock and clause and counted:
            locked = f"{_MAPS} WHERE id IN ({', '.join('?' * len(counted))}){clause}"
            maps |= {row[0]: self._stored(row).map for row in self._db.rows(locked, *counted)}
        return maps

    def _stored_by_id(self, of: int, *, lock: bool = False) -> Stored:
        clause = self._db.locking(" FOR UPDATE") if lock else ""
        stored = self._first(self._db.rows(f"{_MAPS} WHERE id = ?{clause}", of))
        if stored is None:
            raise NotFound("the map was deleted")
        return stored

    def _first(self, rows: Sequence[Row]) -> Stored | None:
        return self._stored(rows[0]) if rows else None

    def _stored(self, row: Row) -> Stored:
        of, uid, namespace, name, owner, state, closed, priority, policy, created_at, level, at, *counts = row
        parsed = self._policies.get(policy)
        if parsed is None:
            parsed = msgspec.json.decode(policy, type=Policy)
            self._policies.put(policy, parsed)
        queue_map = Map(
            id=of,
            policy=parsed,
            state=MapState(state),
            closed=bool(closed),
            priority=priority,
            counts=Counts(*counts),
            rate_level=level,
            rate_at=at,
        )
        return Stored(map=queue_map, uid=uid, namespace=namespace, name=name, owner=owner, created_at=created_at)

    def _set_meta(self, name: str, value: str) -> None:
        self._db.run(
            "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name,
            value,
        )


_LEASES = msgspec.json.Decoder(tuple[Lease, ...])
_STATES = {int(state): state for state in State}
_WORDS = {state: state.name.lower() for state in State} | {State.LARGE: "ready"}


def _answered(maps: Mapping[int, Map], changes: Changes, replies: list[Reply | NotFound]) -> Answered:
    fresh, freed, finished = {}, 0, set()
    for of, counts in changes.counts.items():
        queue_map = maps[of]
        before = queue_map.counts
        if (more := counts.ready + counts.large) > 0:
            fresh[of] = more
        if queue_map.policy.limits:
            freed += max(0, -counts.leases)
        if queue_map.closed and before.done + counts.done + before.dead + counts.dead >= before.total:
            finished.add(of)
    return Answered(
        replies=replies,
        fresh=fresh,
        freed=freed,
        finished=frozenset(finished),
        limited=frozenset(of for of, queue_map in maps.items() if queue_map.policy.limits),
        rated=frozenset(of for of, queue_map in maps.items() if queue_map.policy.rate is not None),
    )


def _may_start(queue_map: Map, free: dict[str, int]) -> int | None:
    counts, policy = queue_map.counts, queue_map.policy
    if queue_map.state is MapState.CANCELLED or leasing.is_finished(queue_map, counts):
        return None
    if queue_map.state is not MapState.RUNNING or policy.rate is not None:
        return 0
    most = counts.ready + counts.large
    if policy.idempotent and most <= 0:
        most = min(counts.leased, STRAGGLERS_AT_ONCE)
    for name, weight in policy.limits.items():
        if name in free and weight > 0:
            most = min(most, free[name] // weight)
    return max(0, most)


def _item(row: Row) -> Item:
    seq, state, *rest = row
    return Item(seq, _STATES[state], *rest)


def _candidate(row: Row) -> Candidate:
    return Candidate(_item(row[:-1]), row[-1])


def _item_row(of: int, item: Item) -> Row:
    seq, state, *rest = msgspec.structs.astuple(item)
    return (of, seq, int(state), *rest)


def open_store(where: Path | str, quota: Quota = NONE) -> Store:
    """Connect to the queue's database: a file or a `postgresql://` address. Raises StorageError."""
    return Store(open_database(where, QUEUE), quota)


def _session(row: Row) -> Session:
    _, name, expires_at, request, leases = row
    return Session(name, expires_at, request, _LEASES.decode(leases))


def _item_view(row: Row) -> MapItem:
    seq, key, state, tries, losses, memory, ready_at, fence, value, at, seconds, peak, path, *failed = row
    failure = None
    if failed[0] is not None:
        at_ms, cause, message, code, failed_tries, size = failed
        failure = ItemFailure(
            at_ms=at_ms, cause=cause, message=message, exit=code, tries=failed_tries, output_bytes=size
        )
    return MapItem(
        item=seq,
        key=key,
        state=_WORDS[_STATES[state]],
        value=msgspec.Raw(bytes(value)),
        tries=tries,
        losses=losses,
        memory_bytes=memory,
        ready_at_ms=ready_at,
        leases=fence,
        finished_at_ms=at,
        seconds=seconds,
        peak_bytes=peak,
        path=path,
        failure=failure,
    )
