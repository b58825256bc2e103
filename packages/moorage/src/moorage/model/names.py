"""Labels, annotations and names that the parts share. They are defined once, so that they cannot differ.

All of ours begin with `moorage.dev/`.
"""

from __future__ import annotations

import hashlib
import re

NAME_COMPARED = 253  # characters of a name that a nearest one is looked for; longer texts take the square of it
GROUP = "moorage.dev"
VERSION = "v1alpha1"

SYSTEM_NAMESPACE = "moorage-system"
METRICS_ROLE = "moorage-metrics-reader"  # ClusterRole; may `get` /metrics of all services
INFO_CONFIGMAP = "moorage"  # in SYSTEM_NAMESPACE; data: serverUrl, version, pauseImage, …
PRICES_CONFIGMAP = "moorage-prices"  # in SYSTEM_NAMESPACE: prices of nodes and pods; see model/prices.py
PRICES_KEY = "prices.yaml"
FORWARD_ROLE = "moorage-forward"  # in SYSTEM_NAMESPACE: may reach the server by a port-forward
KUBELETS_ACCOUNT = "moorage-kubelets"  # a ServiceAccount in SYSTEM_NAMESPACE: may read kubelets' statistics
WEBHOOK_CONFIGURATION = "moorage"  # the name of the mutating and of the validating webhook configuration
AUDIT_CONFIGURATION = "moorage-audit"  # the name of the one that records changes, and judges none
WEBHOOK_USER = f"system:serviceaccount:{SYSTEM_NAMESPACE}:moorage-webhook"  # as the API server names the service
WEBHOOK_SERVICE = "moorage-webhook"  # in SYSTEM_NAMESPACE
WEBHOOK_TLS_SECRET = "moorage-webhook-tls"  # in SYSTEM_NAMESPACE: tls.crt, tls.key, ca.crt
AUDIT_TOKEN = "audit-token"  # in WEBHOOK_TLS_SECRET; in the paths at which the API server asks the webhook
EXTENDER_SECRET = "moorage-extender"  # in SYSTEM_NAMESPACE: token, the part that a scheduler puts into its path
SCHEDULER_NAME = "moorage-scheduler"  # spec.schedulerName of pods for the second kube-scheduler
SCHEDULER_LEASE = "moorage-scheduler"  # in SYSTEM_NAMESPACE: which replica of it schedules
SCHEDULER_SECRET = "moorage-scheduler"  # in SYSTEM_NAMESPACE: configurations of kube-schedulers, with our token
SCHEDULER_CONFIGMAP = "moorage-scheduler"  # in SYSTEM_NAMESPACE, where the second one is installed; see schedulers
PAGE_SECRET = "moorage-page"  # in SYSTEM_NAMESPACE: token, the web page's

# namespaces
TENANT_LABEL = "moorage.dev/tenant"  # on a tenant's namespace and the objects made in it; key of its nodes' taint
INGRESS_DOMAIN_ANNOTATION = "moorage.dev/ingress-domain"  # on a tenant's namespace: hosts are below this
INGRESS_CLASS_ANNOTATION = "moorage.dev/ingress-class"  # with it: the IngressClass to use
RECORDS_SINCE_ANNOTATION = "moorage.dev/records-since"  # on a namespace, RFC 3339: older records are another's
RUN_AS_USER_ANNOTATION = "moorage.dev/run-as-user"  # on a namespace of Pod Security restricted: a UID, or "image"
RUN_AS_USER = 65532  # UID of runs there without such an annotation: unused on nodes and in images
POD_SECURITY = "pod-security.kubernetes.io/enforce"  # Kubernetes' own, on a namespace
GUARD_LABEL = "moorage.dev/guard"  # on a namespace: "enabled" puts its pods and Jobs before our webhook

