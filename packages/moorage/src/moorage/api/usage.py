"""API types of GPU-hours: `/api/v1/top`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Query, Text, Time, about


class TopQuery(Query):
    """A window of time, and the groups for which use is summed up."""

    by: Annotated[Text, about("Group of each row: user, namespace, run, workflow, type or gpu.")] = "user"
    since: Annotated[Text, about("Start of the window: a span before now (24h, 7d), a day or RFC 3339.")] = "24h"
    until: Annotated[Text | None, about("End of the window, written as `since`; left out: now.")] = None


class TopRow(Answer, frozen=True):
    """The GPU-hours of one user, namespace, run, workflow, GPU type or GPU."""

    name: Annotated[str, about("User, namespace, run, workflow, GPU type or GPU, as `by` of the request says.")]
    gpu_hours: Annotated[float, about("Number of GPUs × hours.")] = 0.0
    cpu_hours: Annotated[float, about("Requested CPUs × hours.")] = 0.0
    memory_hours: Annotated[float, about("Requested memory × hours, in GiB-hours.")] = msgspec.field(
        default=0.0, name="memoryGiBHours"
    )
    running_gpus: Annotated[int, about("GPUs held at the end of the window.")] = 0
    pods: Annotated[int, about("Pods that ran within the window.")] = 0


class Top(Answer, frozen=True):
    """The GPU-hours in a window of time."""

    since: Annotated[Time, about("Start of the window.")]
    until: Annotated[Time, about("End of the window.")]
    by: Annotated[str, about("Group of each row: user, namespace, run, workflow, type or gpu.")] = "user"
    rows: Annotated[tuple[TopRow, ...], about("One row for each of `by`, the largest use first.")] = ()
