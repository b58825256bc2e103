"""Workspace: an application in a browser, such as JupyterLab, with a home that stays when it is stopped.

A template defines the application: one of ours, one in a ConfigMap of an administrator, or one in the Workspace
itself. docs/design/0009-people.md, "How a workspace is reached".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from moorage.model.info import parse_info
from moorage.model.kueue import QUEUE_LABEL
from moorage.model.machine import Fault
from moorage.model.names import (
    GROUP,
    HOST_ENV_ANNOTATION,
    NAME_COMPARED,
    OWNER_ANNOTATION,
    OWNER_LABEL,
    TEMPLATE_LABEL,
    VERSION,
    is_dns_label,
)
from moorage.model.tenant import Condition, Quantity
from moorage_kube.documents import parse_document
from moorage_kube.errors import DocumentError, MoorageError, QuantityError
from moorage_kube.meta import annotations_of, is_deleting, labels_of
from moorage_kube.quantity import parse_quantity, problem_of_bytes
from moorage_kube.resources import Resource

WORKSPACES = Resource(GROUP, VERSION, "workspaces", "Workspace")

JUPYTERLAB, CODESERVER = "jupyterlab", "codeserver"
LOGIN, TOKEN = "login", "token"
ACCESSES = (LOGIN, TOKEN)
STOPPED, WAITING, STARTING, RUNNING, STOPPING, FAILED = (
    "Stopped", "Waiting", "Starting", "Running", "Stopping", "Failed"
)  # fmt: skip
PHASES = (STOPPED, WAITING, STARTING, RUNNING, STOPPING, FAILED)
OPEN_VERB = "open"  # the gateway admits users with this verb on a workspace in RBAC

TEMPLATE_KEY = "template.yaml"
TUNNEL_DOMAIN = "tunnel.localhost"  # browsers look for it on their own machine: RFC 6761, section 6.3
OWN_PATHS = "/.moorage/"  # of every workspace's host: the gateway's
ENTER = f"{OWN_PATHS}enter"  # where browsers bring the codes by which they are let in
GATEWAY_SECRET = "moorage-gateway"  # in our namespace: key

NAME_MAX = 43  # ws- + name + ReplicaSet's 11 + pod's 6 = 63
DEFAULT_CPU, DEFAULT_MEMORY, DEFAULT_HOME_SIZE = "1", "4Gi", "10Gi"
CONTAINER = "workspace"
NO_FOLDER = "must be a folder without ':' and '..', not /"
NO_AMOUNT = "must be a quantity above zero, such as 500m, 2 or 8Gi"
OWN_VARIABLES = ("POD_IP", "HOME")  # set by us, like all that begin with MOORAGE_

_NAME = Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_OBJECT_NAME = Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
_PATH = Meta(min_length=1, max_length=4096, pattern="^/")
_PORT = Meta(ge=1, le=65535)
_WORDS = Meta(max_length=200)
_TIME = Meta(extra_json_schema={"format": "date-time"})
_CONDITIONS = Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
_MAPPED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class TokenUse(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The way to pass the token to the application.

    {token} and {sha256} (hexadecimal, of the token) are replaced.
    """

    header: Annotated[
        str, Meta(max_length=100, pattern=r"^[-A-Za-z0-9]*$", description="In this header of each request.")
    ] = ""
    cookie: Annotated[
        str, Meta(max_length=100, pattern=r"^[-_A-Za-z0-9]*$", description="In this cookie of each request.")
    ] = ""
    value: Annotated[
        str, Meta(max_length=200, pattern=r"^[ -~]*$", description="Of header or cookie. Default {token}.")
    ] = ""
    query: Annotated[
        str,
        Meta(
            max_length=100,
            pattern=r"^[-_A-Za-z0-9]*$",
            description="Parameter of an address that signs a person in, where access is by token.",
        ),
    ] = ""


class Variable(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An environment variable, as in a container."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$",
            description="Name of the variable.",
        ),
    ]
    value: Annotated[str | None, Meta(description="$(NAME) of an earlier variable is put in.")] = None
    value_from: Annotated[dict[str, Any] | None, Meta(description="As in a container.")] = None


