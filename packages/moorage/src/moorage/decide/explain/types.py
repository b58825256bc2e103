"""The explanation of a pod's start: the verdict on each node, missing resources, their holders, and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from moorage.decide.explain.starting import Starting
from moorage.decide.explain.storage import Trouble
from moorage.decide.runs.forecast import Usual
from moorage.decide.runs.kueue import QueueWait
from moorage.decide.runs.state import RunView
from moorage.decide.usage.gpus import Holder

State = Literal["fits", "waiting", "gated", "never", "running", "finished"]
Sure = Literal["limit", "usual", "unknown"]


class Verdict(Struct, frozen=True, kw_only=True):
    """The result for one node: the pod fits, or all reasons why it does not."""

    node: str
    gpu_type: str  # empty: no GPUs
    gpus: int
    gpus_free: int
    reasons: tuple[str, ...]  # empty: it fits

    @property
    def fits(self) -> bool:
        return not self.reasons


class Missing(Struct, frozen=True, kw_only=True):
    """A resource that is short on every node that the pod may use."""

    resource: str
    gpu_types: tuple[str, ...]  # the requested types of GPUs; empty: any
    asks: int  # units of `quantity.amount`
    most_free: int  # on one node
    most_free_node: str  # empty: the pod may use no node
    free_in_total: int


class HeldBy(Struct, frozen=True, kw_only=True):
    """A holder of a missing resource. `sure`: whether its end is an enforced limit, the usual one, or unknown."""

    holder: Holder
    node: str
    resource: str
    amount: int
    sure: Sure
    usual: Usual | None = None  # by past runs like it
    reserved_for: str = ""  # "group/type": no user holds it, but a machine's reservation

    @property
    def usual_until(self) -> datetime | None:
        """The expected end of the holder: its start plus the usual duration of similar runs. None if unknown."""
        return usual_end(self.holder, self.usual)


class Earliest(Struct, frozen=True, kw_only=True):
    """A forecast: the time, the node, and the run that has to end first (None: there is room now)."""

    at: datetime
    node: str
    after: Holder | None = None
    usual: Usual | None = None  # the past that the end of `after` is forecast by; None: its limit


class Waiter(Struct, frozen=True, kw_only=True):
    """A pod that is ahead of this pod in the queue."""

    owner: str
    run: str
    namespace: str
    pod: str
    priority: int
    created: datetime | None
    gpus: int
    step: str = ""  # "WORKFLOW/STEP"; empty: of no workflow

    @property
    def title(self) -> str:
        """The name that users know."""
        return self.run or self.step or self.pod


class Smaller(Struct, frozen=True, kw_only=True):
    """A smaller or different request that would start now."""

    gpus: int
    gpu_types: tuple[str, ...]  # the wish; empty: any type
    node: str
    node_type: str
    change: str = ""  # the difference, for display: "1 GPU", "4 cpu"
    options: str = ""  # the options of `moor run` that say so
    cost: float = 0.0  # how much of the wish is given up, 0 to 1


class Refusal(Struct, frozen=True, kw_only=True):
    """The reason why the pod can never run on this cluster in its current state."""

    code: str
    message: str
    hint: str


class MachineLine(Struct, frozen=True, kw_only=True):
    """The state of the machine type that the guest waits for."""

    group: str
    type: str
    order: str  # fifo or fair
    available: int
    used: int  # places held by guests, or on their way to one
    waits_for: str = ""  # a sentence: a place is free, but reserved
    waits_until: datetime | None = None  # the end of that reservation
    known: bool = True  # False: no such Machine exists


class Explanation(Struct, frozen=True, kw_only=True):
    """Everything that is known about the start of a pod at the time `now`."""

    namespace: str
    name: str
    run: str
    owner: str
    state: State
    now: datetime
    asks: Mapping[str, int]
    gpus: int
    gpu_types: tuple[str, ...]
    node: str = ""  # where it runs, or (state fits) where it would land
    verdicts: tuple[Verdict, ...] = ()
    missing: tuple[Missing, ...] = ()
    obstacles: tuple[str, ...] = ()  # why no node that could serve takes pods: cordoned, not Ready
    held_by: tuple[HeldBy, ...] = ()
    earliest: Earliest | None = None  # if all who have one keep their limit
    likely: Earliest | None = None  # sooner than that, if all take as long as is usual
    line: tuple[Waiter, ...] = ()  # those ahead, first first
    machine: MachineLine | None = None
    gates: tuple[str, ...] = ()
    killed: str = ""  # why the gate for memory holds it, as admission wrote it
    missing_claims: tuple[str, ...] = ()
    troubles: tuple[Trouble, ...] = ()  # with volumes, the missing ones among them
    quota: str = ""  # the API server's own sentence
    not_made: str = ""  # why the pod cannot be created, in the API server's words
    suspended: bool = False  # the Job is
    queue: QueueWait | None = None  # by Kueue, which holds it in a queue
    scheduler_says: str = ""
    smaller: tuple[Smaller, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    until: Holder | None = None  # of a pod that has its place: since when, and its limit
    usual: Usual | None = None  # and the durations of similar pods
    starting: Starting | None = None  # it has its place, but its containers do not run; None: they do
    ended: RunView | None = None  # the run has ended, or restarts after a disruption: its state
    public: bool = False  # only the part that all users may see
    step: str = ""  # "WORKFLOW/STEP" whose pod it is; empty: of no workflow

    @property
    def who(self) -> str:
        """The subject of the explanation, in words: the run, the step of a workflow, or the pod."""
        if not self.run and self.step:
            workflow, _, step = self.step.partition("/")
            return (f"step {step} of " if step else "") + f"workflow {self.namespace}/{workflow}"
        return f"{'run' if self.run else 'pod'} {self.namespace}/{self.run or self.name}"

    @property
    def position(self) -> int:
        """The position in the queue; 1 is the next in line."""
        return len(self.line) + 1

    @property
    def fits(self) -> bool:
        """Whether a node could run the pod now."""
        return any(verdict.fits for verdict in self.verdicts)

    @property
    def usual_until(self) -> datetime | None:
        """The expected end of the pod: its start plus the usual duration of similar runs. None if unknown."""
        return usual_end(self.until, self.usual) if self.until else None


def usual_end(holder: Holder, usual: Usual | None) -> datetime | None:
    if usual is None or usual.total is None or holder.since is None:
        return None
    return holder.since + usual.total
