"""Idle or not: traces with known truth, judged as the server judges them, and a table of hits and false alarms.

    .venv/bin/python benchmarks/idle_truth.py

Each trace is a program's use of GPU and CPU in slots of 30 s with noise, the kernels and browsers of a workspace,
and checkpoints of a run, over five days. `decide.idle` looks at it by the policy below. The truth is known by
construction: whether the owner would want the GPUs kept. Every trace is drawn with several seeds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.idle.evidence import Connection, Facts, Idle, Kernels, judge
from moorage.decide.idle.plan import Act, Observed, Work, after_notice, after_suspension, plan
from moorage.decide.idle.readings import HeldPod, windows_of
from moorage.decide.idle.states import Record
from moorage.decide.usage.samples import GpuReading, Point, Reading, added, tally_of
from moorage.model.idle import RUN, WORKSPACE, Policy, QuietTimes

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
SLOT, MINUTE, HOUR, DAY = timedelta(seconds=30), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LOOK = 5 * MINUTE  # between two looks: the server looks every minute, which changes no outcome
LENGTH = 5 * DAY
NIGHTS = QuietTimes(UTC, ((frozenset(range(7)), time(20), time(8)),))  # as the guide advises
POLICY = Policy(name="truth", warn_after=4 * HOUR, remind_after=2 * HOUR, suspend_after=10 * HOUR, quiet=NIGHTS)
SEEDS = range(3)


class Sample(Struct, frozen=True, kw_only=True):
    """What a program does in a slot. `gpu` None: no reading of it."""

    gpu: float | None = 0.0
    cpu_milli: int | None = 15
    kernel: bool = False  # a kernel is active
    busy: bool = False  # and is executing
    connected: bool = False
    acted: bool = False
    checkpoint: bool = False
    measured: bool = True


Program = Callable[[float, random.Random], Sample]  # hours since the start


class Trace(Struct, frozen=True, kw_only=True):
    """A program with its truth: `suspend`: "must", "may" or "never"."""

    name: str
    kind: str
    program: Program
    suspend: str
    since: float | None = None  # idle in truth from this hour on; None: never


def _idle(rng: random.Random) -> Sample:
    return Sample(gpu=rng.choice([0.0, 0.0, 0.0, 1.0]), cpu_milli=rng.randint(3, 40))


def stalled_loop(hours: float, rng: random.Random) -> Sample:
    """A training that hangs in its collective after 20 hours."""
    if hours < 20:
        return Sample(gpu=rng.uniform(60, 99), cpu_milli=900, checkpoint=hours % 1 < 0.01)
    return _idle(rng)


def stalled_before_a_checkpoint(hours: float, rng: random.Random) -> Sample:
    return Sample(gpu=80, cpu_milli=900) if hours < 2 else _idle(rng)


def stalled_spinning(hours: float, rng: random.Random) -> Sample:
    """It hangs, and its CPU waits actively: nobody can tell it from a data loader."""
    if hours < 20:
        return Sample(gpu=rng.uniform(60, 99), cpu_milli=900, checkpoint=hours % 1 < 0.01)
    return Sample(gpu=0, cpu_milli=1000)


def notebook_left_open(hours: float, rng: random.Random) -> Sample:
    """Used for two hours, then the browser stays open on an empty desk."""
    if hours < 2:
        return Sample(
            gpu=rng.choice([0, 50]), cpu_milli=300, kernel=True, connected=True, acted=rng.random() < 0.3
        )
    return replace(_idle(rng), connected=True)


def notebook_closed(hours: float, rng: random.Random) -> Sample:
    if hours < 2:
        return Sample(
            gpu=rng.choice([0, 50]), cpu_milli=300, kernel=True, connected=True, acted=rng.random() < 0.3
        )
    return _idle(rng)


def cell_that_hangs(hours: float, rng: random.Random) -> Sample:
    """A cell waits for a server that never answers; the browser is closed."""
    if hours < 1:
        return Sample(gpu=50, cpu_milli=300, kernel=True, connected=True, acted=rng.random() < 0.3)
    return replace(_idle(rng), busy=True)


def slow_loader(hours: float, rng: random.Random) -> Sample:
    """The GPU is used for a moment every ten minutes; the CPU decodes all the time."""
    burst = hours % (1 / 6) < 0.009
    return Sample(gpu=70 if burst else 0, cpu_milli=rng.randint(700, 1900), checkpoint=hours % 6 < 0.009)


def loader_from_slow_storage(hours: float, rng: random.Random) -> Sample:
    """It waits for a network disk most of the time: CPU and GPU rest, and both work for a moment every hour."""
    burst = hours % 1 < 0.01
    return Sample(gpu=40 if burst else 0, cpu_milli=800 if burst else rng.randint(5, 60))


def between_epochs(hours: float, rng: random.Random) -> Sample:
    """An epoch of six hours, then an evaluation on the CPU for three."""
    if hours % 9 < 6:
        return Sample(gpu=rng.uniform(70, 99), cpu_milli=1000, checkpoint=hours % 1 < 0.01)
    return Sample(gpu=0, cpu_milli=rng.randint(900, 4000))


def epochs_with_pauses(hours: float, rng: random.Random) -> Sample:
    """A checkpoint is uploaded for two hours after each epoch: neither GPU nor CPU work."""
    if hours % 8 < 6:
        return Sample(gpu=rng.uniform(70, 99), cpu_milli=1000, checkpoint=hours % 1 < 0.01)
    return _idle(rng)


def debugger(hours: float, rng: random.Random) -> Sample:
    """A breakpoint in the morning; its person reads code for six hours, and is connected."""
    if hours < 1 or 7 <= hours < 10:
        return Sample(gpu=30, cpu_milli=400, kernel=True, busy=True, connected=True, acted=rng.random() < 0.3)
    if hours < 7:
        return replace(_idle(rng), busy=True, connected=True)
    work = 0 <= hours % 24 < 9
    return Sample(gpu=30, cpu_milli=400, kernel=True, connected=True, acted=True) if work else _idle(rng)


def person_every_day(hours: float, rng: random.Random) -> Sample:
    """Eight hours of exploring a day, mostly without the GPU; the workspace is left over night."""
    if hours % 24 < 8:
        return Sample(
            gpu=60 if hours % 3 < 0.05 else 0,
            cpu_milli=rng.randint(20, 400),
            kernel=rng.random() < 0.1,
            connected=True,
            acted=rng.random() < 0.1,
        )
    return _idle(rng)


def metrics_down(hours: float, _rng: random.Random) -> Sample:
    """A training that works, and whose readings end after five hours."""
    return Sample(gpu=90, cpu_milli=900, measured=hours < 5)


def gpu_unread(_hours: float, _rng: random.Random) -> Sample:
    """The kubelet gives CPU, nobody gives the GPU: CPU rests, the GPU works."""
    return Sample(gpu=None, cpu_milli=10)


def flapping_source(hours: float, rng: random.Random) -> Sample:
    """An idle workspace whose source of readings fails for ten minutes in every hour."""
    return replace(_idle(rng), measured=hours % 1 > 1 / 6)


def never_used(_hours: float, rng: random.Random) -> Sample:
    """Created and forgotten (seed: a week without use)."""
    return _idle(rng)


TRACES = (
    Trace(name="loop stalls, has checkpoints", kind=RUN, program=stalled_loop, suspend="must", since=20),
    Trace(
        name="loop stalls, no checkpoint", kind=RUN, program=stalled_before_a_checkpoint, suspend="never", since=2
    ),
    Trace(name="loop stalls, CPU spins", kind=RUN, program=stalled_spinning, suspend="may", since=20),
    Trace(name="notebook left open", kind=WORKSPACE, program=notebook_left_open, suspend="must", since=2),
    Trace(name="notebook closed", kind=WORKSPACE, program=notebook_closed, suspend="must", since=2),
    Trace(name="created and forgotten", kind=WORKSPACE, program=never_used, suspend="must", since=0),
    Trace(name="a cell hangs", kind=WORKSPACE, program=cell_that_hangs, suspend="must", since=1),
    Trace(name="source of readings flaps", kind=WORKSPACE, program=flapping_source, suspend="may", since=0),
    Trace(name="slow, living data loader", kind=RUN, program=slow_loader, suspend="never"),
    Trace(name="loader of slow storage", kind=RUN, program=loader_from_slow_storage, suspend="never"),
    Trace(name="CPU work between epochs", kind=RUN, program=between_epochs, suspend="never"),
    Trace(name="upload between epochs", kind=RUN, program=epochs_with_pauses, suspend="never"),
    Trace(name="debugger's pause", kind=WORKSPACE, program=debugger, suspend="never"),
    Trace(name="person, every day", kind=WORKSPACE, program=person_every_day, suspend="never"),
    Trace(name="readings end, GPU works", kind=RUN, program=metrics_down, suspend="never"),
    Trace(name="GPU is not read", kind=RUN, program=gpu_unread, suspend="never"),
)


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a trace: hours of its warnings, and of its suspension (None: never)."""

    trace: Trace
    seed: int
    warned: tuple[float, ...]
    suspended: float | None

    @property
    def false_warnings(self) -> int:
        """Warnings while it was in use in truth."""
        since = self.trace.since
        return sum(1 for at in self.warned if since is None or at < since)

    @property
    def verdict(self) -> str:
        """hit, miss, right (left alone), late warning, or WRONG."""
        wrong = self.suspended is not None and (
            self.trace.suspend == "never" or (self.trace.since is not None and self.suspended < self.trace.since)
        )
        if wrong:
            return "WRONG"
        if self.suspended is not None:
            return "hit"
        if self.trace.since is None:
            return "false alarm" if self.false_warnings else "left alone"
        if self.trace.suspend == "must":
            return "miss"
        return "warned only" if self.warned else "miss (known)"