class App(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An HTTP application: its command, and its port."""

    command: Annotated[
        list[str],
        Meta(
            max_length=200,
            description="$(POD_IP), $(MOORAGE_PORT), $(MOORAGE_TOKEN) and $(HOME) are put in. It listens on POD_IP"
            " or on all addresses. Default: the image's.",
        ),
    ] = []
    args: Annotated[list[str], _WORDS, Meta(description="Arguments of the command.")] = []
    port: Annotated[int, _PORT, Meta(description="Port that the application serves HTTP on.")] = 8888
    path: Annotated[
        str, Meta(max_length=4096, pattern="^(/.*)?$", description="First page of the application.")
    ] = ""
    ready: Annotated[
        str,
        Meta(max_length=4096, pattern="^(/.*)?$", description="Answers 200 once it is ready. Default: the port."),
    ] = ""
    env: Annotated[list[Variable], Meta(max_length=200, extra_json_schema=_MAPPED)] = []
    token: Annotated[TokenUse | None, Meta(description="None: it has no sign-in.")] = None
    image: Annotated[str, Meta(max_length=1024, description="Of a Workspace that names none.")] = ""
    home: Annotated[str, Meta(max_length=4096, pattern="^(/.*)?$", description="Where its home is mounted.")] = ""
    fs_group: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None, Meta(description="Group that may write on its volumes.")
    ] = None


class MachineChoice(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A machine from the list of `moor machines`."""

    group: Annotated[str, _NAME, Meta(description="Group of the Machine.")]
    type: Annotated[str, _NAME, Meta(description="Machine type.")]


class Resources(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The limits and requests of its resources."""

    cpu: Annotated[Quantity | None, Meta(description="Default 1.")] = None
    memory: Annotated[Quantity | None, Meta(description="It alone is killed beyond it. Default 4Gi.")] = None
    gpus: Annotated[int, Meta(ge=0, le=1024, description="Number of GPUs.")] = 0
    gpu_type: Annotated[str, Meta(max_length=63, description="Such as a100; as `moor gpus` lists them.")] = ""
    gpu_resource: Annotated[str, Meta(max_length=253, description="Default nvidia.com/gpu.")] = ""
    gpu_claim: Annotated[
        str, Meta(max_length=253, description="ResourceClaimTemplate to claim GPUs by, instead of gpus.")
    ] = ""


class Home(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The volume that is retained when the workspace is stopped or deleted."""

    claim_name: Annotated[str, Meta(max_length=253, description="Default NAME-home; made when it is missing.")] = (
        ""
    )
    size: Annotated[Quantity | None, Meta(description="Of one that is made. Default 10Gi.")] = None
    storage_class: Annotated[
        str,
        Meta(max_length=253, description="Storage class of a volume that is made; empty: the default class."),
    ] = ""
    mount_path: Annotated[
        str, Meta(max_length=4096, pattern="^(/.*)?$", description="Default: the template's.")
    ] = ""


class VolumeUse(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A volume and where it is mounted."""

    claim_name: Annotated[str, _OBJECT_NAME, Meta(description="Name of the PersistentVolumeClaim.")]
    mount_path: Annotated[str, _PATH, Meta(description="Path in the container.")]
    read_only: Annotated[bool, Meta(description="Mount it read-only.")] = False
    sub_path: Annotated[
        str, Meta(max_length=4096, description="Folder of the volume to mount; empty: all of it.")
    ] = ""


class Schedule(Struct, frozen=True, rename="camel", omit_defaults=True):
    """When it is started and stopped automatically. A manual start or stop holds until the next time."""

    start: Annotated[str, Meta(max_length=200, description="As cron has it: `0 8 * * 1-5`.")] = ""
    stop: Annotated[str, Meta(max_length=200, description="As cron has it: `0 18 * * 1-5`.")] = ""
    time_zone: Annotated[str, Meta(max_length=100, description="Such as Europe/Berlin. Default UTC.")] = ""


class WorkspaceSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The application, its resources and volumes, and whether it runs."""

    type: Annotated[
        str,
        Meta(
            max_length=63,
            pattern="^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$",
            description="jupyterlab, codeserver, or a template's name.",
        ),
    ] = ""
    app: Annotated[App | None, Meta(description="Any HTTP application, instead of a type.")] = None
    machine: Annotated[MachineChoice | None, Meta(description="Instead of resources.")] = None
    resources: Resources = Resources()
    image: Annotated[str, Meta(max_length=1024, description="Default: the template's.")] = ""
    image_pull_secrets: Annotated[
        Annotated[list[Annotated[str, _OBJECT_NAME]], Meta(max_length=20)],
        Meta(description="Names of Secrets with registry credentials."),
    ] = []
    env: Annotated[list[Variable], Meta(max_length=200, extra_json_schema=_MAPPED)] = []
    home: Home = Home()
    volumes: Annotated[list[VolumeUse], Meta(max_length=50)] = []
    running: Annotated[
        bool,
        Meta(
            extra_json_schema={"default": True}, description="Whether it should run; false keeps only its volumes."
        ),
    ] = True
    schedule: Annotated[Schedule | None, Meta(description="When it starts and stops by itself.")] = None
    access: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["", *ACCESSES]},
            description="login: the platform lets in whom RBAC lets; token: the application asks for its own."
            " Default login where the platform has a domain for workspaces.",
        ),
    ] = ""


