"""Copies and backups of a data folder, brought back; ways to damage it are in test_folderhealth.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.cli.datafolder import Config, DataFolder
from moorage.cli.folderhealth import find_damage, refuse_damage
from moorage.cli.main import main
from moorage.server.identity.sessions import AuditEntry, open_sessions
from moorage_kube.databasefile import MANIFEST, read_mark
from moorage_kube.errors import StorageDamaged
from moorage_kube.testing.examples import examples
from moorage_local.copies import list_copies
from moorage_local.storage.sqlite import SqliteStorage, read_records
from moorage_testing.controllers import Killed
from tests.damagedfolder import NODES, PORTS, TAKEN, contents, damage_page, empty, make_whole, rows_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whole(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def test_a_restored_store_counts_on_beyond_all_that_clients_have_seen(data: Path) -> None:
    empty(data / "cluster.db")
    assert main(["restore", "latest", "--data", str(data)]) == 0

    async def look() -> int:
        store = SqliteStorage(data / "cluster.db")
        await store.start()
        record = await store.put("a", b"{}")
        await store.stop()
        return record.mod_revision

    assert asyncio.run(look()) == 300 + 1_000_000 + 1
    assert find_damage(DataFolder(data)) == []


def test_all_damaged_files_are_named_at_once(data: Path) -> None:
    for name in ("cluster.db", "tokens.json", "queue.db"):
        empty(data / name)
    (data / "config.json").unlink()
    with pytest.raises(StorageDamaged) as caught:
        refuse_damage(DataFolder(data))
    for name in (
        "cluster.db is empty",
        "config.json is missing",
        "queue.db is empty",
        "tokens.json cannot be read",
    ):
        assert name in caught.value.message
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert find_damage(DataFolder(data)) == []


def test_the_way_back_from_a_damaged_configuration_keeps_its_ports(data: Path) -> None:
    (data / "config.json").write_text("{")
    with pytest.raises(StorageDamaged) as caught:
        refuse_damage(DataFolder(data))
    assert "remove" not in str(caught.value.hint)
    assert main(["restore", "latest", "--data", str(data)]) == 0
    config = DataFolder(data).load_config()
    assert config is not None
    assert (config.ports, config.nodes) == (PORTS, NODES)


def test_without_copies_the_hint_says_what_else_can_be_done(data: Path) -> None:
    shutil.rmtree(data / "copies")
    (data / "config.json").write_text("{")
    with pytest.raises(StorageDamaged) as caught:
        refuse_damage(DataFolder(data))
    assert str(caught.value.hint).startswith("there is no copy of config.json. ")
    assert "--api-port" in str(caught.value.hint)
    assert main(["restore", "latest", "--data", str(data)]) == 1
    empty(data / "cluster.db")
    with pytest.raises(StorageDamaged) as caught:
        refuse_damage(DataFolder(data))
    assert "there is no copy of cluster.db and config.json:" in str(caught.value.hint)
    assert "moor down" in str(caught.value.hint)


def test_printed_output_is_set_aside_because_it_is_not_copied(data: Path) -> None:
    (data / "outputs.db").write_bytes(b"no database" * 1000)
    assert [damage.file for damage in find_damage(DataFolder(data))] == ["outputs.db"]
    with pytest.raises(StorageDamaged) as caught:
        refuse_damage(DataFolder(data))
    assert f"restore latest --data {data}` sets aside outputs.db" in str(caught.value.hint)
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert find_damage(DataFolder(data)) == []
    assert not (data / "outputs.db").exists()


CUTS = examples(5, full=30)  # in the second half of a restore of a backup, where files are put into place


def cut_short(steps: int, *words: str) -> bool:
    """Type a restore, but end before a rename, a removal or a link after so many; whether it came so far."""
    return steps_done(steps, *words) > steps


def steps_done(steps: int, *words: str) -> int:
    """The same; how many renames, removals and links were begun."""
    done = 0

    def count(*_: object, **__: object) -> None:
        nonlocal done
        done += 1
        if done > steps:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "unlink"):
            real = getattr(os, name)
            patch.setattr(os, name, lambda *given, real=real, **named: (count(), real(*given, **named))[1])
        try:
            assert main(["restore", *words]) == 0
        except Killed:
            assert done > steps
    return done


@pytest.mark.parametrize("kept_mark", [True, False], ids=["marked", "of a version without marks"])
@pytest.mark.parametrize("file", ["queue.db", "people.db", "usage.db"])
def test_a_restore_that_is_cut_short_leaves_no_database_that_nobody_misses(whole, tmp_path, file, kept_mark):
    steps, was_cut = 0, True
    while was_cut:
        data = Path(shutil.copytree(whole, tmp_path / f"data-{steps}"))
        damage_page(data / file)
        if not kept_mark:
            (data / MANIFEST).unlink()
        was_cut = cut_short(steps, "latest", "--file", file, "--data", str(data))
        if file in {damage.file for damage in find_damage(DataFolder(data))}:
            assert main(["restore", "latest", "--data", str(data)]) == 0
        assert find_damage(DataFolder(data)) == []
        assert rows_of(data / file) == 100
        steps += 1
    assert steps > 2


def test_a_restore_of_the_store_that_is_cut_short_forgets_no_revision(whole: Path, tmp_path: Path) -> None:
    steps, was_cut = 0, True
    while was_cut:
        data = Path(shutil.copytree(whole, tmp_path / f"data-{steps}"))
        empty(data / "cluster.db")
        was_cut = cut_short(steps, "latest", "--file", "cluster.db", "--data", str(data))
        if was_cut and find_damage(DataFolder(data)):
            assert main(["restore", "latest", "--data", str(data)]) == 0
        assert find_damage(DataFolder(data)) == []
        assert read_mark(data / "cluster.db") is not None
        with contextlib.closing(sqlite3.connect(data / "cluster.db")) as db:
            assert db.execute("SELECT count FROM high_water").fetchone()[0] >= 300 + 1_000_000
        steps += 1


def keep(data: Path, word: str) -> None:
    """Have the folder keep an audit record, a log and an object that say the word."""
    with contextlib.closing(open_sessions(data / "people.db")) as people:
        people.note([AuditEntry(at=TAKEN, person=word, method="POST", path="/x")])
    log = data / "attempts" / "u" / "00000001.log"
    log.parent.mkdir(parents=True)
    log.write_text(word)

    async def put() -> None:
        store = SqliteStorage(data / "cluster.db")
        await store.start()
        await store.put("core/configmaps/default/word", json.dumps({"word": word, "metadata": {}}).encode())
        await store.stop()

    asyncio.run(put())


def words_of(data: Path) -> set[str]:
    with contextlib.closing(open_sessions(data / "people.db")) as people:
        words = {entry.person for entry in people.audit()}
    records = {record.key: json.loads(record.value) for record in read_records(data / "cluster.db")}
    words.add(records["core/configmaps/default/word"]["word"])
    return words | {log.read_text() for log in (data / "attempts").rglob("*.log")}


def test_a_restore_of_a_backup_that_is_cut_short_leaves_no_half_state_that_is_taken_as_whole(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    source, old, file = tmp_path / "source", tmp_path / "old", tmp_path / "a.backup"
    for folder, word in ((source, "new"), (old, "old")):
        keep(Path(shutil.copytree(whole, folder)), word)
    assert main(["backup", "--data", str(source), str(file)]) == 0
    data, ends = tmp_path / "data", set()
    words = ("--force", "--data", str(data), str(file))
    shutil.copytree(old, data)
    total = steps_done(1_000_000, *words)
    shutil.rmtree(data)
    cuts = {
        0,
        total - 1,
        *chance.choices(range(total // 2), k=2),
        *chance.choices(range(total // 2, total), k=CUTS),
    }
    for steps in sorted(cuts):
        shutil.copytree(old, data)
        assert cut_short(steps, *words)
        is_refused = bool(find_damage(DataFolder(data)))  # then `moor up` does not start
        if not is_refused:
            assert words_of(data) in ({"old"}, {"new"}), f"after {steps} steps of {total}"
        ends.add("refused" if is_refused else words_of(data).pop())
        assert main(["restore", *words]) == 0
        assert find_damage(DataFolder(data)) == []
        assert words_of(data) == {"new"}
        assert list(data.glob(".restor*")) == []
        shutil.rmtree(data)
    assert ends == {"old", "refused", "new"}


@contextlib.contextmanager
def no_room(most_bytes: int) -> Iterator[None]:
    """No file of this process may be larger, as on a disk that gets full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("most_bytes", [1, 3000, 30_000])
