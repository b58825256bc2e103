"""The server's records of runs and workflows, also after their pods are deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from moorage.api.fields import Answer, Query, Text, Time, about


class StoredPod(Answer, frozen=True):
    """The record of a pod of a run or of a workflow step, also after the pod is deleted."""

    uid: str
    job_uid: Annotated[str, about("Uid of the Job of its attempt; of a step: of its Workflow.")]
    namespace: str
    run: Annotated[str, about("Its run; empty: it is of a step.")]
    attempt: Annotated[int, about("Number of the attempt in its run.")]
    name: str
    node: Annotated[str, about("Node that it ran on; empty: never placed.")] = ""
    phase: Annotated[str, about("Its last phase; Failed for a pod that was removed while it ran.")] = ""
    created: Annotated[Time | None, about("When it was created.")] = None
    started: Annotated[Time | None, about("When its container started; null: it did not.")] = None
    ended: Annotated[Time | None, about("When its container ended; null: not yet.")] = None
    exit_code: Annotated[int | None, about("Exit code of its container; null: not ended, or not known.")] = None
    reason: Annotated[str, about("Why it waits or ended, one word such as OOMKilled or Evicted.")] = ""
    message: Annotated[str, about("Reason as a sentence.")] = ""
    memory_limit_bytes: Annotated[int | None, about("Memory limit in bytes; null: none.")] = None
    peak_memory_bytes: Annotated[int | None, about("Highest memory use in bytes; null: not measured.")] = None
    gpus: Annotated[int, about("GPUs that it held.")] = 0
    gpu_type: Annotated[str, about("Type of these GPUs; empty: none, or not known.")] = ""
    disrupted: Annotated[bool, about("Whether Kubernetes marked it as a target of disruption.")] = False
    gone: Annotated[Time | None, about("When its deletion was noticed; null: it exists.")] = None
    workflow: Annotated[str, about("Workflow of its step; empty: it is of a run.")] = ""
    container: Annotated[str, about("Container whose log is the pod's; empty: not known.")] = ""


class StoredAttempt(Answer, frozen=True):
    """The record of the Job of an attempt, also after the Job is deleted."""

    job_uid: str
    run_uid: Annotated[str, about("Uid of the Job of the run's first attempt.")]
    namespace: str
    run: str
    number: Annotated[int, about("Number of the attempt in its run.")]
    document: Annotated[Mapping[str, Any], about("The fields of the Job that a run is shown by.")] = {}
    created: Annotated[Time | None, about("When the Job was created.")] = None
    gone: Annotated[Time | None, about("When its deletion was noticed; null: it exists.")] = None


class StoredRun(Answer, frozen=True):
    """The records of the newest run of a name, oldest first."""

    attempts: tuple[StoredAttempt, ...] = ()
    pods: tuple[StoredPod, ...] = ()


class WhichWorkflow(Query):
    """The workflow to choose if several have the same name."""

    uid: Annotated[Text, about("Uid of the Workflow; empty: the newest of the name.")] = ""


class WhichLog(WhichWorkflow):
    """The log to choose in a pod of a workflow."""

    container: Annotated[Text, about("Container of the pod; empty: the one whose log is the pod's.")] = ""


class WhichPods(WhichWorkflow):
    """The pods to choose in a workflow."""

    pod: Annotated[Text, about("Only pods of this name.")] = ""


class StoredSteps(Answer, frozen=True):
    """The records of the pods of a workflow's steps, in the order of their start."""

    pods: tuple[StoredPod, ...] = ()


class StoredLog(Answer, frozen=True):
    """The stored end of a container's log."""

    lines: Annotated[bytes, about("Lines, each after its time as the kubelet wrote it; in base64.")] = b""
    cut: Annotated[bool, about("Whether earlier lines were dropped.")] = False
    most_bytes: Annotated[int, about("Bytes that are stored of a log at most.")] = 0


class Erased(Answer, frozen=True):
    """The result of an erase request."""

    pods: Annotated[int, about("Number of pods of which facts and logs were erased.")] = 0