# Jobs and pods
OWNER_LABEL = "moorage.dev/owner"  # label-safe form of the user's name; stamped by the webhook
OWNER_ANNOTATION = "moorage.dev/owner"  # the user's name as authenticated
RUN_LABEL = "moorage.dev/run"  # name of the run; the same on every attempt's Job and pods
ATTEMPT_LABEL = "moorage.dev/attempt"  # "1", "2", …: counts restarts after disruptions
CHECKPOINT_ANNOTATION = "moorage.dev/checkpoint"  # claim name of the checkpoint volume
CHECKPOINT_FROM_ANNOTATION = "moorage.dev/checkpoint-from"  # of which run the checkpoint is that a run continues
CHECKPOINT_AT_ANNOTATION = "moorage.dev/checkpoint-at"  # RFC 3339: newest file seen in the checkpoint folder
CHECKPOINT_CHECKED_ANNOTATION = "moorage.dev/checkpoint-checked-at"  # RFC 3339: when the runner last looked
RESTART_LIMIT_ANNOTATION = "moorage.dev/restart-limit"  # restarts after disruptions allowed; default RESTART_LIMIT
SHARE_ANNOTATION = "moorage.dev/share"  # of a run: "true": it gives its place away by turns; "false": it does not
YIELDS_TO_ANNOTATION = "moorage.dev/yields-to"  # NAMESPACE/RUN: on an attempt's Job, the run that gets its place
EXPECTED_SECONDS_ANNOTATION = "moorage.dev/expected-seconds"  # from --time: when the GPUs are expected back
TIME_LIMIT_ANNOTATION = "moorage.dev/time-limit-seconds"  # from --time: running time over all attempts
REPORT_TOKEN_ANNOTATION = "moorage.dev/report-token-sha256"  # hex; the token itself is in the run's Secret
VOLUME_FILES_LABEL = "moorage.dev/volume-files"  # on the pod by which a page shows the files of a volume
SECRET_LABEL = "moorage.dev/secret"  # name of a secret; on the Secret, and on the ConfigMap with its keys
COMMAND_ANNOTATION = "moorage.dev/command"  # the command as typed, for people
OPTIONS_ANNOTATION = "moorage.dev/options"  # JSON: the options of the run, for `moor rerun`
GIT_ANNOTATION = "moorage.dev/git"  # URL@COMMIT: the code that a run of a git repository has checked out
DIRECTORY_ANNOTATION = "moorage.dev/directory"  # on a local cluster: where `moor run` was typed
CODE_ANNOTATION = "moorage.dev/code"  # JSON: the code of the run, see decide.runs.code
MEMORY_DEFAULTED_ANNOTATION = "moorage.dev/memory-defaulted"  # "true": the limit came from the tenant's default
ENDED_ANNOTATION = "moorage.dev/ended"  # on the first attempt's Job: why the run is not started again

ATTEMPTS_ANNOTATION = "moorage.dev/attempts"  # on the first attempt's Job: the highest attempt made so far
RUNNING_SINCE_ANNOTATION = "moorage.dev/running-since"  # RFC 3339, on an attempt's Job: its first pod's start
USED_SECONDS_ANNOTATION = "moorage.dev/used-seconds"  # on an attempt's Job: running time it took of the limit
STOPPED_ANNOTATION = "moorage.dev/stopped-at"  # RFC 3339, on an attempt's Job: when its pod was asked to stop
CANCELLED_ANNOTATION = "moorage.dev/cancelled"  # on the first attempt's Job: any text; no further attempt starts

RESTART_LIMIT = 20  # restarts after disruptions, per run; above a month of a preemption a day would be odd

CHECKPOINT_PATH = "/moorage/checkpoint"
CHECKPOINT_ENV = "MOORAGE_CHECKPOINT_DIR"
RUNNER_PATH = "/moorage/run"  # the run's Secret is mounted here: runner.py, work.tar.gz, token
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"  # set by NVIDIA's GPU feature discovery
GPU_TYPE_LABELS = (  # tried in this order
    "nvidia.com/gpu.product",  # GPU feature discovery
    "cloud.google.com/gke-accelerator",  # GKE
    "amd.com/gpu.product-name",  # AMD's node labeller
    "accelerator",  # the label Kubernetes' own pages once used (seed 000)
)

