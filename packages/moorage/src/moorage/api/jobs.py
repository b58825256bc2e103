"""API types of runs: `/api/v1/jobs`, `moor jobs -o json` and `moor show -o json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Name, Query, Request, Text, Time, about
from moorage_kube.integers import INT32_MAX

SORTS = ("age", "gpus", "name")  # newest first, most GPUs first, from a to z
ENDED = ("Succeeded", "Failed", "OOMKilled", "Cancelled", "Deleted")  # states of a run that do not change any more
STATES = ("Waiting", "Running", "Restarting", "Suspended", *ENDED)
WORDS_MAX = 4096  # of a command


class NewJob(Request):
    """A run to start; string values have the format of the options of `moor run`."""

    command: Annotated[
        list[str], msgspec.Meta(min_length=1, max_length=WORDS_MAX), about("Command with its arguments.")
    ]
    namespace: Name
    name: Annotated[str | None, about("Name of the run; left out: made from the command.")] = None
    image: Annotated[str | None, about("Container image; left out: the tenant's default.")] = None
    user: Annotated[
        str | None,
        about("User and group that the command runs as, UID[:GID]; left out: the image's, or the namespace's."),
    ] = None
    env: Annotated[dict[str, str], about("Environment variables of the command.")] = {}
    secrets: Annotated[
        list[str], about("Secrets as variables or files: NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH.")
    ] = []
    labels: Annotated[dict[str, str], about("Labels of the run, on its Jobs and pods.")] = {}
    gpus: Annotated[int, about("Number of GPUs.")] = 0
    gpu_type: Annotated[str | None, about("GPU type, such as a100; left out: any.")] = None
    gpu_resource: Annotated[
        str | None, about("Resource that counts as a GPU, such as nvidia.com/mig-1g.10gb.")
    ] = None
    gpu_claim: Annotated[
        str | None, about("ResourceClaimTemplate by which it claims GPUs, instead of `gpus`.")
    ] = None
    machine: Annotated[
        str | None, about("Machine that it runs on, GROUP/TYPE, instead of `gpus`, `cpu` and `memory`.")
    ] = None
    cpu: Annotated[
        str | int | float | None, about("CPUs, such as 4 or 500m; left out: the tenant's default, or 1.")
    ] = None
    memory: Annotated[
        str | None, about("Memory limit, such as 8Gi, or none; left out: the tenant's default, or 2Gi.")
    ] = None
    time: Annotated[
        str | None, about("Longest running time, such as 2h, 90m or 1d12h; left out: the tenant's, or none.")
    ] = None
    volumes: Annotated[list[str], about("Volumes to mount, each NAME:/PATH or NAME:/PATH:ro.")] = []
    datasets: Annotated[list[str], about("Datasets to mount read-only, each [NAMESPACE/]NAME:/PATH.")] = []
    checkpoint: Annotated[
        str | None, about("Volume for checkpoints, NAME[:SIZE]; created when absent (10Gi).")
    ] = None
    working_dir: Annotated[str | None, about("Working directory in a volume, NAME:PATH.")] = None
    code_of: Annotated[
        str | None, about("Run, [NAMESPACE/]NAME: on a local cluster, the new run starts in a copy of its code.")
    ] = None
    git: Annotated[
        str | None, about("Git repository of the code, URL[@REF]; it is cloned in the pod, with the image's git.")
    ] = None
    grace_period_seconds: Annotated[
        int | None, about("Seconds between SIGTERM and SIGKILL; left out: 30, or 120 with a checkpoint.")
    ] = None
    priority_class: Annotated[str | None, about("PriorityClass of the pods.")] = None
    queue: Annotated[
        str | None, about("LocalQueue of Kueue, in whose quota it runs; left out: `default`, or none.")
    ] = None
    retries: Annotated[int, about("Further tries after the command fails, but not after a kill for memory.")] = 0
    restart_limit: Annotated[
        int | None, about("Restarts after preemption, drain or node loss; left out: 20, or the tenant's maximum.")
    ] = None
    share: Annotated[
        bool | None,
        about(
            "Whether it takes turns on GPUs where its tenant shares them by time; left out: as the tenant has it."
        ),
    ] = None
    host_env: Annotated[
        bool, about("On a local cluster: run the image's command in this machine's environment.")
    ] = False
    dry_run: Annotated[bool, about("Check the request; create nothing.")] = False


class JobChoice(Query):
    """Filters of a list of runs. A filter that is left out selects all runs."""

    namespace: Annotated[Text | None, about("Only runs of this namespace.")] = None
    owner: Annotated[Text | None, about("Only runs of this user.")] = None
    mine: Annotated[bool, about("Only your runs.")] = False
    active: Annotated[bool, about("Only runs that have not ended.")] = False
    state: Annotated[Text | None, about("Only runs in this state, such as Running.")] = None
    gpu_type: Annotated[Text | None, about("Only runs that have, or ask for, GPUs of this type.")] = None
    selector: Annotated[
        Text | None,
        about("Only runs whose labels match, such as project=vision,stage!=test; only where you may read Jobs."),
    ] = None
    since: Annotated[
        Text | None,
        about("Only runs created from this moment on: a span before now (2h, 7d), a day or RFC 3339."),
    ] = None
    sort: Annotated[Text | None, about("age (newest first), gpus (most first) or name.")] = None
    limit: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)] | None, about("At most this number of runs.")
    ] = None
    attempts: Annotated[
        bool, about("Each run as it is shown alone, with its attempts; only where you may list Jobs.")
    ] = False


class JobEnd(Query):
    """Whether to delete a run in addition to its cancellation."""

    delete: Annotated[
        bool | None, about("true: delete it too; false: only cancel; left out: delete if it has ended.")
    ] = None


class JobLogs(Query):
    """The part of the logs to return."""

    follow: Annotated[bool, about("Go on until the run has ended.")] = False
    attempt: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)] | None, about("Only this attempt; left out: all.")
    ] = None
    tail: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)] | None,
        about("Only the last lines of each pod; left out: all."),
    ] = None


class RunPod(Answer, frozen=True):
    """A pod of a run."""

    name: str
    phase: Annotated[str, about("Phase of the pod: Pending, Running, Succeeded, Failed or Unknown.")] = ""
    node: Annotated[str, about("Node that the pod runs on; empty: not placed yet.")] = ""
    started: Annotated[Time | None, about("When its container started; null: not yet.")] = None
    ended: Annotated[Time | None, about("When its container ended; null: not yet.")] = None
    exit_code: Annotated[int | None, about("Exit code of its container; null: not ended, or not known.")] = None
    reason: Annotated[str, about("Why it waits or failed, one word such as OOMKilled or Evicted.")] = ""
    message: Annotated[str, about("Reason as a sentence; only for users who may read its Job.")] = ""
    memory_limit_bytes: Annotated[
        int | None, about("Memory limit in bytes; null: none, or hidden as `message`.")
    ] = None
    peak_memory_bytes: Annotated[
        int | None, about("Highest memory use in bytes; null: not measured, or hidden as `message`.")
    ] = None
    gone: Annotated[bool, about("Whether it no longer exists: these are the facts that the server keeps.")] = False

    @property
    def is_lost(self) -> bool:
        """Whether the pod ran and was deleted before a kubelet reported its end: node lost, or forced deletion."""
        return self.gone and self.started is not None and self.exit_code is None


class Attempt(Answer, frozen=True):
    """An attempt of a run: one Kubernetes Job."""

    number: Annotated[int, about("Number of the attempt in its run.")]
    state: Annotated[str, about("Waiting, Running, Suspended, Succeeded, Failed or Deleted.")] = ""
    reason: Annotated[str, about("Reason of the Job's last condition, one word.")] = ""
    cause: Annotated[str, about("Why it failed, such as disrupted or failed by itself; empty: it did not.")] = ""
    message: Annotated[str, about("Message of the Job's condition; only for users who may read its Job.")] = ""
    job: Annotated[str, about("Name of its Kubernetes Job; only for users who may read its Job.")] = ""
    created: Annotated[Time | None, about("When its Job was created.")] = None
    ended: Annotated[Time | None, about("When its Job ended; null: not yet.")] = None
    pods: Annotated[tuple[RunPod, ...], about("Pods, also those that no longer exist, oldest first.")] = ()


class JobSummary(Answer, frozen=True):
    """The facts of a run that all users may read."""

    namespace: str
    name: str
    owner: Annotated[str, about("User who started it.")] = ""
    state: Annotated[
        str,
        about(
            "Waiting, Running, Restarting, Suspended, Succeeded, Failed, OOMKilled, Cancelled or Deleted; the last"
            " five have ended. Deleted: its Jobs no longer exist, and the server shows its record."
        ),
    ] = ""
    reason: Annotated[str, about("Why it waits or ended; empty: nothing to say.")] = ""
    gpus: Annotated[int, about("GPUs that it asks for.")] = 0
    gpu_type: Annotated[str, about("GPU type that it runs on, else asks for; empty: any, or none.")] = ""
    node: Annotated[
        str, about("Node of its newest pod, also after that pod is deleted; empty: not placed, or not recorded.")
    ] = ""
    created: Annotated[Time | None, about("When the run was submitted.")] = None
    started: Annotated[Time | None, about("When it first started; null: not yet.")] = None
    ended: Annotated[Time | None, about("When it ended; null: not yet.")] = None
    attempts: Annotated[int, about("Attempts so far; each is a Kubernetes Job.")] = 0
    restarts: Annotated[int, about("Restarts so far after preemption, drain or node loss.")] = 0
    restart_limit: Annotated[int | None, about("Restarts allowed after preemption, drain or node loss.")] = None
    retries: Annotated[int, about("Pods created after a pod of the same attempt failed by itself.")] = 0
    exit_code: Annotated[int | None, about("Exit code of the newest pod that ended; null: none has.")] = None
    checkpoint: Annotated[str, about("PersistentVolumeClaim of its checkpoints; empty: none.")] = ""
    checkpoint_from: Annotated[
        str, about("Run whose checkpoint it continued when it was submitted; empty: none.")
    ] = ""
    checkpoint_at: Annotated[
        Time | None, about("When the newest checkpoint file was written; null: none yet.")
    ] = None
    checkpoint_checked_at: Annotated[
        Time | None, about("When the run last looked for checkpoints; null: not yet.")
    ] = None

    idle_since: Annotated[
        Time | None, about("It holds GPUs and has not used them since then; null: it is in use, or has ended.")
    ] = None
    idle_next: Annotated[
        str, about("Next step unless it is used: warn, remind, suspend, end (of its snooze); empty: none.")
    ] = ""
    idle_next_at: Annotated[Time | None, about("When that comes; null: nothing comes.")] = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class Code(Answer, frozen=True):
    """The code of a run: the files of the folder in which it was submitted."""

    files: Annotated[int, about("Number of its files.")]
    bytes: Annotated[int, about("Size of its files.")]
    digest: Annotated[str, about("SHA-256 of its files, in hex.")]
    commit: Annotated[str, about("Git commit, in hex; empty: not in a git repository.")] = ""
    dirty: Annotated[bool, about("Whether the files differ from the commit.")] = False
    diff: Annotated[str, about("The difference to the commit, its first 16 KiB; empty: none.")] = ""


class Job(JobSummary, frozen=True):
    """A run with its attempts."""

    history: Annotated[tuple[Attempt, ...], about("Attempts, oldest first.")] = ()
    command: Annotated[str, about("Command line; only for users who may read its Job.")] = ""
    requests: Annotated[
        Mapping[str, str],
        about("Requested resources as Kubernetes quantities; only for users who may read its Job."),
    ] = {}
    labels: Annotated[
        Mapping[str, str], about("Labels that its user gave it; only for users who may read its Job.")
    ] = {}
    code: Annotated[Code | None, about("Its code; null: it has none, or hidden as `command`.")] = None
    git: Annotated[
        str,
        about("Git commit that it has checked out, URL@COMMIT; empty: none, or hidden as `command`."),
    ] = ""
    outputs: Annotated[
        str, about("On a local cluster: the folder in which it starts. Only for users who may read its Job.")
    ] = ""
    time_left_seconds: Annotated[
        int | None, about("Seconds until its time limit; null: no limit, or hidden as `command`.")
    ] = None
    deadline: Annotated[
        Time | None, about("When its time limit ends it; null: no limit, it does not run, or hidden as `command`.")
    ] = None
    time_limit_seconds: Annotated[
        int | None,
        about("Its running time over all attempts ends at this; null: no limit, or hidden as `command`."),
    ] = None
    waited_seconds: Annotated[
        int | None, about("Seconds from its creation to its first start, or until now; null: not known.")
    ] = None
    ran_seconds: Annotated[
        int | None, about("Running time of all its pods in seconds; null: none has started, or not known.")
    ] = None
    notes: Annotated[tuple[str, ...], about("After a submit: defaults that were filled in, and advice.")] = ()


class JobList(Answer, frozen=True):
    """The runs at one moment."""

    now: Annotated[Time, about("Moment that the answer describes.")]
    jobs: Annotated[tuple[JobSummary, ...], about("Runs, newest first.")] = ()


class JobDetails(JobList, frozen=True):
    """Runs at a moment, each with the details of a single run."""

    jobs: tuple[Job, ...] = ()
