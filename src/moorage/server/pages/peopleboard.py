"""What the pages of workspaces, jobs, volumes and datasets show: from what the REST API tells to words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from moorage.apimachinery.moments import moment, rfc3339
from moorage.apimachinery.quantity import format_bytes, parse_count
from moorage.decide.runs.state import RunView, State
from moorage.errors import QuantityError
from moorage.model import dataset as datasets
from moorage.model import workspace as workspaces
from moorage.model.storageclass import RWO
from moorage.server.pages.board import When, owner_hues, span

SHOWN = 200  # rows of one page
_WORKSPACE_TONES = {
    workspaces.RUNNING: "good",
    workspaces.STARTING: "busy",
    workspaces.STOPPING: "busy",
    workspaces.WAITING: "wait",
    workspaces.FAILED: "bad",
}
_DATASET_TONES = {
    datasets.READY: "good",
    datasets.FILLING: "busy",
    datasets.PUBLISHING: "busy",
    datasets.PENDING: "wait",
    datasets.FAILED: "bad",
}
_RUN_TONES = {
    State.RUNNING: "good",
    State.RESTARTING: "busy",
    State.WAITING: "wait",
    State.SUCCEEDED: "done",
    State.CANCELLED: "done",
}

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRow:
    """One workspace. `switch` is what may be done next: "start" or "stop"."""

    namespace: str
    name: str
    owner: str
    hue: int
    kind: str
    state: str
    tone: str
    why: str  # what it waits for, or why it failed
    size: str
    node: str
    started: When | None
    home: str
    switch: str
    can_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One run."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str
    tone: str
    why: str
    gpus: str
    node: str
    age: When | None
    has_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRow:
    """One volume. `used` and `total` in bytes; `used` None: no node told."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str  # empty: as it should be
    tone: str
    size: str
    used: int | None
    total: int
    words: str
    mode: str
    storage_class: str
    used_by: tuple[str, ...]

    @property
    def share(self) -> int:
        """Percent in use, rounded down, at most 100."""
        return min(100, 100 * (self.used or 0) // self.total) if self.total else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRow:
    """One dataset. `done` of `total` bytes are there."""

    namespace: str
    name: str
    owner: str
    hue: int
    state: str
    tone: str
    why: str
    source: str
    words: str
    done: int
    total: int
    readers: tuple[str, ...]
    used_by: tuple[str, ...]
    filled: When | None

    @property
    def share(self) -> int:
        """Percent that is there, rounded down, at most 100."""
        return min(100, 100 * self.done // self.total) if self.total else 0


def rows(
    found: Sequence[Mapping[str, Any]], make: Callable[[Mapping[str, Any], int, datetime], Row], now: datetime
) -> tuple[tuple[Row, ...], int]:
    """The first SHOWN by namespace and name, and how many more."""
    order = sorted(found, key=lambda one: (one["namespace"], one["name"]))
    shown = order[:SHOWN]
    hues = owner_hues(one["owner"] for one in shown)
    return tuple(make(one, hues[one["owner"]], now) for one in shown), len(order) - len(shown)


def workspace_row(one: Mapping[str, Any], hue: int, now: datetime) -> WorkspaceRow:
    """`one` as `workspace_json` tells it. What was asked for counts before what the operator last saw."""
    state, wanted = one["phase"], one["running"]
    if not wanted and state not in (workspaces.STOPPED, "Deleting"):
        state = workspaces.STOPPING
    elif wanted and state in (workspaces.STOPPED, workspaces.STOPPING, "Pending"):
        state = workspaces.STARTING
    waiting = one["waitingFor"] if state in (workspaces.WAITING, workspaces.STARTING, workspaces.FAILED) else None
    return WorkspaceRow(
        namespace=one["namespace"],
        name=one["name"],
        owner=one["owner"],
        hue=hue,
        kind=one["type"],
        state=state,
        tone=_WORKSPACE_TONES.get(state, "done"),
        why=(waiting["message"] or waiting["reason"]) if waiting else "",
        size=size_words(one),
        node=one["node"] if wanted else "",
        started=_ago(one["readyAt"], now) if state == workspaces.RUNNING else None,
        home=one["home"],
        switch="" if state == "Deleting" else "stop" if wanted else "start",
        can_open=state == workspaces.RUNNING and bool(one["url"]),
    )


def size_words(one: Mapping[str, Any]) -> str:
    """What a workspace runs on."""
    if machine := one["machine"]:
        return f"{machine['group']}/{machine['type']}"
    asked = one["resources"]
    cpu, memory = asked.get("cpu") or workspaces.DEFAULT_CPU, asked.get("memory") or workspaces.DEFAULT_MEMORY
    gpus = asked.get("gpus")
    words = [f"{cpu} CPU", str(memory)]
    return ", ".join(words + ([f"{gpus} × {asked.get('gpuType') or 'GPU'}"] if gpus else []))


def job_rows(runs: Iterable[RunView], now: datetime) -> tuple[tuple[JobRow, ...], int]:
    """The first SHOWN: those at work, then those that ended, newest first; and how many more."""
    order = sorted(runs, key=lambda run: run.state.ended)
    shown = order[:SHOWN]
    hues = owner_hues(run.owner for run in shown)
    return tuple(job_row(run, hues[run.owner], now) for run in shown), len(order) - len(shown)


def job_row(run: RunView, hue: int, now: datetime) -> JobRow:
    gpus = f"{run.gpus} × {run.gpu_type}" if run.gpus and run.gpu_type else str(run.gpus or "")
    return JobRow(
        namespace=run.namespace,
        name=run.name,
        owner=run.owner,
        hue=hue,
        state=str(run.state),
        tone=_RUN_TONES.get(run.state, "bad"),
        why=run.reason if run.reason != str(run.state) else "",
        gpus=gpus,
        node=run.node,
        age=When(span(now - run.created), rfc3339(run.created)) if run.created else None,
        has_ended=run.state.ended,
    )


def volume_row(one: Mapping[str, Any], hue: int, _: datetime) -> VolumeRow:
    """`one` as `volume_json` tells it."""
    used, total = one["usedBytes"], _bytes(one["size"])
    words = one["size"] if used is None else f"{format_bytes(used)} of {one['size']} in use"
    return VolumeRow(
        namespace=one["namespace"],
        name=one["name"],
        owner=one["owner"],
        hue=hue,
        state="" if one["state"] == "Bound" else one["state"],
        tone={"Pending": "wait", "Lost": "bad"}.get(one["state"], "done"),
        size=one["size"],
        used=used,
        total=total,
        words=words,
        mode="one node" if one["modes"] in ([RWO], ["ReadWriteOncePod"]) else "many nodes",
        storage_class=one["class"],
        used_by=tuple(one["usedBy"]),
    )


def dataset_row(one: Mapping[str, Any], hue: int, now: datetime) -> DatasetRow:
    """`one` as `dataset_json` tells it."""
    state, progress = one["phase"], one["progress"] or {}
    if state == datasets.READY:
        done = total = one["bytes"] or 0
        words = f"{format_bytes(done)}, {_files(one['files'] or 0)}"
    else:
        done, total = progress.get("bytes") or 0, progress.get("bytesTotal") or 0
        words = f"{format_bytes(done)} of {format_bytes(total)}" if total else format_bytes(done)
        words = f"{words}, {_files(progress.get('files') or 0)}" if done or total else "nothing yet"
    active = [each for each in one["usedBy"] if each.get("active")]
    return DatasetRow(
        namespace=one["namespace"] or "",
        name=one["name"],
        owner=one["owner"],
        hue=hue,
        state=state,
        tone=_DATASET_TONES.get(state, "done"),
        why=one["message"] if state != datasets.READY else "",
        source=one["source"],
        words=words,
        done=done,
        total=total,
        readers=tuple(each["tenant"] for each in one["readers"]),
        used_by=tuple(f"{each['namespace']}/{each['name']}" for each in active),
        filled=_ago(one["filledAt"], now) if state == datasets.READY else None,
    )


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _bytes(text: str) -> int:
    try:
        return parse_count(text) if text else 0
    except QuantityError:
        return 0


def _ago(text: str | None, now: datetime) -> When | None:
    at = moment(text)
    return When(span(now - at), rfc3339(at)) if at is not None else None
