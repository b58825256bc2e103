"""The actions that a stolen token of each service allows, and those that it does not; for the reference page.

Each statement is tried by packages/moorage/tests/e2e/test_stolen_tokens_any_cluster.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from moorage.model.names import KUBELETS_ACCOUNT


class TokenRisk(Struct, frozen=True, kw_only=True):
    """The risks of a stolen token, as texts that complete "With it a thief can …" and "… cannot …"."""

    can: tuple[str, ...]
    cannot: tuple[str, ...]


TOKEN_RISKS: Mapping[str, TokenRisk] = {
    "moorage-operator": TokenRisk(
        can=(
            "run pods with any Secret and ServiceAccount of all namespaces but the platform's, and read logs",
            "create volumes of any kind, paths of nodes among them",
            "change the registrations of Moorage's webhooks, and by them all that others write later",
            "bind the three roles of tenants in namespaces that a Tenant names",
        ),
        cannot=(
            "read Secrets, except five of `moorage-system` by their names",
            "bind roles of tenants in `kube-system`, `default` or `moorage-system`",
            "write quotas or NetworkPolicies in namespaces that no Tenant names",
            "label a namespace that no Tenant names, or change a Pod Security level",
            "run pods in `kube-system` or `moorage-users`, or with a ServiceAccount in `moorage-system`",
            "give itself other roles, act as other users, or run commands in pods",
        ),
    ),
    "moorage-webhook": TokenRisk(
        can=(
            "read the definitions of all pods, Jobs, nodes and Ingresses, values of their environment among them",
        ),
        cannot=("read Secrets", "write anything in any namespace", "act as other users"),
    ),
    "moorage-extender": TokenRisk(
        can=("read the definitions of all pods and nodes, values of their environment among them",),
        cannot=("read Secrets", "write anything in any namespace", "act as other users"),
    ),
    "moorage-server": TokenRisk(
        can=(
            "act as all users with an account in `moorage-users`, administrators among them",
            "read the logs of all pods",
            "create accounts, and read the hashes of passwords",
            "change Tenants: the roles, quotas and nodes of teams",
        ),
        cannot=(
            "act as users and groups without such an account, such as `system:masters` or other ServiceAccounts",
            "read Secrets of namespaces of tenants or `kube-system` as itself",
            "create pods, or bind roles, as itself",
        ),
    ),
    KUBELETS_ACCOUNT: TokenRisk(
        can=("read the statistics of kubelets",),
        cannot=("read or write anything at the API server", "run commands in pods by a kubelet"),
    ),
}
# purpose of the token → actions that it allows a thief
IN_PODS: Mapping[str, str] = {
    "a run": "report checkpoints of that run, until it ends",
    "a map": "claim and finish items of that map, until it is deleted",
    "a workflow": "report for the steps of that workflow, and read and write its artifacts, until it is deleted",
    "a workspace": "open that workspace from inside the cluster; the gateway also requires a login",
}
