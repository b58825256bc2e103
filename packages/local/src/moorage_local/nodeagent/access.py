"""The API server's requests to a node's agent: logs, commands and connections of its pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from moorage_kube.clock import parse_rfc3339
from moorage_kube.errors import BadRequest, NotFound
from moorage_kube.moments import span_of
from moorage_kube.resources import Obj
from moorage_local.nodeagent import logs
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.context import Context, uid_of
from moorage_local.nodeagent.execs import Command, RunningContainer
from moorage_local.nodeagent.leftovers import listens
from moorage_local.nodeagent.shimspec import is_privileged
from moorage_local.podspecs import container_statuses_of, containers_of


class Access:
    """Logs, commands and connections of running pods."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def logs(
        self,
        pod: Obj,
        container: str | None = None,
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: float | None = None,
        timestamps: bool = False,
        previous: bool = False,
        limit_bytes: int | None = None,
        since_time: str | None = None,
    ) -> AsyncIterator[bytes]:
        """The log of the newest attempt of a container (with `previous`, of the one before), as bytes.

        Raises BadRequest, in kubelet's words, when there is none. With `follow`, continues until that attempt
        ended.
        """
        # the attempt that is asked for
        folder = self._context.pod_folder(uid_of(pod))
        name = container or pod["spec"]["containers"][0]["name"]
        kept = logs.attempts(folder.path / "logs" / name)
        if previous:
            kept = kept[:-1]
        if not kept and previous:
            raise BadRequest(
                f'previous terminated container "{name}" in pod "{pod["metadata"]["name"]}" not found'
            )
        if not kept:
            reason = _waiting_reason(pod, name)
            raise BadRequest(
                f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: {reason}'
            )
        attempt = kept[-1]

        def is_over() -> bool:
            reports = {report["name"]: report for report in (folder.state() or {}).get("containers") or ()}
            report = reports.get(name) or {}
            running = report.get("attempt") == attempt and (report.get("state") or {}).get("running")
            return not running or not folder.is_locked()

        # from when on
        since = None
        if since_seconds is not None:
            since = self._context.clock.now() - span_of(since_seconds)
        elif since_time:
            since = parse_rfc3339(since_time)
        async for chunk in logs.read_log(
            folder.path / "logs" / name / f"{attempt}.log",
            clock=self._context.clock,
            is_over=is_over,
            follow=follow,
            tail_lines=tail_lines,
            since=since,
            timestamps=timestamps,
            limit_bytes=limit_bytes,
        ):
            yield chunk

    async def execute(
        self, pod: Obj, container: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
    ) -> Command:
        """Start a command in a running container; the caller closes it.

        Raises NotFound with the kubelet's message.
        """
        folder = self._context.pod_folder(uid_of(pod))
        reports = {report["name"]: report for report in (folder.state() or {}).get("containers") or ()}
        report = reports.get(container) or {}
        if not (report.get("state") or {}).get("running") or not report.get("pid"):
            raise NotFound(f'unable to upgrade connection: container not found ("{container}")')
        privileged = any(
            member["name"] == container and is_privileged(member) for member in containers_of(pod["spec"])
        )
        main = RunningContainer(folder.path, int(report["pid"]), privileged)
        return await Command.start(main, command, stdin=stdin, tty=tty)

    async def connect(self, pod: Obj, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the pod: at its own address, else at 127.0.0.1 if the pod itself listens there.

        Raises OSError. Ports of other processes of this machine are refused.
        """
        address = self._context.address_of(uid_of(pod))
        try:
            return await asyncio.open_connection(address, port)
        except ConnectionRefusedError:
            if address == HOST_IP or not await asyncio.to_thread(listens, port, uid_of(pod)):
                raise
        return await asyncio.open_connection(HOST_IP, port)


def _waiting_reason(pod: Mapping[str, Any], container: str) -> str:
    for container_status in container_statuses_of(pod.get("status")):
        waiting = (container_status.get("state") or {}).get("waiting")
        if container_status["name"] == container and waiting:
            return str(waiting.get("message") or waiting.get("reason"))
    return "ContainerCreating"
