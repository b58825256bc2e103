"""Workspaces: JupyterLab, code-server or another application in a browser."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from msgspec import Struct

from moorage.actions.objects import Kind, create_object, get_object, refuse
from moorage.api.errors import ErrorCode
from moorage.api.workspaces import NewWorkspace, WaitingFor, Workspace
from moorage.cluster.kueue import read_queues
from moorage.decide.idle.states import read_record
from moorage.decide.runs.job import PASSED_ON
from moorage.decide.runs.kueue import queue_of, queue_problem
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.names import (
    HOST_ENV_ANNOTATION,
    HOST_IMAGE,
    IDLE_ANNOTATION,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    SYSTEM_NAMESPACE,
    TEMPLATE_LABEL,
)
from moorage.model.workspace import (
    BUILT_IN,
    LOGIN,
    WORKSPACES,
    App,
    check_type,
    check_workspace,
    parse_workspace,
    templates_of,
)
from moorage.present.idlemarks import mark_of
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import ApiError, Conflict, Forbidden, NotFound, UsageError
from moorage_kube.meta import annotations_of, condition, is_deleting, labels_of
from moorage_kube.moments import moment
from moorage_kube.resources import CONFIGMAPS, PVCS, SECRETS, Obj

WORKSPACE = Kind(WORKSPACES, "workspace")
DELETING, PENDING = "Deleting", "Pending"  # phases that the operator does not write


class WayIn(Struct, frozen=True):
    """How a browser opens a workspace. `by_login`: the page at `url` asks for the platform's login.

    `password`: the password that the application asks for.
    """

    url: str
    by_login: bool = False
    password: str = ""


async def list_workspaces(
    api: Api, namespace: str | None, *, limit: int | None = None, after: str | None = None
) -> tuple[list[Workspace], str | None]:
    """The workspaces of a namespace (None: all) by name, and the token of the next page.

    Raises ApiError, and NotReady if the cluster does not have the kind.
    """
    try:
        page = await api.list(WORKSPACES, namespace, limit=limit, cont=after)
    except NotFound as error:
        raise WORKSPACE.unknown(error) from error
    return in_order(page.items), page.cont


def in_order(objs: Iterable[Obj]) -> list[Workspace]:
    """Convert objects to workspaces, sorted by namespace and name."""
    return sorted((workspace_of(obj) for obj in objs), key=lambda workspace: (workspace.namespace, workspace.name))


def plan_workspace(request: NewWorkspace, *, on_processes: bool = False) -> Obj:
    """Convert a request to a Workspace. Raises InvalidObject.

    `on_processes`: this is a local cluster, which does not pull images. Raises UsageError there for an image.
    """
    image = request.spec.get("image") if isinstance(request.spec, dict) else None
    if on_processes and image and not request.host_env and str(image).partition(":")[0] != HOST_IMAGE:
        raise UsageError(
            f"cannot pull image {image!r}: this cluster runs commands on this machine itself",
            hint="leave out the image, or run its application in this machine's environment: --host-env",
            code=ErrorCode.INVALID,
            field="spec.image",
        )
    spec = {"running": True} | request.spec
    resources = spec.get("resources")
    if isinstance(resources, dict) and isinstance(resources.get("cpu"), float):
        spec["resources"] = resources | {"cpu": str(resources["cpu"])}  # the schema has no fractions
    obj: Obj = {
        "apiVersion": WORKSPACES.api_version,
        "kind": WORKSPACES.kind,
        "metadata": {"name": request.name, "namespace": request.namespace},
        "spec": spec,
    }
    if request.host_env:
        obj["metadata"]["annotations"] = {HOST_ENV_ANNOTATION: "true"}
    if request.queue:
        obj["metadata"]["labels"] = {QUEUE_LABEL: request.queue}
    refuse(check_workspace(obj))
    return obj


async def create_workspace(
    api: Api, obj: Obj, *, templates: Api, mark: str = "", dry_run: bool = False
) -> Workspace:
    """Create a planned workspace, once for each `mark`; `templates` reads those of the platform.

    Raises AlreadyExists, InvalidObject for a type without a template, and UsageError for a queue of Kueue that
    does not exist.
    """
    await _check_queue(api, obj)
    await _check_type(templates, obj)
    return workspace_of(await create_object(api, WORKSPACE, obj, mark=mark, dry_run=dry_run))


async def _check_queue(api: Api, obj: Obj) -> None:
    """Raise UsageError if the namespace does not have the queue of a workspace."""
    queue, namespace = queue_of(obj), obj["metadata"]["namespace"]
    if not queue:
        return
    if problem := queue_problem(queue, await read_queues(api, namespace), namespace):
        message, hint = problem
        raise UsageError(message, hint=hint, code=ErrorCode.INVALID, field="queue")


async def _check_type(api: Api, obj: Obj) -> None:
    """Raise InvalidObject for a type without a template.

    Users who may not read the templates see it in the workspace's condition, as with kubectl.
    """
    faults = check_type(obj, ())
    if not faults:
        return
    try:
        templates = await api.list(CONFIGMAPS, SYSTEM_NAMESPACE, label_selector=TEMPLATE_LABEL)
    except (Forbidden, NotFound):
        return
    refuse(check_type(obj, templates.items))


async def get_workspace(api: Api, namespace: str, name: str) -> Workspace:
    """Raises NotFound."""
    return workspace_of(await get_object(api, WORKSPACE, namespace, name))


async def switch_workspace(api: Api, namespace: str, name: str, *, running: bool) -> Workspace:
    """Start or stop a workspace; do nothing if it is already in that state. Raises NotFound."""
    obj = await get_object(api, WORKSPACE, namespace, name)
    if parse_workspace(obj).spec.running != running:
        obj = await api.patch(WORKSPACES, name, {"spec": {"running": running}}, namespace)
    return workspace_of(obj)


async def home_of(api: Api, namespace: str, name: str) -> str:
    """The name of a workspace's home volume, which may not exist. Raises NotFound without the workspace."""
    return parse_workspace(await get_object(api, WORKSPACE, namespace, name)).home_claim


