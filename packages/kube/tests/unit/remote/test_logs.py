"""The lines of a pod's log, as a kubelet gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moorage_kube.errors import NotFound
from moorage_kube.remote.logs import pod_lines
from moorage_kube.testing.clock import FakeClock

pytestmark = pytest.mark.anyio

NOTICE = b"unable to retrieve container logs for containerd://ed64e7f2"
FOLDER = b"/var/log/pods/default_a1-x_a7a09a7b/main"
NOTICES = [
    NOTICE,
    b'failed to try resolving symlinks in path "%b/0.log": lstat %b/0.log: no such file or directory'
    % (FOLDER, FOLDER),
    b'failed to open log file "%b/0.log": open %b/0.log: no such file or directory' % (FOLDER, FOLDER),
    b'failed to watch directory "%b": no such file or directory' % FOLDER,
    b'rpc error: code = NotFound desc = an error occurred when try to find container "ed64e7f2": not found',
    b"context cancelled",
]


class Logs:
    """A server of one log, as it is written here."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def logs(self, *args: object, **options: object) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def lines_of(*pieces: bytes) -> list[bytes]:
    lines = pod_lines(Logs(*pieces), "a1-x", "default", clock=FakeClock(), ended=lambda: True)  # type: ignore[arg-type]
    return [line async for line in lines]


@pytest.mark.parametrize("notice", NOTICES)
async def test_the_error_that_a_kubelet_appends_is_no_line_of_the_log(notice):
    assert await lines_of(b"2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:00.2Z two\n", notice) == [b"one", b"two"]


async def test_a_log_that_went_with_its_container_is_not_found():
    with pytest.raises(NotFound, match="the container of pod a1-x was removed"):
        await lines_of(NOTICE)


@pytest.mark.parametrize("notice", NOTICES)
async def test_a_program_may_print_the_same_words(notice):
    assert await lines_of(b"2026-01-01T00:00:00.1Z " + notice + b"\n") == [notice]
