"""What `moor map status` says of a map."""

from __future__ import annotations

import pytest

from moorage.api.maps import Map
from moorage.cli.mapshow import as_document, as_text
from moorage_kube.testing.clock import NOON


@pytest.mark.parametrize(
    ("ready", "want"),
    [
        pytest.param(2, "workers     0 at work; 2 of at most 2, 1 replaced", id="all are ready"),
        pytest.param(
            0,
            "workers     0 at work; 2 of at most 2, 1 replaced; 2 not started: moor explain m -n lab",
            id="they wait, as for the only node of their kind, which is drained",
        ),
    ],
)
def test_workers_that_have_not_started_are_said_with_where_to_read_why(ready, want):
    map_ = Map(namespace="lab", name="m", created_at=NOON)
    workers = {"active": 2, "ready": ready, "restarts": 1}
    document = as_document(
        map_, {"metadata": {}, "spec": {"parallelism": 2}, "status": {"workers": workers}}, NOON
    )
    assert want in as_text(document, [], NOON).splitlines()
