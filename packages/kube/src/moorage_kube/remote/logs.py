"""Read the log lines of a pod, and continue after broken connections."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import datetime, timedelta

from moorage_kube.api import LogApi
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, BadRequest, NotFound, ServerError
from moorage_kube.moments import parse_rfc3339
from moorage_kube.podlogs import is_kubelets_notice

RECONNECT_SECONDS = 1.0  # after a log that broke off
OVERLAP_SECONDS = 60  # requested again after a reconnection, as clocks differ; lines already returned are dropped
STARTED = ("Running", "Succeeded", "Failed")  # phases of a pod that has a log
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ?")


async def pod_lines(
    api: LogApi,
    pod: str,
    namespace: str,
    *,
    clock: Clock,
    ended: Callable[[], bool],
    container: str | None = None,
    follow: bool = False,
    tail: int | None = None,
    since_seconds: int | None = None,
    broke: Callable[[], None] = lambda: None,
) -> AsyncGenerator[bytes]:
    """A pod's lines without their ends; with `follow`, until it has `ended`.

    A broken connection is resumed at the same line (`broke` is called at the first break of a row).
    Raises NotFound if the log is deleted before its first line, ApiError for a log that cannot be read.
    """
    shown: datetime | None = None  # the time of the newest line
    broken = False
    while True:
        # after a reconnection, ask for a few seconds more than are missing; known lines are dropped below
        seconds, lines_back = since_seconds, tail
        if shown is not None:
            age = clock.now() - shown
            seconds, lines_back = max(1, int(age / timedelta(seconds=1)) + OVERLAP_SECONDS), None
        # asked before the log is read: a pod that ends meanwhile may still write
        over = ended()
        source = api.logs(
            pod,
            namespace,
            container=container,
            follow=follow,
            tail_lines=lines_back,
            since_seconds=seconds,
            timestamps=True,
        )
        try:
            before = shown
            async with contextlib.aclosing(_lines(source)) as lines:
                async for line in lines:
                    if is_kubelets_notice(line):
                        raise NotFound(f"the container of pod {pod} was removed, and its log with it")
                    when, text = _split(line)
                    if when is None or before is None or when > before:  # else: given before it broke
                        yield text
                        shown = when or shown
            if over or not follow or await _soon(ended, clock):
                return
        # a log that was deleted after its first line has ended; a kubelet that is away comes back
        except NotFound:
            if shown is None:
                raise
            return
        except ApiError as error:
            if over or not follow or not isinstance(error, ServerError | BadRequest):
                raise
            if isinstance(error, ServerError) and not broken:
                broke()
            broken = isinstance(error, ServerError)
        else:
            broken = False
        await clock.sleep(RECONNECT_SECONDS)


async def _soon(ended: Callable[[], bool], clock: Clock) -> bool:
    """Whether the pod is reported as ended within a second: its log ends a moment earlier."""
    for _ in range(20):
        if ended():
            return True
        await clock.sleep(0.05)
    return ended()


async def _lines(source: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield lines without their line ends, from pieces that may end within a line."""
    rest = b""
    async with contextlib.aclosing(source) as chunks:  # type: ignore[type-var]
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
    if rest:
        yield rest


def _split(line: bytes) -> tuple[datetime | None, bytes]:
    """Split a line into its timestamp and the rest; None if the server wrote no timestamp."""
    stamp = _STAMP.match(line)
    if stamp is None:
        return None, line
    return parse_rfc3339(_microseconds(stamp[1].decode())), line[stamp.end() :]


def _microseconds(stamp: str) -> str:
    """Return an RFC 3339 time with at most six decimals; kubelets write nine, which Python cannot parse."""
    return re.sub(r"(\.\d{6})\d+", r"\1", stamp)
