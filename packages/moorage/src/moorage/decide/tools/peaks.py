"""The memory that earlier pods of a workload used, by the names in manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from moorage.api.storedrecords import StoredPod
from moorage.decide.admission.fields import mapping, sequence
from moorage.decide.runs.state import view_pod
from moorage.decide.tools.targetrules import Peaks
from moorage.model.argo import CRON_LABEL, WORKFLOW_LABEL
from moorage.model.names import RUN_LABEL
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
_TICK = re.compile(r"-[0-9]+")  # the suffix that a CronJob or a CronWorkflow adds to its name
_Key = tuple[str, str, str]


def peaks_of(pods: Iterable[Obj], kept: Iterable[StoredPod] = ()) -> Peaks:
    """The largest peak of each workload, from existing pods and from the stored facts of deleted ones."""
    peaks: dict[_Key, int] = {}

    def add(key: _Key, count: int | None) -> None:
        if count:
            peaks[key] = max(peaks.get(key, 0), count)

    for pod in pods:
        count = view_pod(pod).peak_memory_bytes
        for key in _keys(pod):
            add(key, count)
    for record in kept:
        add(("Job", record.run, ""), record.peak_memory_bytes)
    return Peaks(bytes_by_pod=peaks)


def _keys(pod: Obj) -> Iterator[_Key]:
    """The keys of all workloads that the pod may belong to."""
    labels = labels_of(pod)
    if workflow := labels.get(WORKFLOW_LABEL):
        name = str(mapping(pod.get("metadata")).get("name") or "")
        template = name.removeprefix(f"{workflow}-").rpartition("-")[0] if name != workflow else ""
        yield "Workflow", workflow, template
        base = workflow.rpartition("-")[0]
        if base:
            yield "CronWorkflow", labels.get(CRON_LABEL) or base, template
            for made_from in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate"):
                yield made_from, base, template  # of a generateName, or submitted from a template
        return
    for label in (RUN_LABEL, *_JOB_LABELS):
        if job := labels.get(label):
            yield "Job", job, ""
            base, _, tick = job.rpartition("-")
            if _TICK.fullmatch(f"-{tick}"):
                yield "CronJob", base, ""
    for reference in sequence(mapping(pod.get("metadata")).get("ownerReferences")):
        kind, owner = mapping(reference).get("kind"), str(mapping(reference).get("name") or "")
        if kind == "ReplicaSet":
            yield "ReplicaSet", owner, ""
            yield "Deployment", owner.rpartition("-")[0], ""
        elif kind in ("StatefulSet", "DaemonSet", "ReplicationController"):
            yield str(kind), owner, ""
