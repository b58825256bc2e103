"""A semaphore whose limit is missing: the workflow says so, and goes on when it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.workflowoperators import Scene

from moorage.apimachinery.resources import CONFIGMAPS
from moorage.controllers.workflow.controller import MISSING_EVERY
from moorage.model.workflow import STRICT_ANNOTATION

pytestmark = pytest.mark.anyio

LOCKS = {"semaphores": [{"configMapKeyRef": {"name": "limits", "key": "train"}}]}
WORDS = "Waiting for lab/ConfigMap/limits/train lock: the ConfigMap limits does not exist"
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
    assert "cannot be had: the ConfigMap limits does not exist" in obj["status"]["message"]
    assert "synchronization" not in obj["status"]
