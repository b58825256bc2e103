"""Records of workflows on PostgreSQL: moved from files, and shared by two servers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from moorage_kube.errors import Conflict
from moorage_testing.site import Site
from moorage_workflows.model.workflow import StepReport, WorkflowRecord
from moorage_workflows.workflows.records import LocalRecords
from moorage_workflows.workflows.store import open_workflows

pytestmark = pytest.mark.anyio

RUN = WorkflowRecord(uid="u1", namespace="lab", name="train", document={"spec": {}}, phase="Running")


async def test_records_of_workflows_are_moved_before_anybody_reads_them(tmp_path: Path, postgres_url: str) -> None:
    """A workflow that goes on would begin again without them."""
    with closing(open_workflows(tmp_path / "workflows.db")) as files:
        files.begin(RUN)
    site = Site(tmp_path, database=postgres_url)
    async with site.running():
        assert await site.service.context.part(LocalRecords).unfinished() == ("u1",)
    assert (tmp_path / "workflows.db.moved").exists()


async def test_two_servers_share_records_and_refuse_the_earlier_holder_at_either(postgres_url: str) -> None:
    first, second = (LocalRecords(postgres_url) for _ in range(2))
    with closing(first), closing(second):
        assert await first.begin(RUN) == await second.begin(RUN)
        await first.load("u1", "op-1")
        await second.load("u1", "op-2")
        with pytest.raises(Conflict, match="held by op-2"):
            await first.save("u1", "op-1", workflow=RUN)
        reports = await asyncio.gather(
            *(server.report("u1", "pod", StepReport(pod="pod")) for server in (first, second))
        )
        assert sorted(reports) == [False, True]
        await asyncio.gather(*(server.save("u1", "op-2", workflow=RUN) for server in (first, second)))
