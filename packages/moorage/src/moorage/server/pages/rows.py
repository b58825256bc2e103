"""Rows for the pages of workspaces, jobs, volumes and datasets, converted from results of actions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from msgspec import Struct

from moorage.actions.datasets import SHARED
from moorage.api.datasets import Dataset, Progress
from moorage.api.volumes import Volume
from moorage.api.workspaces import Workspace
from moorage.decide.runs.state import RunView, State
from moorage.model import dataset as datasets
from moorage.model import workspace as workspaces
from moorage.model.storageclass import RWO
from moorage.model.workspace import App
from moorage.server.pages.board import When, ago, owner_hues, run_tone, why_words
from moorage.server.pages.texts import say
from moorage_kube.errors import QuantityError
from moorage_kube.moments import moment
from moorage_kube.quantity import format_bytes, parse_count

SHOWN = 200  # rows of one page
_WORKSPACE_TONES = {
    workspaces.RUNNING: "good",
    workspaces.STARTING: "busy",
    workspaces.STOPPING: "busy",
    workspaces.WAITING: "wait",
    workspaces.FAILED: "bad",
}
_TYPE_WORDS = {
    workspaces.JUPYTERLAB: "JupyterLab: notebooks, a terminal and your files",
    workspaces.CODESERVER: "code-server: Visual Studio Code in the browser",
}
OWN_TYPE = "An application that an administrator added"
JOB_STATES = tuple(str(state) for state in State)
WORKSPACE_STATES = (
    workspaces.RUNNING, workspaces.STARTING, workspaces.WAITING, workspaces.STOPPING, workspaces.STOPPED,
    workspaces.FAILED,
)  # fmt: skip
VOLUME_STATES = ("Bound", "Pending", "Lost")
DATASET_STATES = (datasets.READY, datasets.FILLING, datasets.PUBLISHING, datasets.PENDING, datasets.FAILED)
_DATASET_TONES = {
    datasets.READY: "good",
    datasets.FILLING: "busy",
    datasets.PUBLISHING: "busy",
    datasets.PENDING: "wait",
    datasets.FAILED: "bad",
}

Row = TypeVar("Row")


class Owned(Protocol):
    """The common fields of listed objects."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def owner(self) -> str: ...


Thing = TypeVar("Thing", bound=Owned)


class TypeRow(Struct, frozen=True, kw_only=True):
    """One workspace type. `runs`: its image, or its program on a local cluster."""

    name: str
    words: str
    runs: str


class WorkspaceRow(Struct, frozen=True, kw_only=True):
    """One workspace. `switch` is the action that is possible next: "start" or "stop"."""

    namespace: str
    name: str
    owner: str
    hue: int
    kind: str
    state: str
    tone: str
    why: str  # why it waits or failed
    size: str
    node: str
    started: When | None
    home: str
    switch: str
    can_open: bool
    idle: bool = False  # it is idle, and may be snoozed


class JobRow(Struct, frozen=True, kw_only=True):
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


