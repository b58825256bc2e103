"""Whatever others write into objects and requests, no command prints a line or a control character of theirs."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage.model.dataset import DATASETS
from moorage.model.mapjob import MAPJOBS
from moorage.model.reservation import RESERVATIONS
from moorage.model.tenant import TENANTS
from moorage.model.workspace import WORKSPACES
from moorage_kube.resources import EVENTS, JOBS, NODES, PODS, PVCS, Resource
from moorage_kube.texts import hidden_characters

LINE = "2026-01-31 08:00:00  root deleted tenant lab"
FORGED = f"x\n{LINE}\r\x1b[2J\x9b2A\u202eevil\u2066\u2028\x07"
WHEN = "2026-01-31T08:00:00Z"
STATE: dict[str, Any] = {
    "phase": "Failed", "message": FORGED, "reason": FORGED,
    "conditions": [
        {"type": kind, "status": "True", "reason": FORGED, "message": FORGED, "lastTransitionTime": WHEN}
        for kind in ("Failed", "Ready", "Accepted")
    ],
}  # fmt: skip
POD = {"containers": [{"name": "main", "image": FORGED, "command": [FORGED]}], "nodeName": "node-1"}
SPECS: tuple[tuple[Resource, dict[str, Any]], ...] = (
    (JOBS, {"template": {"metadata": {}, "spec": POD}}),
    (PODS, POD),
    (PVCS, {"storageClassName": FORGED, "resources": {"requests": {"storage": "1Gi"}}}),
    (DATASETS, {"source": {"url": f"https://a.example/{FORGED}"}, "size": "1Gi"}),
    (WORKSPACES, {"type": "jupyterlab", "env": [{"name": "A", "value": FORGED}]}),
    (WORKFLOWS, {"entrypoint": FORGED, "templates": [{"name": FORGED, "container": {"image": FORGED}}]}),
    (CRON_WORKFLOWS, {"schedule": "@daily", "workflowSpec": {"entrypoint": FORGED, "templates": []}}),
    (
        RESERVATIONS,
        {"machineGroup": FORGED, "machineType": FORGED, "count": 1, "user": FORGED, "from": WHEN, "to": WHEN},
    ),
    (MAPJOBS, {"command": [FORGED], "template": {"spec": POD}}),
    (TENANTS, {"namespace": "default", "members": {"people": [FORGED]}}),
)
LISTS = [
    ["jobs"], ["volume", "list"], ["dataset", "list"], ["workspace", "list"], ["workflow", "list"],
    ["cron", "list"], ["reserve", "list"], ["tenant", "list"], ["nodes"], ["gpus"], ["idle"],
]  # fmt: skip
COMMANDS = [
    *([*words, "-o", output] for words in LISTS for output in ("table", "wide", "name")),
    ["show", "a1"], ["workflow", "get", "a1"], ["dataset", "show", "a1"], ["workspace", "show", "a1"],
    ["cron", "show", "a1"], ["reserve", "show", "a1"], ["explain", "a1"], ["cancel", "a1"], ["rerun", "a1"],
    ["audit"], ["show", FORGED], ["volume", "delete", FORGED, "--yes"], ["run", "--name", FORGED, "--", FORGED],
]  # fmt: skip


@pytest.fixture
def forged(moor):
    moor.node("node-1", gpus=2)
    node = moor.api.objects["nodes", "", "node-1"]
    node["metadata"].setdefault("annotations", {})["moorage.dev/cordon-reason"] = FORGED
    node.setdefault("spec", {})["taints"] = [{"key": FORGED, "value": FORGED, "effect": "NoSchedule"}]
    moor.api.put(NODES, node)
    for resource, spec in SPECS:
        meta: Any = {"name": "a1", "uid": f"u-{resource.plural}"}
        meta["labels"] = {"moorage.dev/run": "a1", "moorage.dev/owner": FORGED, FORGED: FORGED}
        meta["annotations"] = {"moorage.dev/owner": FORGED, "moorage.dev/command": FORGED}
        moor.api.put(resource, {"metadata": meta, "spec": spec, "status": STATE})
        about = {"kind": resource.kind, "name": "a1", "uid": meta["uid"], "namespace": "default"}
        event = {"involvedObject": about, "type": "Warning", "reason": FORGED, "message": FORGED}
        moor.api.put(EVENTS, {"metadata": {"name": f"e-{resource.plural}"}, "lastTimestamp": WHEN} | event)
    entry = {"number": 1, "at": WHEN, "person": FORGED, "address": FORGED, "client": FORGED, "namespace": FORGED}
    entry |= {"what": "", "method": "POST", "path": f"/a{FORGED}", "status": 401}
    moor.server.answers["/api/v1/audit"] = {"entries": [entry, entry | {"status": 0, "what": FORGED}]}
    moor.server.serves = moor.api
    return moor


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: ascii(" ".join(words))[:60])
def test_no_command_prints_a_line_or_a_control_character_that_others_wrote(forged, words):
    done = forged(*words)
    shown = done.out + done.err
    assert shown
    assert set(hidden_characters(shown)) <= {"\n"}, shown
    assert not [line for line in shown.split("\n") if line.startswith(LINE)], shown


def test_what_others_wrote_is_shown_escaped(forged):
    for words in (["audit"], ["show", "a1"], ["workflow", "get", "a1"], ["jobs", "-o", "wide"]):
        assert "\\n2026-01-31 08:00:00" in forged(*words).out, words
