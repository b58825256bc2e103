"""Names of Kueue: the label that adds an object to a queue, and the Workload that Kueue creates for it.

https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/
"""

from __future__ import annotations

from moorage_kube.resources import Resource

KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = (
    f"{KUEUE}/queue-name"  # on a Job, Deployment, pod, Workspace or MapJob: the LocalQueue of its namespace
)
ADMISSION_GATE = f"{KUEUE}/admission"  # on a pod: Kueue has not admitted it
JOB_UID_LABEL = f"{KUEUE}/job-uid"  # on a Workload: of which Job or pod it is
EVICTION_CONDITION = "TerminationTarget"  # of a pod that Kueue deletes, to take its quota back
EVICTION_PREFIX = "WorkloadEvicted"  # of that condition's reason

_VERSIONS = ("v1beta2", "v1beta1")  # the newest first; releases of Kueue before 0.14 serve the last one only
WORKLOADS = tuple(Resource(KUEUE, version, "workloads", "Workload") for version in _VERSIONS)
LOCAL_QUEUES = tuple(Resource(KUEUE, version, "localqueues", "LocalQueue") for version in _VERSIONS)
