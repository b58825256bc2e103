"""What the platform answers to a program. Fields that this version does not know are left out; times are aware.

A text that the platform does not tell is empty, a number or time that it does not tell is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from moorage.api.datasets import Dataset as Dataset
from moorage.api.explain import Earliest as Earliest
from moorage.api.explain import Explanation as Explanation
from moorage.api.fields import Answer
from moorage.api.gpus import Gpu as Gpu
from moorage.api.gpus import GpuCounts as GpuCounts
from moorage.api.gpus import GpuNode as GpuNode
from moorage.api.gpus import Gpus as Gpus
from moorage.api.gpus import GpuType as GpuType
from moorage.api.gpus import GpuUser as GpuUser
from moorage.api.jobs import Attempt as Attempt
from moorage.api.jobs import Job as Job
from moorage.api.jobs import RunPod as RunPod
from moorage.api.logins import Person as Person
from moorage.api.usage import Top as Top
from moorage.api.usage import TopRow as TopRow
from moorage.api.volumes import Volume as Volume
from moorage.api.workspaces import Workspace as Workspace

T = TypeVar("T")
NO_TIME = "0001-01-01T00:00:00Z"  # how Docker's answers write that there is none


class Container(Answer, frozen=True):
    """`state` in Docker's words: created, running, restarting, exited.

    A listing tells no exit code, node, address or times of start and end.
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


def read(kind: type[T], found: Any) -> T:
    """An answer as its type. Raises msgspec.ValidationError for one that is something else."""
    return msgspec.convert(without_nulls(found), kind)


def without_nulls(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: without_nulls(value) for key, value in found.items() if value is not None}
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        return [without_nulls(one) for one in found]
    return found


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
    from datetime import UTC

    return datetime.fromtimestamp(seconds, UTC)
