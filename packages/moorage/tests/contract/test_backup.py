"""Backup and restore of what the server keeps, for files and for PostgreSQL: whole, checked, and safe to kill."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.attempts.store import open_attempts
from moorage.decide.maps.leasing import Call, Exchange, Outcome, Policy, Report
from moorage.decide.usage.intervals import Interval, Open
from moorage.queue.store import NewItem, open_store
from moorage.server.backup.archive import MANIFEST, BadArchive
from moorage.server.backup.store import Place, content_of, finish_restore, restore
from moorage.server.identity.sessions import AuditEntry, Session, open_sessions
from moorage.usage.samples import SampleStore
from moorage.usage.store import UsageStore
from moorage_kube.errors import Conflict, MoorageError
from moorage_kube.testing.clock import NOON
from moorage_testing.backups import back_up, lines, where
from moorage_testing.backups import new_place as new_place
from moorage_testing.readings import a_reading

NOON_MS = int(NOON.timestamp() * 1000)
ITEMS = 8


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(store: Any, of: int, session: str, request: int, want: int = 0, done: Any = (), held: Any = ()) -> Any:
    reports = [
        Report(item=item, lease=lease, outcome=Outcome.DONE, value=msgspec.Raw(b"1"), seconds=1.0)
        for item, lease in done
    ]
    call = Exchange(session=session, request=request, held=list(held), want=want, reports=reports)
    (reply,) = store.exchange([Call(of, call)], NOON_MS).replies
    if isinstance(reply, Exception):
        raise reply
    return reply


def fill(place: Place) -> None:
    """A map half done of which two workers hold an item each; people, use, attempts, a log."""
    with closing(open_store(where(place, "queue.db"))) as store:
        stored = store.create_map(
            namespace="lab", name="m", owner="ada", policy=Policy(limits={"mysql": 1}), request="r",
            limits={"mysql": 2}, priority=0, now=NOON_MS,
        )  # fmt: skip
        of = stored.map.id
        store.add_items(of, [NewItem(msgspec.Raw(b'"\xc3\xa9%d"' % at)) for at in range(ITEMS)])
        store.change_map(of, closed=True)
        ask(store, of, "w1", 1, want=1)
        ask(store, of, "w1", 2, want=1, done=[(0, 1)])
        ask(store, of, "w2", 1, want=1)
        store.secret()
    with closing(open_sessions(where(place, "people.db"))) as people:
        people.add(
            "token-1",
            Session(id="s", login="l", person="ada", source="oidc", created=NOON, expires=NOON + timedelta(days=9),
                    used=NOON, checked=NOON, tokens_until=NOON, refresh=b"\0\xff"),
        )  # fmt: skip
        people.note([AuditEntry(at=NOON, person="ada", method="POST", path="/x", what="created run lab/a")])
    with closing(UsageStore(where(place, "usage.db"))) as usage:
        interval = Interval(
            pod_uid="u", namespace="lab", pod="p", run="a", attempt=1, owner="ada", node="n", gpu_type="a100",
            gpus=2, cpu_milli=1, memory_bytes=1, started_at=NOON, ended_at=None, last_seen_at=NOON,
        )  # fmt: skip
        usage.apply([Open(interval)])
    with closing(SampleStore(where(place, "samples.db"))) as samples:
        samples.add([a_reading(at=NOON), a_reading(at=NOON + timedelta(hours=2))])
        samples.downsample(NOON + timedelta(hours=1, minutes=10))
    with closing(open_attempts(where(place, "attempts.db"))) as attempts:
        attempts.write([], [])
    if not place.url:
        (place.folder / "attempts" / "u").mkdir(parents=True)
        (place.folder / "attempts" / "u" / "00000001.log").write_bytes(b"epoch 1\n")


def finish(place: Place) -> None:
    """Workers of before are refused; others do what is left, each item once."""
    with closing(open_store(where(place, "queue.db"))) as store:
        stored = store.find_map("lab", "m")
        assert stored is not None
        counts = stored.map.counts
        assert (counts.done, counts.ready, counts.leased, counts.leases, counts.workers) == (1, ITEMS - 1, 0, 0, 0)
        of = stored.map.id
        late = ask(store, of, "w1", 3, want=0, done=[(1, 1)], held=[(1, 1)])
        assert (late.refused, late.lost) == ([(1, 1)], [(1, 1)])
        done: list[tuple[int, int]] = []
        for request in range(1, 60):
            reply = ask(store, of, "new", request, want=1, done=done)
            assert not reply.refused
            done = [(item, lease) for item, lease, _ in reply.items]
            if reply.state == "finished":
                break
        assert [row.item for row in store.results(of)] == list(range(ITEMS))
        again = store.create_map(
            namespace="lab", name="next", owner="ada", policy=Policy(), request="n", limits={}, priority=0,
            now=NOON_MS,
        )  # fmt: skip
        assert again.map.id > of


def test_a_backup_restores_all_and_takes_every_lease_back(
    kind: str, new_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, target, archive = new_place(kind), new_place(kind), tmp_path / "a.backup"
    fill(place)
    before = lines(place, tmp_path)
    manifest = back_up(place, archive)
    assert {name: count for name, count in manifest.rows.items() if count} == {
        "maps": 1, "items": ITEMS, "results": 1, "login_sessions": 1, "audit_log": 1, "intervals": 1,
    }  # fmt: skip
    assert archive.stat().st_mode & 0o777 == 0o600
    assert lines(place, tmp_path) == before  # a backup changes nothing
    restore(target, archive)
    assert lines(target, tmp_path) == before
    finish(target)
    with closing(SampleStore(where(target, "samples.db"))) as samples:
        assert samples.use_of("u1")["u1"].tally.slots == 1  # readings that were not summed up are in no backup
        assert samples.add([a_reading(at=NOON + timedelta(hours=3))]) == 1
    with closing(open_sessions(where(target, "people.db"))) as people:
        session = people.find("token-1")
        assert session is not None
        assert (session.person, session.refresh) == ("ada", b"\0\xff")
    assert list(target.folder.glob(".*")) == []


@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgres"), ("postgres", "sqlite")])
def test_what_files_held_can_be_restored_into_postgresql_and_the_reverse(
    source: str, target: str, new_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, other = new_place(source), new_place(target)
    fill(place)
    back_up(place, tmp_path / "a.backup")
    restore(other, tmp_path / "a.backup")
    finish(other)
    with closing(open_sessions(where(other, "people.db"))) as people:
        assert people.find("token-1") is not None
        people.note([AuditEntry(at=NOON, person="eve", method="POST", path="/y")])
        assert [entry.person for entry in people.audit()] == ["eve", "ada"]


def test_a_target_that_is_not_empty_is_refused_without_force(
    kind: str, new_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, target = new_place(kind), new_place(kind)
    fill(place)
    back_up(place, tmp_path / "a.backup")
    fill(target)
    with closing(open_store(where(target, "queue.db"))) as store:
        store.delete_map(1)
    before = lines(target, tmp_path)
    with pytest.raises(Conflict, match="the target is not empty: it has 1 rows of intervals"):
        restore(target, tmp_path / "a.backup")
    assert lines(target, tmp_path) == before
    with closing(open_store(where(target, "queue.db"))) as store:  # open, as a server has it
        restore(target, tmp_path / "a.backup", force=True)
        assert [stored.name for stored in store.list_maps("lab")] == ["m"]
    finish(target)


@pytest.fixture
def archive(new_place: Callable[[str], Place], tmp_path: Path) -> Path:
    place = new_place("sqlite")
    fill(place)
    back_up(place, tmp_path / "good.backup")
    return tmp_path / "good.backup"


def rewritten(archive: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The archive with other contents; None: without that member."""
    changed = archive.with_name("changed.backup")
    with tarfile.open(archive) as old, tarfile.open(changed, "w:gz") as new:
        for entry in old:
            file = old.extractfile(entry)
            assert file is not None
            content = change(entry.name, file.read())
            if content is not None:
                import io

                entry.size = len(content)
                new.addfile(entry, io.BytesIO(content))
    return changed


