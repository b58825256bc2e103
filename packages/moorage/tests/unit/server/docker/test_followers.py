"""Who reads what a pod prints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moorage.server.docker.followers import Followers
from moorage.server.identity.sessions import Sessions
from moorage_kube.testing.clock import FakeClock


@pytest.mark.anyio
async def test_a_pod_is_not_followed_by_who_left_before_that_was_written(tmp_path: Path) -> None:
    written = asyncio.Event()

    class SlowSessions(Sessions):
        async def do(self, work: Any) -> Any:
            answer = await super().do(work)
            if not written.is_set():
                written.set()
                await asyncio.Event().wait()
            return answer

    sessions = SlowSessions(tmp_path / "people.db")
    followers = Followers(sessions, clock=FakeClock())

    async def follow() -> None:
        async with followers.following("uid-1"):
            pass

    try:
        following = asyncio.create_task(follow())
        await written.wait()
        assert await followers.has("uid-1")
        following.cancel()
        await asyncio.wait({following})
        assert not await followers.has("uid-1")
    finally:
        sessions.close()
