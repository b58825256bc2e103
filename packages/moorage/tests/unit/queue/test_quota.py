"""What one namespace may take for its maps."""

from __future__ import annotations

import pytest

from moorage.queue.outputs import Outputs
from moorage.queue.quota import NONE, Quota, Used, check_items, check_map, quota_settings
from moorage_kube.errors import QuotaExceeded, UsageError

FULL = Used(maps=2, items=10, bytes=1000)


def test_the_refusal_says_which_limit_what_is_used_and_what_to_do():
    with pytest.raises(QuotaExceeded) as refused:
        check_map(Quota(maps=2), FULL, "lab")
    assert refused.value.message == "namespace lab has 2 maps; at most 2 are allowed"
    assert "moor map delete" in refused.value.hint
    assert "MOORAGE_MAPS_PER_NAMESPACE" in refused.value.hint
    with pytest.raises(QuotaExceeded, match="1,000 bytes"):
        check_items(Quota(bytes=1000), FULL, "lab", items=1, size=1)
    check_items(Quota(items=11, bytes=1001), FULL, "lab", items=1, size=1)
    check_map(NONE, FULL, "lab")


def test_an_administrator_sets_it():
    env = {"MOORAGE_MAPS_PER_NAMESPACE": "3", "MOORAGE_MAP_BYTES_PER_NAMESPACE": "1Gi"}
    assert quota_settings(env) == Quota(maps=3, bytes=1 << 30)
    for odd in ({"MOORAGE_MAPS_PER_NAMESPACE": "²"}, {"MOORAGE_MAP_BYTES_PER_NAMESPACE": "much"}):
        with pytest.raises(UsageError):
            quota_settings(odd)


async def printed(outputs, of):
    return b"".join(part.output for part in await outputs.page(of))


@pytest.mark.anyio
async def test_of_a_namespace_the_oldest_maps_output_goes_first(tmp_path):
    outputs = Outputs(tmp_path / "outputs.db")
    try:
        for of in (1, 2, 3, 4):
            await outputs.add(of, "p", [(0, 1, 1, bytes([of]) * 1000)])
        await outputs.bound([[3, 1, 2], [4]], 2500)
        assert [len(await printed(outputs, of)) for of in (1, 2, 3, 4)] == [0, 1000, 1000, 1000]
    finally:
        outputs.close()
