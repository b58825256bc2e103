"""Tenant: a team, its namespace, and the defaults of its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from moorage.model.names import GROUP, SYSTEM_NAMESPACE, VERSION
from moorage.model.people import PEOPLE_NAMESPACE
from moorage_kube.resources import Obj, Resource

TENANTS = Resource(GROUP, VERSION, "tenants", "Tenant", namespaced=False)
RESERVED = frozenset({SYSTEM_NAMESPACE, PEOPLE_NAMESPACE})  # in addition to Kubernetes' own, kube-...

Quantity = (
    int
    | Annotated[
        str, Meta(pattern=r"^\+?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?$")
    ]
)


class Condition(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One aspect of the state, as every Kubernetes kind reports it."""

    type: Annotated[str, Meta(min_length=1, max_length=316, description="Name of the condition.")]
    status: Annotated[
        str,
        Meta(extra_json_schema={"enum": ["True", "False", "Unknown"]}, description="Whether the condition holds."),
    ]
    reason: Annotated[str, Meta(max_length=1024, description="Why, as one CamelCase word.")] = ""
    message: Annotated[str, Meta(max_length=32768, description="The reason as a sentence.")] = ""
    last_transition_time: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}, description="When `status` changed last.")
    ] = ""
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this condition describes.")
    ] = 0


class TenantDefaults(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The values for a run that does not set them."""

    cpu: Annotated[Quantity | None, Meta(description="CPU of a run that names none.")] = None
    memory: Annotated[
        Quantity | None, Meta(description="Memory limit of a run that names none: it alone is killed beyond it.")
    ] = None
    time_seconds: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Time limit of a run that names none, in seconds.")
    ] = None
    image: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="Image of a run that names none.")
    ] = None


Name = Annotated[str, Meta(min_length=1, max_length=253)]
Label = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class Members(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The members with a role: users by name, and all users in a group."""

    people: Annotated[list[Name], Meta(description="Names of users.")] = []
    groups: Annotated[list[Name], Meta(description="Names of groups.")] = []


class TenantNetwork(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The sources that may connect to the team's pods. Needs a network plugin that enforces NetworkPolicies."""

    isolated: Annotated[
        bool,
        Meta(description="Only its own pods, Moorage and its ingress controller may. Default true."),
    ] = True
    allow_from: Annotated[list[Label], Meta(description="Namespaces whose pods may connect too.")] = []


class TenantNodes(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Dedicated nodes of the team, without GPUs. Nodes with GPUs are shared."""

    selector: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(min_length=1, description="Labels of the nodes; they get a taint, and its pods go nowhere else."),
    ]


class TenantIngress(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The hosts of the team's Ingresses."""

    domain: Annotated[
        str, Meta(max_length=253, description="Hosts are this one or below it, reserved for this tenant.")
    ] = ""
    class_name: Annotated[
        str,
        Meta(max_length=253, description="IngressClass of its Ingresses, if it has a separate controller."),
    ] = ""
    controller_namespace: Annotated[
        str, Meta(max_length=63, description="Where that controller runs; its pods may connect to the team's.")
    ] = ""


class TimeSharing(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Runs with checkpoints take turns: a waiting run gets the place of the owner with more recent GPU use."""

    rule: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["fair"]},
            description="fair: the user with the lowest recent GPU usage is next.",
        ),
    ] = "fair"
    runs: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["Asked", "Checkpointed"]},
            description="Asked (default): runs with the annotation moorage.dev/share: true. Checkpointed: all with"
            " a checkpoint but those with moorage.dev/share: false.",
        ),
    ] = "Asked"
    guaranteed_seconds: Annotated[
        int, Meta(ge=1, le=2_592_000, description="Seconds of a turn that are guaranteed. Default 7200.")
    ] = 7200
    half_life_seconds: Annotated[
        int,
        Meta(ge=60, le=31_536_000, description="Seconds after which use counts half as much. Default 86400."),
    ] = 86_400
    checkpoint_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="How old the checkpoint may be of a run that gives its place away. Default 900.",
        ),
    ] = 900


class TenantSpec(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The settings of a team, by an administrator."""

    namespace: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=63,
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            description="The namespace the team works in.",
        ),
    ]
    defaults: TenantDefaults = TenantDefaults()
    admins: Annotated[Members, Meta(description="They may do all in the namespace, let others in.")] = Members()
    members: Annotated[Members, Meta(description="They run things.")] = Members()
    viewers: Annotated[Members, Meta(description="They can read, but not Secrets.")] = Members()
    quota: Annotated[
        dict[str, Quantity],
        Meta(
            description="The team's total limits: a ResourceQuota's `hard`. `gpu` means requests.nvidia.com/gpu."
        ),
    ] = {}
    priority_classes: Annotated[
        list[Name],
        Meta(
            description="PriorityClasses its pods may name, in addition to the cluster's default and"
            " moorage-default. Those that begin with `system-`, moorage-guest and moorage-reservation"
            " cannot be used by tenants.",
        ),
    ] = []
    network: TenantNetwork = TenantNetwork()
    cpu_nodes: TenantNodes | None = None
    ingress: TenantIngress = TenantIngress()
    on_delete: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["Keep", "Delete"]},
            description="Deletion policy of the namespace. Keep (default): it stays, its people lose"
            " their roles, quota and NetworkPolicy stay. Delete: it is deleted with all its objects.",
        ),
    ] = "Keep"
    restart_limit: Annotated[
        Annotated[int, Meta(ge=0, le=998)] | None,
        Meta(description="Restarts after disruptions that a run of the team may have at most."),
    ] = None
    time_sharing: Annotated[
        TimeSharing | None, Meta(description="Whether runs with checkpoints take turns; absent: none does.")
    ] = None


