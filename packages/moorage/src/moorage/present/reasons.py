"""Reasons of Kubernetes in our sentences: one table for the command line and the pages. Pure.

A text that the table does not know is shown as it is.
"""

from __future__ import annotations

from msgspec import Struct


class Reason(Struct, frozen=True):
    """Our sentence for a reason, and how messages of Kubernetes begin that add nothing to it."""

    ours: str
    empty: tuple[str, ...] = ()


POLICY = "PodFailurePolicy"  # of a Job: its message names only the rule that stopped it
_BY_ITSELF = "failed by itself"
_UNPULLED = "its image cannot be pulled: check its name and tag, and whether its registry needs a login"
_NOT_STARTED = "its container could not start: check the command and the image"
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
DISRUPTIONS = {
    "EvictionByEvictionAPI": Reason("its node was drained, or a user evicted its pod", ("Eviction API: ",)),
    "PreemptionByScheduler": Reason(
        "a run of a higher priority took its place",
        ("default-scheduler: preempting", "kube-scheduler: preempting"),
    ),
    "DeletionByTaintManager": Reason("its node did not answer, or refuses its pod", ("Taint manager: ",)),
    "DeletionByPodGC": Reason("its node was deleted", ("PodGC: ",)),
    "TerminationByKubelet": Reason("its node shut down, or had no room for it"),
    "NodeLost": Reason("its node did not answer"),
}
START_FAILURES = {
    name: Reason(_NOT_STARTED)
    for name in ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
}
WAITING = {  # of a container on its node
    "ImagePullBackOff": Reason(_UNPULLED, ("Back-off pulling image ",)),
    "ErrImagePull": Reason(_UNPULLED),
    "InvalidImageName": Reason("the name of its image is invalid"),
    "ImageInspectError": Reason("the image on the node is damaged: delete it there, or use another tag"),
    "RegistryUnavailable": Reason("the registry of its image does not answer"),
    "ErrImageNeverPull": Reason("its image is not on the node, and its pod forbids to pull it"),
    "CreateContainerConfigError": Reason("a Secret or ConfigMap that it names does not exist: create it"),
    "CreateContainerError": Reason("its container cannot be created: see the events of the run"),
    "RunContainerError": Reason("its container cannot start: check the command and the image"),
    "CrashLoopBackOff": Reason("its container ends soon after each start: read its log", ("back-off ",)),
    "ContainerCreating": Reason("its node pulls the image and mounts the volumes"),
    "PodInitializing": Reason("its node pulls the image and prepares the container"),
}
REASONS = (
    START_FAILURES
    | WAITING
    | DISRUPTIONS
    | {
        "BackoffLimitExceeded": Reason(
            "it failed, and has no retry left (--retries)", ("Job has reached the specified backoff limit",)
        ),
        "DeadlineExceeded": Reason(
            "it reached its time limit (--time), and was stopped",
            (
                "Job was active longer than specified deadline",
                "Pod was active on the node longer than the specified deadline",
            ),
        ),
        "Evicted": Reason("its node was short of memory or disk, and evicted it"),
        "Interrupted": Reason("its program ended after it was asked to stop, and has not finished"),
        POLICY: Reason("its pod was disrupted"),
        "SchedulingGated": Reason("it is held back for now", ("Scheduling is blocked",)),
        "Unschedulable": Reason("no room on any node now"),
    }
)
_OF_OPERATOR = ("RestartLimit", "TimeLimit", "Evicted", "Deleted", "OutOfMemory", "CannotRestart")


def reason_words(reason: str) -> str:
    """Our sentence for a reason; a sentence of the operator without the word before it; else the reason."""
    word, colon, sentence = reason.partition(": ")
    if colon and word in _OF_OPERATOR:
        return sentence
    return REASONS[reason].ours if reason in REASONS else reason


def message_words(reason: str, message: str) -> str:
    """The message of Kubernetes for a reason; our sentence where the message is missing or says no more."""
    known = REASONS.get(reason)
    if known is None or not (not message or message.startswith(known.empty)):
        return message or reason
    # "Back-off pulling image "x": ErrImagePull: not found": the cause comes last
    detail = message.partition(": ErrImagePull: ")[2]
    return f"{known.ours} ({detail})" if detail else known.ours


def attempt_words(cause: str, reason: str, message: str) -> str:
    """Why an attempt ended: its cause, with the message of its Job."""
    if cause and reason == POLICY:
        return cause
    words = message_words(reason, message)
    return ": ".join(part for part in ("" if cause == _BY_ITSELF else cause, words) if part)
