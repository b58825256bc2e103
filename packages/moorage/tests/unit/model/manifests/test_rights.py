"""Each right of a service's account is used by the code of that service, and has a reason; none is missing."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

import moorage
import moorage_kube
import moorage_workflows
from moorage.model.manifests import ALL
from moorage.model.manifests.parts import Rule, Service
from moorage.model.manifests.rights import KUBELETS_RULE, TENANT_RULES
from moorage_kube.resources import Resource

SOURCE = Path(moorage.__file__).parent
OTHERS = {package.__name__: Path(package.__file__).parent for package in (moorage_kube, moorage_workflows)}
KUBE = ("cluster", "moorage_kube/remote")
ROOMS = {  # what of the code runs as that account
    "operator": ("controllers", "moorage_workflows/controllers", *KUBE),
    "webhook": ("webhooks", *KUBE),
    "extender": ("extender", *KUBE),
    "server": (
        *("server", "actions", *KUBE, "usage", "attempts", "notify"),
        *("moorage_workflows/server", "moorage_workflows/actions"),
    ),
}
CALLS = {
    "get": ("get",),
    "list": ("list",),
    "create": ("create",),
    "update": ("update",),
    "patch": ("patch",),
    "delete": ("delete",),
    "of": ("list", "watch"),  # Informers.of
    "_follow": ("list", "watch"),
    "Informer": ("list", "watch"),
}
# (verb, resource) → where it is used, in other words than `api.VERB(RESOURCE)`
ELSEWHERE = {
    ("get", "pods/log"): "api.logs",
    ("create", "serviceaccounts/token"): "create_subresource",
    ("impersonate", "serviceaccounts"): "api.as_user: requests in a person's name",
    ("bind", "clusterroles"): "the API server asks for it where a RoleBinding names such a role",
    ("list", "pods"): "of metrics.k8s.io, by its path",
    ("list", "workloads"): "of Kueue, in whichever version is served",
    ("patch", "workloads"): "as above",
    ("update", "jobs/finalizers"): "owner references that block deletion",
    ("update", "machines/finalizers"): "as above",
    ("update", "mapjobs/finalizers"): "as above",
    ("update", "workspaces/finalizers"): "as above",
    ("update", "datasets/finalizers"): "as above",
    ("update", "volumebackups/finalizers"): "as above",
    ("update", "tenants/finalizers"): "as above",
    ("update", "workflows/finalizers"): "as above",
    ("update", "cronworkflows/finalizers"): "as above",
    ("update", "workflownodes"): "no kind: the server asks for it, where the operator writes records of workflows",
}


class Used:
    """What the code of some rooms does with resources, as far as can be read from it."""

    def __init__(self, rooms: tuple[str, ...]) -> None:
        self.direct: set[tuple[str, str, str]] = set()  # verb, group, resource
        self._named: dict[Path, set[tuple[str, str]]] = defaultdict(set)  # folder → resources that it names
        self._verbs: dict[Path, set[tuple[str, str]]] = defaultdict(set)  # folder → verbs on any resource
        for room in rooms:
            package, _, folder = room.rpartition("/")
            for path in sorted((OTHERS.get(package, SOURCE) / folder).rglob("*.py")):
                self._read(path)

    def _read(self, path: Path) -> None:
        root = next(root for root in (SOURCE, *OTHERS.values()) if root in path.parents)
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(resource := getattr(module, node.id, None), Resource):
                self._named[path.parent].add((resource.group, resource.plural))
            if isinstance(node, ast.Call):
                self._call(path.parent, module, node)

    def _call(self, folder: Path, module: object, call: ast.Call) -> None:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        subresource = next(
            (
                str(word.value.value)
                for word in call.keywords
                if word.arg == "subresource" and isinstance(word.value, ast.Constant) and word.value.value
            ),
            "",
        )
        for argument in call.args[:2]:
            if not isinstance(argument, ast.Name | ast.Attribute):
                continue
            resource = getattr(module, getattr(argument, "id", ""), None)
            for verb in CALLS.get(name, ()):
                if isinstance(resource, Resource):
                    plural = resource.plural + (f"/{subresource}" if subresource else "")
                    self.direct.add((verb, resource.group, plural))
                else:
                    self._verbs[folder].add((verb, subresource))

    def has(self, verb: str, group: str, resource: str) -> bool:
        plural, _, subresource = resource.partition("/")
        return (verb, group, resource) in self.direct or any(
            (group, plural) in named and (verb, subresource) in self._verbs[folder]
            for folder, named in self._named.items()
        )


def rules_of(service: Service) -> tuple[Rule, ...]:
    mine = (*service.everywhere, *service.at_home, *service.among_people)
    return (*mine, *(TENANT_RULES if service.for_tenants else ()))


@pytest.mark.parametrize("service", ALL, ids=lambda service: service.name)
def test_each_right_is_used_by_the_code_of_its_service(service: Service) -> None:
    used = Used(ROOMS[service.name])
    unused = [
        (verb, rule.group, resource)
        for rule in rules_of(service)
        for resource in rule.resources
        for verb in rule.verbs
        if not used.has(verb, rule.group, resource) and (verb, resource) not in ELSEWHERE
    ]
    assert unused == []


def test_the_operator_has_each_right_that_its_code_uses() -> None:
    """What is read from `api.patch(KIND, …)` and the like; other services also act for people."""
    (operator,) = (service for service in ALL if service.name == "operator")
    given = {
        (verb, rule.group, name) for rule in rules_of(operator) for name in rule.resources for verb in rule.verbs
    }
    by_another_role = {("create", "authentication.k8s.io", "tokenreviews")}  # moorage-metrics-review
    assert Used(ROOMS["operator"]).direct - given == by_another_role


def test_the_reading_of_code_finds_what_nobody_does() -> None:
    used = Used(ROOMS["operator"])
    assert used.has("patch", "", "nodes")
    assert used.has("patch", "moorage.dev", "tenants/status")
    assert not used.has("update", "", "nodes/status")
    assert not used.has("get", "", "nodes/proxy")
    assert not Used(ROOMS["extender"]).has("patch", "batch", "jobs")


@pytest.mark.parametrize("service", ALL, ids=lambda service: service.name)
def test_each_right_says_what_it_is_for_and_stands_once(service: Service) -> None:
    rules = rules_of(service)
    assert [rule for rule in (*rules, KUBELETS_RULE) if not rule.why] == []
    for place in (service.everywhere, service.at_home, service.among_people):
        rights = [
            (verb, rule.group, resource, rule.names)
            for rule in place
            for resource in rule.resources
            for verb in rule.verbs
        ]
        assert len(rights) == len(set(rights))
