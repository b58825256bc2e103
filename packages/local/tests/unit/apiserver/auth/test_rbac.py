"""Who may what: rules against a plain model, what may be granted, and the index beside a fresh reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import Forbidden
from moorage_kube.resources import PODS, SECRETS
from moorage_local.apiserver.auth.rbac import (
    CLUSTERROLES,
    ROLEBINDINGS,
    ROLES,
    RbacAuthorizer,
    Rule,
    missing_rights,
)
from moorage_local.apiserver.auth.users import Attributes, User
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer

pytestmark = pytest.mark.anyio

VERBS, GROUPS = ("get", "list", "delete"), ("", "apps")
RESOURCES, NAMES = ("pods", "pods/log", "secrets"), ("a", "b")


def some(values: tuple[str, ...], *, star: bool = True, least: int = 1) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(
        st.sampled_from((*values, "*") if star else values), min_size=least, max_size=3, unique=True
    ).map(tuple)


RULES = st.builds(
    lambda verbs, groups, resources, names: Rule(verbs=verbs, groups=groups, resources=resources, names=names),
    some(VERBS),
    some(GROUPS),
    some((*RESOURCES, "*/log")),
    some(NAMES, star=False, least=0),
)
ASKED = st.builds(
    lambda verb, group, resource, name: Attributes(
        verb=verb,
        group=group,
        resource=resource.partition("/")[0],
        subresource=resource.partition("/")[2],
        name=name,
    ),
    st.sampled_from(VERBS),
    st.sampled_from(GROUPS),
    st.sampled_from(RESOURCES),
    st.sampled_from((*NAMES, "")),
)


@given(st.lists(RULES, max_size=3), RULES, ASKED)
def test_who_misses_no_right_may_all_that_the_rule_allows(held: list[Rule], rule: Rule, asked: Attributes) -> None:
    if not missing_rights(held, [rule]) and rule.allows(asked):
        assert any(mine.allows(asked) for mine in held)


@given(RULES)
def test_who_holds_a_rule_may_grant_it_and_each_part_of_it(rule: Rule) -> None:
    assert missing_rights([rule], [rule, *rule.atoms()]) == []


@given(RULES)
def test_who_holds_nothing_misses_all_of_a_rule(rule: Rule) -> None:
    lacking = missing_rights([], [rule])
    assert {one for part in lacking for one in part.atoms()} == set(rule.atoms())


@given(RULES, ASKED)
def test_a_rule_allows_what_its_parts_allow(rule: Rule, asked: Attributes) -> None:
    assert rule.allows(asked) == any(one.allows(asked) for one in rule.atoms())


@pytest.mark.parametrize(
    ("paths", "path", "allowed"),
    [
        (("/api/*",), "/api/v1", True),
        (("/api/*",), "/api", False),
        (("/healthz",), "/healthz", True),
        (("/healthz",), "/healthz/etcd", False),
        (("*",), "/metrics", True),
    ],
)
def test_paths_match_whole_or_by_their_beginning(paths: tuple[str, ...], path: str, allowed: bool) -> None:
    assert Rule(verbs=("get",), paths=paths).allows(Attributes(verb="get", path=path)) is allowed


def binding(name: str, role: str, *subjects: dict[str, str], kind: str = "Role") -> dict[str, object]:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": ref, "subjects": list(subjects)}


ADA = {"kind": "User", "name": "ada"}
READER = {"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}


async def test_rights_come_and_go_with_role_and_binding(server: ApiServer, api: InProcessClient) -> None:
    ada = server.client(User(name="ada", groups=("system:authenticated",)))

    async def may() -> bool:
        try:
            await ada.list(PODS, "default")
        except Forbidden:
            return False
        return True

    assert not await may()
    await api.create(ROLES, READER, "default")
    assert not await may()
    await api.create(ROLEBINDINGS, binding("b", "reader", ADA), "default")
    assert await may()
    with pytest.raises(Forbidden):
        await ada.list(SECRETS, "default")
    with pytest.raises(Forbidden):
        await ada.list(PODS, "kube-system")
    await api.patch(ROLEBINDINGS, "b", {"subjects": []}, "default")
    assert not await may()
    await api.patch(ROLEBINDINGS, "b", {"subjects": [ADA]}, "default")
    assert await may()
    await api.delete(ROLES, "reader", "default")
    with pytest.raises(Forbidden, match='RBAC: role.rbac.authorization.k8s.io "reader" not found'):
        await ada.list(PODS, "default")


async def test_what_was_noted_equals_what_a_restart_reads(server: ApiServer, api: InProcessClient) -> None:
    for name in ("one", "two", "three"):
        await api.create(ROLES, {**READER, "metadata": {"name": name}}, "default")
        await api.create(ROLEBINDINGS, binding(name, name, ADA, {"kind": "Group", "name": name}), "default")
    await api.patch(ROLES, "one", {"rules": []}, "default")
    await api.delete(ROLEBINDINGS, "two", "default")
    await api.delete(CLUSTERROLES, "edit")
    fresh = RbacAuthorizer()
    fresh.load(server.pipeline)
    for groups in ((), ("one",), ("two",), ("three", "system:authenticated")):
        user = User(name="ada", groups=groups)
        key = lambda rule: str(rule)  # noqa: E731
        assert sorted(fresh.rules_for(user, "default"), key=key) == sorted(
            server.authorizer.rules_for(user, "default"), key=key
        )


async def test_aggregated_roles_hold_the_rules_of_those_they_select() -> None:
    from moorage_local.controllers.clusterroles import aggregate

    label = {"matchLabels": {"to": "x"}}
    role = {"metadata": {"name": "x"}, "aggregationRule": {"clusterRoleSelectors": [label, label]}, "rules": []}
    rules = [{"verbs": ["get"]}, {"verbs": ["list"]}]
    others = [
        {"metadata": {"name": "b", "labels": {"to": "x"}}, "rules": [rules[1]]},
        {"metadata": {"name": "a", "labels": {"to": "x"}}, "rules": rules},
        {"metadata": {"name": "c"}, "rules": [{"verbs": ["delete"]}]},
        role,
    ]
    assert aggregate(role, others) == rules
    assert aggregate(others[0], others) is None
