"""Runs the probes of running containers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from moorage_kube.awaketime import AwakeTime
from moorage_kube.clock import parse_rfc3339
from moorage_kube.resources import Obj
from moorage_local.nodeagent import probes
from moorage_local.nodeagent.context import Context, grace_of, uid_of
from moorage_local.nodeagent.execs import RunningContainer
from moorage_local.nodeagent.shimspec import is_privileged
from moorage_local.podspecs import container_statuses_of, containers_of


class Probing:
    """Runs one task for each running attempt of a container with probes."""

    def __init__(self, context: Context, awake: AwakeTime) -> None:
        self._context = context
        self._awake = awake

    def probe(self, pod: Obj, state: Mapping[str, Any] | None) -> None:
        """Probe all running attempts that have probes, and stop the probes of others."""
        uid = uid_of(pod)
        reports = {container["name"]: container for container in (state or {}).get("containers") or ()}
        known = self._context.state_of(uid)
        for container in containers_of(pod["spec"]):
            name = container["name"]
            report = reports.get(name) or {}
            running = (report.get("state") or {}).get("running")
            wanted = int(report["attempt"]) if running and probes.probes_of(container) else None
            probed = known.probing.get(name)
            if probed is not None and probed[0] == wanted:
                continue
            if probed is not None:
                probed[1].cancel()
                del known.probing[name]
            if wanted is None:
                known.unready.discard(name)
                known.unstarted.discard(name)
                continue
            published: Mapping[str, Any] = next(
                (
                    status
                    for status in container_statuses_of(pod.get("status"))
                    if status["name"] == name and (status.get("containerID") or "").endswith(report["containerID"])
                ),
                {},
            )
            kinds = {probe.kind for probe in probes.probes_of(container)}
            ready = "readinessProbe" not in kinds or bool(published.get("ready"))
            started = "startupProbe" not in kinds or bool(published.get("started"))
            self._set_probed(uid, name, ready=ready, started=started)
            task = asyncio.get_running_loop().create_task(
                self._watch_probes(pod, container, wanted, report, ready=ready, started=started)
            )
            known.probing[name] = (wanted, task)

    async def _watch_probes(
        self, pod: Obj, container: Obj, attempt: int, report: Mapping[str, Any], *, ready: bool, started: bool
    ) -> None:
        uid, name = uid_of(pod), container["name"]

        def changed(ready: bool, started: bool) -> None:
            self._set_probed(uid, name, ready=ready, started=started)
            self._context.queue.add(uid)

        def failed(output: str) -> None:
            message = f"Container {name} failed liveness probe, will be restarted"
            self._context.event(pod, "Normal", "Killing", message)
            self._context.pod_folder(uid).request_restart(name, attempt, grace_of(pod), output)

        def unhealthy(kind: str, output: str) -> None:
            word = kind.removesuffix("Probe").capitalize()
            self._context.event(pod, "Warning", "Unhealthy", f"{word} probe failed: {output}")

        await probes.watch(
            container,
            main=RunningContainer(
                self._context.pod_folder(uid).path, int(report["pid"]), is_privileged(container)
            ),
            address=self._context.address_of(uid),
            started=parse_rfc3339(report["state"]["running"]["startedAt"]),
            clock=self._context.clock,
            slept_since=self._awake.slept_since,
            ready=ready,
            started_before=started,
            changed=changed,
            failed_liveness=failed,
            unhealthy=unhealthy,
        )

    def _set_probed(self, uid: str, name: str, *, ready: bool, started: bool) -> None:
        state = self._context.state_of(uid)
        for names, is_good in ((state.unready, ready), (state.unstarted, started)):
            if is_good:
                names.discard(name)
            else:
                names.add(name)
