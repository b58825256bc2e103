"""Advice on requests, from the use of past runs. Pure.

Runs of one owner with the same image and command are one work (`forecast.work_of`). Of each, the newest `KEPT`
pods that have ended count. Advice compares the present requests with their peaks:

- Memory is to be raised when a run was killed for it, or came near (NEAR) to its request. One run is enough.
- Memory and CPU are to be lowered when the highest peak, with a margin, is far below. That needs LEAST_RUNS runs
  that ended well, of at least SHORTEST each and LEAST_TIME together: runs that fail early have used little.
- CPU is to be raised when the mean is at the request: then the limit makes the run slow.
- GPUs are not needed, or fewer, when GPU_LEAST_RUNS runs with GPU_LEAST_SECONDS of measured GPU time never used
  them.

Unmeasured resources get no advice. Peaks are the highest reading, and a peak between two readings is missed: hence
the margins. They are choices, no laws; `docs/howto/ask-for-the-right-size.md` has them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.runs.forecast import base_of

KEPT = 20  # newest pods of a work that count: it changes with its code
LEAST_RUNS = 3  # that ended well, before less is advised
SHORTEST = timedelta(minutes=2)  # a shorter run has few readings: at most four of 30 s
LEAST_TIME = timedelta(minutes=30)  # of these runs together
GPU_LEAST_RUNS = 3
GPU_LEAST_SECONDS = 3600  # GPUs × time for which they were measured
MARGIN = 1.2  # above the highest peak
NEAR = 0.9  # of the limit: a little more, and it is killed
KILLED_MARGIN = 1.5  # above the limit that a run was killed at; its real need is unknown
FAR = 0.7  # less than a change by 30 % is not worth it
LEAST_MEMORY = 256 << 20  # bytes; a smaller saving is not worth it
LEAST_CPU = 500  # thousandths of a core
FULL = 0.95  # of the CPU that was asked for, as a mean: it wants more
MORE_CPU = 1.5
UNUSED_PERCENT = 2.0  # of the time; an idle GPU reports 0 to 2 %
LITTLE_PERCENT = 15.0
MIB, GIB = 1 << 20, 1 << 30
_MEMORY_STEPS = ((GIB, 64 * MIB), (4 * GIB, 256 * MIB), (16 * GIB, 512 * MIB), (64 * GIB, GIB))  # below → step
_CPU_STEPS = ((1000, 100), (4000, 500))


class Kind(StrEnum):
    """The kind of advice. The value is the word on the wire."""

    RAISE_MEMORY_KILLED = "raise-memory-killed"
    RAISE_MEMORY_NEAR = "raise-memory-near"
    LOWER_MEMORY = "lower-memory"
    RAISE_CPU = "raise-cpu"
    LOWER_CPU = "lower-cpu"
    NO_GPUS = "no-gpus"
    FEWER_GPUS = "fewer-gpus"
    LITTLE_USED_GPUS = "little-used-gpus"


RESOURCE = {
    Kind.RAISE_MEMORY_KILLED: "memory",
    Kind.RAISE_MEMORY_NEAR: "memory",
    Kind.LOWER_MEMORY: "memory",
    Kind.RAISE_CPU: "cpu",
    Kind.LOWER_CPU: "cpu",
    Kind.NO_GPUS: "gpus",
    Kind.FEWER_GPUS: "gpus",
    Kind.LITTLE_USED_GPUS: "gpus",
}


class Asked(Struct, frozen=True, kw_only=True):
    """The requests of a pod. 0: nothing, or no limit."""

    cpu_milli: int = 0
    memory_bytes: int = 0  # the limit, else the request
    gpus: int = 0


class Past(Struct, frozen=True, kw_only=True):
    """One ended pod of a run, and its measurements. None: not measured."""

    namespace: str
    owner: str
    run: str
    work: str = ""  # `forecast.work_of`; empty: not known
    asked: Asked
    started: datetime
    ended: datetime
    well: bool = False  # its command ended with exit code 0
    killed: bool = False  # for memory, at its own limit
    memory_peak: int | None = None  # bytes
    cpu_peak: int | None = None  # thousandths of a core, the highest reading
    cpu_mean: float | None = None
    gpu_mean: float | None = None  # percent of the time, over all its GPUs
    gpu_seconds: int = 0  # GPUs × time for which they were measured
    gpus_measured: int = 0  # the most at one moment
    gpus_busy: int = 0  # the most that worked at one moment

    @property
    def took(self) -> timedelta:
        return max(timedelta(), self.ended - self.started)


class Advice(Struct, frozen=True, kw_only=True):
    """One suggested change. Units: bytes, millicores, GPUs; `used` of LITTLE_USED_GPUS and NO_GPUS: percent."""

    kind: Kind
    asked: int
    to: int | None  # None: the number is unknown
    used: float  # its basis: the highest peak, the mean, or the limit that a run was killed at
    runs: int  # that it is based on
    hours: float  # for which these ran; of GPUs: GPU-hours that were measured

    @property
    def resource(self) -> str:
        return RESOURCE[self.kind]


class Work(Struct, frozen=True, kw_only=True):
    """Similar runs. `name` and `asked` are those of the newest."""

    namespace: str
    owner: str
    name: str
    work: str
    asked: Asked
    ended: datetime
    pasts: tuple[Past, ...]  # newest first, at most KEPT
    advice: tuple[Advice, ...] = ()


def works_of(pasts: Iterable[Past]) -> tuple[Work, ...]:
    """Past pods by work, each with its advice, sorted by namespace and name; independent of their order."""
    groups: dict[tuple[str, ...], list[Past]] = {}
    for past in pasts:
        groups.setdefault(key_of(past.namespace, past.owner, past.work, past.run), []).append(past)
    works = []
    for group in groups.values():
        group.sort(key=lambda past: (past.ended, past.run), reverse=True)
        newest = group[0]
        kept = tuple(group[:KEPT])
        works.append(
            Work(
                namespace=newest.namespace,
                owner=newest.owner,
                name=newest.run,
                work=newest.work,
                asked=newest.asked,
                ended=newest.ended,
                pasts=kept,
                advice=advise(newest.asked, kept),
            )
        )
    return tuple(sorted(works, key=lambda work: (work.namespace, work.owner, work.name)))


def key_of(namespace: str, owner: str, work: str, run: str) -> tuple[str, ...]:
    """The key of pods of one work: image and command, or the name where these are not known."""
    return (namespace, owner, "work", work) if work else (namespace, owner, "name", base_of(run))


def asked_now(work: Work, asked: Asked) -> Work:
    """The work with advice for another request: for a run that is not submitted yet."""
    return replace(work, asked=asked, advice=advise(asked, work.pasts))


def advise(asked: Asked, pasts: Sequence[Past]) -> tuple[Advice, ...]:
    """Changes of `asked` that pods of the same work suggest. Empty: none, or too little is known."""
    by_resource = (_memory(asked, pasts), _cpu(asked, pasts), _gpus(asked, pasts))
    return tuple(advice for advice in by_resource if advice is not None)


# --- memory


def _memory(asked: Asked, pasts: Sequence[Past]) -> Advice | None:
    if not asked.memory_bytes:
        return None
    limit = asked.memory_bytes
    killed = [past for past in pasts if past.killed and past.asked.memory_bytes >= limit]
    measured = [past for past in pasts if past.memory_peak]
    # a run that failed counts too where it used more: less than that is not safe
    peak = max((_memory_of(past) for past in pasts), default=0)
    if killed:
        at = max(past.asked.memory_bytes for past in killed)
        enough = any(past.well and past.asked.memory_bytes > at for past in measured)
        to = nice_memory(max(peak * MARGIN, 0 if enough else at * KILLED_MARGIN))
        return _advice(Kind.RAISE_MEMORY_KILLED, limit, to, at, killed)
    near = [past for past in pasts if _memory_of(past) >= NEAR * limit]
    if near:
        return _advice(Kind.RAISE_MEMORY_NEAR, limit, nice_memory(peak * MARGIN), peak, near)
    telling = _telling(measured)
    if not telling:
        return None
    to = nice_memory(peak * MARGIN)
    if to > FAR * limit or limit - to < LEAST_MEMORY:
        return None
    return _advice(Kind.LOWER_MEMORY, limit, to, peak, telling)


def _memory_of(past: Past) -> int:
    """Bytes that it certainly used: a pod that was killed had all of its limit, even if readings are lower."""
    return max(past.memory_peak or 0, past.asked.memory_bytes if past.killed else 0)


def _telling(pasts: Iterable[Past]) -> list[Past]:
    """The runs that ended well and were long enough. Empty if they are too few to suggest less."""
    telling = [past for past in pasts if past.well and past.took >= SHORTEST]
    whole = sum((past.took for past in telling), timedelta())
    return telling if len(telling) >= LEAST_RUNS and whole >= LEAST_TIME else []


# --- CPU


def _cpu(asked: Asked, pasts: Sequence[Past]) -> Advice | None:
    measured = [past for past in pasts if past.cpu_peak is not None and past.cpu_mean is not None]
    telling = _telling(measured)
    if not asked.cpu_milli or not telling:
        return None
    full = [past for past in telling if (past.cpu_mean or 0.0) >= FULL * past.asked.cpu_milli > 0]
    if len(full) == len(telling) and max(past.asked.cpu_milli for past in full) >= asked.cpu_milli:
        mean = max(past.cpu_mean or 0.0 for past in full)
        return _advice(Kind.RAISE_CPU, asked.cpu_milli, nice_cpu(asked.cpu_milli * MORE_CPU), mean, full)
    peak = max(past.cpu_peak or 0 for past in measured)
    to = nice_cpu(max(1, peak) * MARGIN)
    if to > FAR * asked.cpu_milli or asked.cpu_milli - to < LEAST_CPU:
        return None
    return _advice(Kind.LOWER_CPU, asked.cpu_milli, to, peak, telling)


# --- GPUs


def _gpus(asked: Asked, pasts: Sequence[Past]) -> Advice | None:
    """Only by runs that held as many GPUs, all of them measured: an unmeasured GPU may have worked."""
    telling = [
        past
        for past in pasts
        if past.gpu_mean is not None and past.asked.gpus == asked.gpus and past.gpus_measured >= asked.gpus
    ]
    seconds = sum(past.gpu_seconds for past in telling)
    if not asked.gpus or len(telling) < GPU_LEAST_RUNS or seconds < GPU_LEAST_SECONDS:
        return None
    mean = sum((past.gpu_mean or 0.0) * past.gpu_seconds for past in telling) / seconds
    busy = max(past.gpus_busy for past in telling)

    def advice(kind: Kind, to: int | None, used: float) -> Advice:
        return replace(_advice(kind, asked.gpus, to, used, telling), hours=seconds / 3600)

    if not busy and mean < UNUSED_PERCENT:
        return advice(Kind.NO_GPUS, 0, mean)
    if 0 < busy < asked.gpus:
        return advice(Kind.FEWER_GPUS, busy, busy)
    if mean < LITTLE_PERCENT:
        return advice(Kind.LITTLE_USED_GPUS, None, mean)
    return None


def _advice(kind: Kind, asked: int, to: int | None, used: float, pasts: Sequence[Past]) -> Advice:
    hours = sum((past.took for past in pasts), timedelta()) / timedelta(hours=1)
    return Advice(kind=kind, asked=asked, to=to, used=used, runs=len(pasts), hours=hours)


# --- numbers that people write


def nice_memory(bytes_: float) -> int:
    """Round memory up to a round number of MiB or GiB."""
    return _next(bytes_, _MEMORY_STEPS, 4 * GIB)


def nice_cpu(milli: float) -> int:
    """Round millicores up: to tenths of a core, above one core to halves, above four cores to whole cores."""
    return _next(milli, _CPU_STEPS, 1000)


def _next(value: float, steps: Sequence[tuple[int, int]], last: int) -> int:
    step = next((step for below, step in steps if value <= below), last)
    return max(step, -int(-value // step) * step)
