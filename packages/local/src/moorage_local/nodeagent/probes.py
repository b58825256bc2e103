"""Startup, liveness and readiness probes.

https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import Clock
from moorage_kube.integers import is_digits, parse_integer
from moorage_local.nodeagent.addresses import HOST_IP
from moorage_local.nodeagent.execs import RunningContainer

SHOWN_BYTES = 100  # of a command, or of an answer that is not HTTP
KINDS = ("startupProbe", "livenessProbe", "readinessProbe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe, with Kubernetes' defaults set."""

    kind: str
    action: Mapping[str, Any]  # exec, httpGet, tcpSocket
    delay_seconds: float
    period_seconds: float
    timeout_seconds: float
    successes: int
    failures: int


@dataclass(slots=True)
class Verdict:
    """The counted results of one probe for one attempt. `good` is None until a threshold is reached."""

    probe: Probe
    good: bool | None = None
    _row: int = 0
    _last: bool | None = None

    def add(self, success: bool) -> bool:
        """Count a result; return True if it changed `good`."""
        self._row = self._row + 1 if success == self._last else 1
        self._last = success
        needed = self.probe.successes if success else self.probe.failures
        if self._row < needed or self.good == success:
            return False
        self.good = success
        return True


def probes_of(container: Mapping[str, Any]) -> list[Probe]:
    """Return the probes of a container, without unsupported actions (they count as successful)."""
    probes = []
    for kind in KINDS:
        spec = container.get(kind)
        if spec and any(spec.get(action) for action in ("exec", "httpGet", "tcpSocket")):
            probes.append(
                Probe(
                    kind=kind,
                    action=spec,
                    delay_seconds=float(spec.get("initialDelaySeconds") or 0),
                    period_seconds=float(spec.get("periodSeconds") or 10),
                    timeout_seconds=float(spec.get("timeoutSeconds") or 1),
                    successes=int(spec.get("successThreshold") or 1),
                    failures=int(spec.get("failureThreshold") or 3),
                )
            )
    return probes


def port_of(container: Mapping[str, Any], port: int | str) -> int:
    """A probe's port, which may be named. Raises ValueError for an unknown name."""
    if isinstance(port, int):
        return port
    if is_digits(port):
        return parse_integer(port, minimum=1, maximum=65535, name="the probe's port")
    for container_port in container.get("ports") or ():
        if container_port.get("name") == port:
            return int(container_port["containerPort"])
    raise ValueError(f"port {port} not found")


async def run_once(
    container: Mapping[str, Any], probe: Probe, main: RunningContainer, address: str = HOST_IP
) -> tuple[bool, str]:
    """Try once; return (success, a kubelet's message). `address` is the pod's."""
    http, url = probe.action.get("httpGet"), ""
    try:
        if probe.action.get("exec"):
            command = list(probe.action["exec"].get("command") or ())
            return await asyncio.to_thread(_exec, command, main, probe.timeout_seconds)
        action = http or probe.action["tcpSocket"]
        host, port = action.get("host") or address, port_of(container, action["port"])
        if http:
            url = f"{_scheme(http)}://{host}:{port}{_path(http)}"
        try:
            async with asyncio.timeout(probe.timeout_seconds):
                return await (_http(http, host, port) if http else _tcp(host, port))
        except TimeoutError:
            answer = f"dial tcp {host}:{port}: i/o timeout"
            if http:
                answer = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    except (OSError, ValueError) as error:
        answer = str(error)
    return False, f'Get "{url}": {answer}' if url else answer


