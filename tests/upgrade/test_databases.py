"""Rows of the last release under this one's schema and code, and the reverse; both at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import dumps
import pytest
import upgradescenes
from releases import ROOT, Process, running

THIS = ROOT / "src"

pytestmark = pytest.mark.xdist_group("upgrade")


def test_what_the_last_release_left_is_read_and_finished(url: str, tmp_path: Path) -> None:
    dumps.load_fixtures(tmp_path, url)
    with running(THIS, tmp_path, url) as release:
        left = upgradescenes.read(release)
        assert left == left | {
            "policy": upgradescenes.POLICY | {"rate": None},
            "results": [[0, {"of": 0}]],
            "failure": ["dead", "broken", "last words"],
            "outputs": ["epoch 1\n"],
            "ada": ["ada", "ada@idp", b"\x00sealed\xff".hex()],
            "stranger": None,
            "audit": [["bob", "deleted map lab/old"], ["ada", "created run lab/train"]],
            "held": [["pod-1", 2, None, ["GPU-1", "GPU-2"]], ["pod-2", 2, 2, ["GPU-1", "GPU-2"]]],
        }
        assert (left["rated"]["rate"], left["counts"]["leased"], left["counts"]["done"]) == (100.0, 2, 1)
        assert release.do("take_code", "code-1") == "code-1"
        upgradescenes.finish(release)
        upgradescenes.use_everything(release, "more")
        upgradescenes.erase(release, "more")


def test_the_last_release_goes_on_after_this_one(url: str, tmp_path: Path, last_release: Path) -> None:
    old = last_release / "src"
    with running(old, tmp_path, url) as release:
        upgradescenes.write(release)
        before = upgradescenes.read(release)
    with running(THIS, tmp_path, url) as release:
        assert upgradescenes.read(release) == before
        upgradescenes.use_everything(release, "this")
        release.do("pause", "half")  # writes its policy again
        release.do("resume", "half")
    with running(old, tmp_path, url) as release:
        left = upgradescenes.read(release)
        assert {name: left[name] for name in ("policy", "results", "ada", "secret")} == {
            name: before[name] for name in ("policy", "results", "ada", "secret")
        }
        upgradescenes.erase(release, "this")
        upgradescenes.use_everything(release, "last")
        release.do("pause", "half")
        release.do("resume", "half")
        upgradescenes.finish(release)
    with running(THIS, tmp_path, url) as release:
        upgradescenes.erase(release, "last")
        assert release.do("policy", "half") == upgradescenes.POLICY | {"rate": None}
        assert len(release.do("results", "half")) == upgradescenes.ITEMS


def test_servers_of_both_releases_share_a_database(
    new_database: Callable[[], str], tmp_path: Path, last_release: Path
) -> None:
    url, items = new_database(), 40
    folders = {name: tmp_path / name for name in ("last", "this")}  # each server's own disk
    for folder in folders.values():
        folder.mkdir()
    with running(last_release / "src", folders["last"], url) as last:
        last.do("create_map", "m", items, upgradescenes.POLICY)
        last.do("log_in", "token-before", "ada")
        with running(THIS, folders["this"], url) as this:  # it migrates while the other serves
            assert this.do("whose", "token-before")[0] == "ada"
            granted: list[int] = []
            held: dict[str, list[list[int]]] = {"a": [], "b": []}
            for step in range(1, items * 4):
                for session in held:  # each worker meets a server of each release in turn
                    server = (last, this)[(step + (session == "a")) % 2]
                    reply = server.do("exchange", "m", session, step, want=2, done=held[session])
                    assert reply["refused"] == []
                    granted += [item for item, _ in reply["items"]]
                    held[session] = reply["items"]
                if not any(held.values()) and len(granted) >= items:
                    break
            assert sorted(granted) == list(range(items))
            for server in (last, this):
                assert [item for item, _ in server.do("results", "m")] == list(range(items))
                assert server.do("policy", "m") == upgradescenes.POLICY | {"rate": None}
            for writer, reader, name in ((last, this, "one"), (this, last, "two")):
                upgradescenes.use_everything(writer, name)
                upgradescenes.erase(reader, name)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_migration_that_is_killed_is_done_at_the_next_start(url: str, tmp_path: Path, at: int) -> None:
    """SIGKILL before, in the middle of and after the steps; each is one transaction."""
    dumps.load_fixtures(tmp_path, url)
    os.environ["MOORAGE_TEST_KILL_AT"] = str(at)
    try:
        process = Process(THIS, tmp_path, url)
    finally:
        del os.environ["MOORAGE_TEST_KILL_AT"]
    for step in ("secret", "audit", "held"):  # opens the queue's, people's and the history's database
        if not process.answers(step):
            break
    process.kill()
    with running(THIS, tmp_path, url) as release:
        assert release.do("audit") == [["bob", "deleted map lab/old"], ["ada", "created run lab/train"]]
        upgradescenes.finish(release)
        upgradescenes.use_everything(release, "more")
