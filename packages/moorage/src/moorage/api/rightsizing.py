"""Advice on the requests of runs, on the wire: `/api/v1/rightsize`."""

from __future__ import annotations

from typing import Annotated

from moorage.api.fields import Answer, Natural, Query, Text, Time, about


class RightsizeQuery(Query):
    """The work to advise on, and its present requests. Without filters: all work that you may read."""

    namespace: Annotated[Text, about("Only work of this namespace; left out: all that you may read.")] = ""
    run: Annotated[Text, about("Only the work of this run, also where there is no advice for it.")] = ""
    work: Annotated[
        Text, about("Only work with this hash of image and command, by its caller; with it, `run` is a new run.")
    ] = ""
    cpu_milli: Annotated[Natural | None, about("CPU of the request to judge, in thousandths of a core.")] = None
    memory_bytes: Annotated[Natural | None, about("Memory of the request to judge, in bytes.")] = None
    gpus: Annotated[Natural | None, about("GPUs of the request to judge.")] = None


class AskedFor(Answer, frozen=True):
    """The requests of a run."""

    cpu_milli: Annotated[int, about("Thousandths of a core; 0: nothing.")] = 0
    memory_bytes: Annotated[int, about("Memory limit in bytes; 0: none.")] = 0
    gpus: Annotated[int, about("Number of GPUs.")] = 0


class SizeAdvice(Answer, frozen=True):
    """One advised change of a request."""

    kind: Annotated[str, about("Kind of the advice, such as raise-memory-killed, lower-memory or no-gpus.")]
    resource: Annotated[str, about("memory, cpu or gpus.")]
    asked: Annotated[int, about("Present request: bytes, thousandths of a core, or GPUs.")]
    to: Annotated[int | None, about("Advised request, in the same unit; null: the number is not known.")]
    used: Annotated[
        float,
        about("Its basis: the highest peak; the limit of a kill; of GPUs: percent, or GPUs in use."),
    ]
    runs: Annotated[int, about("Number of past runs behind it.")]
    hours: Annotated[float, about("Hours that these runs took; of GPUs: GPU-hours that were measured.")]
    option: Annotated[str, about("The change as an option of `moor run`; empty: none.")] = ""
    text: Annotated[str, about("The advice as a sentence.")] = ""


class WorkAdvice(Answer, frozen=True):
    """Runs of one user that do the same work, and the requests that they should use."""

    namespace: str
    owner: str
    name: Annotated[str, about("Name of the newest of them.")]
    runs: Annotated[int, about("Number of past pods that were looked at; the newest 20 at most.")]
    ended: Annotated[Time, about("When the newest of them ended.")]
    asked: AskedFor = AskedFor()
    advice: tuple[SizeAdvice, ...] = ()


class Rightsize(Answer, frozen=True):
    """Work that should request more or less, by namespace, owner and name."""

    works: tuple[WorkAdvice, ...] = ()
