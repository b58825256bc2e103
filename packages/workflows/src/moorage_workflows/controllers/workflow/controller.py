"""Workflows, kept going: the reads and writes around `moorage_workflows.decide.workflows.graph`.

A run is loaded from its records when its object is first seen. Then it lives in memory, is told of its pods, and
each decision is carried out in the order that docs/design/0021 gives. When anything goes wrong on the way, the run
is dropped and loaded anew: the records are the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from moorage.cluster.argo import running_controller
from moorage.controllers.base import Controller, Shared
from moorage.controllers.loop import is_full_look
from moorage.controllers.run.plan import is_lost
from moorage.decide.evaluation import TextError
from moorage.model.argo import (
    CRON_LABEL,
    INSTANCE_LABEL,
    NODE_ID_ANNOTATION,
    OUR_INSTANCE,
    POD_FINALIZER,
    WORKFLOW_LABEL,
    WORKFLOWS,
    is_free,
    is_ours,
)
from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    QuotaExceeded,
)
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, annotations_of, is_deleting, key_of, labels_of, owner_reference
from moorage_kube.remote.objects import EventType
from moorage_kube.resources import CONFIGMAPS, LEASES, NAMESPACES, NODES, PDBS, PODS, PVCS, SECRETS, Obj
from moorage_workflows.controllers.workflow.budget import make_budget
from moorage_workflows.controllers.workflow.collecting import Collector
from moorage_workflows.controllers.workflow.commands import Asked, ImageCommands, architectures_of, names_of
from moorage_workflows.controllers.workflow.documents import Check, Documents
from moorage_workflows.controllers.workflow.live import Live
from moorage_workflows.controllers.workflow.locks import LIMITS_EVERY, RunLocks
from moorage_workflows.controllers.workflow.observe import has_executor, is_held, is_of, keep_pod, pod_seen
from moorage_workflows.controllers.workflow.podline import PodLine
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.summary import collect_at, pod_delete_at, summary_patch
from moorage_workflows.decide.workflows.collection import collects
from moorage_workflows.decide.workflows.graph.again import nodes_taken_over, nodes_to_forget, with_exports_of
from moorage_workflows.decide.workflows.graph.events import (
    ConfigMapValue,
    Controls,
    CreatePod,
    Decision,
    Locks,
    PodSeen,
    Recall,
    Refusal,
)
from moorage_workflows.decide.workflows.graph.locks import (
    locks_held,
)
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.decide.workflows.graph.scopes import globals_of
from moorage_workflows.decide.workflows.pods import CommandMissing, PodError, PodRequest, StepRuntime, make_pod
from moorage_workflows.decide.workflows.text.tags import substitute
from moorage_workflows.decide.workflows.waiting import IN_LINE
from moorage_workflows.model.workflow import (
    ENDED_PHASES,
    RESUME_ANNOTATION,
    RETRY_ANNOTATION,
    TAKE_OVER_ANNOTATION,
    Memo,
    NodeRecord,
    Outputs,
    Resume,
    Retry,
    WorkflowRecord,
    is_strict,
)

log = logging.getLogger(__name__)

STATUS_EVERY = timedelta(seconds=2)
NO_ROOM = "quota exceeded"  # of a run whose records found no room, so that nothing is kept of it
QUOTA_EVERY = timedelta(seconds=5)  # between two tries to create a pod that a quota refused
GOING_EVERY = timedelta(seconds=10)  # between two looks at a pod whose node has not confirmed its deletion
RUNTIME_EVERY = timedelta(minutes=1)  # between two looks at what pods need of the installation
DIGEST_CHARACTERS = 12  # of a token's digest, in the name of its Secret
NOT_OF_NODES = "metadata.namespace!=kube-node-lease"  # kubelets renew theirs every ten seconds
AT_ONCE = 16  # writes to the API server


class WorkflowController(Controller):
    """One per operator.

    `holder`: a text that no other operator, and no earlier term of this one, has. `runtime`: what pods need of
    this installation; asked when the first pod is made. `check`: what is refused before a run begins. `commands`:
    what images run, where steps do not say it; None: only `runtime` knows.
    """

    def __init__(
        self,
        shared: Shared,
        records: RecordStore,
        *,
        holder: str,
        runtime: Callable[[], Awaitable[StepRuntime]],
        check: Check,
        commands: ImageCommands | None = None,
    ) -> None:
        super().__init__(shared, "workflow", by_namespace=True)
        self._records, self._holder, self._find_runtime = records, holder, runtime
        self._commands, self._lost_after, self._evaluation = commands, shared.lost_after, shared.evaluation
        self._workflows = self._follow(WORKFLOWS)
        self._pods = self._follow(
            PODS,
            label_selector=WORKFLOW_LABEL,
            indexes={"workflow": index_by_label(WORKFLOW_LABEL)},
            keep=keep_pod,
        )
        self._nodes = self._follow(NODES)
        self._leases = self._follow(LEASES, field_selector=NOT_OF_NODES)
        self._namespaces = self._follow(NAMESPACES)
        self._live: dict[Key, Live] = {}
        self._changed: dict[Key, set[str]] = {}  # as in `Live`, from before the pods of a run are listed
        self._deletions: dict[Key, tuple[str, dict[str, datetime]]] = {}  # of ended ones: uid, and as in `Live`
        self._gone: dict[Key, set[str]] = {}  # uids of objects that were deleted, until the records know it
        self._runtime: StepRuntime | None = None
        self._runtime_read_at = 0.0
        self._collector = Collector(shared, records, holder=holder, runtime=self._step_runtime)
        self._documents = Documents(shared, check)
        self._locks = RunLocks(
            shared, records, holder=holder, namespaces=self._namespaces, live=self._live, look=self.loop.queue.add
        )
        self._pods.on_change(self._note_pod)  # before the loop hears of it
        self._workflows.on_change(self._note_gone)
        self.loop.hear(self._workflows, lambda obj: [key_of(obj)])
        self.loop.hear(self._pods, _workflow_of)
        for informer in (
            self._nodes,
            self._leases,
            self._namespaces,
        ):  # only read, but whole before the first look
            self.loop.hear(informer, lambda _obj: ())

    def _note_pod(self, before: Obj | None, after: Obj | None) -> None:
        pod = after or before
        assert pod is not None
        for key in _workflow_of(pod):
            if (changed := self._changed.get(key)) is not None:
                changed.add(pod["metadata"]["name"])

    def _note_gone(self, before: Obj | None, after: Obj | None) -> None:
        if before is not None and after is None:
            self._gone.setdefault(key_of(before), set()).add(str(before["metadata"]["uid"]))

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one workflow a step further; return when to look again."""
        obj = self._workflows.get(key.name, key.namespace)
        await self._locks.restore()
        if obj is None or is_deleting(obj):
            await self._leave(key, obj)
            if obj is None or not is_ours(obj):
                return None
            return await self._collector.collect(key, obj, is_deleting=True)
        if key in self._gone:  # an earlier one of this name
            await self._bury(key, str(obj["metadata"]["uid"]))
        if not is_ours(obj):
            return await self._adopt(key, obj)
        live = self._live.get(key)
        if live is not None and live.uid != obj["metadata"]["uid"]:
            self._drop(key)
            live = None
        try:
            if live is None:
                if (text := annotations_of(obj).get(RETRY_ANNOTATION)) is not None:
                    await self._retry(key, obj, text)
                    return None  # the change of the object brings it here again
                if (obj.get("status") or {}).get("phase") in ENDED_PHASES:
                    return await self._collect(key, obj)
                live = await self._begin(key, obj)
                if live is None:
                    return None
            return await self._go_on(key, obj, live)
        except Forbidden as error:
            self._drop(key)
            if not error.is_of_ending_namespace:
                raise
            # no pod can be made any more, and Kubernetes deletes the Workflow only when its pods are gone
            for pod in self._pods_of(key):
                if is_held(pod) and is_of(pod, obj["metadata"]["uid"]):
                    await self._release(pod["metadata"]["name"], key.namespace)
            return None
        except BaseException:
            self._drop(key)
            raise

    # --- whose it is

    async def _adopt(self, key: Key, obj: Obj) -> timedelta | None:
        """Take what nobody has, where Argo's controller does not run."""
        if not is_free(obj) or (obj.get("status") or {}).get("phase"):
            return None
        if (argo := running_controller(self._leases.all(), self._clock.now())) is not None:
            log.debug("workflow left to Argo", extra={"workflow": str(key), "lease": str(argo)})
            return timedelta(minutes=1)
        patch = {
            "metadata": {
                "resourceVersion": obj["metadata"]["resourceVersion"],
                "labels": {INSTANCE_LABEL: OUR_INSTANCE},
            }
        }
        with contextlib.suppress(NotFound):
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace)
        return None

    async def _leave(self, key: Key, obj: Obj | None) -> None:
        """The object is gone, or going: its pods may go too."""
        live = self._live.get(key)
        self._forget(key)
        uids = self._gone.setdefault(key, set())
        uids |= {live.uid} if live is not None else set()
        uids |= {str(obj["metadata"]["uid"])} if obj is not None else set()
        await self._bury(key, "")

    async def _bury(self, key: Key, uid: str) -> None:
        """Note that objects of this name are gone, but for the one with `uid`, and let their pods go."""
        if (live := self._live.get(key)) is not None and live.uid != uid:
            self._drop(key)
        for gone in sorted(self._gone.get(key, ())):
            await self._records.gone(gone, self._clock.now())
            self._locks.release(gone)
        for pod in self._pods_of(key):
            if not is_held(pod) or (uid and is_of(pod, uid)):
                continue  # not ours to end: the pods of another controller, or those of a new workflow
            await self._release(pod["metadata"]["name"], key.namespace)
            if not is_deleting(pod):
                with contextlib.suppress(NotFound):
                    await self._api.delete(PODS, pod["metadata"]["name"], key.namespace)
        self._gone.pop(key, None)

    def _drop(self, key: Key) -> None:
        self._changed.pop(key, None)
        if (live := self._live.pop(key, None)) is not None:
            live.run.close()

    def _forget(self, key: Key) -> None:
        """Nothing more is to be done for an object of this name."""
        self._drop(key)
        self._deletions.pop(key, None)

    def _pods_of(self, key: Key) -> list[Obj]:
        return [
            pod
            for pod in self._pods.by_index("workflow", key.name)
            if pod["metadata"]["namespace"] == key.namespace
        ]

    # --- the beginning

    async def _begin(self, key: Key, obj: Obj) -> Live | None:
        """Load the run, or make it; None: it cannot be made, and its object says why."""
        uid = obj["metadata"]["uid"]
        now = self._clock.now()
        try:
            loaded = await self._records.load(uid, self._holder)
            record = loaded.workflow
        except NotFound:
            document, faults = await self._documents.read(key, obj)
            record = WorkflowRecord(
                uid=uid,
                namespace=key.namespace,
                name=key.name,
                document=document,
                created_at=str(obj["metadata"].get("creationTimestamp") or ""),
                owner=annotations_of(obj).get(OWNER_ANNOTATION, ""),
                cron=labels_of(obj).get(CRON_LABEL, ""),
                token_digest=await self._token_digest(key, obj),
            )
            if faults:
                record = _failed(record, f"invalid spec: {'; '.join(faults)}", now)
            try:
                await self._records.begin(record)
            except QuotaExceeded as error:  # nothing is kept of it
                failed = _failed(record, f"{NO_ROOM}: {error.message}; {error.hint}", now)
                await self._report(key, obj, failed, force=True)
                return None
            loaded = await self._records.load(uid, self._holder)
            record = loaded.workflow
        nodes = loaded.nodes
        earlier = annotations_of(record.document).get(TAKE_OVER_ANNOTATION)
        if earlier and not record.started_at and not nodes:
            taken = await self._taken_over(record, earlier, now)
            if isinstance(taken, str):
                record = _failed(record, taken, now)
                await self._records.save(uid, self._holder, workflow=record)
            else:
                record, nodes = taken
                await self._records.save(uid, self._holder, nodes, record)
        if record.phase not in ENDED_PHASES and (refusal := await self._claims(key, obj, record)):
            record = msgspec.structs.replace(_failed(record, f"pvc create error: {refusal}", now), phase="Error")
            await self._records.save(uid, self._holder, workflow=record)
        if record.phase in ENDED_PHASES:  # the object does not say it yet: the end was cut off
            await self._end(key, record, {node.pod_name: node for node in nodes})
            await self._report(key, obj, record, force=True)
            return None
        if collects(record.document):
            await self._collector.add_finalizer(key, obj)
        await self._budget(key, obj, record)
        # as the API server has them: a copy may be older than the pods that an earlier operator made. What becomes
        # of them from here on is heard of, however long it is until the run is there
        changed = self._changed[key] = set()
        selector = f"{WORKFLOW_LABEL}={key.name}"
        pods = [
            keep_pod(pod)
            for pod in (await self._api.list(PODS, key.namespace, label_selector=selector)).items
            if is_of(pod, uid)
        ]
        seen = await self._see(record.uid, pods)
        run = Run(record, nodes=nodes, pods=seen, now=self._clock.now())
        for holder, locks in locks_held(record, nodes):
            self._locks.table.restore(uid, holder, locks)
        recorded = {node.pod_name for node in nodes if node.phase.is_fulfilled and node.pod_name}
        for pod in pods:
            if is_held(pod) and pod["metadata"]["name"] in recorded:
                await self._release(pod["metadata"]["name"], key.namespace)
        line = PodLine(bounded=not is_strict(record.document))
        live = self._live[key] = Live(run, uid, line, changed)
        for each in seen:
            _note_place(live, each)
        changed |= {pod["metadata"]["name"] for pod in pods if is_deleting(pod)}
        for pod in pods:
            name = pod["metadata"]["name"]
            at = pod_delete_at(record, run.node_of_pod(name), pod) if name in recorded else None
            if at is not None:
                live.deletions[name] = at
        return live

    async def _taken_over(
        self, record: WorkflowRecord, uid: str, now: datetime
    ) -> tuple[WorkflowRecord, tuple[NodeRecord, ...]] | str:
        """A new run's record and nodes, with what it takes over from the run with this uid; a text: why it cannot.

        A run of another namespace is as one that is not there.
        """
        try:
            earlier = await self._records.load(uid, self._holder)
        except NotFound:
            earlier = None
        if earlier is None or earlier.workflow.namespace != record.namespace:
            return (
                f"the workflow to take results from (uid {uid}) is not kept in this namespace: resubmit every step"
            )
        name = earlier.workflow.name
        if earlier.workflow.phase not in ENDED_PHASES:
            return f"the workflow to take results from, {name}, has not ended: wait for it, and resubmit it then"
        nodes = nodes_taken_over(earlier.nodes, earlier=name, name=record.name, now=now)
        return with_exports_of(record, earlier.workflow), nodes

    async def _token_digest(self, key: Key, obj: Obj) -> str:
        """The digest of a new token by which the run's pods report. It is in a Secret that is made here.

        The Secret is named by the digest: an operator that is killed before the record is kept leaves one that
        nothing uses, and the next one need not read it. It goes with the Workflow.
        """
        token = secrets.token_urlsafe(32)
        digest = f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {
                "name": secret_name(key.name, digest),
                "namespace": key.namespace,
                "labels": {WORKFLOW_LABEL: key.name},
                "ownerReferences": [owner_reference(_typed(obj))],
            },
            "stringData": {"token": token},
        }
        await self._api.create(SECRETS, secret, key.namespace)
        return digest

    async def _claims(self, key: Key, obj: Obj, record: WorkflowRecord) -> str:
        """Make the volumes of `spec.volumeClaimTemplates`. Returns why one can never be made; empty: all are made.

        Raises ApiError for what may be otherwise later, such as a quota.
        """
        try:
            templates = await self._claim_templates(key, record)
        except TextError as error:
            return error.message
        for name, template in templates.items():
            claim: Obj = {
                "apiVersion": "v1",
                "kind": PVCS.kind,
                "metadata": {
                    **{
                        field: (template.get("metadata") or {}).get(field) or {}
                        for field in ("labels", "annotations")
                    },
                    "name": f"{key.name}-{name}",
                    "namespace": key.namespace,
                    "ownerReferences": [owner_reference(_typed(obj))],
                },
                "spec": dict(template.get("spec") or {}),
            }
            claim["metadata"]["labels"] = claim["metadata"]["labels"] | {WORKFLOW_LABEL: key.name}
            try:
                await self._api.create(PVCS, claim, key.namespace)
            except AlreadyExists:
                continue
            except (Invalid, BadRequest, Forbidden) as error:
                if _is_quota(error):
                    raise
                return error.message
        return ""

    async def _claim_templates(self, key: Key, record: WorkflowRecord) -> dict[str, Mapping[str, Any]]:
        """Raises TextError."""
        if not (record.document.get("spec") or {}).get("volumeClaimTemplates"):
            return {}
        return await self._evaluation.think(key.namespace, f"Workflow {key}", _claim_templates, record)

    async def _claim_names(self, key: Key, record: WorkflowRecord) -> Sequence[str]:
        """Of the claims that may have been made; none where the templates cannot be read."""
        try:
            return list(await self._claim_templates(key, record))
        except TextError:
            return ()

    async def _budget(self, key: Key, obj: Obj, record: WorkflowRecord) -> None:
        """Make the PodDisruptionBudget of `spec.podDisruptionBudget`."""
        budget = make_budget(record, owner_reference(_typed(obj)))
        if budget is None:
            return
        try:
            await self._api.create(PDBS, budget, key.namespace)
        except AlreadyExists:
            return
        except (Invalid, BadRequest, Forbidden) as error:
            words = f"the PodDisruptionBudget is not made: {error.message}"
            await self._events.record(_typed(obj), "Warning", "PodDisruptionBudgetRefused", words)

    async def _end_budget(self, key: Key, record: WorkflowRecord) -> None:
        """Delete the PodDisruptionBudget of a run that has ended; one of somebody else stays."""
        if not (record.document.get("spec") or {}).get("podDisruptionBudget"):
            return
        with contextlib.suppress(NotFound):
            budget = await self._api.get(PDBS, key.name, key.namespace)
            if is_of(budget, record.uid):
                await self._api.delete(PDBS, key.name, key.namespace, uid=budget["metadata"]["uid"])

    async def _retry(self, key: Key, obj: Obj, text: str) -> None:
        """Forget what is to run again. `text`: of the annotation, which goes when the object says Running.

        Cut anywhere, it is finished by the next try: an open record is not retried again.
        """
        status = obj.get("status") or {}
        if str(status.get("message") or "").startswith(NO_ROOM):  # it begins for the first time
            await self._api.patch(WORKFLOWS, key.name, {"status": None}, key.namespace)
        with contextlib.suppress(NotFound):
            loaded = await self._records.load(str(obj["metadata"]["uid"]), self._holder)
            record = loaded.workflow
            if record.phase in ENDED_PHASES:
                ids = nodes_to_forget(loaded.nodes, _decoded(text, Retry))
                record = msgspec.structs.replace(
                    record, phase="Running", message="", finished_at="", retries=record.retries + 1
                )
                await self._records.forget_nodes(record.uid, self._holder, ids, record)
            await self._report(key, obj, record, force=True)
        self._deletions.pop(key, None)
        await self._take_off(key, RETRY_ANNOTATION, text)

    # --- on the way

    async def _go_on(self, key: Key, obj: Obj, live: Live) -> timedelta | None:
        run = live.run
        changed = live.changed | (await self._forgotten(key, live) if is_full_look() else set())
        live.changed.clear()
        going = await self._tell_of_pods(key, live, changed)
        controls = _controls(obj)
        if controls != live.controls:
            live.controls = controls
            run.control(controls)
        asked = await self._resume(key, live) if RESUME_ANNOTATION in annotations_of(obj) else None
        if self._locks.table.wanted():
            await self._locks.grant()
        look_again: timedelta | None = None
        limits = LIMITS_EVERY
        while True:
            limits = self._locks.explain(live) or LIMITS_EVERY
            for granted in live.granted:
                run.answer(granted, None)
            live.granted = []
            decision = await self._decide(key, live)
            look_again = decision.look_again_in
            if not await self._carry_out(key, live, decision):
                break
        if asked is not None and await self._take_off(key, RESUME_ANNOTATION, asked):
            live.resumed = []
        if run.is_done:
            self._locks.release(live.uid)
            # before the object says that it has ended: afterwards nobody looks for what is left
            await self._end(key, run.workflow, run.nodes_by_pod)
            await self._report(key, obj, run.workflow, live=live, force=True)
            self._drop(key)
            return None
        wait = await self._create_held(key, live)
        reported = await self._report(key, obj, run.workflow, live=live)
        locks = limits if self._locks.table.is_waiting(live.uid) else None
        delays = (look_again, wait, reported, locks, going, await self._delete_due(key, live.deletions))
        return min((delay for delay in delays if delay is not None), default=None)

    async def _forgotten(self, key: Key, live: Live) -> set[str]:
        """Names of the run's pods, and of those that it waits for and that exist no more."""
        names = {pod["metadata"]["name"] for pod in self._pods_of(key)}
        for name in live.run.awaited_pods - names - live.held.keys():
            if live.line.has(name):
                continue
            try:  # our copy may be older than the pod
                await self._api.get(PODS, name, key.namespace)
            except NotFound:
                names.add(name)
        return names

    async def _decide(self, key: Key, live: Live) -> Decision:
        """Let the run decide, beside the loop; the nodes of its namespace are counted."""
        others = sum(other.run.node_count for each, other in self._live.items() if each.namespace == key.namespace)
        decide = partial(live.run.decide, self._clock.now(), other_nodes=others - live.run.node_count)
        return await self._evaluation.think(key.namespace, f"Workflow {key}", decide)

    async def _resume(self, key: Key, live: Live) -> str | None:
        """Let suspended nodes go on as the object asks now; the annotation's text, None where there is none.

        The copy at hand may still have what was done and taken off.
        """
        try:
            obj = await self._api.get(WORKFLOWS, key.name, key.namespace)
        except NotFound:
            return None
        text = annotations_of(obj).get(RESUME_ANNOTATION)
        if text is None or obj["metadata"]["uid"] != live.uid:
            return None
        asked = _decoded(text, list[Resume])
        done = len(live.resumed) if asked[: len(live.resumed)] == live.resumed else 0
        for resume in asked[done:]:
            live.run.resume(resume)
        live.resumed = asked
        return text

    async def _tell_of_pods(self, key: Key, live: Live, names: set[str]) -> timedelta | None:
        """Tell the run what became of these pods; when to look again at those that do not go.

        Their node may have fallen silent, which changes no pod.
        """
        pods = []
        for name in sorted(names):
            pod = self._pods.get(name, key.namespace)
            if pod is None:
                live.line.forget(name)
                live.run.pod_gone(name)
            elif is_of(pod, live.uid):
                pods.append(pod)
        all_seen = await self._see(live.uid, pods)
        for seen in all_seen:
            _note_place(live, seen)
            live.run.pod_seen(seen)
        going = {
            seen.name for seen, pod in zip(all_seen, pods, strict=True) if not seen.is_ended and is_deleting(pod)
        }
        live.changed |= going
        return GOING_EVERY if going else None

    async def _see(self, uid: str, pods: Sequence[Obj]) -> list[PodSeen]:
        """The pods with what their executors reported, for those that have ended."""
        lost, now = await self._lost_nodes(pods), self._clock.now()
        seen = [pod_seen(pod, now=now, lost_nodes=lost, lost_after=self._lost_after) for pod in pods]
        names = [row.name for row, pod in zip(seen, pods, strict=True) if row.is_ended and has_executor(pod)]
        reports = {report.pod: report for report in await self._records.reports(uid, names)} if names else {}
        return [
            pod_seen(pod, now=now, lost_nodes=lost, lost_after=self._lost_after, report=reports.get(row.name))
            if row.name in reports
            else row
            for row, pod in zip(seen, pods, strict=True)
        ]

    async def _lost_nodes(self, pods: Iterable[Obj]) -> dict[str, datetime | None]:
        """Nodes of pods that are being deleted: gone (None), or silent since a moment."""
        lost: dict[str, datetime | None] = {}
        hosts = {str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods if is_deleting(pod)}
        for host in sorted(hosts - {""}):
            node = self._nodes.get(host)
            if node is None:  # our copy may be older than the node, whose pod would then run twice
                with contextlib.suppress(NotFound):
                    node = await self._api.get(NODES, host)
            if node is None:
                lost[host] = None
            elif (state := is_lost(node))[0]:
                lost[host] = state[1]
        return lost

    async def _carry_out(self, key: Key, live: Live, decision: Decision) -> bool:
        """Do what was decided, in its order; whether it is worth to decide again at once."""
        again = False
        ended: list[str] = []  # pods to delete
        for remember in decision.remember:  # before the nodes' ends, after which it is not said again
            recall = remember.memo
            memo = Memo(
                outputs=remember.node.outputs or Outputs(), at=_stamp(self._clock.now()), node_id=remember.node.id
            )
            try:
                await self._records.remember(key.namespace, recall.cache, recall.key, memo)
            except QuotaExceeded as error:  # the next run of the step takes its time again
                words = f"the outputs of step {remember.node.display_name} are not memoized: {error.message}"
                if (obj := self._workflows.get(key.name, key.namespace)) is not None:
                    await self._events.record(_typed(obj), "Warning", "MemoRefused", words)
        if decision.nodes or decision.workflow is not None or decision.metrics:
            problems = await self._records.save(
                live.uid, self._holder, decision.nodes, decision.workflow, decision.metrics
            )
            live.run.metrics_refused(problems)
            again = bool(problems)
        live.line.order(decision.create)
        if orders := live.line.take():
            runtime = await self._step_runtime()
            results = await _at_once([partial(self._create, key, live, order, runtime) for order in orders])
            again = again or any(results)
        for order in decision.create:
            if live.line.has(order.record.pod_name):
                live.run.pod_refused(order.record.pod_name, IN_LINE, for_now=True)
                again = True
        for end in decision.end:
            is_held = live.held.pop(end.pod, None) is not None
            if live.line.forget(end.pod) or is_held:  # there is no such pod, and none will be made
                live.run.pod_gone(end.pod)
                again = True
            else:
                ended.append(end.pod)
        await _at_once([partial(self._delete_pod, name, key.namespace) for name in ended])
        await _at_once([partial(self._let_go, name, key, live) for name in decision.release])
        for node in decision.unlock:
            self._locks.table.release(live.uid, node)
        if decision.unlock:
            await self._locks.grant()
        for question in decision.questions:
            match question:
                case ConfigMapValue():
                    live.run.answer(question, await self._config_value(key, question))
                    again = True
                case Recall():
                    live.run.answer(question, await self._recalled(key, question))
                    again = True
                case Locks():
                    if (refusal := await self._locks.refusal_of(key, live.run.workflow, question)) is not None:
                        live.run.answer(question, refusal)
                        again = True
                        continue
                    self._locks.table.ask(live.uid, question)
                    await self._locks.grant()
                    again |= self._locks.explain(live) is not None
                case _:
                    assert_never(question)
        return again or bool(live.granted)

    async def _create(self, key: Key, live: Live, order: CreatePod, runtime: StepRuntime) -> bool:
        """Create one pod; whether the run was told something."""
        name = order.record.pod_name
        if not live.run.waits_for(name):
            live.line.forget(name)
            return False
        claims = {claim: f"{key.name}-{claim}" for claim in await self._claim_templates(key, live.run.workflow)}
        request = PodRequest(
            record=order.record,
            workflow=await self._evaluation.think(key.namespace, f"Workflow {key}", live.run.written),
            template=order.template,
            secret=secret_name(key.name, live.run.workflow.token_digest),
            artifacts=order.artifacts,
            wants_result=order.wants_result,
            deadline_seconds=order.deadline_seconds(self._clock.now()),
            excluded_hosts=order.excluded_hosts,
            volumes=claims,
            retries=live.run.workflow.retries,
        )
        try:
            pod = self._pod(key, request, runtime)
        except PodError as error:
            live.line.forget(name)
            live.run.pod_refused(name, error.message, for_now=False)
            return True
        if isinstance(pod, str):
            live.run.pod_refused(name, pod, for_now=True)
            self._hold(live, order)
            return True
        try:
            await self._api.create(PODS, pod, key.namespace)
        except AlreadyExists:
            there = await self._api.get(PODS, name, key.namespace)
            if not is_of(there, live.uid):
                live.run.pod_refused(name, f"another pod has the name {name}: delete it", for_now=True)
                self._hold(live, order)
                return True
            for seen in await self._see(live.uid, [keep_pod(there)]):
                _note_place(live, seen)
                live.run.pod_seen(seen)
            return True
        except (Invalid, BadRequest, Forbidden) as error:
            is_quota = _is_quota(error)
            live.run.pod_refused(name, error.message, for_now=is_quota)
            if is_quota:
                self._hold(live, order)
            else:
                live.line.forget(name)
            return True
        live.held.pop(name, None)
        return False

    def _pod(self, key: Key, request: PodRequest, runtime: StepRuntime) -> Obj | str:
        """The pod; a text: why it is made later, when the command of an image is known. Raises PodError."""
        while True:
            try:
                return make_pod(request, runtime)
            except CommandMissing as error:
                if self._commands is None or runtime.on_processes or error.image in runtime.entrypoints:
                    raise
                spec = request.workflow.get("spec") or {}
                account = request.template.get("serviceAccountName") or spec.get("serviceAccountName") or "default"
                secrets_of_pod = names_of(spec.get("imagePullSecrets") or ())
                selector = request.template.get("nodeSelector") or spec.get("nodeSelector") or {}
                architectures = architectures_of(self._nodes.all(), selector)
                asked = Asked(key.namespace, error.image, secrets_of_pod, str(account), architectures)
                answer = self._commands.ask(asked, lambda: self._go_on_with_held(key))
                if answer is None:
                    return f"the command of the image {error.image} is looked up in its registry"
                if isinstance(answer, str):
                    raise PodError(f"{error.message} (the registry was asked: {answer})") from error
                known = {**runtime.entrypoints, error.image: (answer.entrypoint, answer.cmd)}
                runtime = replace(runtime, entrypoints=known)

    def _go_on_with_held(self, key: Key) -> None:
        """Try at once what is held back."""
        if (live := self._live.get(key)) is not None:
            live.held_until = 0.0
            self.loop.queue.add(key)

    def _hold(self, live: Live, order: CreatePod) -> None:
        live.held[order.record.pod_name] = order
        live.held_until = self._clock.monotonic() + QUOTA_EVERY.total_seconds()

    async def _create_held(self, key: Key, live: Live) -> timedelta | None:
        """Try again what a quota refused; when to try the next time."""
        if not live.held:
            return None
        left = live.held_until - self._clock.monotonic()
        if left > 0:
            return timedelta(seconds=left)
        runtime = await self._step_runtime()
        held, live.held = live.held, {}
        for order in held.values():
            await self._create(key, live, order, runtime)
        return QUOTA_EVERY if live.held else timedelta(0)

    async def _delete_pods(self, key: Key, obj: Obj, pods: Sequence[Obj]) -> timedelta | None:
        """Delete pods of a workflow that has ended, as `podGC` says; when to look again."""
        uid = str(obj["metadata"]["uid"])
        if not pods:
            self._deletions.pop(key, None)
            return None
        if (known := self._deletions.get(key)) is None or known[0] != uid:  # an earlier operator saw its end
            known = self._deletions[key] = (uid, {})
            with contextlib.suppress(NotFound):
                loaded = await self._records.load(uid, self._holder)
                nodes = {node.pod_name: node for node in loaded.nodes if node.pod_name}
                for pod in pods:
                    name = pod["metadata"]["name"]
                    if (at := pod_delete_at(loaded.workflow, nodes.get(name), pod)) is not None:
                        known[1][name] = at
        return await self._delete_due(key, known[1])

    async def _delete_pod(self, name: str, namespace: str) -> None:
        with contextlib.suppress(NotFound):
            await self._api.delete(PODS, name, namespace)

    async def _let_go(self, name: str, key: Key, live: Live) -> None:
        """The pod's end is recorded: it may go, and goes when `podGC` says so."""
        await self._release(name, key.namespace)
        node = live.run.node_of_pod(name)
        at = pod_delete_at(live.run.workflow, node, self._pods.get(name, key.namespace))
        if at is not None:
            live.deletions[name] = at

    async def _delete_due(self, key: Key, deletions: dict[str, datetime]) -> timedelta | None:
        """Delete the pods whose time has come; when to look again."""
        now = self._clock.now()
        due = [name for name, at in deletions.items() if at <= now]
        await _at_once([partial(self._delete_pod, name, key.namespace) for name in due])
        for name in due:
            del deletions[name]
        return min((at - now for at in deletions.values()), default=None)

    async def _release(self, name: str, namespace: str) -> None:
        """Take our finalizer off a pod."""
        pod = self._pods.get(name, namespace)
        finalizers = list((pod or {}).get("metadata", {}).get("finalizers") or (POD_FINALIZER,))
        patch: Any
        if finalizers == [POD_FINALIZER]:
            patch = {"metadata": {"finalizers": None}}
        else:
            patch = {"metadata": {"finalizers": [each for each in finalizers if each != POD_FINALIZER]}}
        with contextlib.suppress(NotFound):
            await self._api.patch(PODS, name, patch, namespace)

    async def _config_value(self, key: Key, question: ConfigMapValue) -> str | Refusal:
        try:
            config = await self._api.get(CONFIGMAPS, question.name, key.namespace)
        except (NotFound, Forbidden) as error:
            return Refusal(f"configMapKeyRef {question.name}/{question.key}: {error.message}")
        data = config.get("data") or {}
        if question.key not in data:
            keys = ", ".join(sorted(data)) or "none"
            return Refusal(f"ConfigMap {question.name} has no key {question.key}; its keys: {keys}")
        return str(data[question.key])

    async def _recalled(self, key: Key, question: Recall) -> Outputs | None:
        age = question.max_age_seconds
        since = None if age is None else self._clock.now() - timedelta(seconds=age)
        memo = await self._records.recall(key.namespace, question.cache, question.key, since=since)
        return memo.outputs if memo is not None else None

    async def _step_runtime(self) -> StepRuntime:
        now = self._clock.monotonic()
        if self._runtime is None or now - self._runtime_read_at >= RUNTIME_EVERY.total_seconds():
            self._runtime, self._runtime_read_at = await self._find_runtime(), now
        return self._runtime

    # --- what people see

    async def _report(
        self, key: Key, obj: Obj, record: WorkflowRecord, *, live: Live | None = None, force: bool = False
    ) -> timedelta | None:
        """Write the summary into the object when it changed; when to write it later."""
        locks = self._locks.table.status_of(record.uid) if record.phase not in ENDED_PHASES else {}
        patch = summary_patch(obj, record, locks)
        if patch is None or (live is not None and patch == live.reported):
            return None
        now = self._clock.monotonic()
        phase_changed = (obj.get("status") or {}).get("phase") != record.phase
        if live is not None and not force and not phase_changed:
            left = live.reported_at + STATUS_EVERY.total_seconds() - now
            if left > 0:
                return timedelta(seconds=left)
        with contextlib.suppress(NotFound):
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace)
        if live is not None:
            live.reported_at, live.reported = now, patch
        if phase_changed and record.phase:
            kind: EventType = "Normal" if record.phase in ("Running", "Succeeded") else "Warning"
            words = record.message or f"workflow is {record.phase}"
            await self._events.record(_typed(obj), kind, f"Workflow{record.phase}", words)
        return None

    async def _take_off(self, key: Key, annotation: str, text: str) -> bool:
        """Remove an annotation, unless it has changed since; whether it is gone."""
        path = f"/metadata/annotations/{annotation.replace('/', '~1')}"
        patch = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        try:
            await self._api.patch(WORKFLOWS, key.name, patch, key.namespace, kind="json")
        except (NotFound, Invalid, BadRequest):  # a test that fails is one of these
            return False
        return True

    # --- the end

    async def _end(self, key: Key, record: WorkflowRecord, nodes: Mapping[str, NodeRecord]) -> None:
        """What is left of a run that has ended: pods, volumes and its budget. `nodes`: by their pods' names.

        May be done again, and by an operator that did not see the run.
        """
        pods = [pod for pod in self._pods_of(key) if is_of(pod, record.uid)]
        deletions: dict[str, datetime] = {}
        await _at_once(
            [
                partial(self._end_pod, key, pod, record, nodes.get(pod["metadata"]["name"]), deletions)
                for pod in pods
            ]
        )
        self._deletions[key] = (record.uid, deletions)
        await self._end_budget(key, record)
        gc = (record.document.get("spec") or {}).get("volumeClaimGC") or {}
        if str(gc.get("strategy") or "") == "OnWorkflowCompletion" or record.phase == "Succeeded":
            for claim in await self._claim_names(key, record):
                await self._delete_claim(f"{key.name}-{claim}", key.namespace, record.uid)

    async def _end_pod(
        self, key: Key, pod: Obj, record: WorkflowRecord, node: NodeRecord | None, deletions: dict[str, datetime]
    ) -> None:
        """Let a pod of a run that has ended go; end it where it still runs, else note when `podGC` deletes it."""
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        goes_on = status.get("phase") not in ("Succeeded", "Failed") and not is_deleting(pod)
        if is_held(pod):
            await self._release(name, key.namespace)
        if goes_on:
            await self._delete_pod(name, key.namespace)
        elif (at := pod_delete_at(record, node, pod)) is not None:
            deletions[name] = at

    async def _delete_claim(self, name: str, namespace: str, uid: str) -> None:
        """Delete a volume that this run has made; one of somebody else stays."""
        with contextlib.suppress(NotFound):
            claim = await self._api.get(PVCS, name, namespace)
            if is_of(claim, uid):
                await self._api.delete(PVCS, name, namespace, uid=claim["metadata"]["uid"])

    async def _collect(self, key: Key, obj: Obj) -> timedelta | None:
        """Delete a workflow that has ended when its time is over, and its pods when theirs is."""
        uid = str(obj["metadata"]["uid"])
        pods = [pod for pod in self._pods_of(key) if is_of(pod, uid) and NODE_ID_ANNOTATION in annotations_of(pod)]
        for pod in self._pods_of(key):
            if is_held(pod):
                await self._release(pod["metadata"]["name"], key.namespace)
        again = _sooner(
            await self._collector.collect(key, obj, is_deleting=False), await self._delete_pods(key, obj, pods)
        )
        at = collect_at(obj)
        if at is None:
            return again
        now = self._clock.now()
        if at > now:
            return _sooner(at - now, again)
        with contextlib.suppress(NotFound):
            await self._api.delete(
                WORKFLOWS, key.name, key.namespace, uid=obj["metadata"]["uid"], propagation="Background"
            )
        return None