class WaitingFor(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The reason why it does not run."""

    reason: Annotated[str, Meta(max_length=100, description="One word, as in the condition Ready.")] = ""
    message: Annotated[str, Meta(max_length=4096, description="The same as a sentence.")] = ""


class WorkspaceStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    phase: Annotated[
        str, Meta(extra_json_schema={"enum": ["", *PHASES]}, description="Current phase of the workspace.")
    ] = ""
    url: Annotated[str, Meta(max_length=4096, description="Where a person opens it.")] = ""
    access: Annotated[str, Meta(max_length=20, description="In force.")] = ""
    waiting_for: WaitingFor | None = None
    pod: Annotated[str, Meta(max_length=253, description="Name of its pod.")] = ""
    node: Annotated[str, Meta(max_length=253, description="Node that the pod runs on.")] = ""
    secret: Annotated[str, Meta(max_length=253, description="Holds its token.")] = ""
    home: Annotated[str, Meta(max_length=253, description="Claim of its home.")] = ""
    ready_at: Annotated[str, _TIME, Meta(description="When it became ready.")] = ""
    next_start: Annotated[str, _TIME, Meta(description="Next start by the schedule.")] = ""
    next_stop: Annotated[str, _TIME, Meta(description="Next stop by the schedule.")] = ""
    conditions: Annotated[list[Condition], _CONDITIONS] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0


class Workspace(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An application in a browser, with a permanent home volume."""

    spec: WorkspaceSpec
    status: WorkspaceStatus = WorkspaceStatus()


# --- templates

BUILT_IN: Mapping[str, App] = {
    JUPYTERLAB: App(
        command=["jupyter", "lab"],
        args=[
            "--no-browser",
            "--allow-root",  # many images know no other user
            "--ip=$(POD_IP)",
            "--port=$(MOORAGE_PORT)",
            "--ServerApp.port_retries=0",  # never on another port in silence
            "--ServerApp.base_url=/",
            "--ServerApp.root_dir=$(HOME)",
            "--ServerApp.allow_remote_access=True",  # its Host is a name of the ingress
            "--ServerApp.terminals_enabled=True",
            "--ServerApp.quit_button=False",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--LabApp.news_url=None",
        ],
        port=8888,
        path="/lab",
        ready="/api",
        env=[Variable(name="JUPYTER_TOKEN", value="$(MOORAGE_TOKEN)")],
        token=TokenUse(header="Authorization", value="token {token}", query="token"),
        image="quay.io/jupyter/base-notebook:2025-08-25",
        home="/home/jovyan",
        fs_group=100,
    ),
    CODESERVER: App(
        command=["code-server"],
        args=[
            "--host=$(POD_IP)",
            "--port=$(MOORAGE_PORT)",
            "--auth=password",
            "--disable-telemetry",
            "--disable-update-check",
            "$(HOME)",
        ],
        port=8080,
        ready="/healthz",
        # the password is the token; it is stored as its hash, as in its cookie
        env=[Variable(name="HASHED_PASSWORD", value="$(MOORAGE_TOKEN_SHA256)")],
        token=TokenUse(cookie="code-server-session", value="{sha256}"),
        image="codercom/code-server:4.104.2",
        home="/home/coder",
        fs_group=1000,
    ),
}

PLACES = frozenset({"image", "home", "fsGroup"})  # the fields that a mirror of our images changes


def parse_template(obj: Mapping[str, Any]) -> tuple[str, App]:
    """Read a template's ConfigMap: its name, and the application. Raises BadWorkspace with the problem.

    One with the name of ours that sets only the places of its files (`PLACES`) keeps our command and all else.
    """
    meta = obj["metadata"]
    name = labels_of(obj).get(TEMPLATE_LABEL) or ""
    text = (obj.get("data") or {}).get(TEMPLATE_KEY)
    if not is_dns_label(name) or text is None:
        raise BadWorkspace(
            f"ConfigMap {meta['name']}: a template has its name in the label {TEMPLATE_LABEL} and its application"
            f" under the key {TEMPLATE_KEY}"
        )
    try:
        document = parse_document(text)
        app = msgspec.convert(document, App)
    except (DocumentError, msgspec.ValidationError) as error:
        raise BadWorkspace(f"ConfigMap {meta['name']}, {TEMPLATE_KEY}: {error}") from error
    ours = BUILT_IN.get(name)
    if ours is not None and set(document) <= PLACES:
        app = msgspec.structs.replace(
            ours,
            image=app.image or ours.image,
            home=app.home or ours.home,
            fs_group=ours.fs_group if app.fs_group is None else app.fs_group,
        )
    return name, app


def templates_of(configmaps: Iterable[Mapping[str, Any]]) -> tuple[dict[str, App], dict[str, str]]:
    """Every template by name, an administrator's before ours; and the problems of invalid ones, by name."""
    templates, bad = dict(BUILT_IN), {}
    for obj in sorted(configmaps, key=lambda configmap: str(configmap["metadata"]["name"])):
        try:
            name, app = parse_template(obj)
        except BadWorkspace as error:
            bad[labels_of(obj).get(TEMPLATE_LABEL) or ""] = error.message
            continue
        templates[name] = app
        bad.pop(name, None)
    return templates, bad


# --- where workspaces are reached


class Platform(Struct, frozen=True, kw_only=True):
    """The public addresses of this platform, from its ConfigMap; see `parse_platform`."""

    scheme: str = ""
    domain: str = ""  # empty: workspaces have no addresses outside the cluster
    port: int | None = None
    ingress_class: str = ""  # empty: the cluster's default
    tls_secret: str = ""  # in the workspaces' namespaces; empty: the ingress controller has its own certificate
    page: str = ""  # where people find the platform itself

    def host(self, namespace: str, name: str) -> str:
        return f"{host_label(namespace, name)}.{self.domain}"

    def url(self, host: str, path: str = "/") -> str:
        port = f":{self.port}" if self.port is not None else ""
        return f"{self.scheme}://{host}{port}{path}"

    def serves(self, host: str) -> bool:
        """Whether a host (lower case, without port) belongs to a workspace."""
        return bool(self.domain) and host.endswith(f".{self.domain}") and host != urlsplit(self.page).hostname


_WORKSPACE_URL = re.compile(r"(https?)://\*\.([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?::(\d{1,5}))?/?")


def parse_platform(data: Mapping[str, str]) -> Platform:
    """Parse the keys workspaceUrl (`https://*.apps.example.org`), publicUrl, ingressClass and ingressTlsSecret.

    Raises BadWorkspace for an invalid workspaceUrl.
    """
    text = (data.get("workspaceUrl") or "").strip()
    info = parse_info(data)
    page = info.public_url or info.server_url
    if not text:
        return Platform(page=page)
    match = _WORKSPACE_URL.fullmatch(text.lower())
    if match is None or (match[3] and int(match[3]) > 65535):
        raise BadWorkspace(f"workspaceUrl is {text!r}; write it as https://*.apps.example.org")
    return Platform(
        scheme=match[1],
        domain=match[2],
        port=int(match[3]) if match[3] else None,
        ingress_class=(data.get("ingressClass") or "").strip(),
        tls_secret=(data.get("ingressTlsSecret") or "").strip(),
        page=page,
    )


_HASHED = re.compile(r"-[0-9a-f]{16}$")


def host_label(namespace: str, name: str) -> str:
    """The first label of a workspace's host: NAME--NAMESPACE; different workspaces have different labels.

    Names that would make it too long or ambiguous, or a reserved label ("xn--…"), are cut and get a hash of 64
    bits; so do names that end like such a hash, so that a chosen name cannot take another workspace's host.
    """
    plain = f"{name}--{namespace}"
    is_clear = "--" not in name and "--" not in namespace and not _HASHED.search(name)
    if len(plain) <= 63 and is_clear and plain[2:4] != "--":
        return plain
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:16]
    begin, end = (re.sub("-+", "-", text[:20]).strip("-") for text in (name, namespace))
    return f"{begin}-{digest}--{end}"