@pytest.mark.parametrize("what", ["backup", "restore a backup", "restore a copy"])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_made(data, tmp_path, what, most_bytes, capsys):
    file, new = tmp_path / "a.backup", tmp_path / "new.backup"
    assert main(["backup", "--data", str(data), str(file)]) == 0
    words = {
        "backup": ["backup", str(new)],
        "restore a backup": ["restore", "--force", str(file)],
        "restore a copy": ["restore", "latest", "--all"],
    }[what]
    before = contents(data)
    capsys.readouterr()
    with no_room(most_bytes):
        assert main([*words, "--data", str(data)]) == 1
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert contents(data) == before
    assert not list(tmp_path.glob("*new.backup*"))
    assert main([*words, "--data", str(data)]) == 0
    assert find_damage(DataFolder(data)) == []


def test_a_damaged_copy_is_not_restored(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty(data / "cluster.db")
    damage_page(data / "copies" / "20261121T120000Z" / "cluster.db")
    before = contents(data)
    assert main(["restore", "latest", "--data", str(data)]) == 1
    assert "cluster.db of the copy 20261121T120000Z is damaged" in capsys.readouterr().err
    assert {name: text for name, text in contents(data).items() if not name.startswith("run/")} == before


def test_restore_refuses_while_a_cluster_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty(data / "cluster.db")
    held = DataFolder(data).lock()
    try:
        assert main(["restore", "latest", "--data", str(data)]) == 1
    finally:
        os.close(held)
    assert "moor down" in capsys.readouterr().err
    assert (data / "cluster.db").read_bytes() == b""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["yesterday"], 2, "copy 'yesterday' not found", id="a copy that is not there"),
        pytest.param(["latest", "--file", "thesis.tex"], 2, "no copy holds thesis.tex", id="another file"),
        pytest.param(["--all"], 2, "copy missing", id="no name"),
        pytest.param(["latest", "--all", "--file", "VERSION"], 2, "cannot be used together", id="both"),
    ],
)
def test_wrong_wishes(data, capsys, words, code, message):
    assert main(["restore", *words, "--data", str(data)]) == code
    assert message in capsys.readouterr().err