def play(trace: Trace, seed: int) -> Outcome:
    """Judge a trace as the server does, look after look, until it is suspended or over."""
    rng = random.Random(f"{trace.name} {seed}")
    work = Work(kind=trace.kind, namespace="n", name="w", uid="u", owner="ada", gpus=1, started=START)
    pod = HeldPod(uid="u", gpus=1, started=START)
    record, points, samples = Record(), list[Point](), list[Reading]()
    kernels, connection, checkpoint = Kernels(), Connection(), None
    busy_at: datetime | None = None
    warned: list[float] = []
    at = START
    while at < START + LENGTH:
        now_sample = trace.program((at - START) / HOUR, rng)
        if now_sample.kernel:
            kernels = Kernels(last_activity=at)
        busy_at = (busy_at or at) if now_sample.busy and not now_sample.kernel else at if now_sample.busy else None
        if now_sample.connected:
            acted = at if now_sample.acted else connection.acted_at
            connection = Connection(seen_at=at, acted_at=acted)
        if now_sample.checkpoint:
            checkpoint = at
        if now_sample.measured:
            gpus = () if now_sample.gpu is None else (GpuReading(device="0", utilisation=now_sample.gpu),)
            samples.append(Reading(pod_uid="u", at=at, cpu_milli=now_sample.cpu_milli, gpus=gpus))
        at += SLOT
        if (at - START) % LOOK:
            continue
        if samples:
            tally = added(tally_of(reading) for reading in samples)
            points.append(Point(pod_uid="u", start=at - LOOK, length=POLICY.window, tally=tally))
            samples.clear()
        # the server looks two minutes later: readings are settled
        now = at + 2 * MINUTE
        facts = Facts(
            started=START,
            windows=windows_of(points[-60:], [pod], now=now),
            kernels=replace(kernels, busy_since_output=busy_at) if trace.kind == WORKSPACE else None,
            connection=connection if trace.kind == WORKSPACE else None,
            checkpoint_at=checkpoint,
            proven_since=record.since,
        )
        seen = Observed(
            work=replace(work, checkpoint_at=checkpoint),
            verdict=judge(facts, POLICY, now),
            policy=POLICY,
            record=record,
            now=now,
        )
        step = plan(seen)
        record = step.record
        hours = (now - START) / HOUR
        if step.act in (Act.WARN, Act.REMIND):
            record = after_notice(record, delivered=True)
            if step.act is Act.WARN:
                warned.append(hours)
        if step.act is Act.SUSPEND:
            assert isinstance(seen.verdict, Idle)
            after_suspension(record)
            return Outcome(trace=trace, seed=seed, warned=tuple(warned), suspended=hours)
    return Outcome(trace=trace, seed=seed, warned=tuple(warned), suspended=None)


