"""The operator's steps for pods killed for their memory: replacements to hold, release or stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from moorage.decide.runs.memorykills import (
    REVISION_LABEL,
    BombRule,
    Kill,
    Ledger,
    Owner,
    has_grown,
    is_gated,
    kill_held_for,
    slot_of,
    wanders,
)
from moorage.model.names import MEMORY_LABEL, MEMORY_RELEASE_ANNOTATION, RELEASED
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.moments import moment

REMEMBERED = 10  # kills stored on an owner, the newest; more would only lengthen the annotation
SLIP_SECONDS = 120  # a replacement that slipped past the webhook is stopped while it is younger than this
LOOK_SECONDS = 5  # how often an unanswered kill is looked at while a replacement may still slip past


# --- in the operator


class PodSeen(Struct, frozen=True, kw_only=True):
    """An unfinished pod of the owner."""

    name: str
    uid: str
    slot: str
    created: datetime | None
    gated: bool = False
    state: str = ""  # of MEMORY_LABEL
    kill_uid: str = ""  # the kill that it was held for
    asked: bool = False  # a user annotated it to be released
    outdated: bool = False  # its StatefulSet would make it of a newer revision now
    grown: frozenset[str] = frozenset()  # kills, by uid, than which it has more memory


class Seen(Struct, frozen=True, kw_only=True):
    """One owner and all data that was read about it, at one moment."""

    rule: BombRule
    owner: Owner
    kills: Mapping[str, Kill]
    forgiven: frozenset[str]
    ledger: Ledger
    pods: tuple[PodSeen, ...] = ()
    now: datetime


class Write(Struct, frozen=True):
    """Store this ledger on the owner, before all other actions. `news`: the kills that the stored ledger lacks."""

    ledger: Ledger
    news: tuple[Kill, ...] = ()


class Release(Struct, frozen=True):
    """Remove the gate. `state`: the new value of the pod's label; None removes all our labels and annotations."""

    pod: PodSeen
    state: str | None
    why: str


class Renew(Struct, frozen=True):
    """Delete a held pod that has never run, so that its StatefulSet creates it from the new revision."""

    pod: PodSeen


class Stop(Struct, frozen=True):
    """Delete a replacement that the webhook did not hold. The next replacement will be held."""

    pod: PodSeen
    kill: Kill


Action = Write | Release | Renew | Stop


class Plan(Struct, frozen=True):
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = None


class _Work(Struct):
    seen: Seen
    forgiven: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    steps: list[Action] = field(default_factory=list)
    waits: bool = False


def plan(seen: Seen) -> Plan:
    """Return the steps about one owner's kills, in the order in which they must be done.

    Safe to stop after any step; planning again on the reached state finishes the work. A settled owner needs no
    step.
    """
    if seen.rule.level == "off":
        steps = tuple(Release(pod, None, "no policy holds such pods here") for pod in seen.pods if pod.gated)
        return Plan(steps)
    work = _Work(seen, set(seen.forgiven), set(seen.ledger.stopped))
    for pod in seen.pods:
        if not pod.gated:
            continue
        if not seen.rule.holds:
            work.steps.append(Release(pod, None, "no policy holds such pods here"))
        elif pod.asked:
            work.forgiven |= {pod.kill_uid} if pod.kill_uid else set()
            work.steps.append(Release(pod, RELEASED, "a user asked for it"))
        elif pod.outdated:
            work.steps.append(Renew(pod))
    if seen.rule.holds and wanders(seen.owner):
        for slot in sorted({pod.slot for pod in seen.pods} | {kill.slot for kill in seen.kills.values()}):
            _settle(work, slot)
    ledger = _ledger(seen, work)
    had = {kill.uid for kill in seen.ledger.kills}
    news = tuple(kill for kill in ledger.kills if kill.uid not in had)
    first = (Write(ledger, news),) if ledger != seen.ledger else ()
    return Plan((*first, *work.steps), timedelta(seconds=LOOK_SECONDS) if work.waits else None)


