"""A database that is full or away while it is migrated: nothing is half done, and the next start does the rest."""

from __future__ import annotations

import resource
from pathlib import Path

import dumps
import pytest
import upgradescenes
from releases import ROOT, StepFailed, running

from moorage.errors import NotReady
from moorage.testing.postgres import throwaway_postgres

pytestmark = pytest.mark.xdist_group("upgrade")
THIS = ROOT / "src"


def test_a_disk_without_room_leaves_the_schema_as_it_was(tmp_path: Path) -> None:
    dumps.load_fixtures(tmp_path, "")
    before = dumps.dump_sqlite(tmp_path / "people.db")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # no file of the process grows beyond a page
    try:
        with running(THIS, tmp_path) as release:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            with pytest.raises(StepFailed, match=r"Storage.*people\.db"):
                release.do("audit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert dumps.dump_sqlite(tmp_path / "people.db") == before
    with running(THIS, tmp_path) as release:
        upgradescenes.finish(release)
        upgradescenes.use_everything(release, "more")


def test_a_server_that_is_away_is_met_later(tmp_path: Path) -> None:
    try:
        with throwaway_postgres() as server:
            dumps.load_fixtures(tmp_path, server.url)
            server.stop()
            with running(THIS, tmp_path, server.url) as release:
                with pytest.raises(StepFailed, match="StorageError: could not open postgresql://"):
                    release.do("audit")
                server.start()
                assert len(release.do("audit")) == 2
                upgradescenes.finish(release)
    except NotReady as error:
        pytest.skip(f"{error.message}: {error.hint}")
