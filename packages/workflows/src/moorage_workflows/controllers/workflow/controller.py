"""The controller of Workflows: the reads and writes around `moorage_workflows.decide.workflows.graph`.

A run is loaded from its records when its object is first seen. Then it lives in memory, and gets the
changes of its pods. Each decision is carried out in the order of docs/design/0017. After any error the
run is dropped and loaded again: the records are the truth.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

import msgspec

from moorage.cluster.argo import running_controller
from moorage.controllers.base import Controller, Shared
from moorage.controllers.loop import is_full_look
from moorage.model.argo import (
    CRON_LABEL,
    INSTANCE_LABEL,
    OUR_INSTANCE,
    WORKFLOW_LABEL,
    WORKFLOWS,
    is_free,
    is_ours,
)
from moorage.model.names import OWNER_ANNOTATION
from moorage_kube.errors import Forbidden, NotFound, QuotaExceeded
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, annotations_of, is_deleting, key_of, labels_of
from moorage_kube.resources import CONFIGMAPS, LEASES, NAMESPACES, NODES, PODS, Obj
from moorage_workflows.controllers.workflow.cleanup import Cleanup
from moorage_workflows.controllers.workflow.collecting import Collector
from moorage_workflows.controllers.workflow.documents import Check, Documents
from moorage_workflows.controllers.workflow.imagecommands import ImageCommands
from moorage_workflows.controllers.workflow.live import Live
from moorage_workflows.controllers.workflow.locks import LIMITS_EVERY, RunLocks
from moorage_workflows.controllers.workflow.objects import RunObjects
from moorage_workflows.controllers.workflow.observe import is_held, is_of, keep_pod
from moorage_workflows.controllers.workflow.pendingpods import PendingPods
from moorage_workflows.controllers.workflow.records import RecordStore
from moorage_workflows.controllers.workflow.reports import Reports
from moorage_workflows.controllers.workflow.runpods import RunPods, at_once, note_place
from moorage_workflows.controllers.workflow.summary import pod_delete_at, typed
from moorage_workflows.decide.workflows.collection import collects
from moorage_workflows.decide.workflows.graph.events import (
    ConfigMapValue,
    Controls,
    Decision,
    Locks,
    Recall,
    Refusal,
)
from moorage_workflows.decide.workflows.graph.locks import locks_held
from moorage_workflows.decide.workflows.graph.rerun import nodes_taken_over, nodes_to_forget, with_exports_of
from moorage_workflows.decide.workflows.graph.run import Run
from moorage_workflows.decide.workflows.pods import StepRuntime
from moorage_workflows.decide.workflows.waiting import MANY_PENDING
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

NO_ROOM = "quota exceeded"  # of a run without records, because there was no room for them
NOT_OF_NODES = "metadata.namespace!=kube-node-lease"  # kubelets renew theirs every ten seconds


class WorkflowController(Controller):
    """One per operator.

    `holder`: a text that no other operator, and no earlier term of this one, uses. `check`: refuses a run
    before it begins. `runtime`, `commands`: as in `RunPods`.
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
        self._records, self._holder, self._evaluation = records, holder, shared.evaluation
        # informers: one each for the whole operator
        self._workflows = self._follow(WORKFLOWS)
        pods = self._follow(
            PODS,
            label_selector=WORKFLOW_LABEL,
            indexes={"workflow": index_by_label(WORKFLOW_LABEL)},
            keep=keep_pod,
        )
        nodes = self._follow(NODES)
        self._leases = self._follow(LEASES, field_selector=NOT_OF_NODES)
        self._namespaces = self._follow(NAMESPACES)
        # state of the runs, by the object's key
        self._live: dict[Key, Live] = {}
        self._changed: dict[Key, set[str]] = {}  # as in `Live`, from before the pods of a run are listed
        self._gone: dict[Key, set[str]] = {}  # uids of objects that were deleted, until the records know it
        # helpers: later ones use earlier ones
        self._objects = RunObjects(shared)
        self._pods = RunPods(
            shared,
            records,
            self._objects,
            pods=pods,
            nodes=nodes,
            find_runtime=runtime,
            commands=commands,
            wake=self._try_held,
        )
        self._collector = Collector(shared, records, holder=holder, runtime=self._pods.runtime)
        self._cleanup = Cleanup(
            shared, records, holder=holder, pods=self._pods, objects=self._objects, collector=self._collector
        )
        self._documents = Documents(shared, check)
        self._locks = RunLocks(
            shared, records, holder=holder, namespaces=self._namespaces, live=self._live, look=self.loop.queue.add
        )
        self._reports = Reports(shared, self._locks)
        # wire the informers to the loop last: a change may arrive at once
        pods.on_change(self._note_pod)  # before the loop hears of it
        self._workflows.on_change(self._note_gone)
        self.loop.hear(self._workflows, lambda obj: [key_of(obj)])
        self.loop.hear(pods, _workflow_of)
        for informer in (nodes, self._leases, self._namespaces):  # only read, but whole before the first look
            self.loop.hear(informer, lambda _obj: ())

    def _note_pod(self, before: Obj | None, after: Obj | None) -> None:
        pod = after or before
        assert pod is not None
        for key in _workflow_of(pod):
            if (changed := self._changed.get(key)) is not None:
                changed.add(pod["metadata"]["name"])

    def _try_held(self, key: Key) -> None:
        """Create the pods that the API server refused for now, without further delay."""
        if (live := self._live.get(key)) is not None:
            live.held_until = 0.0
            self.loop.queue.add(key)

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
                    return await self._cleanup.collect(key, obj)
                live = await self._begin(key, obj)
                if live is None:
                    return None
            return await self._go_on(key, obj, live)
        except Forbidden as error:
            self._drop(key)
            if not error.is_of_ending_namespace:
                raise
            # pods cannot be made any more, and Kubernetes deletes the Workflow only after its pods
            for pod in self._pods.of(key):
                if is_held(pod) and is_of(pod, obj["metadata"]["uid"]):
                    await self._pods.release(pod["metadata"]["name"], key.namespace)
            return None
        except BaseException:
            self._drop(key)
            raise

    # --- whose it is

    async def _adopt(self, key: Key, obj: Obj) -> timedelta | None:
        """Label a Workflow without a controller as ours, unless Argo's controller runs."""
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
        """Drop the run of an object that is deleted or being deleted, and release its pods."""
        live = self._live.get(key)
        self._drop(key)
        self._cleanup.forget(key)
        uids = self._gone.setdefault(key, set())
        uids |= {live.uid} if live is not None else set()
        uids |= {str(obj["metadata"]["uid"])} if obj is not None else set()
        await self._bury(key, "")

    async def _bury(self, key: Key, uid: str) -> None:
        """Record the deletion of the objects of this name, except the one with `uid`, and release and delete their
        pods.
        """
        if (live := self._live.get(key)) is not None and live.uid != uid:
            self._drop(key)
        for gone in sorted(self._gone.get(key, ())):
            await self._records.gone(gone, self._clock.now())
            self._locks.release(gone)
        for pod in self._pods.of(key):
            if not is_held(pod) or (uid and is_of(pod, uid)):
                continue  # not ours to end: the pods of another controller, or those of a new workflow
            await self._pods.release(pod["metadata"]["name"], key.namespace)
            if not is_deleting(pod):
                await self._pods.delete(pod["metadata"]["name"], key.namespace)
        self._gone.pop(key, None)

    def _drop(self, key: Key) -> None:
        self._changed.pop(key, None)
        if (live := self._live.pop(key, None)) is not None:
            live.run.close()

    # --- the beginning

    async def _begin(self, key: Key, obj: Obj) -> Live | None:
        """Load or create the run; None if that is impossible: then its object has the reason."""
        begun = await self._load(key, obj)
        if begun is None:
            return None
        record, nodes = begun
        if record.phase in ENDED_PHASES:  # the object does not say it yet: the end was cut off
            await self._cleanup.end(key, record, {node.pod_name: node for node in nodes})
            await self._reports.report(key, obj, record, force=True)
            return None
        if collects(record.document):
            await self._collector.add_finalizer(key, obj)
        await self._objects.make_budget(key, obj, record)
        return await self._find_pods(key, record, nodes)

    async def _load(self, key: Key, obj: Obj) -> tuple[WorkflowRecord, Sequence[NodeRecord]] | None:
        """The stored run, after its volumes are made; None if it cannot be stored: its object has the reason."""
        uid = obj["metadata"]["uid"]
        now = self._clock.now()
        try:
            loaded = await self._records.load(uid, self._holder)
        except NotFound:
            record = await self._first_record(key, obj)
            try:
                await self._records.begin(record)
            except QuotaExceeded as error:  # it has no records
                failed = _failed(record, f"{NO_ROOM}: {error.message}; {error.hint}", now)
                await self._reports.report(key, obj, failed, force=True)
                return None
            loaded = await self._records.load(uid, self._holder)
        record, nodes = loaded.workflow, loaded.nodes
        earlier = annotations_of(record.document).get(TAKE_OVER_ANNOTATION)
        if earlier and not record.started_at and not nodes:
            taken = await self._taken_over(record, earlier, now)
            if isinstance(taken, str):
                record = _failed(record, taken, now)
                await self._records.save(uid, self._holder, workflow=record)
            else:
                record, nodes = taken
                await self._records.save(uid, self._holder, nodes, record)
        if record.phase not in ENDED_PHASES and (refusal := await self._objects.make_claims(key, obj, record)):
            record = msgspec.structs.replace(_failed(record, f"pvc create error: {refusal}", now), phase="Error")
            await self._records.save(uid, self._holder, workflow=record)
        return record, nodes

    async def _first_record(self, key: Key, obj: Obj) -> WorkflowRecord:
        """Return the record of a new run; a failed record if its document cannot run."""
        document, faults = await self._documents.read(key, obj)
        record = WorkflowRecord(
            uid=obj["metadata"]["uid"],
            namespace=key.namespace,
            name=key.name,
            document=document,
            created_at=str(obj["metadata"].get("creationTimestamp") or ""),
            owner=annotations_of(obj).get(OWNER_ANNOTATION, ""),
            cron=labels_of(obj).get(CRON_LABEL, ""),
            token_digest=await self._objects.make_token(key, obj),
        )
        return _failed(record, f"invalid spec: {'; '.join(faults)}", self._clock.now()) if faults else record

    async def _find_pods(self, key: Key, record: WorkflowRecord, nodes: Sequence[NodeRecord]) -> Live:
        """The run in memory, with its pods.

        The pods are listed from the API server: the informer's copy may lack pods that an earlier operator made.
        Changes of pods from here on are collected until the run is in memory.
        """
        changed = self._changed[key] = set()
        selector = f"{WORKFLOW_LABEL}={key.name}"
        pods = [
            keep_pod(pod)
            for pod in (await self._api.list(PODS, key.namespace, label_selector=selector)).items
            if is_of(pod, record.uid)
        ]
        seen = await self._pods.see(record.uid, pods)
        run = Run(record, nodes=nodes, pods=seen, now=self._clock.now())
        for holder, locks in locks_held(record, nodes):
            self._locks.table.restore(record.uid, holder, locks)
        recorded = {node.pod_name for node in nodes if node.phase.is_fulfilled and node.pod_name}
        pending = PendingPods(bounded=not is_strict(record.document))
        live = self._live[key] = Live(run, record.uid, pending, changed)
        for each in seen:
            note_place(live, each)
        for pod in pods:
            name = pod["metadata"]["name"]
            if is_deleting(pod):
                changed.add(name)
            if name not in recorded:
                continue
            if is_held(pod):
                await self._pods.release(name, key.namespace)
            if (at := pod_delete_at(record, run.node_of_pod(name), pod)) is not None:
                live.deletions[name] = at
        return live

    async def _taken_over(
        self, record: WorkflowRecord, uid: str, now: datetime
    ) -> tuple[WorkflowRecord, tuple[NodeRecord, ...]] | str:
        """A new run's record and nodes, with results of the run with this uid; a text: why that is impossible.

        A run of another namespace counts as missing.
        """
        try:
            earlier = await self._records.load(uid, self._holder)
        except NotFound:
            earlier = None
        if earlier is None or earlier.workflow.namespace != record.namespace:
            return f"the workflow to take results from (uid {uid}) has no record here: resubmit every step"
        name = earlier.workflow.name
        if earlier.workflow.phase not in ENDED_PHASES:
            return f"the workflow to take results from, {name}, has not ended: wait for it, and resubmit it then"
        nodes = nodes_taken_over(earlier.nodes, earlier=name, name=record.name, now=now)
        return with_exports_of(record, earlier.workflow), nodes

    async def _retry(self, key: Key, obj: Obj, text: str) -> None:
        """Delete the records of nodes that run again. `text`: of the annotation, removed once the object says
        Running.

        If it is interrupted at any point, the next try finishes it: an open record is not retried again.
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
            await self._reports.report(key, obj, record, force=True)
        self._cleanup.forget(key)
        await self._reports.take_off(key, RETRY_ANNOTATION, text)

    # --- on the way

    async def _go_on(self, key: Key, obj: Obj, live: Live) -> timedelta | None:
        run = live.run
        changed = live.changed | (await self._pods.forgotten(key, live) if is_full_look() else set())
        live.changed.clear()
        going = await self._pods.tell(key, live, changed)
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
        if asked is not None and await self._reports.take_off(key, RESUME_ANNOTATION, asked):
            live.resumed = []
        if run.is_done:
            self._locks.release(live.uid)
            # before the object says that it has ended: afterwards its pods and volumes are not looked for
            await self._cleanup.end(key, run.workflow, run.nodes_by_pod)
            await self._reports.report(key, obj, run.workflow, live=live, force=True)
            self._drop(key)
            return None
        wait = await self._pods.create_held(key, live)
        reported = await self._reports.report(key, obj, run.workflow, live=live)
        locks = limits if self._locks.table.is_waiting(live.uid) else None
        delays = (look_again, wait, reported, locks, going, await self._pods.delete_due(key, live.deletions))
        return min((delay for delay in delays if delay is not None), default=None)

    async def _decide(self, key: Key, live: Live) -> Decision:
        """Let the run decide, outside the loop; the nodes of its namespace are counted."""
        others = sum(other.run.node_count for each, other in self._live.items() if each.namespace == key.namespace)
        decide = partial(live.run.decide, self._clock.now(), other_nodes=others - live.run.node_count)
        return await self._evaluation.think(key.namespace, f"Workflow {key}", decide)

    async def _resume(self, key: Key, live: Live) -> str | None:
        """Resume suspended nodes as the object asks now; return the annotation's text, None if there is none.

        The object is read again: the informer's copy may still have requests that were done and removed.
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

    async def _carry_out(self, key: Key, live: Live, decision: Decision) -> bool:
        """Carry out a decision, in its order; return whether to decide again at once."""
        again = False
        ended: list[str] = []  # pods to delete
        # memos first, because the end of a node is reported only once
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
                    await self._events.record(typed(obj), "Warning", "MemoRefused", words)
        # then the records: a pod may exist only after its node is saved
        if decision.nodes or decision.workflow is not None or decision.metrics:
            problems = await self._records.save(
                live.uid, self._holder, decision.nodes, decision.workflow, decision.metrics
            )
            live.run.metrics_refused(problems)
            again = bool(problems)
        # create pods, as far as the limit of waiting pods permits
        live.pending.order(decision.create)
        if orders := live.pending.take():
            runtime = await self._pods.runtime()
            results = await at_once([partial(self._pods.create, key, live, order, runtime) for order in orders])
            again = again or any(results)
        # orders that are not due stay pending, with the reason in their message
        for order in decision.create:
            if live.pending.has(order.record.pod_name):
                live.run.pod_refused(order.record.pod_name, MANY_PENDING, for_now=True)
                again = True
        # end pods; one that was never created ends here
        for end in decision.end:
            is_held = live.held.pop(end.pod, None) is not None
            if live.pending.forget(end.pod) or is_held:  # there is no such pod, and none will be made
                live.run.pod_gone(end.pod)
                again = True
            else:
                ended.append(end.pod)
        await at_once([partial(self._pods.delete, name, key.namespace) for name in ended])
        await at_once([partial(self._pods.let_go, name, key, live) for name in decision.release])
        # locks of ended nodes are free for other runs
        for node in decision.unlock:
            self._locks.release_node(live, node)
        if decision.unlock:
            await self._locks.grant()
        # answers make the run decide again
        for query in decision.queries:
            match query:
                case ConfigMapValue():
                    live.run.answer(query, await self._config_value(key, query))
                    again = True
                case Recall():
                    live.run.answer(query, await self._recalled(key, query))
                    again = True
                case Locks():
                    if (refusal := await self._locks.refusal_of(key, live.run.workflow, query)) is not None:
                        live.run.answer(query, refusal)
                        again = True
                        continue
                    self._locks.table.ask(live.uid, query)
                    await self._locks.grant()
                    again |= self._locks.explain(live) is not None
                case _:
                    assert_never(query)
        return again or bool(live.granted)

    async def _config_value(self, key: Key, query: ConfigMapValue) -> str | Refusal:
        try:
            config = await self._api.get(CONFIGMAPS, query.name, key.namespace)
        except (NotFound, Forbidden) as error:
            return Refusal(f"configMapKeyRef {query.name}/{query.key}: {error.message}")
        data = config.get("data") or {}
        if query.key not in data:
            keys = ", ".join(sorted(data)) or "none"
            return Refusal(f"ConfigMap {query.name} has no key {query.key}; its keys: {keys}")
        return str(data[query.key])

    async def _recalled(self, key: Key, query: Recall) -> Outputs | None:
        age = query.max_age_seconds
        since = None if age is None else self._clock.now() - timedelta(seconds=age)
        memo = await self._records.recall(key.namespace, query.cache, query.key, since=since)
        return memo.outputs if memo is not None else None

    # --- the object's status

    # --- the end


def _failed(record: WorkflowRecord, message: str, now: datetime) -> WorkflowRecord:
    """Return the record of a run that fails before it starts."""
    return msgspec.structs.replace(
        record, phase="Failed", message=message, started_at=_stamp(now), finished_at=_stamp(now)
    )


def _workflow_of(pod: Obj) -> Iterable[Key]:
    name = labels_of(pod).get(WORKFLOW_LABEL)
    if name:
        yield Key(pod["metadata"]["namespace"], name)


def _controls(obj: Mapping[str, Any]) -> Controls:
    spec = obj.get("spec") or {}
    shutdown = spec.get("shutdown")
    return Controls(
        shutdown=str(shutdown) if shutdown in ("Stop", "Terminate") else "",
        is_suspended=spec.get("suspend") is True,
    )


def _decoded(text: str, kind: Any) -> Any:
    """Return the value of an annotation; an empty one if the text is invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return kind()


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