def _settle(work: _Work, slot: str) -> None:
    """Hold as many pods as there are kills beyond those allowed: release surplus ones, stop those that slipped
    past.
    """
    # count kills against held pods; those with a step already are done
    seen = work.seen
    done = {step.pod.uid for step in work.steps if isinstance(step, Release | Renew)}
    kills = [kill for kill in seen.kills.values() if kill.slot == slot and kill.uid not in work.forgiven]
    held = sorted(
        (pod for pod in seen.pods if pod.slot == slot and pod.gated and pod.uid not in done),
        key=lambda pod: (pod.created.isoformat() if pod.created else "", pod.uid),
    )
    needed = max(0, len(kills) - seen.rule.allowed + 1)
    # the webhook may have held too many: two replicas for one kill
    for pod in held[needed:]:
        work.steps.append(Release(pod, None, "enough pods are held for the kills"))
    # or too few: it did not know a fresh kill yet when it passed a pod
    open_kills = [
        kill
        for kill in sorted(kills, key=lambda kill: (kill.at, kill.uid))
        if kill.uid not in work.stopped and 0 <= _age(seen, moment(kill.at)) < SLIP_SECONDS
    ]
    unanswered = min(needed - len(held), len(open_kills))
    if unanswered <= 0:
        return
    work.waits = True
    slipped = sorted(
        (
            pod
            for pod in seen.pods
            if pod.slot == slot and not pod.gated and not pod.state and pod.created is not None
        ),
        key=lambda pod: (str(pod.created), pod.uid),
    )
    # stop one pod for each such kill; a pod older than SLIP_SECONDS is left running
    for kill in open_kills[-unanswered:]:
        since = moment(kill.at)
        for pod in slipped:
            if pod.created is None or since is None or pod.created < since or kill.uid in pod.grown:
                continue
            if _age(seen, pod.created) >= SLIP_SECONDS:
                continue
            slipped.remove(pod)
            work.stopped.add(kill.uid)
            work.steps.append(Stop(pod, kill))
            break


def _ledger(seen: Seen, work: _Work) -> Ledger:
    """The newest kills, their total count, and the forgiven and stopped ones of all known kills."""
    before = {kill.uid for kill in seen.ledger.kills}
    kept = sorted(seen.kills.values(), key=lambda kill: (kill.at, kill.uid))[-REMEMBERED:]
    count = seen.ledger.count + sum(
        1 for uid, kill in seen.kills.items() if uid not in before and (kill in kept or not before)
    )
    return Ledger(
        kills=tuple(kept),
        forgiven=frozenset(work.forgiven & set(seen.kills)),
        stopped=frozenset(work.stopped & set(seen.kills)),
        count=count,
    )


def _age(seen: Seen, since: datetime | None) -> float:
    """The time since a moment in seconds. An invalid moment counts as long ago; a future one counts as now."""
    return max(0.0, (seen.now - since).total_seconds()) if since is not None else SLIP_SECONDS


def pod_seen(pod: Mapping[str, Any], owner: Owner, kills: Iterable[Kill], *, outdated: bool = False) -> PodSeen:
    """Parse a pod of the owner that is neither finished nor being deleted."""
    meta = pod["metadata"]
    meant = kill_held_for(pod)
    return PodSeen(
        name=meta["name"],
        uid=meta.get("uid") or "",
        slot=slot_of(pod, owner),
        created=moment(meta.get("creationTimestamp")),
        gated=is_gated(pod),
        state=labels_of(pod).get(MEMORY_LABEL, ""),
        kill_uid=meant.uid if meant is not None else "",
        asked=MEMORY_RELEASE_ANNOTATION in annotations_of(pod),
        outdated=outdated,
        grown=frozenset(kill.uid for kill in kills if has_grown(pod, kill)),
    )


def is_outdated(pod: Mapping[str, Any], stateful_set: Mapping[str, Any] | None) -> bool:
    """Whether the StatefulSet would create this pod from a newer revision.

    The StatefulSet does not replace the pod by itself: it waits until the held pod is ready (kubernetes#67250).
    """
    if stateful_set is None:
        return False
    spec, status = stateful_set.get("spec") or {}, stateful_set.get("status") or {}
    newest = status.get("updateRevision")
    if not newest or status.get("observedGeneration", 0) < (stateful_set["metadata"].get("generation") or 0):
        return False
    if labels_of(pod).get(REVISION_LABEL) in (None, newest):
        return False
    ordinal = pod["metadata"]["name"].rpartition("-")[2]
    start = (spec.get("ordinals") or {}).get("start") or 0
    partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition") or 0
    return ordinal.isdigit() and int(ordinal) >= start + partition
