"""A semaphore whose limit is missing: the workflow says so, and goes on when it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.workflowoperators import Scene

from moorage.model.argo import WORKFLOWS
from moorage.model.names import GUARD_LABEL, OWNER_ANNOTATION, TENANT_LABEL
from moorage.model.people import account_user
from moorage_kube.meta import Key
from moorage_kube.resources import CONFIGMAPS, NAMESPACES
from moorage_workflows.controllers.workflow.locks import MISSING_EVERY
from moorage_workflows.decide.workflows.graph.locks import LIMITS_CONFIGMAP
from moorage_workflows.model.workflow import STRICT_ANNOTATION

pytestmark = pytest.mark.anyio

LOCKS = {"semaphores": [{"configMapKeyRef": {"name": "limits", "key": "train"}}]}
WORDS = "Waiting for lab/ConfigMap/limits/train lock: the ConfigMap limits does not exist"
UID = "5f9b7f0c"
STATUS_EVERY = 2.0  # seconds: the status is written at most so often


class LockScene(Scene):
    """A workflow of one step, with a semaphore whose limit nobody has said."""

    def __init__(self, folder: Path, *, is_whole: bool, is_strict: bool = False) -> None:
        template: dict[str, Any] = {"name": "say", "container": {"image": "busybox", "command": ["echo"]}}
        spec: dict[str, Any] = {"entrypoint": "say", "templates": [template]}
        (spec if is_whole else template)["synchronization"] = LOCKS
        meta: dict[str, Any] = {"name": "wf", "namespace": "lab"}
        if is_strict:
            meta["annotations"] = {STRICT_ANNOTATION: "true"}
        super().__init__(folder, {"metadata": meta, "spec": spec})

    async def messages(self) -> tuple[str, str]:
        """(of the workflow, of its node)."""
        obj = await self.workflow()
        loaded = await self.records.load(obj["metadata"]["uid"], "operator-1")
        of_nodes = "".join(node.message for node in loaded.nodes)
        return str((obj.get("status") or {}).get("message") or ""), of_nodes


@pytest.mark.parametrize("is_whole", [True, False], ids=["of the workflow", "of a step"])
async def test_a_limit_that_is_missing_is_said_and_waited_for(tmp_path: Path, is_whole: bool) -> None:
    scene = LockScene(tmp_path, is_whole=is_whole)
    async with scene.operator():
        again = await scene.look(seconds=STATUS_EVERY)
        assert await scene.messages() == ((WORDS, "") if is_whole else ("", WORDS))
        assert again is not None
        assert again <= MISSING_EVERY
        assert await scene.pods() == []
        scene.api.put(CONFIGMAPS, {"metadata": {"name": "limits", "namespace": "lab"}, "data": {"train": "1"}})
        await scene.look(seconds=STATUS_EVERY)
        assert len(await scene.pods()) == 1
        assert await scene.messages() == ("", "")


@pytest.mark.parametrize(
    ("is_whole", "phase"), [(True, "Failed"), (False, "Error")], ids=["of the workflow", "of a step"]
)
async def test_a_strict_workflow_does_not_wait_for_it(tmp_path: Path, is_whole: bool, phase: str) -> None:
    scene = LockScene(tmp_path, is_whole=is_whole, is_strict=True)
    async with scene.operator():
        await scene.look(seconds=STATUS_EVERY)
    obj = await scene.workflow()
    assert obj["status"]["phase"] == phase
    assert "not available: the ConfigMap limits does not exist" in obj["status"]["message"]
    assert "synchronization" not in obj["status"]


@pytest.mark.parametrize("locks", [{"mutexes": [{"name": "m"}]}, LOCKS], ids=["held", "refused"])
async def test_a_workflow_holds_its_lock_while_its_exit_handler_works(tmp_path: Path, locks: Any) -> None:
    """Its first node has the same id, and had or wanted locks of its own."""
    spec = {
        "entrypoint": "main",
        "onExit": "bye",
        "synchronization": {"mutexes": [{"name": "whole"}]},
        "templates": [
            {"name": "main", "synchronization": locks, "suspend": {"duration": "1s"}},
            {"name": "bye", "suspend": {}},
        ],
    }
    meta = {"name": "wf", "namespace": "lab", "annotations": {STRICT_ANNOTATION: "true"}}
    scene = Scene(tmp_path, {"metadata": meta, "spec": spec})
    scene.api.put(WORKFLOWS, {"metadata": {"name": "other", "namespace": "lab"}, "spec": spec})
    async with scene.operator():
        await scene.look(seconds=STATUS_EVERY)
        loaded = await scene.records.load((await scene.workflow())["metadata"]["uid"], "operator-1")
        assert {node.name: node.phase.is_fulfilled for node in loaded.nodes} == {"wf": True, "wf.onExit": False}
        whole = {"mutex": "lab/Mutex/whole"}
        held = (await scene.workflow())["status"]["synchronization"]
        assert held == {"mutex": {"holding": [{**whole, "holder": "wf"}]}}
        scene.key = Key("lab", "other")
        await scene.look(seconds=STATUS_EVERY)
        waiting = (await scene.workflow())["status"]["synchronization"]
        assert waiting == {"mutex": {"waiting": [{**whole, "holder": "other"}]}}


TENANT = {"metadata": {"name": "lab", "labels": {GUARD_LABEL: "enabled", TENANT_LABEL: "lab"}}}
ELSEWHERE = {
    "a semaphore": {"semaphores": [{"namespace": "other", "configMapKeyRef": {"name": "limits", "key": "train"}}]},
    "a semaphore in a database": {"semaphores": [{"namespace": "other", "database": {"key": "train"}}]},
    "a mutex": {"mutexes": [{"namespace": "other", "name": "m"}]},
    "a namespace from a parameter": {"mutexes": [{"namespace": "{{workflow.parameters.there}}", "name": "m"}]},
}


def of_another_namespace(folder: Path, locks: Any, *, is_whole: bool) -> Scene:
    """A workflow of ada in lab whose lock is of the namespace other, where ConfigMaps hold secrets."""
    template: dict[str, Any] = {"name": "say", "container": {"image": "busybox", "command": ["echo"]}}
    spec: dict[str, Any] = {
        "entrypoint": "say",
        "templates": [template],
        "arguments": {"parameters": [{"name": "there", "value": "other"}]},
    }
    (spec if is_whole else template)["synchronization"] = locks
    meta: dict[str, Any] = {"name": "wf", "namespace": "lab", "uid": UID, "annotations": {OWNER_ANNOTATION: "ada"}}
    scene = Scene(folder, {"metadata": meta, "spec": spec})
    for name in ("limits", LIMITS_CONFIGMAP):
        scene.api.put(
            CONFIGMAPS, {"metadata": {"name": name, "namespace": "other"}, "data": {"train": "ada-keeps-this"}}
        )
    return scene


@pytest.mark.parametrize("is_whole", [True, False], ids=["of the workflow", "of a step"])
@pytest.mark.parametrize("locks", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize(
    ("namespace", "readers"),
    [
        pytest.param(TENANT, set(), id="the submitter has no right there"),
        pytest.param(
            {"metadata": {"name": "lab", "labels": {GUARD_LABEL: "enabled"}}},
            {(account_user("ada"), "other")},
            id="the submitter is unknown: webhooks may have been down",
        ),
    ],
)
async def test_a_lock_of_another_namespace_is_refused_without_a_right_there(
    tmp_path: Path, locks: Any, namespace: Any, readers: set[tuple[str, str]], *, is_whole: bool
) -> None:
    scene = of_another_namespace(tmp_path, locks, is_whole=is_whole)
    scene.api.put(NAMESPACES, namespace)
    scene.api.readers = readers
    async with scene.operator():
        await scene.look(seconds=STATUS_EVERY)
    obj = await scene.workflow()
    assert obj["status"]["phase"] == ("Failed" if is_whole else "Error")
    assert "belongs to another namespace" in obj["status"]["message"]
    assert "synchronization" not in obj["status"]
    assert "ada-keeps-this" not in str([await scene.workflow(), await scene.records.load(UID, "operator-1")])
    assert await scene.pods() == []


@pytest.mark.parametrize("locks", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize(
    "account", [account_user("ada"), "system:serviceaccount:lab:default"], ids=["submitter", "account of steps"]
)
async def test_a_lock_of_another_namespace_is_held_with_a_right_there_and_shows_no_value(
    tmp_path: Path, locks: Any, account: str
) -> None:
    scene = of_another_namespace(tmp_path, locks, is_whole=False)
    scene.api.put(NAMESPACES, TENANT)
    scene.api.readers = {(account, "other")}
    async with scene.operator():
        await scene.look(seconds=STATUS_EVERY)
        assert "ada-keeps-this" not in str([await scene.workflow(), await scene.records.load(UID, "operator-1")])
        for name in ("limits", LIMITS_CONFIGMAP):
            scene.api.put(CONFIGMAPS, {"metadata": {"name": name, "namespace": "other"}, "data": {"train": "1"}})
        await scene.look(seconds=STATUS_EVERY)
    assert len(await scene.pods()) == 1