def make_token(key: bytes, uid: str) -> str:
    """A workspace's token, computed from the platform's key: services need no right to read Secrets."""
    return hmac.new(key, f"workspace {uid}".encode(), hashlib.sha256).hexdigest()[:48]


def put_in(text: str, token: str) -> str:
    """Replace `{token}` and `{sha256}` in the value of a TokenUse."""
    return (
        (text or "{token}")
        .replace("{sha256}", hashlib.sha256(token.encode()).hexdigest())
        .replace("{token}", token)
    )


# --- as decisions read it


class WorkspaceView(Struct, frozen=True, kw_only=True):
    """A Workspace, parsed."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    created: str  # RFC 3339
    owner: str
    owner_label: str
    spec: WorkspaceSpec
    status: WorkspaceStatus
    queue: str = ""  # LocalQueue of Kueue that its label names; empty: none
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def object_name(self) -> str:
        """The name of the Deployment, Service and Ingress."""
        return f"ws-{self.name}"

    @property
    def gateway_name(self) -> str:
        """The name of the Service through which the ingress reaches the gateway."""
        return f"{self.object_name}-gateway"

    @property
    def secret_name(self) -> str:
        """The name of the Secret. Another Workspace with the same name gets another Secret."""
        return f"{self.object_name}-{self.uid.replace('-', '')[:8]}"

    @property
    def home_claim(self) -> str:
        return self.spec.home.claim_name or f"{self.name}-home"

    @property
    def is_host_env(self) -> bool:
        return self.notes.get(HOST_ENV_ANNOTATION) == "true"

    def access(self, platform: Platform) -> str:
        """The access method: the one in the spec, or else login if the platform supports it, or else token."""
        return self.spec.access or (LOGIN if platform.domain else TOKEN)


class BadWorkspace(MoorageError):
    """A Workspace, template or setting is invalid. The message names the field."""


def parse_workspace(obj: Mapping[str, Any]) -> WorkspaceView:
    """Parse a stored Workspace. Raises BadWorkspace with the field's path."""
    meta = obj["metadata"]
    try:
        spec = msgspec.convert(obj.get("spec") or {}, WorkspaceSpec)
    except msgspec.ValidationError as error:
        raise BadWorkspace(_field_message("spec", error)) from error
    try:
        status = msgspec.convert(obj.get("status") or {}, WorkspaceStatus)
    except msgspec.ValidationError:
        status = WorkspaceStatus()  # another writer's status; ours replaces it
    label = labels_of(obj).get(OWNER_LABEL, "")
    return WorkspaceView(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=meta.get("uid") or "",
        generation=int(meta.get("generation") or 0),
        deleting=is_deleting(obj),
        created=meta.get("creationTimestamp") or "",
        owner=annotations_of(obj).get(OWNER_ANNOTATION) or label,
        owner_label=label,
        spec=spec,
        status=status,
        queue=labels_of(obj).get(QUEUE_LABEL, ""),
        notes=annotations_of(obj),
    )


