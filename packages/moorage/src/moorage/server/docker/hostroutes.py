"""Images, volumes, the network and the summary of the host, in Docker's words.

Nodes pull images at the start of a container. A pulled image is only a name that the person has asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import msgspec
from starlette.responses import Response, StreamingResponse

from moorage import __version__
from moorage.actions import volumes
from moorage.api.errors import ErrorCode
from moorage.api.volumes import NewVolume
from moorage.decide.docker.create import cannot_pull
from moorage.decide.docker.host import (
    NETWORK,
    Image,
    find_image,
    full_name,
    image_id,
    image_matches,
    image_row,
    images_of,
    show_image,
    show_network,
    show_volume,
)
from moorage.decide.docker.unsupported import UNSUPPORTED
from moorage.decide.docker.views import summary
from moorage.model.localimages import image_rules
from moorage.model.names import HOST_IMAGE
from moorage.server.docker.containers import HOST_ENV_HEADER, Containers
from moorage.server.docker.endpoint import DockerCall, DockerEndpoint, Handler
from moorage.server.docker.routes import is_true, read_body, read_filters
from moorage.server.identity.sessions import Sessions
from moorage.server.identity.shared import Key, Kind, Value
from moorage.server.problems import Json, Problem
from moorage_kube.clock import Clock
from moorage_kube.errors import AlreadyExists, DocumentError, NotFound
from moorage_kube.images import parse_reference, rule_of
from moorage_kube.resources import Obj

PULLED = Kind("pulled images", 10_000)
PULLED_MOST = 200  # names of one person; the oldest are forgotten first
REMEMBERED = timedelta(days=90)  # after the last pull


class PulledImages:
    """The names of the images that each person pulled. Methods raise StorageError."""

    def __init__(self, sessions: Sessions, *, clock: Clock) -> None:
        self._sessions, self._clock = sessions, clock

    async def of(self, user: str) -> list[str]:
        now = self._clock.now()
        body = await self._sessions.do(lambda store: store.shared.get(Key(PULLED, user), now))
        return msgspec.json.decode(body, type=list[str]) if body else []

    async def change(self, user: str, work: Callable[[list[str]], list[str]]) -> None:
        now = self._clock.now()

        def changed(bodies: list[bytes | None]) -> tuple[list[Value | None], None]:
            names = work(msgspec.json.decode(bodies[0], type=list[str]) if bodies[0] else [])[-PULLED_MOST:]
            return [Value(msgspec.json.encode(names), now + REMEMBERED) if names else None], None

        await self._sessions.do(lambda store: store.shared.change([Key(PULLED, user)], changed, now))


# --- images


async def pull(call: DockerCall) -> Response:
    """`docker pull`: remember the image; the node that runs a container pulls it."""
    name, tag = call.query.get("fromImage") or "", call.query.get("tag") or ""
    if not name:
        raise Problem(
            400, ErrorCode.BAD_REQUEST, "images are not imported here", "push it to a registry, and pull it"
        )
    image = f"{name}{'@' if ':' in tag else ':'}{tag}" if tag else name
    try:
        parse_reference(image)
    except DocumentError as error:
        raise Problem(400, ErrorCode.BAD_REQUEST, error.message, field="fromImage") from error
    image = full_name(image)
    cluster = await call.context.ready()
    if (
        cluster.on_processes()
        and rule_of(image_rules(cluster.nodes.all()), image) is None
        and not is_true(call.request.headers.get(HOST_ENV_HEADER))
        and not image.startswith(HOST_IMAGE)
    ):
        raise Problem(404, ErrorCode.NOT_FOUND, cannot_pull(image))
    await call.context.part(PulledImages).change(
        call.user.name, lambda names: [*(known for known in names if known != image), image]
    )
    lines = ({"status": f"Pulling {image}"}, {"status": f"Status: the node that runs {image} pulls it"})
    # a stream: Docker's Python package reads the lines of an answer with a known length as one JSON text
    return StreamingResponse((f"{json.dumps(line)}\r\n" for line in lines), media_type="application/json")


async def _images(call: DockerCall) -> list[Image]:
    mine, cluster = await call.containers(), await call.context.ready()
    pulled = await call.context.part(PulledImages).of(call.user.name)
    return images_of(pulled, await mine.listed(), cluster.nodes.all())


async def _image(call: DockerCall) -> Image:
    name = str(call.request.path_params["name"])
    image = find_image(await _images(call), name)
    if image is None:
        raise Problem(404, ErrorCode.NOT_FOUND, f"No such image: {name}", f"docker pull {name}")
    return image


async def list_images(call: DockerCall) -> Response:
    """List the images that the user pulled, and those of the containers."""
    filters = read_filters(call.query.get("filters"))
    try:
        return Json([image_row(image) for image in await _images(call) if image_matches(image, filters)])
    except ValueError as error:
        raise Problem(400, ErrorCode.BAD_REQUEST, str(error), field="filters") from error


async def get_image(call: DockerCall) -> Response:
    """Show an image. Its size is known if a node has it."""
    return Json(show_image(await _image(call)))


async def remove_image(call: DockerCall) -> Response:
    """Forget an image that the user pulled; nodes delete unused images themselves."""
    image = await _image(call)
    if image.containers and not is_true(call.query.get("force")):
        message = f"conflict: {image.containers} containers use the image {image.name}"
        raise Problem(409, ErrorCode.IN_USE, message, "remove the containers first")
    await call.context.part(PulledImages).change(
        call.user.name, lambda names: [known for known in names if known != image.name]
    )
    return Json([{"Untagged": image.name}, {"Deleted": image_id(image.name)}])


# --- volumes


async def _volumes(mine: Containers) -> list[Obj]:
    rows, _ = await volumes.list_volumes(mine.api, mine.namespace, await mine.context.volume_use.used())
    return [show_volume(row) for row in rows]


async def list_volumes(call: DockerCall) -> Response:
    """List the volumes of the namespace."""
    filters = read_filters(call.query.get("filters"))
    if strange := sorted(set(filters) - {"name", "dangling"}):
        message = f"invalid filter {strange[0]!r}: use dangling or name"
        raise Problem(400, ErrorCode.BAD_REQUEST, message, field="filters")
    rows = await _volumes(await call.containers())
    if names := filters.get("name"):
        rows = [row for row in rows if any(name in row["Name"] for name in names)]
    if dangling := filters.get("dangling"):
        rows = [row for row in rows if (row["UsageData"]["RefCount"] == 0) is is_true(dangling[0])]
    return Json({"Volumes": rows, "Warnings": None})


async def create_volume(call: DockerCall) -> Response:
    """Create a volume: `docker volume create -o size=10Gi NAME`. A volume that exists stays as it is."""
    mine, body = await call.containers(), await read_body(call.request)
    name, options = str(body.get("Name") or ""), body.get("DriverOpts") or {}
    if body.get("Driver") not in (None, "", "local", "kubernetes") or body.get("Labels"):
        message = "a volume has no --driver and no --label here"
        raise Problem(400, ErrorCode.INVALID, message, "leave them out; -o class=NAME chooses a StorageClass")
    if not name or not isinstance(options, dict) or not {"size"} <= options.keys() <= {"size", "class"}:
        message = f"a volume needs a name and a size, and takes no option other than class (options: {options!r})"
        raise Problem(400, ErrorCode.INVALID, message, f"docker volume create -o size=10Gi {name or 'NAME'}")
    wanted = NewVolume(
        name=name,
        namespace=mine.namespace,
        size=str(options["size"]),
        storage_class=str(options.get("class") or ""),
    )
    call.context.audit(call.request, "create volume", f"{mine.namespace}/{name}")
    try:
        made = await volumes.create_volume(mine.api, volumes.plan_volume(wanted, call.user.name))
    except AlreadyExists:
        made = await volumes.get_volume(mine.api, mine.namespace, name)
    return Json(show_volume(made), 201)


async def get_volume(call: DockerCall) -> Response:
    """Show a volume."""
    mine, name = await call.containers(), str(call.request.path_params["name"])
    return Json(show_volume(await volumes.get_volume(mine.api, mine.namespace, name)))


async def remove_volume(call: DockerCall) -> Response:
    """Delete a volume and its data. 409 while it is in use, also with `force`, as with Docker."""
    mine, name = await call.containers(), str(call.request.path_params["name"])
    call.context.audit(call.request, "delete volume", f"{mine.namespace}/{name}")
    with suppress(*((NotFound,) if is_true(call.query.get("force")) else ())):
        await volumes.delete_volume(mine.api, mine.namespace, name, force=False)
    return Response(status_code=204)


# --- the network


async def list_networks(call: DockerCall) -> Response:
    """List the one network of all containers."""
    network, filters = show_network(), read_filters(call.query.get("filters"))
    fits = all(
        any(word in network.get({"name": "Name", "id": "Id"}.get(key, ""), "") for word in words)
        for key, words in filters.items()
    )
    return Json([network] if fits else [])


async def get_network(call: DockerCall) -> Response:
    """Show the network `bridge`."""
    network = show_network()
    if call.id != NETWORK and not (len(call.id) >= 12 and network["Id"].startswith(call.id)):
        raise Problem(404, ErrorCode.NOT_FOUND, f"network {call.id} not found", f"the only network is {NETWORK}")
    return Json(network)


# --- the host


async def info(call: DockerCall) -> Response:
    """The answer for `docker info`."""
    mine = await call.containers()
    states = [mine.state(pod).status for pod in await mine.listed()]
    return Json(
        {
            "ID": "moorage",
            "Name": "moorage",
            "ServerVersion": __version__,
            "OSType": "linux",
            "Driver": "kubernetes",
            "Debug": False,
            "ExperimentalBuild": False,
            "Containers": len(states),
            "ContainersRunning": states.count("running"),
            "ContainersPaused": 0,
            "ContainersStopped": len(states) - states.count("running"),
            "Images": len(await _images(call)),
        }
    )


async def disk_use(call: DockerCall) -> Response:
    """The answer for `docker system df`: images, containers and volumes."""
    mine = await call.containers()
    now, services = mine.context.now(), await mine.services()
    rows = [summary(pod, services.get(pod["metadata"]["name"]), now) for pod in await mine.listed()]
    images = await _images(call)
    return Json(
        {
            "LayersSize": sum(image.size_bytes for image in images),
            "Images": [image_row(image) for image in images],
            "Containers": [row | {"SizeRw": 0, "SizeRootFs": 0} for row in rows],
            "Volumes": await _volumes(mine),
            "BuildCache": [],
        }
    )


async def prune_images(_call: DockerCall) -> Response:
    """Nothing to delete: nodes delete unused images themselves."""
    return Json({"ImagesDeleted": [], "CachesDeleted": [], "SpaceReclaimed": 0})


async def prune_networks(_call: DockerCall) -> Response:
    """Nothing to delete: the one network stays."""
    return Json({"NetworksDeleted": []})


def _versioned(route: str, handler: Handler, *, supported: bool = True) -> DockerEndpoint:
    method, _, path = route.partition(" ")
    return DockerEndpoint(method=method, handler=handler, dockers=path, supported=supported, unversioned=False)


def _refusing(route: str, reason: str) -> DockerEndpoint:
    async def refuse(call: DockerCall) -> Response:
        request = call.request
        message = f"{request.method} {request.url.path} is not supported: {reason}"
        raise Problem(501, ErrorCode.NOT_SUPPORTED, message)

    refuse.__doc__ = f"Not supported: {reason}."
    return _versioned(route, refuse, supported=False)


ENDPOINTS = (
    DockerEndpoint(method="GET", handler=info, dockers="/info"),
    _versioned("GET /system/df", disk_use),
    DockerEndpoint(method="POST", handler=pull, dockers="/images/create"),
    _versioned("GET /images/json", list_images),
    _versioned("POST /images/prune", prune_images),
    _versioned("POST /build/prune", prune_images),
    _versioned("GET /images/{name:path}/json", get_image),
    _versioned("DELETE /images/{name:path}", remove_image),
    _versioned("GET /volumes", list_volumes),
    _versioned("POST /volumes/create", create_volume),
    _versioned("GET /volumes/{name}", get_volume),
    _versioned("DELETE /volumes/{name}", remove_volume),
    _versioned("GET /networks", list_networks),
    _versioned("POST /networks/prune", prune_networks),
    _versioned("GET /networks/{id}", get_network),
)
UNSUPPORTED_ENDPOINTS = tuple(_refusing(route, reason) for route, reason in UNSUPPORTED.items())
