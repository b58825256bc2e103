"""The workers of a map are in a queue of Kueue one by one; their Job is in none.

Where a namespace has a LocalQueue called `default`, Kueue's webhook puts every new Job into it, and suspends it.
Kueue would suspend a map's Job again at each change of its scale. So our webhook, which is asked after Kueue's
(the API server asks mutating webhooks in the order of their configurations' names), takes that Job out again.
Kueue's webhook for pods puts its pods into the same queue.
"""

from __future__ import annotations

from moorage.decide.admission.review import Request
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.mapjob import MAPJOBS
from moorage_kube.meta import controller_ref, labels_of
from moorage_kube.resources import Obj


def leave_queue(request: Request) -> tuple[Obj, ...]:
    """JSON patches that take a map's new Job, made by our operator, out of its queue; none for all else."""
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
