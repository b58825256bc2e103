"""Ways to damage a data folder: each is refused with the way back, or nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from moorage.cli.datafolder import DataFolder
from moorage.cli.folderhealth import find_damage
from moorage.cli.main import main
from moorage_kube.databasefile import MANIFEST, read_manifest
from moorage_local.copies import list_copies, take_copy
from moorage_local.storage.sqlite import read_records
from tests.damagedfolder import (
    COPIED_DATABASES,
    SERVER_DATABASES,
    SMALL,
    TAKEN,
    a_folder,
    all_there,
    contents,
    cut,
    cut_log,
    damage_page,
    empty,
    garbage,
    gone,
    gone_with_side_files,
    make_whole,
    without_log,
    zero_page,
)

Harm = Callable[[Path], object]
WAYS: dict[str, Harm] = {
    "gone": gone,
    "empty": empty,
    "truncated": cut,
    "damaged page": damage_page,
    "zeroed in the middle": zero_page,
    "garbage": garbage,
    "a folder in its place": a_folder,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whole(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whole(tmp_path_factory.mktemp("another") / "data")


@pytest.fixture(scope="module")
def older(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with one change more in each database; the databases of before are `x.db.before`."""
    data = Path(shutil.copytree(whole, tmp_path_factory.mktemp("older") / "data"))
    for name, made in SERVER_DATABASES.items():
        shutil.copy(data / name, data / f"{name}.before")
        from moorage.sql.opening import open_database

        database = open_database(data / name, made.schema, durable=name != "outputs.db")
        database.run("INSERT INTO more VALUES ('late')")
        database.close()
    return data


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def test_a_whole_folder_is_no_problem(data: Path, whole: Path) -> None:
    assert find_damage(DataFolder(data)) == []
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert all_there(data, whole)


def refused(data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """`moor up` ends with one clear error and a hint, and changes nothing; what it says."""
    harmed = contents(data)
    capsys.readouterr()
    assert main(["up", "--data", str(data)]) == 1
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], err
    assert contents(data) == harmed
    return err


# two bytes: half of it is still a version
CASES: dict[str, tuple[str, Harm]] = {
    f"{file}: {way}": (file, harm)
    for file in (*COPIED_DATABASES, *SMALL)
    for way, harm in WAYS.items()
    if (file, way) not in [("VERSION", "truncated"), ("VERSION", "damaged page")]
}
CASES |= {f"{file}: gone with all beside it": (file, gone_with_side_files) for file in COPIED_DATABASES}
CASES |= {
    f"cluster.db: log {way}": ("cluster.db", harm) for way, harm in (("cut", cut_log), ("gone", without_log))
}
SETTINGS = {
    "null": None, "a list": [], "a number": 5, "a text": "x", "empty": {}, "an unknown setting": {"color": "red"},
    "no ports": {"nodes": [{"name": "n"}], "ports": {}}, "ports as text": {"nodes": [{}], "ports": {"api": "1"}},
    "nodes of numbers": {"nodes": [1], "ports": {}}, "no nodes": {"nodes": None, "ports": None},
}  # fmt: skip


def write_json(value: object, path: Path) -> None:
    path.write_text(json.dumps(value))


CASES |= {f"config.json: {way}": ("config.json", partial(write_json, value)) for way, value in SETTINGS.items()}
CASES |= {
    f"tokens.json: {way}": ("tokens.json", partial(write_json, value))
    for way, value in (("null", None), ("a list", []), ("a number", 5), ("no role", {"t": {"user": "ada"}}))
}


