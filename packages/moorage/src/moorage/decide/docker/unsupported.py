"""The routes of Docker's API without an implementation here, with the reason and an alternative.

With the routes that the server has, the tables cover the API's versions 1.40 to 1.55.
"""

from __future__ import annotations

from collections.abc import Mapping

_BUILDS = "images are built elsewhere; build the image in CI or on your machine, and push it to a registry"
_IMAGES = "the nodes store the images; use Docker or skopeo at the registry"
_NETWORKS = "all containers of a namespace share one network; publish ports with -p, and leave networks out"
_PLUGINS = "the nodes have no Docker plugins; leave them out"
_SWARM = "there is no swarm; Kubernetes schedules the containers, and moor nodes lists the nodes"
_FILES = "files of a container are not reachable; use docker exec with tar, or moor volume cp"
_FIXED = "a pod cannot be changed; create another container"

REASONS: Mapping[str, tuple[str, ...]] = {
    _BUILDS: ("POST /build", "POST /commit", "POST /session"),
    _IMAGES: (
        "GET /images/get",
        "POST /images/load",
        "GET /images/search",
        "GET /images/{name:path}/attestations",
        "GET /images/{name:path}/get",
        "GET /images/{name:path}/history",
        "POST /images/{name:path}/push",
        "POST /images/{name:path}/tag",
        "GET /distribution/{name:path}/json",
    ),
    "nodes pull with the secrets of the namespace; ask an administrator for an image pull secret": ("POST /auth",),
    _FILES: (
        "HEAD /containers/{id}/archive",
        "GET /containers/{id}/archive",
        "PUT /containers/{id}/archive",
        "GET /containers/{id}/changes",
        "GET /containers/{id}/export",
    ),
    "a pod cannot be paused; stop the container, or use moor suspend for a run": (
        "POST /containers/{id}/pause",
        "POST /containers/{id}/unpause",
    ),
    _FIXED: ("POST /containers/{id}/rename", "POST /containers/{id}/update"),
    "the main process has no terminal of the client; use docker exec -it": ("POST /containers/{id}/resize",),
    "attach without a WebSocket: POST /containers/{id}/attach": ("GET /containers/{id}/attach/ws",),
    "events are not streamed; use docker ps, or moor explain": ("GET /events",),
    _NETWORKS: (
        "POST /networks/create",
        "DELETE /networks/{id}",
        "POST /networks/{id}/connect",
        "POST /networks/{id}/disconnect",
    ),
    "volumes hold the data of a team; delete each by name: docker volume rm NAME": ("POST /volumes/prune",),
    "a volume cannot be changed here; use moor volume resize": ("PUT /volumes/{name}",),
    _PLUGINS: (
        "GET /plugins",
        "POST /plugins/create",
        "GET /plugins/privileges",
        "POST /plugins/pull",
        "DELETE /plugins/{name:path}",
        "POST /plugins/{name:path}/disable",
        "POST /plugins/{name:path}/enable",
        "GET /plugins/{name:path}/json",
        "POST /plugins/{name:path}/push",
        "POST /plugins/{name:path}/set",
        "POST /plugins/{name:path}/upgrade",
    ),
    _SWARM: (
        "GET /swarm",
        *(f"POST /swarm/{verb}" for verb in ("init", "join", "leave", "unlock", "update")),
        "GET /swarm/unlockkey",
        "GET /nodes",
        "GET /nodes/{id}",
        "DELETE /nodes/{id}",
        "POST /nodes/{id}/update",
        "GET /tasks",
        "GET /tasks/{id}",
        "GET /tasks/{id}/logs",
        "GET /services/{id}/logs",
        *(
            path
            for kind in ("services", "secrets", "configs")
            for path in (
                f"GET /{kind}",
                f"POST /{kind}/create",
                f"GET /{kind}/{{id}}",
                f"DELETE /{kind}/{{id}}",
                f"POST /{kind}/{{id}}/update",
            )
        ),
    ),
}
UNSUPPORTED: Mapping[str, str] = {route: reason for reason, routes in REASONS.items() for route in routes}
