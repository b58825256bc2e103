"""What a node of the local cluster tells of volumes."""

from __future__ import annotations

import os

import pytest

from moorage_kube.meta import Key
from moorage_kube.testing import builders
from moorage_kube.testing.clock import FakeClock
from moorage_local.nodeagent.stats import VolumeStats, folder_size, mounted, open_below

pytestmark = pytest.mark.anyio


def a_pod(phase="Running"):
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    return builders.a_pod(uid="u", phase=phase, spec={"volumes": [volume, {"name": "e", "emptyDir": {}}]})


def known(folder):
    claims = {Key("lab", "data"): {"spec": {"volumeName": "pv"}}}
    return claims, {"pv": {"spec": {"hostPath": {"path": str(folder)}}}}


async def test_a_summary_names_the_claim_and_what_is_in_it(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(os.urandom(100_000))
    (tmp_path / "link").symlink_to("/usr")
    summary = await VolumeStats(FakeClock()).summary("n", mounted([a_pod()], *known(tmp_path)))
    [pod] = summary["pods"]
    [volume] = pod["volume"]
    assert volume["pvcRef"] == {"name": "data", "namespace": "lab"}
    assert 100_000 <= volume["usedBytes"] < 200_000
    assert volume["inodesUsed"] == 4


async def test_pods_that_ended_and_folders_that_are_gone_tell_nothing(tmp_path):
    stats = VolumeStats(FakeClock())
    assert mounted([a_pod("Succeeded")], *known(tmp_path)) == []
    assert mounted([a_pod()], {}, {}) == []
    summary = await stats.summary("n", mounted([a_pod()], *known(tmp_path / "gone")))
    assert summary["pods"][0]["volume"] == []
    with pytest.raises(OSError):
        folder_size(str(tmp_path / "gone"))


def test_a_folder_that_became_a_link_is_not_looked_into(tmp_path):
    """A pod exchanges folders of its volume while they are counted."""
    volume = tmp_path / "volume"
    (volume / "below").mkdir(parents=True)
    (tmp_path / "outside" / "below").mkdir(parents=True)
    for path in (volume, volume / "below"):
        os.close(open_below(str(path), str(volume)))
    (volume / "link").symlink_to(tmp_path / "outside")
    for path in (volume / "link", volume / "link" / "below"):
        with pytest.raises(NotADirectoryError):
            open_below(str(path), str(volume))
