"""The registrations that send objects to our webhook; one source for `moor up` and for `deploy/`.

Registrations, by the behaviour while the webhook is down:

- `….tenants`: in a tenant's namespace pods, and objects with a template of them, wait for it (Fail). Owner,
  priority and nodes keep tenants from each other.
- `….guard`: in guarded namespaces that are no tenant's they pass without it (Ignore, or as the admin chooses).
- `hosts.guard`: objects that name hosts wait for it in every guarded namespace (Fail).
- `tenants.operator`, `platform.operator`: objects that the operator writes for tenants, in every namespace, and
  its objects in those of the platform (Fail). Objects of other users do not wait for these two.

A separate configuration, `moorage-audit`, sends to `/audit` the other requests: deletions, sessions in
pods, nodes, namespaces, volumes, and namespaces that are not guarded. It judges nothing and stops nothing (Ignore,
one second). Without it the audit log has fewer entries. The rules do not include Secrets: a review
holds the whole object, and our services may not read Secrets.

A pod is reviewed once. Where the cluster evaluates match conditions, Kubernetes' own controllers update existing
objects without a review: jobs end, garbage is collected. Requests in our own namespace and kube-system are not
sent to the webhook, so that our pods can be made while it is down.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Literal

from moorage.decide.admission.hosts import KINDS as HOST_KINDS
from moorage.decide.admission.operators import OF_TENANTS, PLATFORM, PLATFORM_WORKLOADS
from moorage.decide.admission.review import OPERATOR
from moorage.decide.audit.changes import COMPONENTS
from moorage.model.argo import GROUP as ARGO
from moorage.model.argo import VERSION as ARGO_VERSION
from moorage.model.names import (
    AUDIT_CONFIGURATION,
    GROUP,
    GUARD_LABEL,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
    VERSION,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SERVICE,
)
from moorage_kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Obj

AUDIT_TIMEOUT_SECONDS = 1  # the least that Kubernetes takes; a webhook that hangs delays each request by this much
TIMEOUT_SECONDS = 5  # an answer takes milliseconds; a webhook that hangs delays each create by this much
SERVICE_PORT = 443
# of ours, judged everywhere
KINDS = ("budgets", "idlepolicies", "machines", "machinenodepools", "reservations", "mapjobs", "workspaces")
FILLED = ("datasets", "volumebackups")  # ours, too; judged in guarded namespaces alone
RULES = (  # (group, plurals): pods and all kinds with a pod template, which get the owner too
    ("", ("pods", "replicationcontrollers")),
    ("batch", ("jobs", "cronjobs")),
    ("apps", ("deployments", "replicasets", "statefulsets", "daemonsets")),
    (GROUP, ("mapjobs", "workspaces", *FILLED)),
    (ARGO, ("workflows", "cronworkflows")),
)
# (group, subresources) that make work larger; judged by budgets
SUBRESOURCES = (
    ("", ("pods/resize", "replicationcontrollers/scale")),
    ("apps", ("deployments/scale", "replicasets/scale", "statefulsets/scale")),
)
# (group, operations, resources) that are recorded; the guardrails' own reviews record theirs
AUDITED = (
    *((group, ("DELETE",), plurals) for group, plurals in RULES if group != GROUP),
    (GROUP, ("DELETE",), (*KINDS, *FILLED)),
    (GROUP, ("CREATE", "UPDATE", "DELETE"), ("guardrailpolicies", "tenants")),
    ("", ("UPDATE", "DELETE"), ("nodes",)),
    ("", ("CREATE", "UPDATE", "DELETE"), ("namespaces", "persistentvolumeclaims")),
    ("", ("CREATE",), ("pods/eviction",)),
    ("", ("CONNECT",), ("pods/attach", "pods/exec", "pods/portforward")),
)
HOST_RULES = tuple((group, tuple(plural for plural, _ in kinds)) for group, kinds in HOST_KINDS.items())

NAME_LABEL = "kubernetes.io/metadata.name"  # on every namespace
VERSIONS = {GROUP: VERSION, ARGO: ARGO_VERSION}  # v1 of all other groups

# the operator lifts the gates of thousands of guests: two reviews of each, always allowed, would be half of the
# cost; so would those of the progress of thousands of workflows: their status is no subresource
NOT_THE_OPERATOR: Obj = {
    "name": "not-the-operator",
    "expression": "!(request.operation == 'UPDATE'"
    " && (request.resource.resource == 'pods' || request.resource.resource == 'workflows'"
    " || request.resource.resource == 'cronworkflows')"
    f" && request.userInfo.username == '{OPERATOR}')",
}
# the objects were reviewed at their creation; Kubernetes must be able to set finalizers and replicas while the
# webhook is down
NOT_KUBERNETES: Obj = {
    "name": "not-an-update-by-kubernetes",
    "expression": "!(request.operation == 'UPDATE'"
    " && (request.userInfo.username == 'system:kube-controller-manager'"
    " || request.userInfo.username.startsWith('system:serviceaccount:kube-system:')))",
}

THE_OPERATOR: Obj = {"name": "the-operator", "expression": f"request.userInfo.username == '{OPERATOR}'"}

NOT_A_COMPONENT: Obj = {
    "name": "not-a-component",
    "expression": "!("
    + " || ".join(f"request.userInfo.username.startsWith('{prefix}')" for prefix in COMPONENTS)
    + ")",
}

FailurePolicy = Literal["Ignore", "Fail"]


def webhook_configurations(
    *,
    url: str | None = None,
    service: tuple[str, str] = (SYSTEM_NAMESPACE, WEBHOOK_SERVICE),
    ca_pem: bytes = b"",
    failure_policy: FailurePolicy = "Ignore",
    conditions: bool | None = None,
    token: str = "",
) -> list[Obj]:
    """The mutating and the validating configuration, in this order.

    `url` (scheme, host and port) is the address of the webhook; without one it is behind `service`, a
    (namespace, name) that listens on 443. `ca_pem`: the authority of its certificate; "" leaves it to the
    operator, which fills it in. `failure_policy` is that of guarded namespaces that are no tenant's: with
    "Ignore", the default, work continues there while the webhook is down; with "Fail" it is refused.
    `conditions`: whether the configurations have match conditions (CEL); None: only behind a Service.
    `token`: by which the webhook recognises the API server and records its requests; "" leaves that to the
    operator.
    """
    if conditions is None:
        conditions = url is None

    def hook(name: str, path: str, **fields: object) -> Obj:
        made: Obj = {
            "name": name,
            "clientConfig": _client(path, url, service, ca_pem, token),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "NoneOnDryRun",  # an audit record
            "timeoutSeconds": TIMEOUT_SECONDS,
            "matchPolicy": "Equivalent",
        }
        return made | fields

    def pair(verb: str, **fields: object) -> list[Obj]:
        more = fields | ({"matchConditions": [NOT_THE_OPERATOR, NOT_KUBERNETES]} if conditions else {})
        rules = _rules((*RULES, *SUBRESOURCES) if verb == "validate" else RULES)
        return [
            hook(
                f"{verb}.guard.moorage.dev",
                f"/{verb}",
                failurePolicy=failure_policy,
                namespaceSelector=_guarded(tenants=False),
                rules=rules,
                **more,
            ),
            hook(
                f"{verb}.tenants.moorage.dev",
                f"/{verb}",
                failurePolicy="Fail",
                namespaceSelector=_guarded(tenants=True),
                rules=rules,
                **more,
            ),
        ]

    hosts = hook(
        "hosts.guard.moorage.dev",
        "/validate",
        failurePolicy="Fail",
        namespaceSelector=_guarded(),
        rules=_rules(HOST_RULES, any_version=True),
        **({"matchConditions": [NOT_KUBERNETES]} if conditions else {}),
    )
    # always with the condition: without it all who write Namespaces would wait for us
    of_operator = {"failurePolicy": "Fail", "matchConditions": [THE_OPERATOR]}
    operators = [
        hook(
            "tenants.operator.moorage.dev",
            "/validate",
            rules=_rules((*OF_TENANTS, ("", ("namespaces",))), any_version=True, scope="*"),
            **of_operator,
        ),
        hook(
            "platform.operator.moorage.dev",
            "/validate",
            namespaceSelector={"matchExpressions": [{"key": NAME_LABEL, "operator": "In", "values": [*PLATFORM]}]},
            rules=_rules(PLATFORM_WORKLOADS),
            **of_operator,
        ),
    ]
    kinds = hook("kinds.moorage.dev", "/validate", failurePolicy=failure_policy, rules=[_OF_OUR_KINDS])
    # others may add containers after us (sidecars): see them too. Admitting twice changes nothing more.
    mutating = pair("mutate", reinvocationPolicy="IfNeeded")
    return [
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": WEBHOOK_CONFIGURATION},
            "webhooks": hooks,
        }
        for resource, hooks in (
            (MUTATING_WEBHOOKS, mutating),
            (VALIDATING_WEBHOOKS, [*pair("validate"), hosts, *operators, kinds]),
        )
    ]


def audit_configuration(
    *,
    url: str | None = None,
    service: tuple[str, str] = (SYSTEM_NAMESPACE, WEBHOOK_SERVICE),
    ca_pem: bytes = b"",
    conditions: bool | None = None,
    token: str = "",
) -> Obj:
    """The requests to record that the guardrails do not judge.

    The options are those of `webhook_configurations`.
    """
    if conditions is None:
        conditions = url is None
    common: Obj = {
        "clientConfig": _client("/audit", url, service, ca_pem, token),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": AUDIT_TIMEOUT_SECONDS,
        "matchPolicy": "Equivalent",
        "failurePolicy": "Ignore",
    } | ({"matchConditions": [NOT_A_COMPONENT]} if conditions else {})
    unguarded = [{"key": GUARD_LABEL, "operator": "NotIn", "values": ["enabled"]}]
    return {
        "apiVersion": VALIDATING_WEBHOOKS.api_version,
        "kind": VALIDATING_WEBHOOKS.kind,
        "metadata": {"name": AUDIT_CONFIGURATION},
        "webhooks": [
            {"name": "changes.audit.moorage.dev", "rules": [_audited(*rule) for rule in AUDITED]} | common,
            {
                "name": "unguarded.audit.moorage.dev",
                "rules": _rules((group, FILLED if group == GROUP else plurals) for group, plurals in RULES),
                "namespaceSelector": {"matchExpressions": unguarded},
            }
            | common,
        ],
    }


def _audited(group: str, operations: tuple[str, ...], plurals: tuple[str, ...]) -> Obj:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"] if group in VERSIONS else ["v1"],
        "operations": list(operations),
        "resources": list(plurals),
        "scope": "*",
    }


def _client(path: str, url: str | None, service: tuple[str, str], ca_pem: bytes, token: str) -> Obj:
    namespace, name = service
    path = f"{path}/{token}" if token else path
    client: Obj = (
        {"url": url.rstrip("/") + path}
        if url is not None
        else {"service": {"namespace": namespace, "name": name, "path": path, "port": SERVICE_PORT}}
    )
    if ca_pem:
        client["caBundle"] = base64.b64encode(ca_pem).decode()
    return client


def _guarded(*, tenants: bool | None = None) -> Obj:
    """A selector for guarded namespaces. `tenants`: True for those of tenants only, False for the others only.

    It never selects our own namespace or that of the control plane: a failed webhook must not block its own
    restart.
    """
    away: Obj = {
        "key": NAME_LABEL,
        "operator": "NotIn",
        "values": [SYSTEM_NAMESPACE, "kube-system"],
    }
    of_tenants = {"key": TENANT_LABEL, "operator": "Exists" if tenants else "DoesNotExist"}
    return {
        "matchLabels": {GUARD_LABEL: "enabled"},
        "matchExpressions": [away] if tenants is None else [away, of_tenants],
    }


def _rules(
    rules: Iterable[tuple[str, tuple[str, ...]]], *, any_version: bool = False, scope: str = "Namespaced"
) -> list[Obj]:
    return [
        {
            "apiGroups": [group],
            "apiVersions": ["*"] if any_version else [VERSIONS.get(group, "v1")],
            "operations": ["CREATE", "UPDATE"],
            "resources": list(plurals),
            "scope": scope,
        }
        for group, plurals in rules
    ]


_OF_OUR_KINDS: Obj = {
    "apiGroups": [GROUP],
    "apiVersions": ["*"],
    "operations": ["CREATE", "UPDATE"],
    "resources": list(KINDS),
    "scope": "*",
}