def _note_place(live: Live, pod: PodSeen) -> None:
    """Note whether the pod still waits for a node."""
    if pod.is_ended:
        live.line.forget(pod.name)
        return
    node = live.run.node_of_pod(pod.name)
    template = node.template if node is not None else ""
    live.line.seen(pod.name, template, has_node=bool(pod.host) or pod.is_running)


def _sooner(delay: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((each for each in (delay, other) if each is not None), default=None)


def secret_name(workflow: str, token_digest: str) -> str:
    """The Secret with the token of a workflow's pods; of another token it is another."""
    return f"{workflow}-token-{token_digest.removeprefix('sha256:')[:DIGEST_CHARACTERS]}"


async def _at_once(work: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """All of it, some at a time; the first error is raised when all has ended."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded(each: Callable[[], Awaitable[Any]]) -> Any:
        async with gate:
            return await each()

    if len(work) == 1:
        return [await work[0]()]
    results = await asyncio.gather(*(guarded(each) for each in work), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _failed(record: WorkflowRecord, message: str, now: datetime) -> WorkflowRecord:
    """The record of a run that fails before it begins."""
    return msgspec.structs.replace(
        record, phase="Failed", message=message, started_at=_stamp(now), finished_at=_stamp(now)
    )


def _is_quota(error: ApiError) -> bool:
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


def _workflow_of(pod: Obj) -> Iterable[Key]:
    name = labels_of(pod).get(WORKFLOW_LABEL)
    if name:
        yield Key(pod["metadata"]["namespace"], name)


def _typed(obj: Obj) -> Obj:
    return {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind} | obj


def _controls(obj: Mapping[str, Any]) -> Controls:
    spec = obj.get("spec") or {}
    shutdown = spec.get("shutdown")
    return Controls(
        shutdown=str(shutdown) if shutdown in ("Stop", "Terminate") else "",
        is_suspended=spec.get("suspend") is True,
    )


def _claim_templates(record: WorkflowRecord) -> dict[str, Mapping[str, Any]]:
    """By their names; tags in them stand for what is known of the whole workflow. Raises TextError."""
    templates = record.document["spec"]["volumeClaimTemplates"]
    return {
        str((template.get("metadata") or {}).get("name")): template
        for template in substitute(list(templates), globals_of(record))
    }


def _decoded(text: str, kind: Any) -> Any:
    """An annotation's value; an empty one where it is no such document."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return kind()


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


__all__ = ["WorkflowController", "secret_name"]
