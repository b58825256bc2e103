"""Containers, for `moorage.AsyncClient`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from moorage.api.containers import Container, ExecResult, listed_container, shown_container
from moorage.sdk.group import PAGE, Group, lines_of, new_key
from moorage_kube.errors import ServerError, UsageError, api_error
from moorage_kube.quantity import parse_count, parse_quantity

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255  # first byte of each message of an exec
NAMESPACE_HEADER = "X-Moorage-Namespace"


class AsyncContainers(Group):
    """Containers, as in Docker. `container`: its name, or the beginning of its id.

    Without a namespace, the server takes your tenant if you have only one.
    """

    async def list(
        self,
        *,
        all: bool = False,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[Container]:
        """List the running containers, newest first.

        With `all`, also those that have ended or were not started.
        """
        filters = (
            json.dumps({"label": [f"{label}={value}" for label, value in labels.items()]}) if labels else None
        )
        after: str | None = None
        while True:
            params = {"all": all, "limit": PAGE, "after": after, "filters": filters}
            rows, headers = await self._connection.json(
                "GET", "/api/v1/containers", params=params, headers=await self._headers(namespace)
            )
            for row in rows:
                yield listed_container(row)
            after = headers.get("x-next-after")
            if not after:
                return

    async def get(self, container: str, *, namespace: str | None = None) -> Container:
        """Raises NotFound."""
        return await self._get(container, namespace, ())

    async def create(
        self,
        image: str,
        command: Sequence[str] = (),
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cpu: str | float | None = None,
        memory: str | int | None = None,
        gpus: int = 0,
        gpu_type: str | None = None,
        volumes: Sequence[str] = (),
        ports: Mapping[int, int] | None = None,
        labels: Mapping[str, str] | None = None,
        working_dir: str = "",
        auto_remove: bool = False,
        body: Mapping[str, Any] | None = None,
        namespace: str | None = None,
        key: str | None = None,
    ) -> Container:
        """Create a container; with `start`, start it too.

        `cpu`: a number, or a quantity such as 500m; `memory`: bytes, or a quantity such as 8Gi; `volumes`:
        `NAME:/path[:ro]`; `ports`: port of the container → port of its Service; `body`: more fields of
        Docker's API, which override the other arguments; `key`: an idempotency key: a second call with the
        same key returns the same container (None: a new key for this call).
        """
        # Docker's fields, in Docker's units
        host: dict[str, Any] = {"Binds": list(volumes), "AutoRemove": auto_remove}
        if cpu is not None:
            host["NanoCpus"] = round(parse_quantity(str(cpu)) * 10**9)
        if memory is not None:
            host["Memory"] = parse_count(memory) if isinstance(memory, str) else memory
        if gpus:
            request: dict[str, Any] = {"Driver": "nvidia", "Count": gpus, "Capabilities": [["gpu"]]}
            host["DeviceRequests"] = [request | ({"Options": {"type": gpu_type}} if gpu_type else {})]
        # `Cmd` is left out if empty: the image's command is used
        wanted: dict[str, Any] = {
            "Image": image,
            "Cmd": list(command) or None,
            "Env": [f"{variable}={value}" for variable, value in (env or {}).items()],
            "WorkingDir": working_dir,
            "Labels": dict(labels or {}),
        }
        if ports:
            wanted["ExposedPorts"] = {f"{port}/tcp": {} for port in ports}
            host["PortBindings"] = {f"{port}/tcp": [{"HostPort": str(outer)}] for port, outer in ports.items()}
        # fields of `body` override the ones above
        more = dict(body or {})
        wanted["HostConfig"] = host | dict(more.pop("HostConfig", {}))
        made = await self._json(
            "POST",
            "/api/v1/containers",
            params={"name": name},
            body=wanted | more,
            key=key or new_key(),
            headers=await self._headers(namespace),
        )
        return await self._get(made["Id"], namespace, made.get("Warnings") or ())

    async def start(self, container: str, *, namespace: str | None = None) -> None:
        """Start it. An ended container starts again; a running one is not changed."""
        await self._do(container, "start", namespace)

    async def stop(self, container: str, *, namespace: str | None = None) -> None:
        """Stop a container, with its grace period. A container that does not run is not changed."""
        await self._do(container, "stop", namespace)

    async def remove(self, container: str, *, force: bool = False, namespace: str | None = None) -> None:
        """Remove a container. Raises Conflict while it runs, unless `force` is set. Its volumes stay."""
        path = f"/api/v1/containers/{quote(container, safe='')}"
        headers = await self._headers(namespace)
        await self._json("DELETE", path, params={"force": force or None}, headers=headers)

    async def wait(self, container: str, *, namespace: str | None = None) -> int:
        """Wait until the container ends, and return its exit code."""
        where = await self._params(namespace)
        async with self._connection.stream("POST", _container(container, "wait"), params=where) as parts:
            data = b"".join([part async for part in parts])
        return int(json.loads(data)["StatusCode"])

    async def logs(
        self,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        timestamps: bool = False,
        namespace: str | None = None,
    ) -> AsyncIterator[str]:
        """Its output, by lines; with `follow`, until it ends."""
        params = {**await self._params(namespace), "follow": follow, "tail": tail, "timestamps": timestamps}
        async with self._connection.stream("GET", _container(container, "logs"), params=params) as parts:
            async for line in lines_of(parts):
                yield line

    async def exec(
        self, container: str, command: Sequence[str], *, stdin: bytes = b"", namespace: str | None = None
    ) -> ExecResult:
        """Run a command in a running container to its end; all its output is held in memory."""
        if not command:
            raise UsageError("no command given", hint='exec("c1", ["ls", "-l"])')
        params = [("command", word) for word in command]
        params += list((await self._params(namespace)).items())
        out: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        code: int | None = None
        async with self._connection.socket(_container(container, "exec"), params, PROTOCOL) as socket:
            for at in range(0, len(stdin), 65536):
                await socket.send_bytes(bytes([STDIN]) + stdin[at : at + 65536])
            await socket.send_bytes(bytes([CLOSE, STDIN]))
            async for message in socket:
                data = message.data
                if not isinstance(data, bytes) or not data:
                    continue
                if data[0] in out:
                    out[data[0]] += data[1:]
                elif data[0] == STATUS:
                    document = json.loads(data[1:])
                    if "exitCode" not in document:
                        raise api_error(409, {"message": str(document.get("message"))})
                    code = int(document["exitCode"])
        if code is None:
            raise ServerError("the connection to the command was lost before it ended", status=0)
        return ExecResult(exit_code=code, stdout=bytes(out[STDOUT]), stderr=bytes(out[STDERR]))

    async def _get(self, container: str, namespace: str | None, warnings: Sequence[str]) -> Container:
        answer = await self._json("GET", _container(container, "json"), headers=await self._headers(namespace))
        return shown_container(answer, warnings)

    async def _do(self, container: str, verb: str, namespace: str | None) -> None:
        await self._json("POST", _container(container, verb), headers=await self._headers(namespace))

    async def _params(self, namespace: str | None) -> dict[str, str]:
        chosen = namespace or (await self._connection.site()).chosen
        return {"namespace": chosen} if chosen else {}

    async def _headers(self, namespace: str | None) -> dict[str, str]:
        params = await self._params(namespace)
        return {NAMESPACE_HEADER: params["namespace"]} if params else {}


def _container(word: str, verb: str) -> str:
    return f"/api/v1/containers/{quote(word, safe='')}/{verb}"
