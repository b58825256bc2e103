"""Role-based access control as in the real API server: users can grant only the rights that they hold.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moorage_kube.errors import Forbidden
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.users import MASTERS, Attributes, Decision, User
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.pipeline.calls import Admission
from moorage_local.apiserver.pipeline.pipeline import Pipeline
from moorage_local.apiserver.pipeline.refusals import not_found

GROUP = "rbac.authorization.k8s.io"
ROLES = Resource(GROUP, "v1", "roles", "Role")
ROLEBINDINGS = Resource(GROUP, "v1", "rolebindings", "RoleBinding")
CLUSTERROLES = Resource(GROUP, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTERROLEBINDINGS = Resource(GROUP, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
KINDS = (ROLES, ROLEBINDINGS, CLUSTERROLES, CLUSTERROLEBINDINGS)

EVERYTHING = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One PolicyRule: verbs on resources of API groups, or on paths.

    `names`: only the resources with these names.
    """

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> Rule:
        return cls(
            verbs=tuple(obj.get("verbs") or ()),
            groups=tuple(obj.get("apiGroups") or ()),
            resources=tuple(obj.get("resources") or ()),
            names=tuple(obj.get("resourceNames") or ()),
            paths=tuple(obj.get("nonResourceURLs") or ()),
        )

    def allows(self, asked: Attributes) -> bool:
        if EVERYTHING not in self.verbs and asked.verb not in self.verbs:
            return False
        if asked.path:
            return any(_path_matches(path, asked.path) for path in self.paths)
        if EVERYTHING not in self.groups and asked.group not in self.groups:
            return False
        if self.names and asked.name not in self.names:
            return False
        whole = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        if EVERYTHING in self.resources or whole in self.resources:
            return True
        return bool(asked.subresource) and f"*/{asked.subresource}" in self.resources

    def covers(self, rule: Rule) -> bool:
        """Whether this rule allows everything that `rule` allows; `rule` has one verb and one resource or path."""
        if EVERYTHING not in self.verbs and not set(rule.verbs) <= set(self.verbs):
            return False
        if rule.paths:
            return all(any(_path_matches(mine, path) for mine in self.paths) for path in rule.paths)
        if EVERYTHING not in self.groups and not set(rule.groups) <= set(self.groups):
            return False
        if self.names and not (rule.names and set(rule.names) <= set(self.names)):
            return False
        for resource in rule.resources:
            subresource = resource.partition("/")[2]
            if EVERYTHING in self.resources or resource in self.resources:
                continue
            if not (subresource and f"*/{subresource}" in self.resources):
                return False
        return True

    def atoms(self) -> Iterator[Rule]:
        """Yield rules with one verb and one resource or path; together they equal this rule."""
        for verb in self.verbs:
            for path in self.paths:
                yield Rule(verbs=(verb,), paths=(path,))
            for group in self.groups:
                for resource in self.resources:
                    rule = Rule(verbs=(verb,), groups=(group,), resources=(resource,))
                    if self.names:
                        for name in self.names:
                            yield replace(rule, names=(name,))
                    else:
                        yield rule

    def to_obj(self) -> Obj:
        if self.paths:
            return {"verbs": list(self.verbs), "nonResourceURLs": list(self.paths)}
        out: Obj = {
            "verbs": list(self.verbs),
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
        }
        return out | ({"resourceNames": list(self.names)} if self.names else {})

    def __str__(self) -> str:
        """Format the rule like the refusals of the real server."""
        parts = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.paths),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        )
        shown = (f"{name}:[{' '.join(json.dumps(value) for value in values)}]" for name, values in parts if values)
        return "{" + ", ".join(shown) + "}"