def newer(field: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name != MANIFEST:
            return content
        manifest = json.loads(content)
        if field == "format":
            manifest["format"] = 99
        else:
            manifest["schemas"]["maps"] = 99
        return json.dumps(manifest).encode()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(newer("format"), "has format 99; this Moorage knows formats up to 1", id="newer format"),
        pytest.param(newer("schema"), "has schema version 99 of maps; this Moorage knows", id="newer schema"),
        pytest.param(
            lambda name, content: None if name.endswith("items.jsonl") else content, "lacks or adds", id="lacks"
        ),
        pytest.param(
            lambda name, content: content + b"[]\n" if name.endswith("items.jsonl") else content,
            "has another databases/maps/items.jsonl than was written", id="changed",
        ),
        pytest.param(
            lambda name, content: None if name == MANIFEST else content, "has no backup.json", id="no manifest"
        ),
    ],
)  # fmt: skip
def test_a_damaged_or_newer_archive_is_refused(
    change: Any, message: str, archive: Path, new_place: Callable[[str], Place]
) -> None:
    target = new_place("sqlite")
    with pytest.raises(BadArchive, match=message):
        restore(target, rewritten(archive, change))
    assert list(target.folder.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_an_archive_that_ends_early_or_has_a_wrong_byte_is_refused(
    share: float, archive: Path, new_place: Callable[[str], Place]
) -> None:
    target, content = new_place("sqlite"), archive.read_bytes()
    at = int(len(content) * share)
    flipped = bytearray(content)
    flipped[at] ^= 0x55
    for damaged in (content[:at], bytes(flipped)):
        bad = archive.with_name("bad.backup")
        bad.write_bytes(damaged)
        with pytest.raises(MoorageError):
            restore(target, bad)
        assert list(target.folder.iterdir()) == []


def test_an_archive_writes_nowhere_but_in_its_own_folder(archive: Path, new_place: Callable[[str], Place]) -> None:
    target = new_place("sqlite")
    for name in ("../out", "/tmp/out"):
        bad = archive.with_name("bad.backup")
        with gzip.open(bad, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        with pytest.raises(BadArchive, match="no plain file"):
            restore(target, bad)


KILLED = """
import os, signal, sys
from datetime import datetime, UTC
from pathlib import Path
from moorage.server.backup.archive import pack
from moorage.server.backup.store import Place, collect, restore, scratch

left = int(sys.argv[5])

def count(frame, event, argument):
    global left
    if "/server/backup/" in frame.f_code.co_filename or event == "c_call":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

place, archive = Place(folder=Path(sys.argv[2]), url=sys.argv[3]), Path(sys.argv[4])
sys.setprofile(count)
if sys.argv[1] == "backup":
    with scratch(place) as folder:
        pack(folder, collect(place, folder, now=datetime.now(UTC)), archive)
else:
    restore(place, archive, force=True)
"""


def killed_at(what: str, place: Place, archive: Path, at: int) -> bool:
    """Do it in a process that is killed at its so manieth step; whether it was."""
    command = [sys.executable, "-c", KILLED, what, str(place.folder), place.url, str(archive), str(at)]
    code = subprocess.run(command, check=False, capture_output=True).returncode
    assert code in (0, -9)
    return code == -9


@pytest.mark.parametrize("at", [50, 400, 1500, 4000, 9000])
def test_a_backup_that_is_killed_leaves_no_archive_and_the_next_is_whole(
    at: int, kind: str, new_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, archive = new_place(kind), tmp_path / "a.backup"
    fill(place)
    before = lines(place, tmp_path)
    if killed_at("backup", place, archive, at):
        assert not archive.exists()
    assert lines(place, tmp_path) == before
    target = new_place(kind)
    back_up(place, archive)
    restore(target, archive)
    assert lines(target, tmp_path) == before
    assert list(place.folder.glob(".*")) == []  # what the killed one left is gone


def test_a_restore_that_is_killed_leaves_the_old_state_or_the_new_one(
    kind: str, new_place: Callable[[str], Place], tmp_path: Path, seed: int
) -> None:
    import random

    place, archive, chance = new_place(kind), tmp_path / "a.backup", random.Random(seed)
    fill(place)
    back_up(place, archive)
    new = lines(place, tmp_path)
    ends, at = set(), 200
    while True:
        target = new_place(kind)
        with closing(open_sessions(where(target, "people.db"))) as people:
            people.note([AuditEntry(at=NOON, person="eve", method="POST", path="/y")])
        with closing(open_store(where(target, "queue.db"))) as store:
            store.set_limit("old", 3)
        old = lines(target, tmp_path)
        was_killed = killed_at("restore", target, archive, at)
        if not target.url:
            finish_restore(target.folder)  # as the next start of a server does
        after = lines(target, tmp_path)
        assert after == new or old.items() <= after.items()
        ends.add("new" if after == new else "old")
        if not was_killed:
            break
        at = int(at * chance.uniform(1.3, 1.9))
    assert ends == {"old", "new"}
    assert content_of(target) == {"maps": 1, "intervals": 1}
