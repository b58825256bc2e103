"""Decide whether and when a failed step gets another attempt.

https://argo-workflows.readthedocs.io/en/latest/retries/
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from moorage.decide.evaluation import TextError
from moorage_kube.moments import moment
from moorage_workflows.decide.workflows.graph.tasks import whole_number
from moorage_workflows.decide.workflows.text.durations import parse_duration
from moorage_workflows.model.workflow import NodePhase, NodeRecord

# Failures of the cluster rather than of the step, as texts in a node's message; the words of Kubernetes and of Go.
_TRANSIENT = re.compile(
    r"exceeded quota|the object has been modified|TooManyRequests|timed out|timeout|connection (?:refused|reset)"
    r"|etcdserver|i/o timeout|TLS handshake|no such host|unexpected EOF|pod deleted|too many requests",
    re.IGNORECASE,
)


class Again(Struct, frozen=True):
    """Start another attempt, but not before `at`."""

    at: datetime


class GiveUp(Struct, frozen=True):
    """Start no other attempt: the node gets the phase of its last attempt.

    `message`: the reason; `at`: the node must not end before this time (None: now).
    """

    message: str = ""
    at: datetime | None = None


def next_attempt(
    strategy: Mapping[str, Any],
    attempts: Sequence[NodeRecord],
    *,
    now: datetime,
    may: Callable[[str], bool],
    is_strict: bool = False,
) -> Again | GiveUp:
    """Decide after the last attempt failed. `may` evaluates `retryStrategy.expression`.

    Without a policy, an expression decides; without both, only a failure (no error) is tried again. Unlike
    Argo, policy and expression are looked at before the wait, and a backoff without a limit waits too; not
    so where `is_strict`. Raises TextError.
    """
    if not is_strict:
        return _next_attempt(strategy, attempts, now=now, may=may)
    backoff = strategy.get("backoff") if strategy.get("limit") is not None else None
    follows = _next_attempt({**strategy, "backoff": backoff}, attempts, now=now, may=may)
    if isinstance(follows, GiveUp) and backoff:
        wait = _next_attempt({"retryPolicy": "Always", "backoff": backoff}, attempts, now=now, may=may)
        follows = wait if isinstance(wait, GiveUp) else GiveUp(follows.message, wait.at)
    return follows


def _next_attempt(
    strategy: Mapping[str, Any], attempts: Sequence[NodeRecord], *, now: datetime, may: Callable[[str], bool]
) -> Again | GiveUp:
    last = attempts[-1]
    policy = strategy.get("retryPolicy") or ("Always" if strategy.get("expression") else "OnFailure")
    if not _allows(str(policy), last):
        return GiveUp(last.message)
    limit = whole_number(strategy.get("limit"), "retryStrategy.limit")
    if limit is not None and len(attempts) > limit:
        return GiveUp("No more retries left")
    if strategy.get("expression") and not may(str(strategy["expression"])):
        return GiveUp("retryStrategy.expression evaluated to false")
    backoff = strategy.get("backoff")
    if not backoff:
        return Again(now)
    wait = backoff_of(backoff, len(attempts))
    finished = moment(last.finished_at) or now
    at = finished + wait
    if backoff.get("maxDuration"):
        end = (moment(attempts[0].started_at) or now) + parse_duration(str(backoff["maxDuration"]))
        if now > end:
            return GiveUp("Max duration limit exceeded")
        if at > end:
            return GiveUp("Backoff would exceed max duration limit")
    return Again(max(at, now))


def backoff_of(backoff: Mapping[str, Any], attempts: int) -> timedelta:
    """Return the wait after the given number of attempts. Raises TextError."""
    wait = parse_duration(str(backoff.get("duration") or "0"))
    try:
        factor = float(backoff.get("factor") or 1)
        seconds = wait.total_seconds() * factor ** min(attempts - 1, 64)
    except (TypeError, ValueError, OverflowError):
        factor = math.nan
    if not math.isfinite(factor) or not math.isfinite(seconds):
        raise TextError(f"retryStrategy.backoff.factor must be a number, and is {backoff.get('factor')!r}")
    if backoff.get("cap"):
        seconds = min(seconds, parse_duration(str(backoff["cap"])).total_seconds())
    return timedelta(seconds=min(seconds, 365 * 86400.0))


def last_retry(last: NodeRecord | None) -> dict[str, str]:
    """The values of `lastRetry.*` in an attempt; `last` None: it is the first."""
    if last is None:
        return {
            "lastRetry.exitCode": "0",
            "lastRetry.status": "",
            "lastRetry.duration": "0",
            "lastRetry.message": "",
        }
    started, finished = moment(last.started_at), moment(last.finished_at)
    seconds = int((finished - started).total_seconds()) if started and finished else 0
    exit_code = last.outputs.exit_code if last.outputs is not None else None
    return {
        "lastRetry.exitCode": "-1" if exit_code is None else exit_code,
        "lastRetry.status": str(last.phase),
        "lastRetry.duration": str(seconds),
        "lastRetry.message": last.message,
    }


def _allows(policy: str, last: NodeRecord) -> bool:
    match policy:
        case "Always":
            return True
        case "OnFailure":
            return last.phase is NodePhase.FAILED
        case "OnError":
            return last.phase is NodePhase.ERROR
        case "OnTransientError":
            return _TRANSIENT.search(last.message) is not None
    raise TextError(
        f"retryStrategy.retryPolicy must be Always, OnFailure, OnError or OnTransientError, and is {policy!r}"
    )
