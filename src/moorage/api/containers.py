"""Containers on the wire in Docker's words, and as the SDK gives them.

A text that the answer does not have is empty, a number or time that it does not have is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Natural, Query, Text
from moorage.api.reading import read

NO_TIME = "0001-01-01T00:00:00Z"  # how Docker's answers write that there is none


class HostConfig(msgspec.Struct, rename="pascal", kw_only=True):
    """What the container gets of its node, in Docker's words."""

    memory: Natural = 0
    nano_cpus: Natural = 0
    binds: list[str] | None = None
    mounts: list[dict[str, Any]] | None = None
    device_requests: list[dict[str, Any]] | None = None
    port_bindings: dict[str, Any] | None = None
    auto_remove: bool = False


class NewContainer(msgspec.Struct, rename="pascal", kw_only=True):
    """A container to create, in Docker's words. Docker's other fields are taken, or refused by their names."""

    image: Annotated[str, msgspec.Meta(min_length=1)]
    cmd: list[str] | None = None
    entrypoint: list[str] | None = None
    env: list[str] | None = None
    working_dir: str = ""
    user: str = ""
    labels: dict[str, str] | None = None
    host_config: HostConfig = msgspec.field(default_factory=HostConfig)


class ContainerPage(Query):
    """`all`: also those that do not run; `filters`: JSON, as Docker has it; at most `limit`, behind id `after`."""

    all: bool = False
    limit: Natural = 0
    after: Text | None = None
    filters: Text | None = None
    namespace: Text = ""


class ContainerCreation(Query):
    """`name` empty: one is made up. `dry_run`: create nothing."""

    name: Text = ""
    dry_run: bool = False
    namespace: Text = ""


class ContainerLogs(Query):
    """`tail`: the last lines, or all; `since`: seconds since 1970; `follow`: until it has ended."""

    tail: Text = "all"
    since: Natural = 0
    timestamps: bool = False
    follow: bool = False


class ContainerCreated(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    id: str
    warnings: Sequence[str] = ()
    name: str = ""


class ContainerExit(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """The exit code of a container; 0 where it is gone."""

    status_code: int
    error: str | None = None


class Container(Answer, frozen=True):
    """`state` in Docker's words: created, running, restarting, exited.

    A listing has no exit code, node, address or times of start and end.
    """

    id: str
    name: str
    image: str = ""
    command: str = ""
    state: str = ""
    exit_code: int | None = None  # None: it has not ended
    error: str = ""
    oom_killed: bool = False
    node: str = ""
    address: str = ""
    labels: Mapping[str, str] = {}
    created: datetime | None = None
    started: datetime | None = None
    finished: datetime | None = None
    warnings: tuple[str, ...] = ()  # of its making


class ExecResult(Answer, frozen=True):
    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


def listed_container(row: Mapping[str, Any]) -> Container:
    """A row of `GET /api/v1/containers`."""
    created = row.get("Created")
    return read(
        Container,
        {
            "id": row["Id"],
            "name": row["Names"][0].lstrip("/"),
            "image": row.get("Image"),
            "command": row.get("Command"),
            "state": row.get("State"),
            "labels": row.get("Labels") or {},
            "created": _moment(created) if created else None,
        },
    )


def shown_container(body: Mapping[str, Any], warnings: Sequence[str] = ()) -> Container:
    """The body of `GET /api/v1/containers/{id}`."""
    state = body.get("State") or {}
    times = {
        "created": body.get("Created"),
        "started": state.get("StartedAt"),
        "finished": state.get("FinishedAt"),
    }
    return read(
        Container,
        {
            "id": body["Id"],
            "name": body["Name"].lstrip("/"),
            "image": (body.get("Config") or {}).get("Image"),
            "command": " ".join([body.get("Path") or "", *(body.get("Args") or ())]).strip(),
            "state": state.get("Status"),
            "exitCode": state.get("ExitCode") if state.get("Status") in ("exited", "dead") else None,
            "error": state.get("Error"),
            "oomKilled": state.get("OOMKilled"),
            "node": (body.get("Node") or {}).get("Name"),
            "address": (body.get("NetworkSettings") or {}).get("IPAddress"),
            "labels": (body.get("Config") or {}).get("Labels") or {},
            "warnings": list(warnings),
            **{name: text for name, text in times.items() if text and text != NO_TIME},
        },
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
