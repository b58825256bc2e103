"""Disk space that is reserved for deletes and stops."""

from __future__ import annotations

import errno
import os

import pytest

from moorage_kube.reserve import NAME, RESERVE_BYTES, SLICE_BYTES, Reserve


def test_the_space_is_released_in_slices_and_reserved_again(tmp_path):
    reserve, file = Reserve(tmp_path), tmp_path / NAME
    assert not reserve.take()
    assert not reserve.is_in_use()
    reserve.fill()
    assert not reserve.is_in_use()
    assert file.stat().st_blocks * 512 >= RESERVE_BYTES
    slices = 0
    while Reserve(tmp_path).take():
        slices += 1
        assert reserve.is_in_use()
    assert slices == RESERVE_BYTES // SLICE_BYTES
    assert file.stat().st_size == 0
    reserve.fill()
    assert file.stat().st_size == RESERVE_BYTES


@pytest.mark.parametrize("rest", [0, RESERVE_BYTES - SLICE_BYTES])
def test_what_is_left_of_the_space_stays_where_a_quota_allows_no_more(tmp_path, monkeypatch, rest):
    reserve, file = Reserve(tmp_path), tmp_path / NAME
    if rest:
        reserve.fill()
        reserve.take()

    def over_quota(fd, offset, size):
        os.ftruncate(fd, offset + size // 2)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr("os.posix_fallocate", over_quota)
    reserve.fill()
    assert (file.stat().st_size if file.exists() else 0) == rest
    assert reserve.is_in_use() == bool(rest)
