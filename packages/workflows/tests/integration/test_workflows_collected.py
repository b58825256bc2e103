"""`artifactGC` with an operator that is killed again and again: what is to go goes, and nothing else.

Objects are in a fake API, records in SQLite and artifacts in a folder. A kubelet runs the steps, and the pods that
delete what is in a bucket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflowoperators import an_operator, operate, turns

from moorage.model.argo import ARTIFACT_FINALIZER, WORKFLOWS
from moorage_kube.errors import NotFound
from moorage_kube.informer import Informer
from moorage_kube.resources import NODES, PODS, Obj
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import background
from moorage_workflows.model.workflow import ORDER_ANNOTATION, Artifact, Outputs, StepReport
from moorage_workflows.workflows.artifacts import Artifacts, open_artifacts
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

KILLS = 60
MANIFEST = """
metadata: {name: wf, namespace: lab}
spec:
  entrypoint: main
  artifactGC: {strategy: OnWorkflowDeletion, forceFinalizerRemoval: FORCED}
  templates:
  - name: main
    container: {image: busybox, command: [echo]}
    outputs:
      artifacts:
      - {name: early, path: /a, s3: {key: early}, artifactGC: {strategy: OnWorkflowCompletion}}
      - {name: late, path: /b, s3: {key: late}}
      - {name: shared, path: /c, s3: {key: shared}}
      - {name: kept, path: /d, s3: {key: kept}, artifactGC: {strategy: Never}}
      - {name: far, path: /e, s3: {bucket: b, key: far}}
"""


async def stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Kubelet:
    """Ends the step with five artifacts, and the pods that delete. `refusals`: how many of these fail first."""

    def __init__(self, api: FakeApi, records: LocalRecords, artifacts: Artifacts, refusals: int) -> None:
        self._api, self._records, self._artifacts, self._refusals = api, records, artifacts, refusals
        self.bucket = {"far": "v1"}
        self.deleters = 0
        self._work: list[asyncio.Task[None]] = []
        self.pods = Informer(api, PODS)
        self.pods.on_change(self._see)

    def _see(self, before: Obj | None, after: Obj | None) -> None:
        if before is None and after is not None and not (after.get("status") or {}).get("phase"):
            self._work.append(asyncio.create_task(self._run(after)))

    async def _run(self, pod: Obj) -> None:
        order = json.loads(pod["metadata"]["annotations"][ORDER_ANNOTATION])
        if "delete" in order:
            self.deleters += 1
            if self._refusals > 0:
                self._refusals -= 1
                await self._end(pod, 1, "left=0 artifact 'far': may not be used with the keys given")
                return
            for entry in order["delete"]:
                if self.bucket.get(entry["location"]["s3"]["key"]) == entry["version"]:
                    del self.bucket[entry["location"]["s3"]["key"]]
        else:
            far = Artifact(name="far", location={"s3": {"bucket": "b", "key": "far"}}, version="v1")
            own = [
                await self._artifacts.put(stream(b"x"), f"lab/{name}", name=name)
                for name in ("early", "late", "shared", "kept")
            ]
            artifacts = [Artifact(name=a.name, key=a.name, version=a.version, digest=a.digest) for a in own]
            report = StepReport(pod=pod["metadata"]["name"], outputs=Outputs(artifacts=(*artifacts, far)))
            uid = pod["metadata"]["ownerReferences"][0]["uid"]
            await self._records.report(uid, pod["metadata"]["name"], report)
        await self._end(pod, 0, "")

    async def _end(self, pod: Obj, code: int, message: str) -> None:
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
        status["phase"] = "Failed" if code else "Succeeded"
        meta = pod["metadata"]
        with contextlib.suppress(NotFound):
            await self._api.patch(PODS, meta["name"], {"status": status}, meta["namespace"], subresource="status")


class Scene:
    def __init__(self, folder: Path, *, forced: bool = False, refusals: int = 0) -> None:
        self.api = FakeApi()
        self.folder = folder / "artifacts"
        self.artifacts = open_artifacts(self.folder, most_bytes=1 << 20)
        self.records = LocalRecords(folder / "workflows.db", artifacts=self.artifacts)
        self.kubelet = Kubelet(self.api, self.records, self.artifacts, refusals)
        self.manifest = yaml.safe_load(MANIFEST.replace("FORCED", str(forced).lower()))
        self._chance = random.Random(1)
        self._operators = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.api.put(NODES, {"metadata": {"name": "n"}, "status": {}})
        await self.api.create(WORKFLOWS, self.manifest)
        with contextlib.closing(self.records):
            async with background(self.kubelet.pods.run()):
                yield

    async def operate_until(self, what: str, is_done: Callable[[], Any], *, kills: int = KILLS) -> None:
        """Kill the operator so often on the way; then leave one alone until it is done."""
        for kill in range(kills + 1):
            self._operators += 1
            async with background(operate(an_operator(self.api, self.records, number=self._operators))):
                if kill == kills:
                    await until(what, is_done)
                else:
                    await turns(self._chance.randrange(600))

    async def workflow(self) -> Obj | None:
        try:
            return await self.api.get(WORKFLOWS, "wf", "lab")
        except NotFound:
            return None

    async def has_succeeded(self) -> bool:
        obj = await self.workflow()
        return obj is not None and (obj.get("status") or {}).get("phase") == "Succeeded"

    @property
    def own(self) -> set[str]:
        return {path.name for path in (self.folder / "lab").iterdir()}


async def test_what_is_to_go_goes_and_what_another_wrote_stays(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def has_ended() -> bool:
        return await scene.has_succeeded() and "early" not in scene.own

    async def is_gone() -> bool:
        return await scene.workflow() is None

    async with scene.running():
        await scene.operate_until("the workflow to end", has_ended)
        assert scene.own == {"late", "shared", "kept"}
        assert scene.kubelet.bucket == {"far": "v1"}
        obj = await scene.workflow()
        assert ARTIFACT_FINALIZER in obj["metadata"]["finalizers"]
        uid = obj["metadata"]["uid"]
        await scene.artifacts.put(stream(b"of another workflow"), "lab/shared", name="shared")
        await scene.artifacts.put(stream(b"of another workflow"), "lab/early", name="early")
        await scene.api.delete(WORKFLOWS, "wf", "lab")
        await scene.operate_until("the workflow to go", is_gone)
        assert scene.own == {"early", "shared", "kept"}
        assert scene.kubelet.bucket == {}
        (node,) = (await scene.records.load(uid, "reader")).nodes
        deleted = {artifact.name for artifact in node.outputs.artifacts if artifact.is_deleted}
        assert deleted == {"early", "late", "shared", "far"}


@pytest.mark.parametrize("forced", [False, True])
async def test_a_deletion_that_fails_is_a_condition_and_holds_the_workflow_unless_forced(tmp_path, forced) -> None:
    scene = Scene(tmp_path, forced=forced, refusals=100)

    async def has_ended() -> bool:
        return await scene.has_succeeded() and "early" not in scene.own

    async def is_told() -> bool:
        obj = await scene.workflow()
        if forced or obj is None:
            return obj is None
        conditions = (obj.get("status") or {}).get("conditions") or ()
        failures = [row["message"] for row in conditions if row["type"] == "ArtifactGCError"]
        return bool(failures) and "may not be used with the keys given" in failures[0]

    async with scene.running():
        await scene.operate_until("the workflow to end", has_ended, kills=0)
        await scene.api.delete(WORKFLOWS, "wf", "lab")
        await scene.operate_until("the failure to be told", is_told, kills=0)
        assert scene.own == {"kept"}
        assert scene.kubelet.deleters == 1
