"""Runs on the wire: `/api/v1/jobs`, `moor jobs -o json` and `moor show -o json`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Name, Query, Request, Text
from moorage.apimachinery.integers import INT32_MAX

ENDED = ("Succeeded", "Failed", "OOMKilled", "Cancelled")  # states of a run that do not change any more
WORDS_MAX = 4096  # of a command


class NewJob(Request):
    """A run to start; texts as the options of `moor run` have them. `name` None: made from the command."""

    command: Annotated[list[str], msgspec.Meta(min_length=1, max_length=WORDS_MAX)]
    namespace: Name
    name: str | None = None
    image: str | None = None
    env: dict[str, str] = {}
    gpus: int = 0
    gpu_type: str | None = None
    gpu_resource: str | None = None
    cpu: str | None = None
    memory: str | None = None
    time: str | None = None
    volumes: list[str] = []
    datasets: list[str] = []
    checkpoint: str | None = None
    workdir: str | None = None
    grace: int | None = None
    priority_class: str | None = None
    retries: int = 0
    restart_limit: int | None = None
    host_env: bool = False
    dry_run: bool = False


class JobChoice(Query):
    """Which runs a listing has; None: all."""

    namespace: Text | None = None
    owner: Text | None = None
    state: Text | None = None


class JobEnd(Query):
    """`delete`: whether the run is deleted too; None: if it has ended."""

    delete: bool | None = None


class JobLogs(Query):
    """`follow`: until the run has ended; `tail`: the last lines of each pod."""

    follow: bool = False
    tail: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)] | None = None


class RunPod(Answer, frozen=True):
    """A pod of a run. `message` and memory are for those who may read its Job."""

    name: str
    phase: str = ""
    node: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    memory_limit_bytes: int | None = None
    peak_memory_bytes: int | None = None


class Attempt(Answer, frozen=True):
    """`state`: Waiting, Running, Suspended, Succeeded or Failed; `cause`: why it failed.

    `job` (its Kubernetes Job) and `message` are for those who may read that Job.
    """

    number: int
    state: str = ""
    reason: str = ""
    cause: str = ""
    message: str = ""
    job: str = ""
    created: datetime | None = None
    ended: datetime | None = None
    pods: tuple[RunPod, ...] = ()


class JobSummary(Answer, frozen=True):
    """What everybody may know of a run, as the server lists it.

    `state`: Waiting, Running, Restarting; or, of a run that has ended, Succeeded, Failed, OOMKilled or Cancelled.
    """

    namespace: str
    name: str
    owner: str = ""
    state: str = ""
    reason: str = ""
    gpus: int = 0
    gpu_type: str = ""
    node: str = ""
    created: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    attempts: int = 0
    restarts: int = 0
    restart_limit: int | None = None
    retries: int = 0  # pods made after a pod of the same attempt failed by itself
    exit_code: int | None = None  # of the newest pod that ended
    checkpoint: str = ""
    checkpoint_at: datetime | None = None
    checkpoint_checked_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class Job(JobSummary, frozen=True):
    """A run with its attempts.

    `command`, `requests` and `time_left_seconds` are for those who may read its Job, empty for others.
    """

    history: tuple[Attempt, ...] = ()
    command: str = ""
    requests: Mapping[str, str] = {}
    time_left_seconds: int | None = None
    notes: tuple[str, ...] = ()  # of a run that was just submitted: what was filled in, what is to be known


class JobList(Answer, frozen=True):
    """Runs, newest first, at a moment."""

    now: datetime
    jobs: tuple[JobSummary, ...] = ()
