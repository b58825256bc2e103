"""Disk space that is reserved for deletes and stops."""

from __future__ import annotations

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