class VolumeRow(Struct, frozen=True, kw_only=True):
    """One volume. `used` and `total` in bytes; `used` None: not reported by a node."""

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
    def users(self) -> tuple[tuple[str, str], ...]:
        """Namespace and name of the runs and pods that mount it."""
        return tuple((self.namespace, user) for user in self.used_by)

    @property
    def share(self) -> int:
        """Used percentage, rounded down, at most 100."""
        return min(100, 100 * (self.used or 0) // self.total) if self.total else 0


class DatasetRow(Struct, frozen=True, kw_only=True):
    """One dataset. `done` of `total` bytes are stored."""

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
    users: tuple[tuple[str, str], ...]  # namespace and name of its users
    filled: When | None
    is_shared: bool  # by the namespace that owns it

    @property
    def share(self) -> int:
        """Stored percentage, rounded down, at most 100."""
        return min(100, 100 * self.done // self.total) if self.total else 0


def rows(things: Sequence[Thing], make: Callable[[Thing, int, datetime], Row], now: datetime) -> tuple[Row, ...]:
    """Make a row of each object, sorted by namespace and name."""
    hues = owner_hues(thing.owner for thing in things)
    order = sorted(things, key=lambda thing: (thing.namespace, thing.name))
    return tuple(make(thing, hues[thing.owner], now) for thing in order)


def workspace_row(item: Workspace, hue: int, now: datetime) -> WorkspaceRow:
    """A row of a workspace; a requested start or stop overrides the last state of the operator."""
    state, wanted = item.phase, item.running
    if not wanted and state not in (workspaces.STOPPED, "Deleting"):
        state = workspaces.STOPPING
    elif wanted and state in (workspaces.STOPPED, workspaces.STOPPING, "Pending"):
        state = workspaces.STARTING
    is_waiting = state in (workspaces.WAITING, workspaces.STARTING, workspaces.FAILED)
    waiting = item.waiting_for if is_waiting else None
    return WorkspaceRow(
        namespace=item.namespace,
        name=item.name,
        owner=item.owner,
        hue=hue,
        kind=item.type,
        state=state,
        tone=_WORKSPACE_TONES.get(state, "done"),
        why=(waiting.message or waiting.reason) if waiting else item.idle,
        size=size_words(item),
        node=item.node if wanted else "",
        started=ago(item.ready_at, now) if state == workspaces.RUNNING else None,
        home=item.home,
        switch="" if state == "Deleting" else "stop" if wanted else "start",
        can_open=state == workspaces.RUNNING and bool(item.url),
        idle=wanted and item.idle.startswith("idle"),
    )


def type_rows(apps: Mapping[str, App], *, on_processes: bool) -> tuple[TypeRow, ...]:
    """The types available for a new workspace, by name."""
    return tuple(
        TypeRow(
            name=name,
            words=_TYPE_WORDS.get(name, OWN_TYPE) if app is workspaces.BUILT_IN.get(name) else OWN_TYPE,
            runs=_program(app) if on_processes or not app.image else app.image,
        )
        for name, app in sorted(apps.items())
    )


def _program(app: App) -> str:
    """The program of a type; with its first argument if that is not an option: "jupyter lab"."""
    words = [word for word in app.command[:2] if not word.startswith("-")]
    return " ".join(words)[:80]


def size_words(item: Workspace) -> str:
    """The machine or the resources of a workspace."""
    if machine := item.machine:
        return f"{machine['group']}/{machine['type']}"
    resources = item.resources
    cpu = resources.get("cpu") or workspaces.DEFAULT_CPU
    memory = resources.get("memory") or workspaces.DEFAULT_MEMORY
    gpus = resources.get("gpus")
    words = [f"{cpu} CPU", str(memory)]
    return ", ".join(words + ([f"{gpus} × {resources.get('gpuType') or 'GPU'}"] if gpus else []))


def job_rows(
    runs: Iterable[RunView], now: datetime, *, most: int | None = SHOWN
) -> tuple[tuple[JobRow, ...], int]:
    """The rows of the first `most` runs (None: all), and the number of the other runs.

    Active runs come first, then ended runs, newest first.
    """
    order = sorted(runs, key=lambda run: run.state.ended)
    shown = order[:most]
    hues = owner_hues(run.owner for run in shown)
    return tuple(job_row(run, hues[run.owner], now) for run in shown), len(order) - len(shown)


def job_row(run: RunView, hue: int, now: datetime) -> JobRow:
    """A run as a row. `hue` is the colour of its owner in this list."""
    gpus = f"{run.gpus} × {run.gpu_type}" if run.gpus and run.gpu_type else str(run.gpus or "")
    return JobRow(
        namespace=run.namespace,
        name=run.name,
        owner=run.owner,
        hue=hue,
        state=str(run.state),
        tone=run_tone(run.state),
        why=why_words(run),
        gpus=gpus,
        node=run.node,
        age=ago(run.created, now),
        has_ended=run.state.ended,
    )


def volume_row(item: Volume, hue: int, _: datetime) -> VolumeRow:
    used, total = item.used_bytes, _bytes(item.size)
    return VolumeRow(
        namespace=item.namespace,
        name=item.name,
        owner=item.owner,
        hue=hue,
        state="" if item.state == "Bound" else item.state,
        tone={"Pending": "wait", "Lost": "bad"}.get(item.state, "done"),
        size=item.size,
        used=used,
        total=total,
        words=item.size
        if used is None
        else say("{used} of {size} in use", used=format_bytes(used), size=item.size),
        mode="one node at a time" if item.modes in ((RWO,), ("ReadWriteOncePod",)) else "many nodes at a time",
        storage_class=item.storage_class,
        used_by=item.used_by,
    )


def dataset_row(item: Dataset, hue: int, now: datetime) -> DatasetRow:
    state, progress = item.phase, item.progress or Progress()
    if item.reason == SHARED:
        done, total, words = 0, 0, item.size
    elif state == datasets.READY:
        done = total = item.bytes or 0
        words = f"{format_bytes(done)}, {_files(item.files or 0)}"
    else:
        done, total = progress.bytes, progress.bytes_total or 0
        words = f"{format_bytes(done)} of {format_bytes(total)}" if total else format_bytes(done)
        words = f"{words}, {_files(progress.files)}" if done or total else "nothing yet"
    return DatasetRow(
        namespace=item.namespace,
        name=item.name,
        owner=item.owner,
        hue=hue,
        state=state,
        tone=_DATASET_TONES.get(state, "done"),
        why=item.message if state != datasets.READY else "",
        source=item.source,
        words=words,
        done=done,
        total=total,
        readers=tuple(reader.tenant for reader in item.readers),
        users=tuple((use.namespace, use.name) for use in item.used_by if use.active),
        filled=ago(moment(item.filled_at), now) if state == datasets.READY else None,
        is_shared=item.reason == SHARED,
    )


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _bytes(text: str) -> int:
    try:
        return parse_count(text) if text else 0
    except QuantityError:
        return 0


def words_of(row: WorkspaceRow | JobRow | VolumeRow | DatasetRow) -> tuple[str, ...]:
    """The texts of a row, for the search in a list: the name with its namespace, the owner, and the
    content.
    """
    texts = (f"{row.namespace}/{row.name}", row.owner)
    match row:
        case JobRow():
            return (*texts, row.node, row.gpus, row.why)
        case WorkspaceRow():
            return (*texts, row.node, row.kind, row.size, row.why)
        case VolumeRow():
            return (*texts, row.storage_class, *row.used_by)
        case DatasetRow():
            return (*texts, row.source, *("/".join(user) for user in row.users))


def volume_state(row: VolumeRow) -> str:
    """The name of a volume's state. The rows leave the normal state "Bound" empty."""
    return row.state or "Bound"
