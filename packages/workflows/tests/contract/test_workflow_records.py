"""What the operator asks of the records: one suite for a database and for a real server over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest
from tests.workflowrecords import a_node_record, a_workflow_record

from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.server.service import ServerService
from moorage_kube.clock import rfc3339
from moorage_kube.errors import BadRequest, Conflict, LeaseLost, NotFound, QuotaExceeded, StorageError
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.serving import serve
from moorage_kube.testing.clock import NOON, FakeClock, QuickClock
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.remote import RemoteStore
from moorage_workflows.executor.errors import Passing
from moorage_workflows.executor.order import Order
from moorage_workflows.executor.web import Server
from moorage_workflows.model.workflow import (
    Artifact,
    ArtifactName,
    Memo,
    NodePhase,
    NodeRecord,
    Outputs,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

QUOTA = 500_000


class OperatorApi(FakeApi):
    """The operator's own connection."""

    token = "operator-token"

    async def authorization(self) -> str:
        return f"Bearer {self.token}"


class YieldingClock(QuickClock):
    """Lets other tasks run at each sleep."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await asyncio.sleep(0)


class Served:
    """A server on a socket, and the operator's connection to it."""

    def __init__(self, folder: Path) -> None:
        self.api = OperatorApi(users={"operator-token": "operator", "ada-token": "ada"})
        self.api.readers.add(("operator", None))
        self.service = ServerService(
            self.api,
            usage_db=folder / "usage.db",
            page_token="page",
            env={"MOORAGE_WORKFLOW_BYTES_PER_NAMESPACE": str(QUOTA)},
            clock=FakeClock(),
        )
        self.socket = socket.create_server(("127.0.0.1", 0))
        info = {"serverUrl": f"http://127.0.0.1:{self.socket.getsockname()[1]}"}
        meta = {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}
        self.api.put(CONFIGMAPS, {"metadata": meta, "data": info})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RemoteStore]:
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(self.service.app, self.socket, stop=stop))
        store = RemoteStore(self.api, clock=YieldingClock())
        try:
            yield store
        finally:
            await store.aclose()
            stop.set()
            await serving
            self.service.context.part(LocalRecords).close()


Opener = Callable[[], AbstractAsyncContextManager[RecordStore]]


@pytest.fixture(params=["local", "remote"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], AbstractAsyncContextManager[RecordStore]]:
    """Call it to open a store, and again for what the same database has later."""

    @contextlib.asynccontextmanager
    async def local() -> AsyncIterator[RecordStore]:
        with contextlib.closing(LocalRecords(tmp_path / "workflows.db", quota=QUOTA)) as records:
            yield records

    return local if request.param == "local" else lambda: Served(tmp_path).running()


def a_run(uid: str = "u1", name: str = "train", **fields: object) -> WorkflowRecord:
    document = {"metadata": {"name": name}, "spec": {"entrypoint": "main"}}
    given = {"document": document, "created_at": rfc3339(NOON), "token_digest": "sha256:00"}
    return a_workflow_record(uid, name, **given | fields)


def a_node(node_id: str, phase: NodePhase = NodePhase.PENDING) -> NodeRecord:
    return a_node_record(node_id, phase=phase, pod_name=f"pod-{node_id}")


async def test_a_run_is_kept_from_its_begin_to_its_end(opened) -> None:
    run = a_run()
    async with opened() as store:
        assert await store.begin(run) == run
        assert (await store.load("u1", "op-1")).nodes == ()
        await store.save("u1", "op-1", [a_node("a"), a_node("b")])
        await store.save("u1", "op-1", [a_node("a", NodePhase.SUCCEEDED)])
        ended = msgspec.structs.replace(run, phase="Succeeded", finished_at=rfc3339(NOON))
        assert await store.unfinished() == ("u1",)
        await store.save("u1", "op-1", workflow=ended)
        assert await store.unfinished() == ()
    async with opened() as store:
        loaded = await store.load("u1", "op-2")
    assert loaded.workflow == ended
    assert {node.id: node.phase for node in loaded.nodes} == {"a": NodePhase.SUCCEEDED, "b": NodePhase.PENDING}


async def test_beginning_again_gives_what_is_kept(opened) -> None:
    async with opened() as store:
        await store.begin(a_run())
        assert await store.begin(a_run(token_digest="sha256:11")) == a_run()


async def test_the_earlier_holder_gets_a_conflict(opened) -> None:
    async with opened() as store:
        await store.begin(a_run())
        await store.load("u1", "op-1")
        await store.load("u1", "op-2")
        with pytest.raises(Conflict, match="held by op-2"):
            await store.save("u1", "op-1", [a_node("a")])
        with pytest.raises(Conflict):
            await store.forget_nodes("u1", "op-1", ["a"])
        await store.save("u1", "op-2", [a_node("a")])


