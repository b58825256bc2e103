"""Kueue's names: the label that puts a Job into a queue, and the Workload that Kueue makes of it.

https://kueue.sigs.k8s.io/docs/tasks/run/jobs/
https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/
"""

from __future__ import annotations

from moorage.apimachinery.resources import Resource

KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{KUEUE}/queue-name"  # on a Job: the LocalQueue of its namespace
JOB_UID_LABEL = f"{KUEUE}/job-uid"  # on a Workload: of which Job it is
WORKLOADS = tuple(Resource(KUEUE, version, "workloads", "Workload") for version in ("v1beta2", "v1beta1"))
"""The newest version first; releases of Kueue before 0.14 serve the last one only."""
