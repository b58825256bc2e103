"""API type of a run with all details in one answer, for `moor show`."""

from __future__ import annotations

from typing import Annotated

from moorage.api.fields import Answer, Query, Time, about
from moorage.api.jobs import Job
from moorage.api.rightsizing import SizeAdvice
from moorage.api.use import Use


class OverviewQuery(Query):
    """Optional parts of an overview."""

    advice: Annotated[bool, about("Advice by past runs of the same command, too.")] = False


class JobEvent(Answer, frozen=True):
    """An event of a Job or pod of a run."""

    at: Annotated[Time | None, about("When it was seen last; null: not known.")] = None
    reason: Annotated[str, about("One word, such as Evicted.")] = ""
    message: Annotated[str, about("Reason as a sentence.")] = ""
    about: Annotated[str, about("Kind and name of the object, such as pod/train-abc.")] = ""
    count: Annotated[int, about("How often it was seen.")] = 1


class JobOverview(Answer, frozen=True):
    """A run with its use, events and advice, for users who may list Jobs of its namespace."""

    job: Job
    use: Annotated[Use | None, about("Its use over its life; null: it cannot be read.")] = None
    events: Annotated[
        tuple[JobEvent, ...],
        about("Newest events of its Jobs and pods, oldest first; empty: none, or hidden."),
    ] = ()
    advice: Annotated[tuple[SizeAdvice, ...], about("Advice on its requests; empty: no advice.")] = ()
    idle: Annotated[
        str, about("Since when it is idle, the next step, and why; empty: it is not, or is suspended.")
    ] = ""
    checkpoint_warning: Annotated[str, about("Warning about missing or old checkpoints; empty: none.")] = ""
    stopping: Annotated[tuple[str, ...], about("Names of the pods that are being deleted.")] = ()
    mount_problem: Annotated[
        str, about("Why volumes of its newest pod are not mounted; empty: nothing says so.")
    ] = ""
    mount_hint: Annotated[str, about("How to fix `mountProblem`.")] = ""
