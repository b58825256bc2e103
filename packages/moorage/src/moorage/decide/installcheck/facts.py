"""All data that the checks of an installation use, read at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar, Union

from msgspec import Struct, field

from moorage.model.names import GROUP, PROCESS_RUNTIME, SYSTEM_NAMESPACE
from moorage_kube.access import Right
from moorage_kube.resources import Obj, Resource

T = TypeVar("T")

DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet")


class Unread(Struct, frozen=True):
    """The reason why a fact could not be read."""

    why: str


Reading = Union[T, Unread]  # noqa: UP007 -- an alias with a type variable
Objects = Reading[tuple[Obj, ...]]


NEEDED_RIGHTS = (
    Right("create", "", "namespaces"),
    Right("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    Right("create", "rbac.authorization.k8s.io", "clusterroles"),
    Right("escalate", "rbac.authorization.k8s.io", "clusterroles"),  # or hold each right that our roles give
    Right("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Right("bind", "rbac.authorization.k8s.io", "clusterroles"),
    Right("create", "scheduling.k8s.io", "priorityclasses"),
    Right("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    Right("create", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    Right("create", GROUP, "machines"),
    *(
        Right("create", group, resource, SYSTEM_NAMESPACE)
        for group, resource in (
            ("", "configmaps"),
            ("", "secrets"),
            ("", "serviceaccounts"),
            ("", "services"),
            ("", "persistentvolumeclaims"),
            ("apps", "deployments"),
            ("networking.k8s.io", "networkpolicies"),
            ("policy", "poddisruptionbudgets"),
            ("rbac.authorization.k8s.io", "roles"),
            ("rbac.authorization.k8s.io", "rolebindings"),
        )
    ),
)


class Site(Struct, frozen=True, kw_only=True):
    """The result of a request to a URL. `status` 0: no answer. `expires`: the end of its certificate."""

    url: str
    status: int = 0
    error: str = ""
    untrusted: bool = False  # the certificate was refused
    expires: datetime | None = None


class Probe(Struct, frozen=True, kw_only=True):
    """The result of a pod that ran an image. `error` empty: the image was pulled."""

    image: str
    node: str = ""
    error: str = ""


NOT_ASKED = Unread("not asked")


class Facts(Struct, frozen=True, kw_only=True):
    """One cluster, and the objects of Moorage on it. None: it does not exist."""

    now: datetime  # of this machine, when the API server's date was read
    cli_version: str
    round_trip: timedelta = timedelta()  # of the request that read the date
    server_date: Reading[datetime] = NOT_ASKED
    kubernetes: Reading[str] = NOT_ASKED  # such as v1.36.2
    rights: Reading[Mapping[Right, bool]] = NOT_ASKED
    nodes: Objects = ()
    pods: Objects = ()  # of all namespaces
    leases: Objects = ()  # of nodes
    storage_classes: Objects = ()
    priority_classes: Objects = ()
    ingress_classes: Objects = ()
    daemonsets: Objects = ()  # of all namespaces
    crds: Objects = ()
    added_crds: tuple[Obj, ...] = ()  # as this version defines the kinds that features add
    signing_requests: Objects = ()
    kubelets: Mapping[str, Reading[Obj]] = field(default_factory=dict)  # node → its kubelet's configuration
    namespace: Reading[Obj | None] = None
    info: Reading[Mapping[str, str] | None] = None  # data of the ConfigMap `moorage`
    deployments: Objects = ()  # ours
    claims: Objects = ()  # ours
    secrets: Reading[frozenset[str]] = frozenset()  # names of ours
    webhooks: Objects = ()  # both kinds of configurations, ours
    webhook_refusal: Reading[str] = NOT_ASKED  # of a Machine that it must refuse; empty: the Machine was accepted
    server: Reading[str] = NOT_ASKED  # the body of its /readyz; raised as Unread where it does not answer 200
    extenders: Reading[tuple[str, ...]] = NOT_ASKED  # the metrics of each replica
    public: Site | None = None  # of publicUrl
    workspace_host: str = ""  # one that workspaceUrl covers
    workspace_addresses: Reading[tuple[str, ...]] = NOT_ASKED
    probe: Probe | None = None

    @property
    def installed(self) -> bool:
        """Whether Moorage is installed, or an installation was started."""
        return isinstance(self.info, Mapping) or bool(
            self.deployments and not isinstance(self.deployments, Unread)
        )

    @property
    def local(self) -> bool:
        """Whether this is a cluster of `moor up`: its services are processes of one machine."""
        return not isinstance(self.nodes, Unread) and any(
            str(_node_info(node).get("containerRuntimeVersion") or "").startswith(PROCESS_RUNTIME)
            for node in self.nodes
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """The keys of the ConfigMap; empty if it does not exist or cannot be read."""
        return self.info if isinstance(self.info, Mapping) else {}


def _node_info(node: Mapping[str, Any]) -> Mapping[str, Any]:
    info: Mapping[str, Any] = (node.get("status") or {}).get("nodeInfo") or {}
    return info