@pytest.mark.parametrize(("file", "harm"), CASES.values(), ids=CASES)
def test_a_damaged_file_is_named_and_restore_latest_brings_it_back(data, whole, file, harm, capsys):
    before = contents(data)
    harm(data / file)
    harmed = contents(data)
    err = refused(data, capsys)
    assert f" {file} " in err
    assert f"`moor restore latest --data {data}` restores the copy of" in err
    assert main(["restore", "latest", "--data", str(data), "--dry-run"]) == 0
    assert f"would restore {file}" in capsys.readouterr().err
    assert contents(data) == harmed
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert find_damage(DataFolder(data)) == []
    after = contents(data)
    kept = {name for name in after if name.startswith("damaged/")}
    assert any(name.endswith(f"Z/{file}") for name in kept) == (file in harmed)
    untouched = {name for name in before if not name.startswith((file, MANIFEST))}
    assert {name: after[name] for name in untouched} == {name: before[name] for name in untouched}
    assert all_there(data, whole, only=file)


@pytest.mark.parametrize("file", COPIED_DATABASES)
def test_a_database_of_another_cluster_is_refused(data, another, whole, file, capsys):
    for side in another.glob(f"{file}*"):
        shutil.copy(side, data / side.name)
    assert f" {file} is not the file that was used here last" in refused(data, capsys)
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert all_there(data, whole)


@pytest.mark.parametrize("file", [name for name in SERVER_DATABASES if name != "outputs.db"])
def test_an_older_database_is_refused(older, file, tmp_path, capsys):
    data = Path(shutil.copytree(older, tmp_path / "data"))
    assert find_damage(DataFolder(data)) == []
    (data / f"{file}.before").rename(data / file)
    err = refused(data, capsys)
    assert f" {file} ends at change " in err
    assert "moor restore latest" in err


@pytest.mark.parametrize("way", [way for way in WAYS if way != "a folder in its place"])
def test_without_its_manifest_a_folder_loses_nothing(data: Path, whole: Path, way: str) -> None:
    names = read_manifest(data).names()
    WAYS[way](data / MANIFEST)
    assert find_damage(DataFolder(data)) == []
    assert all_there(data, whole)
    assert read_manifest(data).is_whole
    assert read_manifest(data).names() == names


@pytest.mark.parametrize("has_copies", [True, False], ids=["with copies", "without copies"])
@pytest.mark.parametrize("file", [name for name in COPIED_DATABASES if name != "samples.db"])
def test_a_database_is_missed_without_the_manifest_too(data, whole, file, has_copies, capsys):
    gone_with_side_files(data / file)
    (data / MANIFEST).unlink()
    if not has_copies:
        shutil.rmtree(data / "copies")
        (data / "nodes" / "node-1" / "uid-1").mkdir(parents=True)  # a pod, for cluster.db
    assert f" {file} is missing" in refused(data, capsys)
    if has_copies:
        assert main(["restore", "latest", "--data", str(data)]) == 0
        assert all_there(data, whole)


def test_a_store_without_its_log_is_refused_without_the_manifest_too(data, whole, capsys):
    for file in ("cluster.db-wal", "cluster.db-shm", MANIFEST):
        (data / file).unlink(missing_ok=True)
    shutil.move(data / "copies", data.with_name("copies"))
    assert " cluster.db lacks its write-ahead log" in refused(data, capsys)
    shutil.move(data.with_name("copies"), data / "copies")
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert all_there(data, whole)


@pytest.mark.parametrize("others", [True, False], ids=["with the small files", "alone"])
def test_a_store_that_was_copied_alone_is_refused(data, tmp_path, others, capsys):
    new = tmp_path / "new"
    (new / "pki").mkdir(parents=True)
    for name in ("cluster.db", *(SMALL if others else ())):
        shutil.copy(data / name, new / name)
    err = refused(new, capsys)
    assert "cluster.db lacks its write-ahead log" in err
    assert ("VERSION is missing" in err) is not others
    assert f"`moor restore FILE --data {new}`" in err


SET_ASIDE = {
    **{f"outputs.db: {way}": ("outputs.db", harm) for way, harm in WAYS.items()},
    **{
        f"{file}: a folder in its place": (file, a_folder)
        for file in (MANIFEST, "kubeconfig", "scheduler.json", "prometheus.yml", "images.json")
    },
    **{f"{folder}: a file in its place": (folder, "file") for folder in ("log", "copies")},
}


