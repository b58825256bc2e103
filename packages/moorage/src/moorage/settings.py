"""Every environment variable that Moorage reads: one table, one reader, one kind of error.

A service reads its settings once, when it starts, as typed values: `RATE_LIMIT.read(os.environ)`. An empty
variable counts as not set. docs/reference/settings.md is made from this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct

from moorage.model.retention import (
    ARTIFACT_BYTES,
    ARTIFACT_BYTES_MAX,
    ARTIFACT_BYTES_MIN,
    ARTIFACT_DAYS,
    ARTIFACT_DAYS_MAX,
    AUDIT_DAYS,
    AUDIT_DAYS_MAX,
    LOG_BYTES,
    LOG_BYTES_MAX,
    LOG_BYTES_MIN,
    LOG_DAYS,
    LOG_DAYS_MAX,
    LOG_STREAMS,
    LOG_STREAMS_MAX,
    LOG_TOTAL_BYTES,
    USAGE_DAYS,
    USAGE_DAYS_MAX,
    WORKFLOW_DAYS,
    WORKFLOW_DAYS_MAX,
)
from moorage_kube.errors import MoorageError, UsageError
from moorage_kube.integers import parse_integer
from moorage_kube.quantity import format_bytes, parse_quantity

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_SHOWN_MAX = 80  # characters of a wrong value in a message
SIZE_MAX = 1 << 50  # 1Pi

SERVER = "server"
UP = "moor up"
EXTENDER = "extender"
WEBHOOK = "webhook"
OPERATOR = "operator"
COMMANDS = "commands"
FILLER = "filler"


class Kind(Struct, Generic[T_co], frozen=True):
    """How a text becomes a value. `allowed`: the end of "use …". `parse` raises MoorageError or ValueError."""

    allowed: str
    parse: Callable[[str], T_co]


class Setting(Struct, Generic[T], frozen=True, kw_only=True):
    """One variable. `default` is its value when it is not set; `usual` says so where the value does not."""

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    readers: tuple[str, ...]
    usual: str = ""
    secret: bool = False  # its value is never shown

    def read(self, env: Mapping[str, str]) -> T:
        """The value in an environment. Raises UsageError for one that is not allowed."""
        text = env.get(self.name) or ""
        if not text:
            return self.default
        try:
            return self.kind.parse(text)
        except (MoorageError, ValueError):  # its own message may hold a secret
            shown = "" if self.secret else f" {text[:_SHOWN_MAX]!r}"
            raise UsageError(
                f"invalid {self.name}{shown}: use {self.kind.allowed}", hint=f"it is: {self.meaning}"
            ) from None


def text(allowed: str = "any text") -> Kind[str]:
    return Kind(allowed, str)


def whole(minimum: int, maximum: int) -> Kind[int]:
    allowed = f"a whole number from {minimum} to {maximum}"
    return Kind(allowed, lambda value: parse_integer(value, minimum=minimum, maximum=maximum))


def number(minimum: float, maximum: float) -> Kind[float]:
    def parse(value: str) -> float:
        result = float(value)
        if not (math.isfinite(result) and minimum <= result <= maximum):
            raise ValueError
        return result

    return Kind(f"a number from {minimum:g} to {maximum:.0f}", parse)


def size() -> Kind[int]:
    def parse(value: str) -> int:
        result = int(parse_quantity(value))
        if not 0 <= result <= SIZE_MAX:
            raise ValueError
        return result

    return Kind("bytes such as 5Gi, at most 1Pi; 0: no limit", parse)


def size_between(minimum: int, maximum: int) -> Kind[int]:
    def parse(value: str) -> int:
        result = int(parse_quantity(value))
        if not minimum <= result <= maximum:
            raise ValueError
        return result

    return Kind(f"bytes such as 1Mi, from {format_bytes(minimum)} to {format_bytes(maximum)}", parse)


def flag() -> Kind[bool]:
    words = {"true": True, "t": True, "yes": True, "y": True, "on": True, "1": True}
    words |= {"false": False, "f": False, "no": False, "n": False, "off": False, "0": False}

    def parse(value: str) -> bool:
        if value.strip().lower() not in words:
            raise ValueError
        return words[value.strip().lower()]

    return Kind("true or false", parse)


def choice(*words: str) -> Kind[str]:
    def parse(value: str) -> str:
        if value not in words:
            raise ValueError
        return value

    return Kind(f"{', '.join(words[:-1])} or {words[-1]}", parse)


def path() -> Kind[Path | None]:
    return Kind("the path of a file or folder", lambda value: Path(value).expanduser())


def address(*schemes: str) -> Kind[str]:
    def parse(value: str) -> str:
        if not value.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError
        return value

    return Kind(f"an address such as {schemes[0]}://…", parse)


def words() -> Kind[tuple[str, ...]]:
    return Kind("words with blanks between", lambda value: tuple(value.split()))


# --- the server

RATE_LIMIT = Setting(
    name="MOORAGE_RATE_LIMIT", kind=number(0, 1e6), default=50, readers=(SERVER, UP),
    meaning="Requests per second of one user at one server, on average; 0: no limit.",
)  # fmt: skip
RATE_BURST = Setting(
    name="MOORAGE_RATE_BURST", kind=whole(1, 10**6), default=200, readers=(SERVER, UP),
    meaning="Requests of one user at one server in a burst.",
)  # fmt: skip
USAGE_KEPT_DAYS = Setting(
    name="MOORAGE_USAGE_DAYS", kind=whole(1, USAGE_DAYS_MAX), default=USAGE_DAYS, readers=(SERVER, UP),
    meaning="Days to keep the GPU usage.",
)  # fmt: skip
PROMETHEUS_URL = Setting(
    name="MOORAGE_PROMETHEUS_URL", kind=text("an address such as http://prometheus.monitoring:9090"), default="",
    readers=(SERVER, UP), meaning="Prometheus that has the metrics of DCGM's exporter; empty: ask the exporters.",
)  # fmt: skip
GPU_EXPORTER_NAMESPACES = Setting(
    name="MOORAGE_GPU_EXPORTER_NAMESPACES", kind=words(),
    usual="gpu-operator nvidia-gpu-operator kube-system monitoring dcgm-exporter",
    default=("gpu-operator", "nvidia-gpu-operator", "kube-system", "monitoring", "dcgm-exporter"),
    readers=(SERVER, UP), meaning="Namespaces of trusted GPU exporters.",
)  # fmt: skip
AUDIT_KEPT_DAYS = Setting(
    name="MOORAGE_AUDIT_DAYS", kind=whole(1, AUDIT_DAYS_MAX), default=AUDIT_DAYS, readers=(SERVER, UP),
    meaning="Days to keep the audit log in the database.",
)  # fmt: skip
KEPT_LOG_DAYS = Setting(
    name="MOORAGE_LOG_DAYS", kind=whole(1, LOG_DAYS_MAX), default=LOG_DAYS, readers=(SERVER, UP),
    meaning="Days to keep facts and logs of deleted pods of runs and workflows.",
)  # fmt: skip
KEPT_LOG_BYTES = Setting(
    name="MOORAGE_LOG_BYTES", kind=size_between(LOG_BYTES_MIN, LOG_BYTES_MAX), default=LOG_BYTES, usual="1Mi",
    readers=(SERVER, UP), meaning="Bytes to store from the end of each pod's log.",
)  # fmt: skip
KEPT_LOGS_TOTAL = Setting(
    name="MOORAGE_LOG_TOTAL_BYTES", kind=size(), default=LOG_TOTAL_BYTES, usual="2Gi", readers=(SERVER, UP),
    meaning="Bytes on the disk of all stored logs; the oldest are deleted first; 0: no limit.",
)  # fmt: skip
LOG_FOLLOWED = Setting(
    name="MOORAGE_LOG_STREAMS", kind=whole(1, LOG_STREAMS_MAX), default=LOG_STREAMS, readers=(SERVER, UP),
    meaning="Logs of pods that the server follows at the same time; more are read by turns.",
)  # fmt: skip
WORKFLOWS_KEPT_DAYS = Setting(
    name="MOORAGE_WORKFLOW_DAYS", kind=whole(1, WORKFLOW_DAYS_MAX), default=WORKFLOW_DAYS, readers=(SERVER, UP),
    meaning="Days to keep the history of workflows that are deleted, and memoized outputs.",
)  # fmt: skip
ARTIFACTS = Setting(
    name="MOORAGE_ARTIFACTS", kind=address("s3", "gs", "file"), default="", readers=(SERVER, UP),
    usual="a folder next to the databases",
    meaning="Store for artifacts of workflows: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///FOLDER.",
)  # fmt: skip
ARTIFACTS_KEPT_DAYS = Setting(
    name="MOORAGE_ARTIFACT_DAYS", kind=whole(1, ARTIFACT_DAYS_MAX), default=ARTIFACT_DAYS, readers=(SERVER, UP),
    meaning="Days to keep an artifact after it was stored.",
)  # fmt: skip
ARTIFACT_MOST_BYTES = Setting(
    name="MOORAGE_ARTIFACT_BYTES", kind=size_between(ARTIFACT_BYTES_MIN, ARTIFACT_BYTES_MAX),
    default=ARTIFACT_BYTES, usual="1Gi", readers=(SERVER, UP),
    meaning="Bytes of one artifact, as it is stored.",
)  # fmt: skip
ARTIFACTS_PER_NAMESPACE = Setting(
    name="MOORAGE_ARTIFACT_BYTES_PER_NAMESPACE", kind=size(), default=2 << 30, usual="2Gi", readers=(SERVER, UP),
    meaning="Bytes of all artifacts of one namespace; 0: no limit.",
)  # fmt: skip
WORKFLOW_BYTES_PER_NAMESPACE = Setting(
    name="MOORAGE_WORKFLOW_BYTES_PER_NAMESPACE", kind=size(), default=1 << 30, usual="1Gi", readers=(SERVER, UP),
    meaning="Bytes of the records of workflows of one namespace, memoized outputs and 200 for each row among them;"
    " beyond it the oldest deleted workflows are removed first, then memoized outputs; 0: no limit.",
)  # fmt: skip
QUEUE_URL = Setting(
    name="MOORAGE_QUEUE_URL", kind=address("postgresql", "postgres"), default="", readers=(SERVER, UP),
    secret=True, usual="files in the data folder",
    meaning="PostgreSQL for the queue of maps, sessions and the audit log.",
)  # fmt: skip
MAPS_PER_NAMESPACE = Setting(
    name="MOORAGE_MAPS_PER_NAMESPACE", kind=whole(0, SIZE_MAX), default=500, readers=(SERVER, UP),
    meaning="Maps of one namespace; 0: no limit.",
)  # fmt: skip
ITEMS_PER_NAMESPACE = Setting(
    name="MOORAGE_MAP_ITEMS_PER_NAMESPACE", kind=whole(0, SIZE_MAX), default=5_000_000, readers=(SERVER, UP),
    meaning="Items of all maps of one namespace; 0: no limit.",
)  # fmt: skip
BYTES_PER_NAMESPACE = Setting(
    name="MOORAGE_MAP_BYTES_PER_NAMESPACE", kind=size(), default=2 << 30, usual="2Gi", readers=(SERVER, UP),
    meaning="Bytes of values, keys and results of all maps of one namespace, and 200 for each item.",
)  # fmt: skip
OUTPUT_PER_NAMESPACE = Setting(
    name="MOORAGE_MAP_OUTPUT_PER_NAMESPACE", kind=size(), default=512 << 20, usual="512Mi", readers=(SERVER, UP),
    meaning="Bytes to store of the output of items of one namespace; the oldest is deleted first.",
)  # fmt: skip
LIMIT_HOLD_SECONDS = Setting(
    name="MOORAGE_LIMIT_HOLD_SECONDS", kind=whole(60, SIZE_MAX), default=6 * 3600, readers=(SERVER, UP),
    meaning="Seconds for which an item of a map holds tokens of a named limit while another map waits, at most.",
)  # fmt: skip
PAGE_TOKEN = Setting(
    name="MOORAGE_PAGE_TOKEN", kind=text(), default="", readers=(SERVER,), secret=True,
    meaning="Token of the web page, where --page-token-file is not given.", usual="required",
)  # fmt: skip
PUBLIC_URL = Setting(
    name="MOORAGE_PUBLIC_URL", kind=text("the address of the server in a browser"), default="",
    readers=(SERVER, UP), meaning="URL of this server for browsers.", usual="none: people log in by `moor login`",
)  # fmt: skip
KUBERNETES_URL = Setting(
    name="MOORAGE_KUBERNETES_URL", kind=text("the address of the Kubernetes API"), default="",
    readers=(SERVER, UP), meaning="Where people's kubectl finds the Kubernetes API.", usual="as this server does",
)  # fmt: skip
LOCAL_ACCOUNTS = Setting(
    name="MOORAGE_LOCAL_ACCOUNTS", kind=flag(), default=True, readers=(SERVER, UP),
    meaning="Let accounts of `moor user` log in.",
)  # fmt: skip
BEHIND_PROXY = Setting(
    name="MOORAGE_BEHIND_PROXY", kind=flag(), default=False, readers=(SERVER, UP),
    meaning="Trust the last address in X-Forwarded-For: the server is behind your ingress.",
)  # fmt: skip
OIDC_ISSUER = Setting(
    name="MOORAGE_OIDC_ISSUER", kind=text("the provider's address, as it writes it"), default="",
    readers=(SERVER, UP), meaning="OpenID Connect provider that people log in at.", usual="none",
)  # fmt: skip
OIDC_CLIENT_ID = Setting(
    name="MOORAGE_OIDC_CLIENT_ID", kind=text(), default="", readers=(SERVER, UP),
    meaning="This server's name at the provider.",
)  # fmt: skip
OIDC_CLIENT_SECRET = Setting(
    name="MOORAGE_OIDC_CLIENT_SECRET", kind=text(), default="", readers=(SERVER, UP), secret=True,
    meaning="This server's secret at the provider.", usual="none: a public client",
)  # fmt: skip
OIDC_CLIENT_SECRET_FILE = Setting(
    name="MOORAGE_OIDC_CLIENT_SECRET_FILE", kind=path(), default=None, readers=(SERVER, UP),
    meaning="File with that secret; it is read at every use.",
)  # fmt: skip
OIDC_NAME_CLAIM = Setting(
    name="MOORAGE_OIDC_NAME_CLAIM", kind=text("the name of a claim"), default="", readers=(SERVER, UP),
    meaning="Claim that names a person.", usual="email",
)  # fmt: skip
OIDC_GROUPS_CLAIM = Setting(
    name="MOORAGE_OIDC_GROUPS_CLAIM", kind=text("the name of a claim"), default="", readers=(SERVER, UP),
    meaning="Claim with a person's groups.", usual="groups",
)  # fmt: skip
OIDC_SCOPES: Setting[tuple[str, ...]] = Setting(
    name="MOORAGE_OIDC_SCOPES", kind=words(), default=(), readers=(SERVER, UP),
    meaning="Scopes that the provider is asked for.", usual="openid email profile offline_access",
)  # fmt: skip
OIDC_LABEL = Setting(
    name="MOORAGE_OIDC_LABEL", kind=text(), default="", readers=(SERVER, UP),
    meaning="Name of the provider on the sign-in button.",
)  # fmt: skip

# --- notices, of the server and of `moor notify`

SMTP_URL = Setting(
    name="MOORAGE_SMTP_URL", kind=text("smtps://…, smtp://… or smtp+plain://…"), default="",
    readers=(SERVER, OPERATOR, COMMANDS), secret=True, usual="none: no notices by mail",
    meaning="Mail server: smtps is TLS from the first byte, smtp STARTTLS, smtp+plain neither.",
)  # fmt: skip
SMTP_FROM = Setting(
    name="MOORAGE_SMTP_FROM", kind=text("a mail address"), default="", readers=(SERVER, OPERATOR, COMMANDS),
    meaning="Sender of notices by mail.",
)  # fmt: skip
NOTIFY_NETWORKS: Setting[tuple[str, ...]] = Setting(
    name="MOORAGE_NOTIFY_NETWORKS", kind=words(), default=(), readers=(SERVER, OPERATOR),
    usual="none: only public ones",
    meaning="Private networks, such as 10.0.0.0/8, that notices of IdlePolicies, Budgets and workflows may reach,"
    " also by http.",
)  # fmt: skip

REGISTRIES: Setting[tuple[str, ...]] = Setting(
    name="MOORAGE_REGISTRIES", kind=words(), default=(), readers=(OPERATOR,), usual="none: only public ones",
    meaning="Private registries, such as r.corp:5000, to ask for the command of an image; http://… without TLS.",
)  # fmt: skip

# --- the other services

WORK_FOLDER = Setting(
    name="MOORAGE_WORK_FOLDER", kind=path(), default=None, readers=(OPERATOR,), usual="none",
    meaning="Folder for notes of the object in work, which outlive a restart of the container.",
)  # fmt: skip

DRAIN_SECONDS = Setting(
    name="MOORAGE_DRAIN_SECONDS", kind=number(0, 300), default=8, readers=(SERVER, WEBHOOK, EXTENDER),
    meaning="Time between SIGTERM and the end, for clients to go to another replica.",
)  # fmt: skip

PACKING_POLICY = Setting(
    name="MOORAGE_PACKING_POLICY", kind=choice("pack", "fragmentation", "spread"), default="pack",
    readers=(EXTENDER, UP),
    meaning="Where pods go: fullest nodes first, least GPU capacity lost, or emptiest first.",
)  # fmt: skip
CERTIFICATE = Setting(
    name="MOORAGE_WEBHOOK_CERTIFICATE", kind=choice("own", "given"), default="own", readers=(OPERATOR,),
    meaning="Issuer of the webhook's certificate: own is the operator, given is another such as cert-manager.",
)  # fmt: skip
IMAGE = Setting(
    name="MOORAGE_IMAGE", kind=text("the name of an image"), default="", readers=(OPERATOR, SERVER),
    meaning="Image of fillers, of volume backups and of helper pods that copy files.", usual="the service's own",
)  # fmt: skip
HTTP_AUTHORIZATION = Setting(
    name="MOORAGE_HTTP_AUTHORIZATION", kind=text(), default="", readers=(FILLER,), secret=True,
    meaning="Authorization header for an HTTP source of a Dataset; it comes from a Secret.",
)  # fmt: skip

# --- commands and SDK

SERVER_URL = Setting(
    name="MOORAGE_SERVER", kind=text("the server's address"), default="", readers=("SDK",),
    meaning="Server to ask, instead of the one of `moor login`.",
)  # fmt: skip
TOKEN = Setting(
    name="MOORAGE_TOKEN", kind=text(), default="", readers=("SDK",), secret=True,
    meaning="Token for MOORAGE_SERVER.", usual="that of `moor login`",
)  # fmt: skip
ADVICE = Setting(
    name="MOORAGE_ADVICE", kind=flag(), default=True, readers=(COMMANDS,),
    meaning="Whether `moor run` and `moor show` report the use of past runs of the same command.",
)  # fmt: skip
KUBECONFIG = Setting(
    name="MOORAGE_KUBECONFIG", kind=text("paths of kubeconfig files"), default="", readers=(COMMANDS, "SDK"),
    meaning="Kubeconfig to use, instead of $KUBECONFIG.", usual="the local cluster while it runs, else as kubectl",
)  # fmt: skip
DATA = Setting(
    name="MOORAGE_DATA", kind=path(), default=None, readers=(UP, COMMANDS),
    meaning="Data folder of the local cluster.", usual="moorage in $XDG_DATA_HOME or ~/.local/share",
)  # fmt: skip
CONFIG = Setting(
    name="MOORAGE_CONFIG", kind=path(), default=None, readers=(COMMANDS,),
    meaning="Folder of the logins of `moor login`.", usual="moorage in $XDG_CONFIG_HOME or ~/.config",
)  # fmt: skip
PRICES = Setting(
    name="MOORAGE_PRICES", kind=path(), default=None, readers=(COMMANDS,),
    meaning="Price file of `moor machines`: the price of each machine type per hour.", usual="none: no prices",
)  # fmt: skip
COMPLETION_SECONDS = Setting(
    name="MOORAGE_COMPLETION_SECONDS", kind=number(0.1, 60), default=1, readers=(COMMANDS,),
    meaning="Longest time that the completion of a name in a shell waits for the cluster.",
)  # fmt: skip

TABLE: tuple[Setting[Any], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Setting))

GIVEN = {
    "MOORAGE_CHECKPOINT_DIR": "Runs: the folder for checkpoints.",
    "MOORAGE_DONE_FILE": "Runs, steps, items: a file that the program makes when it has finished its work.",
    "MOORAGE_RUN": "Runs: the name.",
    "POD_IP": "Runs, maps, workspaces: the pod's address.",
    "MOORAGE_WORKSPACE": "Workspaces: its name.",
    "MOORAGE_NAMESPACE": "Workspaces: its namespace.",
    "MOORAGE_PORT": "Workspaces: the port that the app listens on.",
    "MOORAGE_TOKEN_SHA256": "Workspaces: SHA-256 of the app's token.",
    "MOORAGE_ITEM": "Items of maps: the value, as JSON.",
    "MOORAGE_INDEX": "Items of maps: the number.",
    "MOORAGE_RESULT": "Items of maps: the file for the result.",
    "MOORAGE_MAP": "Workers of maps: the command or function to run, as JSON.",
    "MOORAGE_MAP_TOKEN": "Workers of maps: their token; items do not get it.",
    "MOORAGE_POD": "Workers of maps: the pod's name.",
    "MOORAGE_MEMORY": "Workers of maps: their memory limit in bytes.",
    "MOORAGE_GRACE": "Workers of maps: seconds between SIGTERM and SIGKILL.",
    "MOORAGE_STEP_TOKEN": "Executors of workflow steps: the token for their reports; the step does not get it.",
    "MOORAGE_SERVER_CA": "Executors of workflow steps: the authority of the server's certificate, as PEM.",
    "MOORAGE_PARENT": "Workers of a local map: the process to end with.",
    "MOORAGE_NOTICE": "Commands that get notices: the event.",
    "MOORAGE_NOTICE_KEY": "Commands that get notices: the notice's key; it comes once.",
    "MOORAGE_POD_UID": "Containers of the local cluster: the pod's uid.",
    "MOORAGE_POD_CONTAINER": "Containers of the local cluster: the container's name.",
}
"""What Moorage sets for programs that it starts. In a workspace MOORAGE_TOKEN is the app's token, in a worker
MOORAGE_SERVER is the queue's address."""

OTHERS = {
    "KUBECONFIG": "Commands: kubeconfig files, as kubectl.",
    "KUBERNETES_SERVICE_HOST": "Services in a pod: where the API is.",
    "KUBERNETES_SERVICE_PORT": "Services in a pod: its port.",
    "KUBERNETES_EXEC_INFO": "`moor token`, as kubectl's credential plugin.",
    "HOSTNAME": "Operator and server: name of the pod.",
    "HOME": "Commands: the user's folder.",
    "PATH": "Commands and the local cluster: where programs are.",
    "XDG_CONFIG_HOME": "Commands: see MOORAGE_CONFIG.",
    "XDG_DATA_HOME": "Commands: see MOORAGE_DATA.",
    "CLICOLOR_FORCE": "Commands: colours also where stdout is no terminal, unless it is 0.",
    "NO_COLOR": "Commands: no colours when it is set.",
    "TERM": "Commands: no colours on a `dumb` one.",
    "COMP_WORDS": "Completion of words in a shell.",
    "COMP_CWORD": "Completion of words in a shell.",
}
"""Variables of other tools that Moorage reads as those do."""