async def watch(
    container: Mapping[str, Any],
    *,
    main: RunningContainer,
    address: str = HOST_IP,
    started: datetime,
    clock: Clock,
    slept_since: Callable[[datetime], timedelta] = lambda _: timedelta(0),
    ready: bool,
    started_before: bool,
    changed: Callable[[bool, bool], None],
    failed_liveness: Callable[[str], None],
    unhealthy: Callable[[str, str], None],
) -> None:
    """Probe one attempt of one container until cancelled.

    `changed(ready, started)` is called when either changes; until the startup probe succeeds no other runs.
    `failed_liveness(message)` is called once, when the container is to be restarted. `ready` and `started_before`
    are the last published values: a restarted agent uses them until a probe changes them. A failure is
    ignored if the machine slept meanwhile (`slept_since`): the container could not have answered.
    """
    probes = {probe.kind: probe for probe in probes_of(container)}
    seen = {"ready": ready or "readinessProbe" not in probes, "started": started_before}

    def tell(**news: bool) -> None:
        if any(seen[name] != value for name, value in news.items()):
            seen.update(news)
            changed(seen["ready"], seen["started"])

    async def loop(probe: Probe) -> None:
        verdict = Verdict(probe)
        wait = probe.delay_seconds - (clock.now() - started).total_seconds()
        if wait > 0:
            await clock.sleep(wait)
        while True:
            began = clock.now()
            success, answer = await run_once(container, probe, main, address)
            if not success and slept_since(began):
                continue
            if not success:
                unhealthy(probe.kind, answer)
            if verdict.add(success):
                if probe.kind == "readinessProbe":
                    tell(ready=success)
                elif not success:
                    failed_liveness(answer)
                    return
                elif probe.kind == "startupProbe":
                    return
            await clock.sleep(probe.period_seconds)

    # the startup probe comes before the others
    if "startupProbe" in probes and not started_before:
        await loop(probes["startupProbe"])
    tell(started=True)
    async with asyncio.TaskGroup() as tasks:
        for kind in ("livenessProbe", "readinessProbe"):
            if kind in probes:
                tasks.create_task(loop(probes[kind]))


async def _dial(
    host: str, port: int, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a port. Raises OSError with Go's message."""
    try:
        return await asyncio.open_connection(host, port, ssl=context)
    except (TimeoutError, ssl.SSLError):
        raise
    except socket.gaierror:
        raise OSError(f"dial tcp: lookup {host}: no such host") from None
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise OSError(f"dial tcp {host}:{port}: connect: {reason}") from None


async def _tcp(host: str, port: int) -> tuple[bool, str]:
    _, writer = await _dial(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, ""


def _scheme(action: Mapping[str, Any]) -> str:
    return str(action.get("scheme") or "http").lower()


def _path(action: Mapping[str, Any]) -> str:
    path = str(action.get("path") or "")
    return path if path.startswith("/") else f"/{path}"


def request_of(action: Mapping[str, Any], host: str, port: int, *, agent: str) -> str:
    """The text of a kubelet's request for an `httpGet`."""
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
    headers.setdefault("Host", f"{host}:{port}")
    headers |= {"Connection": "close", "User-Agent": agent}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {_path(action)} HTTP/1.1\r\n{head}\r\n"


async def _http(action: Mapping[str, Any], host: str, port: int) -> tuple[bool, str]:
    """Send the request of an HTTP probe.

    Status 200 to 399 is a success; certificates are not checked, as in kubelets.
    """
    context = None
    if _scheme(action) == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    reader, writer = await _dial(host, port, context)
    try:
        writer.write(request_of(action, host, port, agent="kube-probe/1.32").encode())
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
    if not line:
        raise OSError("EOF")
    words = line.split(None, 2)
    if len(words) < 2 or not words[1].isdigit() or len(words[1]) > 3:
        shown = json.dumps(line[:SHOWN_BYTES].decode("utf-8", "replace").rstrip("\r\n"))
        raise OSError(f"net/http: HTTP/1.x transport connection broken: malformed HTTP response {shown}")
    code = int(words[1])
    if 200 <= code < 400:
        return True, ""
    return False, f"HTTP probe failed with statuscode: {code}"


def _exec(command: list[str], main: RunningContainer, timeout_seconds: float) -> tuple[bool, str]:
    """Run the command next to the container's main process, in its mounts and environment."""
    process = subprocess.Popen(
        main.words("--enter", command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        start_new_session=True,
    )
    with process:
        try:
            answer, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shown = json.dumps(" ".join(command)[:SHOWN_BYTES])
            return False, f"command {shown} timed out after {timeout_seconds:g}s"
    return process.returncode == 0, answer.decode("utf-8", "replace")[-400:].strip()
