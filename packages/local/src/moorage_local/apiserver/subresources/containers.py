"""Choose the container for a request for a log or a stream."""

from __future__ import annotations

from moorage_kube.errors import BadRequest
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj
from moorage_local.podspecs import containers_of

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


def container_of(pod: Obj, wanted: str) -> str:
    """Return the name of the container: `wanted`, else the one in an annotation, else the only container.

    Raises BadRequest with the real server's message.
    https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/strategy.go (validateContainer)
    """
    spec, name = pod["spec"], pod["metadata"]["name"]
    names = [container["name"] for container in containers_of(spec)]
    if wanted:
        if wanted not in names:
            raise BadRequest(f"container {wanted} is not valid for pod {name}")
        return wanted
    default = annotations_of(pod).get(DEFAULT_CONTAINER)
    if default in names:
        return str(default)
    containers: list[Obj] = spec.get("containers") or []
    if len(containers) == 1:
        return str(containers[0]["name"])
    raise BadRequest(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