async def delete_workspace(api: Api, namespace: str, name: str, *, delete_home: bool) -> str:
    """Delete a workspace, with `delete_home` also its home volume; return the name of that volume.

    The delete is guarded by the uid that was read, so that a new workspace of the same name is not deleted. Raises
    NotFound.
    """
    obj = await get_object(api, WORKSPACE, namespace, name)
    home = parse_workspace(obj).home_claim
    with contextlib.suppress(NotFound):  # another client deleted it meanwhile
        await api.delete(WORKSPACES, name, namespace, uid=obj["metadata"]["uid"], propagation="Background")
    if delete_home:
        with contextlib.suppress(NotFound):  # it never ran
            await api.delete(PVCS, home, namespace)
    return home


async def way_in(
    api: Api, namespace: str, name: str, apps: Mapping[str, App] | None = None, *, token: str = ""
) -> WayIn:
    """The URL that opens a workspace in a browser.

    `apps` by type; None: read them. `token` empty: read it. Raises NotFound, Conflict for a workspace without an
    address, and Forbidden if the caller may not read its token.
    """
    view = parse_workspace(await get_object(api, WORKSPACE, namespace, name))
    status = view.status
    if not status.url:
        raise Conflict(
            f"workspace {name!r} has no address: this platform has no domain for workspaces",
            hint=f"open it through a tunnel: moor workspace open {name} -n {namespace}",
            code=ErrorCode.CONFLICT,
        )
    if status.access == LOGIN:
        return WayIn(status.url, by_login=True)
    if not token:
        try:
            secret = await api.get(SECRETS, status.secret, namespace)
        except Forbidden as error:
            raise Forbidden(
                f"you may not read the token of workspace {name!r}",
                hint="its owner and administrators of the team may; with `access: login` it is opened by a login",
                code=ErrorCode.FORBIDDEN,
            ) from error
        token = base64.b64decode(secret["data"]["token"]).decode()
    app = view.spec.app or (await read_apps(api) if apps is None else apps).get(view.spec.type)
    if app is None or app.token is None or not app.token.query:
        return WayIn(status.url, password=token)
    mark = "&" if "?" in status.url else "?"
    return WayIn(f"{status.url}{mark}{app.token.query}={quote(token)}")


async def read_apps(api: Api) -> Mapping[str, App]:
    """The applications by type; only the built-in ones if the templates of this cluster cannot be read."""
    try:
        templates = await api.list(CONFIGMAPS, SYSTEM_NAMESPACE, label_selector=TEMPLATE_LABEL)
    except ApiError:
        return BUILT_IN
    return templates_of(templates.items)[0]


def host_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables with which a local process finds its programs, the same as for `moor run`."""
    return {name: environ[name] for name in PASSED_ON if name in environ}


def workspace_of(obj: Obj) -> Workspace:
    """Convert a stored Workspace to an answer."""
    meta, status = obj["metadata"], obj.get("status") or {}
    spec = obj.get("spec") or {}
    waiting = status.get("waitingFor") or {}
    record = read_record(annotations_of(obj).get(IDLE_ANNOTATION))
    return Workspace(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        owner=annotations_of(obj).get(OWNER_ANNOTATION) or labels_of(obj).get(OWNER_LABEL) or "",
        type=spec.get("type") or ("custom" if spec.get("app") else ""),
        running=spec.get("running", True),
        phase=DELETING if is_deleting(obj) else status.get("phase") or PENDING,
        ready=(condition(obj, "Ready") or {}).get("status") == "True",
        url=status.get("url") or "",
        access=status.get("access") or "",
        waiting_for=WaitingFor(reason=waiting["reason"], message=waiting.get("message", "")) if waiting else None,
        image=spec.get("image") or "",
        machine=spec.get("machine"),
        resources=spec.get("resources") or {},
        home=status.get("home") or "",
        volumes=tuple(volume["claimName"] for volume in spec.get("volumes") or ()),
        pod=status.get("pod") or "",
        node=status.get("node") or "",
        queue=queue_of(obj),
        schedule=spec.get("schedule"),
        next_start=moment(status.get("nextStart")),
        next_stop=moment(status.get("nextStop")),
        ready_at=moment(status.get("readyAt")),
        created=moment(meta.get("creationTimestamp")),
        idle=mark_of(record, SYSTEM.now()),
        idle_why=record.why,
    )
