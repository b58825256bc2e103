"""A database that is opened when it is first used."""

from __future__ import annotations

import pytest

from moorage.sql.leases import SCHEMA
from moorage.sql.opening import LateDatabase
from moorage_kube.errors import StorageError


def test_it_is_opened_at_its_first_use_and_stays_open(tmp_path) -> None:
    path = tmp_path / "some.db"
    late = LateDatabase(path, SCHEMA, name="the file")
    assert not path.exists()
    assert late.use() is late.use()
    assert path.exists()
    late.close()


@pytest.mark.parametrize("was_used", [True, False])
def test_it_is_not_opened_again_by_a_thread_that_is_slower_than_the_end(tmp_path, was_used) -> None:
    late = LateDatabase(tmp_path / "some.db", SCHEMA, name="the file")
    if was_used:
        late.use()
    late.close()
    with pytest.raises(StorageError, match="the file is closed"):
        late.use()
    late.close()


def test_one_that_could_not_be_opened_is_tried_again(tmp_path) -> None:
    late = LateDatabase(tmp_path / "folder" / "some.db", SCHEMA, name="the file")
    with pytest.raises(StorageError):
        late.use()
    (tmp_path / "folder").mkdir()
    assert late.use().rows("SELECT 1") == [(1,)]
    late.close()