async def test_an_unknown_run_is_not_found(opened) -> None:
    async with opened() as store:
        with pytest.raises(NotFound, match="there are no records of workflow u9"):
            await store.load("u9", "op")
        with pytest.raises(NotFound):
            await store.save("u9", "op", [a_node("a")])
        await store.gone("u9", NOON)
        assert await store.reports("u9", ["p"]) == ()


async def test_a_retry_forgets_nodes(opened) -> None:
    async with opened() as store:
        await store.begin(a_run())
        await store.load("u1", "op")
        await store.save("u1", "op", [a_node("a", NodePhase.FAILED), a_node("b", NodePhase.SUCCEEDED)])
        await store.forget_nodes("u1", "op", ["a"], a_run(retries=1))
        loaded = await store.load("u1", "op")
    assert (loaded.workflow, [node.id for node in loaded.nodes]) == (a_run(retries=1), ["b"])


async def test_a_run_that_is_gone_is_not_unfinished(opened) -> None:
    async with opened() as store:
        await store.begin(a_run("u1", "a"))
        await store.begin(a_run("u2", "b"))
        await store.gone("u1", NOON)
        assert await store.unfinished() == ("u2",)


async def test_a_run_and_a_memo_beyond_the_quota_are_refused(opened) -> None:
    async with opened() as store:
        with pytest.raises(
            QuotaExceeded, match="namespace lab have 0 bytes; [0-9,]+ more exceed the limit of 5"
        ) as at:
            await store.begin(a_run(document={"spec": "x" * QUOTA}))
        assert "an administrator sets MOORAGE_WORKFLOW_BYTES_PER_NAMESPACE" in str(at.value.hint)
        with pytest.raises(QuotaExceeded):
            await store.remember("lab", "c", "k", Memo(outputs=Outputs(result="x" * QUOTA), at=rfc3339(NOON)))


async def test_memos_are_recalled_until_they_are_too_old(opened) -> None:
    memo = Memo(outputs=Outputs(parameters={"a": "1"}, result=None), at=rfc3339(NOON), node_id="n")
    async with opened() as store:
        await store.remember("lab", "cache", "key/ü", memo)
        assert await store.recall("lab", "cache", "key/ü") == memo
        assert await store.recall("lab", "cache", "key/ü", since=NOON) == memo
        assert await store.recall("lab", "cache", "key/ü", since=NOON.replace(year=2100)) is None
        assert await store.recall("lab", "cache", "another") is None


async def test_a_time_that_is_none_is_a_bad_request(opened) -> None:
    async with opened() as store:
        with pytest.raises(BadRequest, match="invalid time 'soon'"):
            await store.begin(a_run(created_at="soon"))


async def test_a_save_of_ten_thousand_nodes_arrives_whole(opened) -> None:
    async with opened() as store:
        await store.begin(a_run())
        await store.load("u1", "op")
        await store.save("u1", "op", [a_node(f"n{number}") for number in range(10_000)])
        assert len((await store.load("u1", "op")).nodes) == 10_000


# --- over HTTP alone


async def test_reports_of_steps_reach_the_operator(tmp_path: Path) -> None:
    site = Served(tmp_path)
    async with site.running() as store:
        await store.begin(a_run())
        report = StepReport(pod="p", outputs=Outputs(result="1"))
        await site.service.context.part(LocalRecords).report("u1", "p", report)
        assert await store.reports("u1", ["p", "q"]) == (report,)


async def test_a_step_reports_again_until_its_pod_is_recorded(tmp_path: Path) -> None:
    """As after a restore from a backup: the pod runs, and the operator makes its node again."""
    site = Served(tmp_path)
    digest = f"sha256:{hashlib.sha256(b'step').hexdigest()}"
    url = f"http://127.0.0.1:{site.socket.getsockname()[1]}"
    own, invented = (Server(url, "step", Order(workflow="u1", pod=pod)) for pod in ("pod-a", "pod-b"))
    async with site.running() as store:
        await store.begin(a_run(token_digest=digest))
        await store.load("u1", "op")
        with pytest.raises(Passing, match="answered 425: no step of workflow lab/train has the pod pod-a"):
            await asyncio.to_thread(own.report, {"pod": ""})
        await store.save("u1", "op", [a_node("a")])
        await asyncio.to_thread(own.report, {"pod": ""})
        with pytest.raises(Passing):
            await asyncio.to_thread(invented.report, {"pod": ""})
        (file := tmp_path / "file").write_text("x")
        with pytest.raises(Passing, match="answered 425"):
            await asyncio.to_thread(invented.put_artifact, "model", "none", file)
        await asyncio.to_thread(own.put_artifact, "model", "none", file)
        assert await store.reports("u1", ["pod-a", "pod-b"]) == (StepReport(pod="pod-a"),)