def test_copies_are_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restore", "-o", "json", "--data", str(data)]) == 0
    (copy,) = json.loads(capsys.readouterr().out)
    assert (copy["name"], copy["objects"], copy["taken"]) == ("20261121T120000Z", 300, "2026-11-21T12:00:00Z")
    assert {"cluster.db", "queue.db", "people.db", "usage.db", "config.json", "pki/tokens.key"} <= set(
        copy["files"]
    )


def test_a_sound_file_is_brought_back_only_when_it_is_asked_for(data: Path) -> None:
    folder = DataFolder(data)
    folder.save_config(Config(nodes=[{"name": "other"}], ports=PORTS, user="ada"))
    assert main(["restore", "latest", "--data", str(data)]) == 0
    config = folder.load_config()
    assert config is not None
    assert config.nodes == [{"name": "other"}]
    assert main(["restore", "latest", "--file", "config.json", "--data", str(data)]) == 0
    config = folder.load_config()
    assert config is not None
    assert config.nodes == NODES
    assert main(["restore", list_copies(data)[0].name, "--all", "--data", str(data)]) == 0
    assert find_damage(folder) == []


def test_a_first_start_that_was_cut_short_is_no_damage(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "d")
    assert find_damage(folder) == []
    folder.prepare()
    assert find_damage(folder) == []
    folder.save_config(Config(nodes=NODES, ports=PORTS, user="ada"))
    (folder.path / "cluster.db").touch()
    assert find_damage(folder) == []


def test_pods_without_their_store_are_a_sign_that_it_is_gone(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "d")
    folder.prepare()
    (folder.path / "nodes" / "node-1" / "uid-1").mkdir(parents=True)
    damage = find_damage(folder)
    assert [(entry.file, entry.problem) for entry in damage][:2] == [
        ("cluster.db", "is missing"),
        ("config.json", "is missing"),
    ]
