"""Kueue manages the workers of a map one by one; the Job of the map is in no queue.

If a namespace has a LocalQueue `default`, Kueue's webhook adds every new Job to it and suspends the Job. Kueue
would suspend the Job of a map again at each change of its scale. So our webhook removes that Job from the queue.
The API server calls it after Kueue's webhook: mutating webhooks run in the order of their configurations' names.
Kueue's webhook for pods adds the worker pods to the same queue.
"""

from __future__ import annotations

from moorage.decide.admission.review import Request
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.mapjob import MAPJOBS
from moorage_kube.meta import controller_ref, labels_of
from moorage_kube.resources import Obj


def leave_queue(request: Request) -> tuple[Obj, ...]:
    """JSON patches that remove a new Job of a map, created by our operator, from its queue.

    Empty for other objects.
    """
    job = request.obj
    owner = controller_ref(job) or {}
    is_of_map = owner.get("kind") == MAPJOBS.kind and owner.get("apiVersion") == MAPJOBS.api_version
    if request.kind != "Job" or request.operation != "CREATE" or not is_of_map or not request.is_copy:
        return ()
    if QUEUE_LABEL not in labels_of(job):
        return ()
    patches: tuple[Obj, ...] = ({"op": "remove", "path": f"/metadata/labels/{QUEUE_LABEL.replace('/', '~1')}"},)
    if (job.get("spec") or {}).get("suspend"):
        patches += ({"op": "replace", "path": "/spec/suspend", "value": False},)
    return patches
