"""API types of explanations: `/api/v1/explain`, `moor explain -o json`. Amounts are Kubernetes quantities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Query, Text, Time, about


class PodQuestion(msgspec.Struct, kw_only=True):
    """A pod that is not created yet, and the claims of its namespace that its user may see."""

    pod: Annotated[dict[str, Any], about("A `v1.Pod` that is not created yet.")]
    claims: Annotated[
        list[dict[str, Any]] | None,
        about("PersistentVolumeClaims of its namespace; null: the caller cannot read them."),
    ] = None
    refused: Annotated[str, about("Why the API server would not create it, in its words; empty: it would.")] = ""


class UsualTime(Answer, frozen=True):
    """The durations of similar past runs."""

    seconds: Annotated[
        int | None, about("Time by which `done` runs had ended, from their start; null: no forecast.")
    ] = None
    done: Annotated[int, about("How many of `of` had ended by `seconds`.")] = 0
    of: Annotated[int, about("Past runs that took longer than this run has already.")] = 0
    known: Annotated[int, about("All past runs that are alike.")] = 0
    likeness: Annotated[str, about("Alike in: work (image, command), name, owner or type (of GPU).")] = ""


class HolderName(Answer, frozen=True):
    """A pod that has or requests a resource."""

    owner: Annotated[str, about("User of the pod.")] = ""
    run: Annotated[str, about("Run of the pod; empty: the pod belongs to no run.")] = ""
    step: Annotated[str, about("Step of a workflow, as WORKFLOW/STEP; empty: the pod belongs to none.")] = ""
    namespace: Annotated[str, about("Namespace of the pod.")] = ""
    pod: Annotated[str, about("Name of the pod.")] = ""


class HeldBy(HolderName, frozen=True):
    """A pod that holds a missing resource."""

    since: Annotated[Time | None, about("When the pod started; null: not yet.")] = None
    expected_until: Annotated[Time | None, about("When its time limit ends; null: no limit.")] = None
    node: Annotated[str, about("Node where it holds the resource.")] = ""
    resource: Annotated[str, about("Resource that it holds, such as nvidia.com/gpu.")] = ""
    amount: Annotated[str, about("How much it holds, a Kubernetes quantity.")] = ""
    sure: Annotated[str, about("Basis of its end: limit (enforced), usual (past runs) or unknown.")] = ""
    usual_until: Annotated[
        Time | None, about("When past runs like it had ended, from its start; null: no forecast.")
    ] = None
    usual: Annotated[UsualTime | None, about("Past runs behind `usualUntil`; null: none.")] = None
    reserved_for: Annotated[str, about("GROUP/TYPE of the Machine that keeps the place; empty: a user's pod.")] = (
        ""
    )


class Waiter(HolderName, frozen=True):
    """A pod that is scheduled before this one."""

    priority: Annotated[int, about("Priority of the pod; higher comes first.")] = 0
    created: Annotated[Time | None, about("When the pod was created.")] = None
    gpus: Annotated[int, about("GPUs that it asks for.")] = 0


class Earliest(Answer, frozen=True):
    """When and where it can start, and the pod that makes room by its end."""

    at: Annotated[Time, about("When it can start.")]
    node: Annotated[str, about("Node where it can start.")] = ""
    after: Annotated[HolderName | None, about("Pod whose end makes room; null: there is room.")] = None
    usual: Annotated[
        UsualTime | None, about("Past runs that the end of `after` is forecast by; null: its limit.")
    ] = None


class NodeVerdict(Answer, frozen=True):
    """Whether a pod fits on a node, with every reason if it does not."""

    name: Annotated[str, about("Name of the node.")]
    gpu_type: Annotated[str, about("GPU type of the node; empty: no GPUs.")] = ""
    gpus: Annotated[int, about("GPUs of the node.")] = 0
    gpus_free: Annotated[int, about("Free GPUs of the node.")] = 0
    fits: Annotated[bool, about("Whether the pod could start there now.")] = False
    reasons: Annotated[tuple[str, ...], about("Every reason why it does not fit; empty: it fits.")] = ()


class MissingResource(Answer, frozen=True):
    """A resource of which every node has too little free."""

    resource: Annotated[str, about("Name of the resource, such as memory or nvidia.com/gpu.")]
    gpu_types: Annotated[tuple[str, ...], about("GPU types that it asks for; empty: any.")] = ()
    asks: Annotated[str, about("How much it asks for, a Kubernetes quantity.")] = ""
    most_free: Annotated[str, about("Most that is free on one node, a Kubernetes quantity.")] = ""
    most_free_node: Annotated[str, about("Node with the most free; empty: the pod may not use any node.")] = ""
    free_in_total: Annotated[str, about("Free on all nodes together, a Kubernetes quantity.")] = ""


class MachineLine(Answer, frozen=True):
    """The machine type of the pod: its machines, and the reservation for which a free machine waits."""

    group: Annotated[str, about("Group of the Machine.")]
    type: Annotated[str, about("Machine type.")] = ""
    order: Annotated[str, about("Order of its queue: fifo or fair; empty: not known.")] = ""
    available: Annotated[int, about("Machines of the type that are held for guests.")] = 0
    used: Annotated[int, about("Machines that guests hold, or are about to get.")] = 0
    known: Annotated[bool, about("false: no such Machine exists.")] = True
    waits_for: Annotated[str, about("Reservation for which a free machine waits, a sentence; empty: none.")] = ""
    waits_until: Annotated[Time | None, about("When that reservation ends; null: none.")] = None


class VolumeTrouble(Answer, frozen=True):
    """A claim that prevents a pod from starting."""

    claim: Annotated[str, about("PersistentVolumeClaim that keeps the pod from starting.")]
    message: Annotated[str, about("Problem of the claim, a sentence without a subject.")] = ""


class SmallerRequest(Answer, frozen=True):
    """A smaller request with which the pod would start now."""

    gpus: Annotated[int, about("GPUs to ask for.")] = 0
    gpu_types: Annotated[tuple[str, ...], about("GPU types to ask for; empty: any.")] = ()
    node: Annotated[str, about("Node where it would start.")] = ""
    node_type: Annotated[str, about("GPU type of that node.")] = ""
    change: Annotated[str, about("The difference, for people, such as 1 GPU or 4 cpu.")] = ""
    options: Annotated[str, about("Options of `moor run` that ask for it.")] = ""


class Refusal(Answer, frozen=True):
    """Why it can never run on the present cluster."""

    code: Annotated[
        str, about("One word: no_gpus, unknown_gpu_type, unknown_resource, more_than_any_node or no_node_accepts.")
    ]
    message: Annotated[str, about("Why it cannot run, a sentence.")] = ""
    hint: Annotated[str, about("How to fix it; empty: no suggestion.")] = ""


class Explanation(Answer, frozen=True):
    """Why a run or a pod waits."""

    namespace: str
    name: str
    run: Annotated[str, about("Run of the pod; empty: the pod belongs to no run.")] = ""
    step: Annotated[str, about("Step of a workflow, as WORKFLOW/STEP; empty: the pod belongs to none.")] = ""
    owner: Annotated[str, about("User of the pod.")] = ""
    public: Annotated[bool, about("Whether private facts are left out: the user may not read its pods.")] = False
    state: Annotated[str, about("fits, waiting, gated, never, running or finished.")] = ""
    now: Annotated[Time | None, about("Moment that the answer describes.")] = None
    asks: Annotated[Mapping[str, str], about("Resources that it asks for, as Kubernetes quantities.")] = {}
    gpus: Annotated[int, about("GPUs that it asks for.")] = 0
    gpu_types: Annotated[tuple[str, ...], about("GPU types that it asks for; empty: any.")] = ()
    node: Annotated[str, about("Node where it runs, or (state fits) would start; empty: none.")] = ""
    since: Annotated[Time | None, about("When it started; null: not yet.")] = None
    expected_until: Annotated[Time | None, about("When its time limit ends; null: no limit, or not started.")] = (
        None
    )
    usual_until: Annotated[
        Time | None, about("When past runs like it had ended, from its start; null: no forecast.")
    ] = None
    usual: Annotated[UsualTime | None, about("Past runs behind `usualUntil`; null: none.")] = None
    starting: Annotated[str, about("Why its containers do not run yet, though it has a node.")] = ""
    starting_container: Annotated[str, about("Container that keeps it from running; empty: none.")] = ""
    starting_image: Annotated[str, about("Image of that container.")] = ""
    starting_message: Annotated[str, about("Message of the kubelet on that container, a sentence.")] = ""
    run_state: Annotated[str, about("State of a run that ended or restarts, such as Failed; else empty.")] = ""
    ended: Annotated[Time | None, about("When the run ended; null: it has not, or it is not known.")] = None
    exit_code: Annotated[int | None, about("Exit code of a run that has ended; null: not known.")] = None
    reason: Annotated[str, about("Why a run ended or restarts, as in the list of runs.")] = ""
    nodes: Annotated[tuple[NodeVerdict, ...], about("Each node, and whether it fits there.")] = ()
    missing: Annotated[
        tuple[MissingResource, ...], about("Resources of which every node has too little free.")
    ] = ()
    obstacles: Annotated[
        tuple[str, ...], about("Why nodes that could serve it take no pods: cordoned, not Ready.")
    ] = ()
    held_by: Annotated[tuple[HeldBy, ...], about("Pods that hold the missing resources.")] = ()
    earliest: Annotated[Earliest | None, about("Forecast if pods end at their time limits; null: none.")] = None
    likely: Annotated[Earliest | None, about("Sooner forecast if pods take as long as usual; null: none.")] = None
    position: Annotated[int | None, about("Place in the queue, 1: next; null: not known.")] = None
    line: Annotated[tuple[Waiter, ...], about("Pods before it in the queue, the first first.")] = ()
    machine: Annotated[MachineLine | None, about("Machine type that it waits for; null: none.")] = None
    gates: Annotated[
        tuple[str, ...], about("Scheduling gates that hold it; other parties' gates may be hidden.")
    ] = ()
    missing_claims: Annotated[tuple[str, ...], about("PersistentVolumeClaims that do not exist.")] = ()
    volumes: Annotated[
        tuple[VolumeTrouble, ...], about("PersistentVolumeClaims that keep it from starting, missing ones too.")
    ] = ()
    quota: Annotated[str, about("Message of the API server on an exceeded quota; empty: none.")] = ""
    not_made: Annotated[str, about("Why the pod cannot be created, in the API server's words; empty: it can.")] = (
        ""
    )
    suspended: Annotated[bool, about("Whether its Job is suspended.")] = False
    queue: Annotated[str, about("Queue of Kueue that holds its Job; empty: none does.")] = ""
    queue_message: Annotated[str, about("Message of Kueue, a sentence; empty: not known.")] = ""
    scheduler_says: Annotated[str, about("Last message of the scheduler; empty: none.")] = ""
    smaller: Annotated[
        tuple[SmallerRequest, ...],
        about("Smaller or other requests that would start now, the smallest change first."),
    ] = ()
    refusals: Annotated[tuple[Refusal, ...], about("Why it can never run on this cluster; empty: it can.")] = ()
    short: Annotated[str, about("Why it waits, in one line; empty: it does not wait.")] = ""
    text: Annotated[str, about("All of it as text, as `moor explain` prints it.")] = ""


class LockHolder(Answer, frozen=True):
    """A step, or a whole workflow, that holds a mutex or a semaphore."""

    lock: Annotated[str, about("Mutex/NAMESPACE/NAME or Semaphore/NAMESPACE/CONFIGMAP/KEY.")]
    namespace: Annotated[str, about("Namespace of the workflow that holds it.")] = ""
    workflow: Annotated[str, about("Name of that workflow.")] = ""
    step: Annotated[str, about("Step of it that holds the lock; the name of the workflow: the whole of it.")] = ""
    since: Annotated[Time | None, about("When that step started; null: not known.")] = None


class StepRunning(Answer, frozen=True):
    """A running step of a workflow."""

    step: Annotated[str, about("Name of the step, without that of the workflow.")]
    pod: Annotated[str, about("Name of its pod.")] = ""
    node: Annotated[str, about("Node where it runs; empty: not known.")] = ""
    since: Annotated[Time | None, about("When it started; null: not known.")] = None
    note: Annotated[str, about("Why it still runs, where its command has ended; else empty.")] = ""


class WorkflowWait(Answer, frozen=True):
    """A reason for which steps of a workflow wait."""

    kind: Annotated[
        str,
        about("pod, refused, lock, backoff, person, suspended, parallelism, earlier or beginning."),
    ]
    message: Annotated[str, about("Reason for which they wait, a sentence.")] = ""
    hint: Annotated[str, about("How to fix it; empty: no suggestion.")] = ""
    steps: Annotated[
        tuple[str, ...], about("The first steps that wait for it; empty: steps that have not begun.")
    ] = ()
    count: Annotated[int, about("All steps that wait for it; 0: not known.")] = 0
    until: Annotated[Time | None, about("When they go on by themselves; null: not known.")] = None
    pod: Annotated[str, about("Pod of the first of them; empty: none.")] = ""
    holders: Annotated[tuple[LockHolder, ...], about("Holders of the locks that they wait for.")] = ()
    explanation: Annotated[
        Explanation | None, about("Why the pod of the first of them waits; null: it waits for something else.")
    ] = None


class WorkflowExplanation(Answer, frozen=True):
    """The running steps of a workflow, and the reasons why the others wait."""

    namespace: str
    name: str
    step: Annotated[str, about("Step that was asked about; empty: the whole workflow.")] = ""
    owner: Annotated[str, about("User who submitted it; of a scheduled one, the owner of the schedule.")] = ""
    phase: Annotated[str, about("Pending, Running, Succeeded, Failed or Error.")] = ""
    message: Annotated[str, about("Message of the workflow, or of the step that ended.")] = ""
    now: Annotated[Time | None, about("Moment that the answer describes.")] = None
    running: Annotated[tuple[StepRunning, ...], about("Steps whose pods run.")] = ()
    waits: Annotated[tuple[WorkflowWait, ...], about("Reasons for which steps wait; empty: none waits.")] = ()
    short: Annotated[str, about("Why it waits, in one line; empty: nothing waits.")] = ""
    text: Annotated[str, about("All of it for people, as `moor explain` prints it.")] = ""


class StepQuery(Query):
    """The step to explain."""

    step: Annotated[Text, about("Name of a step; left out: the whole workflow.")] = ""
