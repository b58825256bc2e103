"""Containers as the SDK gives them, read from answers in Docker's shape.

A text that the answer does not have is empty, a number or time that it does not have is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from moorage.api.fields import Answer
from moorage.api.reading import read

NO_TIME = "0001-01-01T00:00:00Z"  # how Docker's answers write that there is none


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
