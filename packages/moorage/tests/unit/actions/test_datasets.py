"""Datasets of a namespace, and those that others share with it, in pages."""

from __future__ import annotations

import pytest

from moorage.actions.datasets import list_datasets
from moorage.model.dataset import DATASET_OF_LABEL, DATASETS
from moorage_kube.resources import PVCS
from moorage_kube.testing.builders import an_object
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", [1, 2, 3, 5, None])
@pytest.mark.parametrize(("own", "shared"), [(0, 0), (2, 0), (0, 3), (2, 3)])
async def test_pages_have_every_dataset_once(own: int, shared: int, limit: int | None) -> None:
    api, listed, after = FakeApi(), [], None
    for number in range(own):
        api.put(DATASETS, an_object(DATASETS, f"own{number}", spec={}))
    for number in range(shared):
        labels = {DATASET_OF_LABEL: "vision", "moorage.dev/dataset": f"scans{number}"}
        api.put(PVCS, an_object(PVCS, f"c{number}", labels=labels))
    while True:
        page, after = await list_datasets(api, "lab", limit=limit, after=after)
        assert limit is None or len(page) <= limit
        listed += [(dataset.namespace, dataset.name) for dataset in page]
        if after is None:
            break
    assert listed == [
        *(("lab", f"own{number}") for number in range(own)),
        *(("vision", f"scans{number}") for number in range(shared)),
    ]
