"""A refusal of the Kubernetes API (RBAC) as a sentence, and the people who can grant the right."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from moorage.model.people import PEOPLE_NAMESPACE
from moorage.model.tenant import Membership

_REFUSAL = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r' (?:in the namespace "(?P<namespace>[^"]+)"|at the cluster scope)'
)
_NAME = re.compile(r'^\S+ "(?P<name>[^"]+)" is forbidden: ')
_NOUNS = {
    "jobs": "runs",
    "persistentvolumeclaims": "volumes",
    "mapjobs": "maps",
    "pods/log": "logs",
    "pods/exec": "commands in pods",
    "pods/eviction": "evictions of pods",
    "serviceaccounts": "service accounts",
    "volumebackups": "backups",
    "poddisruptionbudgets": "disruption budgets",
    "guardrailpolicies": "guardrail policies",
    "idlepolicies": "idle policies",
    "budgets": "budgets",
}
_CLUSTER_SCOPED = frozenset(
    {"nodes", "tenants", "namespaces", "persistentvolumes", "guardrailpolicies", "machinenodepools", "users"}
    | {"idlepolicies", "budgets"}
    | {"priorityclasses", "storageclasses", "clusterroles", "clusterrolebindings", "groups", "serviceaccounts"}
    | {"customresourcedefinitions", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    | {"certificatesigningrequests"}
)
_RUN = frozenset({"jobs", "pods"})
_COMMANDS = {  # command → its action, and the resources that it is about
    "run": ("start runs", frozenset({"jobs"})),
    "rerun": ("start runs", frozenset({"jobs"})),
    "jobs": ("list runs", _RUN),
    "show": ("read runs", _RUN),
    "logs": ("read logs of runs", _RUN | {"pods/log"}),
    "exec": ("run commands in runs", _RUN | {"pods/exec"}),
    "port-forward": ("forward ports of runs", _RUN | {"pods/portforward"}),
    "wait": ("wait for runs", _RUN),
    "explain": ("read runs", _RUN),
    "cancel": ("cancel runs", _RUN),
    "map create": ("start maps", frozenset({"mapjobs"})),
    "secret create": ("create secrets", frozenset({"configmaps", "secrets"})),
    "secret delete": ("delete secrets", frozenset({"configmaps"})),
    "secret list": ("list secrets", frozenset({"configmaps"})),
    "drain": ("drain nodes", frozenset({"nodes", "pods", "pods/eviction"})),
    "cordon": ("cordon nodes", frozenset({"nodes"})),
    "uncordon": ("uncordon nodes", frozenset({"nodes"})),
}
_VERBS = {"get": "read", "update": "change", "patch": "change", "deletecollection": "delete"}


class Refusal(Struct, frozen=True, kw_only=True):
    """A refusal of RBAC. `namespace` is "" for cluster-scoped objects; `name`: of one object, if known."""

    user: str
    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def sentence(self, person: str = "", *, command: str = "") -> str:
        """The user, the refused action, and the place.

        `person`: the owner of the account; `command`: typed after `moor`.
        """
        if doing := self.doing(command):
            where = f" in namespace {self.namespace}" if self.namespace else ""
            where = where or ("" if doing.endswith("nodes") else " in all namespaces")
            return f"{person or self.user} may not {doing}{where}"
        noun = _NOUNS.get(self.resource, self.resource)
        if self.resource == "serviceaccounts" and self.namespace == PEOPLE_NAMESPACE:
            return f"{person or self.user} may not {_VERBS.get(self.verb, self.verb)} user accounts"
        if self.name:
            noun = f"{noun} of {self.name}" if "/" in self.resource else f"{noun.removesuffix('s')} {self.name}"
        where = f" in namespace {self.namespace}" if self.namespace else ""
        if not self.namespace and self.resource not in _CLUSTER_SCOPED:
            where = " in all namespaces"
        return f"{person or self.user} may not {_VERBS.get(self.verb, self.verb)} {noun}{where}"

    def doing(self, command: str) -> str:
        """The action of a command; "" if the refused request is not its main action."""
        doing, resources = _COMMANDS.get(command, ("", frozenset[str]()))
        return doing if self.resource in resources else ""


def refusal_of(message: str) -> Refusal | None:
    """Parse the message of an RBAC 403; None for other refusals: admission, quotas, Pod Security."""
    parts = _REFUSAL.search(message)
    if parts is None:
        return None
    named = _NAME.match(message)
    return Refusal(
        user=parts["user"],
        verb=parts["verb"],
        resource=parts["resource"],
        namespace=parts["namespace"] or "",
        name=named["name"] if named else "",
    )


def plain(message: str) -> str:
    """The message for the refused user: a refusal of RBAC as a sentence, other messages unchanged."""
    refusal = refusal_of(message)
    return message if refusal is None else refusal.sentence("you")


def way_out(refusal: Refusal, person: str, teams: Sequence[Membership], *, command: str = "") -> str:
    """Advice for the refused user: work in another namespace, or ask a person with the right to grant it."""
    who = person or refusal.user
    doing = refusal.doing(command)
    if doing.endswith("nodes"):
        return f"only administrators of the cluster may {doing}: ask one of them"
    if not refusal.namespace and refusal.resource not in _CLUSTER_SCOPED and teams:
        return f"only administrators of the cluster may: leave out -A; you work in {_namespaces(teams)}"
    if not refusal.namespace or refusal.namespace == PEOPLE_NAMESPACE:
        return "this is for administrators of the cluster: ask one of them"
    mine = next((team for team in teams if team.namespace == refusal.namespace), None)
    if mine is not None:
        admins = [name for name in mine.admins if name != who]
        names = f" ({', '.join(admins)})" if admins else ""
        ask = f"ask an administrator of team {mine.tenant}{names}"
        if mine.role == "viewer":
            return (
                f"your role in team {mine.tenant} is viewer; as a member you may. An admin of the team{names}"
                f" makes you one: moor tenant add {mine.tenant} --user {who} --role member"
            )
        return f"your role in team {mine.tenant} is {mine.role}; {ask}, or one of the cluster"
    if teams:
        first = teams[0].namespace
        return (
            f"you work in {_namespaces(teams)}: give -n {first}, or for all commands:"
            f" moor kubeconfig --save -n {first}."
            f" An administrator of the cluster grants rights in {refusal.namespace}"
        )
    return (
        "you are in no team yet: ask an admin of a team, or of the cluster, for"
        f" `moor tenant add TEAM --user {who}`, then run `moor kubeconfig --save`"
    )


def _namespaces(teams: Sequence[Membership]) -> str:
    return " and ".join(dict.fromkeys(team.namespace for team in teams))
