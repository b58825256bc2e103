"""Whether work ended by itself or was interrupted by a stop signal: one rule for runs, steps and items.

Work that ends after a stop signal is interrupted, with any exit code: by a drain, an eviction, a preemption, the
turn of another run, a suspension, a shutdown, the loss of its node, a deletion. A program that saves on SIGTERM
and exits with 0 has not finished. It has finished if it ended before, or if it says so: by a file at the path in
`MOORAGE_DONE_FILE`.

Only a process next to a program knows both for sure: the runner of a run, the script around a step and the worker
of a map get the same SIGTERM. Runner and script end with `STOPPED` after an interruption, so that no Kubernetes
Job counts it as a success. For other containers the times of the API server and the node decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage_kube.meta import condition
from moorage_kube.moments import moment

DONE_FILE_ENV = "MOORAGE_DONE_FILE"
# exit code: stopped by a signal, and not finished (ERESTART); as in worker/runner.py and executor/*.sh
STOPPED = 85
LONG_AGO = datetime.min.replace(tzinfo=UTC)  # stopped at an unknown moment


def is_interruption(
    *, exit_code: int | None, ended: datetime | None, stopped_at: datetime | None, is_watched: bool = False
) -> bool:
    """Whether a container ended because of a stop signal.

    `exit_code`, `ended`: None if unknown. `stopped_at`: the time of the stop request, None if there was none.
    `is_watched`: our runner or script started the program, so that exit code 0 means that it had finished.
    An end in the very second of `stopped_at` counts as an interruption: times are whole seconds, and work done
    twice is better than lost work.
    """
    if exit_code == STOPPED:
        return True
    if stopped_at is None or (is_watched and exit_code == 0):
        return False
    return ended is None or ended >= stopped_at


def stop_time(pod: Mapping[str, Any]) -> datetime | None:
    """The time of the stop request for a pod, by the API server; None if there was none.

    A kubelet may record the reason only when the pod has ended: such a moment is `LONG_AGO`.
    """
    meta, moments = pod["metadata"], []
    disruption = condition(pod, "DisruptionTarget") or {}
    if disruption.get("status") == "True":
        by_kubelet = disruption.get("reason") == "TerminationByKubelet"
        noted = None if by_kubelet else moment(disruption.get("lastTransitionTime"))
        moments.append(noted or LONG_AGO)
    if (deadline := moment(meta.get("deletionTimestamp"))) is not None:
        moments.append(deadline - timedelta(seconds=int(meta.get("deletionGracePeriodSeconds") or 0)))
    return min(moments, default=None)
