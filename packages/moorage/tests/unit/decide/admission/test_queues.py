"""The Job of a map leaves the queue that Kueue's webhook put it into; all others stay where they are."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.decide.admission.queues import leave_queue
from moorage.decide.admission.review import OPERATOR, Request
from moorage_kube.resources import Obj

OF_MAP = {"apiVersion": "moorage.dev/v1alpha1", "kind": "MapJob", "name": "m", "uid": "u", "controller": True}
TAKEN_OUT = (
    {"op": "remove", "path": "/metadata/labels/kueue.x-k8s.io~1queue-name"},
    {"op": "replace", "path": "/spec/suspend", "value": False},
)


def a_request(*, owner: Obj | None = OF_MAP, queue: str = "default", suspend: bool = True, **more: Any) -> Request:
    labels = {"moorage.dev/map": "m"} | ({"kueue.x-k8s.io/queue-name": queue} if queue else {})
    meta = {"name": "m", "labels": labels, "ownerReferences": [owner] if owner else []}
    given = {"kind": "Job", "operation": "CREATE", "user": OPERATOR} | more
    return Request(obj={"metadata": meta, "spec": {"suspend": suspend}}, **given)


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        pytest.param(a_request(), TAKEN_OUT, id="the operator's Job of a map"),
        pytest.param(a_request(suspend=False), TAKEN_OUT[:1], id="not suspended"),
        pytest.param(a_request(queue=""), (), id="in no queue"),
        pytest.param(a_request(user="ada"), (), id="somebody who says that it is a map's"),
        pytest.param(a_request(owner=None), (), id="a run"),
        pytest.param(a_request(owner=OF_MAP | {"apiVersion": "x/v1"}), (), id="another kind of that name"),
        pytest.param(a_request(operation="UPDATE"), (), id="one that exists"),
    ],
)
def test_a_maps_job_leaves_the_queue(request_: Request, want: tuple[Obj, ...]) -> None:
    assert leave_queue(request_) == want
