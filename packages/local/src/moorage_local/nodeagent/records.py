"""Read the files of a pod's folder as untrusted input.

Where pods cannot be fenced, their processes can write into the folder. A file may have any content, type (a link,
a pipe, a folder) and size: reading it still ends soon and gives a record of the right shape, or None.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NotRequired, TypedDict

from msgspec import Meta

from moorage_kube.clock import parse_rfc3339
from moorage_kube.documentbounds import BYTES_MAX
from moorage_kube.documents import parse_json
from moorage_kube.errors import DocumentError
from moorage_kube.resources import Obj

COMPLAINT_BYTES = 16 * 1024  # read from the end of a shim.log

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Pid = Annotated[int, Meta(ge=0, le=2**22)]  # PID_MAX_LIMIT of Linux
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0, le=2**64)]


class RunningRecord(TypedDict):
    startedAt: str


class TerminatedRecord(TypedDict):
    startedAt: str
    finishedAt: str
    exitCode: ExitCode
    reason: str
    signal: NotRequired[ExitCode]
    message: NotRequired[str]
    containerID: NotRequired[str | None]
    peakMemoryBytes: NotRequired[Size]


class WaitingRecord(TypedDict):
    reason: str
    message: NotRequired[str]


class ContainerState(TypedDict):
    running: NotRequired[RunningRecord]
    terminated: NotRequired[TerminatedRecord]
    waiting: NotRequired[WaitingRecord]


class ContainerRecord(TypedDict):
    name: str
    role: NotRequired[str]
    attempt: NotRequired[Count]
    containerID: NotRequired[str | None]
    restartCount: NotRequired[Count]
    pid: Pid
    peakMemoryBytes: NotRequired[Size]
    memoryBytes: NotRequired[Size]
    state: ContainerState
    lastState: NotRequired[ContainerState]
    ended: NotRequired[TerminatedRecord]
    hookFailed: NotRequired[str]


class OutcomeRecord(TypedDict):
    phase: Literal["Pending", "Running", "Succeeded", "Failed"]
    startedAt: NotRequired[str]
    finishedAt: NotRequired[str | None]
    outcome: NotRequired[Literal["Succeeded", "Failed"]]
    reason: NotRequired[str]
    message: NotRequired[str]
    stopping: NotRequired[str]


class StateRecord(TypedDict):
    """The content of state.json, the shim's report."""

    version: NotRequired[int]
    seq: NotRequired[int]
    uid: str
    shimPid: Pid
    writtenAt: NotRequired[str]
    mounts: NotRequired[str]
    mountsError: NotRequired[str]
    privateError: NotRequired[str]
    fenceError: NotRequired[str]
    pod: OutcomeRecord
    containers: list[ContainerRecord]


class AdmissionRecord(TypedDict):
    """admission.json."""

    uid: str
    namespace: str
    name: str
    at: str
    requests: dict[str, int]
    gpus: list[Count]
    devices: dict[str, list[str]]
    graceSeconds: Seconds
    address: NotRequired[str | None]  # folders of older versions have none
    rejected: NotRequired[list[str] | None]
    pod: NotRequired[dict[str, Any] | None]


class LostRecord(TypedDict):
    """lost.json."""

    at: str


class StopRecord(TypedDict):
    """The content of the file `stop`, the order to end the pod."""

    graceSeconds: Seconds
    reason: str
    message: str


def read_state(path: Path, uid: str) -> Obj | None:
    """Return the report of this pod's shim; None if it is missing or invalid."""
    state = _read(path, StateRecord)
    if state is None or state["uid"] != uid or not all(map(_is_moment, _moments(state))):
        return None
    for report in state["containers"]:
        has_run = "attempt" in report and bool(report.get("containerID"))
        if "running" in report["state"] and not (has_run and report["pid"]):
            return None
    return state


def read_admission(path: Path, uid: str) -> Obj | None:
    record = _read(path, AdmissionRecord)
    if record is None or record["uid"] != uid or not _is_moment(record["at"]):
        return None
    rejected = record.get("rejected")
    if rejected and len(rejected) != 2:
        return None
    try:
        ipaddress.IPv4Address(record.get("address") or "127.0.0.1")
    except ValueError:
        return None
    return record


def read_lost(path: Path) -> Obj | None:
    record = _read(path, LostRecord)
    return record if record is not None and _is_moment(record["at"]) else None


def read_stop(path: Path) -> Obj | None:
    return _read(path, StopRecord)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, else raise OSError; links are not followed, pipes not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def last_lines(path: Path) -> str:
    """Return the end of a text file; "" if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - COMPLAINT_BYTES))
            return file.read(COMPLAINT_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _read(path: Path, shape: Any) -> Obj | None:
    try:
        with open_regular(path) as file:
            data = file.read(BYTES_MAX + 1)
        record: Obj = parse_json(data, shape)
    except (OSError, DocumentError):
        return None
    return record


def _moments(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield all timestamps of a report."""
    yield from (text for text in (state["pod"].get("startedAt"), state["pod"].get("finishedAt")) if text)
    for report in state["containers"]:
        if "ended" in report:
            yield report["ended"]["startedAt"]
            yield report["ended"]["finishedAt"]
        for when in (report["state"], report.get("lastState") or {}):
            if "running" in when:
                yield when["running"]["startedAt"]
            if "terminated" in when:
                yield when["terminated"]["startedAt"]
                yield when["terminated"]["finishedAt"]


def _is_moment(text: str) -> bool:
    try:
        parse_rfc3339(text)
    except (ValueError, OverflowError):
        return False
    return True