async def test_whoever_may_not_update_the_records_is_refused(tmp_path: Path) -> None:
    site = Served(tmp_path)
    async with site.running() as store:
        site.api.token = "ada-token"
        with pytest.raises(StorageError, match="ada may not write the records of workflows"):
            await store.unfinished()
        site.api.token = "unknown"
        with pytest.raises(StorageError, match="no valid token"):
            await store.begin(a_run())
        assert await site.service.context.part(LocalRecords).unfinished() == ()


async def test_what_the_operator_does_is_not_in_the_audit_log_and_what_strangers_try_is(tmp_path: Path) -> None:
    site = Served(tmp_path)
    async with site.running() as store:
        await store.begin(a_run())
        with pytest.raises(NotFound):
            await store.load("u9", "op")
        assert len(site.service.audit._waiting) == 0
        site.api.token = "ada-token"
        with pytest.raises(StorageError):
            await store.unfinished()
        assert {(entry.person, entry.status) for entry in site.service.audit._waiting} == {("ada", 403)}


async def test_the_operator_is_never_asked_to_slow_down(tmp_path: Path) -> None:
    site = Served(tmp_path)
    assert site.service.context.limiter.rate.per_second > 0
    async with site.running() as store:
        for _ in range(300):  # more than the burst of one user; the clock stands still
            await store.unfinished()
    assert site.service.context.limiter.refused == 0


async def test_a_server_that_is_away_is_a_storage_error_after_some_tries(tmp_path: Path) -> None:
    site = Served(tmp_path)
    site.socket.close()
    store = RemoteStore(site.api, clock=(clock := YieldingClock()))
    before = clock.monotonic()
    with pytest.raises(StorageError, match="records of workflows cannot be reached at http://127"):
        await store.unfinished()
    assert 0.9 < clock.monotonic() - before < 3
    await store.aclose()
    site.service.context.part(LocalRecords).close()


async def test_a_server_that_comes_back_at_another_address_is_found(tmp_path: Path) -> None:
    first, second = Served(tmp_path), Served(tmp_path)
    async with first.running() as store:
        await store.begin(a_run())
        address = f"http://127.0.0.1:{second.socket.getsockname()[1]}"
        meta = {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}
        first.api.put(CONFIGMAPS, {"metadata": meta, "data": {"serverUrl": address}})
        store._address = "http://127.0.0.1:9"  # nobody is there any more
        async with second.running():
            assert await store.unfinished() == ("u1",)


async def test_a_write_is_kept_back_once_the_lease_is_lost(tmp_path: Path) -> None:
    site = Served(tmp_path)

    def guard() -> None:
        raise LeaseLost("another may lead by now")

    async with site.running() as store:
        await store.begin(a_run())
        guarded = RemoteStore(site.api, guard=guard)
        with pytest.raises(LeaseLost):
            await guarded.load("u1", "op")
        assert await guarded.unfinished() == ("u1",)
        await guarded.aclose()


@pytest.mark.parametrize("verb", ["destroy", "", "save"])
async def test_requests_that_make_no_sense_are_refused(tmp_path: Path, verb: str) -> None:
    site = Served(tmp_path)
    async with site.running() as store:
        with pytest.raises((NotFound, BadRequest, StorageError)):
            await store._send(verb, b'{"uid": 1}', dict)


async def test_deleted_artifacts_are_noted_in_final_nodes(opened) -> None:
    outputs = Outputs(artifacts=(Artifact(name="a", key="k", version="1-1"), Artifact(name="b", key="l")))
    node = msgspec.structs.replace(a_node("n", NodePhase.SUCCEEDED), outputs=outputs)
    async with opened() as store:
        await store.begin(a_run())
        await store.load("u1", "op-1")
        await store.save("u1", "op-1", [node])
        name = ArtifactName(node="n", name="a")
        assert await store.delete_artifacts("u1", "op-1", [name, ArtifactName(node="none", name="a")]) == ()
        await store.mark_deleted("u1", "op-1", [name])  # twice is once
        (kept,) = (await store.load("u1", "op-1")).nodes
        assert [artifact.is_deleted for artifact in kept.outputs.artifacts] == [True, False]
        await store.load("u1", "op-2")
        with pytest.raises(Conflict):
            await store.delete_artifacts("u1", "op-1", [name])
        with pytest.raises(NotFound):
            await store.mark_deleted("none", "op-1", [name])