@pytest.mark.parametrize(("file", "harm"), SET_ASIDE.values(), ids=SET_ASIDE)
def test_what_is_made_anew_is_set_aside_by_restore_latest(data, whole, file, harm, capsys):
    if callable(harm):
        (data / file).touch()
        harm(data / file)
    else:
        shutil.rmtree(data / file)
        (data / file).touch()
    err = refused(data, capsys)
    assert f" {file} " in err
    assert f"`moor restore latest --data {data}` sets aside {file}" in err
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert find_damage(DataFolder(data)) == []
    assert all_there(data, whole, but="outputs.db" if file == "outputs.db" else "")


@pytest.mark.parametrize("folder", ["nodes", "volumes", "attempts", "artifacts", "pki", "run"])
def test_a_file_in_place_of_a_folder_is_one_clear_error(data, whole, folder, capsys):
    shutil.rmtree(data / folder, ignore_errors=True)
    (data / folder).touch()
    err = refused(data, capsys)
    assert f"{folder} is a file, not a folder" in err or f"{data / folder}: a file is in its place" in err
    assert "from your own backup" in err or "move it elsewhere" in err


@pytest.mark.parametrize("file", ["pki/expiry.json", "pki/server.crt", "pki/server.key"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "a folder in its place"])
def test_what_can_be_made_anew_is_made_anew(data: Path, whole: Path, file: str, way: str) -> None:
    from moorage_local.apiserver.pki import ensure_pki

    WAYS[way](data / file)
    assert find_damage(DataFolder(data)) == []
    ensure_pki(data / "pki")
    assert all_there(data, whole)


@pytest.mark.parametrize("side", ["cluster.db-shm", "queue.db-shm", "queue.db-wal"])
def test_without_what_sqlite_makes_anew_nothing_is_lost(data: Path, whole: Path, side: str) -> None:
    (data / side).unlink(missing_ok=True)
    assert find_damage(DataFolder(data)) == []
    assert all_there(data, whole)


@pytest.mark.parametrize("file", ["cluster.db", "people.db", "config.json"])
def test_latest_is_the_newest_copy_that_is_whole(data: Path, whole: Path, file: str) -> None:
    for hours in (1, 2):
        records = read_records(data / "cluster.db")
        take_copy(data, records, 300, now=TAKEN + timedelta(hours=hours))
    damage_page(data / "copies" / "20261121T140000Z" / file)
    (data / "copies" / "20261121T130000Z" / "copy.json").write_text("{")
    empty(data / file)
    assert main(["restore", "latest", "--data", str(data)]) == 0
    assert all_there(data, whole)
    assert [copy.name for copy in list_copies(data)] == [
        "20261121T140000Z",
        "20261121T130000Z",
        "20261121T120000Z",
    ]


@pytest.fixture
def owned(whole: Path) -> Iterator[Path]:
    """A copy of the folder whose owner is not root, where that user can reach it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        data = Path(shutil.copytree(whole, Path(folder) / "data"))
        if os.geteuid() == 0:  # who may read all
            for path in (data, *data.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        yield data


NOBODY = 65534


@pytest.mark.parametrize(
    "file", ["cluster.db", "queue.db", "config.json", "VERSION", MANIFEST, "pki/ca.key", "run"]
)
def test_a_file_that_may_not_be_read_is_one_clear_error(owned, file, capsys):
    was_root = os.geteuid() == 0
    mode = (owned / file).stat().st_mode
    os.chmod(owned / file, 0)
    if was_root:
        os.seteuid(NOBODY)
    try:
        assert main(["up", "--data", str(owned)]) == 1
    finally:
        if was_root:
            os.seteuid(0)
        os.chmod(owned / file, mode)
    err = capsys.readouterr().err
    assert [line.partition(":")[0] for line in err.splitlines()] == ["error", "hint"], err
    assert file in err
    assert "chmod" in err