def _field_message(where: str, error: msgspec.ValidationError) -> str:
    message, _, place = str(error).partition(" - at ")
    _, _, path = place.partition("$")
    return f"{where}{path.strip('`')}: {message}"


def allowed_types(name: str, known: Iterable[str]) -> str:
    """The allowed values for an unknown type: all types, and the nearest of them."""
    names = sorted(known)
    near = get_close_matches(name[:NAME_COMPARED], names, n=1)
    return f"must be one of {', '.join(names)}" + (f" (did you mean {near[0]}?)" if near else "")


def check_type(obj: Mapping[str, Any], configmaps: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """Check that the type of a Workspace is a known template. `configmaps`: the templates of an admin."""
    name = str(obj["spec"].get("type") or "")
    templates, bad = templates_of(configmaps)
    if not name or name in templates:
        return []
    if name in bad:
        return [Fault("spec.type", name, f"this template is invalid: {bad[name]}")]
    return [Fault("spec.type", name, allowed_types(name, templates))]


def check_workspace(obj: Mapping[str, Any]) -> list[Fault]:
    """Check everything that the schema of a Workspace cannot express. Returns all errors."""
    name = str(obj["metadata"].get("name") or "")
    faults: list[Fault] = []
    if name and (not is_dns_label(name) or len(name) > NAME_MAX):
        allowed = f"must be at most {NAME_MAX} of a-z, 0-9 and '-', a letter or digit at both ends"
        faults.append(Fault("metadata.name", name, allowed))
    try:
        spec = parse_workspace(obj).spec
    except BadWorkspace as error:
        path, _, message = error.message.partition(": ")
        is_amount = path.endswith((".cpu", ".memory", ".size")) and "regex" in message
        return [*faults, Fault(path, "", NO_AMOUNT if is_amount else message)]
    if bool(spec.type) == (spec.app is not None):
        message = "give one of spec.type (jupyterlab, codeserver, a template) and spec.app"
        faults.append(Fault("spec.type", spec.type, message + (", not both" if spec.type else "")))
    if spec.machine is not None and spec.resources != Resources():
        message = "leave it out where spec.machine is given: a machine has its size"
        faults.append(Fault("spec.resources", "", message))
    if spec.resources.gpu_type and not spec.resources.gpus:
        faults.append(Fault("spec.resources.gpuType", spec.resources.gpu_type, "needs spec.resources.gpus"))
    if spec.resources.gpu_claim and spec.resources.gpus:
        message = "leave it out where spec.resources.gpus is given"
        faults.append(Fault("spec.resources.gpuClaim", spec.resources.gpu_claim, message))
    for where, given in (
        ("spec.resources.cpu", spec.resources.cpu),
        ("spec.resources.memory", spec.resources.memory),
        ("spec.home.size", spec.home.size),
    ):
        faults += _check_amount(where, given)
    for table, variables in (("spec.env", spec.env), ("spec.app.env", spec.app.env if spec.app else [])):
        for at, variable in enumerate(variables):
            if variable.name in OWN_VARIABLES or variable.name.startswith("MOORAGE_"):
                message = "is one of Moorage's own; choose another name"
                faults.append(Fault(f"{table}[{at}].name", variable.name, message))
            if variable.value is not None and variable.value_from is not None:
                faults.append(Fault(f"{table}[{at}].valueFrom", "", "give one of value and valueFrom"))
    faults += _check_mounts(spec)
    return faults + check_schedule(spec.schedule)


def check_schedule(schedule: Schedule | None) -> list[Fault]:
    """Check the expressions and the time zone of a schedule."""
    if schedule is None:
        return []
    from moorage.model.schedule import problem_of_cron, problem_of_zone

    faults = []
    if not schedule.start and not schedule.stop:
        faults.append(Fault("spec.schedule", "", "give start, stop or both"))
    for key in ("start", "stop"):
        text = getattr(schedule, key)
        if text and (problem := problem_of_cron(text)):
            faults.append(Fault(f"spec.schedule.{key}", text, problem))
    if problem := problem_of_zone(schedule.time_zone):
        faults.append(Fault("spec.schedule.timeZone", schedule.time_zone, problem))
    return faults


def _check_amount(where: str, given: int | str | None) -> list[Fault]:
    if given is None:
        return []
    try:
        fits = parse_quantity(str(given)) > 0
    except QuantityError:
        fits = False
    if fits and not where.endswith("cpu") and (slip := problem_of_bytes(str(given))):
        return [Fault(where, str(given), "; ".join(slip))]
    return [] if fits else [Fault(where, str(given), NO_AMOUNT)]


def _check_mounts(spec: WorkspaceSpec) -> list[Fault]:
    faults = []
    seen: dict[str, str] = {}
    if spec.home.mount_path:
        seen[spec.home.mount_path.rstrip("/")] = "spec.home"
    for at, mount in enumerate(spec.volumes):
        where, path = f"spec.volumes[{at}]", mount.mount_path.rstrip("/")
        if ":" in mount.mount_path or ".." in mount.mount_path.split("/") or not path:
            faults.append(Fault(f"{where}.mountPath", mount.mount_path, NO_FOLDER))
        elif path in seen:
            faults.append(Fault(f"{where}.mountPath", mount.mount_path, f"{seen[path]} is mounted there too"))
        seen.setdefault(path, where)
        if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
            faults.append(Fault(f"{where}.subPath", mount.sub_path, "must be a path in the volume, without '..'"))
    if (home := spec.home.mount_path) and (".." in home.split("/") or ":" in home or not home.rstrip("/")):
        faults.append(Fault("spec.home.mountPath", home, NO_FOLDER))
    return faults
