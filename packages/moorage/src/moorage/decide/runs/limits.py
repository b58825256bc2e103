"""The limits of a run: CPU, memory, time, grace and restarts (R4, R6)."""

from __future__ import annotations

from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import ClusterFacts, RunRequest
from moorage.decide.runs.timelimit import TIME_FORMAT_HINT, TIME_RANGE, format_seconds, parse_time
from moorage.model.names import RESTART_LIMIT

GRACE_SECONDS = 30  # Kubernetes' own default
CHECKPOINT_GRACE_SECONDS = 120  # a run that keeps checkpoints gets the time to write another
GRACE_MAX_SECONDS = 24 * 3600
RETRIES_MAX = 2**31 - 1  # the maximum of a Job's backoffLimit
RESTART_LIMIT_MAX = 998  # attempts are numbered with three digits


def cpu_and_memory(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> dict[str, str]:
    """The CPU and memory amounts of a run. Without "memory" if the user wants no limit.

    Empty if a machine is requested: the machine defines the size.
    """
    if request.gpus < 0:
        remarks.refuse("gpus", f"invalid number of GPUs {request.gpus}: use 0 or more")
    if not 0 <= request.retries <= RETRIES_MAX:
        remarks.refuse("retries", f"invalid number of retries {request.retries}: use 0 to {RETRIES_MAX}")
    if request.machine is not None:
        return {}
    defaults = facts.defaults
    amounts: dict[str, str] = {}
    if cpu := remarks.quantity("cpu", "cpu", request.cpu if request.cpu is not None else defaults.cpu):
        amounts["cpu"] = cpu
    if request.memory is None:
        amounts["memory"] = defaults.memory
        remarks.note(
            f"no memory given: limited to {defaults.memory}, {defaults.origin};"
            " a job that grows beyond it is killed"
        )
    elif request.memory.lower() != "none":
        if memory := remarks.quantity("memory", "memory", request.memory):
            amounts["memory"] = memory
    else:
        _check_unlimited(request, remarks)
    return amounts


def _check_unlimited(request: RunRequest, remarks: Remarks) -> None:
    """R6: refuse restarts of a run without a memory limit."""
    remarks.note("memory none: no limit, so this run is never restarted")
    given = (("retries", "retries", request.retries), ("restartLimit", "restart limit", request.restart_limit))
    for field, noun, value in given:
        if value:
            remarks.refuse(
                field,
                f"{noun} {value} cannot be combined with memory none: retries without a limit could fill one"
                " node after another",
                f"give a memory limit, or leave out the {noun}",
            )


def time_limit(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> int | None:
    """The time limit in seconds; None: no limit."""
    if request.time is None:
        default = facts.defaults.seconds
        if default is not None:
            remarks.note(f"no time limit given: stopped after {format_seconds(default)}, {facts.defaults.origin}")
        return default
    try:
        seconds = parse_time(request.time)
    except ValueError:
        message = f"invalid time limit {request.time!r}: the range is {TIME_RANGE}"
        remarks.refuse("time", message, TIME_FORMAT_HINT)
        return None
    if request.retries:
        remarks.note(
            f"the time limit of {format_seconds(seconds)} holds for each of the {request.retries + 1} tries"
        )
    return seconds


def grace_period(request: RunRequest, remarks: Remarks, *, keeps_checkpoints: bool) -> int:
    """The grace period: seconds between the end request and the kill."""
    grace = request.grace_period_seconds
    if grace is None:
        return CHECKPOINT_GRACE_SECONDS if keeps_checkpoints else GRACE_SECONDS
    if not 1 <= grace <= GRACE_MAX_SECONDS:
        remarks.refuse("gracePeriodSeconds", f"invalid grace period {grace}: use 1 to {GRACE_MAX_SECONDS} seconds")
    return grace


def restart_limit(request: RunRequest, facts: ClusterFacts, remarks: Remarks) -> int:
    """The number of restarts after disruptions."""
    limit = request.restart_limit
    most = RESTART_LIMIT_MAX if facts.defaults.restart_limit is None else facts.defaults.restart_limit
    if limit is not None and not 0 <= limit <= most:
        remarks.refuse("restartLimit", f"invalid restart limit {limit}: use 0 to {most}")
    if request.memory is not None and request.memory.lower() == "none":
        return 0
    return min(RESTART_LIMIT, most) if limit is None else limit