# machines: places held by reservation pods (docs/design/0004-reservations.md)
CATCH_UP_ANNOTATION = "moorage.dev/catch-up"  # on a CronWorkflow: how many missed slots are run, oldest first
CRON_STATE_ANNOTATION = "moorage.dev/cron-state"  # on a CronWorkflow: JSON, the operator's state of it
CRON_BACKFILL_ANNOTATION = "moorage.dev/cron-backfill"  # on a CronWorkflow: JSON, slots of the past to run
CRON_BACKFILL_LABEL = "moorage.dev/cron-backfill"  # on a Workflow: the id of the backfill that it is of
CRON_FINALIZER = "moorage.dev/cronworkflow"  # on a Workflow, until its slot is recorded
MONITOR_ANNOTATION = "moorage.dev/monitor"  # on a CronWorkflow or Workflow: an address of Healthchecks or Cronitor
MONITOR_PREFIX = "moorage.dev/monitor-"  # before start, success, failure, overdue: addresses; "after": a span
NOTIFY_ANNOTATION = "moorage.dev/notify"  # with it: receiver of failures: https://… mailto:…
BEATS_ANNOTATION = "moorage.dev/beats"  # JSON: which heartbeats of a Workflow or CronWorkflow were sent
BEATS_FINALIZER = "moorage.dev/beats"  # on a Workflow, until its last heartbeat is sent
MACHINE_GROUP_LABEL = "moorage.dev/machine-group"  # on a Machine, its nodes, its reservations and its guests
MACHINE_TYPE_LABEL = "moorage.dev/machine-type"  # on reservations and guests
MACHINE_CONTAINER_LABEL = "moorage.dev/machine-container"  # on a guest: the container that gets the resources
MACHINE_GATE = "moorage.dev/machine"  # scheduling gate of guests that wait for a place
PLACE_ANNOTATION = "moorage.dev/machine-place"  # on a guest let through: the node of its place
PLACE_AT_ANNOTATION = "moorage.dev/machine-place-at"  # RFC 3339, with it
BACKFILL_LABEL = "moorage.dev/backfill"  # on a guest: "true": it may be asked to leave for a reservation
WAITS_ANNOTATION = "moorage.dev/waits-for"  # on a gated guest: until when (RFC 3339), a blank, for which booking
RESERVATION_LABEL = "moorage.dev/reservation"  # on a reservation pod: KEPT, PROMISED or ALONE
KEPT, PROMISED = "kept", "promised"  # the disruption budget protects those that are "kept"
ALONE = "alone"  # of a type whose nodes offer no other type: a guest of it may take any of them
PROMISED_TO_LABEL = "moorage.dev/promised-to"  # on a promised reservation: the guest's uid
MACHINE_MODE_LABEL = "moorage.dev/machine-mode"  # on a node: ready, not-ready or maintenance; a taint's key too
MACHINE_POOL_ANNOTATION = "moorage.dev/machine-node-pool"  # on a node: the MachineNodePool that marks it
NODE_FINALIZER = "moorage.dev/nodes"  # on a MachineNodePool: its nodes are cleaned before it is deleted
MACHINE_TYPE_PREFIX = "type.machine.moorage.dev/"  # label of a node by type it offers; the value is the group
PLACE_PREFIX = (
    "place.machine.moorage.dev/"  # label of a node, by a guest's uid: its next place, the first was lost
)
KEEPS_ITS_NODE = {  # on pods that are not to be moved to empty a node; kubectl drain moves them all the same
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
RESERVATION_PRIORITY = "moorage-reservation"  # PriorityClass, may not preempt
RESERVATION_VALUE = -10  # of that class: autoscalers take lower ones as expendable
GUEST_PRIORITY = "moorage-guest"  # PriorityClass, value 0, may preempt
OVER_BUDGET_PRIORITY = "moorage-over-budget"  # PriorityClass: work of those whose budget is used, behind all other
OVER_BUDGET_VALUE = -5  # of that class: above reservations, which its pods may not preempt
OVER_BUDGET_ANNOTATION = "moorage.dev/over-budget"  # on a guest: "true": it is let through after all others
NO_GPUS = "no-gpus"  # there, on a Workflow and pods of its steps: it began without GPUs, others were refused
DEFAULT_PRIORITY = "moorage-default"  # PriorityClass, value 0, may not preempt; for pods that name no class
CLUSTER_DEFAULT_ANNOTATION = "moorage.dev/cluster-default"  # on it, "false": it never is the cluster's default
STAND_IN_LABEL = "moorage.dev/stand-in"  # "true" on a PriorityClass: see `decide.admission.priority.stand_in_of`
RESERVATION_BUDGET = "moorage-reservations"  # PodDisruptionBudget in SYSTEM_NAMESPACE over "kept" reservations

# maps (docs/design/0008-mapjob.md)
MAP_LABEL = "moorage.dev/map"  # name of the MapJob; on its Jobs and pods
MAP_FINALIZER = "moorage.dev/map"  # on a MapJob: its map in the queue is deleted first
MAP_ROUND_LABEL = "moorage.dev/map-round"  # "1", "2", …: which of its Jobs
MAP_TEMPLATE_ANNOTATION = "moorage.dev/map-template"  # on such a Job: hash of its pods' template
MAP_SCALED_ANNOTATION = "moorage.dev/map-scaled-at"  # on such a Job, RFC 3339: when it was last made smaller
MAP_RELEASED_ANNOTATION = "moorage.dev/map-released"  # on such a Job: workers stopped because fewer were wanted
MAP_REQUEST_ANNOTATION = "moorage.dev/map-request"  # on a restored MapJob: uid of the one before it
MAP_PLAN_ANNOTATION = "moorage.dev/map-plan"  # on a MapJob: JSON, the choice of `moor plan` it was made by

# objects made by the REST API (docs/howto/use-from-python.md), and objects created together
REQUEST_ANNOTATION = "moorage.dev/request"  # hashes of user, Idempotency-Key and request; or random

# containers, as Docker knows them (docs/howto/use-docker.md)
CONTAINER_LABEL = "moorage.dev/container"  # name of the container; on its pods and its Service
CONTAINER_GATE = "moorage.dev/container"  # scheduling gate of one that is made and not started

# workspaces (docs/howto/run-workspaces.md)
WORKSPACE_LABEL = "moorage.dev/workspace"  # on all that is made for a Workspace: its name
TEMPLATE_LABEL = "moorage.dev/workspace-template"  # on ConfigMaps of our namespace: the template's name
MADE_FROM_ANNOTATION = "moorage.dev/made-from"  # on a workspace's Deployment: hash of its pods' template
SCHEDULED_ANNOTATION = "moorage.dev/scheduled"  # on a Workspace: hash of the schedule, a blank, its last moment

# idle work (docs/explanation/idle.md)
IDLE_ANNOTATION = "moorage.dev/idle"  # on a Workspace, MapJob, Workflow or a run's first Job: JSON, its idle state
USED_ANNOTATION = "moorage.dev/used"  # on a Workspace: JSON, when a browser was connected, and last acted
SUSPENDED_ANNOTATION = "moorage.dev/suspended"  # on an attempt's Job: JSON, user, reason and time of a suspension

# annotations that only our services write: see `moorage.decide.admission.protectedannotations`
SERVICE_MARKS = (
    YIELDS_TO_ANNOTATION,  # taken for the end of a turn
    MAP_RELEASED_ANNOTATION,  # no failures of a map
    MAP_SCALED_ANNOTATION,
    IDLE_ANNOTATION,
    USED_ANNOTATION,  # a workspace in use
    ATTEMPTS_ANNOTATION,  # counted against the limit of restarts
    RUNNING_SINCE_ANNOTATION,  # counted against the time limit
    USED_SECONDS_ANNOTATION,
    STOPPED_ANNOTATION,  # taken for an interruption, not an end
    CHECKPOINT_AT_ANNOTATION,  # progress, and the point from which a suspended run resumes
    CHECKPOINT_CHECKED_ANNOTATION,
    GIT_ANNOTATION,  # the code of reruns
)
# marks that people write too, within limits
PERSONAL_MARKS = (
    SUSPENDED_ANNOTATION,  # only in the user's own name; a resume removes it
    ENDED_ANNOTATION,  # a run is cancelled, and stays so
    OVER_BUDGET_ANNOTATION,  # may be on a new object, and stays
)

# pods killed for their memory (docs/howto/guard-a-namespace.md)
MEMORY_GATE = "moorage.dev/memory"  # scheduling gate of the replacement of a pod that was killed for memory
MEMORY_LABEL = "moorage.dev/memory"  # on such a replacement: held, raised (it got more memory) or RELEASED
RELEASED = "released"
MEMORY_HELD_ANNOTATION = "moorage.dev/memory-held"  # with it: the reason, for people
MEMORY_KILL_ANNOTATION = "moorage.dev/memory-kill"  # with it: the kill, as JSON
MEMORY_RELEASE_ANNOTATION = "moorage.dev/memory-release"  # on a held pod, any text: its user lets it go
MEMORY_KILLS = (
    "moorage.dev/memory-kills"  # on an owner: a label ("true"), and an annotation with the kills as JSON
)

# the local cluster's own marks, known to every part through the API only
PROCESS_RUNTIME = "process://"  # how node.status.nodeInfo.containerRuntimeVersion begins there
HOST_IMAGE = "localhost/host"  # the image name that stands for "this machine's environment"
HOST_ENV_ANNOTATION = "localcluster.moorage.dev/host-env"  # on a pod: "true" runs any image's command here
IMAGES_ANNOTATION = "localcluster.moorage.dev/images"  # on a node: JSON, commands of the images that it runs
PRIVATE_ROOT_ANNOTATION = "localcluster.moorage.dev/private-root"  # on a pod: "true": its writes are private

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_DNS = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


def label_value(text: str) -> str:
    """Convert a text to a label value: unsafe characters become "-"; at most 63 characters.

    Changed texts get a hash, so that two users never share a label.
    """
    safe = _UNSAFE.sub("-", text).strip("-_.")
    if safe == text and 0 < len(safe) <= 63:
        return safe
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe[:54].rstrip('-_.')}-{digest}" if safe else f"x-{digest}"


def owned_by(user: str) -> dict[str, dict[str, str]]:
    """Labels and annotations for the metadata of an object with this owner."""
    return {"labels": {OWNER_LABEL: label_value(user)}, "annotations": {OWNER_ANNOTATION: user}}


def is_dns_label(text: str) -> bool:
    """Whether a text is an RFC 1123 label: at most 63 of a-z, 0-9 and "-", with an alphanumeric at both ends."""
    return len(text) <= 63 and _DNS.fullmatch(text) is not None


def attempt_name(run: str, attempt: int) -> str:
    """The name of an attempt's Job: first the run's name, then with "-r2", "-r3", …

    A run's name has at most 52 characters, so that pods (name + "-" + 5) and "-r999" stay within 63.
    """
    return run if attempt == 1 else f"{run}-r{attempt}"


RUN_NAME_MAX = 52
