"""One release's code as a process: reads a step a line from stdin, writes its outcome as a line of JSON.

It runs with PYTHONPATH at the sources of the last release or at this one's, so it looks for modules where
either has them. All it opens lies in one folder, or in one PostgreSQL database beside that folder.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

NOON_MS = 1_700_000_000_000
NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)
OLD_POLICY = {  # what 0.1 calls fields of a policy
    "time_seconds": "timeout_seconds",
    "max_memory_bytes": "memory_limit_bytes",
    "max_backoff_seconds": "backoff_limit_seconds",
}


def first_module(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ModuleNotFoundError(names[0])


leasing = first_module("moorage.decide.maps.leasing", "moorage.decide.leasing")


class Participant:
    """Its methods are the steps; they take and return what JSON can say."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._is_old = "time_seconds" not in leasing.Policy.__dataclass_fields__

    def _where(self, name: str) -> Path | str:
        return self._url or self._folder / name

    # --- the queue

    @property
    def queue(self) -> Any:
        if not hasattr(self, "_queue"):
            module = importlib.import_module("moorage.queue.store")
            if not hasattr(module, "open_store"):
                module = importlib.import_module("moorage.server.service")
            self._queue = module.open_store(self._where("queue.db"))
        return self._queue

    def create_map(self, name: str, items: int, policy: dict[str, Any] | None = None) -> int:
        from moorage.queue.store import NewItem

        given = {OLD_POLICY.get(key, key) if self._is_old else key: value for key, value in (policy or {}).items()}
        stored = self.queue.create_map(
            namespace="lab", name=name, owner="ada", policy=leasing.Policy(**given), request=f"make {name}",
            limits={"mysql": 5}, priority=0, now=NOON_MS,
        )  # fmt: skip
        self.queue.add_items(
            stored.map.id, [NewItem(msgspec.Raw(b'{"n":%d}' % at)) for at in range(items)], first=0
        )
        self.queue.change_map(stored.map.id, closed=True)
        return int(stored.map.id)

    def policy(self, name: str) -> dict[str, Any]:
        """By the names of today."""
        new_names = {old: new for new, old in OLD_POLICY.items()}
        policy = asdict(self._stored(name).map.policy)
        return {new_names.get(key, key): value for key, value in policy.items()}

    def pause(self, name: str) -> None:
        self.queue.change_map(self._stored(name).map.id, state=leasing.MapState.PAUSED)

    def resume(self, name: str) -> None:
        self.queue.change_map(self._stored(name).map.id, state=leasing.MapState.RUNNING)

    def exchange(
        self,
        name: str,
        session: str,
        request: int,
        want: int = 0,
        done: list[list[int]] | None = None,
        failed: list[list[int]] | None = None,
        at: int = 10,
    ) -> dict[str, Any]:
        """One request of a worker: answers, then a wish. `at`: seconds after the beginning."""
        reports = [
            leasing.Report(
                item=item,
                lease=lease,
                outcome=leasing.Outcome.DONE,
                value=msgspec.Raw(b'{"of":%d}' % item),
                seconds=1.0,
            )
            for item, lease in done or ()
        ]
        reports += [
            leasing.Report(
                item=item,
                lease=lease,
                outcome=leasing.Outcome.ERROR,
                message="broken",
                exit=3,
                output=b"last words",
            )
            for item, lease in failed or ()
        ]
        call = leasing.Exchange(session=session, request=request, held=[], want=want, reports=reports)
        (reply,) = self.queue.exchange(
            [leasing.Call(self._stored(name).map.id, call)], NOON_MS + at * 1000
        ).replies
        if isinstance(reply, Exception):
            raise reply
        return {
            "items": [[item, lease] for item, lease, _ in reply.items],
            "refused": [list(pair) for pair in reply.refused],
            "state": str(reply.state),
        }

    def tick(self, at: int) -> None:
        self.queue.tick(NOON_MS + at * 1000)

    def results(self, name: str) -> list[list[Any]]:
        rows = self.queue.results(self._stored(name).map.id)
        return [[row.item, json.loads(bytes(row.value))] for row in rows]

    def counts(self, name: str) -> dict[str, int]:
        return {key: value for key, value in msgspec.to_builtins(self._stored(name).map.counts).items() if value}

    def failure(self, name: str, item: int) -> list[Any]:
        view, output = self.queue.get_item(self._stored(name).map.id, item)
        return [view.state, view.failure.message, output.decode()]

    def secret(self) -> str:
        return self.queue.secret().hex()

    def delete_map(self, name: str) -> None:
        self.queue.delete_map(self._stored(name).map.id)

    def _stored(self, name: str) -> Any:
        return self.queue.find_map("lab", name)

    # --- what maps printed: always in a file

    def add_output(self, of: int, text: str) -> None:
        self._with_outputs(lambda outputs: outputs.add(of, "pod-1", [(0, 1, NOON_MS, text.encode())]))

    def outputs(self, of: int) -> list[str]:
        return [part.output.decode() for part in self._with_outputs(lambda outputs: outputs.page(of))]

    def _with_outputs(self, use: Any) -> Any:
        from moorage.queue.outputs import Outputs

        async def run() -> Any:
            outputs = Outputs(self._folder / "outputs.db")
            try:
                return await use(outputs)
            finally:
                outputs.close()

        return asyncio.run(run())

    # --- people

    @property
    def people(self) -> Any:
        module = first_module("moorage.server.identity.sessions", "moorage.server.sessions")
        if not hasattr(self, "_people"):
            if hasattr(module, "open_sessions"):
                self._people = module.open_sessions(self._where("people.db"))
            else:
                self._people = module.SessionStore(module.open_database(self._where("people.db")))
        return self._people

    def log_in(self, token: str, person: str) -> None:
        module = sys.modules[type(self.people).__module__]
        session = module.Session(
            id=f"s-{token}", login=f"l-{token}", person=person, source="oidc", subject=f"{person}@idp",
            client="moor on laptop", address="10.0.0.1", created=NOON, expires=NOON + timedelta(days=30),
            used=NOON, checked=NOON, tokens_until=NOON, refresh=b"\x00sealed\xff",
        )  # fmt: skip
        self.people.add(token, session)

    def whose(self, token: str) -> list[Any] | None:
        session = self.people.find(token)
        return None if session is None else [session.person, session.subject, session.refresh.hex()]

    def log_out(self, token: str) -> bool:
        return bool(self.people.remove(f"s-{token}"))

    def add_code(self, code: str) -> None:
        self.people.add_code(code, code.encode(), NOON + timedelta(hours=1), NOON)

    def take_code(self, code: str) -> str | None:
        body = self.people.take_code(code, NOON)
        return None if body is None else body.decode()

    def note(self, person: str, what: str) -> None:
        module = sys.modules[type(self.people).__module__]
        entry = module.AuditEntry(
            at=NOON, person=person, method="POST", path="/api/v1/jobs", what=what, address="10.0.0.1", status=201
        )
        self.people.note([entry])

    def audit(self) -> list[list[str]]:
        return [[entry.person, entry.what] for entry in self.people.audit()]

    # --- the history of use

    @property
    def usage(self) -> Any:
        from moorage.usage.store import UsageStore

        if not hasattr(self, "_usage"):
            self._usage = UsageStore(self._folder / "usage.db")
        return self._usage

    def hold(self, pod: str, hours: int | None = None) -> None:
        """Of a pod that began at noon. `hours`: it ended; None: it holds its GPUs still."""
        module = first_module("moorage.decide.usage.intervals", "moorage.decide.usage")
        end = None if hours is None else NOON + timedelta(hours=hours)
        interval = module.Interval(
            pod_uid=f"uid-{pod}", namespace="lab", pod=pod, run="train", attempt=1, owner="ada", node="gpu-1",
            gpu_type="a100", gpus=2, cpu_milli=4000, memory_bytes=2**33, started_at=NOON, ended_at=end,
            last_seen_at=NOON, devices=("GPU-1", "GPU-2"), work="w",
        )  # fmt: skip
        self.usage.apply([module.Open(interval)])

    def held(self) -> list[list[Any]]:
        rows = self.usage.overlapping(NOON, NOON + timedelta(days=1))
        return sorted(
            [row.pod, row.gpus, row.ended_at and (row.ended_at - NOON) // timedelta(hours=1), list(row.devices)]
            for row in rows
        )

    def close(self) -> None:
        for name in ("_queue", "_people", "_usage"):
            if hasattr(self, name):
                getattr(self, name).close()
                delattr(self, name)


def die_while_migrating(at: int) -> None:
    """Kill this process at the so manieth statement of migrations, whichever database they are of."""
    from moorage.sql import postgres, sqlite

    left = at

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for database in (sqlite.SqliteDatabase, postgres.PostgresDatabase):

        def apply(self: Any, step: Any, wrapped: Any = database.apply) -> None:
            count()
            wrapped(self, step)
            count()  # all is written, nothing is committed

        database.apply = apply  # type: ignore[method-assign]


def main() -> None:
    if at := os.environ.get("MOORAGE_TEST_KILL_AT"):
        die_while_migrating(int(at))
    participant = Participant(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        step = json.loads(line)
        try:
            value = getattr(participant, step["do"])(*step["args"], **step["options"])
            answer = {"value": value}
        except Exception as error:  # whoever asked decides what it means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    participant.close()


if __name__ == "__main__":
    main()
