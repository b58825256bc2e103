"""Decide the next steps of a dataset: its claim, an attempt to fill it, a clone, claims for other tenants. Pure.

A fill is a Job per attempt. The filler resumes where the last attempt was killed. After an attempt that made
progress, the next one starts at once. After one without progress it starts with a growing delay, and after
STALLED_MAX of them the dataset has failed. Only a Job that succeeded makes a dataset Ready, and the filler
succeeds only after it has written its marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from moorage.model.dataset import (
    CLONE,
    DATASET_FINALIZER,
    FAILED,
    FILLING,
    PENDING,
    PUBLISHING,
    READY,
    SHARED,
    USED_BY_MAX,
    DatasetView,
    FillProgress,
    Reader,
    Use,
)
from moorage.model.storageclass import ROX, RWO, RWX, ClassView
from moorage.present.credentials import after_denial
from moorage_kube.backoff import DoublingDelay
from moorage_kube.quantity import counted

STALLED_MAX = 8  # attempts in a row that got no further: some five minutes
STALLED_DELAYS = DoublingDelay(2.0, 120.0)  # pauses after them
LOOK_SECONDS = 2.0  # between two looks at a fill under way
REFUSED_SECONDS = 30.0  # until the next try after the API refused an object
WAIT_SECONDS = 10.0  # for changes that our informers do not report


class ClaimSeen(Struct, frozen=True, kw_only=True):
    """The relevant fields of a claim of the dataset."""

    phase: str = "Pending"
    ours: bool = True
    deleting: bool = False
    modes: tuple[str, ...] = ()


class AttemptSeen(Struct, frozen=True, kw_only=True):
    """One fill Job. `result`: the last result of its filler; `final`: another attempt cannot help."""

    number: int
    name: str
    uid: str
    revision: str
    succeeded: bool = False
    failed: bool = False
    ended: datetime | None = None
    ours: bool = True
    deleting: bool = False
    result: Mapping[str, Any] | None = None
    waiting: str = ""  # why its pod does not start

    @property
    def active(self) -> bool:
        return not (self.succeeded or self.failed)


class ReaderSeen(Struct, frozen=True, kw_only=True):
    """A tenant that may read: its namespace ("" if there is no such tenant), and its claim and volume."""

    tenant: str
    namespace: str = ""
    claim: str = ""
    claim_phase: str = ""  # empty: there is none
    claim_ours: bool = True
    has_volume: bool = False


class Seen(Struct, frozen=True, kw_only=True):
    """A dataset and all data that was read about it, at one moment."""

    dataset: DatasetView
    now: datetime
    claim: ClaimSeen | None = None
    clone: ClaimSeen | None = None
    storage: ClassView | None = None  # its StorageClass; None: there is none of that name
    attempts: Sequence[AttemptSeen] = ()
    readers: Sequence[ReaderSeen] = ()
    strangers: Sequence[tuple[str, str]] = ()  # namespace, claim: of readers that may read no longer
    shareable: str = ""  # why its volume cannot be given to other namespaces; empty: it can, or it has none yet
    uses: Sequence[Use] = ()
    image: bool = True  # whether it is known in which image the filler runs
    refused: str = ""  # why the API will not have the Job or the claim


class MakeClaim(Struct, frozen=True):
    mode: str


class MakeClone(Struct, frozen=True):
    pass


class MakeJob(Struct, frozen=True):
    number: int


class DropJob(Struct, frozen=True):
    attempt: AttemptSeen


class ShareWith(Struct, frozen=True):
    """Create the volume and the claim of a reader, if they are missing."""

    reader: ReaderSeen


class Unshare(Struct, frozen=True):
    """Delete a claim in another namespace, and its volume."""

    namespace: str
    claim: str


class SetFinalizer(Struct, frozen=True):
    present: bool


Action = MakeClaim | MakeClone | MakeJob | DropJob | ShareWith | Unshare | SetFinalizer


class Word(Struct, frozen=True, kw_only=True):
    """The new value of a condition."""

    status: bool
    reason: str
    message: str = ""


class NewStatus(Struct, frozen=True, kw_only=True):
    """The new status, without its conditions."""

    phase: str
    claim: str = ""
    access: str = ""
    files: int = 0
    bytes: int = 0
    checksum: str = ""
    source_version: str = ""
    filled_at: datetime | None = None  # None: as it was
    revision: str = ""
    attempts: int = 0
    stalled: int = 0
    mark: int = 0
    progress: FillProgress | None = None
    readers: tuple[Reader, ...] = ()
    used_by: tuple[Use, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    status: NewStatus
    ready: Word
    shared: Word | None = None
    actions: tuple[Action, ...] = ()
    look_again_in: timedelta | None = field(default=None)


def method_of(seen: Seen) -> tuple[str, str]:
    """The method by which many nodes can read the dataset: (method, ""), or ("", why it is impossible)."""
    spec, storage = seen.dataset.spec, seen.storage
    if seen.dataset.status.access:
        return seen.dataset.status.access, ""
    if storage is None:
        if seen.claim is not None and seen.claim.modes:
            return (SHARED if RWX in seen.claim.modes else CLONE), ""
        if spec.storage_class:
            return "", f"there is no StorageClass {spec.storage_class!r}"
        return "", "the cluster has no default StorageClass: name one"
    if spec.access in (SHARED, CLONE):
        needed = RWX if spec.access == SHARED else ROX
        if storage.offers(needed) is False:
            return "", f"StorageClass {storage.name} ({storage.provisioner}) makes no {needed} volumes"
        return spec.access, ""
    if storage.modes is None or RWX in storage.modes:
        return SHARED, ""  # an unknown one is asked: it says so itself when it cannot
    if ROX in storage.modes:
        return CLONE, ""
    return "", (
        f"volumes of StorageClass {storage.name} ({storage.provisioner}) are read by one node alone; choose one"
        " with RWX or ROX: `moor volume classes` lists them"
    )


def plan(seen: Seen) -> Plan:
    """The next steps. Safe to stop after any of them; a settled dataset has none."""
    dataset = seen.dataset
    if dataset.deleting:
        return _plan_deletion(seen)
    status = dataset.status
    new_status = NewStatus(
        phase=PENDING,
        claim=status.claim,
        access=status.access,
        files=status.files,
        bytes=status.bytes,
        checksum=status.checksum,
        source_version=status.source_version,
        revision=status.revision or dataset.revision,
        attempts=status.attempts,
        stalled=status.stalled,
        mark=status.mark,
        progress=status.progress,
        readers=tuple(status.readers),
        used_by=_used_by(seen),
    )
    if status.phase == READY:
        # the result is stored: an ended filler's pod would only block the claim that it read from
        ended = (attempt for attempt in seen.attempts if attempt.ours and not attempt.active)
        drops = tuple(DropJob(attempt) for attempt in ended if not attempt.deleting)
        decided = _plan_ready(seen, replace(new_status, phase=READY))
        return replace(decided, actions=(*decided.actions, *drops))
    if status.revision and status.revision != dataset.revision:  # the source was changed, or has to be read again
        new_status = replace(
            new_status, revision=dataset.revision, attempts=new_status.attempts, stalled=0, mark=0, progress=None
        )
    if dataset.faults:
        fault = dataset.faults[0]
        return _failed(new_status, "Invalid", f"{fault.field}: {fault.value!r} {fault.message}")
    return _plan_fill(seen, new_status)


def _plan_fill(seen: Seen, status: NewStatus) -> Plan:
    dataset, claim = seen.dataset, seen.claim
    method, why_not = method_of(seen)
    if why_not:
        return _failed(status, "NoStorage", why_not)
    status = replace(status, access=method)
    if claim is None:
        if seen.refused:
            return _failed(status, "Refused", seen.refused, again=REFUSED_SECONDS)
        return _filling(
            status, "MakingVolume", actions=(MakeClaim(RWX if method == SHARED else RWO),), phase=PENDING
        )
    if not claim.ours:
        return _failed(
            status, "NameTaken", f"a volume {dataset.claim!r} that belongs to another owner exists already"
        )
    if claim.deleting:
        return _filling(status, "VolumeGoing", "its volume is being deleted", phase=PENDING, again=WAIT_SECONDS)
    status = replace(status, claim=dataset.claim)
    mine = [attempt for attempt in seen.attempts if attempt.ours]
    stranger = next((attempt for attempt in seen.attempts if not attempt.ours), None)
    if stranger is not None:
        return _failed(
            status, "NameTaken", f"a Job {stranger.name!r} that belongs to another owner exists already"
        )
    stale = [attempt for attempt in mine if attempt.revision != status.revision]
    current = sorted((a for a in mine if a.revision == status.revision), key=lambda attempt: attempt.number)
    drops = tuple(DropJob(attempt) for attempt in stale if not attempt.deleting)
    if stale:
        # an old filler may still write: no new one begins yet
        return _filling(status, "Starting", "the attempt before is ending", actions=drops, again=LOOK_SECONDS)
    done = next((attempt for attempt in current if attempt.succeeded and _is_ready(attempt.result, status)), None)
    if done is not None:
        return _publish(seen, _with_result(status, done), done)
    active = next((attempt for attempt in current if attempt.active), None)
    old = tuple(DropJob(attempt) for attempt in current[:-1] if not attempt.active and not attempt.deleting)
    if active is not None:
        status = replace(status, progress=_progress(active.result) or status.progress)
        if active.waiting:
            return _filling(status, "Waiting", active.waiting, actions=old, again=WAIT_SECONDS)
        return _filling(status, "Filling", _words(status.progress), actions=old, again=LOOK_SECONDS)
    last = current[-1] if current else None
    if last is None:
        return _begin(seen, status, old)
    return _after_failure(seen, status, last, old)


def _after_failure(seen: Seen, status: NewStatus, last: AttemptSeen, old: tuple[Action, ...]) -> Plan:
    """Retry or fail after an attempt that failed, or succeeded without a result (its pod was lost).

    The counters are written only together with the next attempt, so each attempt counts once.
    """
    result = last.result or {}
    if result.get("phase") == "failed" and result.get("final"):
        message = str(result.get("message") or "the filler failed")
        if result.get("reason") == "SourceDenied":
            message = f"{message[:800]}: {after_denial(seen.dataset.spec.source.secret)}"
        return _failed(status, str(result.get("reason") or "FillFailed"), message)
    got_to = _got_to(status.progress)
    further = got_to > status.mark or (last.succeeded and status.stalled == 0)
    counted = replace(status, mark=max(status.mark, got_to), stalled=0 if further else status.stalled + 1)
    why = str(result.get("message") or "its filler was killed, or its node was lost")
    if counted.stalled >= STALLED_MAX:
        message = f"{counted.stalled} attempts got no further; the last: {why}"
        return _failed(status, str(result.get("reason") or "FillFailed"), message)
    if counted.stalled and last.ended is not None:
        pause = STALLED_DELAYS.after(counted.stalled)
        left = pause - (seen.now - last.ended).total_seconds()
        if left > 0:
            return _filling(
                status, "Retrying", f"tried again within {pause:.0f} s: {why}", actions=old, again=left
            )
    return _begin(seen, counted, old)


def _got_to(progress: FillProgress | None) -> int:
    """How many bytes of the source are on the volume."""
    if progress is None or progress.phase == "listing":
        return 0
    return progress.bytes if progress.phase == "filling" else max(progress.bytes, progress.bytes_total or 0)


def _begin(seen: Seen, status: NewStatus, old: tuple[Action, ...]) -> Plan:
    if not seen.image:
        return _failed(
            status, "NoImage", "the operator does not know the image that the filler runs in: set MOORAGE_IMAGE"
        )
    if seen.refused:
        return _failed(status, "Refused", seen.refused, again=REFUSED_SECONDS)
    number = max([status.attempts, *(attempt.number for attempt in seen.attempts)], default=0) + 1
    return _filling(
        replace(status, attempts=number), "Starting", _words(status.progress), actions=(*old, MakeJob(number))
    )


def _publish(seen: Seen, status: NewStatus, done: AttemptSeen) -> Plan:
    """Steps for a filled and checked dataset, so that many nodes can read it."""
    if status.access == SHARED:
        return _plan_ready(seen, replace(status, phase=READY, filled_at=done.ended or seen.now))
    if seen.clone is None:
        if seen.refused:
            return _failed(status, "Refused", seen.refused, again=REFUSED_SECONDS)
        return _filling(
            status, "Cloning", "a clone that many nodes can read is made", (MakeClone(),), phase=PUBLISHING
        )
    if not seen.clone.ours:
        return _failed(status, "NameTaken", "the clone's volume exists already and belongs to another owner")
    waits = seen.storage is not None and seen.storage.waits
    if seen.clone.phase != "Bound" and not waits:
        return _filling(status, "Cloning", "the clone is being made", phase=PUBLISHING, again=WAIT_SECONDS)
    from moorage.model.dataset import clone_name

    status = replace(status, claim=clone_name(seen.dataset.name))
    return _plan_ready(seen, replace(status, phase=READY, filled_at=done.ended or seen.now))


def _plan_ready(seen: Seen, status: NewStatus) -> Plan:
    """Plan for a dataset that is filled: its data is fixed; its readers may change."""
    dataset = seen.dataset
    status = replace(status, progress=None, readers=tuple(_reader(seen, each) for each in seen.readers))
    actions: list[Action] = []
    wanted = [each for each in seen.readers if each.namespace and each.namespace != dataset.namespace]
    has_finalizer = DATASET_FINALIZER in dataset.finalizers
    # the volume was deleted: the dataset fails and is not filled again
    if seen.claim is None:
        return Plan(
            status=replace(status, phase=FAILED),
            ready=Word(
                status=False, reason="VolumeLost", message="its volume was deleted: create the dataset again"
            ),
        )
    # the finalizer comes first: claims in other namespaces are not deleted by owner reference
    if wanted and not seen.shareable and not has_finalizer:
        actions.append(SetFinalizer(True))
    elif not seen.shareable:
        actions += [ShareWith(each) for each in wanted if not (each.has_volume and each.claim_phase)]
    actions += [Unshare(namespace, claim) for namespace, claim in seen.strangers]
    if has_finalizer and not wanted and not seen.strangers:
        actions.append(SetFinalizer(False))
    # the data is fixed: a changed source only changes the message
    message = f"{counted(status.files or 0, 'file')}, {counted(status.bytes or 0, 'byte')}"
    if status.revision != dataset.revision:
        message += "; its source was changed since, which changes nothing: make another dataset"
    # the condition Shared exists only if there are readers
    shared = None
    if seen.readers:
        bad = [f"{each.tenant}: {each.message}" for each in status.readers if not each.ready and each.message]
        shared = (
            Word(status=False, reason="NotShared", message="; ".join(bad)[:1000])
            if bad
            else Word(status=all(each.ready for each in status.readers), reason="Shared")
        )
    waiting = any(not each.ready for each in status.readers) or bool(seen.strangers)
    return Plan(
        status=status,
        ready=Word(status=True, reason="Filled", message=message),
        shared=shared,
        actions=tuple(actions),
        look_again_in=timedelta(seconds=WAIT_SECONDS) if waiting else None,
    )


def _reader(seen: Seen, each: ReaderSeen) -> Reader:
    if not each.namespace:
        return Reader(tenant=each.tenant, message="there is no such tenant")
    if each.namespace == seen.dataset.namespace:
        return Reader(tenant=each.tenant, namespace=each.namespace, claim=seen.dataset.status.claim, ready=True)
    if seen.shareable:
        return Reader(tenant=each.tenant, namespace=each.namespace, message=seen.shareable)
    if each.claim_phase and not each.claim_ours:
        taken = f"a volume {each.claim!r} that belongs to another owner exists there"
        return Reader(tenant=each.tenant, namespace=each.namespace, message=taken)
    return Reader(
        tenant=each.tenant, namespace=each.namespace, claim=each.claim, ready=each.claim_phase == "Bound"
    )


def _plan_deletion(seen: Seen) -> Plan:
    """Delete claims of other namespaces first, then the finalizer; owner references delete the rest."""
    status = seen.dataset.status
    new_status = NewStatus(
        phase=status.phase or PENDING,
        claim=status.claim,
        access=status.access,
        files=status.files,
        bytes=status.bytes,
        checksum=status.checksum,
        source_version=status.source_version,
        revision=status.revision,
        attempts=status.attempts,
        stalled=status.stalled,
        mark=status.mark,
        used_by=_used_by(seen),
        readers=tuple(status.readers),
    )
    word = Word(status=False, reason="Deleting", message="claims of other tenants go first")
    left = [
        *((each.namespace, each.claim) for each in seen.readers if each.claim_phase or each.has_volume),
        *seen.strangers,
    ]
    actions: tuple[Action, ...] = tuple(Unshare(namespace, claim) for namespace, claim in left)
    if not left and DATASET_FINALIZER in seen.dataset.finalizers:
        actions = (SetFinalizer(False),)
    again = timedelta(seconds=LOOK_SECONDS) if left else None
    return Plan(status=new_status, ready=word, actions=actions, look_again_in=again)


def _filling(
    status: NewStatus,
    reason: str,
    message: str = "",
    actions: tuple[Action, ...] = (),
    *,
    phase: str = FILLING,
    again: float | None = None,
) -> Plan:
    return Plan(
        status=replace(status, phase=phase),
        ready=Word(status=False, reason=reason, message=message),
        actions=actions,
        look_again_in=None if again is None else timedelta(seconds=again),
    )


def _failed(status: NewStatus, reason: str, message: str, *, again: float | None = None) -> Plan:
    return Plan(
        status=replace(status, phase=FAILED),
        ready=Word(status=False, reason=reason, message=message[:1000]),
        look_again_in=None if again is None else timedelta(seconds=again),
    )


def _is_ready(result: Mapping[str, Any] | None, status: NewStatus) -> bool:
    return result is not None and result.get("phase") == "ready" and result.get("revision") == status.revision


def _with_result(status: NewStatus, done: AttemptSeen) -> NewStatus:
    result = done.result or {}
    return replace(
        status,
        files=int(result.get("files") or 0),
        bytes=int(result.get("bytes") or 0),
        checksum=str(result.get("sha256") or ""),
        source_version=str(result.get("versions") or ""),
        stalled=0,
    )


def _progress(result: Mapping[str, Any] | None) -> FillProgress | None:
    """The filler's last result, if it is progress; None for any other text."""
    if result is None or result.get("phase") not in ("listing", "filling", "verifying", "unpacking", "receiving"):
        return None
    totals = {
        name: int(result[key])
        for name, key in (("files_total", "filesTotal"), ("bytes_total", "bytesTotal"))
        if isinstance(result.get(key), int) and result[key] >= 0
    }
    files, size = result.get("files"), result.get("bytes")
    return FillProgress(
        phase=str(result["phase"]),
        files=files if isinstance(files, int) and files >= 0 else 0,
        bytes=size if isinstance(size, int) and size >= 0 else 0,
        **totals,
    )


def _words(progress: FillProgress | None) -> str:
    if progress is None:
        return ""
    files = _part(progress.files, progress.files_total, "file")
    size = _part(progress.bytes, progress.bytes_total, "byte")
    return f"{progress.phase}: {files}, {size}"


def _part(count: int, total: int | None, noun: str) -> str:
    """Format a progress: "3 of 10 files", or "1 file" if the total is unknown."""
    return counted(count, noun) if total is None else f"{count:,} of {counted(total, noun)}"


def _used_by(seen: Seen) -> tuple[Use, ...]:
    """The current and past uses of the dataset, active and new ones first, at most USED_BY_MAX."""
    known = {(use.namespace, use.name): replace_use(use, active=False) for use in seen.dataset.status.used_by}
    known |= {(use.namespace, use.name): use for use in seen.uses}
    uses = sorted(known.values(), key=lambda use: (not use.active, _reversed(use.since), use.namespace, use.name))
    return tuple(uses[:USED_BY_MAX])


def replace_use(use: Use, *, active: bool) -> Use:
    return Use(namespace=use.namespace, name=use.name, active=active, since=use.since)


def _reversed(text: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in text) or (1,)