def outcomes(seeds: range = SEEDS) -> Iterator[Outcome]:
    for trace in TRACES:
        for seed in seeds:
            yield play(trace, seed)


def main() -> int:
    """Print the table; 1 where anything was suspended wrongly or missed."""
    spans = f"warn after {POLICY.warn_after}, suspend {POLICY.suspend_after} after that, quiet from 20:00 to 08:00"
    print(f"policy: {spans}; {LENGTH.days} days, {len(SEEDS)} seeds each")
    print(f"{'trace':30} {'kind':10} {'idle from':>9} {'warned':>8} {'suspended':>9}  outcome")
    results = list(outcomes())
    for first in results[:: len(SEEDS)]:
        mine = [each for each in results if each.trace is first.trace]
        since = "-" if first.trace.since is None else f"{first.trace.since:.0f} h"
        warned = "-" if not first.warned else f"{first.warned[0]:.1f} h"
        suspended = "-" if first.suspended is None else f"{first.suspended:.1f} h"
        words = ", ".join(f"{word}" for word in sorted({each.verdict for each in mine}))
        print(f"{first.trace.name:30} {first.trace.kind:10} {since:>9} {warned:>8} {suspended:>9}  {words}")
    wrong = [each for each in results if each.verdict == "WRONG"]
    missed = [each for each in results if each.verdict == "miss"]
    alarms = sum(each.false_warnings for each in results)
    must = sum(each.trace.suspend == "must" for each in results)
    hits = sum(each.verdict == "hit" and each.trace.suspend == "must" for each in results)
    print(f"{hits} of {must} hits, {len(missed)} missed, {alarms} false alarms, {len(wrong)} suspended wrongly")
    return 1 if wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
