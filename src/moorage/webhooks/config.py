"""The registration that brings objects before our webhook; one source for `moor up` and for `deploy/`.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from typing import Literal

from moorage.apimachinery.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Obj, Resource
from moorage.decide.guardrails import OPERATOR
from moorage.model.names import (
    GROUP,
    GUARD_LABEL,
    SYSTEM_NAMESPACE,
    VERSION,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SERVICE,
)

TIMEOUT_SECONDS = 5  # an answer takes milliseconds; a webhook that hangs delays each create by this much
SERVICE_PORT = 443
KINDS = ("machines", "machinenodepools", "reservations", "mapjobs", "workspaces")  # of ours, judged everywhere
RULES = (  # (group, plurals): pods, and whatever holds a template of theirs, which bears the owner too
    ("", ("pods", "replicationcontrollers")),
    ("batch", ("jobs", "cronjobs")),
    ("networking.k8s.io", ("ingresses",)),  # hosts are their tenants'
    ("apps", ("deployments", "replicasets", "statefulsets", "daemonsets")),
    (GROUP, ("mapjobs", "workspaces")),
)

# the operator lifts the gates of thousands of guests: two reviews of each would be half of the cost, and say yes
NOT_THE_OPERATOR: Obj = {
    "name": "not-the-operator",
    "expression": "!(request.operation == 'UPDATE' && request.resource.resource == 'pods'"
    f" && request.userInfo.username == '{OPERATOR}')",
}

FailurePolicy = Literal["Ignore", "Fail"]


def webhook_configurations(
    *,
    url: str | None = None,
    service: tuple[str, str] = (SYSTEM_NAMESPACE, WEBHOOK_SERVICE),
    ca_pem: bytes = b"",
    failure_policy: FailurePolicy = "Ignore",
    conditions: bool | None = None,
) -> list[Obj]:
    """The mutating and the validating configuration, in this order.

    `url` (scheme, host and port) is where the webhook listens; without one it stands behind `service`, a
    (namespace, name) that listens on 443. `ca_pem`: who signed its certificate; empty leaves it to the operator,
    which fills it in. With "Ignore", the default, work goes on while we are away; with "Fail" nothing gets past.
    `conditions`: whether the cluster evaluates match conditions (CEL), which the local one does not; None: only a
    cluster of its own has a Service, so yes behind one.
    """
    made = [
        _configuration(MUTATING_WEBHOOKS, "mutate", _client("/mutate", url, service, ca_pem), failure_policy),
        _configuration(
            VALIDATING_WEBHOOKS, "validate", _client("/validate", url, service, ca_pem), failure_policy
        ),
    ]
    if conditions or (conditions is None and url is None):
        for one in made:
            one["webhooks"][0]["matchConditions"] = [NOT_THE_OPERATOR]
    return made


def _client(path: str, url: str | None, service: tuple[str, str], ca_pem: bytes) -> Obj:
    namespace, name = service
    client: Obj = (
        {"url": url.rstrip("/") + path}
        if url is not None
        else {"service": {"namespace": namespace, "name": name, "path": path, "port": SERVICE_PORT}}
    )
    if ca_pem:
        client["caBundle"] = base64.b64encode(ca_pem).decode()
    return client


def _configuration(resource: Resource, verb: str, client: Obj, failure_policy: FailurePolicy) -> Obj:
    webhook: Obj = {
        "name": f"{verb}.guard.moorage.dev",
        "clientConfig": client,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "failurePolicy": failure_policy,
        "matchPolicy": "Equivalent",
        "namespaceSelector": {
            "matchLabels": {GUARD_LABEL: "enabled"},
            # never our own pods, nor the control plane's: a webhook that is down must not keep itself down
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": [SYSTEM_NAMESPACE, "kube-system"],
                }
            ],
        },
        "rules": [
            {
                "apiGroups": [group],
                "apiVersions": [VERSION if group == GROUP else "v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": list(plurals),
                "scope": "Namespaced",
            }
            for group, plurals in RULES
        ],
    }
    more: list[Obj] = []
    if resource is MUTATING_WEBHOOKS:
        # others may add containers after us (sidecars): see them too. Admitting twice changes nothing more.
        webhook["reinvocationPolicy"] = "IfNeeded"
    else:
        more = [_of_our_kinds(webhook)]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": WEBHOOK_CONFIGURATION},
        "webhooks": [webhook, *more],
    }


def _of_our_kinds(guard: Obj) -> Obj:
    """The registration for kinds of ours, in whichever namespace."""
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": list(KINDS),
        "scope": "*",
    }
    kept = {key: value for key, value in guard.items() if key != "namespaceSelector"}
    return kept | {"name": "kinds.moorage.dev", "rules": [rule]}
