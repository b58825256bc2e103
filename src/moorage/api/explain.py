"""Explanations on the wire: `/api/v1/explain`, `moor explain -o json`. Amounts are Kubernetes quantities."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from moorage.api.fields import Answer


class PodQuestion(msgspec.Struct, kw_only=True):
    """A `v1.Pod` that is not created yet, and the claims of its namespace as its user sees them.

    `refused`: why the API server does not admit it, in its words.
    """

    pod: dict[str, Any]
    claims: list[dict[str, Any]] | None = None
    refused: str = ""


class UsualTime(Answer, frozen=True):
    """How long past runs like it took: `done` of `of` had ended by `seconds`, counted from their start.

    `seconds` None: it has outlived so many of the `known` ones that nobody can tell; `likeness`: alike in what.
    """

    seconds: int | None = None
    done: int = 0
    of: int = 0
    known: int = 0
    likeness: str = ""


class HolderName(Answer, frozen=True):
    """A pod that holds or wants something. `run` empty: it is of no run."""

    owner: str = ""
    run: str = ""
    namespace: str = ""
    pod: str = ""


class HeldBy(HolderName, frozen=True):
    """Who holds what is missing. `sure`: whether `expected_until` is a limit, usual, or unknown."""

    since: datetime | None = None
    expected_until: datetime | None = None
    node: str = ""
    resource: str = ""
    amount: str = ""
    sure: str = ""
    usual_until: datetime | None = None
    usual: UsualTime | None = None
    reserved_for: str = ""  # GROUP/TYPE of the machine whose place it is


class Waiter(HolderName, frozen=True):
    """A pod that comes before this one."""

    priority: int = 0
    created: datetime | None = None
    gpus: int = 0


class Earliest(Answer, frozen=True):
    """When and where it can start, and whose end makes room; `usual`: by what past runs that end is forecast."""

    at: datetime
    node: str = ""
    after: HolderName | None = None
    usual: UsualTime | None = None


class NodeVerdict(Answer, frozen=True):
    """Whether a node takes it, or every reason why not."""

    name: str
    gpu_type: str = ""
    gpus: int = 0
    gpus_free: int = 0
    fits: bool = False
    reasons: tuple[str, ...] = ()


class MissingResource(Answer, frozen=True):
    """A resource of which no node has enough free. `gpu_types`: those asked for; empty: any."""

    resource: str
    gpu_types: tuple[str, ...] = ()
    asks: str = ""
    most_free: str = ""
    most_free_node: str = ""
    free_in_total: str = ""


class MachineLine(Answer, frozen=True):
    """The machine type whose guest it is: places, and what a free one is kept for."""

    group: str
    type: str = ""
    order: str = ""
    available: int = 0
    used: int = 0
    known: bool = True
    waits_for: str = ""
    waits_until: datetime | None = None


class VolumeTrouble(Answer, frozen=True):
    claim: str
    message: str = ""


class SmallerRequest(Answer, frozen=True):
    """A request that would start now. `options`: those of `moor run`."""

    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    node: str = ""
    node_type: str = ""
    change: str = ""
    options: str = ""


class Refusal(Answer, frozen=True):
    """Why it can never run on this cluster as it is."""

    code: str
    message: str = ""
    hint: str = ""


class Explanation(Answer, frozen=True):
    """Why a run or a pod waits. `text` is what `moor explain` prints; `public`: only what everybody may know.

    `state`: fits, waiting, gated, never, running or finished. `position` 1: next in line.
    """

    namespace: str
    name: str
    run: str = ""
    owner: str = ""
    public: bool = False
    state: str = ""
    now: datetime | None = None
    asks: Mapping[str, str] = {}
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    node: str = ""
    since: datetime | None = None
    expected_until: datetime | None = None
    usual_until: datetime | None = None
    usual: UsualTime | None = None
    starting: str = ""
    nodes: tuple[NodeVerdict, ...] = ()
    missing: tuple[MissingResource, ...] = ()
    obstacles: tuple[str, ...] = ()
    held_by: tuple[HeldBy, ...] = ()
    earliest: Earliest | None = None
    likely: Earliest | None = None
    position: int | None = None
    line: tuple[Waiter, ...] = ()
    machine: MachineLine | None = None
    gates: tuple[str, ...] = ()
    missing_claims: tuple[str, ...] = ()
    volumes: tuple[VolumeTrouble, ...] = ()
    quota: str = ""
    not_made: str = ""
    suspended: bool = False
    scheduler_says: str = ""
    smaller: tuple[SmallerRequest, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    short: str = ""
    text: str = ""
