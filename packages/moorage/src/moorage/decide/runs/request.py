"""The input of `plan_run` (the user's request, their machine, the facts about the cluster) and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from moorage.decide.runs.code import Code
from moorage.decide.runs.deviceclaims import UNKNOWN_TEMPLATES, ClaimTemplates
from moorage.decide.runs.kueue import UNKNOWN_QUEUES, Queues
from moorage_kube.resources import Obj
from moorage_kube.scheduling import NodeInfo, PodInfo

DEFAULT_CPU = "1"
DEFAULT_MEMORY = "2Gi"  # where no Tenant says otherwise; seed 004's cluster default


class RunRequest(Struct, frozen=True, kw_only=True):
    """The options of `moor run` in the form of the command line. None: not given."""

    command: tuple[str, ...]
    namespace: str = "default"
    name: str | None = None
    gpus: int = 0
    gpu_type: str | None = None
    gpu_resource: str | None = None  # the resource that `gpus` counts: its name, or the part after its "/"
    gpu_claim: str | None = None  # a ResourceClaimTemplate of the namespace, instead of a number of GPUs
    machine: str | None = None  # GROUP/TYPE, instead of all amounts
    cpu: str | None = None
    memory: str | None = None  # a quantity, or "none"
    time: str | None = None
    volumes: tuple[str, ...] = ()  # CLAIM:/PATH[:ro]
    datasets: tuple[str, ...] = ()  # [NAMESPACE/]NAME:/PATH
    env: tuple[str, ...] = ()  # K=V, or K to take it from the caller
    secrets: tuple[str, ...] = ()  # NAME, NAME:KEY, VARIABLE=NAME:KEY or NAME:/PATH
    labels: tuple[str, ...] = ()  # K=V
    checkpoint: str | None = None  # CLAIM[:SIZE]
    grace_period_seconds: int | None = None
    priority_class: str | None = None
    queue: str | None = None  # a LocalQueue of Kueue, of the namespace
    retries: int = 0
    restart_limit: int | None = None
    share: bool | None = None  # whether it takes turns on GPUs; None: as the tenant has it
    image: str | None = None
    user: str | None = None  # UID[:GID]
    host_env: bool = False
    working_dir: str | None = None  # CLAIM:PATH
    git: str | None = None  # URL[@REF]
    live: bool = False  # on a local cluster: start in the folder itself, not in a copy
    shown: tuple[str, ...] = ()  # the command for people, where another one was typed


class Caller(Struct, frozen=True, kw_only=True):
    """Facts about the place where the command was typed; empty for a request over REST."""

    user: str
    cwd: str  # empty: none
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str | None = None  # where the command's first word is, or may be for the node; None: nowhere
    python: str = "python3"  # the interpreter of the runner on this machine
    salt: str = ""  # random text, for a generated name
    token: str = ""  # random text, the run's own key for reporting checkpoints
    runner: str = ""  # source of moorage.worker.runner
    archive: bytes | None = None  # tar.gz of the shipped directory
    code: Code | None = None  # of the current directory, or of the run that is repeated


class Defaults(Struct, frozen=True, kw_only=True):
    """Default values of the namespace's tenant. `origin` is its name in messages."""

    cpu: str = DEFAULT_CPU
    memory: str = DEFAULT_MEMORY
    image: str | None = None
    seconds: int | None = None  # time limit of a run that names none
    restart_limit: int | None = None  # the most that a run may ask for
    origin: str = "the default"


class CheckpointUse(Struct, frozen=True, kw_only=True):
    """A run that stores its checkpoints on a volume."""

    run: str
    owner: str
    at: datetime | None  # when its newest checkpoint was written; None: none was reported
    has_ended: bool


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """Facts about the cluster. None: the caller may not read it, so nothing is judged by it."""

    nodes: tuple[NodeInfo, ...] | None = ()
    gpu_nodes: tuple[NodeInfo, ...] | None = None  # without `nodes`: reported by the server, without labels
    pods: tuple[PodInfo, ...] = ()
    process_runtime: bool = False
    defaults: Defaults = Defaults()
    claims: Mapping[str, str] | None = field(default_factory=dict)  # name → size, of the namespace
    checkpoints: Mapping[str, tuple[CheckpointUse, ...]] = field(default_factory=dict)  # by claim, oldest first
    datasets: Mapping[str, tuple[str, str]] | None = None  # name → phase and claim, of the namespace
    secrets: Mapping[str, tuple[str, ...]] | None = None  # name → keys; read where one is asked for
    taken: frozenset[str] = frozenset()  # names of the runs and Jobs in the namespace
    priority_classes: frozenset[str] | None = None
    claim_templates: ClaimTemplates = UNKNOWN_TEMPLATES  # read where one is asked for
    machines: frozenset[str] | None = None  # GROUP/TYPE of all; read where one is asked for; None: not known
    own_nodes: Mapping[str, str] = field(default_factory=dict)  # labels of the tenant's own, if it has some
    is_guarded: bool | None = None  # whether our webhook sees the namespace's pods; None: not known
    queues: Queues = UNKNOWN_QUEUES  # of Kueue; read where a queue is asked for
    has_default_class: bool | None = None  # whether a claim that names no StorageClass gets one
    server_url: str = ""  # empty: the server is unknown, so checkpoints are not reported


class Problem(Struct, frozen=True):
    """One fault of the request. `field` is the field of `moorage.api.jobs.NewJob`; the message is a whole
    sentence.
    """

    field: str
    message: str
    hint: str | None = None


class RunPlan(Struct, frozen=True, kw_only=True):
    """The objects to create, in this order: `claims` (never deleted), `secret` (owned by the Job later), `job`.

    With problems there is nothing to create. `notes` are shown to the user either way.
    """

    name: str = ""
    job: Obj | None = None
    secret: Obj | None = None
    claims: tuple[Obj, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def has_code(request: RunRequest) -> bool:
    """Whether a run uses the files of the caller's directory as they are now: sent to the pod, or in a copy."""
    return request.working_dir is None and request.git is None and not request.live


def unexpanded(text: str) -> str:
    """Escape a text so that the kubelet's `$(NAME)` expansion returns it unchanged.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def expanded(text: str) -> str:
    """Undo `unexpanded`."""
    return text.replace("$$", "$")