def missing_rights(held: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the part of `wanted` that `held` does not allow: one rule for each resource or path."""
    lacking: dict[Rule, list[str]] = {}
    for rule in wanted:
        for atom in rule.atoms():
            if not any(mine.covers(atom) for mine in held):
                verbs = lacking.setdefault(replace(atom, verbs=()), [])
                if atom.verbs[0] not in verbs:
                    verbs.append(atom.verbs[0])
    return sorted((replace(right, verbs=tuple(verbs)) for right, verbs in lacking.items()), key=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The fields of a RoleBinding (with a namespace) or ClusterRoleBinding that decisions need."""

    name: str
    namespace: str
    role_kind: str
    role: str
    subjects: tuple[tuple[str, str], ...]
    """(User | Group, name); a service account is the user that it authenticates as."""

    @classmethod
    def of(cls, obj: Obj) -> Binding:
        meta, ref = obj["metadata"], obj["roleRef"]
        namespace = str(meta.get("namespace") or "")
        return cls(
            name=str(meta["name"]),
            namespace=namespace,
            role_kind=str(ref["kind"]),
            role=str(ref["name"]),
            subjects=tuple(_subject(subject, namespace) for subject in obj.get("subjects") or ()),
        )

    @property
    def why(self) -> str:
        kind = "RoleBinding" if self.namespace else "ClusterRoleBinding"
        where = f"{self.name}/{self.namespace}" if self.namespace else self.name
        return f'RBAC: allowed by {kind} "{where}" of {self.role_kind} "{self.role}" to '


@dataclass(slots=True)
class _Index:
    """Roles by (namespace, name), bindings by (namespace, subject).

    The namespace is empty for cluster-scoped ones.
    """

    roles: dict[tuple[str, str], tuple[Rule, ...]] = field(default_factory=dict)
    bindings: dict[tuple[str, tuple[str, str]], dict[str, Binding]] = field(default_factory=dict)


class RbacAuthorizer:
    """Authorizes requests by the stored roles and bindings. Members of system:masters may do everything."""

    def __init__(self) -> None:
        self._index = _Index()

    def load(self, pipeline: Pipeline) -> None:
        """Read the stored roles and bindings; `stored` adds later changes."""
        self._index = _Index()
        for resource in KINDS:
            kind = pipeline.kinds.of(resource)
            assert kind is not None
            for obj in pipeline.every(kind):
                self.stored(kind, None, obj)

    def stored(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        """Update the index after a write."""
        if kind.resource in (ROLES, CLUSTERROLES):
            if before is not None and after is None:
                self._index.roles.pop(_key(before), None)
            if after is not None:
                self._index.roles[_key(after)] = tuple(Rule.of(rule) for rule in after.get("rules") or ())
        elif kind.resource in (ROLEBINDINGS, CLUSTERROLEBINDINGS):
            bindings = self._index.bindings
            if before is not None:
                old = Binding.of(before)
                for subject in old.subjects:
                    held = bindings.get((old.namespace, subject), {})
                    held.pop(old.name, None)
                    if not held:
                        bindings.pop((old.namespace, subject), None)
            if after is not None:
                new = Binding.of(after)
                for subject in new.subjects:
                    bindings.setdefault((new.namespace, subject), {})[new.name] = new

    def authorize(self, user: User, asked: Attributes) -> Decision:
        if MASTERS in user.groups:
            return Decision(True)
        gone: list[str] = []
        for binding, subject in self._bindings_of(user, asked.namespace):
            rules = self.rules_of_role(binding.role_kind, binding.role, binding.namespace)
            if rules is None:
                kind = "clusterrole" if binding.role_kind == "ClusterRole" else "role"
                gone.append(f'{kind}.{GROUP} "{binding.role}" not found')
            elif any(rule.allows(asked) for rule in rules):
                return Decision(True, binding.why + _said(subject))
        if not gone:
            return Decision(False)
        problems = gone[0] if len(gone) == 1 else f"[{', '.join(gone)}]"
        return Decision(False, f"RBAC: {problems}")

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """Return all rights of a user in a namespace ("": the rights bound for the whole cluster)."""
        if MASTERS in user.groups:
            everywhere = (EVERYTHING,)
            return [
                Rule(verbs=everywhere, groups=everywhere, resources=everywhere),
                Rule(verbs=everywhere, paths=everywhere),
            ]
        return [
            rule
            for binding, _ in self._bindings_of(user, namespace)
            for rule in self.rules_of_role(binding.role_kind, binding.role, binding.namespace) or ()
        ]

    def rules_of_role(self, kind: str, name: str, namespace: str) -> tuple[Rule, ...] | None:
        """Return the rules of a role that a binding in the namespace refers to.

        None if the role does not exist.
        """
        return self._index.roles.get(("" if kind == "ClusterRole" else namespace, name))

    def _bindings_of(self, user: User, namespace: str) -> Iterator[tuple[Binding, tuple[str, str]]]:
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        for where in ("", namespace) if namespace else ("",):
            for subject in subjects:
                for binding in self._index.bindings.get((where, subject), {}).values():
                    yield binding, subject


class NoEscalation:
    """Refuses roles and bindings that grant rights which their author does not hold.

    Implements `pipeline.Admitter`.

    The verbs `escalate` (on the role) and `bind` (on the role that is bound) lift it, as in Kubernetes.
    """

    def __init__(self, authorizer: RbacAuthorizer) -> None:
        self._authorizer = authorizer

    async def mutate(self, asked: Admission) -> Obj | None:
        obj, user, resource = asked.obj, asked.call.user, asked.kind.resource
        if resource not in KINDS or obj is None or MASTERS in user.groups or _is_only_cleared(asked.old, obj):
            return obj
        namespace = asked.namespace or ""
        if resource in (ROLES, CLUSTERROLES):
            self._check_role(user, namespace, asked)
        else:
            self._check_binding(user, namespace, asked)
        return obj

    async def validate(self, asked: Admission) -> None:  # noqa: ARG002
        return

    def _check_role(self, user: User, namespace: str, asked: Admission) -> None:
        obj, plural = asked.obj or {}, asked.kind.resource.plural
        may = Attributes(verb="escalate", group=GROUP, resource=plural, namespace=namespace, name=asked.name)
        if self._authorizer.authorize(user, may).allowed:
            return
        wanted = [Rule.of(rule) for rule in obj.get("rules") or ()]
        if obj.get("aggregationRule"):
            wanted.append(Rule(verbs=(EVERYTHING,), groups=(EVERYTHING,), resources=(EVERYTHING,)))
            wanted.append(Rule(verbs=(EVERYTHING,), paths=(EVERYTHING,)))
        self._check_covered(user, namespace, asked, wanted)

    def _check_binding(self, user: User, namespace: str, asked: Admission) -> None:
        ref = (asked.obj or {}).get("roleRef") or {}
        kind, name = str(ref.get("kind")), str(ref.get("name"))
        plural = "clusterroles" if kind == "ClusterRole" else "roles"
        may = Attributes(verb="bind", group=GROUP, resource=plural, namespace=namespace, name=name)
        if self._authorizer.authorize(user, may).allowed:
            return
        rules = self._authorizer.rules_of_role(kind, name, namespace)
        if rules is None:
            raise not_found(asked.kind.resource, name)
        self._check_covered(user, namespace, asked, rules)

    def _check_covered(self, user: User, namespace: str, asked: Admission, wanted: Iterable[Rule]) -> None:
        lacking = missing_rights(self._authorizer.rules_for(user, namespace), wanted)
        if not lacking:
            return
        resource = asked.kind.resource
        groups = " ".join(json.dumps(group) for group in user.groups)
        rights = "\n".join(str(rule) for rule in lacking)
        raise Forbidden(
            f'{resource.plural}.{GROUP} "{asked.name}" is forbidden: user "{user.name}" (groups=[{groups}]) is'
            f" attempting to grant RBAC permissions not currently held:\n{rights}",
            details={"name": asked.name, "group": GROUP, "kind": resource.plural},
        )


def _is_only_cleared(old: Obj | None, new: Obj) -> bool:
    """Whether a write changes only the fields that garbage collection must change to delete the object."""

    def rest(obj: Obj) -> Obj:
        dropped = ("ownerReferences", "finalizers", "resourceVersion", "managedFields")
        return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in dropped}}

    return old is not None and rest(old) == rest(new)


def _subject(obj: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    if obj.get("kind") == "ServiceAccount":
        return "User", f"system:serviceaccount:{obj.get('namespace') or namespace}:{obj['name']}"
    return str(obj.get("kind")), str(obj["name"])


def _said(subject: tuple[str, str]) -> str:
    kind, name = subject
    if kind == "User" and name.startswith("system:serviceaccount:"):
        _, _, namespace, account = name.split(":", 3)
        return f'ServiceAccount "{account}/{namespace}"'
    return f'{kind} "{name}"'


def _key(obj: Obj) -> tuple[str, str]:
    meta = obj["metadata"]
    return str(meta.get("namespace") or ""), str(meta["name"])


def _path_matches(pattern: str, path: str) -> bool:
    return pattern in (EVERYTHING, path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))