class TenantStatus(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The state that the operator reports."""

    conditions: Annotated[
        list[Condition],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = []
    observed_generation: Annotated[
        int, Meta(ge=0, description="The generation of the spec that this status describes.")
    ] = 0
    people: Annotated[int, Meta(ge=0, description="How many have a role, those in groups too.")] = 0
    nodes: Annotated[int, Meta(ge=0, description="How many nodes are the team's alone.")] = 0


class Tenant(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A team that shares the cluster: its namespace, and the defaults of its runs."""

    spec: TenantSpec
    status: TenantStatus = TenantStatus()


ROLES = ("admin", "member", "viewer")
"""From the one that may do most."""


class Membership(Struct, frozen=True, kw_only=True):
    """A person's place in one tenant: the highest role there. `admins`: those named as its administrators."""

    tenant: str
    namespace: str
    role: str
    admins: tuple[str, ...] = ()


def memberships(
    person: str, groups: Collection[str], tenants: Iterable[Mapping[str, Any]]
) -> tuple[Membership, ...]:
    """The tenants that include a user or one of the user's groups, sorted by name."""
    places = []
    for tenant in sorted(tenants, key=lambda tenant: str(tenant["metadata"]["name"])):
        spec = tenant.get("spec") or {}
        if role := role_in(tenant, person, groups):
            name = str(tenant["metadata"]["name"])
            admins = tuple(sorted((spec.get("admins") or {}).get("people") or ()))
            namespace = str(spec.get("namespace") or name)
            places.append(Membership(tenant=name, namespace=namespace, role=role, admins=admins))
    return tuple(places)


def role_in(tenant: Mapping[str, Any], person: str, groups: Collection[str]) -> str:
    """The highest role of a user with these groups in a tenant; "" without a role."""
    spec = tenant.get("spec") or {}
    return next((role for role in ROLES if _is_in(person, groups, spec.get(f"{role}s") or {})), "")


def _is_in(person: str, groups: Collection[str], members: Mapping[str, Any]) -> bool:
    """Names of Kubernetes itself (`system:`) have no role, as in the RoleBindings of the operator."""
    named = person in (members.get("people") or ()) and not person.startswith("system:")
    return named or any(
        group in groups for group in members.get("groups") or () if not group.startswith("system:")
    )


def tenant_of(namespace: str, tenants: Iterable[Mapping[str, Any]]) -> Obj | None:
    """The tenant with this namespace; if several claim it, the first by name. None if there is none."""
    mine = [tenant for tenant in tenants if (tenant.get("spec") or {}).get("namespace") == namespace]
    return dict(min(mine, key=lambda tenant: str(tenant["metadata"]["name"]))) if mine else None


def tenant_names(tenants: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Namespace → name of its tenant. If several claim a namespace: the first by name, as in `tenant_of`."""
    names: dict[str, str] = {}
    for tenant in tenants:
        if namespace := str((tenant.get("spec") or {}).get("namespace") or ""):
            name = str(tenant["metadata"]["name"])
            names[namespace] = min(name, names.get(namespace, name))
    return names


def defaults_of(tenant: Mapping[str, Any] | None) -> TenantDefaults:
    """The defaults of a stored tenant; empty without a tenant. Numbers are converted to texts."""
    given = ((tenant or {}).get("spec") or {}).get("defaults") or {}

    def text(key: str) -> str | None:
        return str(given[key]) if given.get(key) not in (None, "") else None

    return TenantDefaults(
        cpu=text("cpu"), memory=text("memory"), time_seconds=given.get("timeSeconds"), image=text("image")
    )


def is_reserved(namespace: str) -> bool:
    """Whether a namespace belongs to the platform or Kubernetes, so that a tenant cannot have it."""
    return namespace in RESERVED or namespace.startswith("kube-")
