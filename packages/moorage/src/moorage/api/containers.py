"""API types of containers: in Docker's format, and as objects of the SDK.

If the answer lacks a string, its field is ""; if it lacks a number or time, the field is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Natural, Query, Text, Time, about
from moorage.api.reading import read

NO_TIME = "0001-01-01T00:00:00Z"  # how Docker's answers write that there is none


class HostConfig(msgspec.Struct, rename="pascal", kw_only=True):
    """Resources of the node for the container, in Docker's words."""

    memory: Annotated[Natural, about("Memory limit in bytes; 0: the namespace's default.")] = 0
    nano_cpus: Annotated[Natural, about("CPUs in units of 10^-9; 0: the namespace's default.")] = 0
    binds: Annotated[list[str] | None, about("Volumes to mount, each NAME:/PATH or NAME:/PATH:ro.")] = None
    mounts: Annotated[list[dict[str, Any]] | None, about("Volumes to mount, as Docker's `Mount` objects.")] = None
    device_requests: Annotated[
        list[dict[str, Any]] | None, about("GPUs, as Docker's `DeviceRequest` objects.")
    ] = None
    port_bindings: Annotated[dict[str, Any] | None, about("Ports that get a Service, as Docker's `PortMap`.")] = (
        None
    )
    auto_remove: Annotated[bool, about("Remove the container when it has ended.")] = False


class NewContainer(msgspec.Struct, rename="pascal", kw_only=True):
    """A container to create, in Docker's format. Docker's other fields work too, or are refused by name."""

    image: Annotated[str, msgspec.Meta(min_length=1), about("Name of the image.")]
    cmd: Annotated[list[str] | None, about("Command or its arguments; null: the image's.")] = None
    entrypoint: Annotated[list[str] | None, about("Program that `Cmd` is given to; null: the image's.")] = None
    env: Annotated[list[str] | None, about("Environment variables, each NAME=VALUE.")] = None
    working_dir: Annotated[str, about("Working directory; empty: the image's.")] = ""
    user: Annotated[str, about("UID or UID:GID; empty: the image's.")] = ""
    labels: Annotated[dict[str, str] | None, about("Labels of the container.")] = None
    host_config: Annotated[HostConfig, about("Resources, volumes, GPUs and ports.")] = msgspec.field(
        default_factory=HostConfig
    )


class ContainerPage(Query):
    """Filters for a list of containers."""

    all: Annotated[bool, about("Also those that do not run.")] = False
    limit: Annotated[Natural, about("Containers in the answer, at most; 0: all.")] = 0
    after: Annotated[
        Text | None, about("Only containers behind this id; the header X-Next-After has the next page's.")
    ] = None
    filters: Annotated[Text | None, about("JSON, as Docker's listing has it.")] = None
    namespace: Annotated[Text, about("Only this namespace; empty: the user's own.")] = ""


class ContainerCreation(Query):
    """Query parameters for the creation of a container."""

    name: Annotated[Text, about("Name of the container; empty: made up.")] = ""
    platform: Annotated[Text, about("Nodes for the container, such as linux/amd64; empty: all.")] = ""
    dry_run: Annotated[bool, about("Check the request; create nothing.")] = False
    namespace: Annotated[Text, about("Namespace of the container; empty: the user's own.")] = ""


class ContainerLogs(Query):
    """The part of the logs to return."""

    tail: Annotated[Text, about("Number of the last lines, or all.")] = "all"
    since: Annotated[Natural, about("Only lines since this moment, in seconds since 1970-01-01 UTC; 0: all.")] = 0
    timestamps: Annotated[bool, about("Begin each line with its time.")] = False
    follow: Annotated[bool, about("Go on until the container has ended.")] = False


class ContainerCreated(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """A container that was created."""

    id: Annotated[str, about("Id of the container.")]
    warnings: Annotated[Sequence[str], about("Fields that the server left out or changed.")] = ()
    name: Annotated[str, about("Name of the container.")] = ""


class ContainerExitError(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """Why a container has no exit code."""

    message: Annotated[str, about("Why it never starts.")] = ""


class ContainerExit(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """The exit code of a container."""

    status_code: Annotated[int, about("Exit code; 0: the container was deleted and its code is not known.")]
    error: Annotated[
        ContainerExitError | None,
        about("Why the container never starts (exit code 125); null: it has ended by itself."),
    ] = None


class Container(Answer, frozen=True):
    """A container. In a list, it has no exit code, node, address, start time or end time."""

    id: str
    name: str
    image: Annotated[str, about("Image as the container was created with it.")] = ""
    command: Annotated[str, about("Command with its arguments, joined by spaces.")] = ""
    state: Annotated[str, about("In Docker's words: created, running, restarting or exited.")] = ""
    exit_code: Annotated[int | None, about("Exit code of the command; None: it has not ended.")] = None
    error: Annotated[str, about("Why the container could not start or failed; empty: no error.")] = ""
    oom_killed: Annotated[bool, about("Whether it was killed for exceeding its memory limit.")] = False
    node: Annotated[str, about("Node that the pod runs on; empty in listings.")] = ""
    address: Annotated[str, about("IP address of the pod; empty in listings and before the start.")] = ""
    labels: Mapping[str, str] = {}
    created: Annotated[Time | None, about("When the container was created.")] = None
    started: Annotated[Time | None, about("When the container last started; None: never, or a listing.")] = None
    finished: Annotated[Time | None, about("When the container ended; None: it has not, or a listing.")] = None
    warnings: Annotated[tuple[str, ...], about("Warnings of the request that created the container.")] = ()


class ExecResult(Answer, frozen=True):
    exit_code: Annotated[int, about("Exit code of the command.")]
    stdout: Annotated[bytes, about("All that the command wrote to standard output.")] = b""
    stderr: Annotated[bytes, about("All that the command wrote to standard error.")] = b""


def listed_container(row: Mapping[str, Any]) -> Container:
    """Convert a row of `GET /api/v1/containers`."""
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
    """Convert the body of `GET /api/v1/containers/{id}`."""
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
